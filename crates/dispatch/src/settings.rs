//! What an operator may configure about decisions, and what strategies need to know of a request.

use std::collections::BTreeMap;
use std::time::Duration;

use maitre_fleet::health;
use maitre_fleet::scaling::ScalingSettings;
use maitre_index as index;
use maitre_policy::split::SplitRule;
use maitre_policy::{Name, Needs, StrategyKnobs};
use maitre_queue as queue;

use crate::observer::ObserverSettings;
use crate::observer::decision::RecordSettings;
use crate::programs::ProgramSettings;
use crate::scheduler::retry_budget::RetryIncome;

#[derive(Clone, Debug)]
pub struct BrainSettings {
    pub strategy: Name,
    /// Models with a strategy of their own.
    pub strategies: BTreeMap<String, Name>,
    pub knobs: StrategyKnobs,
    pub health: health::HealthSettings,
    pub budget: RetryIncome,
    /// Retries of a request that a worker has seen. With one, a request that crashes its worker crashes two at most.
    pub failovers_max: u32,
    pub hedges: HedgeSettings,
    pub split: SplitRule,
    /// How much later than expected the first token of a request that pulls KV cache may come: see `PULL_PATIENCE`.
    pub pull_patience: Duration,
    pub index: index::IndexSettings,
    pub queue: queue::QueueSettings,
    pub scaling: ScalingSettings,
    /// Models that have workers at times, by the names that those list.
    pub expected_models: Vec<String>,
    pub programs: ProgramSettings,
    /// Every prompt is read, even if no strategy uses caches, since the traffic is recorded.
    pub reads_all: bool,
    pub explain: RecordSettings,
    /// Strategies that are asked about every decision and not obeyed.
    pub shadows: Vec<Name>,
    /// The part of all decisions that shadows are asked about, in [0, 1].
    pub shadow_sample: f64,
    /// How long the id of a worker that has left is not reused: see `QUARANTINE`.
    pub quarantine: Duration,
    /// There are other routers: this one publishes what it does, and breaks ties as they do.
    pub shares: bool,
    pub seed: u64,
}

/// Second attempts of requests whose first token is overdue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HedgeSettings {
    /// Where the class does not say otherwise.
    pub are_on: bool,
    /// What they may cost, as a share of the prefill work of all requests.
    pub share: f64,
}

impl Default for HedgeSettings {
    fn default() -> HedgeSettings {
        HedgeSettings { are_on: false, share: 0.05 }
    }
}

/// How long the id of a worker that has left is not reused. Events may still name it: the result of a probe or a scrape,
/// KV events that were being applied, a task that has not noticed. Those take milliseconds; chosen far above that, for a
/// machine that stalls or swaps, and for a person who has just read the id. It costs the ids of one minute's leavers.
pub const QUARANTINE: Duration = Duration::from_secs(60);

/// How much later than expected the first token of a request that pulls KV cache may come. A source that is dead costs vLLM
/// 0.32 at least thirty seconds.
pub const PULL_PATIENCE: Duration = Duration::from_secs(5);

impl Default for BrainSettings {
    fn default() -> BrainSettings {
        BrainSettings {
            strategy: Name::LeastDelay,
            strategies: BTreeMap::new(),
            knobs: StrategyKnobs::default(),
            health: health::HealthSettings::default(),
            budget: RetryIncome::default(),
            failovers_max: 1,
            hedges: HedgeSettings::default(),
            split: SplitRule::Price,
            pull_patience: PULL_PATIENCE,
            index: index::IndexSettings::default(),
            queue: queue::QueueSettings::default(),
            scaling: ScalingSettings::default(),
            expected_models: Vec::new(),
            programs: ProgramSettings::default(),
            reads_all: false,
            explain: RecordSettings::default(),
            shadows: Vec::new(),
            shadow_sample: 1.0,
            quarantine: QUARANTINE,
            shares: false,
            seed: 0,
        }
    }
}

impl BrainSettings {
    /// What any of the strategies in use needs, shadows included.
    pub fn needs(&self) -> Needs {
        needs_of(self.in_charge().chain(self.shadows.iter().copied()))
    }

    /// Whether anything reads the prompt of any request.
    pub fn reads_prompts(&self) -> bool {
        self.reads_all || self.needs().cache
    }

    /// What any of the strategies in charge needs, without the shadows.
    pub(crate) fn needs_in_charge(&self) -> Needs {
        needs_of(self.in_charge())
    }

    /// Whether a request whose model has no worker waits for the first one. It needs a queue to wait in.
    pub fn waits_for_first_worker(&self) -> bool {
        self.queue.enabled && self.scaling.is_from_zero()
    }

    /// What the observer is asked to watch.
    pub(crate) fn watch(&self) -> ObserverSettings<'_> {
        ObserverSettings {
            decisions_kept: self.explain.decisions,
            shadows: &self.shadows,
            knobs: self.knobs,
            shadow_sample: self.shadow_sample,
        }
    }

    fn in_charge(&self) -> impl Iterator<Item = Name> {
        self.strategies.values().copied().chain([self.strategy])
    }
}

/// What any of these needs.
fn needs_of(names: impl Iterator<Item = Name>) -> Needs {
    names.map(Name::needs).fold(Needs::default(), |sum, it| Needs {
        session: sum.session | it.session,
        head: sum.head | it.head,
        cache: sum.cache | it.cache,
        in_use: sum.in_use | it.in_use,
        sent: sum.sent | it.sent,
    })
}
