//! Session pins from other routers, for models or workers that this router does not know yet.

use maitre_base::hash::{self, NumberMap};
use maitre_fleet::Fleet;
use maitre_policy::pin::Pin;

use super::Placer;

/// Pins that are kept until their model and worker are known: a router that has just started receives pins before its
/// workers have listed their models. Chosen; beyond it a session goes to its home by hash, where most sessions are anyway.
const EARLY_PINS_MAX: usize = 4_096;

/// Where a session is pinned, in the terms that routers share: hashes of model names and keys of workers. Model zero is
/// that of requests which name none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedPin {
    pub(crate) model: u64,
    pub(crate) session: u64,
    pub(crate) worker: u64,
}

/// Of each session, the last pin that came too early.
#[derive(Clone, Debug, Default)]
pub(crate) struct EarlyPins(NumberMap<SharedPin>);

impl EarlyPins {
    fn key(model: u64, session: u64) -> u64 {
        hash::pair(model, session)
    }

    fn keep(&mut self, pin: SharedPin) {
        let key = EarlyPins::key(pin.model, pin.session);
        if self.0.len() < EARLY_PINS_MAX || self.0.contains_key(&key) {
            self.0.insert(key, pin);
        }
    }

    /// The session is pinned by now, so that an earlier pin no longer counts.
    pub(crate) fn forget(&mut self, model: u64, session: u64) {
        if !self.0.is_empty() {
            self.0.remove(&EarlyPins::key(model, session));
        }
    }
}

#[cfg(test)]
impl EarlyPins {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Placer {
    /// Applies a pin that another router set.
    pub(crate) fn pin(&mut self, fleet: &Fleet, pin: SharedPin) {
        let SharedPin { model, session, worker: key } = pin;
        let strategy = match model {
            0 => Some(self.strategies.of_mut(None)),
            _ => fleet.model_by_hash(model).and_then(|it| self.strategies.get_mut(it)),
        };
        let worker = fleet.by_key(key).map(|it| it.id);
        match (strategy, worker) {
            (Some(strategy), Some(worker)) => {
                strategy.pin(session, Pin::new(worker, key));
                self.early_pins.forget(model, session);
            }
            _ => self.early_pins.keep(pin),
        }
    }

    /// A worker or a model is new: applies the pins that waited for it.
    pub(crate) fn apply_early_pins(&mut self, fleet: &Fleet) {
        for pin in std::mem::take(&mut self.early_pins).0.into_values() {
            self.pin(fleet, pin);
        }
    }
}
