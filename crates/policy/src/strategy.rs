//! The strategies by name, and what each remembers between two picks.

use std::fmt;
use std::str::FromStr;

use maitre_base::Rng;

use crate::round_robin::RoundRobin;
use crate::sticky_session::StickySession;
use crate::{Ask, Candidate, Pick, Why};
use crate::{cache_aware, least_delay, least_request, least_work, power_of_two, prefix_hash, random};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    RoundRobin,
    Random,
    LeastRequest,
    LeastWork,
    PowerOfTwo,
    StickySession,
    PrefixHash,
    CacheAware,
    LeastDelay,
}

impl Name {
    pub const ALL: [Name; 9] = [
        Name::RoundRobin,
        Name::Random,
        Name::LeastRequest,
        Name::LeastWork,
        Name::PowerOfTwo,
        Name::StickySession,
        Name::PrefixHash,
        Name::CacheAware,
        Name::LeastDelay,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Name::RoundRobin => "round-robin",
            Name::Random => "random",
            Name::LeastRequest => "least-request",
            Name::LeastWork => "least-work",
            Name::PowerOfTwo => "power-of-two",
            Name::StickySession => "sticky-session",
            Name::PrefixHash => "prefix-hash",
            Name::CacheAware => "cache-aware",
            Name::LeastDelay => "least-delay",
        }
    }
}

/// What a strategy goes by besides load; what nobody goes by need not be worked out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "three questions that have nothing to do with each other")]
pub struct Needs {
    pub session: bool,
    pub head: bool,
    /// What each worker's cache holds of the prompt.
    pub cache: bool,
}

impl Name {
    pub const fn needs(self) -> Needs {
        Needs {
            session: matches!(self, Name::StickySession),
            head: matches!(self, Name::PrefixHash),
            cache: matches!(self, Name::CacheAware | Name::LeastDelay),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no strategy is called \"{0}\"; known: {known}", known = Name::ALL.map(Name::as_str).join(", "))]
pub struct UnknownName(String);

impl FromStr for Name {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Name, UnknownName> {
        let known = Name::ALL.into_iter().find(|it| it.as_str() == text);
        known.ok_or_else(|| UnknownName(text.to_owned()))
    }
}

/// What can be tuned, over all strategies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knobs {
    /// `prefix-hash`: how far above the mean a home may be loaded. At least one.
    pub load_factor: f64,
    pub cache_aware: cache_aware::Knobs,
}

impl Default for Knobs {
    fn default() -> Knobs {
        // 1.25 is the bound the paper on consistent hashing with bounded loads recommends.
        Knobs { load_factor: 1.25, cache_aware: cache_aware::Knobs::default() }
    }
}

/// A strategy at work for one model.
#[derive(Clone, Debug)]
pub struct Strategy {
    name: Name,
    knobs: Knobs,
    round_robin: RoundRobin,
    sticky_session: StickySession,
    /// Scratch, so that a pick allocates nothing.
    prices: Vec<f64>,
}

impl Strategy {
    pub fn new(name: Name, knobs: Knobs) -> Strategy {
        let (round_robin, sticky_session) = (RoundRobin::default(), StickySession::default());
        Strategy { name, knobs, round_robin, sticky_session, prices: Vec::new() }
    }

    pub fn name(&self) -> Name {
        self.name
    }

    /// Picks a worker; none only if there are no candidates. Candidates come in the order of their
    /// numbers, each with a share above zero.
    pub fn pick(&mut self, ask: &Ask, candidates: &[Candidate], rng: &mut Rng) -> Option<Pick> {
        debug_assert!(candidates.is_sorted_by_key(|it| it.worker), "candidates come in order");
        match (self.name, candidates.len()) {
            // A session must be remembered even while it has no choice.
            (Name::StickySession, _) => self.sticky_session.pick(ask, candidates, rng),
            (_, 1) => Some(Pick { index: 0, why: Why::Only }),
            (Name::RoundRobin, _) => self.round_robin.pick(candidates, rng),
            (Name::Random, _) => random::pick(candidates, rng),
            (Name::LeastRequest, _) => least_request::pick(candidates, rng),
            (Name::LeastWork, _) => least_work::pick(candidates, rng),
            (Name::PowerOfTwo, _) => power_of_two::pick(candidates, rng),
            (Name::PrefixHash, _) => prefix_hash::pick(ask, candidates, self.knobs.load_factor)
                .or_else(|| least_work::pick(candidates, rng)),
            (Name::CacheAware, _) => cache_aware::pick(ask, candidates, &self.knobs.cache_aware, rng),
            (Name::LeastDelay, _) => least_delay::pick(ask, candidates, &mut self.prices, rng),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Adapter, Pace};
    use maitre_base::{Tokens, WorkerId, hash};
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    /// 10,000 tokens of prefill a second, a hundred steps.
    pub(crate) const PACE: Pace = Pace { floor: 0.01, prefill_token: 1e-4, step: 0.01, step_request: 1e-4 };

    /// Each row is `(requests, promised prefill tokens)`.
    pub(crate) fn fleet(rows: &[(u32, u64)]) -> Vec<Candidate> {
        let candidate = |(number, &(requests, prefill)): (usize, &(u32, u64))| Candidate {
            worker: WorkerId(number as u32),
            key: hash::mix(number as u64),
            requests,
            prefill: Tokens(prefill),
            decode: Tokens::ZERO,
            share: 1.0,
            held: Tokens::ZERO,
            held_below: Tokens::ZERO,
            holds: Tokens::ZERO,
            pace: PACE,
            wait_seconds: prefill as f64 * PACE.prefill_token,
            room: None,
            adapter: Adapter::Ready,
        };
        rows.iter().enumerate().map(candidate).collect()
    }

    #[test]
    fn names_round_trip_and_a_wrong_one_lists_them_all() {
        for name in Name::ALL {
            assert_eq!(name.as_str().parse(), Ok(name));
        }
        let error = "least-conn".parse::<Name>().unwrap_err().to_string();
        assert!(Name::ALL.iter().all(|name| error.contains(name.as_str())), "{error}");
    }

    fn rows() -> impl proptest::strategy::Strategy<Value = Vec<(u32, u64, f64)>> {
        prop::collection::vec((0u32..50, 0u64..200_000, 0.05f64..=1.0), 0..20)
    }

    proptest! {
        #[test]
        fn every_strategy_picks_somebody_if_there_is_anybody(
            rows in rows(), session in any::<Option<u64>>(), head in any::<Option<u64>>(), seed: u64,
        ) {
            let mut candidates = fleet(&rows.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>());
            for (candidate, row) in candidates.iter_mut().zip(&rows) {
                candidate.share = row.2;
            }
            let ask = Ask { session, head, ..Ask::default() };
            for name in Name::ALL {
                let mut strategy = Strategy::new(name, Knobs::default());
                let pick = strategy.pick(&ask, &candidates, &mut Rng::new(seed));
                prop_assert_eq!(pick.is_some(), !candidates.is_empty(), "{}", name);
                prop_assert!(pick.is_none_or(|it| it.index < candidates.len()));
            }
        }

        #[test]
        fn no_strategy_prefers_the_busier_of_two_by_much_when_nothing_ties_it(seed: u64) {
            let candidates = fleet(&[(0, 0), (40, 400_000)]);
            let mut rng = Rng::new(seed);
            for name in [Name::LeastRequest, Name::LeastWork, Name::PowerOfTwo, Name::PrefixHash, Name::LeastDelay] {
                let ask = Ask { head: Some(seed), ..Ask::default() };
                let pick = Strategy::new(name, Knobs::default()).pick(&ask, &candidates, &mut rng);
                prop_assert_eq!(pick.map(|it| it.index), Some(0), "{}", name);
            }
        }
    }
}
