//! Who waits, who goes next, who is refused. Numbers in, an order out: nothing here knows a worker, a socket or
//! a clock.

pub mod allowance;
pub mod book;
pub mod drain;
pub mod knee;
pub mod line;
pub mod settings;
pub mod spare;

pub use allowance::{Allowances, Passed, Share, Taken};
pub use book::Book;
pub use drain::Drain;
pub use knee::{Caps, Limits, Scale};
pub use line::{ClassMask, Entry, Full, Line, Waiting};
pub use settings::{Class, Settings, Tenant, Terms};
pub use spare::Spare;
