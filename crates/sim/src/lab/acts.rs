//! What happens to workers whatever is asked of them: they are looked at, and they come, go, slow down and crash.

use std::time::Duration;

use maitre_base::{Instant, KvEvent, RequestId, WorkerId};
use maitre_dispatch::{Event, Failure};
use maitre_fleet::Evidence;

use super::outcome::Sample;
use super::script::Act;
use super::worker::SimWorker;
use super::{Happens, Lab, Open, TICK};

impl Lab<'_> {
    pub(super) fn scrape(&mut self, now: Instant) {
        for worker in 0..self.workers.len() {
            if self.workers[worker].is_gone {
                continue;
            }
            if !self.settings.script.is_empty() {
                let up = self.workers[worker].up;
                let evidence = if up { Evidence::ProbeAnswered } else { Evidence::Refused };
                self.tell_all(now, Event::Probed { worker: WorkerId(worker as u32), evidence });
            }
            if self.workers[worker].post_load() {
                match self.settings.scrape_delay {
                    Duration::ZERO => self.tell_load(now, worker),
                    delay => {
                        let life = self.workers[worker].life;
                        self.foresee(now + delay, Happens::Load { worker, life });
                    }
                }
            }
        }
        self.foresee_again(now, self.settings.scrape_every, Happens::Scrape);
    }

    pub(super) fn tick(&mut self, now: Instant) {
        self.tell_all(now, Event::Tick);
        self.foresee_again(now, TICK, Happens::Tick);
    }

    pub(super) fn tell_load(&mut self, now: Instant, worker: usize) {
        if let Some(load) = self.workers[worker].next_load() {
            self.tell_all(now, Event::LoadReported { worker: WorkerId(worker as u32), load });
        }
    }

    pub(super) fn sample(&mut self, now: Instant) {
        let loads = self.workers.iter().map(SimWorker::requests).collect();
        self.outcome.samples.push(Sample { at: now, loads });
        if !self.is_over() {
            self.foresee(now + self.sample_every, Happens::Sample);
        }
    }

    pub(super) fn act(&mut self, now: Instant, number: usize) {
        let act = self.settings.script.acts[number].1;
        match act {
            Act::Join { profile, count } => (0..count).for_each(|_| self.join(now, profile)),
            Act::Leave(worker) => {
                self.workers[worker as usize].is_gone = true;
                self.tell_all(now, Event::WorkerGone { worker: WorkerId(worker) });
            }
            Act::Drain(worker) | Act::Resume(worker) => {
                let draining = matches!(act, Act::Drain(_));
                self.workers[worker as usize].is_draining = draining;
                self.tell_all(now, Event::WorkerDrained { worker: WorkerId(worker), draining });
            }
            Act::Slow { worker, factor } => self.workers[worker as usize].slowness = factor,
            Act::Crash(worker) => self.crash(now, worker as usize),
            Act::Start(worker) => self.workers[worker as usize].up = true,
            Act::Restart(worker) => {
                self.crash(now, worker as usize);
                self.workers[worker as usize].up = true;
            }
        }
    }

    /// The process is gone, with all it had.
    fn crash(&mut self, now: Instant, worker: usize) {
        if self.has_events() {
            self.tell_all(
                now,
                Event::CacheChanged { worker: WorkerId(worker as u32), event: KvEvent::Cleared },
            );
        }
        let mut lost = self.workers[worker].crash();
        lost.sort_unstable();
        for request in lost {
            // It may have ended there, or been taken back, and be elsewhere by now.
            let is_here = |it: &&Open| it.worker.index() == worker && it.job.is_some();
            let Some(open) = self.open.get(&request).filter(is_here) else { continue };
            let (number, router, began) = (open.number, open.router, open.first.is_some());
            if began {
                self.open.remove(&request);
                self.outcome.break_off(&self.prepared.requests[number]);
                self.tell(router, now, Event::BrokeOff { request: RequestId(request) });
            } else {
                self.fail(now, request, Failure::Broke);
            }
        }
    }
}
