//! The rows in words: which strategy leads, by how much, at what cost, and how far to trust it.
//!
//! The bounds never lead, because no router can reach them. A difference below `CLOSE` is not claimed: another seed, or
//! another hour of the same traffic, moves a mean by as much.

use maitre_sim::report::ReportRow;

use super::words::{clauses, count, counted, listed, percent};
use crate::table::{CONDITIONS, differ, lost, seconds};

/// Differences below this part are not worth a claim. The sentences say "2 %".
const CLOSE: f64 = 0.02;
/// With this share of the requests within the targets, the fleet keeps up.
const GOOD_MIN: f64 = 0.9;
/// Below this share, it may be saturated.
const GOOD_FEW: f64 = 0.5;
/// A p99 so many times the p50 comes from a queue, not from a long prompt.
const TAIL_MAX: f64 = 10.0;
/// Serving less than this part of the requested tokens means that work piles up.
const SERVED_MIN: f64 = 0.9;
/// Fewer requests than this have no p99.
const REQUESTS_FEW: u64 = 100;
/// A strategy that loses so much more of the requests than the best one cannot lead. The sentences say "1 %".
const MORE_LOST: f64 = 0.01;

const BOUNDS: &[&str] = &["oracle", "ideal-cache"];
/// Strategies that every reader knows, to compare with.
const PLAIN: &[&str] = &["round-robin", "least-request"];

pub(super) fn is_bound(strategy: &str) -> bool {
    BOUNDS.contains(&strategy)
}

/// A number by which strategies are compared; lower is better.
struct Measure {
    name: &'static str,
    value: fn(&ReportRow) -> f64,
    write: fn(f64) -> String,
}

const TTFT: Measure = Measure { name: "mean TTFT", value: |it| it.ttft_mean_s, write: seconds };
const E2E: Measure = Measure { name: "mean E2E latency", value: |it| it.e2e_mean_s, write: seconds };
const OTHERS: &[Measure] = &[
    Measure { name: "p50 TTFT", value: |it| it.ttft_p50_s, write: seconds },
    Measure { name: "p90 TTFT", value: |it| it.ttft_p90_s, write: seconds },
    Measure { name: "p99 TTFT", value: |it| it.ttft_p99_s, write: seconds },
    Measure { name: "TPOT", value: |it| it.tpot_mean_s, write: |it| format!("{:.1} ms", it * 1e3) },
];

impl Measure {
    fn text(&self, row: &ReportRow) -> String {
        (self.write)((self.value)(row))
    }

    fn lowest<'a>(&self, rows: &[&'a ReportRow]) -> Option<&'a ReportRow> {
        rows.iter().copied().min_by(|one, other| (self.value)(one).total_cmp(&(self.value)(other)))
    }

    /// How much lower one is, as a part of the other.
    fn lead(&self, one: &ReportRow, other: &ReportRow) -> f64 {
        let (lower, higher) = ((self.value)(one), (self.value)(other));
        if higher > 0.0 { 1.0 - lower / higher } else { 0.0 }
    }
}

/// What the traffic demands of the fleet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Output tokens; none if all requests arrive at once.
    pub(super) tokens_per_s: Option<f64>,
    /// The target of the TTFT.
    pub(super) first_token_s: f64,
}

/// The paragraph. All rows are of one speed.
pub(super) fn write(rows: &[&ReportRow], demand: Demand) -> String {
    let able = able(rows);
    let Some(leader) = TTFT.lowest(&able) else { return only_bounds(rows) };
    let others: Vec<&ReportRow> = able.iter().copied().filter(|it| !std::ptr::eq(*it, leader)).collect();
    let mut sentences = match others.is_empty() {
        true => vec![alone(leader, rows)],
        false => vec![first_token(leader, &others), end_to_end(leader, &others)],
    };
    sentences.push(hits(leader, &others, rows));
    if !others.is_empty() {
        sentences.push(losses(leader, &others));
    }
    sentences.push(strain(leader, demand));
    sentences.extend(cautions(leader, rows));
    sentences.join(" ")
}

/// The strategies that may lead. Means are of answered requests: a strategy that refuses more than others looks fast,
/// and one that answers nothing has means of zero.
fn able<'a>(rows: &[&'a ReportRow]) -> Vec<&'a ReportRow> {
    let served = rows.iter().copied().filter(|it| it.requests > 0 && !is_bound(&it.strategy));
    let part = |it: &ReportRow| lost(it) as f64 / (lost(it) + it.requests) as f64;
    let least = served.clone().map(part).fold(1.0, f64::min);
    served.filter(|it| part(it) <= least + MORE_LOST).collect()
}

fn only_bounds(rows: &[&ReportRow]) -> String {
    let bounds = rows.iter().filter(|it| it.requests > 0);
    let said: Vec<String> =
        bounds.map(|it| format!("{} has a mean TTFT of {}", it.strategy, TTFT.text(it))).collect();
    match said.is_empty() {
        true => "No request was answered: there is nothing to compare.".to_owned(),
        false => format!(
            "No strategy answered a request, only bounds that no router can reach: {}.",
            listed(&said)
        ),
    }
}

fn alone(only: &ReportRow, rows: &[&ReportRow]) -> String {
    let name = &only.strategy;
    let has_rivals = rows.iter().any(|it| it.strategy != *name && !is_bound(&it.strategy));
    let why = match has_rivals {
        true => format!("Only {name} is compared: every other strategy lost over 1 % more of the requests."),
        false => format!("Only one strategy was run, {name}: there is nothing to compare it with."),
    };
    format!("{why} Its mean TTFT is {}, its {} {}.", TTFT.text(only), E2E.name, E2E.text(only))
}

fn first_token(leader: &ReportRow, others: &[&ReportRow]) -> String {
    let (near, far): (Vec<&ReportRow>, Vec<&ReportRow>) =
        others.iter().partition(|it| TTFT.lead(leader, it) < CLOSE);
    let lower = |it: &ReportRow| percent(TTFT.lead(leader, it));
    let next = if near.is_empty() { TTFT.lowest(&far) } else { None };
    let known = far.iter().filter(|it| PLAIN.contains(&it.strategy.as_str()));
    let known = known.filter(|it| !next.is_some_and(|next| std::ptr::eq(**it, next)));
    let next = next.map(|it| format!("{} lower than the next, {}", lower(it), it.strategy));
    let known = known.map(|it| format!("{} lower than {}", lower(it), it.strategy));
    let said: Vec<String> = next.into_iter().chain(known).collect();
    let against = if said.is_empty() { String::new() } else { format!(": {}", clauses(&said)) };
    let close = match near.as_slice() {
        [] => String::new(),
        near => {
            let names: Vec<String> =
                near.iter().map(|it| format!("{} ({})", it.strategy, TTFT.text(it))).collect();
            let verb = if near.len() == 1 { "is" } else { "are" };
            format!(" But {} {verb} within 2 % of it: too close to tell apart in one run.", listed(&names))
        }
    };
    format!(
        "Of {} strategies, {} has the lowest mean TTFT, {}{against}.{close}",
        others.len() + 1,
        leader.strategy,
        TTFT.text(leader)
    )
}

fn end_to_end(leader: &ReportRow, others: &[&ReportRow]) -> String {
    let Some(best) = E2E.lowest(others) else { return String::new() };
    let (name, own, its) = (&best.strategy, E2E.text(leader), E2E.text(best));
    let (ahead, behind) = (E2E.lead(leader, best), E2E.lead(best, leader));
    let measure = E2E.name;
    if ahead >= CLOSE {
        format!("It also has the lowest {measure}, {own}: {} lower than {name}.", percent(ahead))
    } else if ahead >= 0.0 {
        format!("It also has the lowest {measure}, {own}, though {name} is within 2 % of it ({its}).")
    } else if behind < CLOSE {
        format!("Its {measure}, {own}, is within 2 % of the lowest, that of {name} ({its}).")
    } else {
        format!("But {name} has the lowest {measure}: {its}, {} lower than {own}.", percent(behind))
    }
}

fn hits(leader: &ReportRow, others: &[&ReportRow], rows: &[&ReportRow]) -> String {
    let own = leader.hit_ratio;
    let mut sentence = format!("Its hit ratio is {own:.3}");
    let ideal = rows.iter().find(|it| it.strategy == "ideal-cache" && it.requests > 0);
    if let Some(ideal) = ideal.map(|it| it.hit_ratio) {
        if ideal <= 0.0 {
            return "No prompt shares a prefix with an earlier one: even ideal-cache reuses nothing."
                .to_owned();
        }
        sentence += &format!(", {} of the {ideal:.3} that an ideal cache reaches", percent(own / ideal));
    }
    match others.iter().max_by(|one, other| one.hit_ratio.total_cmp(&other.hit_ratio)) {
        Some(it) if it.hit_ratio > own * (1.0 + CLOSE) => {
            sentence += &format!("; {} has a higher one, {:.3}", it.strategy, it.hit_ratio);
        }
        // The table shows three digits, and marks the higher one there.
        Some(it) if (it.hit_ratio * 1e3).round() > (own * 1e3).round() => {
            sentence +=
                &format!("; the highest, that of {}, is within 2 % of it ({:.3})", it.strategy, it.hit_ratio);
        }
        Some(_) if own > 0.0 => sentence += "; no other strategy has a higher one",
        _ => {}
    }
    sentence + "."
}

/// Where another strategy is better by more than a little.
fn losses(leader: &ReportRow, others: &[&ReportRow]) -> String {
    let mut said = Vec::new();
    for measure in OTHERS {
        let best = measure.lowest(others).filter(|it| measure.lead(it, leader) >= CLOSE);
        said.extend(best.map(|it| {
            let (its, own) = (measure.text(it), measure.text(leader));
            format!("{} has a lower {} ({its} against {own})", it.strategy, measure.name)
        }));
    }
    let good = others.iter().max_by(|one, other| one.goodput_ratio.total_cmp(&other.goodput_ratio));
    let good = good.filter(|it| it.goodput_ratio > leader.goodput_ratio * (1.0 + CLOSE));
    said.extend(good.map(|it| {
        let (its, own) = (goodput(it), goodput(leader));
        format!("{} meets the targets more often ({its} against {own})", it.strategy)
    }));
    match said.is_empty() {
        true => {
            "No other strategy is better by 2 % or more in TTFT at p50, p90 or p99, in TPOT, or in requests \
                 within the targets."
                .to_owned()
        }
        false => format!("It does not lead everywhere: {}.", listed(&said)),
    }
}

/// Too few requests within the targets are a sign by themselves. A low rate of served tokens is one only beside them:
/// every short trace ends with a tail of answers.
fn strain(leader: &ReportRow, demand: Demand) -> String {
    let (name, good) = (&leader.strategy, goodput(leader));
    let (p50, p99) = (leader.ttft_p50_s, leader.ttft_p99_s);
    let has_tail = p50 > 0.0 && p99 > TAIL_MAX * p50 && p99 > demand.first_token_s;
    let tail = has_tail.then(|| format!("its p99 TTFT is {:.0} times its p50", p99 / p50));
    if leader.goodput_ratio >= GOOD_MIN {
        let good = format!("{good} of the requests meet the targets");
        return match tail {
            Some(tail) => format!("The fleet keeps up under {name} most of the time: {good}, but {tail}."),
            None => format!("The fleet keeps up under {name}: {good}."),
        };
    }
    let mut signs = vec![format!("only {good} of the requests meet the targets")];
    signs.extend(tail);
    let served = demand.tokens_per_s.filter(|&it| it > 0.0).map(|it| leader.output_tokens_per_s / it);
    let served = served.filter(|&it| it < SERVED_MIN && leader.goodput_ratio < GOOD_FEW);
    signs.extend(
        served.map(|it| format!("it serves {} of the requested output tokens per second", percent(it))),
    );
    let state = if served.is_some() { "saturated" } else { "strained" };
    format!("The fleet is {state} even under {name}: {}.", clauses(&signs))
}

/// As the table has it.
fn goodput(row: &ReportRow) -> String {
    format!("{:.1} %", row.goodput_ratio * 100.0)
}

fn cautions(leader: &ReportRow, rows: &[&ReportRow]) -> Vec<String> {
    let mut said = Vec::new();
    let of = |it: &&ReportRow| {
        format!("{} ({} of {})", it.strategy, count(lost(it)), count(lost(it) + it.requests))
    };
    let losers: Vec<String> = rows.iter().filter(|it| lost(it) > 0).map(of).collect();
    if !losers.is_empty() {
        said.push(format!("Means leave out requests that were refused or failed: {}.", listed(&losers)));
    }
    if differ(rows.iter().copied()) {
        said.push(CONDITIONS.to_owned());
    }
    if leader.requests < REQUESTS_FEW {
        let answers = counted(leader.requests, "answer");
        said.push(format!("With only {answers}, p99 is the time of a single request."));
    }
    said
}

/// Which strategy leads at which speed. Each item is a speed and its rows.
pub(super) fn sweep(speeds: &[(f64, Vec<&ReportRow>)]) -> String {
    let mut leaders: Vec<(&str, Vec<String>)> = Vec::new();
    for (speed, rows) in speeds {
        let Some(leader) = TTFT.lowest(&able(rows)) else { continue };
        match leaders.iter_mut().find(|it| it.0 == leader.strategy) {
            Some((_, at)) => at.push(format!("{speed}×")),
            None => leaders.push((&leader.strategy, vec![format!("{speed}×")])),
        }
    }
    match leaders.as_slice() {
        [] => String::new(),
        [(name, at)] if at.len() > 1 => format!("At every speed, {name} has the lowest mean TTFT."),
        _ => {
            let said: Vec<String> =
                leaders.iter().map(|(name, at)| format!("{name} at {}", listed(at))).collect();
            format!("The lowest mean TTFT, by speed: {}.", said.join("; "))
        }
    }
}

#[cfg(test)]
mod tests;
