//! Numbers in, a worker and the reason out.
//!
//! A strategy sees a prompt as a few numbers (`Ask`) and every worker that could take it as a few more
//! (`Candidate`), all taken at one instant, and returns an index and a `Why`. It knows no names, no
//! sockets, no clock; dice come in as a parameter. One file holds one strategy.

pub mod cache_aware;
pub mod choose;
pub mod dualmap;
pub mod dynamo_cost;
pub mod least_delay;
pub mod least_request;
pub mod least_work;
pub mod lmetric;
pub mod pin;
pub mod power_of_two;
pub mod preble;
pub mod prefix_hash;
pub mod random;
pub mod round_robin;
pub mod sticky_session;
pub mod sticky_until_saturated;
pub mod strategy;
pub mod weighted;

use maitre_base::{AdapterSlot, FreshLoad, KvRoom, PromisedWork, Tokens, WorkerId};

pub use strategy::{Name, Needs, Strategy, StrategyKnobs};

/// One prompt as a strategy sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask {
    /// What the engine would prefill if it held nothing of it.
    pub prefill: Tokens,
    /// What the answer is expected to add.
    pub decode: Tokens,
    /// Whose conversation this is, if the client said so.
    pub session: Option<u64>,
    /// Hash of the first bytes of the prompt, if it has any.
    pub head: Option<u64>,
    /// What equals are told apart by, so that all routers would do it alike; none where the dice do it.
    pub tie: Option<u64>,
    /// Workers that were tried for it and failed; they are not among the candidates.
    pub attempt: u32,
}

/// One worker that could take the prompt: numbers only, taken at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub worker: WorkerId,
    /// Names the worker the same way in every router and after every restart: a hash of its address.
    pub key: u64,
    /// Requests in flight there, including those that no router has reported.
    pub requests: u32,
    /// Work promised there by all routers and not yet done.
    pub promised: PromisedWork,
    /// How much it should take beside a worker of share one: its weight, which the operator sets and which is one
    /// otherwise, and of that a part while it warms up. Above zero, and not bounded by one.
    pub share: f64,
    /// Leading tokens of this prompt that it holds, and those after them that it holds in slower memory.
    pub held: Tokens,
    pub held_below: Tokens,
    /// What it holds of anything.
    pub holds: Tokens,
    /// What the prompts of our own requests there hold, what they share counted once; and how much of that is the
    /// beginning of this prompt. Zero unless the strategy needs it.
    pub in_use: Tokens,
    pub held_in_use: Tokens,
    pub pace: Pace,
    /// Seconds until the prefill promised before is done.
    pub wait_seconds: f64,
    pub room: Option<KvRoom>,
    pub reported: FreshLoad,
    pub adapter: AdapterSlot,
}

/// How fast a worker is, in seconds; learned, or what we expect of one we know nothing about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// To the first token, however short the prompt.
    pub floor: f64,
    pub prefill_token: f64,
    /// Between two tokens of an answer that has the worker to itself.
    pub step: f64,
    /// What each further request adds to that.
    pub step_request: f64,
}

impl Candidate {
    /// Promised tokens, as they feel to a worker that is still warming up.
    fn work(&self) -> f64 {
        (self.promised.prefill + self.promised.decode).0 as f64 / self.share
    }

    /// What it would compute of the prompt. Never below zero, though the index may know more than this prompt
    /// has (a longer sibling).
    fn uncached(&self, ask: &Ask) -> Tokens {
        ask.prefill - self.held
    }
}

/// The choice, and why: the same value feeds the log line, the metric label and the response header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    pub index: usize,
    pub why: Why,
}

impl Pick {
    /// A pick by a price that caches enter: whether the best one won, and what to say if there is none.
    fn priced(candidates: &[Candidate], index: usize, nobody_holds: Why) -> Pick {
        let most = candidates.iter().map(|it| it.held).max().unwrap_or_default();
        let why = match candidates[index].held {
            _ if most == Tokens::ZERO => nobody_holds,
            held if held == most => Why::Cached,
            _ => Why::CacheTooBusy,
        };
        Pick { index, why }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// There was nobody else to ask.
    Only,
    /// It was this worker's turn.
    Turn,
    /// The dice said so.
    Dice,
    /// Nobody has fewer requests.
    FewestRequests,
    /// Nobody has less work promised.
    LeastWork,
    /// It had less work than the other worker the dice named.
    BetterOfTwo,
    /// This session sits here.
    Session,
    /// This session's worker is gone; it sits here from now on.
    SessionMoved,
    /// The head of the prompt belongs here.
    Home,
    /// The head of the prompt belongs to a worker that has more than its part of the work.
    Spilled,
    /// Nobody holds more of the prompt, and it is not too busy.
    Cached,
    /// Another worker holds more of the prompt, but to wait for it costs more than it saves.
    CacheTooBusy,
    /// Nobody holds any of it; it delays everyone least here.
    LeastDelay,
    /// Nobody holds enough of it; this cache has the most room.
    MostRoom,
    /// Nobody holds any of it; it costs least here, in whatever unit the rule counts.
    LeastCost,
}

impl Why {
    pub const ALL: [Why; 15] = [
        Why::Only,
        Why::Turn,
        Why::Dice,
        Why::FewestRequests,
        Why::LeastWork,
        Why::BetterOfTwo,
        Why::Session,
        Why::SessionMoved,
        Why::Home,
        Why::Spilled,
        Why::Cached,
        Why::CacheTooBusy,
        Why::LeastDelay,
        Why::MostRoom,
        Why::LeastCost,
    ];

    /// The word in headers, labels and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Why::Only => "only",
            Why::Turn => "turn",
            Why::Dice => "dice",
            Why::FewestRequests => "fewest-requests",
            Why::LeastWork => "least-work",
            Why::BetterOfTwo => "better-of-two",
            Why::Session => "session",
            Why::SessionMoved => "session-moved",
            Why::Home => "home",
            Why::Spilled => "spilled",
            Why::Cached => "cached",
            Why::CacheTooBusy => "cache-too-busy",
            Why::LeastDelay => "least-delay",
            Why::MostRoom => "most-room",
            Why::LeastCost => "least-cost",
        }
    }
}
