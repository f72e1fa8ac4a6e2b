//! What `maitre top` and `maitre explain` share: the router's address and key, the client, and text for a terminal.
//!
//! Both use only the admin API, through the views of `maitre_views`.

pub(crate) mod client;
pub(crate) mod decision;
pub(crate) mod format;
pub(crate) mod programs;
pub(crate) mod sse;
pub(crate) mod table;
pub(crate) mod target;
pub(crate) mod trouble;

use std::process::ExitCode;

/// Ends a command whose router could not be reached: wrong address, wrong key, or no router there.
pub(crate) fn not_asked(why: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("maitre: {why}");
    ExitCode::from(2)
}
