//! Wall time, for the dates of responses.

use std::time::SystemTime;

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(super) fn wall() -> SystemTime {
    SystemTime::now()
}
