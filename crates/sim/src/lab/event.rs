//! The events of a run. The simulation's queue keeps their times.

use maitre_base::Instant;

use crate::engine::transfer::HoldId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SimEvent {
    Arrival(usize),
    /// A request reaches its worker.
    Submission {
        request: u64,
        attempt: u32,
    },
    /// The deadline for its first token.
    Deadline {
        request: u64,
        attempt: u32,
    },
    /// How long a request that pulls may take to its first token.
    PullLimit {
        request: u64,
        attempt: u32,
    },
    /// The first token of a request is overdue, so it gets a second attempt.
    Hedge {
        request: u64,
        attempt: u32,
    },
    /// A client retries after `Retry-After`.
    Retry {
        request: u64,
    },
    /// A router asked to be woken.
    WakeUp {
        router: usize,
    },
    StepEnds {
        worker: usize,
        incarnation: u32,
    },
    /// The KV that a worker fetched from another has arrived.
    FetchEnds {
        worker: usize,
        incarnation: u32,
        fetch: u64,
    },
    /// The KV that a worker pulled from another, or loaded from the store, has arrived.
    PullEnds {
        worker: usize,
        incarnation: u32,
        pull: u64,
    },
    /// The lease of the blocks that a worker holds for another.
    LeaseEnds {
        worker: usize,
        incarnation: u32,
        hold: HoldId,
        request: u64,
    },
    /// Cache changes, or a scrape, reach the router.
    Events {
        worker: usize,
        incarnation: u32,
    },
    Load {
        worker: usize,
        incarnation: u32,
    },
    Scrape,
    Tick,
    Sample,
    Action(usize),
    /// The autoscaler evaluates its rule.
    Scale,
    /// A worker that the autoscaler ordered is ready.
    Started {
        ordered: Instant,
    },
    /// A router publishes its changes to its peers.
    Flush {
        router: usize,
    },
    Heartbeat {
        router: usize,
    },
    /// A peer's frame reaches a router.
    FrameArrival {
        router: usize,
        frame: u64,
    },
}
