//! The other way to serve a request: one worker prefills its prompt, another fetches the KV cache and answers.

use maitre_base::{HandoffStyle, PrefillAnswer, PrefillWork, Promise, Tokens, WorkerId};
use maitre_fleet::WorkerSnapshot;
use maitre_fleet::transfers::{TransferTime, Way};
use maitre_policy::split::{
    DecodeSide, Handover, PrefillSide, Prospect, decode_price, lacks, prefill_price, whole_price,
};
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
    sides: (DecodeSide, PrefillSide),
    /// Seconds until the KV cache has come.
    transfer: f64,
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
        let Split { here, elsewhere, fetches, prefill, sides, transfer, .. } = *self;
        let (lacks, prefill_ahead) = (fetches, prefill.ahead.tokens.0);
        let (decode, prefill) = sides;
        let prospect = Prospect { here, elsewhere, prompt, lacks, prefill_ahead, ..Prospect::default() };
        Prospect { decode, prefill, transfer, ..prospect }
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
    /// What is prefilled there before this request.
    pub(crate) ahead: PrefillWork,
}

/// Prefill workers of a style for which each decode worker is priced. Chosen: enough that one with a slow link to a decode
/// worker has others beside it, and few, because all pairs are priced.
const PREFILL_PICKS: usize = 4;

/// A cheap prefill worker of a style.
#[derive(Clone, Copy, Debug)]
struct PricedPrefill {
    pick: PrefillPick,
    price: f64,
    /// Until the prompt is computed, of which so long others are.
    seconds: f64,
    wait: f64,
}

/// By the place of a style among all: the cheapest, in order.
type PrefillByStyle = [[Option<PricedPrefill>; PREFILL_PICKS]; HandoffStyle::ALL.len()];

/// Keeps the cheapest in order; of equals, those that came first.
fn keep_cheapest(cheapest: &mut [Option<PricedPrefill>; PREFILL_PICKS], mut new: PricedPrefill) {
    for place in cheapest {
        match place {
            Some(it) if it.price <= new.price => {}
            Some(it) => std::mem::swap(it, &mut new),
            None => {
                *place = Some(new);
                return;
            }
        }
    }
}

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

    /// The cheapest prefill workers of each style.
    fn cheapest(&self, world: &World<'_>, query: &Query<'_>, beliefs: Beliefs<'_>) -> PrefillByStyle {
        let mut cheapest = PrefillByStyle::default();
        for (place, snapshot) in self.snapshots.iter().enumerate() {
            let held = self.held.get(place).copied().unwrap_or_default();
            let candidate = super::survey::candidate(snapshot, held, beliefs.caches);
            let price = prefill_price(query.ask, &candidate);
            let handoff = world.fleet.handoff(snapshot.worker);
            let best = &mut cheapest[handoff.style as usize];
            if best.iter().all(|it| it.is_some_and(|it| it.price <= price)) {
                continue;
            }
            let computed = query.ask.prefill - held.tokens;
            let prefill = PrefillWork::after(held.tokens, computed);
            let context = computed + held.chunks.saved;
            let promise = Promise { prefill, decode: Tokens(1), context, prefilled: false };
            let ahead = snapshot.prefill_ahead();
            let (worker, key, answer) = (snapshot.worker, snapshot.key, handoff.answer);
            let pick = PrefillPick { worker, answer, key, promise, ahead };
            let seconds = least_delay::first_token(query.ask, &candidate);
            let wait = snapshot.wait_seconds;
            keep_cheapest(best, PricedPrefill { pick, price, seconds, wait });
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
        let transfer = |prefill: &PricedPrefill, candidate: &Candidate| {
            let way = Way::between(prefill.pick.worker, candidate.worker);
            world.fleet.transfer_time(way, lacks(query.ask, candidate))
        };
        let price = |candidate: &Candidate| {
            let partners = &cheapest[world.fleet.handoff(candidate.worker).style as usize];
            let priced = partners.iter().flatten().map(|prefill| {
                let TransferTime { own, queue } = transfer(prefill, candidate);
                let handover = Handover { prefilled: prefill.seconds, transfer: own, queue };
                (*prefill, prefill.price + decode_price(query.ask, candidate, handover))
            });
            priced.min_by(|one, other| one.1.total_cmp(&other.1))
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
        let fetch = transfer(&prefill, candidate);
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
            sides: (decode_side(query, candidate), prefill.side()),
            transfer: fetch.own + fetch.queue,
        })
    }
}

impl PricedPrefill {
    fn side(&self) -> PrefillSide {
        PrefillSide { wait: self.wait, prefill: (self.seconds - self.wait).max(0.0) }
    }
}

fn decode_side(query: &Query<'_>, candidate: &Candidate) -> DecodeSide {
    let pace = candidate.pace;
    let lacks = lacks(query.ask, candidate);
    DecodeSide {
        wait: candidate.wait_seconds,
        requests: candidate.requests,
        step: pace.step + pace.step_request * f64::from(candidate.requests),
        step_token: pace.prefill_token,
        prefill: pace.prefill(PrefillWork::after(query.ask.prefill - lacks, lacks)),
    }
}
