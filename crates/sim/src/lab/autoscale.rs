//! Starts and stops workers during a run: by the router's own number, or by the signals that autoscalers use without
//! it.
//!
//! All rules share the mechanics of a Kubernetes autoscaler. It looks every fifteen seconds, at most doubles the
//! fleet or adds four workers at once, and a worker takes requests `start_up` after its order. A worker that is
//! removed takes no new requests and leaves when it has finished those it has; one that has not started yet goes
//! first. The rules by queue length, requests and KV usage also have its tolerance of a tenth, and fall only to the
//! most that they wanted in five minutes.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use maitre_base::{ClassId, Instant, Role, WorkerId};
use maitre_dispatch::{Brain, Event};
use maitre_queue::settings::CLASSES_MAX;

use super::{SimEvent, Simulation};
use crate::engine::EngineStats;
use crate::profile::{Profile, Work};

/// Kubernetes' defaults: how often it looks, how long it waits before it shrinks a fleet, what it ignores, and by how much
/// it grows at once.
const EVERY: Duration = Duration::from_secs(15);
const STABLE: Duration = Duration::from_secs(300);
const TOLERANCE: f64 = 0.1;
const ADDED_MAX: u32 = 4;

/// What decides how many workers there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleRule {
    /// `maitre_desired_workers`.
    Desired,
    /// This many waiting requests per worker, in the router and in engines.
    Queue(f64),
    /// This many waiting or running requests per worker.
    Requests(f64),
    /// This part of the KV cache in use.
    Kv(f64),
}

impl fmt::Display for ScaleRule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScaleRule::Desired => out.write_str("maitre"),
            ScaleRule::Queue(target) => write!(out, "queue-{target}"),
            ScaleRule::Requests(target) => write!(out, "requests-{target}"),
            ScaleRule::Kv(target) => write!(out, "kv-{target}"),
        }
    }
}

impl FromStr for ScaleRule {
    type Err = String;

    fn from_str(text: &str) -> Result<ScaleRule, String> {
        let wrong = || {
            let known = "maitre, queue-N (waiting requests per worker), requests-N (waiting and running ones), kv-PART";
            format!("{text:?} is not a scaling rule; write one of {known}, such as queue-5 or kv-0.7")
        };
        if text == "maitre" {
            return Ok(ScaleRule::Desired);
        }
        let (name, target) = text.split_once('-').ok_or_else(wrong)?;
        let target = target.parse().ok().filter(|it| (0.01..=10_000.0).contains(it)).ok_or_else(wrong)?;
        match name {
            "queue" => Ok(ScaleRule::Queue(target)),
            "requests" => Ok(ScaleRule::Requests(target)),
            "kv" if target <= 1.0 => Ok(ScaleRule::Kv(target)),
            _ => Err(wrong()),
        }
    }
}

/// A fleet that grows and shrinks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Autoscale {
    pub rule: ScaleRule,
    /// The profile of new workers.
    pub profile: Profile,
    /// From a worker's order until it takes requests.
    pub start_up: Duration,
    pub workers_max: u32,
}

/// The cost of a fleet that grows and shrinks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScaleTotals {
    /// The profile of its workers, if any was ordered or could be.
    profile: Option<Profile>,
    /// From the order of each worker until it was gone, or until the last answer was complete.
    pub worker_hours: f64,
    pub workers_max: u32,
    /// How often the fleet grew or shrank.
    pub changes: u64,
}

impl ScaleTotals {
    /// An idle worker's TTFT for a prompt of this length, without anything cached.
    pub(super) fn alone(&self, prompt_tokens: u32) -> Duration {
        let tokens = f64::from(prompt_tokens);
        let (prefill_tokens, attended_tokens) = (u64::from(prompt_tokens), tokens * tokens / 2.0);
        let work = Work { prefill_tokens, attended_tokens, ..Work::default() };
        self.profile.map_or(Duration::ZERO, |it| it.overhead + it.step.duration(&work))
    }
}

/// The state of the autoscaler.
#[derive(Debug, Default)]
pub(super) struct ScaleState {
    /// When each worker was ordered, by number, and when it was gone.
    spans: Vec<(Instant, Option<Instant>)>,
    /// When each worker that has not started was ordered, oldest first.
    starting: VecDeque<Instant>,
    /// What the rule wanted in the last minutes.
    wanted: VecDeque<(Instant, u32)>,
    totals: ScaleTotals,
}

impl ScaleState {
    /// A worker joins that was ordered at `ordered`.
    pub(super) fn joined(&mut self, ordered: Instant) {
        self.spans.push((ordered, None));
    }

    pub(super) fn totals(&self, end: Instant, profile: Profile) -> ScaleTotals {
        let spans = self.spans.iter().map(|&(from, to)| to.unwrap_or(end).since(from));
        let ordered = self.starting.iter().map(|&from| end.since(from));
        let seconds: f64 = spans.chain(ordered).map(|it| it.as_secs_f64()).sum();
        ScaleTotals { worker_hours: seconds / 3_600.0, profile: Some(profile), ..self.totals }
    }

    /// The most that the rule wanted within the last minutes, this included.
    fn stable(&mut self, now: Instant, wanted: u32) -> u32 {
        self.wanted.push_back((now, wanted));
        while self.wanted.front().is_some_and(|it| now.since(it.0) > STABLE) {
            self.wanted.pop_front();
        }
        self.wanted.iter().map(|it| it.1).max().unwrap_or(wanted)
    }
}

impl Simulation<'_> {
    pub(super) fn start_scaling(&mut self) {
        if self.config.autoscale.is_some() {
            self.schedule(Instant::ZERO + EVERY, SimEvent::Scale);
        }
    }

    /// The autoscaler looks, and orders or drains workers.
    pub(super) fn scale(&mut self, now: Instant) {
        let Some(autoscale) = self.config.autoscale else { return };
        let taking: Vec<usize> = (0..self.workers.len()).filter(|&it| self.workers[it].takes()).collect();
        let present = (taking.len() + self.scaling.starting.len()) as u32;
        let wanted = self.wanted(now, autoscale.rule, &taking);
        let limit = (present * 2).max(present + ADDED_MAX).min(autoscale.workers_max);
        let wanted = wanted.clamp(1, limit);
        self.scaling.totals.workers_max = self.scaling.totals.workers_max.max(present.max(wanted));
        self.scaling.totals.changes += u64::from(wanted != present);
        for _ in present..wanted {
            self.scaling.starting.push_back(now);
            self.schedule(now + autoscale.start_up, SimEvent::Started { ordered: now });
        }
        for _ in wanted..present {
            // Withdraw what has not started yet first, starting with the newest.
            if self.scaling.starting.pop_back().is_none() {
                self.drain_one(now);
            }
        }
        self.schedule_next(now, EVERY, SimEvent::Scale);
    }

    /// A worker is ready, unless its order was withdrawn.
    pub(super) fn started(&mut self, now: Instant, ordered: Instant) {
        let Some(autoscale) = self.config.autoscale else { return };
        if self.scaling.starting.front() == Some(&ordered) {
            self.scaling.starting.pop_front();
            self.join(now, autoscale.profile, Role::Both);
            if let Some(span) = self.scaling.spans.last_mut() {
                span.0 = ordered;
            }
        }
    }

    /// Removes the workers that were drained and have finished their requests.
    pub(super) fn retire_drained(&mut self, now: Instant) {
        let is_done = |it: &usize| {
            let worker = &self.workers[*it];
            worker.is_draining && !worker.is_gone && worker.requests() == 0
        };
        let done: Vec<usize> = (0..self.workers.len()).filter(is_done).collect();
        for number in done {
            if self.pending.values().any(|it| it.worker_now().index() == number && it.attempt > 0) {
                continue;
            }
            self.workers[number].is_gone = true;
            self.scaling.spans[number].1 = Some(now);
            self.dispatch_to_all(now, Event::WorkerGone { worker: WorkerId(number as u32) });
        }
    }

    fn drain_one(&mut self, now: Instant) {
        let taking = (0..self.workers.len()).filter(|&it| self.workers[it].takes());
        // The one with the fewest requests, the newest of several.
        let Some(number) = taking.min_by_key(|&it| (self.workers[it].requests(), usize::MAX - it)) else {
            return;
        };
        self.workers[number].is_draining = true;
        let worker = WorkerId(number as u32);
        self.dispatch_to_all(now, Event::WorkerDrained { worker, draining: true });
    }

    /// How many workers the rule wants.
    fn wanted(&mut self, now: Instant, rule: ScaleRule, taking: &[usize]) -> u32 {
        let present = (taking.len() + self.scaling.starting.len()) as u32;
        let (target, total) = match rule {
            ScaleRule::Desired => {
                let desired = self.routers[0].scaling().first().map(|it| it.desired.workers);
                return desired.unwrap_or(present);
            }
            ScaleRule::Queue(target) => (target, self.count(taking, |stats| stats.waiting)),
            ScaleRule::Requests(target) => (target, self.count(taking, |it| it.waiting + it.running)),
            ScaleRule::Kv(target) => {
                let usage = |&it: &usize| {
                    let stats = self.workers[it].engine.stats();
                    f64::from(stats.used_blocks) / f64::from(stats.capacity_blocks)
                };
                (target, taking.iter().map(usage).sum())
            }
        };
        let ratio = total / (target * f64::from(present.max(1)));
        let wanted = match (ratio - 1.0).abs() <= TOLERANCE {
            true => present,
            false => (total / target).ceil() as u32,
        };
        self.scaling.stable(now, wanted)
    }

    /// Requests in engines, and in the queues of the routers.
    fn count(&self, taking: &[usize], of: impl Fn(&EngineStats) -> usize) -> f64 {
        let engines: usize = taking.iter().map(|&it| of(&self.workers[it].engine.stats())).sum();
        engines as f64 + self.routers.iter().map(queued).sum::<f64>()
    }
}

fn queued(router: &Brain) -> f64 {
    (0..CLASSES_MAX as u8).map(|it| f64::from(router.waiting(ClassId(it)).requests)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_back_as_they_are_written() {
        for text in ["maitre", "queue-5", "requests-16", "kv-0.7"] {
            assert_eq!(text.parse::<ScaleRule>().unwrap().to_string(), text);
        }
        for text in ["", "queue", "queue-", "queue-0", "kv-7", "cpu-0.5", "requests-x"] {
            assert!(text.parse::<ScaleRule>().unwrap_err().contains("write one of"), "{text}");
        }
    }

    #[test]
    fn a_fleet_shrinks_to_the_most_that_was_wanted_in_five_minutes() {
        let mut state = ScaleState::default();
        let seen: Vec<u32> = [(0, 4), (15, 9), (30, 2), (200, 3), (315, 2), (330, 1), (600, 1)]
            .map(|(second, wanted)| state.stable(Instant::from_millis(second * 1_000), wanted))
            .to_vec();
        assert_eq!(seen, [4, 9, 9, 9, 9, 3, 2]);
    }
}
