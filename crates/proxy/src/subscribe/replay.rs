//! A replay: everything a publisher still has from one number on, all of it or none.
//!
//! Engines answer from a socket that drops what a reader does not take in time, in silence and at the end:
//! one that spent 100 µs on each message got 6,000 of 10,000, and no end mark. So nothing is parsed here.
//! Messages are taken into memory as fast as they come, and are good only if they follow each other without
//! a gap up to the mark.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::socket::{Dealer, Error, Message, Place};

/// Batches of one replay. vLLM and SGLang keep 10,000 unless told otherwise.
pub(super) const BATCHES_MAX: usize = 100_000;

/// Bytes of one replay, all batches together. vLLM's 10,000 batches of a busy engine are about 64 MiB.
pub(super) const BYTES_MAX: usize = 256 << 20;

/// The number that stands for the end.
const END: u64 = u64::MAX;

/// What a replay may come to.
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
pub struct Batch {
    pub sequence: u64,
    /// Still packed.
    pub payload: Bytes,
}

/// Why a replay is worth nothing.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("replay: {0}")]
    Socket(#[from] Error),
    /// The usual face of a replay that lost its end on the way, too.
    #[error("replay: no end after {patience:?} and {batches} batches")]
    TimedOut { patience: Duration, batches: usize },
    #[error("replay: more than {0} batches")]
    TooManyBatches(usize),
    #[error("replay: more than {0} bytes")]
    TooManyBytes(usize),
    #[error("replay: batch {found} comes where {expected} should")]
    Gap { expected: u64, found: u64 },
    /// It begins before what was asked for.
    #[error("replay: batch {found} comes and only {from} and later were asked for")]
    Unasked { from: u64, found: u64 },
    #[error("replay: a reply of {frames} frames, {problem}")]
    Misshapen { frames: usize, problem: &'static str },
}

/// Everything from number `from` on. May begin later than that: then what lies between is gone for good. May
/// be empty: then there is nothing from there on, and never was or no longer is.
pub async fn replay(place: Place<'_>, from: u64, bound: Bound) -> Result<Vec<Batch>, ReplayError> {
    let mut drain = Drain { from, bound, batches: Vec::new(), bytes: 0 };
    let whole = async {
        let mut dealer = Dealer::connect(place, bound.patience).await?;
        // The empty frame is what a REQ socket would put before a request, and engines insist on it.
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
    batches: Vec<Batch>,
    bytes: usize,
}

impl Drain {
    /// Takes one reply; whether there is more to come.
    fn take(&mut self, message: Message) -> Result<bool, ReplayError> {
        // All frames: the memory of a payload is kept with what came around it.
        self.bytes += message.iter().map(Bytes::len).sum::<usize>();
        if self.bytes > self.bound.bytes_max {
            return Err(ReplayError::TooManyBytes(self.bound.bytes_max));
        }
        let Batch { sequence, payload } = read(message)?;
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
        self.batches.push(Batch { sequence, payload });
        Ok(true)
    }
}

/// Two shapes are about: with the topic since vLLM 0.26, without it before and from SGLang.
fn read(mut message: Message) -> Result<Batch, ReplayError> {
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
    Ok(Batch { sequence: u64::from_be_bytes(number), payload })
}

#[cfg(test)]
mod tests;
