//! Events of workers: scrapes, ticks, load samples and the actions of a script.

use std::time::Duration;

use maitre_base::{Instant, KvEvent, RequestId, WorkerId};
use maitre_dispatch::{Event, Failure};
use maitre_fleet::Evidence;
use maitre_index::feed::Action;

use super::lossy::LossyFeed;
use super::outcome::LoadSample;
use super::script::{ScriptAction, WorkerGroup};
use super::worker::{CacheEventBatch, SimWorker};
use super::{PendingRequest, SimEvent, Simulation, TICK};

impl Simulation<'_> {
    pub(super) fn scrape(&mut self, now: Instant) {
        for worker in 0..self.workers.len() {
            if self.workers[worker].is_gone {
                continue;
            }
            if !self.config.script.is_empty() {
                let up = self.workers[worker].up;
                let evidence = if up { Evidence::ProbeAnswered } else { Evidence::Refused };
                self.dispatch_to_all(now, Event::Probed { worker: WorkerId(worker as u32), evidence });
            }
            if self.workers[worker].post_load() {
                match self.config.scrape_delay {
                    Duration::ZERO => self.deliver_load(now, worker),
                    delay => {
                        let incarnation = self.workers[worker].incarnation;
                        self.schedule(now + delay, SimEvent::Load { worker, incarnation });
                    }
                }
            }
        }
        if self.config.autoscale.is_some() {
            self.retire_drained(now);
        }
        self.schedule_next(now, self.config.scrape_every, SimEvent::Scrape);
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.dispatch_to_all(now, Event::Tick);
        self.schedule_next(now, TICK, SimEvent::Tick);
    }

    pub(super) fn deliver_load(&mut self, now: Instant, worker: usize) {
        if let Some(load) = self.workers[worker].next_load() {
            self.dispatch_to_all(now, Event::LoadReported { worker: WorkerId(worker as u32), load });
        }
    }

    /// Passes a batch through a feed that may lose it.
    pub(super) fn deliver_lossy(
        &mut self,
        now: Instant,
        number: usize,
        lossy: &mut LossyFeed,
        batch: &mut CacheEventBatch,
    ) {
        let worker = WorkerId(number as u32);
        if !lossy.send(now) {
            return batch.discard();
        }
        while let Some(action) = lossy.next_action(now) {
            match action {
                Action::Apply(_) => self.apply_events(now, number, batch),
                Action::Clear => {
                    self.dispatch_to_all(now, Event::CacheChanged { worker, event: KvEvent::Cleared });
                }
                Action::Doubt => self.dispatch_to_all(now, Event::ReportsLost { worker }),
                // There is no replay here.
                Action::AskReplay { .. } => {}
            }
        }
        if lossy.is_cold() && self.routers.iter().all(|it| it.cache().is_complete(worker)) {
            lossy.complete(now);
        }
        if let Some(trust) = lossy.changed_trust() {
            self.dispatch_to_all(now, Event::TrustChanged { worker, trust });
        }
    }

    pub(super) fn sample(&mut self, now: Instant) {
        let loads = self.workers.iter().map(SimWorker::requests).collect();
        self.outcome.samples.push(LoadSample { at: now, loads });
        if !self.is_over() {
            self.schedule(now + self.sample_every, SimEvent::Sample);
        }
    }

    pub(super) fn run_action(&mut self, now: Instant, number: usize) {
        let action = self.config.script.actions[number].1;
        match action {
            ScriptAction::Join(WorkerGroup { profile, role, count }) => {
                (0..count).for_each(|_| self.join(now, profile, role));
            }
            ScriptAction::Leave(worker) => {
                self.workers[worker as usize].is_gone = true;
                self.dispatch_to_all(now, Event::WorkerGone { worker: WorkerId(worker) });
            }
            ScriptAction::Drain(worker) | ScriptAction::Resume(worker) => {
                let draining = matches!(action, ScriptAction::Drain(_));
                self.workers[worker as usize].is_draining = draining;
                self.dispatch_to_all(now, Event::WorkerDrained { worker: WorkerId(worker), draining });
            }
            ScriptAction::Slow { worker, factor } => self.workers[worker as usize].slowness = factor,
            ScriptAction::Stall { worker, span } => self.workers[worker as usize].stalled_until = now + span,
            ScriptAction::Crash(worker) => self.crash(now, worker as usize),
            ScriptAction::Start(worker) => self.workers[worker as usize].up = true,
            ScriptAction::Restart(worker) => {
                self.crash(now, worker as usize);
                self.workers[worker as usize].up = true;
            }
        }
    }

    /// The worker's process dies with everything it held.
    fn crash(&mut self, now: Instant, worker: usize) {
        if self.has_events() {
            self.dispatch_to_all(
                now,
                Event::CacheChanged { worker: WorkerId(worker as u32), event: KvEvent::Cleared },
            );
        }
        let mut lost = self.workers[worker].crash();
        lost.sort_unstable();
        for request in lost {
            // It may have ended, or been cancelled and placed on another worker.
            let is_here = |it: &&PendingRequest| it.worker_now().index() == worker && it.job.is_some();
            let Some(pending) = self.pending.get(&request).filter(is_here) else { continue };
            let (number, router, began) = (pending.number, pending.router, pending.first.is_some());
            if began {
                self.pending.remove(&request);
                self.outcome.break_off(&self.prepared.requests[number]);
                self.dispatch(router, now, Event::BrokeOff { request: RequestId(request) });
                self.call_lost(now, number);
                self.client_is_free(now);
            } else {
                self.fail(now, request, Failure::Broke);
            }
        }
    }
}
