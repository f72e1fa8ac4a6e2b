//! The clock of this transport: how long a frame waits, and when a line was last written.

pub(super) use tokio::time::Instant;

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(super) fn now() -> Instant {
    Instant::now()
}
