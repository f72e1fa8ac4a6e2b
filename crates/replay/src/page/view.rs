//! The runs as the report shows them: all speeds in the table, one of them in the charts.
//!
//! Charts over time of every strategy at every speed would be unreadable. They show the fastest speed at which half of
//! the answers still meet the targets: there strategies differ most, and the differences still matter.

use maitre_base::Instant;
use maitre_sim::report::ReportRow;

use super::finding::is_bound;
use crate::{Run, Study};

const GOOD_MIN: f64 = 0.5;

pub(super) struct View<'a> {
    pub(super) study: &'a Study,
    pub(super) all: &'a [Run],
    /// Each speed once, the slowest first.
    pub(super) speeds: Vec<f64>,
    /// The speed of the charts.
    pub(super) speed: f64,
    /// At that speed, each strategy once. Charts number strategies by their index here.
    pub(super) runs: Vec<&'a Run>,
}

impl<'a> View<'a> {
    pub(super) fn new(study: &'a Study, all: &'a [Run]) -> View<'a> {
        let mut speeds: Vec<f64> = all.iter().map(|it| it.row.speed).collect();
        speeds.sort_unstable_by(f64::total_cmp);
        speeds.dedup();
        let good = |it: &ReportRow| it.goodput_ratio >= GOOD_MIN && !is_bound(&it.strategy);
        let does_well = |speed: &f64| all.iter().any(|it| it.row.speed == *speed && good(&it.row));
        let fastest = speeds.iter().rev().copied().find(does_well);
        let speed = fastest.or(speeds.first().copied()).unwrap_or(1.0);
        View { study, all, runs: at(all, speed), speeds, speed }
    }

    pub(super) fn sweeps(&self) -> bool {
        self.speeds.len() > 1
    }

    pub(super) fn rows(&self) -> Vec<&'a ReportRow> {
        self.runs.iter().map(|it| &it.row).collect()
    }

    /// Speeds with the rows of each.
    pub(super) fn by_speed(&self) -> Vec<(f64, Vec<&'a ReportRow>)> {
        let rows = |speed: f64| at(self.all, speed).into_iter().map(|it| &it.row).collect();
        self.speeds.iter().map(|&it| (it, rows(it))).collect()
    }

    /// Output tokens per second that the trace requests at a speed; none if all requests arrive at once.
    pub(super) fn requested(&self, speed: f64) -> Option<f64> {
        let tokens: u64 = self.study.trace.requests.iter().map(|it| u64::from(it.answer_tokens)).sum();
        let seconds = self.study.trace.span().as_secs_f64() / speed;
        (seconds > 0.0).then(|| tokens as f64 / seconds)
    }

    /// When each request arrives at the charts' speed, and how many tokens it asks for.
    pub(super) fn arrivals(&self) -> impl Iterator<Item = (Instant, u32)> + '_ {
        let at = |it: Instant| Instant::ZERO + it.since(Instant::ZERO).div_f64(self.speed);
        self.study.trace.requests.iter().map(move |it| (at(it.at), it.answer_tokens))
    }

    /// From the start to the last arrival.
    pub(super) fn span_s(&self) -> f64 {
        self.study.trace.span().as_secs_f64() / self.speed
    }

    /// From the start to the last token of the slowest strategy.
    pub(super) fn end_s(&self) -> f64 {
        let seen = self.runs.iter().flat_map(|it| &it.outcome.answers);
        seen.map(|it| (it.metrics.at + it.metrics.total).as_secs_f64()).fold(self.span_s(), f64::max)
    }
}

fn at(all: &[Run], speed: f64) -> Vec<&Run> {
    let mut runs: Vec<&Run> = Vec::new();
    for run in all.iter().filter(|it| it.row.speed == speed) {
        if !runs.iter().any(|it| it.row.strategy == run.row.strategy) {
            runs.push(run);
        }
    }
    runs
}
