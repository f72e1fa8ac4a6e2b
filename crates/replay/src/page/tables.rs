//! The numbers of the page: all rows, and the rows of parts, with the best of each column marked.
//!
//! The bounds compete with nobody: no router can be like them.

use std::fmt::Write as _;

use maitre_sim::report::Row;

use super::finding::is_bound;
use super::words::escape;
use crate::table::{Better, Column, columns};

/// What the columns mean, in their order.
const MEANINGS: &[(&str, &str)] = &[
    ("hit", "the part of all prompt tokens that the workers' caches already held"),
    ("TTFT", "time to the first token, from the arrival at the router: mean, p50, p90 and p99"),
    ("TPOT", "mean time between two tokens of an answer"),
    ("E2E", "mean time from arrival to the last token"),
    ("tok/s", "output tokens a second, from the first arrival to the last token"),
    ("good", "the part of all requests that were answered within both targets"),
    ("in time", "of the requests that had a deadline, those whose first token came within it"),
    ("late", "requests that were answered, but begun after their deadline"),
    ("share", "a tenant's part of the tokens computed: prompts as far as they were not cached, and answers"),
    ("imbalance", "how long the busiest worker computed, beside the mean; 1 is even"),
    ("evicted", "blocks that caches dropped to make room"),
    ("refused", "requests without a whole answer: turned away, or broken off"),
];

/// Which columns lead a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    pub(super) speed: bool,
    pub(super) by: Option<By>,
}

/// What rows of less than a run are rows of.
#[derive(Clone, Copy, Debug)]
pub(super) struct By {
    pub(super) title: &'static str,
    /// A cell with the name. Headers are sorted as text, the others as numbers.
    pub(super) cell: fn(&Row) -> String,
}

/// `rows` in the order in which they are shown; those of one speed and one part, class or tenant compete.
pub(super) fn draw(caption: &str, rows: &[&Row], lead: Lead) -> String {
    let mut html = format!(
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{0}\">\n<table>\n\
         <caption>{0}</caption>\n<thead><tr>",
        escape(caption)
    );
    let speed = lead.speed.then_some("speed");
    let by = lead.by.map(|it| it.title);
    let columns = columns(rows);
    let titles = ["strategy"].into_iter().chain(by).chain(speed).chain(columns.iter().map(|it| it.title));
    for title in titles {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(title));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        let rivals: Vec<&Row> = rows.iter().copied().filter(|it| compete(it, row)).collect();
        html.push_str(&line(row, &rivals, (&columns, lead)));
    }
    html.push_str("</tbody>\n</table>\n</div>\n");
    html
}

fn compete(one: &Row, other: &Row) -> bool {
    let of = |it: &Row| (it.part, it.class.clone(), it.tenant.clone());
    one.speed == other.speed && of(one) == of(other) && one.requests > 0 && !is_bound(&one.strategy)
}

fn line(row: &Row, rivals: &[&Row], (columns, lead): (&[&Column], Lead)) -> String {
    let bound = if is_bound(&row.strategy) { " <i>bound</i>" } else { "" };
    let mut html = format!("<tr><th scope=\"row\">{}{bound}</th>", escape(&row.strategy));
    if let Some(by) = lead.by {
        html.push_str(&(by.cell)(row));
    }
    if lead.speed {
        let _ = write!(html, "<td data-v=\"{0}\">{0}×</td>", row.speed);
    }
    for column in columns {
        let text = escape(&(column.text)(row));
        let value = (column.value)(row).map_or_else(String::new, |it| it.to_string());
        let _ = match is_best(column, row, rivals) {
            true => write!(
                html,
                "<td class=\"best\" data-v=\"{value}\"><span title=\"best\">★</span> {text}</td>"
            ),
            false => write!(html, "<td data-v=\"{value}\">{text}</td>"),
        };
    }
    html.push_str("</tr>\n");
    html
}

/// Whether nobody is better, by what the table shows. Where all are equal, nobody is best.
fn is_best(column: &Column, row: &Row, rivals: &[&Row]) -> bool {
    let text = column.text;
    let values = || rivals.iter().filter_map(|it| Some(((column.value)(it)?, *it)));
    let best = match column.better {
        Better::Lower => values().min_by(|one, other| one.0.total_cmp(&other.0)),
        Better::Higher => values().max_by(|one, other| one.0.total_cmp(&other.0)),
        Better::Neither => None,
    };
    let Some((_, best)) = best else { return false };
    let takes_part = rivals.iter().any(|it| std::ptr::eq(*it, row));
    let differ = rivals.iter().any(|it| text(it) != text(best));
    takes_part && differ && text(row) == text(best)
}

pub(super) fn meanings() -> String {
    let mut html =
        String::from("<details><summary>What the columns mean</summary>\n<dl class=\"meanings\">\n");
    for (name, meaning) in MEANINGS {
        let _ = writeln!(html, "<dt>{name}</dt><dd>{meaning}</dd>");
    }
    html.push_str("</dl>\n</details>\n");
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::COLUMNS;

    fn row(strategy: &str, ttft_mean_s: f64, speed: f64) -> Row {
        Row { strategy: strategy.to_owned(), requests: 10, ttft_mean_s, speed, ..Row::default() }
    }

    /// The strategies whose mean TTFT is marked.
    #[track_caller]
    fn check(rows: &[Row], expected: &[usize]) {
        let rows: Vec<&Row> = rows.iter().collect();
        let marked = |row: &&Row| {
            let rivals: Vec<&Row> = rows.iter().copied().filter(|it| compete(it, row)).collect();
            is_best(&COLUMNS[1], row, &rivals)
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
    fn classes_compete_with_their_own_and_shares_with_nobody() {
        let of = |class: &str, row: Row| Row { class: Some(class.to_owned()), ..row };
        check(&[of("x", row("a", 2.0, 1.0)), of("y", row("b", 1.0, 1.0)), of("x", row("c", 1.5, 1.0))], &[2]);
        let share = COLUMNS.iter().find(|it| it.title == "share").unwrap();
        let rows = [0.4, 0.6].map(|it| Row { token_share: Some(it), ..row("a", 1.0, 1.0) });
        assert!(!rows.iter().any(|it| is_best(share, it, &rows.each_ref())));
    }

    #[test]
    fn what_looks_equal_is_marked_alike() {
        check(&[row("a", 2.0, 1.0), row("b", 1.001, 1.0), row("c", 1.002, 1.0)], &[1, 2]);
        check(&[row("a", 1.0, 1.0), row("b", 1.0, 1.0)], &[]);
        check(&[row("a", 1.0, 1.0)], &[]);
    }

    #[test]
    fn one_that_answered_nothing_is_not_the_fastest() {
        let silent = Row { requests: 0, ..row("a", 0.0, 1.0) };
        check(&[silent, row("b", 1.0, 1.0), row("c", 2.0, 1.0)], &[1]);
    }
}
