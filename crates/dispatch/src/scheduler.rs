//! Who goes next, who waits and who is refused.

pub mod retry_budget;
