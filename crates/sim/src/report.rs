//! What a run amounts to: rows of numbers, and how they went over time.
//!
//! `replay` in virtual time and `bench` in real time fill the same rows, so that one can be held against
//! the other line by line.

use std::collections::BTreeMap;
use std::time::Duration;

use maitre_base::Instant;
use serde::Serialize;

/// One answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When the request came.
    pub at: Instant,
    pub first_token: Duration,
    pub total: Duration,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub answer_tokens: u32,
    /// Which part of the trace it belongs to.
    pub part: u32,
}

/// Requests without a whole answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Turned away by the router or the engine.
    pub refused: u64,
    /// Begun and broken off.
    pub failed: u64,
}

/// What an answer must keep to be of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    pub first_token: Duration,
    pub per_token: Duration,
}

impl Default for Targets {
    fn default() -> Targets {
        // Two seconds to begin, ten tokens a second: about where people stop reading along.
        Targets { first_token: Duration::from_secs(2), per_token: Duration::from_millis(100) }
    }
}

impl Seen {
    /// Seconds between two tokens of the answer; none if it has only one.
    pub fn per_token(&self) -> Option<f64> {
        let steps = self.answer_tokens.checked_sub(1).filter(|&it| it > 0)?;
        Some((self.total - self.first_token).as_secs_f64() / f64::from(steps))
    }

    pub fn keeps(&self, targets: &Targets) -> bool {
        let per_token = self.per_token().unwrap_or(0.0);
        self.first_token <= targets.first_token && per_token <= targets.per_token.as_secs_f64()
    }
}

/// A run, or a part of one, in numbers. Times are in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    pub strategy: String,
    /// How many times as fast as the trace.
    pub speed: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// Answered to the end.
    pub requests: u64,
    /// Turned away by the router or the engine.
    pub refused: u64,
    /// Begun and broken off.
    pub failed: u64,
    pub hit_ratio: f64,
    pub ttft_mean_s: f64,
    pub ttft_p50_s: f64,
    pub ttft_p90_s: f64,
    pub ttft_p99_s: f64,
    pub e2e_mean_s: f64,
    pub e2e_p99_s: f64,
    pub tpot_mean_s: f64,
    pub tpot_p99_s: f64,
    /// From the first arrival to the last token.
    pub duration_s: f64,
    pub output_tokens_per_s: f64,
    /// Answers within the targets, a second, and as a part of all that came.
    pub goodput_per_s: f64,
    pub goodput_ratio: f64,
    /// How long the busiest worker computed, beside the mean; 1 is even.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imbalance: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evictions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptions: Option<u64>,
}

/// Six digits after the point: more say nothing, and fewer lose microseconds.
fn round(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn mean(values: &[f64]) -> f64 {
    // The sum of nothing is minus zero, and would be shown as such.
    round((values.iter().sum::<f64>() + 0.0) / values.len().max(1) as f64)
}

/// The value that this part of the others stay at or under. Sorts nothing: the caller has.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = (part * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(place).copied().map_or(0.0, round)
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

impl Row {
    /// Sums up answers. Those that were refused or failed count in the goodput, for nothing.
    pub fn of(strategy: &str, seen: &[Seen], lost: u64, targets: &Targets) -> Row {
        let first_token = sorted(seen.iter().map(|it| it.first_token.as_secs_f64()));
        let total = sorted(seen.iter().map(|it| it.total.as_secs_f64()));
        let per_token = sorted(seen.iter().filter_map(Seen::per_token));
        let sum = |count: fn(&Seen) -> u32| seen.iter().map(|it| u64::from(count(it))).sum::<u64>() as f64;
        let begin = seen.iter().map(|it| it.at).min().unwrap_or_default();
        let end = seen.iter().map(|it| it.at + it.total).max().unwrap_or_default();
        let duration = end.since(begin).as_secs_f64().max(1e-9);
        let good = seen.iter().filter(|it| it.keeps(targets)).count() as f64;
        Row {
            strategy: strategy.to_owned(),
            speed: 1.0,
            requests: seen.len() as u64,
            hit_ratio: round(sum(|it| it.cached_tokens) / sum(|it| it.prompt_tokens).max(1.0)),
            ttft_mean_s: mean(&first_token),
            ttft_p50_s: quantile(&first_token, 0.5),
            ttft_p90_s: quantile(&first_token, 0.9),
            ttft_p99_s: quantile(&first_token, 0.99),
            e2e_mean_s: mean(&total),
            e2e_p99_s: quantile(&total, 0.99),
            tpot_mean_s: mean(&per_token),
            tpot_p99_s: quantile(&per_token, 0.99),
            duration_s: round(duration),
            output_tokens_per_s: round(sum(|it| it.answer_tokens) / duration),
            goodput_per_s: round(good / duration),
            goodput_ratio: round(good / (seen.len() as u64 + lost).max(1) as f64),
            ..Row::default()
        }
    }

    /// One row for each part of the trace, in order, also for one that lost all; empty if it has only one.
    pub fn parts(strategy: &str, seen: &[Seen], lost: &BTreeMap<u32, Lost>, targets: &Targets) -> Vec<Row> {
        let mut parts: Vec<u32> = seen.iter().map(|it| it.part).chain(lost.keys().copied()).collect();
        parts.sort_unstable();
        parts.dedup();
        if parts.len() < 2 {
            return Vec::new();
        }
        let row = |part: u32| {
            let seen: Vec<Seen> = seen.iter().copied().filter(|it| it.part == part).collect();
            let Lost { refused, failed } = lost.get(&part).copied().unwrap_or_default();
            let row = Row::of(strategy, &seen, refused + failed, targets);
            Row { part: Some(part), refused, failed, ..row }
        };
        parts.into_iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(first_token_ms: u64, total_ms: u64, answer_tokens: u32) -> Seen {
        Seen {
            at: Instant::from_millis(1_000),
            first_token: Duration::from_millis(first_token_ms),
            total: Duration::from_millis(total_ms),
            prompt_tokens: 100,
            cached_tokens: 25,
            answer_tokens,
            part: 0,
        }
    }

    #[test]
    fn a_row_is_what_one_would_count_by_hand() {
        let all = [seen(100, 1_100, 11), seen(300, 300, 1), seen(3_000, 4_000, 5)];
        let row = Row::of("x", &all, 1, &Targets::default());
        assert_eq!((row.requests, row.hit_ratio), (3, 0.25));
        assert_eq!((row.ttft_p50_s, row.ttft_p99_s, row.e2e_mean_s), (0.3, 3.0, 1.8));
        assert_eq!(row.tpot_mean_s, 0.175);
        assert_eq!((row.duration_s, row.output_tokens_per_s), (4.0, 4.25));
        // The third began too late, and one was lost.
        assert_eq!((row.goodput_per_s, row.goodput_ratio), (0.5, 0.5));
    }

    #[test]
    fn parts_are_summed_up_apart() {
        let mut all = vec![seen(100, 200, 2), seen(500, 600, 2)];
        let mut lost = BTreeMap::new();
        assert!(Row::parts("x", &all, &lost, &Targets::default()).is_empty());
        all[1].part = 4;
        let parts = Row::parts("x", &all, &lost, &Targets::default());
        assert_eq!(
            parts.iter().map(|it| (it.part, it.ttft_mean_s)).collect::<Vec<_>>(),
            [(Some(0), 0.1), (Some(4), 0.5)]
        );
        lost.insert(0, Lost { refused: 2, failed: 1 });
        lost.insert(7, Lost { refused: 1, failed: 0 });
        let parts = Row::parts("x", &all, &lost, &Targets::default());
        assert_eq!(
            parts.iter().map(|it| (it.part, it.refused, it.failed, it.goodput_ratio)).collect::<Vec<_>>(),
            [(Some(0), 2, 1, 0.25), (Some(4), 0, 0, 1.0), (Some(7), 1, 0, 0.0)]
        );
    }

    #[test]
    fn nothing_seen_is_all_zeros() {
        let row = Row::of("x", &[], 0, &Targets::default());
        assert_eq!((row.requests, row.ttft_mean_s, row.goodput_ratio), (0, 0.0, 0.0));
        assert!([row.ttft_mean_s, row.tpot_mean_s, row.e2e_mean_s].iter().all(|it| it.is_sign_positive()));
    }
}
