//! From an arrival to a pending request: its model, its expected work, its tenant's allowance.

use std::time::Duration;

use maitre_base::{ClassId, Instant, Tokens};
use maitre_fleet::Wanted;
use maitre_policy::Ask;
use maitre_queue::OverLimit;

use super::programs::call_patience;
use super::{Brain, Parts};
use crate::cache::PromptChain;
use crate::event::{Arrival, Effect, Refusal};
use crate::move_budget::MoveBudget;
use crate::observer::Fact;
use crate::placer::model_of;
use crate::request::{AttemptOrder, PendingRequest, RequestState, Spending};
use crate::scheduler::pool_of;

/// The block of a prompt by which routers break ties: 256 tokens in, with blocks of 16, which is past most greetings and
/// within most instructions. Prompts that share it should go to the same worker.
const TIE_BLOCK: usize = 16;

impl Brain {
    pub(super) fn arrived(&mut self, now: Instant, arrival: &Arrival<'_>, effects: &mut Vec<Effect>) {
        self.parts.scheduler.retry_budget.earn(now);
        let id = arrival.request;
        match self.parts.accept(now, arrival) {
            Ok(request) => {
                self.parts.scaling.arrived(now, &request, &self.parts.settings.scaling);
                let goes = request.program.is_none_or(|it| self.parts.call_goes(now, &request, it));
                self.pending.insert(id.0, request);
                match goes {
                    true => self.admit(now, id, Refusal::NoWorker, effects),
                    false => effects.push(Effect::Wait { request: id }),
                }
            }
            Err(refusal) => effects.push(Effect::Refuse { request: id, refusal }),
        }
    }
}

impl Parts {
    /// A request that its tenant may send, with the allowance taken.
    fn accept(&mut self, now: Instant, arrival: &Arrival<'_>) -> Result<Box<PendingRequest>, Refusal> {
        let mut request = self.pending_request(now, arrival)?;
        request.program = self.programs.identify(arrival.program, arrival.prompt);
        if request.program.is_some() {
            request.patience = call_patience(&self.settings, &request);
        }
        let settings = &self.settings.queue;
        if !settings.enabled {
            return Ok(request);
        }
        let terms = settings.terms(request.tenant);
        let taken = self.scheduler.allowances.take(now, request.tenant, terms, request.tokens());
        let taken = taken.map_err(rate_limited)?;
        request.spending = Spending { taken, is_published: self.is_spending_published(&request) };
        if request.spending.is_published {
            let model = self.model_hash_of(&request);
            self.observer.on(Fact::Spent { model, tenant: request.tenant, tokens: request.tokens() });
        }
        Ok(request)
    }

    /// A request as it is before anything is decided. Boxed at once: it has 700 bytes, and was moved five times.
    pub(super) fn pending_request(
        &self,
        now: Instant,
        arrival: &Arrival<'_>,
    ) -> Result<Box<PendingRequest>, Refusal> {
        let wanted = self.wanted(arrival.model)?;
        let estimate = self.fleet.estimate(model_of(wanted));
        let work = estimate.work(arrival.size, arrival.answer_max, arrival.answers);
        let ask = Ask {
            prefill: work.prompt,
            decode: work.answer,
            session: arrival.session,
            head: arrival.head,
            tie: self.tie(arrival, wanted),
            attempt: 0,
        };
        let queue = &self.settings.queue;
        let class = ClassId(arrival.class.0.min(queue.classes.len() as u8 - 1));
        let deadline = arrival.deadline.filter(|_| queue.enabled);
        let patience = deadline.or_else(|| queue.classes[class.index()].deadline.map(|it| now + it));
        Ok(Box::new(PendingRequest {
            id: arrival.request,
            wanted,
            ask,
            size: arrival.size,
            answer_max: arrival.answer_max,
            answers: arrival.answers,
            form: arrival.form,
            may_split: arrival.may_split,
            class,
            tenant: arrival.tenant,
            arrived: now,
            deadline,
            patience,
            pool: pool_of(wanted, &self.fleet),
            prompt: arrival.prompt.cloned(),
            state: RequestState::Unplaced,
            waited: Duration::ZERO,
            tried: Vec::new(),
            only: self.allowed(arrival)?,
            failovers: 0,
            failure: None,
            delivered: Tokens::ZERO,
            interruptions: 0,
            breaks: MoveBudget::default(),
            standstills: 0,
            recalled: Vec::new(),
            has_response: false,
            order: AttemptOrder::First,
            spending: Spending::default(),
            moved: None,
            program: None,
            held: Duration::ZERO,
        }))
    }

    fn wanted(&self, model: Option<&str>) -> Result<Wanted, Refusal> {
        let wanted = match model.map(|name| self.fleet.model(name)) {
            Some(Some(model)) => Wanted::Model(model),
            Some(None) => Wanted::Unlisted,
            None if self.fleet.all_alike() => Wanted::Anything,
            None => return Err(Refusal::ModelRequired),
        };
        match wanted {
            _ if self.fleet.anyone_serves(wanted) => Ok(wanted),
            _ => self.expected(model).map(Wanted::Model).ok_or(match wanted {
                Wanted::Unlisted if self.fleet.has_lists() => Refusal::UnknownModel,
                _ => Refusal::NoWorker,
            }),
        }
    }

    /// By what strategies break ties for this request; none where they use dice.
    fn tie(&self, arrival: &Arrival<'_>, wanted: Wanted) -> Option<u64> {
        if !self.settings.shares {
            return None;
        }
        // A prompt that is read for shadows alone does not count: picks are what they would be without shadows.
        let block = |it: &PromptChain| it.chain.iter().take(TIE_BLOCK).next_back().map(|it| it.0);
        let strategy = self.placer.strategies.of(model_of(wanted)).name();
        let read = arrival.prompt.filter(|_| strategy.needs().cache);
        let others = || {
            let needs = self.settings.needs_in_charge();
            arrival.head.filter(|_| needs.head).or(arrival.session.filter(|_| needs.session))
        };
        read.and_then(block).or_else(others)
    }

    /// Whether other routers must know what this request spends: if its tenant is limited, or if tenants compete in a
    /// queue.
    fn is_spending_published(&self, request: &PendingRequest) -> bool {
        let is_limited = || self.settings.queue.terms(request.tenant).are_limited();
        self.settings.shares && (self.scheduler.waiting() > 0 || is_limited())
    }

    /// The name by which routers know the model of this request's pool; zero for none.
    pub(super) fn model_hash_of(&self, request: &PendingRequest) -> u64 {
        request.pool.model().map_or(0, |it| self.fleet.hash_of(it))
    }
}

pub(super) fn rate_limited(OverLimit { retry_after, limit }: OverLimit) -> Refusal {
    Refusal::RateLimited { retry_after, limit }
}
