//! Our index compared with those of other routers: the same blocks, the same prompts, one process.

pub mod contestants;
pub mod heap;
pub mod work;
