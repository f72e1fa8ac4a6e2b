//! Decisions as an operator reads them: a line each, or one with all that was weighed.

use std::fmt::Write as _;

use maitre_base::{TenantId, WorkerId};
use maitre_dispatch::Brain;
use maitre_dispatch::observer::decision::{Considered, Decision, Outcome};
use maitre_policy::least_delay::Terms;
use maitre_policy::{Candidate, Pace};
use serde_json::{Value, json};

use crate::house::RouterState;
use crate::refuse::{Wrong, echo};

/// Most decisions in one answer, how many there are if nobody says, and in one event of the stream.
const LIMIT_MAX: usize = 1_000;
const LIMIT: usize = 100;
const NEWS_MAX: usize = 50;

/// How far the decisions have come: what is after it is new.
pub(super) fn revision(house: &RouterState) -> u64 {
    house.look(|brain| brain.decisions().revision())
}

/// What was decided, or ended, since `told`; which is moved on.
pub(super) fn news(house: &RouterState, told: &mut u64) -> Option<Value> {
    let (decisions, skipped) = house.look(|brain| {
        let changed = brain.decisions().changed(*told, NEWS_MAX);
        *told = changed.revision;
        (changed.decisions.into_iter().cloned().collect::<Vec<_>>(), changed.skipped)
    });
    if decisions.is_empty() {
        return None;
    }
    let shown = decisions.iter().map(|it| summary(house, it));
    Some(json!({ "skipped": skipped, "decisions": shown.collect::<Vec<_>>() }))
}

/// What a reader of the list wants.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted<'a> {
    limit: Option<usize>,
    before: Option<u64>,
    worker: Option<u32>,
    why: Option<&'a str>,
}

impl Wanted<'_> {
    fn read(query: &str) -> Result<Wanted<'_>, Wrong> {
        let mut wanted = Wanted::default();
        for pair in query.split('&').filter(|it| !it.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bad = || Wrong::Bad(format!("`{}` is \"{}\"; write a whole number", echo(key), echo(value)));
            match key {
                "limit" => wanted.limit = Some(value.parse().map_err(|_| bad())?),
                "before" => wanted.before = Some(value.parse().map_err(|_| bad())?),
                "worker" => wanted.worker = Some(value.parse().map_err(|_| bad())?),
                "why" => wanted.why = Some(value),
                _ => {
                    let known = "limit, before, worker and why";
                    return Err(Wrong::Bad(format!(
                        "nothing is called `{}` here; known: {known}",
                        echo(key)
                    )));
                }
            }
        }
        Ok(wanted)
    }

    fn passes(&self, decision: &Decision) -> bool {
        self.before.is_none_or(|it| decision.number < it)
            && self.worker.is_none_or(|it| decision.worker.0 == it)
            && self.why.is_none_or(|it| decision.why.name() == it)
    }
}

pub(super) fn list(house: &RouterState, query: &str) -> Result<Value, Wrong> {
    let wanted = Wanted::read(query)?;
    let limit = wanted.limit.unwrap_or(LIMIT).min(LIMIT_MAX);
    let decisions: Vec<Decision> = house.look(|brain| {
        let recent = brain.decisions().recent(limit, |it| wanted.passes(it));
        recent.into_iter().cloned().collect()
    });
    Ok(json!({ "decisions": decisions.iter().map(|it| summary(house, it)).collect::<Vec<_>>() }))
}

/// By its number, or by the id of the request it was about.
pub(super) fn one(house: &RouterState, part: &str) -> Result<Value, Wrong> {
    let number = part.parse::<u64>().ok();
    let request = house.ids.find(part);
    let find = |brain: &Brain| {
        let decisions = brain.decisions();
        let named = request.and_then(|it| decisions.of(it));
        named.or_else(|| decisions.get(number?)).cloned()
    };
    match house.look(find) {
        Some(decision) => Ok(whole(house, &decision)),
        None => Err(Wrong::Unknown(format!(
            "no decision \"{}\" is remembered; `decisions.kept` in the settings says how many are",
            echo(part)
        ))),
    }
}

fn summary(house: &RouterState, decision: &Decision) -> Value {
    let settings = house.settings();
    let class = settings.brain.queue.classes.get(decision.class.index());
    let tokens = |it: Option<u64>| json!(it);
    json!({
        "number": Some(decision.number).filter(|&it| it > 0),
        "id": house.ids.of(decision.request),
        "at_ms": house.clock.unix_ms_at(decision.at),
        "model": model(house, decision),
        "strategy": decision.strategy.to_string(),
        "class": class.map(|it| it.name.as_str()),
        "tenant": tenant(house, decision.tenant),
        "worker": decision.worker.0,
        "url": decision.chosen().and_then(|it| url(house, &it.candidate)),
        "why": decision.why.name(),
        "attempt": decision.attempt,
        "waited_ms": millis(decision.waited.as_secs_f64()),
        "prompt_tokens": decision.ask.prefill.0,
        "answer_tokens": decision.ask.decode.0,
        "held_tokens": decision.held.map(|it| it.0),
        "predicted_ttft_ms": decision.predicted.map(millis),
        "actual_ttft_ms": decision.first_token.map(|it| millis(it.as_secs_f64())),
        "cached_tokens": tokens(decision.counted.cached),
        "outcome": decision.outcome.name(),
    })
}

pub(super) fn whole(house: &RouterState, decision: &Decision) -> Value {
    let mut shown = summary(house, decision);
    shown["total_ms"] = json!(decision.total.map(|it| millis(it.as_secs_f64())));
    shown["actual_answer_tokens"] = json!(decision.counted.answer);
    shown["actual_prompt_tokens"] = json!(decision.counted.prompt);
    shown["would_wait"] = json!(decision.outcome == Outcome::WouldWait);
    shown["candidates_total"] = json!(decision.candidates_total);
    let candidates = decision.candidates.iter().map(|it| candidate(house, decision, it));
    shown["candidates"] = json!(candidates.collect::<Vec<_>>());
    let shadows = decision.shadows.iter().map(|it| {
        json!({
            "strategy": it.strategy.to_string(),
            "worker": it.worker.0,
            "url": url_of(house, it.worker, it.key),
            "why": it.why.name(),
            "differs": it.worker != decision.worker,
            "price_ms": millis(it.price),
            "ttft_ms": millis(it.ttft),
        })
    });
    shown["shadows"] = json!(shadows.collect::<Vec<_>>());
    shown
}

fn candidate(house: &RouterState, decision: &Decision, considered: &Considered) -> Value {
    let it = &considered.candidate;
    json!({
        "worker": it.worker.0,
        "url": url(house, it),
        "chosen": it.worker == decision.worker,
        "held_tokens": it.held.0,
        "held_slow_tokens": it.held_below.0,
        "prefill_tokens": it.promised.prefill.0,
        "decode_tokens": it.promised.decode.0,
        "requests": it.requests,
        "prefilling": it.promised.prefilling,
        "share": it.share,
        "opening": considered.opening.name(),
        "rates": rates(&it.pace),
        "ttft_ms": considered.ttft.map(millis),
        "price_ms": millis(considered.price),
        "terms_ms": terms(&considered.terms(&decision.ask)),
    })
}

fn rates(pace: &Pace) -> Value {
    json!({
        "prefill_tokens_per_s": 1.0 / pace.prefill_token.max(1e-9),
        "floor_ms": millis(pace.floor),
        "step_ms": millis(pace.step),
        "step_per_request_ms": millis(pace.step_request),
    })
}

fn terms(terms: &Terms) -> Value {
    let Terms { wait, floor, prefill, behind, pushed, others, answer, room, adapter } = *terms;
    json!({
        "wait": millis(wait),
        "floor": millis(floor),
        "prefill": millis(prefill),
        "behind": millis(behind),
        "pushed": millis(pushed),
        "others": millis(others),
        "answer": millis(answer),
        "room": millis(room),
        "adapter": millis(adapter),
    })
}

/// For a response header: who was asked, the cheapest first, and what each would have cost.
pub(crate) fn compact(house: &RouterState, decision: &Decision) -> String {
    /// Workers that are listed: more would not fit a header that everybody passes on.
    const SHOWN: usize = 8;
    let mut text = format!("decision={} strategy={}", decision.number, decision.strategy);
    if let Some(predicted) = decision.predicted {
        let _ = write!(text, " ttft_ms={:.1}", millis(predicted));
    }
    let _ = write!(text, " candidates={}", decision.candidates_total);
    for it in decision.candidates.iter().take(SHOWN) {
        let mark = if it.candidate.worker == decision.worker { "*" } else { "" };
        let (price, candidate) = (millis(it.price), &it.candidate);
        let _ = write!(
            text,
            "; {mark}{} price_ms={price:.1} held={} prefill={} requests={}",
            url(house, candidate).unwrap_or_default(),
            candidate.held.0,
            candidate.promised.prefill.0,
            candidate.requests,
        );
    }
    text
}

fn url(house: &RouterState, candidate: &Candidate) -> Option<String> {
    url_of(house, candidate.worker, candidate.key)
}

/// None once the worker has left; whoever has its number then is somebody else.
fn url_of(house: &RouterState, worker: WorkerId, key: u64) -> Option<String> {
    house.link(worker).filter(|it| it.key == key).map(|it| it.url.clone())
}

fn model(house: &RouterState, decision: &Decision) -> Option<String> {
    let model = decision.model?;
    house.look(|brain| brain.fleet().name(model).map(|it| it.to_string()))
}

/// As much of a tenant as may be shown: a name may be a key.
fn tenant(house: &RouterState, tenant: TenantId) -> Option<String> {
    let settings = house.settings();
    let known = settings.brain.queue.tenants.get(&tenant);
    match tenant {
        TenantId(0) => None,
        _ => Some(known.map_or_else(
            || format!("{:08x}", tenant.0 >> 32),
            |it| maitre_queue::settings::masked(&it.name),
        )),
    }
}

/// Seconds as milliseconds, to the microsecond: more digits would say more than is known.
pub(super) fn millis(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_read_or_told_wrong() {
        let wanted = Wanted::read("limit=5&worker=2&why=cached").unwrap();
        assert_eq!((wanted.limit, wanted.worker, wanted.why), (Some(5), Some(2), Some("cached")));
        assert_eq!(Wanted::read("").unwrap(), Wanted::default());
        for (query, part) in [("limit=x", "`limit` is \"x\""), ("page=2", "known: limit, before")] {
            let Err(Wrong::Bad(said)) = Wanted::read(query) else { panic!("{query}") };
            assert!(said.contains(part), "{said}");
        }
    }
}
