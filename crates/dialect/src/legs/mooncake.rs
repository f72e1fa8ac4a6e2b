//! vLLM over Mooncake: both legs at the same time, paired by an id that the router chooses.
//!
//! The router gives the decode worker the engine id of one rank of the prefill worker, and must send the prefill leg to
//! that rank. Ids change when the prefill worker restarts: after a failure, ask its bootstrap server again.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Display};

use serde::Deserialize;

use crate::engine::Unreadable;
use crate::json::edit::{Escaped, Quoted};

/// Where the bootstrap server of a prefill worker lists its engines.
pub const QUERY: &str = "/query";

/// The port of the bootstrap server where `VLLM_MOONCAKE_BOOTSTRAP_PORT` is not set.
pub const BOOTSTRAP_PORT: u16 = 8998;

/// Maximum ranks read. Chosen: more than any deployment has behind one port.
const ENGINES_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairing<'a> {
    /// Unique among live requests.
    pub request_id: &'a str,
    /// The address of the prefill worker's bootstrap server as the decode worker reaches it: `http://host:port`.
    pub bootstrap: &'a str,
    /// The engine of the rank that gets the prefill leg.
    pub engine_id: &'a str,
}

impl Pairing<'_> {
    pub(super) fn prefill_params(&self) -> impl Display {
        fmt::from_fn(|out| {
            let transfer_id = self.transfer_id();
            write!(
                out,
                r#"{{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":{transfer_id}}}"#
            )
        })
    }

    pub(super) fn decode_params(&self) -> impl Display {
        fmt::from_fn(|out| {
            let (transfer_id, bootstrap) = (self.transfer_id(), Quoted(self.bootstrap));
            let engine_id = Quoted(self.engine_id);
            write!(
                out,
                r#"{{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":{transfer_id},"remote_bootstrap_addr":{bootstrap},"remote_engine_id":{engine_id}}}"#
            )
        })
    }

    fn transfer_id(&self) -> impl Display {
        fmt::from_fn(|out| write!(out, "\"xfer-{}\"", Escaped(self.request_id)))
    }
}

/// Reads a bootstrap server's answer at `QUERY`: rank and engine id, sorted by rank.
pub fn engines(body: &[u8]) -> Result<Vec<(u32, String)>, Unreadable> {
    #[derive(Deserialize)]
    struct EngineEntry<'a> {
        #[serde(borrow)]
        engine_id: Cow<'a, str>,
    }
    let entries: BTreeMap<u32, EngineEntry<'_>> =
        serde_json::from_slice(body).map_err(|source| Unreadable::Json { kind: "mooncake", source })?;
    let engines = entries.into_iter().take(ENGINES_MAX);
    Ok(engines.map(|(rank, entry)| (rank, entry.engine_id.into_owned())).collect())
}
