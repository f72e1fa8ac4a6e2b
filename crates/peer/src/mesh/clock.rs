//! The clocks of the mesh: one for timeouts, and one that orders two starts under the same name.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Milliseconds since the epoch; zero if the clock is set before it.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(super) fn stamp() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
