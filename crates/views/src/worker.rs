//! One worker: state, load, the contents of its cache, and how fast it is.

use crate::schema::view;
use crate::text::Text;

view! {
    /// All workers.
    WorkerList {
        workers: Vec<WorkerView>,
    }

    /// State, load, cache and learned rates of one worker.
    WorkerView {
        id: u32,
        url: Text,
        /// `probing`, `ready`, `suspect`, `ejected` or `warming`.
        state: Text,
        /// The part of the work it should take, relative to 1 for a full part; set by an operator.
        weight: f64,
        ..
        /// Why it is not ready, such as `connection refused`.
        unhealthy: Option<Text>,
        /// Whether an operator has drained it.
        draining: bool,
        /// Which part of a request it does: `both`, `prefill` or `decode`.
        role: Text,
        engine: Option<Text>,
        /// At most 16.
        models: Vec<Text>,
        /// Requests in flight there, from every router.
        requests: u32,
        /// Requests of this router that wait for their first token.
        prefilling: u32,
        /// Requests in the engine's own queue.
        waiting: Option<u64>,
        /// Prompt tokens that this router promised and that are not computed yet.
        prefill_tokens: u64,
        /// Answer tokens that this router promised and that are not generated yet.
        decode_tokens: u64,
        /// What the other routers promised.
        other_routers: PromisedLoad,
        /// What it may have in flight before requests wait in the router.
        limits: Option<ConcurrencyLimits>,
        /// How full its KV cache is.
        kv_usage: Option<f64>,
        /// The size of its KV cache.
        kv_tokens: Option<u64>,
        /// Tokens that the router expects in its cache.
        cached_tokens: u64,
        /// Cached prompt tokens divided by all its prompt tokens, since the start.
        hit_ratio: Option<f64>,
        /// Requests that it received since the start.
        requests_total: u64,
        /// Failed attempts and answers that were cut off, since the start.
        failures: u64,
        rates: LearnedRates,
        /// How far the router trusts its KV events: `none`, `cold`, `suspect` or `fresh`.
        trust: Text,
        /// Time since anything was received from it.
        last_seen_ms: Option<u64>,
    }

    /// Work promised to a worker and not done yet.
    PromisedLoad {
        ..
        requests: u32,
        prefill_tokens: u64,
        decode_tokens: u64,
    }

    /// Requests and prompt tokens a worker may have in flight.
    ConcurrencyLimits {
        ..
        sequences: u32,
        prefill_tokens: u64,
    }

    /// How fast a worker is.
    Rates {
        ..
        prefill_tokens_per_s: f64,
        /// TTFT of the shortest prompt.
        floor_ms: f64,
        /// Time between two tokens on an idle worker.
        step_ms: f64,
        /// What each request in flight adds to a step.
        step_per_request_ms: f64,
        /// Time between two tokens with the current number of requests.
        step_now_ms: f64,
    }

    /// How fast a worker is, and whether that was measured.
    LearnedRates(rates: Rates) {
        ..
        /// False while these are assumptions.
        learned: bool,
    }
}
