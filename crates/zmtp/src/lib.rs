//! ZeroMQ's wire format (ZMTP 3), as much of it as KV events need: bytes in, frames out.
