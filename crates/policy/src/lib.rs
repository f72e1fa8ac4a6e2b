//! Strategies: numbers in, a worker and the reason out.
//!
//! A strategy sees a prompt as a few numbers (`Ask`) and every worker that could take it as a few more
//! (`Candidate`), all taken at one instant, and returns an index and a `Why`. It knows no names, sockets or
//! clock; randomness is a parameter. One file holds one strategy.

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
pub mod split;
pub mod sticky_session;
pub mod sticky_until_saturated;
pub mod strategy;
pub mod weighted;

use maitre_base::{AdapterSlot, FreshLoad, KvRoom, PrefillWork, PromisedWork, Tokens, WorkerId};

pub use strategy::{Name, Needs, Strategy, StrategyKnobs};

/// One prompt as a strategy sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask {
    /// Tokens that an engine would prefill if it had nothing of the prompt cached.
    pub prefill: Tokens,
    /// Tokens that the answer is expected to have.
    pub decode: Tokens,
    /// The conversation, if the client names one.
    pub session: Option<u64>,
    /// Hash of the first bytes of the prompt, if it has any.
    pub head: Option<u64>,
    /// Breaks ties the same way in every router; `None` if the random source breaks them.
    pub tie: Option<u64>,
    /// How many workers were tried and failed; they are not among the candidates.
    pub attempt: u32,
}

/// One worker that could take the prompt: numbers only, taken at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub worker: WorkerId,
    /// Identifies the worker in every router and after every restart: a hash of its address.
    pub key: u64,
    /// Requests in flight there, including those that no router has reported.
    pub requests: u32,
    /// Work promised there by all routers and not yet done.
    pub promised: PromisedWork,
    /// How much work it should get relative to a worker of share one: its weight, which the operator sets
    /// (default one), scaled down while it warms up. Above zero, not bounded by one.
    pub share: f64,
    /// Leading tokens of this prompt that it has cached, and tokens after those in slower tiers.
    pub held: Tokens,
    pub held_below: Tokens,
    /// What it fetches of the prompt, after the tokens it holds, if it gets the request.
    pub fetch: Fetch,
    /// Tokens that its engine reuses after its cached prefix. `held` includes what that saves.
    pub chunks: ReusedChunks,
    /// Everything it has cached.
    pub holds: Tokens,
    /// Leading tokens of this prompt that were sent to this worker and to no other since, whether or not its cache
    /// still has them. Zero unless the strategy needs it, and zero if the worker reports its cache.
    pub sent: Tokens,
    /// Distinct prompt tokens of this router's requests there, and how many of them are a prefix of this
    /// prompt. Zero unless the strategy needs it.
    pub in_use: Tokens,
    pub held_in_use: Tokens,
    pub pace: Pace,
    /// Seconds until the promised prefill is done.
    pub wait_seconds: f64,
    pub room: Option<KvRoom>,
    /// Seconds of prefill that programs lose if this request takes their memory.
    pub displaced_seconds: f64,
    /// Mean requests of the other workers of its model lately; infinite if there is no other.
    pub requests_elsewhere: f64,
    pub reported: FreshLoad,
    pub adapter: AdapterSlot,
}

/// Tokens whose KV cache a worker fetches from elsewhere instead of computing it, and how long that takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fetch {
    pub tokens: Tokens,
    pub seconds: f64,
    /// The worker that holds it; `None` for a store that the worker shares.
    pub from: Option<WorkerId>,
    /// Other requests in flight, at any worker, whose prompts begin with the same prefix. Zero for a store, and where nothing is
    /// fetched.
    pub shared_by: u32,
}

/// What an engine reuses of a prompt at any position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReusedChunks {
    pub tokens: Tokens,
    /// The tokens that it does not compute again.
    pub saved: Tokens,
}

/// How fast a worker is, in seconds: learned, or the expectation for an unknown worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// To the first token, however short the prompt.
    pub floor: f64,
    pub prefill_token: f64,
    /// How much each token before it adds to that.
    pub prefill_attended: f64,
    /// Between two tokens of an answer that runs alone.
    pub step: f64,
    /// How much each further request adds to that.
    pub step_request: f64,
}

impl Pace {
    /// Seconds that this prefill takes.
    pub fn prefill(&self, work: PrefillWork) -> f64 {
        self.prefill_token * work.tokens.0 as f64 + self.prefill_attended * work.attended as f64
    }
}

impl Candidate {
    /// Promised tokens, scaled up for a worker that is still warming up.
    fn work(&self) -> f64 {
        (self.promised.prefill.tokens + self.promised.decode).0 as f64 / self.share
    }

    /// Leading tokens that it has cached, without what it reuses elsewhere in the prompt.
    pub fn prefix(&self) -> Tokens {
        self.held - self.chunks.saved
    }

    /// Tokens that its engine will report as cached.
    pub fn cached(&self) -> Tokens {
        self.prefix() + self.chunks.tokens
    }

    /// Prompt tokens to compute. Never below zero: the index may know more than this prompt has (a longer
    /// sibling).
    fn uncached(&self, ask: &Ask) -> Tokens {
        ask.prefill - self.held
    }

    /// Seconds to compute them.
    fn uncached_seconds(&self, ask: &Ask) -> f64 {
        self.pace.prefill(PrefillWork::after(self.held, self.uncached(ask)))
    }
}

/// The choice and its reason: the same value feeds the log line, the metric label and the response header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    pub index: usize,
    pub why: Why,
}

impl Pick {
    /// A pick by a price that includes caches: whether the longest cached prefix won, or `none_cached` if no
    /// worker has any.
    fn priced(candidates: &[Candidate], index: usize, none_cached: Why) -> Pick {
        let most = candidates.iter().map(|it| it.held).max().unwrap_or_default();
        let why = match candidates[index].held {
            _ if most == Tokens::ZERO => none_cached,
            held if held == most => Why::Cached,
            _ => Why::CacheTooBusy,
        };
        Pick { index, why }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// The only candidate.
    Only,
    /// Its turn in the rotation.
    Turn,
    /// Random choice.
    Dice,
    /// Fewest requests in flight.
    FewestRequests,
    /// Least work promised.
    LeastWork,
    /// Less work than the other of two random workers.
    BetterOfTwo,
    /// This session is pinned here.
    Session,
    /// The session's worker is gone; the session is pinned here from now on.
    SessionMoved,
    /// The prompt's head hashes to this worker.
    Home,
    /// The prompt's head hashes to a worker that has more than its share of the work.
    Spilled,
    /// Longest cached prefix, and not too busy.
    Cached,
    /// Another worker has a longer cached prefix, but waiting for it costs more than it saves.
    CacheTooBusy,
    /// No worker has any of it cached; it adds the least delay here.
    LeastDelay,
    /// No worker has any of it cached; it costs least here, in the unit of the strategy.
    LeastCost,
}

impl Why {
    pub const ALL: [Why; 14] = [
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
        Why::LeastCost,
    ];

    /// The name in headers, labels and logs.
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
            Why::LeastCost => "least-cost",
        }
    }
}
