//! Counters of the connector, under vLLM's names.

use std::time::Duration;

use super::peer::PullCounters;
use crate::histogram::{BLOCK_COUNTS, Histogram, TRANSFER_BYTES, TRANSFER_SECONDS};

#[derive(Clone, Debug)]
pub(in crate::http) struct TransferMetrics {
    pub(in crate::http) seconds: Histogram,
    pub(in crate::http) bytes: Histogram,
    pub(in crate::http) blocks: Histogram,
    pub(in crate::http) failed_transfers: u64,
    pub(in crate::http) failed_notifications: u64,
    /// Requests that were read or released after they had been freed.
    pub(in crate::http) after_expiry: u64,
    pub(in crate::http) pulls: PullCounters,
}

impl Default for TransferMetrics {
    fn default() -> TransferMetrics {
        TransferMetrics {
            seconds: Histogram::new(TRANSFER_SECONDS),
            bytes: Histogram::new(TRANSFER_BYTES),
            blocks: Histogram::new(BLOCK_COUNTS),
            failed_transfers: 0,
            failed_notifications: 0,
            after_expiry: 0,
            pulls: PullCounters::default(),
        }
    }
}

impl TransferMetrics {
    pub(super) fn observe(&mut self, took: Duration, bytes: u64, blocks: u64) {
        self.seconds.observe(took);
        self.bytes.observe_value(bytes as f64);
        self.blocks.observe_value(blocks as f64);
    }
}
