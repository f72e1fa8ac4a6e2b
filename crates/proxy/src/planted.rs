//! Faults planted on purpose: the simulation must find each of them, or it would find nothing else either.
//!
//! Only in test builds. Each fault is one that a careless change could make.

use std::cell::Cell;

use maitre_dispatch::Event;
use maitre_net::simulated;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// A connection to a worker is reused although it has unread bytes.
    ReusedConnection,
    /// The brain does not learn that a client has disconnected, and keeps its promise to the worker for ever.
    LostRelease,
    /// The promise to the worker ends with the first token.
    EarlyRelease,
    /// A request in the queue is placed, and not woken.
    LostDecision,
    /// A recalled request is not woken.
    LostRecall,
    /// A peer that falls silent is never declared lost.
    SilentPeerKept,
    /// A router does not ask its peers for frames that it missed.
    NoRepair,
}

/// The kind of a frame that asks for what is missing.
const REPAIR: u8 = 7;

thread_local! {
    static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Plants a fault in this thread, in place of the last one.
pub(crate) fn plant(fault: Option<Planted>) {
    PLANTED.set(fault);
    simulated::ignore_unread(fault == Some(Planted::ReusedConnection));
}

fn is(fault: Planted) -> bool {
    PLANTED.get() == Some(fault)
}

/// The event as the brain gets it; None if it does not.
pub(crate) fn bend(event: Event<'_>) -> Option<Event<'_>> {
    match event {
        Event::Left { .. } if is(Planted::LostRelease) => None,
        Event::FirstToken { request, .. } if is(Planted::EarlyRelease) => Some(Event::Left { request }),
        _ => Some(event),
    }
}

/// The requests to wake, each with its decision.
pub(crate) fn keep_woken<T>(decided: Vec<T>) -> Vec<T> {
    if !is(Planted::LostDecision) {
        return decided;
    }
    // Forgotten, not dropped: dropping a sender wakes its receiver.
    decided.into_iter().for_each(std::mem::forget);
    Vec::new()
}

/// Whether peers that fell silent are declared lost.
pub(crate) fn loses_peers() -> bool {
    !is(Planted::SilentPeerKept)
}

/// Whether a frame is sent to peers.
pub(crate) fn sends(frame: &[u8]) -> bool {
    // The fourth byte is the kind, below a flag.
    !(is(Planted::NoRepair) && frame.get(3).is_some_and(|it| it & 0x7f == REPAIR))
}

/// Whether recalled requests are woken.
pub(crate) fn recalls() -> bool {
    !is(Planted::LostRecall)
}
