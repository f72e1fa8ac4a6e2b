//! What Prometheus sees of KV caches: how prompts were tokenized, how many tokens were expected and found in caches,
//! and the state of the engines' KV events.

use maitre_base::Tokens;
use maitre_dispatch::Brain;
use maitre_index::feed::{Counts, Trust};
use parking_lot::RwLock;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{ByWorker, Float};

type Two = [(&'static str, String); 2];

/// Counters of prompts that are found without their labels: as many as a few models need.
const READ_AT_HAND_MAX: usize = 16;

pub(crate) struct Caches {
    trusts: Family<Two, Gauge>,
    read: Family<Two, Counter>,
    /// Some of them, by model and level: to find one by its labels takes 1,600 instructions.
    read_at_hand: RwLock<Vec<(String, &'static str, Counter)>>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    expected_tokens: Counter,
    index_bytes: Gauge,
    pub(crate) feeds: Feeds,
}

impl Caches {
    pub(super) fn new(registry: &mut Registry) -> Caches {
        let trusts = Family::default();
        registry.register("worker_trust", "1 for the trust in the worker's KV events", trusts.clone());
        let read = Family::default();
        registry.register("prompts_read", "Prompts looked up, by how they were tokenized", read.clone());
        let mut tokens = |name, help| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let prompt_tokens = tokens("prompt_tokens", "Prompt tokens of responses that report cached tokens");
        let cached_tokens = tokens("cached_tokens", "Prompt tokens that the engine found in its cache");
        let expected_tokens = tokens(
            "expected_cached_tokens",
            "Prompt tokens the router expected to be cached on the chosen worker",
        );
        let index_bytes = Gauge::default();
        registry.register("index_bytes", "Memory of the cache index", index_bytes.clone());
        let feeds = Feeds::new(registry);
        let read_at_hand = RwLock::default();
        Caches {
            trusts,
            read,
            read_at_hand,
            prompt_tokens,
            cached_tokens,
            expected_tokens,
            index_bytes,
            feeds,
        }
    }

    /// Sets the gauges that are read from the brain.
    pub(super) fn set(&self, brain: &Brain) {
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

    /// A prompt of `model` was tokenized; `level` says how.
    pub(crate) fn tokenized(&self, model: &str, level: &'static str) {
        let at_hand = self.read_at_hand.read();
        if let Some((_, _, counter)) = at_hand.iter().find(|it| it.0 == model && it.1 == level) {
            counter.inc();
            return;
        }
        drop(at_hand);
        let labels = [("model", model.to_owned()), ("level", level.to_owned())];
        let counter = self.read.get_or_create(&labels).clone();
        counter.inc();
        let mut at_hand = self.read_at_hand.write();
        if at_hand.len() < READ_AT_HAND_MAX {
            at_hand.push((model.to_owned(), level, counter));
        }
    }

    /// The prompt and cached tokens that a response reports, and the cached tokens that we expected.
    pub(crate) fn counted(&self, prompt: u64, cached: u64, expected: Option<Tokens>) {
        self.prompt_tokens.inc_by(prompt);
        self.cached_tokens.inc_by(cached);
        self.expected_tokens.inc_by(expected.map_or(0, |it| it.0));
    }
}

/// KV events, by worker.
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
        let gaps = counter("events_gaps", "Gaps between batches of KV events");
        let replays = counter("events_replays", "Replays requested");
        let replays_failed =
            counter("events_replays_failed", "Replays that failed, or did not reach back far enough");
        let restarts = counter("events_restarts", "Restarts of the engine behind the address");
        let duplicates = counter("events_duplicates", "Batches that had been applied before");
        let unreadable = counter("events_unreadable", "Batches that could not be decoded");
        let lag = Family::default();
        registry.register(
            "events_lag_seconds",
            "Age of the last batch of KV events when it arrived",
            lag.clone(),
        );
        Feeds { batches, gaps, replays, replays_failed, restarts, duplicates, unreadable, lag }
    }

    /// The worker has left: its metrics disappear.
    pub(crate) fn forget(&self, worker: &str) {
        let labels: ByWorker = [("worker", worker.to_owned())];
        let counters = [&self.batches, &self.gaps, &self.replays, &self.replays_failed];
        for family in counters.into_iter().chain([&self.restarts, &self.duplicates, &self.unreadable]) {
            family.remove(&labels);
        }
        self.lag.remove(&labels);
    }

    /// Adds the difference between two counts of a worker.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_counted_by_model_and_level_however_many_there_are() {
        let mut registry = Registry::default();
        let caches = Caches::new(&mut registry);
        let models: Vec<String> = (0..2 * READ_AT_HAND_MAX).map(|it| format!("m{it}")).collect();
        for _ in 0..3 {
            models.iter().for_each(|it| caches.tokenized(it, "exact"));
        }
        caches.tokenized("m0", "words");
        let count = |model: &str, level: &str| {
            caches.read.get_or_create(&[("model", model.to_owned()), ("level", level.to_owned())]).get()
        };
        assert!(models.iter().all(|it| count(it, "exact") == 3));
        assert_eq!((count("m0", "words"), count("m1", "words")), (1, 0));
    }
}
