//! What an operator may say about decisions, and what follows from it for what must be known of a request.

use std::collections::BTreeMap;
use std::time::Duration;

use maitre_fleet::health;
use maitre_index as index;
use maitre_policy::{Knobs, Name, Needs};
use maitre_queue as queue;

use crate::observer::Watch;
use crate::observer::decision::RecordSettings;
use crate::scheduler::retry_budget::RetryIncome;

#[derive(Clone, Debug)]
pub struct Settings {
    pub strategy: Name,
    /// Models that go by a strategy of their own.
    pub strategies: BTreeMap<String, Name>,
    pub knobs: Knobs,
    pub health: health::Settings,
    pub budget: RetryIncome,
    /// Second attempts a request may have after a worker has seen it. With one, a request that kills
    /// its worker takes two down at the most.
    pub failovers_max: u32,
    pub index: index::Settings,
    pub queue: queue::Settings,
    /// Every prompt is wanted by its prefixes, whatever the strategies go by: somebody takes them down.
    pub reads_all: bool,
    pub explain: RecordSettings,
    /// Strategies that are asked about every decision, and not obeyed.
    pub shadows: Vec<Name>,
    /// The part of all decisions that they are asked about, in [0, 1].
    pub shadow_sample: f64,
    /// How long the number of a worker that has left is given to nobody: see `QUARANTINE`.
    pub quarantine: Duration,
    /// There are other routers: they are told what we do, and equals are told apart as they would.
    pub shares: bool,
    pub seed: u64,
}

/// What may still speak of a worker after it has left, beside requests, whose ends are known: a probe or a scrape that
/// was being told, KV events that were being applied, a task that has not noticed. None of that waits for anything when
/// it has come so far, so it is over in milliseconds; chosen far above that, for a machine that stalls or swaps. And a
/// person who has just read a number gets to use it. It costs the numbers of those that leave in a minute.
pub const QUARANTINE: Duration = Duration::from_secs(60);

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            strategy: Name::LeastDelay,
            strategies: BTreeMap::new(),
            knobs: Knobs::default(),
            health: health::Settings::default(),
            budget: RetryIncome::default(),
            failovers_max: 1,
            index: index::Settings::default(),
            queue: queue::Settings::default(),
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

impl Settings {
    /// What any of the strategies in use goes by, shadows included.
    pub fn needs(&self) -> Needs {
        together(self.in_charge().chain(self.shadows.iter().copied()))
    }

    /// The same without the shadows.
    pub(crate) fn needs_in_charge(&self) -> Needs {
        together(self.in_charge())
    }

    /// What the observer is asked to watch.
    pub(crate) fn watch(&self) -> Watch<'_> {
        Watch {
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

/// What any of these goes by.
fn together(names: impl Iterator<Item = Name>) -> Needs {
    names.map(Name::needs).fold(Needs::default(), |sum, it| Needs {
        session: sum.session | it.session,
        head: sum.head | it.head,
        cache: sum.cache | it.cache,
        in_use: sum.in_use | it.in_use,
    })
}
