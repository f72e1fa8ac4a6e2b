//! Turns facts into findings: pure, one small function for each check.
//!
//! A check returns its findings and one line of text, even if it could not be made. Where one fault explains another,
//! only the first is reported: an unreachable worker has no other findings.

mod alike;
mod caching;
mod events;
mod handoff;
mod machine;
mod reach;
mod router;
mod tokens;

#[cfg(test)]
mod tests;

use super::facts::{Fleet, Worker};
use super::report::{Check, Outcome, Report};

type Judge = fn(&Fleet) -> Outcome;

/// In the order of the report.
const CHECKS: [(&str, Judge); 17] = [
    ("reach", reach::reach),
    ("models", reach::models),
    ("roles", alike::roles),
    ("handoffs", handoff::handoffs),
    ("metrics", machine::metrics),
    ("blocks", alike::blocks),
    ("versions", alike::versions),
    ("contexts and types", alike::shapes),
    ("requests", caching::requests),
    ("prefix caching", caching::prefix_caching),
    ("cached tokens", caching::cached_tokens),
    ("salts", caching::salts),
    ("KV events", events::events),
    ("tokens", tokens::tokens),
    ("speed", machine::speed),
    ("this machine", machine::machine),
    ("router", router::router),
];

/// What can be checked without an engine that answers.
const WITHOUT_ENGINES: [&str; 4] = ["reach", "roles", "this machine", "router"];

/// Judges a fleet. Findings come worst first, those of one code in the order of the workers.
pub fn judge(fleet: &Fleet) -> Report {
    let mut report = Report::default();
    let has_engines = fleet.present().next().is_some();
    for (name, judge) in CHECKS {
        if !has_engines && !WITHOUT_ENGINES.contains(&name) {
            continue;
        }
        let outcome = judge(fleet);
        report.findings.extend(outcome.findings);
        report.checks.push(Check { name, said: outcome.said });
    }
    report.findings.sort_by_key(|it| it.code);
    report
}

/// Workers that should be alike: of one brand, serving the same first model.
fn groups(fleet: &Fleet) -> Vec<Vec<&Worker>> {
    let mut groups: Vec<Vec<&Worker>> = Vec::new();
    let key = |it: &Worker| (it.kind, it.models().first().map(|model| model.id.clone()));
    for worker in fleet.present() {
        match groups.iter_mut().find(|group| group.first().is_some_and(|it| key(it) == key(worker))) {
            Some(group) => group.push(worker),
            None => groups.push(vec![worker]),
        }
    }
    groups
}

/// The workers whose value is not the most frequent one.
struct Odd<'a, T> {
    usual: T,
    /// How many workers have the usual value.
    count: usize,
    others: Vec<(&'a Worker, T)>,
}

/// Among equally frequent values the first is the usual one.
fn odd_ones<'a, T: PartialEq + Clone>(values: &[(&'a Worker, T)]) -> Option<Odd<'a, T>> {
    let count = |value: &T| values.iter().filter(|it| it.1 == *value).count();
    let mut usual = values.first()?;
    for candidate in values {
        if count(&candidate.1) > count(&usual.1) {
            usual = candidate;
        }
    }
    let others = values.iter().filter(|it| it.1 != usual.1).cloned().collect();
    Some(Odd { usual: usual.1.clone(), count: count(&usual.1), others })
}

/// `1 of 1 worker answers`, `2 of 3 workers answer`.
fn answering(count: usize, of: usize) -> String {
    let verb = if of == 1 { "answers" } else { "answer" };
    format!("{count} of {} {verb}", workers(of))
}

/// `1 worker`, `3 workers`.
fn workers(count: usize) -> String {
    if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") }
}
