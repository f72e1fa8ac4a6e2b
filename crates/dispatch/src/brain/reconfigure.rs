//! Other settings for a brain at work: what is believed, promised and waited for stays.
//!
//! Most settings are read when they are wanted, and only what was made from them is made again. A few are built into
//! what cannot be rebuilt without losing it (the index, the line's classes, the dice); a change of those is refused
//! whole, with all of them named, so that a file is in force either entirely or not at all.

use maitre_base::{Instant, RequestId};

use super::Brain;
use crate::event::{Effect, Refusal};
use crate::placer::in_use::InUse;
use crate::settings::Settings;

/// What cannot change while we run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixed {
    /// `seed`.
    Seed,
    /// `index.budget`, and the seed of its tables.
    Index,
    /// Which classes there are, and in which order. What a class allows may change.
    Classes,
}

impl Fixed {
    /// The key an operator knows it by.
    pub const fn key(self) -> &'static str {
        match self {
            Fixed::Seed => "seed",
            Fixed::Index => "index.budget",
            Fixed::Classes => "classes",
        }
    }
}

/// Nothing was changed, since these cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "change settings: {} cannot change while we run; start again, or leave it as it was (of classes, which there are \
     and their order)",
    .fixed.iter().map(|it| it.key()).collect::<Vec<_>>().join(", ")
)]
pub struct NeedsRestart {
    pub fixed: Vec<Fixed>,
}

impl Brain {
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Goes by other settings from now on. Strategies that stay the same keep their turns and pins, those in line their
    /// places, and nothing that is under way is touched. If the line is switched off, those who wait go now.
    pub fn reconfigure(
        &mut self,
        now: Instant,
        settings: Settings,
        effects: &mut Vec<Effect>,
    ) -> Result<(), NeedsRestart> {
        let fixed = self.settings.fixed_against(&settings);
        if !fixed.is_empty() {
            return Err(NeedsRestart { fixed });
        }
        self.fleet.retune(settings.health);
        self.budget.retune(settings.budget);
        for pool in self.pools.values_mut() {
            pool.line.retune(&settings.queue.classes, settings.queue.aging);
        }
        let was_enabled = std::mem::replace(&mut self.settings, settings).queue.enabled;
        self.retune_strategies();
        self.count_use();
        self.share();
        self.ring.resize(self.settings.explain.decisions);
        if !self.ring.is_on() {
            self.prefixes.clear();
        }
        let Settings { shadows, knobs, shadow_sample, .. } = &self.settings;
        self.shadows.retune(shadows, *knobs, *shadow_sample);
        if was_enabled && !self.settings.queue.enabled {
            self.dissolve_lines(now, effects);
        }
        Ok(())
    }

    fn retune_strategies(&mut self) {
        let Settings { strategy, strategies, knobs, .. } = &self.settings;
        self.unlisted.retune(*strategy, *knobs);
        for (&model, it) in &mut self.strategies {
            let model = maitre_fleet::ModelId(model as u32);
            let own = self.fleet.name(model).and_then(|name| strategies.get(&**name));
            it.retune(own.copied().unwrap_or(*strategy), *knobs);
        }
    }

    /// Who reads which block is counted only while a strategy asks for it: all who are seated now, if it begins.
    fn count_use(&mut self) {
        match (self.settings.needs().in_use, &self.in_use) {
            (false, _) => self.in_use = None,
            (true, Some(_)) => {}
            (true, None) => {
                let mut in_use = InUse::default();
                for open in self.open.values() {
                    if let (Some(prompt), Some(place)) =
                        (&open.prompt, open.placement.filter(|it| it.is_noted))
                    {
                        in_use.begin(place.worker, prompt);
                    }
                }
                self.in_use = Some(in_use);
            }
        }
    }

    /// Nobody waits any more: all go, the first to come first.
    fn dissolve_lines(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let stands = self.open.iter().filter(|it| it.1.line.since.is_some());
        let mut all: Vec<(Instant, RequestId)> =
            stands.map(|(&request, open)| (open.arrived, RequestId(request))).collect();
        all.sort_unstable();
        for (_, request) in all {
            let Some(open) = self.open.get_mut(&request.0) else { continue };
            let (since, failure) = (open.line.since, open.failure);
            self.leave_line(request);
            if let Some(open) = self.open.get_mut(&request.0) {
                // As `go` finds it, so that its time in line is told.
                open.line.since = since;
            }
            let otherwise = failure.map_or(Refusal::NoWorker, |last| Refusal::Failed { last });
            self.admit(now, request, otherwise, effects);
        }
    }
}

impl Settings {
    /// What of these cannot become those without a restart.
    fn fixed_against(&self, other: &Settings) -> Vec<Fixed> {
        let names = |it: &Settings| it.queue.classes.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        let mut fixed = Vec::new();
        fixed.extend((self.seed != other.seed).then_some(Fixed::Seed));
        fixed.extend((self.index != other.index).then_some(Fixed::Index));
        fixed.extend((names(self) != names(other)).then_some(Fixed::Classes));
        fixed
    }
}
