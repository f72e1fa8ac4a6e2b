//! What Prometheus sees. Counters and histograms live here; what the brain knows (workers, promises) is
//! read from it when somebody asks. Every name has a sentence in docs/metrics.md.

mod caches;
mod cluster;
mod decisions;
mod process;
mod queue;

use std::sync::Arc;

use maitre_base::Instant;
use maitre_dialect::route::Route;
use maitre_dispatch::cache::Cache;
use maitre_dispatch::{Brain, Failure};
use maitre_fleet::{HealthState, Worker};
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
use cluster::Cluster;
use decisions::Decisions;
use process::Process;
use queue::Queue;

use crate::cluster::Seen;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    /// A worker's answer reached its end; or we answered from what we know.
    Answered,
    /// A worker said no, with a status of this class, and we passed it on.
    Declined(&'static str),
    /// We said no, with this code.
    Refused(&'static str),
    /// The client left first.
    Gone,
    /// The worker failed in the middle of its answer.
    Broke,
    /// The worker fell silent in the middle of its answer.
    Stalled,
    /// The answer took longer than any may.
    Overdue,
}

impl Outcome {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Outcome::Answered => "answered",
            Outcome::Declined(_) => "declined",
            Outcome::Refused(_) => "refused",
            Outcome::Gone => "gone",
            Outcome::Broke => "broke",
            Outcome::Stalled => "stalled",
            Outcome::Overdue => "overdue",
        }
    }

    pub(crate) const fn code(self) -> &'static str {
        match self {
            Outcome::Refused(code) | Outcome::Declined(code) => code,
            _ => "",
        }
    }
}

type Label = (&'static str, &'static str);

fn labels(route: Option<Route>, outcome: Outcome) -> [Label; 3] {
    [("route", route.map_or("other", Route::name)), ("outcome", outcome.name()), ("code", outcome.code())]
}

type Float = Gauge<f64, std::sync::atomic::AtomicU64>;
type ByWorker = [(&'static str, String); 1];

/// From half a millisecond to a quarter of an hour, by doubling.
fn seconds_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 2.0, 21))
}

/// One number a worker, read from the brain at each scrape.
struct WorkerGauge {
    gauge: Family<ByWorker, Float>,
    read: fn(&Look<'_>) -> Option<f64>,
}

/// A worker, as the brain sees it now.
struct Look<'a> {
    worker: &'a Worker,
    cache: &'a Cache,
    /// None where nobody waits, whatever workers have.
    limits: Option<WorkerLimits>,
    now: Instant,
}

pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    pub(crate) process: Arc<Process>,
    requests: Family<[Label; 3], Counter>,
    /// The counters every request touches, found once: by route (the last is for other paths) and by why.
    answered: [Counter; Route::ALL.len() + 1],
    picks: [Counter; Why::ALL.len()],
    failures: Family<[Label; 1], Counter>,
    unshaken: Family<[Label; 1], Counter>,
    tls_files: Family<[Label; 1], Counter>,
    states: Family<[(&'static str, String); 2], Gauge>,
    workers: Vec<WorkerGauge>,
    pub(crate) caches: Caches,
    pub(crate) queue: Queue,
    decisions: Decisions,
    cluster: Cluster,
    pub(crate) record: Recorded,
    pub(crate) traced: Traced,
    pub(crate) open: Gauge,
    pub(crate) connections: Gauge,
    pub(crate) first: Histogram,
    pub(crate) gap: Histogram,
    pub(crate) total: Histogram,
}

/// How the record fares.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) requests: Counter,
    pub(crate) dropped: Counter,
}

/// How traces fare.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traced {
    pub(crate) exported: Counter,
    pub(crate) dropped: Counter,
    pub(crate) failed: Counter,
}

impl Traced {
    fn new(registry: &mut Registry) -> Traced {
        let traced = Traced::default();
        let Traced { exported, dropped, failed } = traced.clone();
        registry.register("trace_spans_exported", "Spans that a collector has taken", exported);
        registry.register("trace_spans_dropped", "Spans that were given up", dropped);
        registry.register("trace_exports_failed", "Requests to the collector that failed", failed);
        traced
    }
}

/// Name, sentence and source of what is known of each worker.
type Row = (&'static str, &'static str, fn(&Look<'_>) -> Option<f64>);
const WORKER_ROWS: [Row; 18] = [
    ("worker_requests", "Requests seated at the worker and not finished", |it| {
        Some(f64::from(it.worker.promised.work.requests))
    }),
    ("worker_promised_prefill_tokens", "Prompt tokens promised to the worker and not yet done", |it| {
        Some(it.worker.promised.work.prefill.0 as f64)
    }),
    ("worker_promised_decode_tokens", "Answer tokens promised to the worker and not yet done", |it| {
        Some(it.worker.promised.work.decode.0 as f64)
    }),
    ("worker_engine_running", "Requests running, by the engine's own account", |it| {
        Some(it.worker.report?.load.running? as f64)
    }),
    ("worker_engine_waiting", "Requests waiting, by the engine's own account", |it| {
        Some(it.worker.report?.load.waiting? as f64)
    }),
    ("worker_engine_kv_usage_ratio", "Part of the KV cache in use, by the engine's own account", |it| {
        it.worker.report?.load.kv_usage
    }),
    ("worker_engine_block_tokens", "Tokens in a KV block", |it| {
        Some(it.worker.report?.load.block_size? as f64)
    }),
    ("worker_engine_blocks", "KV blocks the engine has", |it| Some(it.worker.report?.load.blocks? as f64)),
    ("worker_report_stale", "1 if the engine's last account of itself is old", |it| {
        Some(f64::from(u8::from(it.worker.report?.is_stale(it.now))))
    }),
    ("worker_block_tokens", "Tokens in a block as we count them for this worker", |it| {
        Some(f64::from(it.cache.block(it.worker.id)))
    }),
    ("worker_cached_blocks", "Blocks we believe the worker's cache holds", |it| {
        let numbers = it.cache.numbers(it.worker.id)?;
        Some(f64::from(numbers.reported_blocks.max(numbers.predicted_blocks)))
    }),
    (
        "worker_limit_prefill_tokens",
        "Learned: prompt tokens it may have in line before others wait here",
        |it| Some(it.limits?.prefill_tokens as f64),
    ),
    ("worker_limit_requests", "Learned: requests it may have before others wait here", |it| {
        Some(f64::from(it.limits?.sequences))
    }),
    ("worker_wait_seconds", "Learned: seconds until the prefill promised to the worker is done", |it| {
        let worker = it.worker;
        Some(worker.promised.wait_seconds(it.now, worker.rates.prefill.slope))
    }),
    ("worker_first_token_floor_seconds", "Learned: seconds to the first token of an empty prompt", |it| {
        Some(it.worker.rates.prefill.base)
    }),
    ("worker_prefill_token_seconds", "Learned: seconds for each token to prefill", |it| {
        Some(it.worker.rates.prefill.slope)
    }),
    ("worker_step_seconds", "Learned: seconds between two tokens of an answer that is alone", |it| {
        Some(it.worker.rates.decode.base)
    }),
    ("worker_step_request_seconds", "Learned: seconds that each further request adds to that", |it| {
        Some(it.worker.rates.decode.slope)
    }),
];

impl Metrics {
    pub(crate) fn new(classes: &[Class]) -> Metrics {
        let mut whole = Registry::default();
        let process = Arc::new(Process::default());
        whole.register_collector(Box::new(process.clone()));
        let registry = whole.sub_registry_with_prefix("maitre");
        let requests = Family::<[Label; 3], Counter>::default();
        registry.register("requests", "Requests that ended, by how", requests.clone());
        let route = |index: usize| Route::ALL.get(index).copied();
        let answered =
            std::array::from_fn(|it| requests.get_or_create_owned(&labels(route(it), Outcome::Answered)));
        let by_why = Family::<[Label; 1], Counter>::default();
        registry.register("picks", "Workers picked, by why", by_why.clone());
        let picks = Why::ALL.map(|why| by_why.get_or_create_owned(&[("why", why.name())]));
        let failures = Family::default();
        registry.register("attempts_failed", "Attempts that failed before the first byte", failures.clone());
        let unshaken = Family::default();
        registry.register("tls_handshakes_failed", "TLS handshakes that came to nothing", unshaken.clone());
        let tls_files = Family::default();
        registry.register("tls_files_changed", "TLS files that were read anew, by result", tls_files.clone());
        let states = Family::default();
        registry.register("worker_state", "1 for the state the worker is in", states.clone());
        let caches = Caches::new(registry);
        let queue = Queue::new(registry, classes);
        let decisions = Decisions::new(registry);
        let cluster = Cluster::new(registry);
        let record = Recorded::default();
        registry.register("record_requests", "Requests that were taken down", record.requests.clone());
        registry.register("record_dropped", "Requests that could not be", record.dropped.clone());
        let traced = Traced::new(registry);
        let open = Gauge::default();
        registry.register("requests_in_flight", "Requests arrived and not ended", open.clone());
        let connections = Gauge::default();
        registry.register("connections", "Client connections", connections.clone());
        let mut seconds = |name, help| {
            let histogram = seconds_histogram();
            registry.register(name, help, histogram.clone());
            histogram
        };
        let first = seconds("first_token_seconds", "From arrival to the first token of the answer");
        let gap = seconds("inter_token_seconds", "Mean time between the pieces of one streamed answer");
        let total = seconds("request_seconds", "From arrival to the last byte");
        let worker = |(name, help, read): Row| {
            let gauge = Family::default();
            registry.register(name, help, gauge.clone());
            WorkerGauge { gauge, read }
        };
        let workers = WORKER_ROWS.into_iter().map(worker).collect();
        Metrics {
            registry: Mutex::new(whole),
            process,
            requests,
            answered,
            picks,
            failures,
            unshaken,
            tls_files,
            states,
            workers,
            caches,
            queue,
            decisions,
            cluster,
            record,
            traced,
            open,
            connections,
            first,
            gap,
            total,
        }
    }

    pub(crate) fn ended(&self, route: Option<Route>, outcome: Outcome) {
        match outcome {
            Outcome::Answered => self.answered[route.map_or(Route::ALL.len(), |it| it as usize)].inc(),
            _ => self.requests.get_or_create(&labels(route, outcome)).inc(),
        };
    }

    pub(crate) fn picked(&self, why: Why) {
        self.picks[why as usize].inc();
    }

    pub(crate) fn failed(&self, failure: Failure) {
        self.failures.get_or_create(&[("failure", failure.name())]).inc();
    }

    pub(crate) fn unshaken(&self, listener: &'static str) {
        self.unshaken.get_or_create(&[("listener", listener)]).inc();
    }

    pub(crate) fn tls_files_changed(&self, result: &'static str) {
        self.tls_files.get_or_create(&[("result", result)]).inc();
    }

    /// The page a scraper reads, of what `gather` has looked up, and of the process what was seen at the last look. The
    /// text is written after that: it is long, and anybody may ask for it, so it must not hold up decisions.
    pub(crate) fn page(&self, gather: impl FnOnce(&Metrics)) -> String {
        // Held throughout, so that two scrapers do not see half of each other's workers.
        let registry = self.registry.lock();
        gather(self);
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut page, &registry);
        page
    }

    /// Takes from whoever speaks with other routers what only it knows.
    pub(crate) fn gather_routers(&self, seen: &Seen, brain: &Brain) {
        self.cluster.look(seen, brain);
    }

    /// Takes from the brain what only it knows.
    pub(crate) fn gather(&self, now: Instant, brain: &Brain) {
        self.states.clear();
        self.caches.look(brain);
        self.queue.look(brain);
        self.decisions.look(brain);
        self.workers.iter().for_each(|it| it.gauge.clear());
        for worker in brain.fleet().workers() {
            for state in HealthState::NAMES {
                let labels = [("worker", worker.url.clone()), ("state", state.to_owned())];
                self.states.get_or_create(&labels).set(i64::from(worker.health.state().name() == state));
            }
            let look = Look { worker, cache: brain.cache(), limits: brain.limits(worker.id), now };
            for row in &self.workers {
                if let Some(value) = (row.read)(&look) {
                    row.gauge.get_or_create(&[("worker", worker.url.clone())]).set(value);
                }
            }
        }
    }
}
