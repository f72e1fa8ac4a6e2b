//! The clock of this transport, for the age of frames and the renewal of keys.

pub(super) use tokio::time::Instant;

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(super) fn now() -> Instant {
    Instant::now()
}
