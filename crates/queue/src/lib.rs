//! Who waits, who goes next, who is refused. Numbers in, an order out: nothing here knows a worker, a socket or
//! a clock.

pub mod settings;

pub use settings::{Class, Settings, Tenant, Terms};
