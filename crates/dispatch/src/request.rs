//! A request between its arrival and its end, and where it is: in the queue, at a worker, or at neither.

use std::time::Duration;

use maitre_base::{
    ClassId, Instant, PrefillAnswer, PrefillWork, Promise, RequestId, TenantId, Tokens, WorkerId,
};
use maitre_fleet::estimate::{Answers, Size};
use maitre_fleet::pulls::PullWatch;
use maitre_fleet::{Barred, ModelId, Wanted};
use maitre_policy::Ask;
use maitre_queue as queue;

use crate::cache::{Prediction, PromptChain};
use crate::event::{Failure, Form, RetryLimit};
use crate::move_budget::{MoveBudget, Moves};
use crate::observer::Ticket;
use crate::placer::{Query, model_of};
use crate::programs::ProgramId;
use crate::reservations::Reservation;

/// Most workers that may fail in the middle of one response within `BREAKS_WINDOW`. Chosen: more than chance gives, so that a
/// request that kills its workers ends before it has killed many.
pub(crate) const BREAKS_MAX: u32 = 16;
/// In which all of a response's breaks are forgotten. Chosen: one every five seconds, as for all responses together. A
/// response of minutes that gets further each time is not to blame for a fleet that loses a worker every second. A request
/// that kills its workers is at each death, and so the first to have had sixteen.
const BREAKS_WINDOW: Duration = Duration::from_secs(5 * BREAKS_MAX as u64);
/// Most workers that may fail one after another while a response gets no further. Chosen: where one attempt in ten dies
/// before its next token, as with a worker of eight killed each second, one response in a million is lost.
pub(crate) const STANDSTILLS_MAX: u32 = 6;

#[derive(Clone, Debug)]
pub(crate) struct PendingRequest {
    pub(crate) id: RequestId,
    pub(crate) wanted: Wanted,
    pub(crate) ask: Ask,
    pub(crate) size: Size,
    /// The most tokens that its client wants.
    pub(crate) answer_max: Option<u64>,
    pub(crate) answers: Answers,
    pub(crate) form: Form,
    /// Whether its KV cache may come from another worker, which prefills it or holds it.
    pub(crate) may_split: bool,
    pub(crate) class: ClassId,
    pub(crate) tenant: TenantId,
    pub(crate) arrived: Instant,
    /// When the first token is due, if the client set a deadline.
    pub(crate) deadline: Option<Instant>,
    /// Until when it may stay in the queue: its deadline, or what its class allows.
    pub(crate) patience: Option<Instant>,
    pub(crate) pool: PoolId,
    pub(crate) prompt: Option<PromptChain>,
    pub(crate) state: RequestState,
    /// Time in the queue, over all attempts, without the wait that is under way.
    pub(crate) waited: Duration,
    /// Workers at which an attempt failed.
    pub(crate) tried: Vec<WorkerId>,
    /// The workers that may take it; none: all.
    pub(crate) only: Option<Box<[WorkerId]>>,
    /// Attempts that reached a worker and failed.
    pub(crate) failovers: u32,
    /// How the last attempt failed.
    pub(crate) failure: Option<Failure>,
    /// Tokens of a response that broke off, which another worker goes on with.
    pub(crate) delivered: Tokens,
    /// How often that has happened.
    pub(crate) interruptions: u32,
    /// What is left of the breaks that it may have.
    pub(crate) breaks: MoveBudget,
    /// Workers that failed one after another since the response last got further.
    pub(crate) standstills: u32,
    /// Workers it was recalled from, once for each recall.
    pub(crate) recalled: Vec<WorkerId>,
    /// Its client has the head of a response, though no token yet: it can no longer be recalled.
    pub(crate) has_response: bool,
    pub(crate) order: AttemptOrder,
    pub(crate) spending: Spending,
    /// When a gateway said that it had sent the request to another worker. How long that one has had it is not known, so
    /// its first token teaches nothing.
    pub(crate) moved: Option<Instant>,
    pub(crate) program: Option<ProgramId>,
    /// How long it was held until its program had memory; a part of `waited`.
    pub(crate) held: Duration,
}

/// Which of two attempts of one request this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptOrder {
    /// The first, and mostly the only one.
    First,
    /// Another was under way when this one began.
    Second,
}

#[derive(Clone, Debug)]
pub(crate) enum RequestState {
    /// Neither queued nor at a worker: just arrived, between two attempts, or answered after its recall.
    Unplaced,
    Waiting(InQueue),
    Placed(Attempt),
}

/// A request in the queue.
#[derive(Clone, Debug)]
pub(crate) struct InQueue {
    pub(crate) since: Instant,
    /// The worker that it waits for; none if it takes any.
    pub(crate) reservation: Option<Reservation>,
}

/// A request at a worker, and what its end will teach.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) worker: WorkerId,
    pub(crate) promise: Promise,
    pub(crate) placed_at: Instant,
    /// What is prefilled before its first token: what is ahead of it, and its own.
    pub(crate) prefill_ahead: PrefillWork,
    /// Its own part of that.
    pub(crate) prefill: PrefillWork,
    pub(crate) prediction: Option<Prediction>,
    /// The adapter that it holds there. Kept, since which models are adapters may change while it is in flight.
    pub(crate) adapter: Option<ModelId>,
    /// Requests at the worker when this one was placed.
    pub(crate) others: u32,
    /// When the first token came, and how many requests the worker had then.
    pub(crate) first_token: Option<(Instant, u32)>,
    pub(crate) progress: Option<StreamProgress>,
    /// Whether its prompt counts as cached and as in use at the worker.
    pub(crate) is_counted: bool,
    /// Whether its prompt is longer than the worker's knee, and not prefilled yet.
    pub(crate) is_long_prefill: bool,
    /// What its tenant was charged when it left the queue.
    pub(crate) charged: Option<f64>,
    pub(crate) ticket: Ticket,
    /// The worker that prefills for this one, if another does.
    pub(crate) prefill_leg: Option<Box<PrefillLeg>>,
    pub(crate) pull: Option<Pull>,
}

/// KV cache that a worker pulls from another, or loads from a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pull {
    /// None: a store.
    pub(crate) source: Option<WorkerId>,
    pub(crate) tokens: Tokens,
    /// Those before them on the worker's link.
    pub(crate) before: Tokens,
    /// What the worker will have prefilled, in plain tokens, once it has done what is promised to it now.
    pub(crate) prefilled_then: Tokens,
    pub(crate) is_under_way: bool,
}

/// A prompt at the worker that prefills it for another.
#[derive(Clone, Debug)]
pub(crate) struct PrefillLeg {
    pub(crate) worker: WorkerId,
    pub(crate) promise: Promise,
    pub(crate) placed_at: Instant,
    /// What is prefilled there before the answer: what is ahead of it, and its own.
    pub(crate) prefill_ahead: PrefillWork,
    pub(crate) prediction: Option<Prediction>,
    /// Tokens that the decode worker fetches.
    pub(crate) fetches: Tokens,
    /// Those before them on its link, once it can fetch them.
    pub(crate) fetched_before: Tokens,
    /// Whether they still count as promised to the decode worker.
    pub(crate) is_fetching: bool,
    /// What its answer means.
    pub(crate) answer: PrefillAnswer,
    /// When it answered.
    pub(crate) answered: Option<Instant>,
    /// It has not, but the decode worker has its KV cache.
    pub(crate) is_presumed: bool,
}

/// How far a response was at one moment, and what its worker had then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamProgress {
    pub(crate) at: Instant,
    pub(crate) pieces: u32,
    pub(crate) requests: u32,
    /// Everything the worker had ever prefilled.
    pub(crate) prefilled: Tokens,
}

/// What a request took of its tenant's allowance.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spending {
    pub(crate) taken: queue::Taken,
    /// Whether other routers learn of it.
    pub(crate) is_published: bool,
}

/// The pool of workers that serve one model. Requests for models that no worker lists share one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolId(pub(crate) u64);

impl PoolId {
    const UNLISTED: PoolId = PoolId(u64::MAX);

    /// The pool of this base model.
    pub(crate) fn of(base: Option<ModelId>) -> PoolId {
        base.map_or(PoolId::UNLISTED, |it| PoolId(u64::from(it.0)))
    }

    pub(crate) fn model(self) -> Option<ModelId> {
        u32::try_from(self.0).ok().map(ModelId)
    }
}

impl PendingRequest {
    /// Prompt and expected response together.
    pub(crate) fn tokens(&self) -> u64 {
        (self.ask.prefill + self.ask.decode).0
    }

    /// Whether it has failed no more workers than it may, and got further often enough.
    pub(crate) fn within_failures(&self, failovers_max: u32) -> Result<(), RetryLimit> {
        match (self.failovers > failovers_max, self.standstills > STANDSTILLS_MAX) {
            (true, _) => Err(RetryLimit::Failovers),
            (_, true) => Err(RetryLimit::Standstills),
            _ => Ok(()),
        }
    }

    /// Counts a break, if it has not had too many lately.
    pub(crate) fn spend_break(&mut self, now: Instant) -> Result<(), RetryLimit> {
        let most = Moves { most: f64::from(BREAKS_MAX), window: BREAKS_WINDOW };
        self.breaks.spend(now, most).then_some(()).ok_or(RetryLimit::Breaks)
    }

    pub(crate) fn model(&self) -> Option<ModelId> {
        model_of(self.wanted)
    }

    pub(crate) fn query(&self) -> Query<'_> {
        Query {
            wanted: self.wanted,
            ask: &self.ask,
            class: self.class,
            prompt: self.prompt.as_ref(),
            barred: self.barred(),
            deadline: self.deadline,
            may_split: self.may_split,
            watch: match self.form {
                Form::Stream => PullWatch::FirstToken,
                Form::Whole => PullWatch::Nothing,
            },
            reservation: self.reservation(),
            program: self.program,
        }
    }

    pub(crate) fn barred(&self) -> Barred<'_> {
        Barred { tried: &self.tried, only: self.only.as_deref() }
    }

    pub(crate) fn reservation(&self) -> Option<&Reservation> {
        self.waiting()?.reservation.as_ref()
    }

    pub(crate) fn attempt(&self) -> Option<&Attempt> {
        match &self.state {
            RequestState::Placed(attempt) => Some(attempt),
            RequestState::Unplaced | RequestState::Waiting(_) => None,
        }
    }

    pub(crate) fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        match &mut self.state {
            RequestState::Placed(attempt) => Some(attempt),
            RequestState::Unplaced | RequestState::Waiting(_) => None,
        }
    }

    pub(crate) fn worker(&self) -> Option<WorkerId> {
        self.attempt().map(|it| it.worker)
    }

    pub(crate) fn waiting(&self) -> Option<&InQueue> {
        match &self.state {
            RequestState::Waiting(waiting) => Some(waiting),
            RequestState::Unplaced | RequestState::Placed(_) => None,
        }
    }

    /// The worker that prefills for the one that answers, until it is done.
    pub(crate) fn prefill_worker(&self) -> Option<WorkerId> {
        let leg = self.attempt()?.prefill_leg.as_ref()?;
        leg.answered.is_none().then_some(leg.worker)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting().is_some()
    }

    /// Takes the attempt away, if there is one.
    pub(crate) fn take_attempt(&mut self) -> Option<Attempt> {
        match std::mem::replace(&mut self.state, RequestState::Unplaced) {
            RequestState::Placed(attempt) => Some(attempt),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Time in the queue over all attempts, up to now.
    pub(crate) fn waited_by(&self, now: Instant) -> Duration {
        self.waited + self.waiting().map_or(Duration::ZERO, |it| now.since(it.since))
    }

    /// Workers that later events of this request may still name.
    pub(crate) fn workers_named(&self) -> impl Iterator<Item = WorkerId> {
        let reserved = self.reservation().map(|it| it.worker);
        let prefills = self.attempt().and_then(|it| it.prefill_leg.as_ref()).map(|it| it.worker);
        let here = self.worker().into_iter().chain(reserved).chain(prefills);
        let allowed = self.only.iter().flat_map(|it| it.iter().copied());
        here.chain(self.tried.iter().copied()).chain(self.recalled.iter().copied()).chain(allowed)
    }
}
