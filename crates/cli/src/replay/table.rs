//! The table for people.

use std::fmt::Write as _;

use maitre_sim::report::Row;

use super::{Run, Study, knowledge_word};

/// Title and the number under it.
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) text: fn(&Row) -> String,
    pub(super) value: fn(&Row) -> Option<f64>,
    pub(super) better: Better,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Lower,
    Higher,
}

const fn column(
    title: &'static str,
    better: Better,
    value: fn(&Row) -> Option<f64>,
    text: fn(&Row) -> String,
) -> Column {
    Column { title, text, value, better }
}

pub(super) const COLUMNS: &[Column] = &[
    column("hit", Better::Higher, |it| Some(it.hit_ratio), |it| format!("{:.3}", it.hit_ratio)),
    column("TTFT mean", Better::Lower, |it| Some(it.ttft_mean_s), |it| seconds(it.ttft_mean_s)),
    column("p50", Better::Lower, |it| Some(it.ttft_p50_s), |it| seconds(it.ttft_p50_s)),
    column("p90", Better::Lower, |it| Some(it.ttft_p90_s), |it| seconds(it.ttft_p90_s)),
    column("p99", Better::Lower, |it| Some(it.ttft_p99_s), |it| seconds(it.ttft_p99_s)),
    column("TPOT", Better::Lower, |it| Some(it.tpot_mean_s), |it| format!("{:.1} ms", it.tpot_mean_s * 1e3)),
    column("E2E", Better::Lower, |it| Some(it.e2e_mean_s), |it| seconds(it.e2e_mean_s)),
    column(
        "tok/s",
        Better::Higher,
        |it| Some(it.output_tokens_per_s),
        |it| format!("{:.0}", it.output_tokens_per_s),
    ),
    column(
        "good",
        Better::Higher,
        |it| Some(it.goodput_ratio),
        |it| format!("{:.1} %", it.goodput_ratio * 100.0),
    ),
    column(
        "imbalance",
        Better::Lower,
        |it| it.imbalance,
        |it| it.imbalance.map_or_else(String::new, |it| format!("{it:.2}")),
    ),
    column(
        "evicted",
        Better::Lower,
        |it| it.evictions.map(|it| it as f64),
        |it| it.evictions.map_or_else(String::new, |it| it.to_string()),
    ),
    column("refused", Better::Lower, |it| Some(lost(it) as f64), |it| lost(it).to_string()),
];

/// Turned away or broken off.
pub(super) fn lost(row: &Row) -> u64 {
    row.refused + row.failed
}

/// Three digits that matter.
pub(super) fn seconds(value: f64) -> String {
    match value {
        _ if value >= 99.95 => format!("{value:.0} s"),
        _ if value >= 9.995 => format!("{value:.1} s"),
        _ if value >= 0.995 => format!("{value:.2} s"),
        _ => format!("{:.0} ms", value * 1e3),
    }
}

pub(super) fn draw(study: &Study, runs: &[Run]) -> String {
    let mut text = title(study);
    let sweeps = runs.iter().any(|it| it.row.speed != runs[0].row.speed);
    let mut lines = vec![header(sweeps)];
    for run in runs {
        let mut line = cells(&run.row, sweeps);
        line.push(decisions(run));
        lines.push(line);
        lines.extend(run.parts.iter().map(|part| {
            let mut line = cells(part, sweeps);
            line[0] = format!("  part {}", part.part.unwrap_or(0));
            line.push(String::new());
            line
        }));
    }
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|column| lines.iter().map(|it| it[column].chars().count()).max().unwrap_or(0))
        .collect();
    for line in &lines {
        for (place, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            let _ = match place {
                0 => write!(text, "{cell:<width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn title(study: &Study) -> String {
    let requests = study.trace.requests.len();
    let seconds = study.trace.span().as_secs_f64();
    let routers = match (study.routers, study.shared) {
        (1, _) => String::new(),
        (count, true) => format!(", {count} routers that share"),
        (count, false) => format!(", {count} routers"),
    };
    let mut kinds: Vec<&str> = study.fleet.iter().map(|it| it.name).collect();
    kinds.dedup();
    format!(
        "{}: {requests} requests in {seconds:.0} s; {} workers ({}, {} KV tokens); {} caches{routers}\n\n",
        study.source,
        study.fleet.len(),
        kinds.join(", "),
        study.fleet.iter().map(maitre_sim::profile::Profile::kv_tokens).min().unwrap_or(0),
        knowledge_word(study.knowledge),
    )
}

fn header(sweeps: bool) -> Vec<String> {
    let speed = sweeps.then(|| "speed".to_owned());
    let titles = COLUMNS.iter().map(|it| it.title.to_owned());
    ["strategy".to_owned()].into_iter().chain(speed).chain(titles).chain(["decisions/s".to_owned()]).collect()
}

fn cells(row: &Row, sweeps: bool) -> Vec<String> {
    let speed = sweeps.then(|| format!("{}×", row.speed));
    let numbers = COLUMNS.iter().map(|it| (it.text)(row));
    [row.strategy.clone()].into_iter().chain(speed).chain(numbers).collect()
}

/// Of our own code, on this machine: the one number that is not the same twice.
fn decisions(run: &Run) -> String {
    let seconds = run.outcome.deciding.as_secs_f64();
    let count = run.outcome.answers.len() as f64 + run.outcome.refused as f64;
    if seconds > 0.0 { format!("{:.0}", count / seconds) } else { "-".to_owned() }
}
