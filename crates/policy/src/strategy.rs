//! The strategies by name, and what each remembers between two picks.

use std::fmt;
use std::str::FromStr;

use maitre_base::Rng;

use crate::pin::Pin;
use crate::round_robin::RoundRobin;
use crate::sticky_session::StickySession;
use crate::{Ask, Candidate, Pick, Why};
use crate::{cache_aware, dualmap, dynamo_cost, preble, sticky_until_saturated, weighted};
use crate::{least_delay, least_request, least_work, lmetric, power_of_two, prefix_hash, random};

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
    DynamoCost,
    Weighted,
    StickyUntilSaturated,
    Preble,
    Lmetric,
    Dualmap,
}

impl Name {
    pub const ALL: [Name; 15] = [
        Name::RoundRobin,
        Name::Random,
        Name::LeastRequest,
        Name::LeastWork,
        Name::PowerOfTwo,
        Name::StickySession,
        Name::PrefixHash,
        Name::CacheAware,
        Name::LeastDelay,
        Name::DynamoCost,
        Name::Weighted,
        Name::StickyUntilSaturated,
        Name::Preble,
        Name::Lmetric,
        Name::Dualmap,
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
            Name::DynamoCost => "dynamo-cost",
            Name::Weighted => "weighted",
            Name::StickyUntilSaturated => "sticky-until-saturated",
            Name::Preble => "preble",
            Name::Lmetric => "lmetric",
            Name::Dualmap => "dualmap",
        }
    }
}

/// The inputs that a strategy uses besides load; the others need not be computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "five questions that have nothing to do with each other")]
pub struct Needs {
    pub session: bool,
    pub head: bool,
    /// What each worker has cached of the prompt.
    pub cache: bool,
    /// How much of that running requests use: tracking it costs a look-up for each block of each prompt.
    pub in_use: bool,
    /// Where prompts were sent before, for longer than the predicted caches keep them.
    pub sent: bool,
}

impl Name {
    pub const fn needs(self) -> Needs {
        Needs {
            session: matches!(self, Name::StickySession),
            head: matches!(self, Name::PrefixHash | Name::Dualmap),
            cache: match self {
                Name::CacheAware | Name::LeastDelay => true,
                Name::DynamoCost | Name::Weighted | Name::StickyUntilSaturated => true,
                Name::Preble | Name::Lmetric | Name::Dualmap => true,
                Name::RoundRobin | Name::Random | Name::LeastRequest | Name::LeastWork => false,
                Name::PowerOfTwo | Name::StickySession | Name::PrefixHash => false,
            },
            in_use: matches!(self, Name::DynamoCost),
            sent: matches!(self, Name::CacheAware),
        }
    }

    /// Whether it prices the loading of an adapter. Any other strategy must see only the workers with the best
    /// adapter slot.
    pub const fn prices_adapters(self) -> bool {
        matches!(self, Name::LeastDelay)
    }

    /// Whether a request waits for its pick. It does if the rule prefers a worker for something that other workers
    /// lack (a cached prefix, a session, a home), and weighs that against load by itself. A rule that knows only load
    /// takes any worker with room.
    pub const fn waits_for_pick(self) -> bool {
        match self {
            Name::RoundRobin | Name::Random | Name::PowerOfTwo => false,
            Name::LeastRequest | Name::LeastWork => false,
            Name::StickySession | Name::PrefixHash | Name::CacheAware | Name::LeastDelay => true,
            Name::DynamoCost | Name::Weighted | Name::StickyUntilSaturated => true,
            Name::Preble | Name::Lmetric | Name::Dualmap => true,
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

/// The knobs of all strategies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StrategyKnobs {
    /// `prefix-hash`: how far above the mean the home's load may be. At least one.
    pub load_factor: f64,
    pub cache_aware: cache_aware::CacheAwareKnobs,
    pub dynamo_cost: dynamo_cost::DynamoKnobs,
    pub weighted: weighted::WeightedKnobs,
    pub sticky_until_saturated: sticky_until_saturated::StickyKnobs,
    pub preble: preble::PrebleKnobs,
    pub dualmap: dualmap::DualmapKnobs,
}

impl Default for StrategyKnobs {
    fn default() -> StrategyKnobs {
        StrategyKnobs {
            // The bound that the paper on consistent hashing with bounded loads recommends.
            load_factor: 1.25,
            cache_aware: cache_aware::CacheAwareKnobs::default(),
            dynamo_cost: dynamo_cost::DynamoKnobs::default(),
            weighted: weighted::WeightedKnobs::default(),
            sticky_until_saturated: sticky_until_saturated::StickyKnobs::default(),
            preble: preble::PrebleKnobs::default(),
            dualmap: dualmap::DualmapKnobs::default(),
        }
    }
}

/// A strategy in use for one model.
#[derive(Clone, Debug)]
pub struct Strategy {
    name: Name,
    knobs: StrategyKnobs,
    round_robin: RoundRobin,
    sticky_session: StickySession,
    /// Scratch, so that a pick allocates nothing.
    prices: Vec<f64>,
}

impl Strategy {
    pub fn new(name: Name, knobs: StrategyKnobs) -> Strategy {
        let (round_robin, sticky_session) = (RoundRobin::default(), StickySession::default());
        Strategy { name, knobs, round_robin, sticky_session, prices: Vec::new() }
    }

    pub fn name(&self) -> Name {
        self.name
    }

    /// Switches to this rule. If the rule stays the same, so does its state: the rotation and the pins do not depend
    /// on knobs.
    pub fn retune(&mut self, name: Name, knobs: StrategyKnobs) {
        match name == self.name {
            true => self.knobs = knobs,
            false => *self = Strategy::new(name, knobs),
        }
    }

    /// The session that the last pick pinned to a worker it was not pinned to before.
    pub fn pinned(&self) -> Option<u64> {
        self.sticky_session.pinned().filter(|_| self.name == Name::StickySession)
    }

    /// Another router pinned a session to this worker. Ignored by strategies without sessions.
    pub fn pin(&mut self, session: u64, pin: Pin) {
        if self.name == Name::StickySession {
            self.sticky_session.pin(session, pin);
        }
    }

    /// The price of each candidate of the last pick, if the strategy prices as `least_delay` does; else empty.
    pub fn prices(&self) -> &[f64] {
        &self.prices
    }

    /// What it would pick, with a copy of the random state; changes nothing.
    pub fn peek(&self, ask: &Ask, candidates: &[Candidate], rng: &Rng) -> Option<Pick> {
        let mut dice = rng.clone();
        match self.name {
            Name::StickySession => self.sticky_session.peek(ask, candidates, &mut dice),
            name => {
                let (round_robin, knobs) = (self.round_robin.clone(), self.knobs);
                let mut copy = Strategy { round_robin, ..Strategy::new(name, knobs) };
                copy.pick(ask, candidates, &mut dice)
            }
        }
    }

    /// Like `pick`, with the prices of all candidates by `least_delay::price`, which stay with the caller.
    pub fn pick_priced(
        &mut self,
        ask: &Ask,
        candidates: &[Candidate],
        prices: &[f64],
        rng: &mut Rng,
    ) -> Option<Pick> {
        if self.name != Name::LeastDelay || candidates.len() < 2 {
            return self.pick(ask, candidates, rng);
        }
        self.prices.clear();
        least_delay::pick_priced(ask, candidates, prices, rng)
    }

    /// Picks a worker; `None` only without candidates. Candidates are in order of worker number, each with a share
    /// above zero.
    pub fn pick(&mut self, ask: &Ask, candidates: &[Candidate], rng: &mut Rng) -> Option<Pick> {
        debug_assert!(candidates.is_sorted_by_key(|it| it.worker), "candidates come in order");
        self.prices.clear();
        match (self.name, candidates.len()) {
            // A session must be remembered even if there is no choice.
            (Name::StickySession, _) => self.sticky_session.pick(ask, candidates, rng),
            (_, 1) => Some(Pick { index: 0, why: Why::Only }),
            (Name::RoundRobin, _) => self.round_robin.pick(candidates, rng),
            (Name::Random, _) => random::pick(candidates, rng),
            (Name::LeastRequest, _) => least_request::pick(ask, candidates, rng),
            (Name::LeastWork, _) => least_work::pick(ask, candidates, rng),
            (Name::PowerOfTwo, _) => power_of_two::pick(candidates, rng),
            (Name::PrefixHash, _) => prefix_hash::pick(ask, candidates, self.knobs.load_factor)
                .or_else(|| least_work::pick(ask, candidates, rng)),
            (Name::CacheAware, _) => cache_aware::pick(ask, candidates, &self.knobs.cache_aware, rng),
            (Name::LeastDelay, _) => least_delay::pick(ask, candidates, &mut self.prices, rng),
            (Name::DynamoCost, _) => dynamo_cost::pick(ask, candidates, &self.knobs.dynamo_cost, rng),
            (Name::Weighted, _) => weighted::pick(ask, candidates, &self.knobs.weighted, rng),
            (Name::StickyUntilSaturated, _) => {
                sticky_until_saturated::pick(ask, candidates, &self.knobs.sticky_until_saturated, rng)
            }
            (Name::Preble, _) => preble::pick(ask, candidates, &self.knobs.preble, rng),
            (Name::Lmetric, _) => lmetric::pick(ask, candidates, rng),
            (Name::Dualmap, _) => dualmap::pick(ask, candidates, &self.knobs.dualmap, rng)
                .or_else(|| least_work::pick(ask, candidates, rng)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Fetch, Pace};
    use maitre_base::{AdapterSlot, FreshLoad, KvRoom, PrefillWork, PromisedWork, Tokens, WorkerId, hash};
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    /// 10,000 tokens of prefill a second, a hundred steps.
    pub(crate) const PACE: Pace =
        Pace { floor: 0.01, prefill_token: 1e-4, prefill_attended: 0.0, step: 0.01, step_request: 1e-4 };

    /// Each row is `(requests, promised prefill tokens)`.
    pub(crate) fn fleet(rows: &[(u32, u64)]) -> Vec<Candidate> {
        let candidate = |(number, &(requests, prefill)): (usize, &(u32, u64))| Candidate {
            worker: WorkerId(number as u32),
            key: hash::mix(number as u64),
            requests,
            promised: PromisedWork {
                prefill: PrefillWork::whole(Tokens(prefill)),
                ..PromisedWork::default()
            },
            share: 1.0,
            held: Tokens::ZERO,
            held_below: Tokens::ZERO,
            fetch: Fetch::default(),
            chunks: crate::ReusedChunks::default(),
            holds: Tokens::ZERO,
            sent: Tokens::ZERO,
            in_use: Tokens::ZERO,
            held_in_use: Tokens::ZERO,
            pace: PACE,
            wait_seconds: prefill as f64 * PACE.prefill_token,
            room: None,
            displaced_seconds: 0.0,
            requests_elsewhere: f64::INFINITY,
            reported: FreshLoad::default(),
            adapter: AdapterSlot::Ready,
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

    /// Requests, promised prefill, share, held.
    fn rows() -> impl proptest::strategy::Strategy<Value = Vec<(u32, u64, f64, u64)>> {
        prop::collection::vec((0u32..50, 0u64..200_000, 0.01f64..=100.0, 0u64..20_000), 0..20)
    }

    proptest! {
        #[test]
        fn every_strategy_picks_a_worker_if_there_is_one(
            rows in rows(), prefill in 0u64..10_000, session in any::<Option<u64>>(), head in any::<Option<u64>>(), seed: u64,
        ) {
            let mut candidates = fleet(&rows.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>());
            for (candidate, row) in candidates.iter_mut().zip(&rows) {
                (candidate.share, candidate.held) = (row.2, Tokens(row.3));
                // Candidates with an even count report; some report an empty cache of size zero.
                candidate.reported.waiting = (row.0 % 2 == 0).then_some(row.0.into());
                candidate.room = (row.0 % 2 == 0)
                    .then_some(KvRoom { capacity: Tokens(row.3 / 2), pinned: Tokens(row.1) });
            }
            let ask = Ask { prefill: Tokens(prefill), session, head, ..Ask::default() };
            for name in Name::ALL {
                let mut strategy = Strategy::new(name, StrategyKnobs::default());
                let pick = strategy.pick(&ask, &candidates, &mut Rng::new(seed));
                prop_assert_eq!(pick.is_some(), !candidates.is_empty(), "{}", name);
                prop_assert!(pick.is_none_or(|it| it.index < candidates.len()));
            }
        }

        #[test]
        fn no_strategy_prefers_the_busier_of_two_by_much_when_nothing_ties_it(seed: u64) {
            let candidates = fleet(&[(0, 0), (40, 400_000)]);
            let mut rng = Rng::new(seed);
            // Rotation, random choice, sessions and cache-aware's free room use no load, or a threshold of
            // it.
            let blind = [Name::RoundRobin, Name::Random, Name::StickySession, Name::CacheAware];
            for name in Name::ALL.into_iter().filter(|it| !blind.contains(it)) {
                let ask = Ask { head: Some(seed), ..Ask::default() };
                let pick = Strategy::new(name, StrategyKnobs::default()).pick(&ask, &candidates, &mut rng);
                prop_assert_eq!(pick.map(|it| it.index), Some(0), "{}", name);
            }
        }
    }
}
