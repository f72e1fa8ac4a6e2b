//! The link over which an engine receives KV: a floor for each transfer, and a shared bandwidth.
//!
//! Transfers go through one after the other, so two at once take as long as both in turn. The floor (handshake,
//! look-up, completion) delays a transfer but not those behind it.

use std::time::Duration;

use maitre_base::Instant;

use crate::profile::Profile;

/// What a transfer costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkModel {
    pub floor: Duration,
    /// Infinite: only the floor counts.
    pub bytes_per_second: f64,
    /// Bytes of KV for each token.
    pub token_bytes: u32,
}

impl LinkModel {
    /// The link of an engine whose profile says nothing about it.
    ///
    /// Fitted to pulls that llm-d measured in August 2026, gpt-oss-120b on H200, by tokens: 2k 35 ms, 8k 57, 16k 86,
    /// 32k 165, 48k 235. That is 26 ms and 4.3 µs a token of 73,728 bytes: 17 GB/s. The instant profile has no
    /// time here either.
    pub fn of(profile: &Profile) -> LinkModel {
        let token_bytes = profile.kv_token_bytes();
        match profile.is_instant() {
            true => LinkModel { floor: Duration::ZERO, bytes_per_second: f64::INFINITY, token_bytes },
            false => LinkModel { floor: Duration::from_millis(26), bytes_per_second: 17e9, token_bytes },
        }
    }

    /// Bytes of these blocks. Blocks travel whole.
    pub fn bytes(&self, blocks: u64, block_tokens: u32) -> u64 {
        blocks.saturating_mul(u64::from(block_tokens)).saturating_mul(u64::from(self.token_bytes))
    }

    fn occupied(&self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_second).unwrap_or(Duration::MAX)
    }
}

/// One engine's link.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub model: LinkModel,
    free_at: Instant,
}

impl Link {
    pub fn new(model: LinkModel) -> Link {
        Link { model, free_at: Instant::ZERO }
    }

    /// Begins a transfer and returns when it is complete. `slowness` is 1 for a healthy link.
    pub fn send(&mut self, now: Instant, bytes: u64, slowness: f64) -> Instant {
        let slow =
            |span: Duration| Duration::try_from_secs_f64(span.as_secs_f64() * slowness).unwrap_or(span);
        self.free_at = self.free_at.max(now) + slow(self.model.occupied(bytes));
        self.free_at + slow(self.model.floor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::profile::{H100X2_32B, INSTANT};

    /// 10 ms, then a megabyte a millisecond.
    const MODEL: LinkModel =
        LinkModel { floor: Duration::from_millis(10), bytes_per_second: 1e9, token_bytes: 1 << 10 };

    /// Sends `(at ms, bytes)` one after the other and compares the milliseconds at which they are complete.
    #[track_caller]
    fn check(transfers: &[(u64, u64)], slowness: f64, expected: &[u64]) {
        let mut link = Link::new(MODEL);
        let ends = transfers.iter().map(|&(at, bytes)| link.send(Instant::from_millis(at), bytes, slowness));
        assert_eq!(ends.map(|it| it.as_nanos() / 1_000_000).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_transfer_takes_the_floor_and_its_bytes() {
        check(&[(0, 0), (5, 3_000_000)], 1.0, &[10, 18]);
        check(&[(0, 3_000_000)], 4.0, &[52]);
    }

    #[test]
    fn transfers_share_the_bandwidth_but_not_the_floor() {
        check(&[(0, 5_000_000), (1, 5_000_000), (30, 1_000_000)], 1.0, &[15, 20, 41]);
    }

    #[test]
    fn an_invalid_slowness_changes_nothing() {
        for slowness in [-1.0, f64::NAN, f64::INFINITY] {
            check(&[(0, 1_000_000)], slowness, &[11]);
        }
    }

    #[test]
    fn whole_blocks_travel() {
        assert_eq!(MODEL.bytes(3, 16), 3 * 16 * 1_024);
        assert_eq!(LinkModel::of(&H100X2_32B).bytes(1, 16), 4 << 20);
        let mut link = Link::new(LinkModel::of(&INSTANT));
        assert_eq!(link.send(Instant::from_millis(7), 1 << 40, 1.0), Instant::from_millis(7));
    }
}
