//! What is recorded about decisions, for people and for other routers. Nothing here changes a pick.

pub mod decision;
pub(crate) mod dirty;
pub mod forecast;
pub mod hot;
pub mod ring;
pub mod shadow;
