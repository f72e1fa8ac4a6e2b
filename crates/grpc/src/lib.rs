//! The messages of the router's gRPC services as values, and the names of their methods.
//!
//! Written by hand, with only the fields that the router reads or writes, under their official numbers. Protobuf
//! skips fields that a reader does not know, so the rest of these APIs is not needed here, and the build needs no
//! protobuf compiler.

pub mod ext_proc;
pub mod external_scaler;
pub mod health;
pub mod structure;
