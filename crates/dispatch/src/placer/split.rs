//! The other way to serve a request: one worker prefills its prompt, another fetches the KV cache and answers.

use maitre_base::{HandoffStyle, PrefillAnswer, Promise, Tokens, WorkerId};
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

    /// Whether the worker that was picked cannot answer alone.
    pub(crate) fn is_needed(&self) -> bool {
        self.here == f64::INFINITY
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
    pub(crate) answer: PrefillAnswer,
    pub(crate) key: u64,
    pub(crate) promise: Promise,
    /// Tokens to prefill there before those of this request.
    pub(crate) ahead: u64,
}

/// The cheapest prefill worker of a style.
#[derive(Clone, Copy, Debug)]
struct PricedPrefill {
    pick: PrefillPick,
    price: f64,
    /// Until the prompt is computed.
    seconds: f64,
}

/// By the place of a style among all.
type PrefillByStyle = [Option<PricedPrefill>; HandoffStyle::ALL.len()];

/// Who may answer a request that is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answering {
    /// The worker that costs least.
    Anyone,
    /// Only the worker that was picked.
    Picked,
}

impl PrefillSurvey {
    /// Finds the prefill workers.
    pub(super) fn find(&mut self, world: &World<'_>, query: &Query<'_>) -> &[WorkerSnapshot] {
        self.snapshots.clear();
        self.held.clear();
        if query.may_split && world.fleet.has_prefill_workers() {
            world.fleet.prefill_snapshots(world.now, query.wanted, query.barred, &mut self.snapshots);
        }
        &self.snapshots
    }

    /// Looks at what they hold. What caches hold must have been looked up just before.
    pub(super) fn look(&mut self, world: &World<'_>, query: &Query<'_>, sees_caches: bool) {
        if self.snapshots.is_empty() {
            return;
        }
        if let Some(prompt) = query.prompt.filter(|_| sees_caches) {
            let (tokens, snapshots) = (query.ask.prefill, &self.snapshots);
            world.cache.show(CacheQuery { prompt, tokens, snapshots }, &mut self.held);
        }
    }

    /// The cheapest prefill worker of each style.
    fn cheapest(&self, world: &World<'_>, query: &Query<'_>, beliefs: Beliefs<'_>) -> PrefillByStyle {
        let mut cheapest = PrefillByStyle::default();
        for (place, snapshot) in self.snapshots.iter().enumerate() {
            let held = self.held.get(place).copied().unwrap_or_default();
            let candidate = super::survey::candidate(snapshot, held, beliefs.cache.holds(snapshot.worker));
            let price = prefill_price(query.ask, &candidate);
            let handoff = world.fleet.handoff(snapshot.worker);
            let best = &mut cheapest[handoff.style as usize];
            if best.is_some_and(|it| it.price <= price) {
                continue;
            }
            let prefill = query.ask.prefill - held.tokens;
            let context = prefill + held.chunks.saved;
            let promise = Promise { prefill, decode: Tokens(1), context, prefilled: false };
            let ahead = (snapshot.wait_seconds / snapshot.prefill.slope) as u64;
            let (worker, key, answer) = (snapshot.worker, snapshot.key, handoff.answer);
            let pick = PrefillPick { worker, answer, key, promise, ahead };
            let seconds = least_delay::first_token(query.ask, &candidate);
            *best = Some(PricedPrefill { pick, price, seconds });
        }
        cheapest
    }

    /// Which other worker could prefill the prompt at the least cost, and who would answer.
    pub(super) fn split(
        &self,
        (world, query): (&World<'_>, &Query<'_>),
        (survey, beliefs): (&Survey, Beliefs<'_>),
        picked: Picked,
        answering: Answering,
    ) -> Option<Split> {
        let cheapest = self.cheapest(world, query, beliefs);
        let picked_candidate = &survey.candidates[picked.pick.index];
        let is_dependent = world.fleet.handoff(picked_candidate.worker).needs_partner;
        let here = if is_dependent { f64::INFINITY } else { whole_price(query.ask, picked_candidate) };
        let price = |candidate: &Candidate| {
            let prefill = cheapest[world.fleet.handoff(candidate.worker).style as usize]?;
            let TransferTime { own, queue } =
                world.fleet.transfer_time(candidate.worker, lacks(query.ask, candidate));
            let handover = Handover { prefilled: prefill.seconds, transfer: own, queue };
            Some((prefill, prefill.price + decode_price(query.ask, candidate, handover)))
        };
        let may_answer = |&(index, candidate): &(usize, &Candidate)| {
            let is_picked = index == picked.pick.index;
            (answering == Answering::Anyone || is_picked)
                && survey.openings[survey.shown[index]] == Opening::Now
                && world.fleet.decodes(candidate.worker)
        };
        let (index, candidate, (prefill, elsewhere)) = (survey.candidates.iter().enumerate())
            .filter(may_answer)
            .filter_map(|(index, it)| Some((index, it, price(it)?)))
            .min_by(|one, other| one.2.1.total_cmp(&other.2.1))?;
        let fetch = world.fleet.transfer_time(candidate.worker, lacks(query.ask, candidate));
        let first_token = prefill.seconds + fetch.queue + fetch.own + candidate.pace.floor;
        let is_late = query.deadline.is_some_and(|it| it.since(world.now).as_secs_f64() < first_token);
        if is_late && !is_dependent {
            return None;
        }
        Some(Split {
            place: survey.shown[index],
            index,
            prefill: prefill.pick,
            fetches: lacks(query.ask, candidate),
            here,
            elsewhere,
        })
    }
}
