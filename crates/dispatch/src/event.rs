//! All that can happen to us, and all we can want done about it. Both lists are closed.

use maitre_base::{RequestId, WorkerId};
use maitre_fleet::estimate::{Counted, Decodes, Size};
use maitre_fleet::{Change, Evidence, Load};
use maitre_policy::Why;

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
    Probed {
        worker: WorkerId,
        evidence: Evidence,
    },
    ModelsReported {
        worker: WorkerId,
        names: &'a [&'a str],
    },
    LoadReported {
        worker: WorkerId,
        load: Load,
    },
    // Requests. Each arrives once and ends once: `Finished`, `BrokeOff` or `Left`, or refused by us.
    Arrived(Arrival<'a>),
    /// The attempt at the worker it was seated at failed before the first byte of an answer.
    Failed {
        request: RequestId,
        failure: Failure,
    },
    FirstToken {
        request: RequestId,
    },
    /// The answer is complete; what it counted, if it said so.
    Finished {
        request: RequestId,
        counted: Option<Counted>,
    },
    /// The worker failed in the middle of its answer.
    BrokeOff {
        request: RequestId,
    },
    /// The client is gone.
    Left {
        request: RequestId,
    },
    Tick,
}

/// A request at the door.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    pub request: RequestId,
    pub model: Option<&'a str>,
    pub size: Size,
    pub answer_max: Option<u64>,
    pub decodes: Decodes,
    pub session: Option<u64>,
    pub head: Option<u64>,
}

/// How an attempt failed before the first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nobody listens there: the request never left.
    Refused,
    /// The connection was not made in time: the request never left.
    Unreachable,
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
}

impl Failure {
    pub const ALL: [Failure; 8] = [
        Failure::Refused,
        Failure::Unreachable,
        Failure::Broke,
        Failure::Abandoned,
        Failure::Failed,
        Failure::Busy,
        Failure::TimedOut,
        Failure::NoSocket,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Failure::Refused => "refused",
            Failure::Unreachable => "unreachable",
            Failure::Broke => "broke",
            Failure::Abandoned => "abandoned",
            Failure::Failed => "failed",
            Failure::Busy => "busy",
            Failure::TimedOut => "timed-out",
            Failure::NoSocket => "no-socket",
        }
    }

    /// What it tells about the worker's health.
    pub(crate) const fn evidence(self) -> Option<Evidence> {
        match self {
            Failure::Refused => Some(Evidence::Refused),
            Failure::Unreachable => Some(Evidence::Silent),
            Failure::Broke => Some(Evidence::Broke),
            Failure::Failed | Failure::TimedOut => Some(Evidence::Failed),
            Failure::Busy | Failure::Abandoned | Failure::NoSocket => None,
        }
    }

    /// Whether the worker may have begun to work on the request.
    pub(crate) const fn was_sent(self) -> bool {
        !matches!(self, Failure::Refused | Failure::Unreachable | Failure::NoSocket)
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
    Seat(Seat),
    Refuse {
        request: RequestId,
        refusal: Refusal,
    },
}

/// Where a request goes, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    pub request: RequestId,
    pub worker: WorkerId,
    pub why: Why,
    /// Attempts before this one.
    pub attempt: u32,
}

/// Why a request is not seated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No worker lists this model.
    UnknownModel,
    /// The workers serve different models and the request names none.
    ModelRequired,
    /// Nobody is fit to take it now.
    NoWorker,
    /// Every attempt we allow ourselves failed.
    Failed { last: Failure },
}
