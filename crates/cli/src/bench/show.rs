//! A run as text and as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use maitre_replay::table;
use maitre_sim::report::{ReportRow, Targets};
use serde_json::{Value, json};

use super::played::{Late, Played};

const HEADS: [&str; 17] = [
    "",
    "requests",
    "refused",
    "failed",
    "hit ratio",
    "TTFT mean",
    "p50",
    "p90",
    "p99",
    "TPOT mean",
    "p99",
    "total mean",
    "p99",
    "tokens/s",
    "good/s",
    "good",
    "in time",
];

/// The one object of `--json`.
pub(super) fn json(played: &Played, rows: &[ReportRow]) -> Value {
    // To the microsecond, as the rows.
    let round = |seconds: f64| (seconds * 1e6).round() / 1e6;
    let late = Late { mean_s: round(played.late.mean_s), max_s: round(played.late.max_s), ..played.late };
    json!({
        "rows": rows,
        "errors": played.troubles,
        "refusals": played.refusals,
        "late": late,
        "sent": played.sent,
        "unfinished": played.unfinished(),
        "hit_ratio_known": played.hit_ratio_known(),
        "notes": played.notes(),
    })
}

pub(super) fn draw(played: &Played, rows: &[ReportRow], targets: &Targets) -> String {
    let mut lines = vec![HEADS.map(str::to_owned)];
    lines.extend(rows.iter().map(|it| cells(it, played)));
    let mut text = align(&lines);
    // Writing to a string cannot fail.
    for row in rows.iter().filter(|it| it.sessions.is_some()) {
        let _ = writeln!(text, "{}", tasks(row));
    }
    let _ = writeln!(
        text,
        "times count from when a request was due, not from when it left; good: first token within {:?}, then at most {:?} a token",
        targets.first_token, targets.per_token
    );
    for note in played.notes() {
        let _ = writeln!(text, "{note}");
    }
    for (kind, count) in played.troubles.iter() {
        let _ = writeln!(text, "{} × {kind}; the first: {}", count.count, count.first);
    }
    text
}

/// The times of sessions, in a line.
fn tasks(row: &ReportRow) -> String {
    let seconds = |it: Option<f64>| format!("{:.1} s", it.unwrap_or_default());
    let mut text = format!(
        "{}: {} tasks, {} lost; task mean {}, p50 {}, p99 {}; {:.2} calls/s",
        table::name(row),
        row.sessions.unwrap_or_default(),
        row.sessions_lost.unwrap_or_default(),
        seconds(row.task_mean_s),
        seconds(row.task_p50_s),
        seconds(row.task_p99_s),
        row.calls_per_s.unwrap_or_default(),
    );
    if let (Some(mean), Some(small)) = (row.slowdown_mean, row.slowdown_small_p99) {
        let _ = write!(text, "; slowdown {mean:.2}, p99 of the smaller half {small:.2}");
    }
    text
}

fn cells(row: &ReportRow, played: &Played) -> [String; HEADS.len()] {
    let of_answers = |text: String| if row.requests > 0 { text } else { "-".to_owned() };
    let millis = |it: f64| of_answers(format!("{:.1} ms", it * 1e3));
    let seconds = |it: f64| of_answers(format!("{it:.2} s"));
    [
        table::name(row),
        row.requests.to_string(),
        row.refused.to_string(),
        row.failed.to_string(),
        if played.hit_ratio_known() { format!("{:.3}", row.hit_ratio) } else { "?".to_owned() },
        millis(row.ttft_mean_s),
        millis(row.ttft_p50_s),
        millis(row.ttft_p90_s),
        millis(row.ttft_p99_s),
        millis(row.tpot_mean_s),
        millis(row.tpot_p99_s),
        seconds(row.e2e_mean_s),
        seconds(row.e2e_p99_s),
        format!("{:.0}", row.output_tokens_per_s),
        format!("{:.2}", row.goodput_per_s),
        format!("{:.0} %", row.goodput_ratio * 100.0),
        row.deadlines_met_ratio.map_or_else(|| "-".to_owned(), |it| format!("{:.0} %", it * 100.0)),
    ]
}

/// Names aligned left, numbers aligned right, each column as wide as its widest cell.
fn align(lines: &[[String; HEADS.len()]]) -> String {
    let width = |column: usize| lines.iter().map(|it| it[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; HEADS.len()] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        let _ = write!(text, "{:<1$}", line[0], widths[0]);
        for (cell, width) in line.iter().zip(widths).skip(1) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
    text
}

/// One line for a terminal, drawn over the previous one.
pub(super) fn progress(elapsed: Duration, played: &Played) -> String {
    format!(
        "\r{:>5.0} s  sent {} of {}  open {}  answered {}  errors {}\x1b[K",
        elapsed.as_secs_f64(),
        played.sent,
        played.planned,
        played.unfinished(),
        played.seen.len(),
        played.troubles.count(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_heads() {
        let played = Played { told_cached: 1, ..Played::default() };
        let whole = ReportRow { strategy: "127.0.0.1:8080".to_owned(), requests: 12, ..ReportRow::default() };
        let rows = [ReportRow { part: Some(1), ..whole.clone() }, whole];
        let text = draw(&played, &rows, &Targets::default());
        let widths: Vec<usize> = text.lines().take(3).map(|it| it.chars().count()).collect();
        assert_eq!(widths, [widths[0]; 3], "{text}");
        assert!(text.contains("from when a request was due"), "{text}");
    }

    #[test]
    fn without_answers_there_are_no_times() {
        let row = ReportRow { strategy: "127.0.0.1:8080".to_owned(), failed: 3, ..ReportRow::default() };
        let text = draw(&Played::default(), &[row], &Targets::default());
        let times: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().skip(5).take(8).collect();
        assert_eq!(times, ["-"; 8], "{text}");
    }
}
