//! From a placement to a job of an engine.

use std::time::Duration;

use maitre_base::{Instant, RequestId, WorkerId};
use maitre_dispatch::{Event, Failure, Placement};

use super::legs::PrefillLeg;
use super::pulls::ArrivedKv;
use super::worker::Submission;
use super::{SimEvent, Simulation, hedges, prepared};
use crate::engine::{Finish, Job, KnownPrompt, Transfer};

impl Simulation<'_> {
    pub(super) fn on_placement(&mut self, now: Instant, placement: &Placement) {
        let request = placement.request.0;
        let leg = placement.prefill.map(|worker| PrefillLeg { worker, held: None });
        self.placement(now, request, (placement.worker, leg), placement.held.map(|it| it.0));
        if let (Some(pull), Some(pending)) = (placement.pull, self.pending.get_mut(&request)) {
            pending.source = Some(pull.worker);
            let attempt = pending.attempt;
            if let Some(limit) = pull.limit {
                self.schedule(now + limit, SimEvent::PullLimit { request, attempt });
            }
        }
        if let Some(pending) = self.pending.get_mut(&request) {
            let record = self.routers[pending.router].decisions().of(placement.request);
            let predicted = record.and_then(|it| it.predicted);
            pending.predicted = predicted.and_then(|it| Duration::try_from_secs_f64(it).ok());
            pending.placed_at = now;
        }
        let Some(attempt) = self.pending.get(&request).map(|it| it.attempt) else { return };
        if let Some(deadline) = placement.deadline {
            self.schedule(deadline, SimEvent::Deadline { request, attempt });
        }
        if let Some(at) = placement.hedge_at {
            self.schedule(at, SimEvent::Hedge { request, attempt });
        }
    }

    pub(super) fn placement(
        &mut self,
        now: Instant,
        request: u64,
        (worker, leg): (WorkerId, Option<PrefillLeg>),
        believed: Option<u64>,
    ) {
        if let Some(pending) = self.pending.get_mut(&request) {
            (pending.worker, pending.leg, pending.believed_tokens) = (worker, leg, believed);
            (pending.source, pending.arrived) = (None, ArrivedKv::default());
            pending.attempt += 1;
            let first = pending.worker_now().index();
            let (attempt, overhead) = (pending.attempt, self.workers[first].profile.overhead);
            self.schedule(now + overhead, SimEvent::Submission { request, attempt });
        }
    }

    pub(super) fn submit(&mut self, now: Instant, request: u64) {
        let Some(pending) = self.pending.get_mut(&request) else { return };
        let (number, router, worker, at) =
            (pending.number, pending.router, pending.worker_now().index(), pending.at);
        let transfer = pending.transfer();
        let asked = &self.prepared.requests[number];
        if !self.workers[worker].up {
            return self.fail(now, request, Failure::Refused);
        }
        let mut tokens = std::mem::take(&mut pending.tokens);
        if tokens.is_empty() {
            prepared::write_tokens(asked, &mut tokens);
        }
        let segment_ends = match self.config.chunks.engines {
            Some(_) => self.prepared.segment_ends(number),
            None => Vec::new(),
        };
        let names = &self.prepared.chains[number][..];
        let mut known = KnownPrompt { names, elsewhere_tokens: 0, segment_ends: &segment_ends };
        let mut root = prepared::root().start();
        if let Some(&ideal) = self.ideal_tokens.get(number) {
            // The rest of the prompt belongs to this request alone; the cache here adds nothing.
            let ideal = ideal.min(tokens.len() as u32 - 1);
            tokens.drain(..ideal as usize);
            known = KnownPrompt { elsewhere_tokens: ideal, ..KnownPrompt::default() };
            root = root.with(hedges::first_of(request));
        }
        let (answer_tokens, finish) = match transfer {
            // Engines generate one token with a prefill, and hold the blocks of an answer that ends at its limit.
            Transfer::Out { .. } => (1, Finish::Length),
            Transfer::None | Transfer::In => (asked.answer_tokens, Finish::Stop),
        };
        let job = Job {
            prompt: tokens,
            root: crate::kv::Root::of_chain(root),
            seed: asked.answer,
            answer_tokens,
            finish,
        };
        if let Some(job) =
            self.workers[worker].submit(request, Submission { arrived: at, job, known, transfer })
        {
            if let Some(pending) = self.pending.get_mut(&request) {
                pending.job = Some(job);
            }
            self.begin_step(now, worker);
        } else {
            self.refuse(now, request);
            self.dispatch(router, now, Event::Declined { request: RequestId(request) });
        }
    }
}
