//! Decisions as views: a summary each, or one with every candidate.

use std::time::Duration;

use maitre_base::{Instant, Tokens};
use maitre_dispatch::Brain;
use maitre_dispatch::observer::decision::{AttemptOutcome, Considered, Decision};
use maitre_policy::least_delay::DelayTerms;
use maitre_policy::{Candidate, Fetch, Pace, Why};
use maitre_views::decision::{
    CandidateView, DecisionDetail, DecisionEvent, DecisionList, DecisionSummary, FetchView, PrefillView,
    PriceTerms, ShadowChoice,
};
use maitre_views::text::Text;
use maitre_views::worker::Rates;

use super::programs;
use super::programs::tenant;
use crate::explain::{millis, worker_url};
use crate::refuse::{AdminError, echo};
use crate::state::RouterState;

/// Decisions in one answer: at most, and unless the query has a limit; and in one event of the stream.
const LIMIT_MAX: usize = 1_000;
const LIMIT: usize = 100;
const EVENT_MAX: usize = 50;

/// The revision of the newest change: a stream begins after it.
pub(super) fn revision(router: &RouterState) -> u64 {
    router.brain.read(|brain| brain.decisions().revision())
}

/// Decisions made, or whose request ended, since `revision`, which is moved on.
pub(super) fn changes(router: &RouterState, revision: &mut u64) -> Option<DecisionEvent> {
    let (decisions, skipped) = router.brain.read(|brain| {
        let changed = brain.decisions().changed(*revision, EVENT_MAX);
        *revision = changed.revision;
        (changed.decisions.into_iter().cloned().collect::<Vec<_>>(), changed.skipped)
    });
    let decisions: Vec<DecisionSummary> = decisions.iter().map(|it| summary(router, it)).collect();
    (!decisions.is_empty()).then_some(DecisionEvent { decisions, skipped })
}

/// The query of the list.
#[derive(Debug, Default, PartialEq, Eq)]
struct DecisionFilter<'a> {
    limit: Option<usize>,
    before: Option<u64>,
    worker: Option<u32>,
    /// Empty: every reason.
    why: Vec<&'a str>,
    /// Empty: every outcome.
    outcomes: Vec<&'a str>,
    slower_than: Option<Duration>,
}

/// Outcomes of requests that were placed.
const OUTCOMES: [AttemptOutcome; 10] = [
    AttemptOutcome::InFlight,
    AttemptOutcome::Answered,
    AttemptOutcome::Failed,
    AttemptOutcome::BrokeOff,
    AttemptOutcome::Continued,
    AttemptOutcome::HandedOver,
    AttemptOutcome::Outpaced,
    AttemptOutcome::Left,
    AttemptOutcome::Declined,
    AttemptOutcome::Recalled,
];

impl DecisionFilter<'_> {
    fn read(query: &str) -> Result<DecisionFilter<'_>, AdminError> {
        let mut filter = DecisionFilter::default();
        for pair in query.split('&').filter(|it| !it.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bad =
                || AdminError::Bad(format!("`{}` is \"{}\"; write a whole number", echo(key), echo(value)));
            match key {
                "limit" => filter.limit = Some(value.parse().map_err(|_| bad())?),
                "before" => filter.before = Some(value.parse().map_err(|_| bad())?),
                "worker" => filter.worker = Some(value.parse().map_err(|_| bad())?),
                "why" => filter.why = names(key, value, &Why::ALL.map(Why::name))?,
                "outcome" => filter.outcomes = names(key, value, &OUTCOMES.map(AttemptOutcome::name))?,
                "slower_than_ms" => {
                    filter.slower_than = Some(Duration::from_millis(value.parse().map_err(|_| bad())?));
                }
                _ => {
                    let known = "limit, before, worker, why, outcome and slower_than_ms";
                    return Err(AdminError::Bad(format!(
                        "unknown parameter `{}`; known: {known}",
                        echo(key)
                    )));
                }
            }
        }
        Ok(filter)
    }

    fn passes(&self, now: Instant, decision: &Decision) -> bool {
        self.before.is_none_or(|it| decision.number < it)
            && self.worker.is_none_or(|it| decision.worker.0 == it)
            && (self.why.is_empty() || self.why.contains(&decision.why.name()))
            && (self.outcomes.is_empty() || self.outcomes.contains(&decision.outcome.name()))
            && self.slower_than.is_none_or(|it| until_first_token(now, decision) > it)
    }
}

/// Names with commas between them.
fn names<'a>(key: &str, value: &'a str, known: &[&str]) -> Result<Vec<&'a str>, AdminError> {
    let names: Vec<&str> = value.split(',').collect();
    match names.iter().find(|it| !known.contains(it)) {
        Some(unknown) => Err(AdminError::Bad(format!(
            "`{key}` has \"{}\"; known, with commas between them: {}",
            echo(unknown),
            known.join(", ")
        ))),
        None => Ok(names),
    }
}

/// How long the client waited for its first token, or for its answer in one piece, time in the queue included; of a request
/// in flight, how long so far.
fn until_first_token(now: Instant, decision: &Decision) -> Duration {
    let so_far = match decision.outcome {
        AttemptOutcome::InFlight => now.since(decision.at),
        _ => Duration::ZERO,
    };
    decision.waited + decision.first_token.or(decision.total).unwrap_or(so_far)
}

pub(super) fn list(router: &RouterState, query: &str) -> Result<DecisionList, AdminError> {
    let filter = DecisionFilter::read(query)?;
    let (limit, now) = (filter.limit.unwrap_or(LIMIT).min(LIMIT_MAX), router.clock.now());
    let decisions: Vec<Decision> = router.brain.read(|brain| {
        let recent = brain.decisions().recent(limit, |it| filter.passes(now, it));
        recent.into_iter().cloned().collect()
    });
    Ok(DecisionList { decisions: decisions.iter().map(|it| summary(router, it)).collect() })
}

/// By its number, or by the id of its request.
pub(super) fn one(router: &RouterState, part: &str) -> Result<DecisionDetail, AdminError> {
    let number = part.parse::<u64>().ok();
    let request = router.request_ids.find(part);
    let find = |brain: &Brain| {
        let decisions = brain.decisions();
        let named = request.and_then(|it| decisions.of(it));
        named.or_else(|| decisions.get(number?)).cloned()
    };
    let now = router.clock.now();
    let is_held = |brain: &Brain| brain.held_call(now, request?).map(|it| it.held);
    match router.brain.read(find) {
        Some(decision) => Ok(detail(router, &decision)),
        None if let Some(held) = router.brain.read(is_held) => Err(AdminError::Unknown(format!(
            "request \"{}\" has been held for {} s, until a worker has memory for its program; nothing is decided yet. \
             `programs.calls` of /admin/v1/overview says why",
            echo(part),
            held.as_secs()
        ))),
        None => Err(AdminError::Unknown(format!(
            "no decision \"{}\" is kept; `decisions.kept` in the settings says how many are",
            echo(part)
        ))),
    }
}

fn summary(router: &RouterState, decision: &Decision) -> DecisionSummary {
    let settings = router.settings.load();
    let class = settings.brain.queue.classes.get(decision.class.index());
    DecisionSummary {
        number: Some(decision.number).filter(|&it| it > 0),
        id: router.request_ids.of(decision.request).map(|it| it.to_string().into()),
        at_ms: router.clock.unix_ms_at(decision.at),
        model: model(router, decision),
        strategy: decision.strategy.to_string().into(),
        class: class.map(|it| it.name.clone().into()),
        tenant: tenant(router, decision.tenant),
        worker: decision.worker.0,
        url: decision.chosen().and_then(|it| url(router, &it.candidate)),
        why: decision.why.name().into(),
        attempt: decision.attempt,
        waited_ms: millis(decision.waited.as_secs_f64()),
        prompt_tokens: decision.ask.prefill.0,
        answer_tokens: decision.ask.decode.0,
        expected_cached_tokens: decision.held.map(|it| it.0),
        predicted_ttft_ms: decision.predicted.map(millis),
        actual_ttft_ms: decision.first_token.map(|it| millis(it.as_secs_f64())),
        total_ms: decision.total.map(|it| millis(it.as_secs_f64())),
        cached_tokens: decision.counted.cached,
        outcome: decision.outcome.name().into(),
    }
}

pub(super) fn detail(router: &RouterState, decision: &Decision) -> DecisionDetail {
    let shadows = decision.shadows.iter().map(|it| ShadowChoice {
        strategy: it.strategy.to_string().into(),
        worker: it.worker.0,
        url: worker_url(&router.brain, it.worker, it.key).map(Into::into),
        why: it.why.name().into(),
        differs: it.worker != decision.worker,
        price_ms: Some(millis(it.price)),
        ttft_ms: Some(millis(it.ttft)),
    });
    DecisionDetail {
        summary: summary(router, decision),
        actual_answer_tokens: decision.counted.answer,
        actual_prompt_tokens: decision.counted.prompt,
        would_wait: decision.outcome == AttemptOutcome::WouldWait,
        candidates_total: decision.candidates_total as u64,
        prefill: decision.prefill.map(|it| PrefillView {
            worker: it.worker.0,
            url: worker_url(&router.brain, it.worker, it.key).map(Into::into),
            fetched_tokens: it.fetches.0,
            price_here_ms: Some(it.here).filter(|it| it.is_finite()).map(millis),
            price_elsewhere_ms: millis(it.elsewhere),
        }),
        fetch: decision.chosen().and_then(|it| fetch(router, it.candidate.fetch)),
        program: router.brain.read(|brain| programs::step(brain, decision)),
        hold: decision.hold.map(|it| router.brain.read(|brain| programs::hold(brain, &it))),
        candidates: decision.candidates.iter().map(|it| candidate(router, decision, it)).collect(),
        shadows: shadows.collect(),
    }
}

/// What the chosen worker fetches. A worker that has left has no address any more.
fn fetch(router: &RouterState, fetch: Fetch) -> Option<FetchView> {
    (fetch.tokens > Tokens::ZERO).then(|| FetchView {
        worker: fetch.from.map(|it| it.0),
        url: fetch.from.and_then(|it| Some(router.brain.link(it)?.url.clone().into())),
        tokens: fetch.tokens.0,
        expected_ms: millis(fetch.seconds),
    })
}

fn candidate(router: &RouterState, decision: &Decision, considered: &Considered) -> CandidateView {
    let it = &considered.candidate;
    CandidateView {
        worker: it.worker.0,
        url: url(router, it),
        chosen: it.worker == decision.worker,
        cached_tokens: it.cached().0,
        cached_slow_tokens: it.held_below.0,
        fetched_tokens: it.fetch.tokens.0,
        chunk_tokens: it.chunks.tokens.0,
        chunk_recomputed_tokens: (it.chunks.tokens - it.chunks.saved).0,
        prefill_tokens: it.promised.prefill.tokens.0,
        decode_tokens: it.promised.decode.0,
        requests: it.requests,
        prefilling: it.promised.prefilling,
        share: it.share,
        can_start: considered.opening.name().into(),
        rates: rates(&it.pace, it.requests),
        ttft_ms: considered.ttft.map(millis),
        price_ms: millis(considered.price),
        terms_ms: terms(&considered.terms(&decision.ask)),
    }
}

fn rates(pace: &Pace, requests: u32) -> Rates {
    Rates {
        prefill_tokens_per_s: 1.0 / pace.prefill_token.max(1e-9),
        floor_ms: millis(pace.floor),
        step_ms: millis(pace.step),
        step_per_request_ms: millis(pace.step_request),
        step_now_ms: millis(pace.step + pace.step_request * f64::from(requests.max(1))),
    }
}

fn terms(terms: &DelayTerms) -> PriceTerms {
    let DelayTerms { wait, floor, prefill, fetch, behind, pushed, others, answer, room, adapter } = *terms;
    PriceTerms {
        wait: millis(wait),
        floor: millis(floor),
        prefill: millis(prefill),
        fetch: millis(fetch),
        behind: millis(behind),
        pushed: millis(pushed),
        others: millis(others),
        answer: millis(answer),
        room: millis(room),
        adapter: millis(adapter),
    }
}

fn url(router: &RouterState, candidate: &Candidate) -> Option<Text> {
    worker_url(&router.brain, candidate.worker, candidate.key).map(Into::into)
}

fn model(router: &RouterState, decision: &Decision) -> Option<Text> {
    let model = decision.model?;
    router.brain.read(|brain| brain.fleet().name(model).map(|it| it.to_string().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_or_refused_with_what_is_known() {
        let filter = DecisionFilter::read("limit=5&worker=2&why=cached").unwrap();
        assert_eq!((filter.limit, filter.worker, filter.why), (Some(5), Some(2), vec!["cached"]));
        assert_eq!(DecisionFilter::read("").unwrap(), DecisionFilter::default());
        let filter = DecisionFilter::read("outcome=failed,broke-off&slower_than_ms=1500").unwrap();
        assert_eq!(filter.outcomes, ["failed", "broke-off"]);
        assert_eq!(filter.slower_than, Some(Duration::from_millis(1_500)));
        for (query, part) in [
            ("limit=x", "`limit` is \"x\""),
            ("page=2", "known: limit, before"),
            ("slower_than_ms=long", "`slower_than_ms` is \"long\""),
            (
                "outcome=failed,lost",
                "`outcome` has \"lost\"; known, with commas between them: in-flight, answered",
            ),
        ] {
            let Err(AdminError::Bad(said)) = DecisionFilter::read(query) else { panic!("{query}") };
            assert!(said.contains(part), "{said}");
        }
    }
}
