//! What Prometheus sees of programs: how many have memory, how full it is, and which calls are held. Nothing while
//! programs are off.

use std::sync::atomic::AtomicU64;

use maitre_base::Instant;
use maitre_dispatch::Brain;
use maitre_dispatch::programs::view::{ProgramCounts, ProgramsSnapshot, ViewLimits};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{ByWorker, Float, MetricLabel};

/// A family without labels, so that it can be empty.
type Bare<T> = Family<[MetricLabel; 0], T>;
type ByReason<T> = Family<[MetricLabel; 1], T>;

/// A count, and where it is read from.
struct CountGauge {
    gauge: Bare<Gauge>,
    read: fn(&ProgramCounts) -> u64,
}

/// Set at each scrape.
pub(crate) struct Programs {
    counts: Vec<CountGauge>,
    held_longest: Bare<Float>,
    tokens: Family<ByWorker, Gauge>,
    usage: Family<ByWorker, Float>,
    ended: ByReason<Counter>,
    held_seconds: ByReason<Counter<f64, AtomicU64>>,
}

/// Name, help text and source of a count.
type CountMetric = (&'static str, &'static str, fn(&ProgramCounts) -> u64);
const COUNTS: [CountMetric; 7] = [
    ("programs_known", "Programs that the router knows", |it| it.known),
    ("programs_resident", "Programs with KV memory at a worker", |it| it.resident),
    ("programs_running", "Programs with a call in flight", |it| it.running),
    ("programs_held", "Programs with a call that is held until a worker has memory", |it| it.held),
    ("programs_resident_tokens", "Working set: tokens of the resident programs", |it| it.resident_tokens),
    ("programs_held_tokens", "Tokens of the programs that are held", |it| it.held_tokens),
    ("program_calls_held", "Calls that are held until a worker has memory", |it| it.held_calls),
];

impl Programs {
    pub(super) fn new(registry: &mut Registry) -> Programs {
        let count = |(name, help, read): CountMetric, registry: &mut Registry| {
            let gauge = Bare::<Gauge>::default();
            registry.register(name, help, gauge.clone());
            CountGauge { gauge, read }
        };
        let counts = COUNTS.into_iter().map(|it| count(it, registry)).collect();
        let held_longest = Bare::<Float>::default();
        let help = "How long the call that is held longest has been held";
        registry.register("program_held_longest_seconds", help, held_longest.clone());
        let (tokens, usage) = (Family::default(), Family::default());
        let help = "Tokens of the programs that are resident at the worker";
        registry.register("worker_program_tokens", help, tokens.clone());
        let help = "The same, as a part of the worker's KV cache";
        registry.register("worker_program_usage_ratio", help, usage.clone());
        let (ended, held_seconds) = (Family::default(), Family::default());
        registry.register("program_holds_ended", "Calls whose hold ended, by reason", ended.clone());
        registry.register("program_held_seconds", "How long they were held", held_seconds.clone());
        Programs { counts, held_longest, tokens, usage, ended, held_seconds }
    }

    pub(super) fn set(&self, now: Instant, brain: &Brain) {
        self.counts.iter().for_each(|it| it.gauge.clear());
        self.held_longest.clear();
        self.tokens.clear();
        self.usage.clear();
        self.ended.clear();
        self.held_seconds.clear();
        let Some(ProgramsSnapshot { counts, workers, tallies, .. }) =
            brain.programs(now, ViewLimits::default())
        else {
            return;
        };
        let whole = |it: u64| i64::try_from(it).unwrap_or(i64::MAX);
        for CountGauge { gauge, read } in &self.counts {
            gauge.get_or_create(&[]).set(whole(read(&counts)));
        }
        self.held_longest.get_or_create(&[]).set(counts.held_longest.as_secs_f64());
        for it in workers {
            let Some(url) = brain.fleet().worker(it.worker).map(|it| it.url.clone()) else { continue };
            let label = [("worker", url)];
            self.tokens.get_or_create(&label).set(whole(it.tokens));
            if let Some(usage) = it.usage() {
                self.usage.get_or_create(&label).set(usage);
            }
        }
        for (end, tally) in tallies {
            let label = [("reason", end.name())];
            self.ended.get_or_create(&label).inc_by(tally.calls);
            self.held_seconds.get_or_create(&label).inc_by(tally.held.as_secs_f64());
        }
    }
}
