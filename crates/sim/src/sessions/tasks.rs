//! How long sessions took: the tasks of agents, from the first call to the last answer.

use std::time::Duration;

use maitre_base::Instant;

use crate::report::{ReportRow, mean, quantile, round};

/// One session of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlayedSession {
    /// Its number in the trace.
    pub number: usize,
    pub began: Instant,
    /// From its first call to its last answer, or until it was lost.
    pub took: Duration,
    /// How long it takes in an empty fleet, if that is known.
    pub alone: Option<Duration>,
    pub calls: usize,
    pub tenant: u64,
    /// All its calls were answered.
    pub is_complete: bool,
}

impl PlayedSession {
    fn slowdown(&self) -> Option<f64> {
        self.alone.map(|it| self.took.as_secs_f64() / it.as_secs_f64().max(1e-9))
    }
}

/// The row with the times of these sessions.
pub fn add_tasks<'a>(row: ReportRow, sessions: impl Iterator<Item = &'a PlayedSession>) -> ReportRow {
    let (complete, lost): (Vec<&PlayedSession>, Vec<&PlayedSession>) =
        sessions.partition(|it| it.is_complete);
    let sorted = |mut values: Vec<f64>| {
        values.sort_unstable_by(f64::total_cmp);
        values
    };
    let calls = sorted(complete.iter().map(|it| it.calls as f64).collect());
    let median = quantile(&calls, 0.5);
    let times = sorted(complete.iter().map(|it| it.took.as_secs_f64()).collect());
    let slowdowns: Vec<f64> = complete.iter().filter_map(|it| it.slowdown()).collect();
    let small = complete.iter().filter(|it| it.calls as f64 <= median).filter_map(|it| it.slowdown());
    let small = sorted(small.collect());
    let is_known = !slowdowns.is_empty() || complete.is_empty();
    ReportRow {
        sessions: Some(complete.len() as u64),
        sessions_lost: Some(lost.len() as u64),
        task_mean_s: Some(mean(&times)),
        task_p50_s: Some(quantile(&times, 0.5)),
        task_p99_s: Some(quantile(&times, 0.99)),
        slowdown_mean: is_known.then(|| mean(&slowdowns)),
        slowdown_small_p99: is_known.then(|| quantile(&small, 0.99)),
        calls_per_s: Some(round(row.requests as f64 / row.duration_s.max(1e-9))),
        ..row
    }
}
