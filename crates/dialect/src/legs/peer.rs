//! A worker pulls what a peer holds of the prompt and computes the rest: vLLM's `OffloadingConnector` with a `p2p` tier.
//!
//! The engine asks the peer which blocks it has. A wrong guess costs one look-up, but a peer that is dead or silent costs
//! 30 s of the time to the first token (vLLM 0.32), so the router names only peers that are known to be alive.

use std::fmt;

use crate::json::edit::Quoted;
use crate::legs::with_params;
use crate::openai::BadRequest;

/// Where to pull from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSource<'a> {
    /// Fresh for each request.
    pub kv_request_id: &'a str,
    /// The peer's side channel as the worker reaches it.
    pub host: &'a str,
    pub port: u16,
}

impl PeerSource<'_> {
    /// The client's body with the place to pull from.
    pub fn pull(&self, body: &[u8]) -> Result<Vec<u8>, BadRequest> {
        let params = fmt::from_fn(|out| {
            let (id, host, port) = (Quoted(self.kv_request_id), Quoted(self.host), self.port);
            write!(
                out,
                r#"{{"remote_kv_source":{{"kv_request_id":{id},"remote_host":{host},"remote_port":{port}}}}}"#
            )
        });
        with_params(body, &params)
    }
}
