//! Which workers of the fleet that was found should prefill, decode or do both, and whether any should.

use maitre_sim::report::ReportRow;

use super::{Proof, Quest, Search, Seek, Span};
use crate::tune::count::Found;
use crate::tune::mix::{self, MIXES_MAX, RoleMix};
use crate::tune::player::Trial;

/// The best mix of roles, beside the same fleet without roles.
#[derive(Debug)]
pub(in crate::tune) struct MixFound {
    pub(in crate::tune) mix: RoleMix,
    /// The number of workers during the search.
    pub(in crate::tune) workers: u32,
    /// The objective without roles and with this mix, where it was found, and elsewhere.
    pub(in crate::tune) shown: Proof,
    pub(in crate::tune) proofs: Vec<Proof>,
    /// The fleet with this mix; only if the gain holds.
    pub(in crate::tune) found: Option<Found>,
}

impl MixFound {
    pub(in crate::tune) fn holds(&self) -> bool {
        self.shown.holds && !self.proofs.is_empty() && self.proofs.iter().all(|it| it.holds)
    }
}

impl Search<'_, '_> {
    /// Finds the mix of each quest, and checks it on other traffic.
    pub(super) fn mix(&mut self, quests: &mut [Quest]) -> anyhow::Result<()> {
        let most = self.span.max;
        for quest in quests {
            let workers = quest.answer().1.workers.unwrap_or(most);
            let Some(mix) = self.best_mix(quest, workers)? else { continue };
            let shown = self.compare((&*quest, mix), workers, self.split.shown)?;
            let hidden: &[usize] = if shown.holds { &self.split.hidden } else { &[] };
            let mut proofs = Vec::new();
            for &traffic in hidden {
                proofs.push(self.compare((&*quest, mix), workers, traffic)?);
            }
            let mut mixed = MixFound { mix, workers, shown, proofs, found: None };
            if mixed.holds() {
                mixed.found = self.shrink_mix(quest, &mixed)?;
            }
            quest.mixed = Some(mixed);
        }
        Ok(())
    }

    /// The best mix of a fleet of this size; none for a single worker.
    fn best_mix(&mut self, quest: &Quest, workers: u32) -> anyhow::Result<Option<RoleMix>> {
        let shown = self.split.shown;
        let trial = |mix: RoleMix| Trial { mix, ..quest.trial_on(shown, workers) };
        let mut played: Vec<RoleMix> = Vec::new();
        loop {
            let row = |mix: RoleMix| self.player.row(&trial(mix));
            let rows = played.iter().filter_map(|&it| Some((it, row(it)?)));
            let best = rows.min_by(|one, other| self.goal.order(one.1, other.1)).map(|it| it.0);
            let mut wanted = mix::wants(workers, best, |it| played.contains(&it));
            wanted.truncate(MIXES_MAX.saturating_sub(played.len()));
            if wanted.is_empty() {
                return Ok(best);
            }
            self.player.play(wanted.iter().map(|&it| trial(it)).collect())?;
            played.extend(wanted);
        }
    }

    /// The fleet without roles and with this mix.
    fn compare(
        &mut self,
        (quest, mix): (&Quest, RoleMix),
        workers: u32,
        traffic: usize,
    ) -> anyhow::Result<Proof> {
        let trials = [RoleMix::NONE, mix].map(|mix| Trial { mix, ..quest.trial_on(traffic, workers) });
        self.player.play(trials.to_vec())?;
        let none = ReportRow::default();
        let [before, after] = trials.each_ref().map(|it| self.player.row(it).unwrap_or(&none));
        Ok(self.proof(traffic, before, after))
    }

    /// Whether fewer workers are enough with the same parts.
    fn shrink_mix(&mut self, quest: &Quest, mixed: &MixFound) -> anyhow::Result<Option<Found>> {
        let span = Span { min: self.span.min, max: mixed.workers };
        let seek = Seek {
            name: quest.name,
            settings: quest.answer().0.to_vec(),
            mix: Some((mixed.mix, mixed.workers)),
            span,
            start: span.max,
        };
        Ok(self.find(vec![seek])?.pop())
    }
}
