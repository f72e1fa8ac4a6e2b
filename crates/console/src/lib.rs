//! What the commands share: standard output, a stopwatch, and the flags by which they reach an endpoint.

pub mod clock;
pub mod dial;
pub mod out;
