//! What Prometheus sees. Counters and histograms live here; gauges of the brain (workers, promises) are read at each
//! scrape. Every name has a sentence in docs/metrics.md.

mod caches;
mod cluster;
mod continuations;
mod decisions;
mod exposition;
mod hedges;
mod in_flight;
mod own_state;
mod process;
mod programs;
mod queue;
mod scaling;

use std::sync::Arc;
use std::time::Duration;

use maitre_base::{Instant, PromisedWork, WorkerId};
use maitre_dialect::route::Route;
use maitre_dispatch::cache::Cache;
use maitre_dispatch::{Brain, Failure};
use maitre_fleet::{HealthState, Worker};
use maitre_index::feed::Trust;
use maitre_net::tls::Validity;
use maitre_policy::Why;
use maitre_queue::{Class, WorkerLimits};
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use caches::Caches;
use cluster::ClusterMetrics;
pub(crate) use cluster::ClusterSample;
pub(crate) use continuations::{Continuations, Continued};
use decisions::Decisions;
pub(crate) use exposition::MetricsFormat;
pub(crate) use hedges::{Hedged, Hedges};
use in_flight::InFlight;
use own_state::OwnState;
use process::Process;
use programs::Programs;
use queue::Queue;
use scaling::Scaling;

use crate::in_flight::LaneSums;
use crate::outcome::RequestOutcome;

type MetricLabel = (&'static str, &'static str);

fn labels(route: Option<Route>, outcome: RequestOutcome) -> [MetricLabel; 3] {
    [("route", route.map_or("other", Route::name)), ("outcome", outcome.name()), ("code", outcome.code())]
}

type Float = Gauge<f64, std::sync::atomic::AtomicU64>;
type ByWorker = [(&'static str, String); 1];

/// From half a millisecond to a quarter of an hour, by doubling.
fn seconds_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 2.0, 21))
}

/// One number for each worker, read from the brain at each scrape.
struct WorkerGauge {
    gauge: Family<ByWorker, Float>,
    read: fn(&WorkerSample<'_>) -> Option<f64>,
}

/// A worker, as the brain sees it now.
struct WorkerSample<'a> {
    worker: &'a Worker,
    /// To it, and to the one of the same URL that still drains, if it was listed again.
    promised: PromisedWork,
    cache: &'a Cache,
    /// None where the queue is off.
    limits: Option<WorkerLimits>,
    now: Instant,
}

pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    pub(crate) process: Arc<Process>,
    requests: Family<[MetricLabel; 3], Counter>,
    /// The counters that every request touches, looked up once: by route (the last is for other paths) and by why.
    answered: [Counter; Route::ALL.len() + 1],
    picks: [Counter; Why::ALL.len()],
    failures: Family<[MetricLabel; 1], Counter>,
    pub(crate) splits: SplitCounts,
    pub(crate) continuations: Continuations,
    pub(crate) hedges: Hedges,
    handshakes_failed: Family<[MetricLabel; 1], Counter>,
    own: OwnState,
    states: WorkerStates,
    workers: Vec<WorkerGauge>,
    pub(crate) caches: Caches,
    pub(crate) queue: Queue,
    decisions: Decisions,
    scaling: Scaling,
    programs: Programs,
    cluster: ClusterMetrics,
    pub(crate) record: RecordCounts,
    pub(crate) traces: TraceCounts,
    pub(crate) in_flight: Gauge,
    lanes: InFlight,
    pub(crate) connections: Gauge,
    pub(crate) ttft: Histogram,
    pub(crate) inter_token: Histogram,
    pub(crate) total: Histogram,
}

/// Requests that were written to the record, or dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordCounts {
    pub(crate) requests: Counter,
    pub(crate) dropped: Counter,
}

/// Spans and requests to the collector.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceCounts {
    pub(crate) exported: Counter,
    pub(crate) dropped: Counter,
    pub(crate) failed: Counter,
}

/// Requests whose KV cache comes from another worker, which prefilled it or held it.
#[derive(Clone, Debug)]
pub(crate) struct SplitCounts {
    legs: Family<[MetricLabel; 1], Counter>,
    pub(crate) transfer: Histogram,
    pulls: Family<[MetricLabel; 1], Counter>,
    pulled: Counter,
}

impl SplitCounts {
    fn new(registry: &mut Registry) -> SplitCounts {
        let (legs, transfer) = (Family::default(), seconds_histogram());
        let counts = SplitCounts { legs, transfer, pulls: Family::default(), pulled: Counter::default() };
        let help = "Prompts that one worker prefilled for another, by outcome";
        registry.register("prefill_legs", help, counts.legs.clone());
        let help = "From a prefill worker's answer to the decode worker's first content";
        registry.register("transfer_seconds", help, counts.transfer.clone());
        let help = "Requests whose worker was to pull KV cache from another, by outcome";
        registry.register("pulls", help, counts.pulls.clone());
        let help = "Prompt tokens whose KV cache was to be pulled by requests that were answered";
        registry.register("pulled_tokens", help, counts.pulled.clone());
        counts
    }

    pub(crate) fn pulled(&self, is_answered: bool, tokens: maitre_base::Tokens) {
        let outcome = if is_answered { "answered" } else { "failed" };
        self.pulls.get_or_create(&[("outcome", outcome)]).inc();
        if is_answered {
            self.pulled.inc_by(tokens.0);
        }
    }

    /// `outcome`: `answered`, `declined` or `failed`.
    pub(crate) fn prefilled(&self, outcome: &'static str) {
        self.legs.get_or_create(&[("outcome", outcome)]).inc();
    }
}

impl RecordCounts {
    fn new(registry: &mut Registry) -> RecordCounts {
        let counts = RecordCounts::default();
        let RecordCounts { requests, dropped } = counts.clone();
        registry.register("record_requests", "Requests written to the record", requests);
        registry.register("record_dropped", "Requests that the record dropped", dropped);
        counts
    }
}

impl TraceCounts {
    fn new(registry: &mut Registry) -> TraceCounts {
        let counts = TraceCounts::default();
        let TraceCounts { exported, dropped, failed } = counts.clone();
        registry.register("trace_spans_exported", "Spans that the collector accepted", exported);
        registry.register("trace_spans_dropped", "Spans that were dropped", dropped);
        registry.register("trace_exports_failed", "Requests to the collector that failed", failed);
        counts
    }
}

/// Name, help text and source of a gauge for each worker.
type WorkerMetric = (&'static str, &'static str, fn(&WorkerSample<'_>) -> Option<f64>);
const WORKER_METRICS: [WorkerMetric; 21] = [
    ("worker_requests", "Requests placed on the worker and not finished", |it| {
        Some(f64::from(it.promised.requests))
    }),
    ("worker_promised_prefill_tokens", "Prompt tokens promised to the worker and not yet done", |it| {
        Some(it.promised.prefill.tokens.0 as f64)
    }),
    ("worker_promised_decode_tokens", "Output tokens promised to the worker and not yet done", |it| {
        Some(it.promised.decode.0 as f64)
    }),
    ("worker_engine_running", "Requests running, as the engine reports", |it| {
        Some(it.worker.report?.load.running? as f64)
    }),
    ("worker_engine_waiting", "Requests waiting, as the engine reports", |it| {
        Some(it.worker.report?.load.waiting? as f64)
    }),
    ("worker_engine_kv_usage_ratio", "Part of the KV cache in use, as the engine reports", |it| {
        it.worker.report?.load.kv_usage
    }),
    ("worker_engine_block_tokens", "Tokens in a KV block", |it| {
        Some(it.worker.report?.load.block_size? as f64)
    }),
    ("worker_engine_blocks", "KV blocks the engine has", |it| Some(it.worker.report?.load.blocks? as f64)),
    ("worker_drained", "1 if an operator drained the worker", |it| {
        Some(f64::from(u8::from(it.worker.draining)))
    }),
    ("worker_report_stale", "1 if the engine's last report is stale", |it| {
        Some(f64::from(u8::from(it.worker.report?.is_stale(it.now))))
    }),
    ("worker_block_tokens", "Tokens in a block as the router counts them for this worker", |it| {
        Some(f64::from(it.cache.block(it.worker.id)))
    }),
    ("worker_cached_blocks", "Blocks that the router expects in the worker's cache", |it| {
        let numbers = it.cache.numbers(it.worker.id)?;
        Some(f64::from(numbers.reported_blocks.max(numbers.predicted_blocks)))
    }),
    (
        "worker_unplaced_ratio",
        "Part of the lately stored blocks that follow blocks the router does not know",
        |it| {
            let is_reporting = it.cache.trust(it.worker.id) != Trust::None;
            let numbers = it.cache.numbers(it.worker.id).filter(|_| is_reporting)?;
            Some(f64::from(numbers.unplaced_permille) / 1_000.0)
        },
    ),
    (
        "worker_limit_prefill_tokens",
        "Learned: prompt tokens the worker may have pending before requests are queued",
        |it| Some(it.limits?.prefill_tokens as f64),
    ),
    ("worker_limit_requests", "Learned: requests the worker may have before more are queued", |it| {
        Some(f64::from(it.limits?.sequences))
    }),
    ("worker_wait_seconds", "Learned: seconds until the prefill promised to the worker is done", |it| {
        let worker = it.worker;
        Some(worker.promised.wait_seconds(it.now, &worker.rates.prefill))
    }),
    ("worker_first_token_floor_seconds", "Learned: seconds to the first token of an empty prompt", |it| {
        Some(it.worker.rates.prefill.base)
    }),
    ("worker_prefill_token_seconds", "Learned: seconds for each token at the beginning of a prompt", |it| {
        Some(it.worker.rates.prefill.slope)
    }),
    (
        "worker_prefill_doubling_tokens",
        "Learned: tokens after which a prompt token takes twice as long as at the beginning",
        |it| {
            let prefill = &it.worker.rates.prefill;
            (prefill.attention > 0.0).then(|| prefill.slope / prefill.attention)
        },
    ),
    ("worker_step_seconds", "Learned: seconds between two tokens of a response that decodes alone", |it| {
        Some(it.worker.rates.decode.base)
    }),
    ("worker_step_request_seconds", "Learned: seconds that each further request adds to a step", |it| {
        Some(it.worker.rates.decode.slope)
    }),
];

/// The state of each worker, and how often it has failed.
struct WorkerStates {
    states: Family<[(&'static str, String); 2], Gauge>,
    failures: Family<[(&'static str, String); 1], Counter>,
}

impl WorkerStates {
    fn new(registry: &mut Registry) -> WorkerStates {
        let (states, failures) = (Family::default(), Family::default());
        registry.register("worker_state", "1 for the state the worker is in", states.clone());
        let help = "Attempts at the worker that failed, and its responses that broke off";
        registry.register("worker_failures", help, failures.clone());
        WorkerStates { states, failures }
    }

    /// Drops the series of workers that have left, too.
    fn clear(&self) {
        self.states.clear();
        self.failures.clear();
    }

    fn set(&self, worker: &Worker, failures: u64) {
        for state in HealthState::NAMES {
            let labels = [("worker", worker.url.clone()), ("state", state.to_owned())];
            self.states.get_or_create(&labels).set(i64::from(worker.health.state().name() == state));
        }
        self.failures.get_or_create(&[("worker", worker.url.clone())]).inc_by(failures);
    }
}

impl Metrics {
    pub(crate) fn new(classes: &[Class]) -> Metrics {
        let mut whole = Registry::default();
        let process = Arc::new(Process::default());
        whole.register_collector(Box::new(process.clone()));
        let registry = whole.sub_registry_with_prefix("maitre");
        let requests = Family::<[MetricLabel; 3], Counter>::default();
        registry.register("requests", "Requests that ended, by outcome", requests.clone());
        let answered = std::array::from_fn(|it| {
            requests.get_or_create_owned(&labels(Route::ALL.get(it).copied(), RequestOutcome::Answered))
        });
        let by_why = Family::<[MetricLabel; 1], Counter>::default();
        registry.register("picks", "Placements, by reason", by_why.clone());
        let picks = Why::ALL.map(|why| by_why.get_or_create_owned(&[("why", why.name())]));
        let (failures, handshakes_failed) = (Family::default(), Family::default());
        registry.register("attempts_failed", "Attempts that failed before the first byte", failures.clone());
        registry.register("tls_handshakes_failed", "TLS handshakes that failed", handshakes_failed.clone());
        let own = OwnState::new(registry);
        let states = WorkerStates::new(registry);
        let (caches, queue) = (Caches::new(registry), Queue::new(registry, classes));
        let (decisions, cluster) = (Decisions::new(registry), ClusterMetrics::new(registry));
        let (record, traces) = (RecordCounts::new(registry), TraceCounts::new(registry));
        let (splits, lanes) = (SplitCounts::new(registry), InFlight::new(registry));
        let (continuations, scaling) = (Continuations::new(registry), Scaling::new(registry));
        let (hedges, programs) = (Hedges::new(registry), Programs::new(registry));
        let (in_flight, connections) = (Gauge::default(), Gauge::default());
        registry.register("requests_in_flight", "Requests in flight", in_flight.clone());
        registry.register("connections", "Client connections", connections.clone());
        let mut seconds = |name, help| {
            let histogram = seconds_histogram();
            registry.register(name, help, histogram.clone());
            histogram
        };
        let ttft = seconds("first_token_seconds", "From arrival to the first token of the response");
        let inter_token = seconds("inter_token_seconds", "Mean time between chunks of a streamed response");
        let total = seconds("request_seconds", "From arrival to the last byte");
        let worker = |(name, help, read): WorkerMetric| {
            let gauge = Family::default();
            registry.register(name, help, gauge.clone());
            WorkerGauge { gauge, read }
        };
        let workers = WORKER_METRICS.into_iter().map(worker).collect();
        Metrics {
            registry: Mutex::new(whole),
            process,
            requests,
            answered,
            picks,
            failures,
            splits,
            continuations,
            hedges,
            handshakes_failed,
            own,
            states,
            workers,
            caches,
            queue,
            decisions,
            scaling,
            programs,
            cluster,
            record,
            traces,
            in_flight,
            lanes,
            connections,
            ttft,
            inter_token,
            total,
        }
    }

    pub(crate) fn ended(&self, route: Option<Route>, outcome: RequestOutcome) {
        match outcome {
            RequestOutcome::Answered => self.answered[route.map_or(Route::ALL.len(), |it| it as usize)].inc(),
            _ => self.requests.get_or_create(&labels(route, outcome)).inc(),
        };
    }

    pub(crate) fn picked(&self, why: Why) {
        self.picks[why as usize].inc();
    }

    pub(crate) fn failed(&self, failure: Failure) {
        self.failures.get_or_create(&[("failure", failure.name())]).inc();
    }

    pub(crate) fn handshake_failed(&self, listener: &'static str) {
        self.handshakes_failed.get_or_create(&[("listener", listener)]).inc();
    }

    pub(crate) fn tls_files_changed(&self, result: &'static str) {
        self.own.tls_files_changed(result);
    }

    /// The page a scraper reads. `gather` sets the gauges, under the brain's lock if it needs to; the text is written
    /// after that, because it is long and must not delay decisions.
    pub(crate) fn page(&self, gather: impl FnOnce(&Metrics)) -> String {
        // Held throughout, so that two scrapers do not see each other's gauges half set.
        let registry = self.registry.lock();
        gather(self);
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut page, &registry);
        page
    }

    /// Sets what the lanes count.
    pub(crate) fn set_lanes(&self, sums: &LaneSums, waits: &[Duration]) {
        self.lanes.set(sums, waits);
    }

    pub(crate) fn set_own(
        &self,
        states: &[(&'static str, bool)],
        certificates: &[(&'static str, Option<Validity>)],
    ) {
        self.own.set(states, certificates);
    }

    /// Sets the gauges of the cluster.
    pub(crate) fn set_cluster(&self, sample: &ClusterSample) {
        self.cluster.set(sample);
    }

    /// Sets the gauges that are read from the brain.
    ///
    /// `failures` are those of a worker so far.
    pub(crate) fn set_brain(&self, now: Instant, brain: &Brain, failures: impl Fn(WorkerId) -> u64) {
        self.states.clear();
        self.caches.set(brain);
        self.queue.set(brain);
        self.decisions.set(brain);
        self.scaling.set(brain);
        self.programs.set(now, brain);
        self.workers.iter().for_each(|it| it.gauge.clear());
        let fleet = brain.fleet();
        // A worker that was listed again while it drains is there twice. The series are those of the new one.
        let is_listed = |it: &&Worker| fleet.by_key(it.key).is_some_and(|listed| listed.id == it.id);
        for worker in fleet.workers().filter(is_listed) {
            self.states.set(worker, failures(worker.id));
            let (promised, limits) = (fleet.promised_to_key_of(worker), brain.limits(worker.id));
            let sample = WorkerSample { worker, promised, cache: brain.cache(), limits, now };
            for metric in &self.workers {
                if let Some(value) = (metric.read)(&sample) {
                    metric.gauge.get_or_create(&[("worker", worker.url.clone())]).set(value);
                }
            }
        }
    }
}
