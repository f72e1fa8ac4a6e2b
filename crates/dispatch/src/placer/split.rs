//! The other way to serve a request: one worker prefills its prompt, another fetches the KV cache and answers.

use maitre_base::{Promise, Tokens, WorkerId};
use maitre_fleet::WorkerSnapshot;
use maitre_fleet::transfers::TransferTime;
use maitre_policy::split::{Handover, Prospect, decode_price, lacks, prefill_price, whole_price};
use maitre_policy::{Candidate, Pick, least_delay};

use super::survey::{Beliefs, Opening, Survey};
use super::{Picked, Query, World};
use crate::cache::{CacheQuery, Held};

/// The workers that prefill for others, as of the last look-up.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefillSurvey {
    snapshots: Vec<WorkerSnapshot>,
    held: Vec<Held>,
}

/// A request whose prompt is to be prefilled by another worker than the one that answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split {
    /// Who answers, among the survey's snapshots and among its candidates.
    pub(crate) place: usize,
    pub(crate) index: usize,
    pub(crate) prefill: PrefillPick,
    /// The tokens that the decode worker will fetch.
    pub(crate) fetches: Tokens,
    /// What both ways cost, in seconds.
    pub(crate) here: f64,
    pub(crate) elsewhere: f64,
}

/// A worker that prefills for another, and what both ways would cost, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillChoice {
    pub worker: WorkerId,
    pub key: u64,
    pub here: f64,
    pub elsewhere: f64,
    /// Tokens whose KV cache the chosen worker fetches.
    pub fetches: Tokens,
}

impl Split {
    /// The pick of who answers.
    pub(crate) fn answers(&self, picked: Picked) -> Picked {
        Picked { place: self.place, pick: Pick { index: self.index, ..picked.pick }, ..picked }
    }

    /// What a rule decides by.
    pub(super) fn prospect(&self, prompt: Tokens) -> Prospect {
        let Split { here, elsewhere, fetches, prefill, .. } = *self;
        Prospect { here, elsewhere, prompt, lacks: fetches, prefill_ahead: prefill.ahead }
    }

    pub(crate) fn choice(&self) -> PrefillChoice {
        let Split { prefill, fetches, here, elsewhere, .. } = *self;
        PrefillChoice { worker: prefill.worker, key: prefill.key, here, elsewhere, fetches }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefillPick {
    pub(crate) worker: WorkerId,
    pub(crate) key: u64,
    pub(crate) promise: Promise,
    /// Tokens to prefill there before those of this request.
    pub(crate) ahead: u64,
}

impl PrefillSurvey {
    /// Looks at the prefill workers. What caches hold must have been looked up just before.
    pub(super) fn look(&mut self, world: &World<'_>, query: &Query<'_>, sees_caches: bool) {
        self.snapshots.clear();
        self.held.clear();
        if !query.may_split || !world.fleet.has_prefill_workers() {
            return;
        }
        world.fleet.prefill_snapshots(world.now, query.wanted, query.barred, &mut self.snapshots);
        if let Some(prompt) = query.prompt.filter(|_| sees_caches) {
            let (tokens, snapshots) = (query.ask.prefill, &self.snapshots);
            world.cache.show(CacheQuery { prompt, tokens, snapshots }, &mut self.held);
        }
    }

    /// The cheapest prefill worker, the price of the prompt there, and how long it takes.
    fn cheapest(&self, query: &Query<'_>, beliefs: Beliefs<'_>) -> Option<(PrefillPick, f64, f64)> {
        let priced = self.snapshots.iter().enumerate().map(|(place, snapshot)| {
            let held = self.held.get(place).copied().unwrap_or_default();
            let candidate = super::survey::candidate(snapshot, held, beliefs.cache.holds(snapshot.worker));
            let seconds = least_delay::first_token(query.ask, &candidate);
            (snapshot, held, prefill_price(query.ask, &candidate), seconds)
        });
        let (snapshot, held, price, seconds) = priced.min_by(|one, other| one.2.total_cmp(&other.2))?;
        let prefill = query.ask.prefill - held.tokens;
        let context = prefill + held.chunks.saved;
        let promise = Promise { prefill, decode: Tokens(1), context, prefilled: false };
        let ahead = (snapshot.wait_seconds / snapshot.prefill.slope) as u64;
        Some((PrefillPick { worker: snapshot.worker, key: snapshot.key, promise, ahead }, price, seconds))
    }

    /// Which other worker could prefill the prompt at the least cost, and who would answer. A strategy that prices in seconds
    /// may answer elsewhere than it would without; the pick of others stays.
    pub(super) fn split(
        &self,
        (world, query): (&World<'_>, &Query<'_>),
        (survey, beliefs): (&Survey, Beliefs<'_>),
        picked: Picked,
        is_priced: bool,
    ) -> Option<Split> {
        let (prefill, prompt_price, prefilled) = self.cheapest(query, beliefs)?;
        let here = whole_price(query.ask, &survey.candidates[picked.pick.index]);
        let price = |candidate: &Candidate| {
            let TransferTime { own, queue } =
                world.fleet.transfer_time(candidate.worker, lacks(query.ask, candidate));
            decode_price(query.ask, candidate, Handover { prefilled, transfer: own, queue })
        };
        let may_answer = |&(index, candidate): &(usize, &Candidate)| {
            let is_picked = index == picked.pick.index;
            (is_priced || is_picked)
                && survey.openings[survey.shown[index]] == Opening::Now
                && world.fleet.decodes(candidate.worker)
        };
        let (index, candidate, answer_price) = (survey.candidates.iter().enumerate())
            .filter(may_answer)
            .map(|(index, it)| (index, it, price(it)))
            .min_by(|one, other| one.2.total_cmp(&other.2))?;
        let elsewhere = prompt_price + answer_price;
        let fetch = world.fleet.transfer_time(candidate.worker, lacks(query.ask, candidate));
        let first_token = prefilled + fetch.queue + fetch.own + candidate.pace.floor;
        if query.deadline.is_some_and(|it| it.since(world.now).as_secs_f64() < first_token) {
            return None;
        }
        Some(Split {
            place: survey.shown[index],
            index,
            prefill,
            fetches: lacks(query.ask, candidate),
            here,
            elsewhere,
        })
    }
}
