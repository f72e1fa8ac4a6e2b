//! Which worker takes a request: what is believed of the fleet goes in, a choice comes out.
//!
//! `Placer::choose` serves requests and `explain` alike, and shadows pick through the same `Decider`. It writes to its
//! own scratch only. What a strategy remembers of a pick (its turn, its pins, its dice) is kept in a `Mode::Commit` and
//! left as it was in a `Mode::DryRun`. Promises, queues and records follow from the choice, elsewhere.

pub(crate) mod in_use;
pub(crate) mod pins;
pub(crate) mod prepared;
pub(crate) mod pull;
pub(crate) mod readers;
pub(crate) mod sent;
pub mod split;
pub(crate) mod strategies;
pub(crate) mod survey;

use maitre_base::{ClassId, Instant, Rng, Tokens, WorkerId};
use maitre_fleet::attention::PrefillFit;
use maitre_fleet::pulls::PullWatch;
use maitre_fleet::rates::LinearFit;
use maitre_fleet::{Barred, Fleet, ModelId, Wanted, WorkerSnapshot};
use maitre_policy::split::{LateSplits, Prospect, SplitRule};
use maitre_policy::{Ask, Candidate, Name, Needs, Pace, Pick, Strategy, Why};
use maitre_queue::limits::{Caps, WaitAtWorker, WorkerLimits, limits, limits_of_first};

use crate::cache::{Cache, CacheQuery, PromptChain};
use crate::capacity::{Knee, knee_in_tokens};
use crate::long_prefills::LongPrefills;
use crate::programs::{ProgramId, Programs};
use crate::reservations::{Reservation, Reservations};
use in_use::InUse;
use pins::EarlyPins;
use pull::UnfinishedPrompts;
use readers::PrefixReaders;
use sent::Sent;
use split::{Answering, PrefillSurvey, Split};
use strategies::{Decider, Strategies};
use survey::{Beliefs, Opening, Survey};

/// A request as the placer sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query<'a> {
    pub(crate) wanted: Wanted,
    pub(crate) ask: &'a Ask,
    pub(crate) class: ClassId,
    pub(crate) prompt: Option<&'a PromptChain>,
    pub(crate) barred: Barred<'a>,
    /// When its first token is due.
    pub(crate) deadline: Option<Instant>,
    /// Whether its KV cache may come from another worker, which prefills it or holds it.
    pub(crate) may_split: bool,
    pub(crate) watch: PullWatch,
    /// Its own claim, which does not count against it.
    pub(crate) reservation: Option<&'a Reservation>,
    pub(crate) program: Option<ProgramId>,
}

impl Query<'_> {
    pub(crate) fn model(&self) -> Option<ModelId> {
        model_of(self.wanted)
    }
}

pub(crate) fn model_of(wanted: Wanted) -> Option<ModelId> {
    match wanted {
        Wanted::Model(model) => Some(model),
        Wanted::Anything | Wanted::Unlisted => None,
    }
}

/// What is believed of the workers, at one instant. The cache is borrowed mutably for its scratch, and because a real
/// look-up refreshes what it finds.
pub(crate) struct World<'a> {
    pub(crate) now: Instant,
    pub(crate) fleet: &'a Fleet,
    pub(crate) cache: &'a mut Cache,
    pub(crate) reservations: &'a Reservations,
    pub(crate) long_prefills: &'a LongPrefills,
    pub(crate) programs: &'a Programs,
}

/// Whose first tokens a long prompt must not delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consideration {
    Nobody,
    /// Those of requests at the worker that it takes.
    Worker,
    /// Those of requests at the other workers as well: while it is prefilled, all later requests of higher classes go there.
    Fleet,
}

/// By which rules a worker is open to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    pub(crate) caps: Caps,
    /// The part of each worker that the request's class may use.
    pub(crate) part: f64,
    /// Routers that share the fleet.
    pub(crate) routers: u32,
    pub(crate) consideration: Consideration,
    /// Whether classes above have requests, for which workers must keep room.
    pub(crate) yields: bool,
    /// What of the class may wait at a worker if not.
    pub(crate) wait_at_worker: WaitAtWorker,
    /// How many workers may prefill long prompts of the request's class at the same time.
    pub(crate) workers_for_long_prompts: f64,
}

impl Admission {
    /// What this worker may have before the request waits.
    pub(crate) fn limits(&self, snapshot: &WorkerSnapshot) -> WorkerLimits {
        let promised = snapshot.promised.prefill;
        let knee = knee_in_tokens(snapshot.knee, &snapshot.prefill, promised);
        let token_seconds = snapshot.prefill.slope * snapshot.prefill.plain_per_token(promised);
        match self.yields {
            true => limits(knee, self.caps).times(self.part),
            false => limits_of_first(knee, token_seconds, self.caps, self.wait_at_worker),
        }
    }

    /// Whether this worker may have more work.
    pub(crate) fn is_open(&self, snapshot: &WorkerSnapshot) -> bool {
        self.is_within(self.limits(snapshot), snapshot)
    }

    /// The same for a worker whose limits are known.
    pub(crate) fn is_within(&self, limits: WorkerLimits, snapshot: &WorkerSnapshot) -> bool {
        Knee { limits, caps: self.caps, routers: self.routers }.is_above(snapshot)
    }
}

/// How a choice is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// None while the queue is off: every worker is open to every request.
    pub(crate) admission: Option<Admission>,
    pub(crate) scope: Scope,
}

/// Which workers a strategy may pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// A busy worker too, to wait for it.
    Any,
    /// Only one with room.
    Open,
    /// It has picked this one before, for this reason, and the request's turn there has come.
    Picked(WorkerId, Why),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The strategy remembers the pick.
    Commit,
    /// The strategy and its dice stay as they were.
    DryRun,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkerChoice {
    Place(Picked),
    /// The strategy prefers this busy worker to any free one.
    Reserve(Picked),
    /// Every worker is busy.
    Wait,
    /// The first token would come too late from every worker.
    TooLate,
    /// No healthy worker serves the request.
    NoWorker,
}

impl WorkerChoice {
    pub(crate) fn picked(self) -> Option<Picked> {
        match self {
            WorkerChoice::Place(picked) | WorkerChoice::Reserve(picked) => Some(picked),
            WorkerChoice::Wait | WorkerChoice::TooLate | WorkerChoice::NoWorker => None,
        }
    }
}

/// The worker that was picked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picked {
    /// Its place among the survey's snapshots.
    pub(crate) place: usize,
    /// The pick among the survey's candidates.
    pub(crate) pick: Pick,
    /// Whether the strategy's prices are those of this pick.
    pub(crate) is_priced: bool,
    /// Whether they were prepared, for all workers.
    pub(crate) was_prepared: bool,
    /// The session that this pick has pinned, if it did.
    pub(crate) pinned: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Placer {
    pub(crate) strategies: Strategies,
    pub(crate) early_pins: EarlyPins,
    /// Only while a strategy asks for it.
    pub(crate) in_use: Option<InUse>,
    pub(crate) sent: Option<Sent>,
    pub(crate) unfinished: UnfinishedPrompts,
    pub(crate) readers: PrefixReaders,
    rng: Rng,
    /// The last survey. Kept, so that a choice allocates nothing per worker.
    survey: Box<Survey>,
    /// The same for the workers that only prefill.
    prefill: PrefillSurvey,
    /// For the rule that goes by it.
    pub(crate) late_splits: LateSplits,
}

/// The last choice with all that it was made from, for an observer.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) survey: &'a Survey,
    pub(crate) strategy: &'a Strategy,
    beliefs: Beliefs<'a>,
}

impl View<'_> {
    /// The worker at this place, as a strategy would see it.
    pub(crate) fn candidate(&self, query: &Query<'_>, place: usize) -> Candidate {
        self.survey.candidate(query, self.beliefs, place)
    }
}

impl Placer {
    pub(crate) fn new(strategies: Strategies, needs: Needs, seed: u64) -> Placer {
        Placer {
            strategies,
            early_pins: EarlyPins::default(),
            in_use: needs.in_use.then(InUse::default),
            sent: needs.sent.then(Sent::default),
            unfinished: UnfinishedPrompts::default(),
            readers: PrefixReaders::default(),
            rng: Rng::new(seed),
            survey: Box::default(),
            prefill: PrefillSurvey::default(),
            late_splits: LateSplits::default(),
        }
    }

    pub(crate) fn swap_survey(&mut self, survey: &mut Box<Survey>) {
        std::mem::swap(&mut self.survey, survey);
    }

    /// The worker's cache is gone.
    pub(crate) fn forget_sent(&mut self, worker: WorkerId) {
        if let Some(sent) = &mut self.sent {
            sent.forget(worker);
        }
    }

    pub(crate) fn survey(&self) -> &Survey {
        &self.survey
    }

    /// Chooses a worker for this request, or says why none takes it now.
    pub(crate) fn choose(
        &mut self,
        world: &mut World<'_>,
        query: &Query<'_>,
        rules: Rules,
        mode: Mode,
    ) -> WorkerChoice {
        let name = self.strategies.of(query.model()).name();
        let is_prepared = mode == Mode::Commit && self.use_prepared(world, query);
        if !is_prepared && !self.look_up(world, query, mode) {
            return WorkerChoice::NoWorker;
        }
        self.survey.judge(world, query, rules.admission);
        let may_wait = name.waits_for_pick() && rules.scope != Scope::Open;
        let fits = |it: Opening| it == Opening::Now || may_wait && it == Opening::Later;
        if let Scope::Picked(worker, why) = rules.scope
            && let Some(choice) = self.picked_before(world, query, fits, (worker, why))
        {
            return choice;
        }
        match self.pick(world, query, fits, mode) {
            Some(picked) if self.survey.openings[picked.place] == Opening::Now => WorkerChoice::Place(picked),
            Some(picked) => WorkerChoice::Reserve(picked),
            None if self.survey.openings.iter().all(|&it| it == Opening::TooLate) => WorkerChoice::TooLate,
            None => WorkerChoice::Wait,
        }
    }

    /// The worker that the strategy has picked before, if it is still there and not too late.
    fn picked_before(
        &mut self,
        world: &World<'_>,
        query: &Query<'_>,
        fits: impl Fn(Opening) -> bool,
        (worker, why): (WorkerId, Why),
    ) -> Option<WorkerChoice> {
        let place = self.survey.snapshots.iter().position(|it| it.worker == worker)?;
        match self.survey.openings[place] {
            Opening::TooLate => None,
            Opening::Later | Opening::Disturbs => Some(WorkerChoice::Wait),
            Opening::Now => {
                let Placer { in_use, survey, .. } = self;
                let beliefs = Beliefs {
                    caches: world.cache.known(),
                    reservations: world.reservations,
                    in_use: in_use.as_ref(),
                };
                survey.show(query, beliefs, fits);
                let index = survey.shown.iter().position(|&it| it == place)?;
                let pick = Pick { index, why };
                Some(WorkerChoice::Place(Picked {
                    place,
                    pick,
                    is_priced: false,
                    was_prepared: false,
                    pinned: None,
                }))
            }
        }
    }

    /// What the strategy would pick if every worker of the last survey were open. A dry run.
    pub(crate) fn pick_if_open(&mut self, world: &World<'_>, query: &Query<'_>) -> Option<Picked> {
        self.pick(world, query, |_| true, Mode::DryRun)
    }

    /// Uses what was prepared for this request, if anything was and the fleet is one for which that is enough.
    fn use_prepared(&mut self, world: &mut World<'_>, query: &Query<'_>) -> bool {
        let is_enough = self.strategies.of(query.model()).name() == Name::LeastDelay
            && !(world.fleet.moves_kv() || world.cache.has_stores() || world.programs.is_on())
            && self.in_use.is_none()
            && self.sent.is_none();
        if !is_enough {
            return false;
        }
        self.begin(world, query);
        self.prefill.find(world, query);
        self.survey.use_prepared(world, query)
    }

    /// Begins a survey with what all workers have in common.
    fn begin(&mut self, world: &World<'_>, query: &Query<'_>) {
        self.survey.begin(world.fleet.mean_prefill(query.wanted));
        let cached_part = world.fleet.estimate(query.model()).cached_part;
        self.survey.held_usually = Tokens((query.ask.prefill.0 as f64 * cached_part) as u64);
    }

    /// Fills the survey: the workers that could take the request, and how much of its prompt each holds, where the
    /// strategy uses that. Returns whether there are any.
    fn look_up(&mut self, world: &mut World<'_>, query: &Query<'_>, mode: Mode) -> bool {
        self.begin(world, query);
        let Survey { snapshots, held, pulls, last_sent, displaced, .. } = &mut *self.survey;
        world.fleet.snapshots(world.now, query.wanted, query.barred, snapshots);
        let prefill = self.prefill.find(world, query);
        // Without an answer to decode, any worker will do.
        if world.fleet.has_dependent_workers() && query.ask.decode > Tokens::ZERO {
            world.fleet.retain_answering(prefill, snapshots);
        }
        if snapshots.is_empty() {
            return false;
        }
        *last_sent = self.sent.as_ref().and_then(|it| it.find(query.prompt?));
        let name = self.strategies.of(query.model()).name();
        if !name.prices_adapters() {
            // A strategy that cannot price loading an adapter sees only the workers where the adapter fits best.
            let best = snapshots.iter().map(|it| it.adapter).min();
            snapshots.retain(|it| Some(it.adapter) == best);
        }
        match query.prompt.filter(|_| name.needs().cache) {
            Some(prompt) => {
                let question = CacheQuery { prompt, tokens: query.ask.prefill, snapshots };
                match mode {
                    Mode::Commit => world.cache.look_up(question, held),
                    Mode::DryRun => world.cache.peek(question, held),
                }
                // What only its own reservation predicts is not there yet.
                let own = query.reservation.and_then(|it| Some((it.worker, it.prediction.as_ref()?)));
                let place = own.and_then(|(worker, _)| snapshots.iter().position(|it| it.worker == worker));
                if let (Some((worker, predicted)), Some(place)) = (own, place) {
                    let most = world.cache.held_without(worker, predicted, prompt, query.ask.prefill);
                    held[place].limit_prefix(most);
                }
                if world.fleet.has_pulls() || world.cache.has_stores() {
                    for (snapshot, held) in snapshots.iter().zip(held.iter_mut()) {
                        let tokens = (query.ask.prefill, held.prefix());
                        held.limit_prefix(self.unfinished.usable(snapshot.worker, prompt, tokens));
                    }
                }
            }
            None => held.clear(),
        }
        pulls.look((world, query), (snapshots, held), (&self.unfinished, &self.readers));
        if world.programs.is_on() {
            let taken = (query.program, (query.ask.prefill + query.ask.decode).0);
            world.programs.displaced_seconds(world.now, taken, snapshots, displaced);
        }
        self.prefill.look(world, query, name.needs().cache);
        true
    }

    /// Whether another worker should prefill the prompt of the request that was just picked for. A strategy that prices in
    /// seconds may answer elsewhere than it would without; the pick of others stays.
    pub(crate) fn split(
        &self,
        world: &World<'_>,
        query: &Query<'_>,
        (picked, answering): (Picked, Answering),
        rule: SplitRule,
    ) -> Option<Split> {
        let beliefs = Beliefs {
            caches: world.cache.known(),
            reservations: world.reservations,
            in_use: self.in_use.as_ref(),
        };
        let is_priced = self.strategies.of(query.model()).name() == Name::LeastDelay;
        let answering = if is_priced { answering } else { Answering::Picked };
        let split = self.prefill.split((world, query), (&self.survey, beliefs), picked, answering)?;
        let prospect = Prospect { late: self.late_splits, ..split.prospect(query.ask.prefill) };
        (split.is_needed() || rule.splits(&prospect)).then_some(split)
    }

    /// Lets the strategy pick among the workers whose openings fit.
    fn pick(
        &mut self,
        world: &World<'_>,
        query: &Query<'_>,
        fits: impl Fn(Opening) -> bool,
        mode: Mode,
    ) -> Option<Picked> {
        let Placer { strategies, in_use, rng, survey, .. } = self;
        let beliefs = Beliefs {
            caches: world.cache.known(),
            reservations: world.reservations,
            in_use: in_use.as_ref(),
        };
        survey.show(query, beliefs, fits);
        let strategy = strategies.of_mut(query.model());
        let decider = match mode {
            Mode::Commit if survey.is_priced => Decider::Priced(strategy, rng, &survey.prices),
            Mode::Commit => Decider::Commit(strategy, rng),
            Mode::DryRun => Decider::DryRun(strategy, rng),
        };
        let pick = decider.pick(query.ask, &survey.candidates)?;
        let is_committed = mode == Mode::Commit;
        let strategy = strategies.of(query.model());
        let was_prepared = std::mem::take(&mut survey.is_priced) && is_committed;
        if !was_prepared {
            survey.prices.clear();
            survey.prices.extend_from_slice(if is_committed { strategy.prices() } else { &[] });
        }
        Some(Picked {
            place: survey.shown[pick.index],
            pick,
            is_priced: is_committed && survey.prices.len() == survey.candidates.len(),
            was_prepared,
            pinned: strategy.pinned().filter(|_| is_committed),
        })
    }

    /// Whether the strategy of this request uses what caches hold.
    pub(crate) fn sees_caches(&self, query: &Query<'_>) -> bool {
        self.strategies.of(query.model()).name().needs().cache
    }

    /// After the pick: adds to the candidates what caches hold of a prompt that the strategy has not looked at.
    pub(crate) fn reveal(&mut self, cache: &mut Cache, query: &Query<'_>) {
        let Some(prompt) = query.prompt.filter(|_| !self.sees_caches(query)) else { return };
        let Survey { snapshots, held, candidates, shown, .. } = &mut *self.survey;
        cache.peek(CacheQuery { prompt, tokens: query.ask.prefill, snapshots }, held);
        for (candidate, &place) in candidates.iter_mut().zip(&*shown) {
            let it = held.get(place).copied().unwrap_or_default();
            (candidate.held, candidate.held_below, candidate.chunks) = (it.tokens, it.below, it.chunks);
        }
    }

    pub(crate) fn view<'a>(
        &'a self,
        cache: &'a Cache,
        reservations: &'a Reservations,
        query: &Query<'_>,
    ) -> View<'a> {
        let beliefs = Beliefs { caches: cache.known(), reservations, in_use: self.in_use.as_ref() };
        View { survey: &self.survey, strategy: self.strategies.of(query.model()), beliefs }
    }
}

fn pace(prefill: PrefillFit, decode: LinearFit) -> Pace {
    Pace {
        floor: prefill.base,
        prefill_token: prefill.slope,
        prefill_attended: prefill.attention,
        step: decode.base,
        step_request: decode.slope,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::{PrefillWork, Promise};
    use maitre_fleet::Evidence;

    /// Seconds of prefill that a worker gets of such prompts until a class that yields has to wait.
    fn seconds_until_closed(prefill: PrefillWork) -> f64 {
        let mut fleet = Fleet::default();
        let worker = fleet.add("http://127.0.0.1:1");
        fleet.see(Instant::ZERO, worker, Evidence::ProbeAnswered);
        let admission = Admission {
            caps: Caps::default(),
            part: 1.0,
            routers: 1,
            consideration: Consideration::Nobody,
            yields: true,
            wait_at_worker: WaitAtWorker::Unlimited,
            workers_for_long_prompts: f64::INFINITY,
        };
        loop {
            let snapshot = fleet.snapshot_of(Instant::ZERO, worker).unwrap();
            if !admission.is_open(&snapshot) {
                return snapshot.prefill.seconds(snapshot.promised.prefill);
            }
            fleet.promise(Instant::ZERO, worker, Promise { prefill, ..Promise::default() });
        }
    }

    #[test]
    fn a_worker_is_full_after_as_many_seconds_of_turns_at_the_end_of_long_contexts() {
        let turns = seconds_until_closed(PrefillWork::after(Tokens(60_000), Tokens(500)));
        let prompts = seconds_until_closed(PrefillWork::whole(Tokens(500)));
        assert!((turns / prompts - 1.0).abs() < 0.15, "{turns} and {prompts} s");
    }
}
