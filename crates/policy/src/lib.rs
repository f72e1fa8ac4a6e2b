//! Numbers in, a worker and the reason out.
//!
//! A strategy sees a prompt as a few numbers (`Ask`) and every worker that could take it as a few more
//! (`Candidate`), all taken at one instant, and returns an index and a `Why`. It knows no names, no
//! sockets, no clock; dice come in as a parameter. One file holds one strategy.

pub mod choose;
pub mod least_request;
pub mod least_work;
pub mod pins;
pub mod power_of_two;
pub mod prefix_hash;
pub mod random;
pub mod round_robin;
pub mod sticky_session;
pub mod strategy;

use maitre_base::{Tokens, WorkerId};

pub use strategy::{Knobs, Name, Needs, Strategy};

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
    /// Workers that were tried for it and failed; they are not among the candidates.
    pub attempt: u32,
}

/// One worker that could take the prompt: numbers only, taken at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub worker: WorkerId,
    /// Names the worker the same way in every router and after every restart: a hash of its address.
    pub key: u64,
    /// Requests we seated there that have not finished.
    pub requests: u32,
    /// Work promised there and not yet done.
    pub prefill: Tokens,
    pub decode: Tokens,
    /// How much of its fair part it should take, in (0, 1]: below one while it warms up.
    pub share: f64,
}

impl Candidate {
    /// Promised tokens, as they feel to a worker that is still warming up.
    fn work(&self) -> f64 {
        (self.prefill + self.decode).0 as f64 / self.share
    }
}

/// The choice, and why: the same value feeds the log line, the metric label and the response header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    pub index: usize,
    pub why: Why,
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
}

impl Why {
    pub const ALL: [Why; 10] = [
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
        }
    }
}
