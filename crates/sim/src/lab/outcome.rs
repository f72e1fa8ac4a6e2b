//! The result of a run.

use std::time::Duration;

use maitre_base::{Instant, WorkerId};

use maitre_queue::WorkerLimits;

use super::autoscale::ScaleTotals;
use super::pulls::ArrivedKv;
use super::sync::SyncTraffic;
use crate::report::{self, AnswerMetrics, LossCause, LostRequest, ReportRow, Targets, mean, quantile};
use crate::sessions::tasks::{PlayedSession, add_tasks};
use crate::trace::Request;

/// One answered request.
#[derive(Clone, Debug)]
pub struct AnsweredRequest {
    /// Its index in the trace.
    pub number: usize,
    pub metrics: AnswerMetrics,
    pub worker: WorkerId,
    /// The cached tokens that the router expected, if it looked.
    pub believed_tokens: Option<u64>,
    /// Tokens from other workers and from the store, without a prefill leg.
    pub arrived: ArrivedKv,
    /// TTFT from the placement: the router's prediction, if it made one, and the actual time.
    pub predicted: Option<(Duration, Duration)>,
}

/// One worker's totals.
#[derive(Clone, Copy, Debug)]
pub struct WorkerTotals {
    pub profile: &'static str,
    pub answered: u64,
    /// How long it computed.
    pub busy: Duration,
    pub evictions: u64,
    pub preemptions: u64,
    /// The limits that the first router had learned for it at the end.
    pub limits: Option<WorkerLimits>,
}

/// Requests at each worker, running and waiting, at one instant.
#[derive(Clone, Debug)]
pub struct LoadSample {
    pub at: Instant,
    pub loads: Box<[u32]>,
}

#[derive(Clone, Debug, Default)]
pub struct RunOutcome {
    /// In order of completion.
    pub answers: Vec<AnsweredRequest>,
    pub refused: u64,
    /// How often clients retried after a refusal.
    pub returns: u64,
    /// Second attempts of requests whose first token was overdue.
    pub hedges: u64,
    /// Started, and aborted by a crash.
    pub failed: u64,
    /// Refused and failed requests with their labels.
    pub lost: Vec<LostRequest>,
    /// In order of their ends.
    pub sessions: Vec<PlayedSession>,
    pub workers: Vec<WorkerTotals>,
    /// Whether workers could pull from each other, and load from a store.
    pub has_pulls: bool,
    pub has_store: bool,
    pub samples: Vec<LoadSample>,
    /// The cost of the fleet, if it grew and shrank.
    pub scaled: Option<ScaleTotals>,
    /// Traffic between routers.
    pub traffic: SyncTraffic,
    /// How long the router took to decide, if it was measured.
    pub decision_time: Duration,
}

impl RunOutcome {
    pub fn metrics(&self) -> Vec<AnswerMetrics> {
        self.answers.iter().map(|it| it.metrics.clone()).collect()
    }

    pub fn row(&self, strategy: &str, targets: &Targets) -> ReportRow {
        let count = |count: fn(&WorkerTotals) -> u64| Some(self.workers.iter().map(count).sum());
        let errors = self.forecast_errors();
        let [pulled, loaded] = [
            self.has_pulls.then(|| self.arrived(|it| it.pulled_tokens)),
            self.has_store.then(|| self.arrived(|it| it.loaded_tokens)),
        ];
        let row = ReportRow {
            pulled_tokens: pulled.map(|it| it.0),
            pulled_requests: pulled.map(|it| it.1),
            loaded_tokens: loaded.map(|it| it.0),
            loaded_requests: loaded.map(|it| it.1),
            returns: (self.returns > 0).then_some(self.returns),
            missed: self.scaled.map(|it| self.missed(&it, targets)),
            worker_hours: self.scaled.map(|it| (it.worker_hours * 1e3).round() / 1e3),
            workers_max: self.scaled.map(|it| u64::from(it.workers_max)),
            scale_changes: self.scaled.map(|it| it.changes),
            told_bytes: self.told_bytes(),
            limit_prefill_tokens: self.mean_limit(|it| it.prefill_tokens as f64),
            limit_requests: self.mean_limit(|it| f64::from(it.sequences)),
            imbalance: Some(self.imbalance()),
            evictions: count(|it| it.evictions),
            preemptions: count(|it| it.preemptions),
            forecast_error_ratio: errors.map(|it| it.0),
            forecast_error_mean_ratio: errors.map(|it| it.1),
            ..ReportRow::of(strategy, &self.metrics(), &self.lost, targets)
        };
        if self.sessions.is_empty() { row } else { add_tasks(row, self.sessions.iter()) }
    }

    /// Requests whose first token came after their deadline, or never. Without a deadline it is due after the target.
    /// If twice the time that an idle worker takes for the prompt is longer, it is due then.
    fn missed(&self, scaled: &ScaleTotals, targets: &Targets) -> u64 {
        let usual = |it: &AnswerMetrics| targets.first_token.max(scaled.alone(it.prompt_tokens) * 2);
        let due = |it: &AnswerMetrics| it.label.deadline.unwrap_or_else(|| usual(it));
        let late = self.answers.iter().filter(|it| it.metrics.first_token > due(&it.metrics)).count();
        (late + self.lost.len()) as u64
    }

    /// How many tokens arrived, and for how many requests.
    fn arrived(&self, tokens: fn(&ArrivedKv) -> u32) -> (u64, u64) {
        let arrived = self.answers.iter().map(|it| u64::from(tokens(&it.arrived))).filter(|&it| it > 0);
        arrived.fold((0, 0), |(sum, count), it| (sum + it, count + 1))
    }

    /// The median and the mean of |predicted − actual| / actual of TTFT, from the placement; `None` if nothing was
    /// predicted.
    fn forecast_errors(&self) -> Option<(f64, f64)> {
        let error = |(predicted, actual): (Duration, Duration)| {
            (!actual.is_zero()).then(|| predicted.abs_diff(actual).div_duration_f64(actual))
        };
        let mut errors: Vec<f64> =
            self.answers.iter().filter_map(|it| it.predicted.and_then(error)).collect();
        errors.sort_unstable_by(f64::total_cmp);
        (!errors.is_empty()).then(|| (quantile(&errors, 0.5), mean(&errors)))
    }

    /// A row for each part of the trace, if it has several.
    pub fn parts(&self, strategy: &str, targets: &Targets) -> Vec<ReportRow> {
        ReportRow::by_part(strategy, &self.metrics(), &self.lost, targets)
    }

    /// A row for each class, if there are several.
    pub fn classes(&self, strategy: &str, targets: &Targets) -> Vec<ReportRow> {
        ReportRow::by_class(strategy, &self.metrics(), &self.lost, targets)
    }

    /// A row for each tenant, if there are several.
    pub fn tenants(&self, strategy: &str, targets: &Targets) -> Vec<ReportRow> {
        let rows = ReportRow::by_tenant(strategy, &self.metrics(), &self.lost, targets);
        let with_sessions = |row: ReportRow| match row.tenant.clone() {
            Some(name) if !self.sessions.is_empty() => {
                add_tasks(row, self.sessions.iter().filter(|it| report::tenant(it.tenant) == name))
            }
            _ => row,
        };
        rows.into_iter().map(with_sessions).collect()
    }

    pub(super) fn refuse(&mut self, request: &Request) {
        self.refused += 1;
        self.lost.push(LostRequest { label: request.label(), how: LossCause::Refused });
    }

    pub(super) fn break_off(&mut self, request: &Request) {
        self.failed += 1;
        self.lost.push(LostRequest { label: request.label(), how: LossCause::Failed });
    }

    fn told_bytes(&self) -> Option<f64> {
        let requests = self.answers.len() as u64 + self.refused + self.failed;
        let each = self.traffic.bytes as f64 / requests.max(1) as f64;
        (self.traffic.frames > 0).then_some((each * 10.0).round() / 10.0)
    }

    fn mean_limit(&self, of: fn(&WorkerLimits) -> f64) -> Option<f64> {
        let limits: Vec<f64> = self.workers.iter().filter_map(|it| it.limits.as_ref().map(of)).collect();
        (!limits.is_empty()).then(|| (limits.iter().sum::<f64>() / limits.len() as f64).round())
    }

    /// Busy time of the busiest worker relative to the mean.
    pub fn imbalance(&self) -> f64 {
        let busy: Vec<f64> = self.workers.iter().map(|it| it.busy.as_secs_f64()).collect();
        let most = busy.iter().copied().fold(0.0, f64::max);
        let mean = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
        if mean > 0.0 { (most / mean * 1e6).round() / 1e6 } else { 1.0 }
    }

    /// The share of uncached prompt tokens that each worker computed.
    pub fn shares(&self) -> Vec<f64> {
        let mut work = vec![0.0; self.workers.len()];
        for it in &self.answers {
            work[it.worker.index()] += f64::from(it.metrics.prompt_tokens - it.metrics.cached_tokens);
        }
        let all: f64 = work.iter().sum();
        work.iter().map(|it| it / all).collect()
    }
}
