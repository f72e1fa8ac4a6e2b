//! Why a request went where it went: what was known of every worker when it was seated, and what became of it.
//!
//! A record keeps numbers, not words: the workers as the strategy saw them, from which each term of a price follows
//! whenever somebody asks. So to write one down costs a copy, and nothing is worked out that nobody reads. Records
//! stand in a ring of fixed size (`ring`), and those that are overwritten leave their memory to the next.
//!
//! What this leaves out: any text, any token, any key. A prompt is a length here.

use std::time::Duration;

use maitre_base::{ClassId, Instant, RequestId, TenantId, Tokens, WorkerId};
use maitre_fleet::ModelId;
use maitre_fleet::estimate::Counted;
use maitre_policy::least_delay::{self, Terms};
use maitre_policy::{Ask, Candidate, Name, Why};

use crate::observer::shadow::Vote;
use crate::placer::survey::Opening;

/// Workers that one record shows at most: the cheapest, and always the one that was chosen.
pub const CANDIDATES_MAX: usize = 16;
/// Workers that are priced for the record alone, at most, where the strategy has no price of its own: the one that was
/// chosen, those that hold most of the prompt, and the first ones. To price a thousand took longer than to pick one.
pub const PRICED_MAX: usize = 64;
/// Most records that can be kept. Chosen: some 100 MB with a large fleet.
pub const DECISIONS_MAX: usize = 65_536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSettings {
    /// Decisions that are kept; zero for none, and then nothing is foreseen or counted for people either. At most
    /// `DECISIONS_MAX`.
    pub decisions: usize,
}

impl Default for RecordSettings {
    fn default() -> RecordSettings {
        // A minute of twenty requests a second.
        RecordSettings { decisions: 1_024 }
    }
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// It is under way.
    #[default]
    InFlight,
    Answered,
    /// It failed before the first byte; if there is another attempt, that has a record of its own.
    Failed,
    /// The worker failed in the middle of its answer.
    BrokeOff,
    /// The client is gone.
    Left,
    /// The worker said no, and its answer was passed on.
    Declined,
    /// It was called back from there, and stands in line again.
    Recalled,
    /// Nobody was seated: somebody wanted to know what would be done.
    Asked,
    /// The same, and it would stand in line first.
    WouldWait,
}

impl Outcome {
    pub const fn name(self) -> &'static str {
        match self {
            Outcome::InFlight => "open",
            Outcome::Answered => "answered",
            Outcome::Failed => "failed",
            Outcome::BrokeOff => "broke-off",
            Outcome::Left => "left",
            Outcome::Declined => "declined",
            Outcome::Recalled => "recalled",
            Outcome::Asked => "asked",
            Outcome::WouldWait => "would-wait",
        }
    }
}

/// A worker that could have taken the request, as it stood then.
#[derive(Clone, Copy, Debug)]
pub struct Considered {
    /// What the strategy saw, those included who wait for this worker alone.
    pub candidate: Candidate,
    pub opening: Opening,
    /// What `least-delay` would have it cost everyone, in seconds, whatever the strategy.
    pub price: f64,
    /// Seconds to the first token, as we tell people.
    pub ttft: Option<f64>,
}

impl Considered {
    /// What its price is made of; they sum to price times share.
    pub fn terms(&self, ask: &Ask) -> Terms {
        least_delay::terms(ask, &self.candidate)
    }
}

/// One attempt: where it went, among whom, and what became of it.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Counts from one; zero for what was only considered.
    pub number: u64,
    /// Of its last change, in `Ring::changed`.
    pub revision: u64,
    pub request: RequestId,
    pub at: Instant,
    /// As it was asked for; its name is the fleet's to tell.
    pub model: Option<ModelId>,
    pub strategy: Name,
    pub class: ClassId,
    pub tenant: TenantId,
    pub worker: WorkerId,
    pub why: Why,
    /// Attempts before this one.
    pub attempt: u32,
    /// How long it stood in line, over all attempts.
    pub waited: Duration,
    /// The prompt's tokens (`prefill`) and those expected of the answer (`decode`).
    pub ask: Ask,
    /// What the chosen one was believed to hold of the prompt; none where nobody looked.
    pub held: Option<Tokens>,
    /// Seconds from the placement to the first token, as foreseen.
    pub predicted: Option<f64>,
    /// The cheapest first.
    pub candidates: Vec<Considered>,
    /// How many there were.
    pub candidates_total: u32,
    /// What other strategies would have done.
    pub shadows: Vec<Vote>,

    // What became of it.
    pub outcome: Outcome,
    /// From the placement to the first token. The time in line is `waited`. None for answers in one piece.
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
            shadows: Vec::new(),
            outcome: Outcome::InFlight,
            first_token: None,
            total: None,
            counted: NOTHING_COUNTED,
        }
    }
}

pub(crate) const NOTHING_COUNTED: Counted = Counted { prompt: None, cached: None, answer: None };

impl Decision {
    /// The one that was chosen, as it stood.
    pub fn chosen(&self) -> Option<&Considered> {
        self.candidates.iter().find(|it| it.candidate.worker == self.worker)
    }

    pub fn is_open(&self) -> bool {
        self.outcome == Outcome::InFlight
    }
}

/// The least of many, in order: at most `N`, each with where it was.
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

    /// Makes room for one that must be among them.
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
        fn the_least_of_many_are_those_that_sorting_finds(costs in prop::collection::vec(0u8..50, 0..40)) {
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
