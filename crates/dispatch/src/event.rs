//! What can happen to the brain, and what it can want done. Both lists are closed.

use std::time::Duration;

use maitre_base::{
    ChunkReuse, ClassId, EngineLoad, Handoff, Instant, KvEvent, RequestId, Role, TenantId, Tokens, WorkerId,
};
use maitre_fleet::estimate::{Answers, Counted, Size};
use maitre_fleet::{Card, Evidence, HealthChange};
use maitre_index::feed::Trust;
use maitre_policy::Why;
use maitre_queue::RateLimit;

use crate::cache::PromptChain;
use crate::cache::stores::StoreId;
use crate::peers::PeerUpdate;

#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    // Workers.
    WorkerJoined {
        url: &'a str,
    },
    WorkerGone {
        worker: WorkerId,
    },
    /// Which part of requests it does.
    WorkerRole {
        worker: WorkerId,
        role: Role,
    },
    /// How it hands KV cache over to workers of another role, or takes it from them.
    WorkerHandoff {
        worker: WorkerId,
        handoff: Handoff,
    },
    /// Whether it can pull KV cache from others that can, and they from it.
    WorkerPulls {
        worker: WorkerId,
        pulls: bool,
    },
    /// Which store of KV cache it shares with others, if any.
    WorkerStore {
        worker: WorkerId,
        store: Option<StoreId>,
    },
    /// Its engine reuses KV at any position.
    WorkerReusesChunks {
        worker: WorkerId,
        reuse: ChunkReuse,
    },
    WorkerDrained {
        worker: WorkerId,
        draining: bool,
    },
    /// The worker's share of the load relative to others, within `maitre_fleet::fleet::WEIGHTS`; the default is one.
    WorkerWeighed {
        worker: WorkerId,
        weight: f64,
    },
    Probed {
        worker: WorkerId,
        evidence: Evidence,
    },
    ModelsReported {
        worker: WorkerId,
        cards: &'a [Card<'a>],
    },
    LoadReported {
        worker: WorkerId,
        load: EngineLoad,
    },
    /// How many adapters fit, and which are loaded.
    AdaptersReported {
        worker: WorkerId,
        slots: u32,
        loaded: &'a [&'a str],
    },

    /// The worker's engine reports a change of its KV cache. `Cleared` also stands for a restart of the engine.
    CacheChanged {
        worker: WorkerId,
        event: KvEvent<'a>,
    },
    /// KV events of the worker are lost for good: what it reported is no more certain than what was routed there.
    ReportsLost {
        worker: WorkerId,
    },
    /// How far the KV events of the worker can be trusted from now on.
    TrustChanged {
        worker: WorkerId,
        trust: Trust,
    },
    // Requests. Each arrives once and ends once: by `Finished`, `Declined`, `BrokeOff`, `Left`, `GivenUp` or
    // a refusal.
    Arrived(Arrival<'a>),
    /// The attempt at this worker, or at the one that prefills for it, failed before the first byte of a response. If the request is placed elsewhere or
    /// queued, it was recalled from this worker a moment ago.
    Failed {
        request: RequestId,
        worker: WorkerId,
        failure: Failure,
    },
    /// The worker that prefills for another has answered: its KV cache can be fetched, or has been (`PrefillAnswer`).
    Prefilled {
        request: RequestId,
        worker: WorkerId,
        /// Its own token counts, if its answer has them: what the worker that answers counts as cached is also what it fetched.
        counted: Option<Counted>,
    },
    /// The response begins, at this worker. The request may have been recalled from it a moment ago: then the recall came
    /// too late, and the client gets this response.
    FirstToken {
        request: RequestId,
        worker: WorkerId,
    },
    /// The client gets the head of a response that has no token yet, such as one that begins with a comment. From now on
    /// the request cannot be recalled without its client noticing.
    ResponseBegun {
        request: RequestId,
    },
    /// A response begins that later requests may continue: this worker holds its state, under the hash of its id or of its
    /// conversation.
    StateHeld {
        state: u64,
        worker: WorkerId,
    },
    /// So many pieces of the response have come. Sent for the few pieces that `reports_progress` selects.
    Streamed {
        request: RequestId,
        pieces: u32,
    },
    /// The response is complete: its token counts, if it has them, and the number of its pieces.
    Finished {
        request: RequestId,
        counted: Option<Counted>,
        pieces: u32,
    },
    /// The worker answered with an error that was passed on: it is healthy, and has computed nothing.
    Declined {
        request: RequestId,
    },
    /// The worker failed in the middle of its response, of which the client has this many tokens. Another worker can go
    /// on with it.
    Interrupted {
        request: RequestId,
        worker: WorkerId,
        delivered: Tokens,
    },
    /// A gateway that carries the request itself has sent it to this worker instead of the one it was placed at, which
    /// failed there.
    Moved {
        request: RequestId,
        worker: WorkerId,
    },
    /// A second attempt of a placed request, under a number that no request has. It is placed at another worker that has
    /// room now, or nothing happens.
    Second {
        request: RequestId,
        number: RequestId,
        cause: SecondCause,
    },
    /// The other attempt of the request has answered first: this one is cancelled.
    Outpaced {
        request: RequestId,
        by: RequestId,
    },
    /// The other attempt goes on with the response, which this one's worker has handed over.
    HandedOver {
        request: RequestId,
        by: RequestId,
    },
    /// The worker failed in the middle of its response.
    BrokeOff {
        request: RequestId,
    },
    /// The client disconnected.
    Left {
        request: RequestId,
    },
    /// The lane refuses a request that waits: its time is over.
    GivenUp {
        request: RequestId,
    },
    /// Another router published something.
    Peers(PeerUpdate<'a>),
    Tick,
}

/// Whether a `Streamed` event follows this piece of a stream: the 32nd, and then whenever their number has doubled. Fewer
/// pieces say little about a pace; more events would cost time and teach nothing.
pub const fn reports_progress(pieces: u32) -> bool {
    pieces >= 32 && pieces.is_power_of_two()
}

/// Why a request gets a second attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondCause {
    /// Its first token is overdue, and its deadline near.
    Hedge,
    /// Its worker is drained, and the client has this many tokens of the response.
    HandOver { delivered: Tokens },
}

/// How a response comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Token by token: its first piece is the first token.
    Stream,
    /// In one piece, when it is complete.
    Whole,
}

/// A request that arrives.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    pub request: RequestId,
    pub model: Option<&'a str>,
    pub size: Size,
    pub answer_max: Option<u64>,
    pub answers: Answers,
    pub form: Form,
    pub session: Option<u64>,
    /// The program that it is a call of, if its client says so.
    pub program: Option<u64>,
    pub head: Option<u64>,
    pub class: ClassId,
    pub tenant: TenantId,
    /// When the first token is due, if the client set a deadline.
    pub deadline: Option<Instant>,
    /// By its prefixes, where a strategy or a shadow uses caches.
    pub prompt: Option<&'a PromptChain>,
    /// Whether its KV cache may come from another worker, which prefills it or holds it.
    pub may_split: bool,
    /// The state that it continues, by the hash of its id: only the worker that holds it can answer.
    pub state: Option<u64>,
    /// The workers that may take it; none: all.
    pub only: Option<&'a [WorkerId]>,
}

maitre_base::words! {
    /// How an attempt failed before the first byte.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Failure {
        /// Connection refused: the request was not sent.
        Refused = "refused",
        /// The connection was not made in time: the request was not sent.
        Unreachable = "unreachable",
        /// The TLS handshake failed: the request was not sent.
        Handshake = "handshake",
        /// The connection broke after the request was sent.
        Broke = "broke",
        /// The worker was ejected before the first byte of the response; it was silent already when the request was sent. Or it gave
        /// the answer up, because it shuts down.
        Abandoned = "abandoned",
        /// The same, but the worker fell silent only once it had this request and no other, which may be what blocks it.
        Silenced = "silenced",
        /// The worker answered with a server error.
        Failed = "failed",
        /// The worker answered that it is full. Not a fault.
        Busy = "busy",
        /// No response in time.
        TimedOut = "timed-out",
        /// The router has no socket left. Not the worker's fault.
        NoSocket = "no-socket",
        /// The request's own deadline passed before its first token. Not the worker's fault.
        Late = "late",
        /// The worker could not fetch the KV cache that another has prefilled or holds.
        Handoff = "handoff",
    }
}

impl Failure {
    /// What it says about the worker's health.
    pub(crate) const fn evidence(self) -> Option<Evidence> {
        match self {
            Failure::Refused | Failure::Handshake => Some(Evidence::Refused),
            Failure::Unreachable => Some(Evidence::Silent),
            Failure::Broke => Some(Evidence::Broke),
            Failure::Failed | Failure::TimedOut => Some(Evidence::Failed),
            Failure::Busy
            | Failure::Abandoned
            | Failure::Silenced
            | Failure::NoSocket
            | Failure::Late
            | Failure::Handoff => None,
        }
    }

    /// Whether the worker may have begun to work on the request.
    pub(crate) const fn was_sent(self) -> bool {
        !matches!(self, Failure::Refused | Failure::Unreachable | Failure::Handshake | Failure::NoSocket)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// Begin to watch this worker: probe it, ask for its models, scrape it.
    Watch {
        worker: WorkerId,
    },
    /// Stop watching this worker.
    Forget {
        worker: WorkerId,
    },
    /// Probe this worker now, without waiting for the next interval.
    Probe {
        worker: WorkerId,
    },
    /// A worker's health changed: log it.
    Changed(HealthChange),
    /// Send the request to this worker: the request of this event, or any that was queued.
    Place(Placement),
    /// The request is queued; a `Place` or a `Refuse` follows later.
    Wait {
        request: RequestId,
    },
    /// Cancel the attempt at this worker without answering the client: the request is queued again.
    Recall {
        request: RequestId,
        worker: WorkerId,
    },
    Refuse {
        request: RequestId,
        refusal: Refusal,
    },
}

/// Where a request goes, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    pub request: RequestId,
    pub worker: WorkerId,
    /// The worker that prefills the prompt, if another does.
    pub prefill: Option<WorkerId>,
    /// From where it pulls KV cache, if it does.
    pub pull: Option<PullFrom>,
    pub form: Form,
    pub why: Why,
    /// How many tokens of the prompt are believed to be cached there; none if that was not looked up.
    pub held: Option<Tokens>,
    /// Attempts before this one.
    pub attempt: u32,
    /// Time in the queue, over all attempts.
    pub waited: Duration,
    /// When the first token is due, or the attempt is `Late`; none for responses in one piece.
    pub deadline: Option<Instant>,
    /// When to ask for a second attempt, if no byte of the response has come; none for never.
    pub hedge_at: Option<Instant>,
}

/// A worker to pull KV cache from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullFrom {
    pub worker: WorkerId,
    pub tokens: Tokens,
    /// How long the first token of a stream may take; after that the attempt has failed with `Handoff`.
    pub limit: Option<Duration>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No worker lists this model.
    UnknownModel,
    /// The request names no model, and the workers serve different ones.
    ModelRequired,
    /// No healthy worker can take it now.
    NoWorker,
    /// The worker that holds the state which it continues is gone.
    StateLost,
    /// The queue of this class is full.
    QueueFull { retry_after: Duration },
    /// Its tenant has reached this limit.
    RateLimited { retry_after: Duration, limit: RateLimit },
    /// Its first token would come, or came, after its deadline.
    Deadline { retry_after: Duration },
    /// Every attempt that is allowed failed.
    Failed { last: Failure, limit: RetryLimit },
}

maitre_base::words! {
    /// Why a request that failed is not tried again.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RetryLimit {
        /// No healthy worker is left that has not failed it.
        Workers = "workers",
        /// It has had all its attempts.
        Attempts = "attempts",
        /// As many workers have failed of it as may.
        Failovers = "failovers",
        /// It may have blocked its worker, or no other worker can do better.
        Failure = "failure",
        /// The retry budget of all requests is spent.
        Budget = "budget",
        /// Its response broke off too often at workers that got no further.
        Standstills = "standstills",
        /// Its response broke off too often.
        Breaks = "breaks",
        /// The responses of the fleet have moved too often.
        Moves = "moves",
    }
}

impl Refusal {
    /// The refusal of a request that has no worker left, by how its last attempt failed.
    pub(crate) fn without_worker(failure: Option<Failure>) -> Refusal {
        failure.map_or(Refusal::NoWorker, |last| Refusal::Failed { last, limit: RetryLimit::Workers })
    }
}
