//! What the rows say, in words: who leads and by how much, what it costs, and how far to trust it.
//!
//! The bounds never lead: no router can be like them. A difference under `CLOSE` is called none, for another
//! seed or another hour of the same traffic moves a mean by as much.

use maitre_sim::report::Row;

use super::words::{clauses, count, counted, listed, percent};
use crate::table::{lost, seconds};

/// Differences below this part are not worth a claim. The sentences say "2 %".
const CLOSE: f64 = 0.02;
/// From this share of requests answered within the targets, a fleet does its work.
const GOOD_MIN: f64 = 0.9;
/// Under this one, it may be past saturation.
const GOOD_FEW: f64 = 0.5;
/// A p99 so many times the p50 is a queue, not a long prompt.
const TAIL_MAX: f64 = 10.0;
/// Serving less than this part of what is asked for means that work piles up.
const SERVED_MIN: f64 = 0.9;
/// Fewer requests than this have no p99.
const REQUESTS_FEW: u64 = 100;

const BOUNDS: &[&str] = &["oracle", "ideal-cache"];
/// What everybody knows, to hold others against.
const PLAIN: &[&str] = &["round-robin", "least-request"];

/// Who loses so much more of the requests than the one that loses least does not lead.
const MORE_LOST: f64 = 0.01;

pub(super) fn is_bound(strategy: &str) -> bool {
    BOUNDS.contains(&strategy)
}

/// A number by which strategies are compared.
struct Measure {
    name: &'static str,
    value: fn(&Row) -> f64,
    text: fn(f64) -> String,
}

const TTFT: Measure = Measure { name: "mean TTFT", value: |it| it.ttft_mean_s, text: seconds };
const E2E: Measure = Measure { name: "mean E2E time", value: |it| it.e2e_mean_s, text: seconds };
const OTHERS: &[Measure] = &[
    Measure { name: "p50 TTFT", value: |it| it.ttft_p50_s, text: seconds },
    Measure { name: "p90 TTFT", value: |it| it.ttft_p90_s, text: seconds },
    Measure { name: "p99 TTFT", value: |it| it.ttft_p99_s, text: seconds },
    Measure { name: "TPOT", value: |it| it.tpot_mean_s, text: |it| format!("{:.1} ms", it * 1e3) },
];

/// What was asked of the fleet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Output tokens; none if all requests came at once.
    pub(super) tokens_per_s: Option<f64>,
    /// The target of the TTFT.
    pub(super) first_token_s: f64,
}

/// The paragraph. All rows are of one speed.
pub(super) fn write(rows: &[&Row], asked: Asked) -> String {
    let able = able(rows);
    let Some(leader) = least(&able, &TTFT) else { return nobody(rows) };
    let mut sentences = match able.len() {
        1 => vec![alone(leader)],
        _ => vec![lead(leader, &able), whole(leader, &able)],
    };
    sentences.push(hits(leader, rows, &able));
    if able.len() > 1 {
        sentences.push(losses(leader, &able));
    }
    sentences.push(strain(leader, asked));
    sentences.extend(cautions(leader, rows));
    sentences.join(" ")
}

/// Those who may lead. Means are of answered requests, so who turns more away than others looks fast, and who
/// answers nothing has means of zero, the best there are.
fn able<'a>(rows: &[&'a Row]) -> Vec<&'a Row> {
    let served = rows.iter().copied().filter(|it| it.requests > 0 && !is_bound(&it.strategy));
    let part = |it: &Row| lost(it) as f64 / (lost(it) + it.requests) as f64;
    let least = served.clone().map(part).fold(1.0, f64::min);
    served.filter(|it| part(it) <= least + MORE_LOST).collect()
}

fn least<'a>(rows: &[&'a Row], measure: &Measure) -> Option<&'a Row> {
    let value = measure.value;
    rows.iter().copied().min_by(|one, other| value(one).total_cmp(&value(other)))
}

fn nobody(rows: &[&Row]) -> String {
    let bounds: Vec<&&Row> = rows.iter().filter(|it| it.requests > 0).collect();
    if bounds.is_empty() {
        return "No request was answered: there is nothing to compare.".to_owned();
    }
    let said: Vec<String> = bounds
        .iter()
        .map(|it| format!("{} has a mean TTFT of {}", it.strategy, seconds(it.ttft_mean_s)))
        .collect();
    format!("No strategy answered a request, only bounds that no router can reach: {}.", listed(&said))
}

fn alone(only: &Row) -> String {
    format!(
        "Only one strategy was run, {}, so there is nothing to hold it against: its mean TTFT is {}, \
         its mean E2E time {}.",
        only.strategy,
        seconds(only.ttft_mean_s),
        seconds(only.e2e_mean_s)
    )
}

/// How much lower, as a part of the other.
fn lead_over(leader: &Row, other: &Row, measure: &Measure) -> f64 {
    let (lower, higher) = ((measure.value)(leader), (measure.value)(other));
    if higher > 0.0 { 1.0 - lower / higher } else { 0.0 }
}

fn others<'a>(leader: &Row, able: &[&'a Row]) -> Vec<&'a Row> {
    able.iter().copied().filter(|it| !std::ptr::eq(*it, leader)).collect()
}

fn lead(leader: &Row, able: &[&Row]) -> String {
    let others = others(leader, able);
    let Some(next) = least(&others, &TTFT) else { return alone(leader) };
    let text = |row: &Row| (TTFT.text)((TTFT.value)(row));
    let near: Vec<&&Row> = others.iter().filter(|it| lead_over(leader, it, &TTFT) < CLOSE).collect();
    let plain = |it: &&&Row| PLAIN.contains(&it.strategy.as_str()) && lead_over(leader, it, &TTFT) >= CLOSE;
    let mut against: Vec<String> = Vec::new();
    if near.is_empty() {
        against.push(format!("{} lower than the next, {}", lower(leader, next), next.strategy));
    }
    let known = others.iter().filter(|it| !near.is_empty() || !std::ptr::eq(**it, next)).filter(plain);
    against.extend(known.map(|it| format!("{} lower than {}", lower(leader, it), it.strategy)));
    let begin = format!(
        "Of {} strategies, {} has the lowest mean TTFT, {}",
        able.len(),
        leader.strategy,
        text(leader)
    );
    let mut sentence = match against.is_empty() {
        true => format!("{begin}."),
        false => format!("{begin}: {}.", clauses(&against)),
    };
    if !near.is_empty() {
        let names: Vec<String> = near.iter().map(|it| format!("{} ({})", it.strategy, text(it))).collect();
        let verb = if names.len() == 1 { "is" } else { "are" };
        sentence.push_str(&format!(
            " But {} {verb} within 2 % of it: too close to tell apart by one run.",
            listed(&names)
        ));
    }
    sentence
}

fn lower(leader: &Row, other: &Row) -> String {
    percent(lead_over(leader, other, &TTFT))
}

fn whole(leader: &Row, able: &[&Row]) -> String {
    let Some(best) = least(able, &E2E) else { return String::new() };
    let value = |row: &Row| seconds(row.e2e_mean_s);
    if std::ptr::eq(best, leader) {
        let Some(next) = least(&others(leader, able), &E2E) else { return String::new() };
        let by = lead_over(leader, next, &E2E);
        let distance = match by < CLOSE {
            true => format!("though {} is within 2 % ({})", next.strategy, value(next)),
            false => format!("{} lower than {}", percent(by), next.strategy),
        };
        return format!("It also has the lowest {}, {}, {distance}.", E2E.name, value(leader));
    }
    let by = lead_over(best, leader, &E2E);
    match by < CLOSE {
        true => format!(
            "In {} it is level with {}: {} against {}.",
            E2E.name,
            best.strategy,
            value(leader),
            value(best)
        ),
        false => format!(
            "But the lowest {} is that of {}: {}, {} lower than the {} of {}.",
            E2E.name,
            best.strategy,
            value(best),
            percent(by),
            value(leader),
            leader.strategy
        ),
    }
}

fn hits(leader: &Row, rows: &[&Row], able: &[&Row]) -> String {
    let own = leader.hit_ratio;
    let ideal = rows.iter().find(|it| it.strategy == "ideal-cache" && it.requests > 0);
    let mut sentence = match ideal {
        Some(it) if it.hit_ratio <= 0.0 => {
            return "No prompt repeats the beginning of an earlier one: even ideal-cache reused nothing."
                .to_owned();
        }
        Some(it) => format!(
            "Its hit ratio is {own:.3}, {} of the {:.3} that an ideal cache reaches",
            percent(own / it.hit_ratio),
            it.hit_ratio
        ),
        None => format!("Its hit ratio is {own:.3}"),
    };
    let most = able.iter().max_by(|one, other| one.hit_ratio.total_cmp(&other.hit_ratio));
    match most {
        Some(it) if it.hit_ratio > own * (1.0 + CLOSE) => {
            sentence.push_str(&format!("; {} has a higher one, {:.3}", it.strategy, it.hit_ratio));
        }
        Some(_) if able.len() > 1 && own > 0.0 => {
            sentence.push_str(if ideal.is_some() {
                ", and no other strategy has a higher one"
            } else {
                "; none is higher"
            });
        }
        _ => {}
    }
    sentence + "."
}

/// Where another is better by more than a little.
fn losses(leader: &Row, able: &[&Row]) -> String {
    let mut said = Vec::new();
    for measure in OTHERS {
        let Some(best) = least(able, measure) else { continue };
        if lead_over(best, leader, measure) >= CLOSE {
            let text = |row: &Row| (measure.text)((measure.value)(row));
            said.push(format!(
                "{} has a lower {} ({} against {})",
                best.strategy,
                measure.name,
                text(best),
                text(leader)
            ));
        }
    }
    let good = able.iter().max_by(|one, other| one.goodput_ratio.total_cmp(&other.goodput_ratio));
    if let Some(best) = good.filter(|it| it.goodput_ratio > leader.goodput_ratio * (1.0 + CLOSE)) {
        said.push(format!(
            "{} answers more within the targets ({} against {})",
            best.strategy,
            goodput(best),
            goodput(leader)
        ));
    }
    match said.is_empty() {
        true => {
            "In TTFT at p50, p90 and p99, in TPOT and in answers within the targets, no other strategy is \
                 better by 2 % or more."
                .to_owned()
        }
        false => format!("It does not lead everywhere: {}.", listed(&said)),
    }
}

/// Too few good answers are a sign by themselves. A rate below what is asked for is one only beside them: a short
/// trace ends with a tail of answers, whatever the fleet.
fn strain(leader: &Row, asked: Asked) -> String {
    let (name, good) = (&leader.strategy, goodput(leader));
    let (p50, p99) = (leader.ttft_p50_s, leader.ttft_p99_s);
    let has_tail = p50 > 0.0 && p99 > TAIL_MAX * p50 && p99 > asked.first_token_s;
    let tail = has_tail.then(|| format!("its p99 TTFT is {:.0} times its p50", p99 / p50));
    if leader.goodput_ratio >= GOOD_MIN {
        let good = format!("{good} of the requests are answered within the targets");
        return match tail {
            Some(tail) => {
                format!("The fleet keeps up under {name}, but not at all times: {good}, and {tail}.")
            }
            None => format!("The fleet keeps up under {name}: {good}."),
        };
    }
    let mut signs = vec![format!("only {good} of the requests are answered within the targets")];
    signs.extend(tail);
    let served = asked.tokens_per_s.filter(|&it| it > 0.0).map(|it| leader.output_tokens_per_s / it);
    match served.filter(|&it| it < SERVED_MIN && leader.goodput_ratio < GOOD_FEW) {
        Some(part) => {
            signs.push(format!(
                "it serves {} of the output tokens a second that are asked for",
                percent(part)
            ));
            format!("The fleet is past saturation even under {name}: {}.", clauses(&signs))
        }
        None => format!("The fleet is strained even under {name}: {}.", clauses(&signs)),
    }
}

/// As the table has it.
fn goodput(row: &Row) -> String {
    format!("{:.1} %", row.goodput_ratio * 100.0)
}

fn cautions(leader: &Row, rows: &[&Row]) -> Vec<String> {
    let mut said = Vec::new();
    let losers: Vec<String> = rows
        .iter()
        .filter(|it| lost(it) > 0)
        .map(|it| format!("{} ({} of {})", it.strategy, count(lost(it)), count(lost(it) + it.requests)))
        .collect();
    if !losers.is_empty() {
        said.push(format!(
            "Means leave out requests that were refused or broken off: those of {}.",
            listed(&losers)
        ));
    }
    if leader.requests < REQUESTS_FEW {
        said.push(format!(
            "With only {}, a p99 is the fate of a single one.",
            counted(leader.requests, "answer")
        ));
    }
    said
}

/// Who leads at which speed. Each item is a speed and its rows.
pub(super) fn sweep(speeds: &[(f64, Vec<&Row>)]) -> String {
    let mut leaders: Vec<(&str, Vec<String>)> = Vec::new();
    for (speed, rows) in speeds {
        let Some(leader) = least(&able(rows), &TTFT) else { continue };
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
