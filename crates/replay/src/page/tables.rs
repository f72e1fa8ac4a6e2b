//! The numbers of the report: all rows, and the rows of parts, classes and tenants, with the best of each column marked.
//!
//! The bounds compete with no strategy, because no router can reach them.

use std::fmt::Write as _;

use maitre_sim::report::ReportRow;

use super::finding::is_bound;
use super::words::escape;
use crate::table::{Better, Column, columns};

/// What the columns mean, in their order.
const MEANINGS: &[(&str, &str)] = &[
    ("queue", "whether requests waited in the router's queue, or went to a worker on arrival"),
    (
        "caches",
        "what the strategy knew of caches: reported by KV events, predicted from routed requests, none, unused by this \
         strategy, or exact, which no router has",
    ),
    ("tasks", "sessions that were complete"),
    ("task", "time from the first call of a session to its last answer: mean, p50 and p99"),
    ("slowdown", "that time relative to an empty fleet, mean"),
    ("small p99", "the 99th percentile of the slowdown, of the smaller half of the sessions"),
    ("calls/s", "answered calls of sessions per second"),
    ("hit", "share of all prompt tokens that the workers' caches already held"),
    ("TTFT", "time to first token, from arrival at the router: mean, p50, p90 and p99"),
    ("TPOT", "mean time between two tokens of an answer"),
    ("E2E", "mean time from arrival to the last token"),
    ("tok/s", "output tokens per second, from the first arrival to the last token"),
    ("good", "share of all requests that were answered within both targets"),
    ("in time", "share of the requests with a deadline whose first token met it"),
    ("late", "requests that were answered, but whose first token missed the deadline"),
    ("missed", "requests whose first token came too late, or never"),
    ("worker-hours", "hours of all workers, each from its order until it was gone"),
    ("most", "the most workers at once"),
    ("changes", "how often the number of workers changed"),
    ("told", "bytes that routers sent each other, per request"),
    ("share", "a tenant's share of the computed tokens: uncached prompt tokens and output tokens"),
    ("imbalance", "compute time of the busiest worker over the mean; 1 is even"),
    ("forecast", "median error of the router's own forecasts of first tokens, as a part of the actual time"),
    ("pulls", "requests whose worker pulled KV from another one"),
    ("pulled", "prompt tokens that workers pulled from each other"),
    ("loads", "requests whose worker loaded KV from the shared store"),
    ("loaded", "prompt tokens that workers loaded from the shared store"),
    ("evicted", "KV blocks that caches evicted to make room"),
    ("refused", "requests without a complete answer: refused, or failed"),
];

/// Which columns lead a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    pub(super) speed: bool,
    /// What rows of less than a run are rows of: "part", "class" or "tenant".
    pub(super) part: Option<&'static str>,
}

/// `rows` in the order in which they are shown; those of one speed and one part, class or tenant compete.
pub(super) fn draw(caption: &str, rows: &[&ReportRow], lead: Lead) -> String {
    let mut html = format!(
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{caption}\">\n<table>\n\
         <caption>{caption}</caption>\n<thead><tr>"
    );
    let speed = lead.speed.then_some("speed");
    let columns = columns(rows);
    let titles =
        ["strategy"].into_iter().chain(lead.part).chain(speed).chain(columns.iter().map(|it| it.title));
    for title in titles {
        let _ = write!(html, "<th scope=\"col\">{title}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        let bound = if is_bound(&row.strategy) { " <i>bound</i>" } else { "" };
        let _ = write!(html, "<tr><th scope=\"row\">{}{bound}</th>", escape(&row.strategy));
        if lead.part.is_some() {
            let _ = write!(html, "<th scope=\"row\">{}</th>", escape(&part(row)));
        }
        if lead.speed {
            let _ = write!(html, "<td data-v=\"{0}\">{0}×</td>", row.speed);
        }
        let rivals: Vec<&ReportRow> = rows.iter().copied().filter(|it| compete(it, row)).collect();
        columns.iter().for_each(|it| html.push_str(&cell(it, row, &rivals)));
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table>\n</div>\n");
    html
}

/// The name of the part, class or tenant; empty for a whole run.
fn part(row: &ReportRow) -> String {
    let part = row.part.map(|it| it.to_string());
    part.or_else(|| row.class.clone()).or_else(|| row.tenant.clone()).unwrap_or_default()
}

fn compete(one: &ReportRow, other: &ReportRow) -> bool {
    let same = one.speed == other.speed && part(one) == part(other);
    same && one.requests > 0 && !is_bound(&one.strategy)
}

fn cell(column: &Column, row: &ReportRow, rivals: &[&ReportRow]) -> String {
    let text = escape(&column.text(row));
    let value = (column.value)(row).map_or_else(String::new, |it| it.to_string());
    match is_best(column, row, rivals) {
        true => format!("<td class=\"best\" data-v=\"{value}\"><span title=\"best\">★</span> {text}</td>"),
        false => format!("<td data-v=\"{value}\">{text}</td>"),
    }
}

/// Whether no rival is better, by the digits that the table shows. If all are equal, none is best.
fn is_best(column: &Column, row: &ReportRow, rivals: &[&ReportRow]) -> bool {
    let values = || rivals.iter().filter_map(|it| Some(((column.value)(it)?, *it)));
    let best = match column.better {
        Better::Lower => values().min_by(|one, other| one.0.total_cmp(&other.0)),
        Better::Higher => values().max_by(|one, other| one.0.total_cmp(&other.0)),
        Better::Neither => None,
    };
    let Some((_, best)) = best else { return false };
    let takes_part = rivals.iter().any(|it| std::ptr::eq(*it, row));
    let differ = rivals.iter().any(|it| column.text(it) != column.text(best));
    takes_part && differ && column.text(row) == column.text(best)
}

pub(super) fn meanings() -> String {
    let meaning = |(name, meaning): &(&str, &str)| format!("<dt>{name}</dt><dd>{meaning}</dd>\n");
    let meanings: String = MEANINGS.iter().map(meaning).collect();
    format!(
        "<details><summary>What the columns mean</summary>\n<dl class=\"meanings\">\n{meanings}</dl>\n</details>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::COLUMNS;

    fn row(strategy: &str, ttft_mean_s: f64, speed: f64) -> ReportRow {
        ReportRow { strategy: strategy.to_owned(), requests: 10, ttft_mean_s, speed, ..ReportRow::default() }
    }

    /// The strategies whose mean TTFT is marked.
    #[track_caller]
    fn check(rows: &[ReportRow], expected: &[usize]) {
        let rows: Vec<&ReportRow> = rows.iter().collect();
        let ttft = COLUMNS.iter().find(|it| it.title == "TTFT mean").unwrap();
        let marked = |row: &&ReportRow| {
            let rivals: Vec<&ReportRow> = rows.iter().copied().filter(|it| compete(it, row)).collect();
            is_best(ttft, row, &rivals)
        };
        let actual: Vec<usize> = (0..rows.len()).filter(|&it| marked(&rows[it])).collect();
        assert_eq!(actual, expected, "{rows:?}");
    }

    #[test]
    fn the_best_is_marked_once_for_each_speed_and_never_a_bound() {
        check(&[row("a", 2.0, 1.0), row("b", 1.0, 1.0)], &[1]);
        check(&[row("a", 2.0, 1.0), row("b", 1.0, 1.0), row("oracle", 0.5, 1.0)], &[1]);
        check(&[row("a", 2.0, 1.0), row("b", 1.0, 1.0), row("a", 3.0, 2.0), row("b", 4.0, 2.0)], &[1, 2]);
    }

    #[test]
    fn classes_compete_among_themselves_and_shares_do_not() {
        let of = |class: &str, row: ReportRow| ReportRow { class: Some(class.to_owned()), ..row };
        check(&[of("x", row("a", 2.0, 1.0)), of("y", row("b", 1.0, 1.0)), of("x", row("c", 1.5, 1.0))], &[2]);
        let share = COLUMNS.iter().find(|it| it.title == "share").unwrap();
        let rows = [0.4, 0.6].map(|it| ReportRow { token_share: Some(it), ..row("a", 1.0, 1.0) });
        assert!(!rows.iter().any(|it| is_best(share, it, &rows.each_ref())));
    }

    #[test]
    fn every_column_has_a_meaning() {
        let percentiles = ["p50", "p90", "p99"];
        for title in COLUMNS.iter().map(|it| it.title).filter(|it| !percentiles.contains(it)) {
            assert!(MEANINGS.iter().any(|it| title.starts_with(it.0)), "{title}");
        }
    }

    #[test]
    fn equal_text_is_marked_alike() {
        check(&[row("a", 2.0, 1.0), row("b", 1.001, 1.0), row("c", 1.002, 1.0)], &[1, 2]);
        check(&[row("a", 1.0, 1.0), row("b", 1.0, 1.0)], &[]);
        check(&[row("a", 1.0, 1.0)], &[]);
    }

    #[test]
    fn a_strategy_without_answers_is_not_the_fastest() {
        let silent = ReportRow { requests: 0, ..row("a", 0.0, 1.0) };
        check(&[silent, row("b", 1.0, 1.0), row("c", 2.0, 1.0)], &[1]);
    }
}
