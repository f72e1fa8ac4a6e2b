//! What a run left behind.

use std::time::Duration;

use maitre_base::{Instant, WorkerId};

use maitre_queue::WorkerLimits;

use super::sync::Talk;
use crate::report::{How, Lost, Row, Seen, Targets};
use crate::trace::Request;

/// What became of one request that was answered.
#[derive(Clone, Debug)]
pub struct Answer {
    pub seen: Seen,
    pub worker: WorkerId,
    /// What the router believed was cached, if it looked.
    pub believed_tokens: Option<u64>,
    /// From its seat to its first token: as the router foresaw it, if it did, and as it was.
    pub foreseen: Option<(Duration, Duration)>,
}

/// What one worker did.
#[derive(Clone, Copy, Debug)]
pub struct Worked {
    pub profile: &'static str,
    pub answered: u64,
    /// How long it computed.
    pub busy: Duration,
    pub evictions: u64,
    pub preemptions: u64,
    /// What the first router would let it have at the end.
    pub limits: Option<WorkerLimits>,
}

/// Requests at each worker, running and waiting, at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    pub at: Instant,
    pub loads: Box<[u32]>,
}

#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// In the order in which they ended.
    pub answers: Vec<Answer>,
    pub refused: u64,
    /// Times that clients came again when they had been told to.
    pub returns: u64,
    /// Begun, and broken off by a crash.
    pub failed: u64,
    /// Both, each with what it was.
    pub lost: Vec<Lost>,
    pub workers: Vec<Worked>,
    pub samples: Vec<Sample>,
    /// What routers told each other.
    pub talk: Talk,
    /// How long the router took to decide, if somebody held a watch.
    pub deciding: Duration,
}

impl Outcome {
    pub fn seen(&self) -> Vec<Seen> {
        self.answers.iter().map(|it| it.seen.clone()).collect()
    }

    pub fn row(&self, strategy: &str, targets: &Targets) -> Row {
        let count = |count: fn(&Worked) -> u64| Some(self.workers.iter().map(count).sum());
        Row {
            returns: (self.returns > 0).then_some(self.returns),
            told_bytes: self.told_bytes(),
            limit_prefill_tokens: self.mean_limit(|it| it.prefill_tokens as f64),
            limit_requests: self.mean_limit(|it| f64::from(it.sequences)),
            imbalance: Some(self.imbalance()),
            evictions: count(|it| it.evictions),
            preemptions: count(|it| it.preemptions),
            ..Row::of(strategy, &self.seen(), &self.lost, targets)
        }
    }

    /// A row for each part of the trace, if it has several.
    pub fn parts(&self, strategy: &str, targets: &Targets) -> Vec<Row> {
        Row::by_part(strategy, &self.seen(), &self.lost, targets)
    }

    /// A row for each class, if there are several.
    pub fn classes(&self, strategy: &str, targets: &Targets) -> Vec<Row> {
        Row::by_class(strategy, &self.seen(), &self.lost, targets)
    }

    /// A row for each tenant, if there are several.
    pub fn tenants(&self, strategy: &str, targets: &Targets) -> Vec<Row> {
        Row::by_tenant(strategy, &self.seen(), &self.lost, targets)
    }

    pub(super) fn refuse(&mut self, request: &Request) {
        self.refused += 1;
        self.lost.push(Lost { label: request.label(), how: How::Refused });
    }

    pub(super) fn break_off(&mut self, request: &Request) {
        self.failed += 1;
        self.lost.push(Lost { label: request.label(), how: How::Failed });
    }

    fn told_bytes(&self) -> Option<f64> {
        let requests = self.answers.len() as u64 + self.refused + self.failed;
        let each = self.talk.bytes as f64 / requests.max(1) as f64;
        (self.talk.frames > 0).then_some((each * 10.0).round() / 10.0)
    }

    fn mean_limit(&self, of: fn(&WorkerLimits) -> f64) -> Option<f64> {
        let limits: Vec<f64> = self.workers.iter().filter_map(|it| it.limits.as_ref().map(of)).collect();
        (!limits.is_empty()).then(|| (limits.iter().sum::<f64>() / limits.len() as f64).round())
    }

    /// How long the busiest worker computed, beside the mean.
    pub fn imbalance(&self) -> f64 {
        let busy: Vec<f64> = self.workers.iter().map(|it| it.busy.as_secs_f64()).collect();
        let most = busy.iter().copied().fold(0.0, f64::max);
        let mean = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
        if mean > 0.0 { (most / mean * 1e6).round() / 1e6 } else { 1.0 }
    }

    /// The part of all prompt tokens that each worker had to compute.
    pub fn shares(&self) -> Vec<f64> {
        let mut work = vec![0.0; self.workers.len()];
        for it in &self.answers {
            work[it.worker.index()] += f64::from(it.seen.prompt_tokens - it.seen.cached_tokens);
        }
        let all: f64 = work.iter().sum();
        work.iter().map(|it| it / all).collect()
    }
}
