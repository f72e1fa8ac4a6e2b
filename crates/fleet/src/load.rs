//! The last load that an engine reported, and when.

use std::time::Duration;

use maitre_base::{EngineLoad, Instant};

/// The age at which a report is stale. The router scrapes a worker every second, so three scrapes have failed.
pub const STALE_AFTER: Duration = Duration::from_millis(3_500);

/// An engine's load with the time of its report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadReport {
    pub load: EngineLoad,
    pub at: Instant,
}

impl LoadReport {
    pub fn is_stale(&self, now: Instant) -> bool {
        now.since(self.at) > STALE_AFTER
    }
}
