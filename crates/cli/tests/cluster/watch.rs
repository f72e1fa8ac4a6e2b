//! Wall time: polls until a condition holds, and measures how long that took.

use std::time::{Duration, Instant};

/// Time between two polls. Short, because the result is a measurement.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

#[expect(clippy::disallowed_methods, reason = "these tests measure")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Polls until there is a value, and returns how long after `since` that was. Fails the test after `limit`.
pub(crate) async fn until<T>(
    what: &str,
    since: Instant,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> (T, Duration) {
    loop {
        let looked = look().await;
        let took = since.elapsed();
        match looked {
            Ok(found) if took <= limit => return (found, took),
            Ok(_) => panic!("{what}: after {took:?}, and {limit:?} is the limit"),
            Err(seen) if took > limit => panic!("{what}: not within {limit:?}; last seen: {seen}"),
            Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// A summary of a list of delays.
pub(crate) struct Delays(Vec<Duration>);

impl Delays {
    pub(crate) fn new(mut delays: Vec<Duration>) -> Delays {
        delays.sort_unstable();
        Delays(delays)
    }

    /// The percentile of the delays.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() * percent).div_ceil(100).saturating_sub(1)]
    }

    pub(crate) fn show(&self, what: &str) {
        let [p50, p99, most] = [50, 99, 100].map(|it| self.percentile(it));
        eprintln!("{what}: p50 {p50:.1?}, p99 {p99:.1?}, most {most:.1?} of {}", self.0.len());
    }
}
