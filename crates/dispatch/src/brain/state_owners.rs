//! Which worker holds the state of an earlier response. A request that continues one (`previous_response_id`,
//! `conversation`) must go there: no other worker knows it.
//!
//! Routers share it as pins of a model that no request can name. What is not known here any more is not known to be lost:
//! such a request goes by price, and its engine says whether it knows the response.

use maitre_base::WorkerId;
use maitre_base::hash;

use super::Parts;
use crate::event::{Arrival, Refusal};
use crate::observer::Fact;

/// Responses and conversations whose worker is remembered. Chosen: a million tokens' worth of turns on a large fleet, in
/// three megabytes.
pub(super) const OWNERS_MAX: usize = 65_536;

/// The model in whose name routers share owners. Names of models are text without control characters.
pub(super) fn state_model() -> u64 {
    hash::bytes(0, b"\0the state of responses")
}

impl Parts {
    /// This worker holds the state from now on.
    pub(super) fn state_held(&mut self, state: u64, worker: WorkerId) {
        let Some(key) = self.fleet.worker(worker).map(|it| it.key) else { return };
        self.owners.put(state, key);
        if self.settings.shares {
            self.observer.on(Fact::SessionPinned { model: state_model(), session: state, worker: key });
        }
    }

    /// Another router knows the worker that holds the state. Returns false for pins of another kind.
    pub(super) fn state_held_elsewhere(&mut self, model: u64, state: u64, key: u64) -> bool {
        let is_state = model == state_model();
        if is_state {
            self.owners.put(state, key);
        }
        is_state
    }

    /// The workers that may take a request, with regard to the state that it continues.
    pub(super) fn allowed(&self, arrival: &Arrival<'_>) -> Result<Option<Box<[WorkerId]>>, Refusal> {
        let owner = arrival.state.and_then(|it| self.owners.peek(it));
        let Some(owner) = owner else { return Ok(arrival.only.map(Box::from)) };
        let worker = self.fleet.by_key(owner).map(|it| it.id);
        let is_allowed = |it: &WorkerId| arrival.only.is_none_or(|only| only.contains(it));
        match worker.filter(is_allowed) {
            Some(worker) => Ok(Some(Box::new([worker]))),
            None => Err(Refusal::StateLost),
        }
    }
}
