//! What `maitre top` and `maitre explain` share: where a router is, the key to it, how it is asked, and how what it
//! says becomes text.
//!
//! Both are clients of the admin API and know no more than it tells. They can ask a router of another version, so what
//! a router leaves out counts as unknown, and what it adds is not read.

pub(crate) mod api;
pub(crate) mod client;
pub(crate) mod grid;
pub(crate) mod plain;
pub(crate) mod show;
pub(crate) mod sse;
pub(crate) mod target;
pub(crate) mod trouble;
pub(crate) mod weighed;

use std::process::ExitCode;

/// It could not even be asked: the address or the key is wrong, or nobody is there.
pub(crate) fn not_asked(why: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("maitre: {why}");
    ExitCode::from(2)
}
