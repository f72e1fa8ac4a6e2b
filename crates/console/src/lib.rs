//! What the commands share: standard output, a stopwatch, and flags: how they are written, and those by which they reach an endpoint.

pub mod clock;
pub mod dial;
pub mod flag;
pub mod out;
