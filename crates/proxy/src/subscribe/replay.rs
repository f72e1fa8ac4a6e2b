//! A replay: all batches that a publisher still has from one number on, complete or not at all.
//!
//! Engines answer from a socket that silently drops what a slow reader does not take: a reader that spent 100 µs on each
//! message got 6,000 of 10,000, and no end mark. So nothing is parsed here. Messages are read into memory as fast as
//! they come, and are valid only if their numbers have no gap up to the end mark.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::socket::{Dealer, SocketError, ZmqAddress, ZmqMessage};

/// Batches of one replay. vLLM and SGLang keep 10,000 by default.
pub(super) const BATCHES_MAX: usize = 100_000;

/// Bytes of one replay, all batches together. vLLM's 10,000 batches of a busy engine are about 64 MiB.
pub(super) const BYTES_MAX: usize = 256 << 20;

/// The number of the end mark.
const END: u64 = u64::MAX;

/// The limits of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    pub batches_max: usize,
    pub bytes_max: usize,
    /// From the first packet to the end mark.
    pub patience: Duration,
}

impl Bound {
    pub const fn within(patience: Duration) -> Bound {
        Bound { batches_max: BATCHES_MAX, bytes_max: BYTES_MAX, patience }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedBatch {
    pub sequence: u64,
    /// Still packed.
    pub payload: Bytes,
}

/// Why a replay cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("replay: {0}")]
    Socket(#[from] SocketError),
    /// Also the usual symptom of a replay whose end was dropped.
    #[error("replay: no end mark after {patience:?} and {batches} batches")]
    TimedOut { patience: Duration, batches: usize },
    #[error("replay: more than {0} batches")]
    TooManyBatches(usize),
    #[error("replay: more than {0} bytes")]
    TooManyBytes(usize),
    #[error("replay: got batch {found}, expected {expected}")]
    Gap { expected: u64, found: u64 },
    /// It begins before the requested number.
    #[error("replay: got batch {found}, requested {from} and later")]
    Unasked { from: u64, found: u64 },
    #[error("replay: a reply of {frames} frames, {problem}")]
    Misshapen { frames: usize, problem: &'static str },
}

/// All batches from number `from` on. The result may begin later: then the batches between are lost for good. It may be
/// empty: then the publisher has no batch from there on.
pub async fn replay(
    address: ZmqAddress<'_>,
    from: u64,
    bound: Bound,
) -> Result<Vec<ReplayedBatch>, ReplayError> {
    let mut drain = Drain { from, bound, batches: Vec::new(), bytes: 0 };
    let whole = async {
        let mut dealer = Dealer::connect(address, bound.patience).await?;
        // A REQ socket would send this empty frame first, and engines require it.
        dealer.send(&[b"".as_slice(), &from.to_be_bytes()]).await?;
        while drain.take(dealer.next().await?)? {}
        Ok(())
    };
    match timeout(bound.patience, whole).await {
        Ok(done) => done.map(|()| drain.batches),
        Err(_) => Err(ReplayError::TimedOut { patience: bound.patience, batches: drain.batches.len() }),
    }
}

struct Drain {
    from: u64,
    bound: Bound,
    batches: Vec<ReplayedBatch>,
    bytes: usize,
}

impl Drain {
    /// Takes one reply. Returns whether more follow.
    fn take(&mut self, message: ZmqMessage) -> Result<bool, ReplayError> {
        // Counts all frames: a payload keeps the memory of the whole message alive.
        self.bytes += message.iter().map(Bytes::len).sum::<usize>();
        if self.bytes > self.bound.bytes_max {
            return Err(ReplayError::TooManyBytes(self.bound.bytes_max));
        }
        let ReplayedBatch { sequence, payload } = read(message)?;
        if sequence == END {
            return Ok(false);
        }
        let expected = self.batches.last().map(|it| it.sequence + 1);
        match expected {
            Some(expected) if sequence != expected => {
                return Err(ReplayError::Gap { expected, found: sequence });
            }
            None if sequence < self.from => {
                return Err(ReplayError::Unasked { from: self.from, found: sequence });
            }
            _ => {}
        }
        if self.batches.len() == self.bound.batches_max {
            return Err(ReplayError::TooManyBatches(self.bound.batches_max));
        }
        self.batches.push(ReplayedBatch { sequence, payload });
        Ok(true)
    }
}

/// There are two shapes: with the topic since vLLM 0.26, without it before and from SGLang.
fn read(mut message: ZmqMessage) -> Result<ReplayedBatch, ReplayError> {
    let frames = message.len();
    let wrong = |problem| ReplayError::Misshapen { frames, problem };
    let (number, payload) = match (frames, message.pop(), message.pop()) {
        (3 | 4, Some(payload), Some(number)) => (number, payload),
        _ => return Err(wrong("and 3 or 4 were expected")),
    };
    if message.first().is_none_or(|it| !it.is_empty()) {
        return Err(wrong("the first of which is not empty"));
    }
    let number: [u8; 8] = number.as_ref().try_into().map_err(|_| wrong("without a number of eight bytes"))?;
    Ok(ReplayedBatch { sequence: u64::from_be_bytes(number), payload })
}

#[cfg(test)]
mod tests;
