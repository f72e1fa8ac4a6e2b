//! The result as a text table.

use std::fmt::Write as _;

use maitre_base::Role;
use maitre_sim::lab::{Sync, Via};
use maitre_sim::profile::Profile;
use maitre_sim::report::{CacheKnowledge, ReportRow};

use Better::{Higher, Lower, Neither};

use super::{Run, Study, knowledge_word, roles, sharing};

/// A number of a row, and how it is shown.
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) better: Better,
    pub(super) value: fn(&ReportRow) -> Option<f64>,
    show: fn(f64) -> String,
}

impl Column {
    /// Empty if the row has no such number.
    pub(super) fn text(&self, row: &ReportRow) -> String {
        (self.value)(row).map_or_else(String::new, self.show)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Lower,
    Higher,
    /// An informative column: no value in it is better than another.
    Neither,
}

const fn column(
    title: &'static str,
    better: Better,
    value: fn(&ReportRow) -> Option<f64>,
    show: fn(f64) -> String,
) -> Column {
    Column { title, better, value, show }
}

pub(super) const COLUMNS: &[Column] = &[
    column("queue", Neither, |it| it.queue.map(f64::from), |it| ["off", "on"][it as usize].to_owned()),
    column("caches", Neither, |it| it.knowledge.map(|it| f64::from(it as u8)), knowledge),
    column("tasks", Neither, |it| it.sessions.map(float), whole),
    column("task mean", Lower, |it| it.task_mean_s, seconds),
    column("task p50", Lower, |it| it.task_p50_s, seconds),
    column("task p99", Lower, |it| it.task_p99_s, seconds),
    column("slowdown", Lower, |it| it.slowdown_mean, times),
    column("small p99", Lower, |it| it.slowdown_small_p99, times),
    column("calls/s", Higher, |it| it.calls_per_s, hundredths),
    column("hit", Higher, |it| Some(it.hit_ratio), |it| format!("{it:.3}")),
    column("TTFT mean", Lower, |it| Some(it.ttft_mean_s), seconds),
    column("p50", Lower, |it| Some(it.ttft_p50_s), seconds),
    column("p90", Lower, |it| Some(it.ttft_p90_s), seconds),
    column("p99", Lower, |it| Some(it.ttft_p99_s), seconds),
    column("TPOT", Lower, |it| Some(it.tpot_mean_s), |it| format!("{:.1} ms", it * 1e3)),
    column("E2E", Lower, |it| Some(it.e2e_mean_s), seconds),
    column("tok/s", Higher, |it| Some(it.output_tokens_per_s), whole),
    column("good", Higher, |it| Some(it.goodput_ratio), percent),
    column("in time", Higher, |it| it.deadlines_met_ratio, percent),
    column("late", Lower, |it| it.served_late.map(float), whole),
    column("missed", Lower, |it| it.missed.map(float), whole),
    column("worker-hours", Lower, |it| it.worker_hours, hundredths),
    column("most", Neither, |it| it.workers_max.map(float), whole),
    column("changes", Neither, |it| it.scale_changes.map(float), whole),
    column("told", Lower, |it| it.told_bytes, |it| format!("{it:.0} B")),
    column("share", Neither, |it| it.token_share, percent),
    column("imbalance", Lower, |it| it.imbalance, hundredths),
    column("forecast", Neither, |it| it.forecast_error_ratio, |it| format!("±{:.0} %", it * 100.0)),
    column("pulls", Neither, |it| it.pulled_requests.map(float), whole),
    column("pulled", Neither, |it| it.pulled_tokens.map(float), whole),
    column("loads", Neither, |it| it.loaded_requests.map(float), whole),
    column("loaded", Neither, |it| it.loaded_tokens.map(float), whole),
    column("evicted", Lower, |it| it.evictions.map(float), whole),
    column("refused", Lower, |it| Some(float(lost(it))), whole),
];

/// The columns that any row fills.
pub(super) fn columns(rows: &[&ReportRow]) -> Vec<&'static Column> {
    let filled = |it: &&Column| rows.iter().any(|row| (it.value)(row).is_some());
    COLUMNS.iter().filter(filled).collect()
}

fn float(count: u64) -> f64 {
    count as f64
}

fn whole(count: f64) -> String {
    format!("{count:.0}")
}

fn hundredths(value: f64) -> String {
    format!("{value:.2}")
}

fn percent(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2}×")
}

/// From the number that its column has for it.
fn knowledge(number: f64) -> String {
    CacheKnowledge::ALL[number as usize].name().to_owned()
}

/// Refused or broken off.
pub(super) fn lost(row: &ReportRow) -> u64 {
    row.refused + row.failed
}

/// Three significant digits.
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
    let rows: Vec<&ReportRow> = runs.iter().flat_map(all_rows).collect();
    let columns = columns(&rows);
    let mut lines = vec![header(&columns, sweeps)];
    for run in runs {
        let mut decisions = decisions(run);
        for row in all_rows(run) {
            let mut line = cells(row, &columns, sweeps);
            // Only rows of a whole run have these.
            line.push(std::mem::take(&mut decisions));
            lines.push(line);
        }
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
    if differ(runs.iter().map(|it| &it.row)) {
        let _ = write!(text, "\n{CONDITIONS} Use --queue on or --queue off to play all alike.\n");
    }
    text
}

/// Why rows were played under different conditions.
pub(super) const CONDITIONS: &str =
    "Published rules were played as published, without the queue; least-delay with it, as it is served.";

/// Whether some strategies waited in the queue and others did not. The bounds never do.
pub(super) fn differ<'a>(rows: impl Iterator<Item = &'a ReportRow>) -> bool {
    let strategies = rows.filter(|it| it.knowledge != Some(CacheKnowledge::Exact));
    let (on, off): (Vec<_>, Vec<_>) = strategies.partition(|it| it.queue == Some(true));
    !on.is_empty() && !off.is_empty()
}

pub(super) fn title(study: &Study) -> String {
    let requests = study.trace.requests.len();
    let seconds = study.trace.span().as_secs_f64();
    let routers = match study.routers {
        1 => String::new(),
        count => format!(", {count} routers{}", talk(study)),
    };
    let traffic = match &study.sessions {
        Some(sessions) => format!("{}, {requests} calls", sessions.words()),
        None => format!("{} in {seconds:.0} s", counted(requests, "request")),
    };
    let kind = |(profile, &role): (&Profile, &Role)| roles::kind(profile.name, role);
    let mut kinds: Vec<String> = study.fleet.iter().zip(&study.roles).map(kind).collect();
    kinds.dedup();
    format!(
        "{}: {traffic}; {} ({}, {} KV tokens{}); {} caches{}{routers}\n\n",
        study.source,
        counted(study.fleet.len(), "worker"),
        kinds.join(", "),
        study.fleet.iter().map(Profile::kv_tokens).min().unwrap_or(0),
        sharing::words(study),
        knowledge_word(study.knowledge),
        chunks(study),
    )
}

/// `1 worker`, `8 workers`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Whether engines reuse chunks.
fn chunks(study: &Study) -> String {
    match (study.chunks.engines, study.chunks.is_hidden) {
        (None, _) => String::new(),
        (Some(part), false) => format!(", chunks reused with {part} computed again"),
        (Some(part), true) => format!(", chunks reused with {part} computed again, unknown to the router"),
    }
}

/// How routers share state.
pub(crate) fn talk(study: &Study) -> String {
    match study.sync {
        None => " that share nothing".to_owned(),
        Some(Sync { via, delay }) => {
            let via = match via {
                Via::Redis => "through Redis",
                Via::Mesh => "in a mesh",
            };
            format!(" {via}, {} ms late", delay.as_millis())
        }
    }
}

fn all_rows(run: &Run) -> impl Iterator<Item = &ReportRow> {
    [&run.row].into_iter().chain(&run.parts).chain(&run.classes).chain(&run.tenants)
}

fn header(columns: &[&Column], sweeps: bool) -> Vec<String> {
    let speed = sweeps.then(|| "speed".to_owned());
    let titles = columns.iter().map(|it| it.title.to_owned());
    ["strategy".to_owned()].into_iter().chain(speed).chain(titles).chain(["decisions/s".to_owned()]).collect()
}

fn cells(row: &ReportRow, columns: &[&Column], sweeps: bool) -> Vec<String> {
    let speed = sweeps.then(|| format!("{}×", row.speed));
    let numbers = columns.iter().map(|it| it.text(row));
    [name(row)].into_iter().chain(speed).chain(numbers).collect()
}

/// The strategy for a whole run; below it, the part, class or tenant of each row.
pub fn name(row: &ReportRow) -> String {
    match (row.part, &row.class, &row.tenant) {
        (Some(part), ..) => format!("  part {part}"),
        (_, Some(class), _) => format!("  class {class}"),
        (.., Some(tenant)) => format!("  tenant {tenant}"),
        _ => row.strategy.clone(),
    }
}

/// CPU time of our own code on this machine: the only number that differs between two runs.
fn decisions(run: &Run) -> String {
    let seconds = run.outcome.decision_time.as_secs_f64();
    let count = run.outcome.answers.len() as f64 + run.outcome.refused as f64;
    if seconds > 0.0 { format!("{:.0}", count / seconds) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_named_by_what_it_is_a_part_of() {
        let run = ReportRow { strategy: "it".to_owned(), ..ReportRow::default() };
        let class = ReportRow { class: Some("batch".to_owned()), ..run.clone() };
        let tenant = ReportRow { tenant: Some("a1".to_owned()), ..run.clone() };
        let part = ReportRow { part: Some(3), ..run.clone() };
        assert_eq!(
            [run, part, class, tenant].map(|it| name(&it)),
            ["it", "  part 3", "  class batch", "  tenant a1"]
        );
    }

    #[test]
    fn rows_under_different_conditions_are_told_apart() {
        let row = |queue, knowledge| ReportRow {
            queue: Some(queue),
            knowledge: Some(knowledge),
            ..ReportRow::default()
        };
        let (ours, published) = (row(true, CacheKnowledge::Reported), row(false, CacheKnowledge::Unused));
        let bound = row(false, CacheKnowledge::Exact);
        assert!(differ([&ours, &published].into_iter()));
        assert!(!differ([&ours, &bound].into_iter()), "a bound has no queue to do without");
        assert!(!differ([&published, &published].into_iter()));
        let cells = |it: &ReportRow| COLUMNS[..2].iter().map(|column| column.text(it)).collect::<Vec<_>>();
        assert_eq!(
            [&ours, &published, &bound].map(cells),
            [["on", "reported"], ["off", "unused"], ["off", "exact"]]
        );
    }

    #[test]
    fn a_column_that_no_row_fills_is_left_out() {
        let titles = |row: &ReportRow| columns(&[row]).iter().map(|it| it.title).collect::<Vec<_>>();
        let bare = titles(&ReportRow::default());
        assert!(
            !["queue", "caches", "forecast", "in time", "late", "share", "imbalance"]
                .iter()
                .any(|it| bare.contains(it)),
            "{bare:?}"
        );
        let timed =
            ReportRow { deadlines_met_ratio: Some(0.5), served_late: Some(3), ..ReportRow::default() };
        assert_eq!(titles(&timed).len(), bare.len() + 2);
    }
}
