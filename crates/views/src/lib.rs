//! The admin API's JSON as types. The router fills and serializes them, `maitre top` and `maitre explain` read them,
//! and the OpenAPI document is made from the same declarations.
//!
//! Times are milliseconds, sizes are tokens, ratios run from 0 to 1. A value that is not known is `None`, `null` on the
//! wire. A client may be newer or older than the router it asks: it ignores fields it does not know, and fields behind
//! the `..` of a declaration may be missing (`schema` has the macro).

pub mod cluster;
pub mod control;
pub mod decision;
pub mod error;
pub mod overview;
pub mod programs;
pub mod scaling;
pub mod schema;
pub mod text;
pub mod worker;
