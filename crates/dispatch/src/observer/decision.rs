//! The record of a decision: what was known of every worker when a request was placed, and what became of it.
//!
//! A record keeps numbers: the workers as the strategy saw them, from which each term of a price can be computed when
//! it is read. So recording costs a copy, and nothing is computed that is never read. Records live in a ring of fixed
//! size (`ring`), and one that is overwritten leaves its memory to the next.
//!
//! Left out: any text, any token, any key. Of a prompt only its length is kept.

use std::time::Duration;

use maitre_base::{ClassId, Instant, RequestId, TenantId, Tokens, WorkerId};
use maitre_fleet::ModelId;
use maitre_fleet::estimate::Counted;
use maitre_policy::least_delay::{self, DelayTerms};
use maitre_policy::{Ask, Candidate, Name, Why};

use crate::observer::shadow::Vote;
use crate::placer::split::PrefillChoice;
use crate::placer::survey::Opening;
use crate::programs::view::{Hold, ProgramStep};

/// Most workers in one record: the cheapest, and always the chosen one.
pub const CANDIDATES_MAX: usize = 16;
/// Most workers that are priced for the record alone, where the strategy has no prices: the chosen one, those that hold
/// most of the prompt, and the first ones. Pricing a thousand took longer than picking one.
pub const PRICED_MAX: usize = 64;
/// Most records that can be kept. Chosen: about 100 MB with a large fleet.
pub const DECISIONS_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSettings {
    /// Decisions that are kept, at most `DECISIONS_MAX`. With zero, predictions and hot prefixes are off as well.
    pub decisions: usize,
}

impl Default for RecordSettings {
    fn default() -> RecordSettings {
        // About a minute at twenty requests a second.
        RecordSettings { decisions: 1_024 }
    }
}

maitre_base::words! {
    /// What became of an attempt.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum AttemptOutcome {
        /// The attempt is under way.
        #[default]
        InFlight = "in-flight",
        Answered = "answered",
        /// It failed before the first byte. Another attempt has a record of its own.
        Failed = "failed",
        /// The worker failed in the middle of its response.
        BrokeOff = "broke-off",
        /// The same, and another worker goes on. That attempt has a record of its own.
        Continued = "continued",
        /// The same of a worker that is drained: it has not failed.
        HandedOver = "handed-over",
        /// A second attempt of the request answered first.
        Outpaced = "outpaced",
        /// The client disconnected.
        Left = "disconnected",
        /// The worker answered with an error that was passed on.
        Declined = "declined",
        /// The request was recalled, and queued again.
        Recalled = "recalled",
        /// Not placed: the answer of `explain`.
        Asked = "asked",
        /// The same, and the request would be queued first.
        WouldWait = "would-wait",
    }
}

/// A worker that could have taken the request, as it was then.
#[derive(Clone, Copy, Debug)]
pub struct Considered {
    /// What the strategy saw, reservations included.
    pub candidate: Candidate,
    pub opening: Opening,
    /// The price by `least-delay`, in seconds, whatever the strategy.
    pub price: f64,
    /// Predicted seconds to the first token.
    pub ttft: Option<f64>,
}

impl Considered {
    /// The terms of its price; their sum is price times share.
    pub fn terms(&self, ask: &Ask) -> DelayTerms {
        least_delay::terms(ask, &self.candidate)
    }
}

/// One attempt: its worker, the candidates, and what became of it.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Counts from one; zero for the answer of `explain`.
    pub number: u64,
    /// The revision of its last change, for `Ring::changed`.
    pub revision: u64,
    pub request: RequestId,
    pub at: Instant,
    /// The model that was asked for; the fleet knows its name.
    pub model: Option<ModelId>,
    pub strategy: Name,
    pub class: ClassId,
    pub tenant: TenantId,
    pub worker: WorkerId,
    pub why: Why,
    /// Attempts before this one.
    pub attempt: u32,
    /// Time in the queue, over all attempts.
    pub waited: Duration,
    /// Tokens of the prompt (`prefill`), and expected tokens of the response (`decode`).
    pub ask: Ask,
    /// Tokens of the prompt believed to be cached at the chosen worker; none if that was not looked up.
    pub held: Option<Tokens>,
    /// Predicted seconds from the placement to the first token.
    pub predicted: Option<f64>,
    /// The cheapest first.
    pub candidates: Vec<Considered>,
    /// How many workers could have taken it.
    pub candidates_total: u32,
    /// The worker that prefills the prompt for the chosen one, if another does.
    pub prefill: Option<PrefillChoice>,
    /// What the shadows would have done.
    pub shadows: Vec<Vote>,
    /// The program that the request is a call of.
    pub program: Option<ProgramStep>,
    /// Of a question: the request would be held first.
    pub hold: Option<Hold>,

    // The outcome.
    pub outcome: AttemptOutcome,
    /// From the placement to the first token, without the time in the queue. None for responses in one piece.
    pub first_token: Option<Duration>,
    /// From the placement to the end.
    pub total: Option<Duration>,
    pub counted: Counted,
}

impl Default for Decision {
    fn default() -> Decision {
        Decision {
            number: 0,
            revision: 0,
            request: RequestId(0),
            at: Instant::ZERO,
            model: None,
            strategy: Name::LeastDelay,
            class: ClassId(0),
            tenant: TenantId(0),
            worker: WorkerId(0),
            why: Why::Only,
            attempt: 0,
            waited: Duration::ZERO,
            ask: Ask::default(),
            held: None,
            predicted: None,
            candidates: Vec::new(),
            candidates_total: 0,
            prefill: None,
            shadows: Vec::new(),
            program: None,
            hold: None,
            outcome: AttemptOutcome::InFlight,
            first_token: None,
            total: None,
            counted: NOTHING_COUNTED,
        }
    }
}

pub(crate) const NOTHING_COUNTED: Counted = Counted { prompt: None, cached: None, answer: None };

impl Decision {
    /// The chosen worker, as it was then.
    pub fn chosen(&self) -> Option<&Considered> {
        self.candidates.iter().find(|it| it.candidate.worker == self.worker)
    }

    pub fn is_open(&self) -> bool {
        self.outcome == AttemptOutcome::InFlight
    }
}

/// The cheapest `N` of many, in order, each with its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Least<const N: usize> {
    kept: [(f64, u32); N],
    count: usize,
}

impl<const N: usize> Least<N> {
    pub(crate) fn new() -> Least<N> {
        Least { kept: [(f64::INFINITY, 0); N], count: 0 }
    }

    #[inline]
    pub(crate) fn see(&mut self, cost: f64, place: usize) {
        if self.count == N && cost >= self.kept[N - 1].0 {
            return;
        }
        let mut at = self.count.min(N - 1);
        self.count = (self.count + 1).min(N);
        while at > 0 && self.kept[at - 1].0 > cost {
            self.kept[at] = self.kept[at - 1];
            at -= 1;
        }
        self.kept[at] = (cost, place as u32);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (f64, usize)> + '_ {
        self.kept[..self.count].iter().map(|it| (it.0, it.1 as usize))
    }

    pub(crate) fn has(&self, place: usize) -> bool {
        self.iter().any(|it| it.1 == place)
    }

    /// Adds one that must be among them, in place of the last if there is no room.
    pub(crate) fn put_last(&mut self, cost: f64, place: usize) {
        self.count = (self.count + 1).min(N);
        self.kept[self.count - 1] = (cost, place as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn the_cheapest_are_those_that_sorting_finds(costs in prop::collection::vec(0u8..50, 0..40)) {
            let mut least = Least::<8>::new();
            for (place, &cost) in costs.iter().enumerate() {
                least.see(f64::from(cost), place);
            }
            let mut sorted: Vec<(u8, usize)> = costs.iter().copied().zip(0..).collect();
            sorted.sort_unstable();
            let found: Vec<(u8, usize)> = least.iter().map(|it| (it.0 as u8, it.1)).collect();
            prop_assert_eq!(found, sorted.into_iter().take(8).collect::<Vec<_>>());
        }
    }
}
