//! Who waits, who goes next, who is refused. Numbers in, an order out: nothing here knows a worker, a socket or
//! a clock.

pub mod book;
pub mod drain;
pub mod knee;
pub mod line;
pub mod rate;
pub mod settings;
pub mod spare;

pub use book::Book;
pub use drain::Drain;
pub use knee::{Bends, Caps, Limits};
pub use line::{ClassMask, Entry, Full, Line, Waiting};
pub use rate::Rates;
pub use settings::{Class, Settings, Tenant, Terms};
pub use spare::Spare;
