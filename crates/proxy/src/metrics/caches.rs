//! What Prometheus sees of caches: how prompts were read, what was believed and what was found, and how the
//! reports of engines fared.

use maitre_base::Tokens;
use maitre_dispatch::Brain;
use maitre_index::feed::{Counts, Trust};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{ByWorker, Float};
use crate::reading::Level;

type Two = [(&'static str, String); 2];

pub(crate) struct Caches {
    trusts: Family<Two, Gauge>,
    read: Family<Two, Counter>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    held_tokens: Counter,
    index_bytes: Gauge,
    pub(crate) feeds: Feeds,
}

impl Caches {
    pub(super) fn new(registry: &mut Registry) -> Caches {
        let trusts = Family::default();
        registry.register(
            "worker_trust",
            "1 for how far reports of the worker's cache are trusted",
            trusts.clone(),
        );
        let read = Family::default();
        registry.register("prompts_read", "Prompts looked up, by how they were read", read.clone());
        let mut tokens = |name, help| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let prompt_tokens =
            tokens("prompt_tokens", "Prompt tokens of answers that told how many were cached");
        let cached_tokens = tokens("cached_tokens", "Those of them that the engine found in its cache");
        let held_tokens = tokens(
            "expected_cached_tokens",
            "Prompt tokens the router expected to be cached on the chosen worker",
        );
        let index_bytes = Gauge::default();
        registry.register("index_bytes", "Memory of the index of caches", index_bytes.clone());
        let feeds = Feeds::new(registry);
        Caches { trusts, read, prompt_tokens, cached_tokens, held_tokens, index_bytes, feeds }
    }

    /// Reads what the brain knows now.
    pub(super) fn look(&self, brain: &Brain) {
        self.index_bytes.set(i64::try_from(brain.cache().bytes()).unwrap_or(i64::MAX));
        self.trusts.clear();
        for worker in brain.fleet().workers() {
            for trust in Trust::ALL {
                let labels = [("worker", worker.url.clone()), ("trust", trust.name().to_owned())];
                let is_so = brain.cache().trust(worker.id) == trust;
                self.trusts.get_or_create(&labels).set(i64::from(is_so));
            }
        }
    }

    /// A prompt was read.
    pub(crate) fn read(&self, model: &str, level: Level) {
        let labels = [("model", model.to_owned()), ("level", level.name().to_owned())];
        self.read.get_or_create(&labels).inc();
    }

    /// What an answer says its prompt cost, beside what we believed was cached.
    pub(crate) fn counted(&self, prompt: u64, cached: u64, held: Option<Tokens>) {
        self.prompt_tokens.inc_by(prompt);
        self.cached_tokens.inc_by(cached);
        self.held_tokens.inc_by(held.map_or(0, |it| it.0));
    }
}

/// What reports of caches have been like.
pub(crate) struct Feeds {
    pub(crate) batches: Family<ByWorker, Counter>,
    pub(crate) gaps: Family<ByWorker, Counter>,
    pub(crate) replays: Family<ByWorker, Counter>,
    pub(crate) replays_failed: Family<ByWorker, Counter>,
    pub(crate) restarts: Family<ByWorker, Counter>,
    pub(crate) duplicates: Family<ByWorker, Counter>,
    pub(crate) unreadable: Family<ByWorker, Counter>,
    pub(crate) lag: Family<ByWorker, Float>,
}

impl Feeds {
    fn new(registry: &mut Registry) -> Feeds {
        let mut counter = |name, help| {
            let family = Family::<ByWorker, Counter>::default();
            registry.register(name, help, family.clone());
            family
        };
        let batches = counter("events_batches", "Batches of KV events applied");
        let gaps = counter("events_gaps", "Times that batches were missing");
        let replays = counter("events_replays", "Replays asked for");
        let replays_failed = counter("events_replays_failed", "Replays that failed, or did not reach back");
        let restarts = counter("events_restarts", "Times that another process was found behind the address");
        let duplicates = counter("events_duplicates", "Batches that had been applied already");
        let unreadable = counter("events_unreadable", "Batches that could not be read");
        let lag = Family::default();
        registry.register(
            "events_lag_seconds",
            "Age of the last batch of KV events when it came",
            lag.clone(),
        );
        Feeds { batches, gaps, replays, replays_failed, restarts, duplicates, unreadable, lag }
    }

    /// The worker has left: nothing is told of it any more.
    pub(crate) fn forget(&self, worker: &str) {
        let labels: ByWorker = [("worker", worker.to_owned())];
        let counters = [&self.batches, &self.gaps, &self.replays, &self.replays_failed];
        for family in counters.into_iter().chain([&self.restarts, &self.duplicates, &self.unreadable]) {
            family.remove(&labels);
        }
        self.lag.remove(&labels);
    }

    /// Counts what has happened at a worker since then.
    pub(crate) fn count(&self, worker: &str, then: &Counts, now: &Counts) {
        let rows = [
            (&self.batches, then.batches, now.batches),
            (&self.gaps, then.gaps, now.gaps),
            (&self.replays, then.replays, now.replays),
            (&self.replays_failed, then.failed_replays, now.failed_replays),
            (&self.restarts, then.restarts, now.restarts),
            (&self.duplicates, then.duplicates, now.duplicates),
            (&self.unreadable, then.undecodable, now.undecodable),
        ];
        for (family, then, now) in rows {
            family.get_or_create(&[("worker", worker.to_owned())]).inc_by(now - then);
        }
    }
}
