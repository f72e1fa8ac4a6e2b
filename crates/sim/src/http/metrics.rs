//! `/metrics` with vLLM's names and labels, as far as the engine model has values for them.

use std::fmt::Write;

use super::HostState;
use super::answer::escape;
use super::transfer::{Connector, TransferMetrics};
use crate::engine::EngineStats;
use crate::engine::transfer::TransferCounters;
use crate::histogram::Histogram;

/// The data-parallel rank: a label of each series.
fn rank(state: &HostState) -> u32 {
    state.publisher.as_ref().map_or(0, |it| it.rank())
}

pub(super) fn render(state: &HostState) -> String {
    let stats = state.driver.stats();
    let (first_token, inter_token) = state.driver.histograms();
    let transfers = state.driver.transfer_counters();
    let counters = stats.counters;
    let model = escape(&state.config.model);
    let mut page = MetricsText {
        text: String::with_capacity(8192),
        labels: format!(r#"engine="{}",model_name="{model}""#, rank(state)),
    };
    page.gauge(
        "num_requests_running",
        "Number of requests in model execution batches.",
        stats.running as f64,
    );
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", stats.waiting as f64);
    page.family(
        "gauge",
        "num_requests_waiting_by_reason",
        "Number of waiting requests by reason.",
        &[
            ("reason=\"capacity\"", (stats.waiting - stats.receiving) as f64),
            ("reason=\"deferred\"", stats.receiving as f64),
        ],
    );
    page.gauge(
        "kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        f64::from(stats.used_blocks) / f64::from(stats.capacity_blocks),
    );
    page.counter(
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        counters.queried_tokens,
    );
    page.counter(
        "prefix_cache_hits",
        "Prefix cache hits, in terms of number of cached tokens.",
        counters.hit_tokens,
    );
    page.counter("num_preemptions", "Cumulative number of preemption from the engine.", counters.preemptions);
    page.counter("prompt_tokens", "Number of prefill tokens processed.", counters.prompt_tokens);
    page.counter("generation_tokens", "Number of generation tokens processed.", counters.answer_tokens);
    page.prompt_sources(&stats, &transfers);
    page.family(
        "counter",
        "request_success_total",
        "Count of successfully processed requests.",
        &[
            ("finished_reason=\"stop\"", counters.stopped as f64),
            ("finished_reason=\"length\"", counters.reached_length as f64),
            ("finished_reason=\"abort\"", counters.aborted as f64),
            ("finished_reason=\"error\"", transfers.failed as f64),
        ],
    );
    let about = "Histogram of time to first token in seconds.";
    page.histogram("time_to_first_token_seconds", about, &first_token);
    page.histogram(
        "inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        &inter_token,
    );
    page.cache_config(state);
    page.connector(state, &stats, &transfers);
    page.text
}

/// All of vLLM's metrics belong to one engine and one model.
struct MetricsText {
    text: String,
    labels: String,
}

impl MetricsText {
    fn gauge(&mut self, name: &str, about: &str, value: f64) {
        self.family("gauge", name, about, &[("", value)]);
    }

    fn counter(&mut self, name: &str, about: &str, value: u64) {
        self.family("counter", &format!("{name}_total"), about, &[("", value as f64)]);
    }

    /// One series for each pair of further label and value.
    fn family(&mut self, kind: &str, name: &str, about: &str, series: &[(&str, f64)]) {
        self.describe(kind, name, about);
        for (label, value) in series {
            let comma = if label.is_empty() { "" } else { "," };
            let labels = &self.labels;
            // Writing to a string cannot fail.
            let _ = writeln!(self.text, "vllm:{name}{{{labels}{comma}{label}}} {value:?}");
        }
    }

    fn histogram(&mut self, name: &str, about: &str, histogram: &Histogram) {
        self.describe("histogram", name, about);
        let labels = &self.labels;
        let count = histogram.count();
        for (bound, count) in histogram.cumulative() {
            let _ = writeln!(self.text, "vllm:{name}_bucket{{{labels},le=\"{bound:?}\"}} {:?}", count as f64);
        }
        let _ = writeln!(self.text, "vllm:{name}_bucket{{{labels},le=\"+Inf\"}} {:?}", count as f64);
        let _ = writeln!(self.text, "vllm:{name}_count{{{labels}}} {:?}", count as f64);
        let _ = writeln!(self.text, "vllm:{name}_sum{{{labels}}} {:?}", histogram.sum());
    }

    /// Where the tokens of answered prompts came from.
    fn prompt_sources(&mut self, stats: &EngineStats, transfers: &TransferCounters) {
        let (local, received, loaded) =
            (transfers.local_tokens, transfers.received_tokens, transfers.loaded_tokens);
        let computed = stats.counters.prompt_tokens.saturating_sub(local + received + loaded);
        self.family(
            "counter",
            "prompt_tokens_by_source_total",
            "Number of prompt tokens by source.",
            &[
                ("source=\"local_compute\"", computed as f64),
                ("source=\"local_cache_hit\"", local as f64),
                ("source=\"external_kv_transfer\"", (received + loaded) as f64),
            ],
        );
        let cached = local + received + loaded;
        self.counter("prompt_tokens_cached", "Number of cached prompt tokens.", cached);
        self.family(
            "counter",
            "prompt_tokens_cached_by_source_total",
            "Number of cached prompt tokens by source.",
            &[
                ("source=\"device\"", local as f64),
                ("source=\"p2p\"", received as f64),
                ("source=\"store\"", loaded as f64),
            ],
        );
    }

    /// What requests asked of the connector, and what it had.
    fn connector(&mut self, state: &HostState, stats: &EngineStats, transfers: &TransferCounters) {
        if state.transfer.is_none() && state.config.store.is_none() {
            return;
        }
        self.counter(
            "external_prefix_cache_queries",
            "External prefix cache queries, in terms of number of queried tokens.",
            stats.counters.queried_tokens - stats.counters.hit_tokens,
        );
        self.counter(
            "external_prefix_cache_hits",
            "External prefix cache hits, in terms of number of cached tokens.",
            transfers.received_tokens + transfers.loaded_tokens,
        );
        let Some(transfer) = &state.transfer else { return };
        let metrics = transfer.metrics.lock().clone();
        match transfer.connector() {
            Connector::Nixl(_) => self.nixl(&metrics, transfers),
            Connector::Peer(_) => self.pulls(&metrics),
            // SGLang's names are not simulated.
            Connector::Bootstrap(_) => {}
        }
    }

    fn nixl(&mut self, metrics: &TransferMetrics, transfers: &TransferCounters) {
        self.histogram("nixl_xfer_time_seconds", "Histogram of NIXL transfer durations.", &metrics.seconds);
        self.histogram("nixl_bytes_transferred", "Histogram of bytes in NIXL transfers.", &metrics.bytes);
        self.histogram(
            "nixl_num_descriptors",
            "Histogram of descriptors in NIXL transfers.",
            &metrics.blocks,
        );
        self.counter("nixl_num_failed_transfers", "Failed NIXL transfers.", metrics.failed_transfers);
        self.counter(
            "nixl_num_failed_notifications",
            "Failed NIXL notifications.",
            metrics.failed_notifications,
        );
        self.counter(
            "nixl_num_kv_expired_reqs",
            "Requests whose KV expired before it was read.",
            transfers.expired,
        );
        self.counter(
            "nixl_num_notifications_after_expiry",
            "Notifications for requests whose KV had been freed.",
            metrics.after_expiry,
        );
    }

    fn pulls(&mut self, metrics: &TransferMetrics) {
        let pulls = &metrics.pulls;
        for (name, about, value) in [
            ("chunk_queries", "Blocks looked up in a tier.", pulls.queried_blocks),
            ("chunk_hits", "Blocks found in a tier.", pulls.hit_blocks),
            ("read_bytes", "Bytes read from a tier.", pulls.read_bytes),
            ("promotion_job_failures", "Failed reads from a tier.", pulls.failures),
        ] {
            let name = format!("kv_offload_tiering_{name}_total");
            self.family("counter", &name, about, &[("tier=\"1:p2p\"", value as f64)]);
        }
    }

    /// The static metric from which routers read the size of the cache. vLLM gives it no model label either.
    fn cache_config(&mut self, state: &HostState) {
        self.describe("gauge", "cache_config_info", "Information of the LLMEngine CacheConfig");
        let profile = &state.config.engine.profile;
        let _ = writeln!(
            self.text,
            r#"vllm:cache_config_info{{block_size="{}",cache_dtype="auto",enable_prefix_caching="{}",engine="{}",gpu_memory_utilization="0.92",num_cpu_blocks="None",num_gpu_blocks="{}",num_gpu_blocks_override="None",prefix_caching_hash_algo="sha256"}} 1.0"#,
            profile.block_tokens,
            if state.config.caches_prefixes() { "True" } else { "False" },
            rank(state),
            profile.kv_blocks
        );
    }

    fn describe(&mut self, kind: &str, name: &str, about: &str) {
        let _ = writeln!(self.text, "# HELP vllm:{name} {about}\n# TYPE vllm:{name} {kind}");
    }
}
