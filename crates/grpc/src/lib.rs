//! The messages of the gRPC services that the router has, as values; and the names of their methods.
//!
//! Written by hand, with the fields that the router reads or writes and the numbers that their authors gave them. Protobuf
//! skips fields that a reader does not know, so the rest of these APIs need not be here, and building needs no compiler of
//! protobuf.

pub mod ext_proc;
pub mod external_scaler;
pub mod health;
pub mod structure;
