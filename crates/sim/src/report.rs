//! The result of a run: rows of metrics, in total and over time.
//!
//! `replay` in virtual time and `bench` in real time fill the same rows, so that they can be compared line by line.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use maitre_base::Instant;
use serde::Serialize;

/// What distinguishes rows: the request's part, class, tenant and deadline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestLabel {
    /// The part of the trace it belongs to.
    pub part: u32,
    /// `None` is the standard class.
    pub class: Option<Arc<str>>,
    /// Zero is no tenant.
    pub tenant: u64,
    /// From the arrival to the first token.
    pub deadline: Option<Duration>,
}

/// One answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerMetrics {
    /// When the request arrived.
    pub at: Instant,
    pub first_token: Duration,
    pub total: Duration,
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub answer_tokens: u32,
    pub label: RequestLabel,
}

/// A request without a complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRequest {
    pub label: RequestLabel,
    pub how: LossCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// Refused by the router or the engine.
    Refused,
    /// Started and aborted.
    Failed,
}

/// The latency that an answer must meet to count as goodput.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    pub first_token: Duration,
    pub per_token: Duration,
}

impl Default for Targets {
    fn default() -> Targets {
        // Two seconds to begin, ten tokens per second: about as fast as people read.
        Targets { first_token: Duration::from_secs(2), per_token: Duration::from_millis(100) }
    }
}

impl AnswerMetrics {
    /// Seconds between two tokens of the answer; `None` if it has only one.
    pub fn per_token(&self) -> Option<f64> {
        let steps = self.answer_tokens.checked_sub(1).filter(|&it| it > 0)?;
        Some((self.total - self.first_token).as_secs_f64() / f64::from(steps))
    }

    pub fn keeps(&self, targets: &Targets) -> bool {
        let per_token = self.per_token().unwrap_or(0.0);
        self.first_token <= targets.first_token && per_token <= targets.per_token.as_secs_f64()
    }

    /// Whether it had a deadline and missed it.
    pub fn is_late(&self) -> bool {
        self.label.deadline.is_some_and(|it| self.first_token > it)
    }

    /// Work for the engine: uncached prompt tokens and answer tokens.
    fn tokens(&self) -> u64 {
        u64::from(self.prompt_tokens.saturating_sub(self.cached_tokens)) + u64::from(self.answer_tokens)
    }
}

maitre_base::words! {
    /// What a strategy knew of caches.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum CacheKnowledge {
        /// The simulator's own state, which no router has.
        Exact = "exact",
        Reported = "reported",
        Predicted = "predicted",
        /// The router did not look at prompts.
        None = "none",
        /// The strategy does not use caches.
        Unused = "unused",
    }
}

/// The class of requests that name none.
pub const STANDARD: &str = "standard";
/// Maximum tenants with a row of their own; the others share one. Some traces have thousands.
pub const TENANTS_MAX: usize = 16;
/// The name of the shared row.
pub const OTHERS: &str = "others";

/// A run, or a part of it, in numbers. Times are in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReportRow {
    pub strategy: String,
    /// Speed relative to the trace.
    pub speed: f64,
    /// Whether requests waited in the router's queue. `None` if unknown, as in a run over sockets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<bool>,
    /// What the strategy knew of caches. `None` if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knowledge: Option<CacheKnowledge>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// As `tenant` names it, or its own name if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Complete answers.
    pub requests: u64,
    /// Refused by the router or the engine.
    pub refused: u64,
    /// Started and aborted.
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
    /// Answers within the targets, per second and as a share of all requests.
    pub goodput_per_s: f64,
    pub goodput_ratio: f64,
    /// The share of requests with a deadline whose first token met it; lost requests did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadlines_met_ratio: Option<f64>,
    /// Answered after the deadline. `None` if no request had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_late: Option<u64>,
    /// For classes and tenants: uncached prompt tokens plus answer tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// For a tenant: its share of that total.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_share: Option<f64>,
    /// Busy time of the busiest worker relative to the mean; 1 is even.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imbalance: Option<f64>,
    /// How often clients retried after a refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returns: Option<u64>,
    /// For a fleet that grows and shrinks: requests without a first token in time, worker-hours from each order on,
    /// the most workers at once, and how often their number changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_hours: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_changes: Option<u64>,
    /// Bytes between routers per request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told_bytes: Option<f64>,
    /// The limits that the router had learned for a worker at the end, on average.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_prefill_tokens: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_requests: Option<f64>,
    /// How many sessions were complete, and how many lost a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions_lost: Option<u64>,
    /// From the first call of a session to its last answer, think times included; for complete sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_mean_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_p50_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_p99_s: Option<f64>,
    /// That time relative to an empty fleet. The 99th percentile covers the half of the sessions with the fewest
    /// calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown_mean: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown_small_p99: Option<f64>,
    /// Answered calls of sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_s: Option<f64>,
    /// Tokens that workers pulled from each other, and the requests that did; the same for a shared store. `None` if
    /// workers cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pulled_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pulled_requests: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loaded_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loaded_requests: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evictions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemptions: Option<u64>,
    /// The median and the mean of |predicted − actual| / actual of the router's predicted TTFT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast_error_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast_error_mean_ratio: Option<f64>,
}

/// Six decimal places: fewer lose microseconds.
pub(crate) fn round(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

pub fn mean(values: &[f64]) -> f64 {
    // An empty sum is minus zero and would be shown as such.
    round((values.iter().sum::<f64>() + 0.0) / values.len().max(1) as f64)
}

/// The value that this share of the values does not exceed. Expects sorted values.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = (part * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(place).copied().map_or(0.0, round)
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// The requests of one row.
#[derive(Default)]
struct Group<'a> {
    seen: Vec<&'a AnswerMetrics>,
    lost: Vec<&'a LostRequest>,
}

impl<'a> Group<'a> {
    /// Groups by `key`, in the order of the keys.
    fn by<K: Ord>(
        seen: &'a [AnswerMetrics],
        lost: &'a [LostRequest],
        key: impl Fn(&'a RequestLabel) -> K,
    ) -> BTreeMap<K, Group<'a>> {
        let mut groups: BTreeMap<K, Group<'a>> = BTreeMap::new();
        for it in seen {
            groups.entry(key(&it.label)).or_default().seen.push(it);
        }
        for it in lost {
            groups.entry(key(&it.label)).or_default().lost.push(it);
        }
        groups
    }

    fn row(&self, strategy: &str, targets: &Targets) -> ReportRow {
        let seen = &self.seen;
        let first_token = sorted(seen.iter().map(|it| it.first_token.as_secs_f64()));
        let total = sorted(seen.iter().map(|it| it.total.as_secs_f64()));
        let per_token = sorted(seen.iter().filter_map(|it| it.per_token()));
        let sum =
            |count: fn(&AnswerMetrics) -> u32| seen.iter().map(|it| u64::from(count(it))).sum::<u64>() as f64;
        let begin = seen.iter().map(|it| it.at).min().unwrap_or_default();
        let end = seen.iter().map(|it| it.at + it.total).max().unwrap_or_default();
        let duration = end.since(begin).as_secs_f64().max(1e-9);
        let good = seen.iter().filter(|it| it.keeps(targets)).count() as f64;
        let lost = |how: LossCause| self.lost.iter().filter(|it| it.how == how).count() as u64;
        let late = self.late();
        ReportRow {
            strategy: strategy.to_owned(),
            speed: 1.0,
            requests: seen.len() as u64,
            refused: lost(LossCause::Refused),
            failed: lost(LossCause::Failed),
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
            goodput_ratio: round(good / self.requests().max(1) as f64),
            deadlines_met_ratio: late.map(|(_, met_ratio)| round(met_ratio)),
            served_late: late.map(|(late, _)| late),
            ..ReportRow::default()
        }
    }

    /// How many missed their deadline, and the share that met it; none without deadlines.
    fn late(&self) -> Option<(u64, f64)> {
        let labels = self.seen.iter().map(|it| &it.label).chain(self.lost.iter().map(|it| &it.label));
        let asked = labels.filter(|it| it.deadline.is_some()).count();
        let served = self.seen.iter().filter(|it| it.label.deadline.is_some()).count();
        let late = self.seen.iter().filter(|it| it.is_late()).count();
        (asked > 0).then(|| (late as u64, (served - late) as f64 / asked as f64))
    }

    /// All requests.
    fn requests(&self) -> usize {
        self.seen.len() + self.lost.len()
    }

    fn tokens(&self) -> u64 {
        self.seen.iter().map(|it| it.tokens()).sum()
    }
}

impl ReportRow {
    /// Summarises answers. Refused and failed requests lower the goodput.
    pub fn of(strategy: &str, seen: &[AnswerMetrics], lost: &[LostRequest], targets: &Targets) -> ReportRow {
        Group { seen: seen.iter().collect(), lost: lost.iter().collect() }.row(strategy, targets)
    }

    /// One row per part of the trace, in order, including parts without answers; empty if there is only one.
    pub fn by_part(
        strategy: &str,
        seen: &[AnswerMetrics],
        lost: &[LostRequest],
        targets: &Targets,
    ) -> Vec<ReportRow> {
        let groups = Group::by(seen, lost, |it| it.part);
        let row = |(part, group): (&u32, &Group<'_>)| ReportRow {
            part: Some(*part),
            ..group.row(strategy, targets)
        };
        if groups.len() < 2 { Vec::new() } else { groups.iter().map(row).collect() }
    }

    /// The same per class, by name.
    pub fn by_class(
        strategy: &str,
        seen: &[AnswerMetrics],
        lost: &[LostRequest],
        targets: &Targets,
    ) -> Vec<ReportRow> {
        let groups = Group::by(seen, lost, |it| it.class.as_deref().unwrap_or(STANDARD));
        let row = |(class, group): (&&str, &Group<'_>)| ReportRow {
            class: Some((*class).to_owned()),
            tokens: Some(group.tokens()),
            ..group.row(strategy, targets)
        };
        if groups.len() < 2 { Vec::new() } else { groups.iter().map(row).collect() }
    }

    /// The same per tenant, those with the most requests first; beyond `TENANTS_MAX` in one row.
    pub fn by_tenant(
        strategy: &str,
        seen: &[AnswerMetrics],
        lost: &[LostRequest],
        targets: &Targets,
    ) -> Vec<ReportRow> {
        let ranks = ranks(seen, lost);
        let groups = Group::by(seen, lost, |it| match ranks[&it.tenant] {
            rank if rank < TENANTS_MAX => (rank, Some(it.tenant)),
            _ => (TENANTS_MAX, None),
        });
        let all = groups.values().map(Group::tokens).sum::<u64>().max(1) as f64;
        let row = |(&(_, tenant), group): (&(usize, Option<u64>), &Group<'_>)| ReportRow {
            tenant: Some(tenant.map_or_else(|| OTHERS.to_owned(), self::tenant)),
            tokens: Some(group.tokens()),
            token_share: Some(round(group.tokens() as f64 / all)),
            ..group.row(strategy, targets)
        };
        if groups.len() < 2 { Vec::new() } else { groups.iter().map(row).collect() }
    }
}

/// The label of a tenant known only by number.
pub fn tenant(number: u64) -> String {
    format!("{number:x}")
}

/// The rank of each tenant by its number of requests, which is the same under every strategy.
fn ranks(seen: &[AnswerMetrics], lost: &[LostRequest]) -> HashMap<u64, usize> {
    let groups = Group::by(seen, lost, |it| it.tenant);
    let mut counts: Vec<(Reverse<usize>, u64)> =
        groups.iter().map(|(&tenant, group)| (Reverse(group.requests()), tenant)).collect();
    counts.sort_unstable();
    counts.into_iter().enumerate().map(|(rank, (_, tenant))| (tenant, rank)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(first_token_ms: u64, total_ms: u64, answer_tokens: u32) -> AnswerMetrics {
        AnswerMetrics {
            at: Instant::from_millis(1_000),
            first_token: Duration::from_millis(first_token_ms),
            total: Duration::from_millis(total_ms),
            prompt_tokens: 100,
            cached_tokens: 25,
            answer_tokens,
            label: RequestLabel::default(),
        }
    }

    fn lost(how: LossCause, part: u32) -> LostRequest {
        LostRequest { label: RequestLabel { part, ..RequestLabel::default() }, how }
    }

    #[test]
    fn a_row_matches_a_count_by_hand() {
        let all = [seen(100, 1_100, 11), seen(300, 300, 1), seen(3_000, 4_000, 5)];
        let row = ReportRow::of("x", &all, &[lost(LossCause::Refused, 0)], &Targets::default());
        assert_eq!((row.requests, row.hit_ratio), (3, 0.25));
        assert_eq!((row.ttft_p50_s, row.ttft_p99_s, row.e2e_mean_s), (0.3, 3.0, 1.8));
        assert_eq!(row.tpot_mean_s, 0.175);
        assert_eq!((row.duration_s, row.output_tokens_per_s), (4.0, 4.25));
        // The third missed its deadline, and one was lost.
        assert_eq!((row.goodput_per_s, row.goodput_ratio), (0.5, 0.5));
    }

    #[test]
    fn parts_are_summed_up_apart() {
        let mut all = vec![seen(100, 200, 2), seen(500, 600, 2)];
        assert!(ReportRow::by_part("x", &all, &[], &Targets::default()).is_empty());
        all[1].label.part = 4;
        let parts = ReportRow::by_part("x", &all, &[], &Targets::default());
        assert_eq!(
            parts.iter().map(|it| (it.part, it.ttft_mean_s)).collect::<Vec<_>>(),
            [(Some(0), 0.1), (Some(4), 0.5)]
        );
        let lost = [
            (LossCause::Refused, 0),
            (LossCause::Failed, 0),
            (LossCause::Refused, 7),
            (LossCause::Refused, 0),
        ]
        .map(|(how, part)| lost(how, part));
        let parts = ReportRow::by_part("x", &all, &lost, &Targets::default());
        assert_eq!(
            parts.iter().map(|it| (it.part, it.refused, it.failed, it.goodput_ratio)).collect::<Vec<_>>(),
            [(Some(0), 2, 1, 0.25), (Some(4), 0, 0, 1.0), (Some(7), 1, 0, 0.0)]
        );
    }

    #[test]
    fn nothing_seen_is_all_zeros() {
        let row = ReportRow::of("x", &[], &[], &Targets::default());
        assert_eq!((row.requests, row.ttft_mean_s, row.goodput_ratio), (0, 0.0, 0.0));
        assert!([row.ttft_mean_s, row.tpot_mean_s, row.e2e_mean_s].iter().all(|it| it.is_sign_positive()));
    }

    #[test]
    fn classes_are_summed_up_apart_and_no_name_is_standard() {
        let mut all = vec![seen(100, 200, 2), seen(500, 600, 2), seen(300, 400, 2)];
        all[1].label.class = Some("standard".into());
        assert!(ReportRow::by_class("x", &all, &[], &Targets::default()).is_empty());
        all[2].label.class = Some("batch".into());
        let mut refused = lost(LossCause::Refused, 0);
        refused.label.class = Some("interactive".into());
        let rows = ReportRow::by_class("x", &all, &[refused], &Targets::default());
        let told =
            |it: &ReportRow| (it.class.clone().unwrap(), it.requests, it.refused, it.ttft_mean_s, it.tokens);
        assert_eq!(
            rows.iter().map(told).collect::<Vec<_>>(),
            [
                ("batch".to_owned(), 1, 0, 0.3, Some(77)),
                ("interactive".to_owned(), 0, 1, 0.0, Some(0)),
                ("standard".to_owned(), 2, 0, 0.3, Some(154)),
            ]
        );
    }

    #[test]
    fn tenants_have_shares_and_the_small_ones_one_row() {
        let of = |tenant: u64| AnswerMetrics {
            label: RequestLabel { tenant, ..RequestLabel::default() },
            ..seen(100, 200, 5)
        };
        let row = |it: &ReportRow| (it.tenant.clone().unwrap(), it.requests, it.token_share.unwrap());
        let two = [of(0), of(0xAB), of(0xAB), of(0xAB)];
        let rows = ReportRow::by_tenant("x", &two, &[], &Targets::default());
        let expected = [("ab".to_owned(), 3, 0.75), ("0".to_owned(), 1, 0.25)];
        assert_eq!(rows.iter().map(row).collect::<Vec<_>>(), expected);
        assert!(ReportRow::by_tenant("x", &two[1..], &[], &Targets::default()).is_empty());

        // Twenty, the last of which has two requests.
        let many: Vec<AnswerMetrics> = (1..=20).chain([20]).map(of).collect();
        let rows = ReportRow::by_tenant("x", &many, &[], &Targets::default());
        assert_eq!(rows.len(), TENANTS_MAX + 1);
        assert_eq!(row(&rows[0]), ("14".to_owned(), 2, round(2.0 / 21.0)));
        assert_eq!(row(&rows[TENANTS_MAX]), (OTHERS.to_owned(), 4, round(4.0 / 21.0)));
    }

    #[test]
    fn late_and_lost_requests_miss_their_deadline() {
        let asked = |first_token_ms, deadline_ms| {
            let deadline = Some(Duration::from_millis(deadline_ms));
            AnswerMetrics {
                label: RequestLabel { deadline, ..RequestLabel::default() },
                ..seen(first_token_ms, 9_000, 2)
            }
        };
        let row = |seen: &[AnswerMetrics], lost: &[LostRequest]| {
            let row = ReportRow::of("x", seen, lost, &Targets::default());
            (row.deadlines_met_ratio, row.served_late)
        };
        assert_eq!(row(&[seen(100, 200, 2)], &[lost(LossCause::Refused, 0)]), (None, None), "nobody had one");
        let all = [asked(100, 100), asked(101, 100), asked(50, 100), seen(5_000, 9_000, 2)];
        assert_eq!(row(&all, &[]), (Some(round(2.0 / 3.0)), Some(1)));
        let gone = LostRequest { label: all[0].label.clone(), how: LossCause::Failed };
        assert_eq!(row(&all, &[gone.clone(), lost(LossCause::Refused, 0)]), (Some(0.5), Some(1)));
        assert_eq!(row(&[], &[gone]), (Some(0.0), Some(0)));
    }
}
