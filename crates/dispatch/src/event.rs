//! All that can happen to us, and all we can want done about it. Both lists are closed.

use std::time::Duration;

use maitre_base::{ClassId, EngineLoad, Instant, KvEvent, RequestId, TenantId, Tokens, WorkerId};
use maitre_fleet::estimate::{Counted, Decodes, Size};
use maitre_fleet::{Card, Change, Evidence};
use maitre_index::feed::Trust;
use maitre_policy::Why;

use crate::cache::Prompt;
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
    WorkerDrained {
        worker: WorkerId,
        draining: bool,
    },
    /// How much it should take beside others, within `maitre_fleet::fleet::WEIGHTS`; one is what everybody has.
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

    /// The worker's engine reports a change of its KV cache. `Cleared` also stands for a restart of the engine, and
    /// for a gap in its events that could not be filled.
    CacheChanged {
        worker: WorkerId,
        event: KvEvent<'a>,
    },
    /// How far the KV events of the worker can be trusted from now on.
    TrustChanged {
        worker: WorkerId,
        trust: Trust,
    },
    // Requests. Each arrives once and ends once: `Finished`, `Declined`, `BrokeOff` or `Left`, or refused by
    // us.
    Arrived(Arrival<'a>),
    /// The attempt at this worker failed before the first byte of an answer. If it is not the one the request is seated
    /// at, it had been called back from there a moment ago.
    Failed {
        request: RequestId,
        worker: WorkerId,
        failure: Failure,
    },
    /// The answer begins, at this worker. It may be one that the request has been called back from a moment ago: too
    /// late, the client has its answer.
    FirstToken {
        request: RequestId,
        worker: WorkerId,
    },
    /// It goes on: so many pieces have come. Told at a few of them, far apart.
    Streamed {
        request: RequestId,
        pieces: u32,
    },
    /// The answer is complete; what it counted, if it said so, and in how many pieces it came.
    Finished {
        request: RequestId,
        counted: Option<Counted>,
        pieces: u32,
    },
    /// The worker said no, and its answer was passed on: it is well, and has computed nothing.
    Declined {
        request: RequestId,
    },
    /// The worker failed in the middle of its answer.
    BrokeOff {
        request: RequestId,
    },
    /// The client is gone.
    Left {
        request: RequestId,
    },
    /// Another router told us something.
    Peers(PeerUpdate<'a>),
    Tick,
}

/// Whether this piece of a stream is one that `Streamed` is told of: the 32nd, and whenever their number has
/// doubled. Fewer tell little of a pace; more would cost and tell nothing.
pub const fn reports_progress(pieces: u32) -> bool {
    pieces >= 32 && pieces.is_power_of_two()
}

/// How an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Token by token: its first piece is the first token.
    Stream,
    /// In one piece, when it is complete.
    Whole,
}

/// A request at the door.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    pub request: RequestId,
    pub model: Option<&'a str>,
    pub size: Size,
    pub answer_max: Option<u64>,
    pub decodes: Decodes,
    pub form: Form,
    pub session: Option<u64>,
    pub head: Option<u64>,
    pub class: ClassId,
    pub tenant: TenantId,
    /// When the first token must be out, if the request says so.
    pub deadline: Option<Instant>,
    /// By its prefixes, where the strategy goes by caches.
    pub prompt: Option<&'a Prompt>,
}

/// How an attempt failed before the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nobody listens there: the request never left.
    Refused,
    /// The connection was not made in time: the request never left.
    Unreachable,
    /// Worker and router do not believe each other who they are (TLS): the request never left.
    Handshake,
    /// The connection broke after the request was sent.
    Broke,
    /// The worker was ejected while the request waited there for its first byte.
    Abandoned,
    /// The worker answered with a failure of its own.
    Failed,
    /// The worker answered that it is full. No fault of its.
    Busy,
    /// No answer in time.
    TimedOut,
    /// We have no socket left to reach it with. No fault of its.
    NoSocket,
    /// The request's own deadline passed before its first token. No fault of its.
    Late,
}

impl Failure {
    pub const ALL: [Failure; 10] = [
        Failure::Refused,
        Failure::Unreachable,
        Failure::Handshake,
        Failure::Broke,
        Failure::Abandoned,
        Failure::Failed,
        Failure::Busy,
        Failure::TimedOut,
        Failure::NoSocket,
        Failure::Late,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Failure::Refused => "refused",
            Failure::Unreachable => "unreachable",
            Failure::Handshake => "handshake",
            Failure::Broke => "broke",
            Failure::Abandoned => "abandoned",
            Failure::Failed => "failed",
            Failure::Busy => "busy",
            Failure::TimedOut => "timed-out",
            Failure::NoSocket => "no-socket",
            Failure::Late => "late",
        }
    }

    /// What it tells about the worker's health.
    pub(crate) const fn evidence(self) -> Option<Evidence> {
        match self {
            Failure::Refused | Failure::Handshake => Some(Evidence::Refused),
            Failure::Unreachable => Some(Evidence::Silent),
            Failure::Broke => Some(Evidence::Broke),
            Failure::Failed | Failure::TimedOut => Some(Evidence::Failed),
            Failure::Busy | Failure::Abandoned | Failure::NoSocket | Failure::Late => None,
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
    /// Nothing more is wanted of this worker.
    Forget {
        worker: WorkerId,
    },
    /// Probe this worker now, not at its next turn.
    Probe {
        worker: WorkerId,
    },
    /// Tell the operator.
    Changed(Change),
    /// The request goes there. Not only the one that the event was about: any that waited.
    Place(Placement),
    /// It waits in line; a later `Placement` or `Refuse` tells what became of it.
    Wait {
        request: RequestId,
    },
    /// It is no longer wanted at the worker it was seated at: the attempt there is to be broken off, and the client told
    /// nothing. It is in line again.
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
    pub why: Why,
    /// How much of the prompt we believe is cached there; none where nobody looked.
    pub held: Option<Tokens>,
    /// Attempts before this one.
    pub attempt: u32,
    /// How long it stood in line, over all attempts.
    pub waited: Duration,
    /// When its first token must be out, or the attempt is `Late`; none where nobody would see it come.
    pub deadline: Option<Instant>,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No worker lists this model.
    UnknownModel,
    /// The workers serve different models and the request names none.
    ModelRequired,
    /// Nobody is fit to take it now.
    NoWorker,
    /// As many as are allowed wait already.
    QueueFull { retry_after: Duration },
    /// Its tenant has had what it may have for now.
    RateLimited { retry_after: Duration },
    /// Its first token would come, or came, too late.
    Deadline { retry_after: Duration },
    /// Every attempt we allow ourselves failed.
    Failed { last: Failure },
}

impl Refusal {
    /// The refusal of a request that has no worker left, by how its last attempt failed.
    pub(crate) fn without_worker(failure: Option<Failure>) -> Refusal {
        failure.map_or(Refusal::NoWorker, |last| Refusal::Failed { last })
    }
}
