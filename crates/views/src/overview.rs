//! The router at one instant, and its last quarter of an hour.

use std::collections::BTreeMap;

use crate::cluster::ClusterView;
use crate::decision::DecisionEvent;
use crate::programs::ProgramsView;
use crate::scaling::ModelScalingView;
use crate::schema::view;
use crate::text::Text;
use crate::worker::WorkerView;

view! {
    /// The state of the router, its workers, queue and totals.
    Overview {
        /// When it was taken, in milliseconds since 1970.
        at_ms: u64,
        /// The strategy in use.
        strategy: Text,
        workers: Vec<WorkerView>,
        ..
        version: Text,
        uptime_s: f64,
        /// Whether it takes requests, as `/readyz` answers.
        ready: bool,
        /// Why it takes none, if it does not.
        not_ready: Option<Text>,
        /// Whether it finishes its requests before it stops.
        draining: bool,
        /// Models that use another strategy.
        strategies: BTreeMap<Text, Text>,
        totals: TotalCounts,
        now: LastSecond,
        queue: QueueView,
        prediction: PredictionError,
        shadows: Vec<ShadowMeans>,
        /// The most frequent prefixes, at most 20.
        prefixes: Vec<HotPrefix>,
        discovery: Vec<DiscoverySource>,
        /// How many workers each model should have; at most 16.
        scaling: Vec<ModelScalingView>,
        /// Null if this router is the only one.
        cluster: Option<ClusterView>,
        /// Null while programs are off.
        programs: Option<ProgramsView>,
    }

    /// Counts since the start.
    TotalCounts {
        ..
        /// All requests that have arrived.
        requests: u64,
        answered: u64,
        refused: u64,
        /// A worker answered with an error status.
        declined: u64,
        failed: u64,
        /// The client disconnected before the end.
        disconnected: u64,
        /// Requests that have not ended.
        in_flight: u64,
        prompt_tokens: u64,
        cached_tokens: u64,
        answer_tokens: u64,
    }

    /// The last second; times and ratios cover the last ten.
    LastSecond {
        ..
        /// Requests that arrived.
        requests_per_s: f64,
        /// Counted as the router passes them on.
        answer_tokens_per_s: f64,
        /// Of prompts whose answer began; if the router has no tokenizer for the model, of prompts whose answer
        /// ended.
        prompt_tokens_per_s: f64,
        /// A request that still waits for its first token counts as one that takes longer than that.
        ttft_p50_ms: Option<f64>,
        ttft_p99_ms: Option<f64>,
        /// The longest wait of a request in flight that has no first token yet; null if there is none.
        longest_wait_ms: Option<f64>,
        hit_ratio: Option<f64>,
        /// Requests in the queue.
        waiting: u32,
    }

    /// The queue in the router.
    QueueView {
        ..
        enabled: bool,
        /// Requests in the queue.
        waiting: u32,
        classes: Vec<ClassQueueView>,
    }

    /// Requests of one class in the queue.
    ClassQueueView {
        class: Text,
        waiting: u32,
        ..
        /// The tenant with the largest share of them. Its name where the settings have it among the keys; else masked.
        largest_tenant: Option<Text>,
        /// How many of them are its requests.
        largest_tenant_waiting: u32,
    }

    /// The error of predicted TTFT.
    PredictionError {
        ..
        /// Streams that it covers.
        count: u64,
        /// The median of |predicted − actual| / actual.
        median_error: Option<f64>,
    }

    /// What another strategy would have done, averaged over its decisions.
    ShadowMeans {
        strategy: Text,
        ..
        decisions: u64,
        /// Decisions in which it picked another worker.
        differed: u64,
        price_ms: Option<f64>,
        our_price_ms: Option<f64>,
        ttft_ms: Option<f64>,
        our_ttft_ms: Option<f64>,
    }

    /// A prefix that many prompts share.
    HotPrefix {
        ..
        hash: Text,
        tokens: u64,
        /// Prompts that had it; halves every minute.
        seen: f64,
        /// Workers that have it cached, at most 16.
        holders: Vec<u32>,
        holders_total: u32,
        model: Option<Text>,
    }

    /// A source of worker discovery.
    DiscoverySource {
        ..
        source: Text,
        state: Text,
        workers: u64,
        /// Why it fails, or which workers were left out.
        note: Option<Text>,
    }

    /// One sample a second, oldest first, in lists of equal length.
    History {
        at_ms: Vec<u64>,
        ttft_p50_ms: Vec<Option<f64>>,
        requests_per_s: Vec<f64>,
        ..
        ttft_p99_ms: Vec<Option<f64>>,
        answer_tokens_per_s: Vec<f64>,
        prompt_tokens_per_s: Vec<f64>,
        hit_ratio: Vec<Option<f64>>,
        /// Requests in the queue, by class.
        waiting: BTreeMap<Text, Vec<u32>>,
    }

    /// Server-sent events: each has the name of a field here, and that field as its data.
    LiveEvents {
        /// Once a second.
        overview: Overview,
        /// At most twice a second, if there are any.
        decisions: DecisionEvent,
    }
}
