//! vLLM over NIXL: the decode worker pulls the blocks, or the prefill worker pushes them.
//!
//! When it pulls, the prefill worker's answer names its blocks and its side channel, and all of that goes to the decode
//! worker unchanged: each release adds keys. Parameters serve one request, once, and expire with the prefill worker's lease
//! (30 s): vLLM 0.32 reads blocks that were reused since, and answers with wrong text and status 200.
//!
//! When it pushes, nothing is known of blocks beforehand. Both engines then match the legs by the request id, so that both
//! need the same `X-Request-Id`.

use std::fmt::{self, Display};

use crate::json::edit::Quoted;
use crate::json::{Raw, Shape};
use crate::legs::bad_answer::BadAnswer;

/// What the prefill worker gets, in both styles.
pub(super) const PREFILL_PARAMS: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

/// The engine id of a data-parallel rank, where this one is configured for all of them. Both engines compare it.
pub fn engine_id_of(configured: &str, rank: Option<u32>) -> String {
    rank.map_or_else(|| configured.to_owned(), |rank| format!("{configured}_dp{rank}"))
}

/// How a decode worker reaches the prefill worker that will push to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideChannel<'a> {
    /// Fixed in the prefill worker's `--kv-transfer-config`: see `engine_id_of`.
    pub engine_id: &'a str,
    /// As the decode worker reaches it.
    pub host: &'a str,
    /// `VLLM_NIXL_SIDE_CHANNEL_PORT` plus the rank.
    pub port: u16,
    pub tp_size: u32,
    pub pp_size: u32,
    /// The `X-Request-Id` of both legs.
    pub request_id: &'a str,
}

impl SideChannel<'_> {
    pub(super) fn decode_params(&self) -> impl Display {
        fmt::from_fn(|out| {
            let SideChannel { engine_id, host, port, tp_size, pp_size, request_id } = *self;
            let (engine_id, host, request_id) = (Quoted(engine_id), Quoted(host), Quoted(request_id));
            write!(
                out,
                r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":{engine_id},"remote_host":{host},"remote_port":{port},"tp_size":{tp_size},"pp_size":{pp_size},"remote_request_id":{request_id}}}"#
            )
        })
    }
}

/// The parameters in the prefill worker's answer, if the decode worker can fetch anything with them.
///
/// A decode worker that is asked to fetch and lacks the block numbers ends in an assertion, with its whole process
/// (vLLM 0.32). So what it needs must be there.
pub(super) fn handoff(params: Option<Raw<'_>>) -> Result<Option<&str>, BadAnswer> {
    let Some(params) = params.filter(|it| it.shape() != Shape::Null) else { return Ok(None) };
    if params.shape() != Shape::Object {
        let found = params.shape().name();
        return Err(BadAnswer::WrongType { field: "kv_transfer_params", expected: "an object", found });
    }
    let mut needed = NEEDED.map(|name| (name, None));
    let mut fetches = false;
    params.members(|key, value| {
        fetches |= key == "do_remote_prefill" && value.text == "true";
        if let Some(slot) = needed.iter_mut().find(|it| it.0 == key) {
            slot.1 = Some(value).filter(|it| it.shape() != Shape::Null);
        }
    });
    if !fetches {
        return Ok(Some(params.text));
    }
    if let Some((field, _)) = needed.iter().find(|it| it.1.is_none()) {
        return Err(BadAnswer::Missing { field });
    }
    // A prompt shorter than a block, in old releases.
    let has_blocks = needed[0].1.is_some_and(|it| !it.is_empty());
    Ok(has_blocks.then_some(params.text))
}

/// Not `remote_request_id`, which releases before 0.13 lack.
const NEEDED: [&str; 4] = ["remote_block_ids", "remote_engine_id", "remote_host", "remote_port"];
