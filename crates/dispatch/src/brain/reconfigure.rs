//! New settings for a running brain: what is believed, promised and queued stays.
//!
//! Most settings are read when they are used, and only what was built from them is built again. A few are part of what
//! cannot be rebuilt without losing it (the index, the queue's classes, the dice). A change of those is refused as a
//! whole, and names all of them, so that a file is in force either entirely or not at all.

use maitre_base::{Instant, RequestId};

use super::{Brain, Parts};
use crate::event::{Effect, Refusal};
use crate::placer::in_use::InUse;
use crate::request::RequestState;
use crate::settings::BrainSettings;

/// What cannot change while the router runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixed {
    /// `seed`.
    Seed,
    /// `index.budget`, and the seed of its tables.
    Index,
    /// Which classes there are, and their order. What a class allows may change.
    Classes,
}

impl Fixed {
    /// Its key in the configuration.
    pub const fn key(self) -> &'static str {
        match self {
            Fixed::Seed => "seed",
            Fixed::Index => "index.budget",
            Fixed::Classes => "classes",
        }
    }
}

/// Nothing was changed, since these settings cannot change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "change settings: {} cannot change while the router runs; restart it, or keep the old value (of classes: their \
     names and order)",
    .fixed.iter().map(|it| it.key()).collect::<Vec<_>>().join(", ")
)]
pub struct NeedsRestart {
    pub fixed: Vec<Fixed>,
}

impl Brain {
    /// Applies new settings. Strategies that stay the same keep their turns and pins, queued requests keep their places,
    /// and requests at workers are not touched. If the queue is switched off, all queued requests go now.
    pub fn reconfigure(
        &mut self,
        now: Instant,
        settings: BrainSettings,
        effects: &mut Vec<Effect>,
    ) -> Result<(), NeedsRestart> {
        let parts = &mut self.parts;
        let fixed = parts.settings.fixed_against(&settings);
        if !fixed.is_empty() {
            return Err(NeedsRestart { fixed });
        }
        parts.fleet.retune(settings.health);
        parts.fleet.expect(settings.expected_models.iter().map(String::as_str));
        parts.scheduler.retune(settings.budget, &settings.queue);
        parts.programs.retune(settings.programs);
        let was_enabled = std::mem::replace(&mut parts.settings, settings).queue.enabled;
        let BrainSettings { strategy, strategies, knobs, .. } = &parts.settings;
        let fleet = &parts.fleet;
        let of_model = |model| fleet.name(model).and_then(|name| strategies.get(&**name)).copied();
        parts.placer.strategies.retune(*strategy, |it| of_model(it).unwrap_or(*strategy), *knobs);
        parts.observer.share(parts.settings.shares, &parts.fleet);
        parts.observer.retune(parts.settings.watch());
        self.count_in_use();
        self.remember_sent();
        if was_enabled && !self.parts.settings.queue.enabled {
            self.empty_queues(now, effects);
        }
        Ok(())
    }

    /// Blocks in use are counted only while a strategy asks for them. When one begins to, all placed requests count, and
    /// those in the queue that wait for one worker.
    fn count_in_use(&mut self) {
        let Brain { pending, parts, .. } = self;
        match (parts.settings.needs().in_use, &parts.placer.in_use) {
            (false, _) => parts.placer.in_use = None,
            (true, Some(_)) => {}
            (true, None) => {
                let mut in_use = InUse::default();
                for request in pending.values() {
                    let placed = request.attempt().filter(|it| it.is_counted).map(|it| it.worker);
                    let reserved = request.reservation().filter(|it| it.is_counted).map(|it| it.worker);
                    if let (Some(prompt), Some(worker)) = (&request.prompt, placed.or(reserved)) {
                        in_use.begin(worker, prompt);
                    }
                }
                parts.placer.in_use = Some(in_use);
            }
        }
    }

    /// What was sent is remembered only while a strategy asks for it, from then on.
    fn remember_sent(&mut self) {
        let Parts { settings, placer, .. } = &mut self.parts;
        placer.sent = settings.needs().sent.then(|| placer.sent.take().unwrap_or_default());
    }

    /// The queue is off: all queued requests go, in the order of their arrival.
    fn empty_queues(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let queued = self.pending.values().filter(|it| it.is_waiting());
        let mut queued: Vec<(Instant, RequestId)> = queued.map(|it| (it.arrived, it.id)).collect();
        queued.sort_unstable();
        for (_, id) in queued {
            let Some(request) = self.pending.get_mut(&id.0) else { continue };
            let waited = request.waited_by(now);
            self.parts.leave_queue(request);
            debug_assert!(matches!(request.state, RequestState::Unplaced), "it was only queued");
            request.waited = waited;
            let refusal = Refusal::without_worker(request.failure);
            self.admit(now, id, refusal, effects);
        }
    }
}

impl BrainSettings {
    /// What of these settings cannot become the others without a restart.
    fn fixed_against(&self, other: &BrainSettings) -> Vec<Fixed> {
        let names =
            |it: &BrainSettings| it.queue.classes.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        let mut fixed = Vec::new();
        fixed.extend((self.seed != other.seed).then_some(Fixed::Seed));
        fixed.extend((self.index != other.index).then_some(Fixed::Index));
        fixed.extend((names(self) != names(other)).then_some(Fixed::Classes));
        fixed
    }
}
