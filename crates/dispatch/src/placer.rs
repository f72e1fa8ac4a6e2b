//! Which worker takes a request.

pub(crate) mod in_use;
