//! The order of a search: first the smallest fleet with the given settings; then the dials at that size; then
//! whether their gain also holds on other traffic; then whether fewer workers are enough with them; at last, if asked,
//! which workers should prefill for others (`roles`).
//!
//! All strategies take each step together, so that every core has something to play.

mod roles;

use std::collections::BTreeMap;

use maitre_policy::Name;
use maitre_sim::report::ReportRow;

use super::climb::Climb;
use super::count::{self, Found, Span, Step};
use super::dials::{self, Setting};
use super::mix::RoleMix;
use super::player::{Player, Trial};
use super::target::Goal;
use super::traffic::{Split, WHOLE};
pub(super) use roles::MixFound;

/// One strategy, and what was found for it.
#[derive(Debug)]
pub(super) struct Quest {
    pub(super) name: Name,
    /// The initial values of its dials.
    pub(super) start: Vec<Setting>,
    /// The result with the initial values.
    pub(super) plain: Found,
    pub(super) turned: Option<Turned>,
    /// The best mix of roles, if one was asked for.
    pub(super) mixed: Option<MixFound>,
}

/// Dial values that were found to be better.
#[derive(Debug)]
pub(super) struct Turned {
    pub(super) settings: Vec<Setting>,
    /// The number of workers during the search.
    pub(super) workers: u32,
    pub(super) proofs: Vec<Proof>,
    /// The fleet with these settings; only if the gain holds.
    pub(super) found: Option<Found>,
}

/// The objective on traffic that the search had not seen.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    pub(super) traffic: usize,
    pub(super) before: f64,
    pub(super) after: f64,
    pub(super) holds: bool,
}

impl Turned {
    /// Without any proof the gain does not hold.
    pub(super) fn holds(&self) -> bool {
        !self.proofs.is_empty() && self.proofs.iter().all(|it| it.holds)
    }
}

impl Quest {
    /// The recommended settings and fleet.
    pub(super) fn answer(&self) -> (&[Setting], Found) {
        let (settings, found) = self.without_roles();
        (settings, self.mixed().and_then(|it| it.found).unwrap_or(found))
    }

    /// The recommended mix of roles; none if workers should have no roles.
    pub(super) fn mixed(&self) -> Option<&MixFound> {
        self.mixed.as_ref().filter(|it| it.found.is_some_and(|it| it.workers.is_some()))
    }

    /// The recommended roles in a fleet of this size.
    pub(super) fn mix(&self, workers: u32) -> RoleMix {
        self.mixed().map_or(RoleMix::NONE, |it| it.mix.scaled(it.workers, workers))
    }

    fn without_roles(&self) -> (&[Setting], Found) {
        let turned = self.turned.as_ref().and_then(|it| Some((it.settings.as_slice(), it.found?)));
        turned.filter(|it| it.1.workers.is_some()).unwrap_or((&self.start, self.plain))
    }

    /// The run of the recommendation, with this many workers.
    pub(super) fn trial(&self, workers: u32) -> Trial {
        self.trial_on(WHOLE, workers)
    }

    pub(super) fn trial_on(&self, traffic: usize, workers: u32) -> Trial {
        let (settings, mix) = (self.answer().0.to_vec(), self.mix(workers));
        Trial { name: self.name, workers, mix, settings, traffic }
    }
}

/// One search for a fleet size.
struct Seek {
    name: Name,
    settings: Vec<Setting>,
    /// Roles, in a fleet of so many workers.
    mix: Option<(RoleMix, u32)>,
    span: Span,
    start: u32,
}

impl Seek {
    fn trial(&self, workers: u32) -> Trial {
        let mix = self.mix.map_or(RoleMix::NONE, |(mix, from)| mix.scaled(from, workers));
        Trial { name: self.name, workers, mix, settings: self.settings.clone(), traffic: WHOLE }
    }
}

pub(super) struct Search<'a, 'b> {
    pub(super) player: &'a mut Player<'b>,
    pub(super) goal: &'a Goal,
    pub(super) span: Span,
    /// Maximum runs for the dials of each strategy.
    pub(super) runs: usize,
    pub(super) split: &'a Split,
    /// Whether to find roles as well.
    pub(super) seeks_roles: bool,
}

impl Search<'_, '_> {
    pub(super) fn run(&mut self, names: &[Name]) -> anyhow::Result<Vec<Quest>> {
        let start = |name: Name| dials::settings(name, &self.player.study.config);
        let starts: Vec<(Name, Vec<Setting>)> = names.iter().map(|&it| (it, start(it))).collect();
        let seek = |(name, settings): &(Name, Vec<Setting>)| {
            let (settings, start) = (settings.clone(), self.span.min);
            Seek { name: *name, settings, mix: None, span: self.span, start }
        };
        let seeks = starts.iter().map(seek).collect();
        let found = self.find(seeks)?;
        let quest = |((name, start), plain)| Quest { name, start, plain, turned: None, mixed: None };
        let mut quests: Vec<Quest> = starts.into_iter().zip(found).map(quest).collect();
        self.turn(&mut quests)?;
        self.prove(&mut quests)?;
        self.shrink(&mut quests)?;
        if self.seeks_roles {
            self.mix(&mut quests)?;
        }
        self.refresh(&quests)?;
        Ok(quests)
    }

    /// Finds the smallest fleet of each strategy.
    fn find(&mut self, seeks: Vec<Seek>) -> anyhow::Result<Vec<Found>> {
        loop {
            let steps: Vec<Step> =
                seeks.iter().map(|it| count::step(&self.known(it), it.span, it.start)).collect();
            let trials: Vec<Trial> = seeks
                .iter()
                .zip(&steps)
                .flat_map(|(seek, step)| match step {
                    Step::Play(counts) => counts.iter().map(|&it| seek.trial(it)).collect(),
                    Step::Done(_) => Vec::new(),
                })
                .collect();
            if trials.is_empty() {
                let done = |step| if let Step::Done(found) = step { Some(found) } else { None };
                return Ok(steps.into_iter().filter_map(done).collect());
            }
            self.player.play(trials)?;
        }
    }

    fn known(&self, seek: &Seek) -> BTreeMap<u32, bool> {
        let is_known =
            |workers: &u32| Some((*workers, self.goal.is_met(self.player.row(&seek.trial(*workers))?)));
        (seek.span.min..=seek.span.max).filter_map(|it| is_known(&it)).collect()
    }

    /// Searches the dials of the strategies that have any.
    fn turn(&mut self, quests: &mut [Quest]) -> anyhow::Result<()> {
        let shown = self.split.shown;
        // If no fleet is large enough, the largest shows best what the dials can do.
        let workers = |quest: &Quest| quest.plain.workers.unwrap_or(self.span.max);
        let trial = |quest: &Quest, settings: &[Setting]| Trial {
            name: quest.name,
            workers: workers(quest),
            mix: RoleMix::NONE,
            settings: settings.to_vec(),
            traffic: shown,
        };
        let climb = |it: &Quest| Climb::new(dials::of(it.name), it.start.clone(), self.runs);
        let mut climbs: Vec<Climb> = quests.iter().map(climb).collect();
        loop {
            let mut trials = Vec::new();
            let mut moving = vec![false; climbs.len()];
            for ((climb, quest), moves) in climbs.iter_mut().zip(&*quests).zip(&mut moving) {
                let wanted = climb.wants(|it| self.player.row(&trial(quest, it)).is_some());
                *moves = !wanted.is_empty();
                trials.extend(wanted.iter().map(|it| trial(quest, it)));
            }
            if trials.is_empty() {
                break;
            }
            self.player.play(trials)?;
            for ((climb, quest), _) in climbs.iter_mut().zip(&*quests).zip(moving).filter(|it| it.1) {
                climb.take(|it| self.player.row(&trial(quest, it)), self.goal);
            }
        }
        for (quest, climb) in quests.iter_mut().zip(climbs) {
            let (settings, workers) = (climb.settings().to_vec(), workers(quest));
            quest.turned = (settings != quest.start).then(|| Turned {
                settings,
                workers,
                proofs: Vec::new(),
                found: None,
            });
        }
        Ok(())
    }

    /// Checks the gains on other traffic.
    fn prove(&mut self, quests: &mut [Quest]) -> anyhow::Result<()> {
        let pairs = |quest: &Quest, hidden: &[usize]| -> Vec<[Trial; 2]> {
            let Some(turned) = &quest.turned else { return Vec::new() };
            let trial = |settings: &[Setting], traffic: usize| Trial {
                name: quest.name,
                workers: turned.workers,
                mix: RoleMix::NONE,
                settings: settings.to_vec(),
                traffic,
            };
            hidden.iter().map(|&it| [trial(&quest.start, it), trial(&turned.settings, it)]).collect()
        };
        let trials = quests.iter().flat_map(|it| pairs(it, &self.split.hidden)).flatten().collect();
        self.player.play(trials)?;
        for quest in quests {
            let proof = |[before, after]: &[Trial; 2]| {
                Some(self.proof(before.traffic, self.player.row(before)?, self.player.row(after)?))
            };
            let proofs = pairs(quest, &self.split.hidden).iter().filter_map(proof).collect();
            if let Some(turned) = &mut quest.turned {
                turned.proofs = proofs;
            }
        }
        Ok(())
    }

    fn proof(&self, traffic: usize, before: &ReportRow, after: &ReportRow) -> Proof {
        let [from, to] = [before, after].map(|it| self.goal.objective.of(it));
        Proof { traffic, before: from, after: to, holds: self.goal.is_gain(before, after) }
    }

    /// Searches for smaller fleets with the dial values whose gain held.
    fn shrink(&mut self, quests: &mut [Quest]) -> anyhow::Result<()> {
        let seek = |quest: &Quest| {
            let turned = quest.turned.as_ref().filter(|it| it.holds())?;
            let span = Span { min: self.span.min, max: turned.workers };
            let settings = turned.settings.clone();
            Some(Seek { name: quest.name, settings, mix: None, span, start: span.max })
        };
        let seeks = quests.iter().filter_map(seek).collect();
        let found = self.find(seeks)?;
        let turned = quests.iter_mut().filter_map(|it| it.turned.as_mut()).filter(|it| it.holds());
        for (turned, found) in turned.zip(found) {
            turned.found = Some(found);
        }
        Ok(())
    }

    /// Plays the resulting fleets on traffic of the same kind: the boundary, too, was fitted to the trace.
    fn refresh(&mut self, quests: &[Quest]) -> anyhow::Result<()> {
        let fresh = &self.split.fresh;
        let trials = quests.iter().filter_map(|it| Some((it, it.answer().1.workers?)));
        let trials =
            trials.flat_map(|(quest, workers)| fresh.iter().map(move |&it| quest.trial_on(it, workers)));
        self.player.play(trials.collect())
    }
}
