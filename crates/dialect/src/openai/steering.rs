//! Fields by which a client could steer the engine behind the router.
//!
//! They address other machines (KV transfers, bootstrap servers, encoders), choose a rank or a slot, name a
//! request by an id that others may use, continue another client's session, name files or carry code. Sampling
//! parameters, templates and output formats are not among them: they change only the client's own answer.
//!
//! `vllm_xargs` is here although some uses are harmless: it hands named arguments to whatever plugins an
//! engine runs, KV connectors among them, and the router cannot tell which read it.

use crate::route::Route;

/// Listed by engine. Sources: the request types of vLLM 0.32, SGLang 0.5.23, TensorRT-LLM and llama.cpp.
const NAMES: [&str; 28] = [
    // vLLM.
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "request_id",
    // SGLang: prefill and decode on different workers.
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "decode_tp_size",
    "kv_hints",
    "kv_router_hint",
    "encoder_urls",
    "need_wait_for_mm_inputs",
    "num_items_assigned",
    // SGLang: ranks, ids, sessions, internals.
    "data_parallel_rank",
    "routed_dp_rank",
    "disagg_prefill_dp_rank",
    "routing_key",
    "rid",
    "session_params",
    "http_worker_ipc",
    "lora_id",
    "mm_hashes",
    "custom_logit_processor",
    // TensorRT-LLM.
    "disaggregated_params",
    "lora_request",
    // llama.cpp, now and before.
    "id_slot",
    "slot_id",
];

/// The field, if it steers engines.
pub(crate) fn named(key: &str) -> Option<&'static str> {
    NAMES.into_iter().find(|it| *it == key)
}

/// Whether token ids in the body would replace its messages. SGLang and TensorRT-LLM then run the ids and ignore
/// the messages, which are what the router reads and what the engine's template would wrap.
pub(crate) fn replaces_messages(route: Route) -> bool {
    matches!(route, Route::Chat | Route::Messages | Route::Responses)
}
