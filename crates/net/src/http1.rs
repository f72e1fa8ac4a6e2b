//! What both sides of the proxy share of HTTP/1.1: header lines, and how a body is framed.

pub(crate) mod body;
pub(crate) mod head;

/// Why bytes cannot be read as HTTP.
pub(crate) type Malformed = &'static str;
