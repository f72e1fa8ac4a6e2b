//! The clock of a calibration: tokio's, so that a test which pauses time pauses it too.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeClock(tokio::time::Instant);

impl ProbeClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock of the calibration")]
    pub(crate) fn start() -> ProbeClock {
        ProbeClock(tokio::time::Instant::now())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    pub(crate) async fn until(&self, at: Duration) {
        tokio::time::sleep_until(self.0 + at).await;
    }
}

/// A number that no earlier run had.
#[expect(clippy::disallowed_methods, reason = "this is the clock of the calibration")]
pub(crate) fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_nanos() as u64
}
