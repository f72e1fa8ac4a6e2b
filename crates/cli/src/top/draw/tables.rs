//! The two tables of the screen: workers, and the last decisions.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::super::model::{Pane, TopState};
use super::{DIM, split};
use maitre_views::decision::DecisionSummary;
use maitre_views::worker::WorkerView;

use crate::operator::decision;
use crate::operator::format::{self, UNKNOWN};
use crate::operator::table::{Column, TextTable, cells};

const BAR: usize = 6;

/// Marks the selected row, for terminals without colours too.
const MARK: &str = "> ";
const NO_MARK: &str = "  ";

const WORKERS: [Column; 11] = [
    Column::address("worker", 11),
    Column::words("state", 0, 7),
    Column::number("now", 0),
    Column::number("prefill", 2),
    Column::number("decode", 3),
    Column::words("cache", 1, BAR + 5),
    Column::number("hits", 4),
    Column::number("tok/s", 6),
    Column::number("step", 7),
    Column::words("trust", 5, 7),
    Column::number("weight", 8),
];

/// Requests of other routers; only in a cluster.
const OTHERS: Column = Column::number("others", 3);
const OTHERS_AT: usize = 3;

const DECISIONS: [Column; 10] = [
    Column::words("UTC", 2, 8),
    Column::words("model", 6, 8),
    Column::number("tokens", 3),
    Column::number("cached", 4),
    Column::address("worker", 10),
    Column::words("why", 0, 10),
    Column::number("expected", 5),
    Column::number("TTFT", 1),
    Column::words("outcome", 7, 9),
    Column::number("waited", 8),
];

const TITLES: Style = Style::new().add_modifier(Modifier::UNDERLINED);

/// A list, and how it is drawn.
struct ListView<'a> {
    /// Shown if there are no rows.
    none: &'static str,
    /// Shown beside the titles.
    note: String,
    grid: &'a TextTable,
    selected: Option<usize>,
    style: &'a dyn Fn(usize) -> Style,
}

pub(super) fn workers(state: &TopState, selects: bool, area: Rect, buffer: &mut Buffer) {
    let all = &state.overview.workers;
    let mut grid = TextTable { columns: WORKERS.to_vec(), rows: all.iter().map(worker).collect() };
    if state.overview.cluster.is_some() {
        grid.columns.insert(OTHERS_AT, OTHERS);
        for (row, it) in grid.rows.iter_mut().zip(all) {
            row.insert(OTHERS_AT, it.other_routers.requests.to_string());
        }
    }
    let shown = ListView {
        none: "no workers",
        note: String::new(),
        grid: &grid,
        selected: state.worker().filter(|_| selects && state.pane == Pane::Workers),
        style: &|place| all.get(place).map_or(DIM, state_style),
    };
    list(&shown, area, buffer);
}

pub(super) fn decisions(state: &TopState, selects: bool, area: Rect, buffer: &mut Buffer) {
    let newest: Vec<&DecisionSummary> = state.decisions.iter().rev().collect();
    let grid =
        TextTable { columns: DECISIONS.to_vec(), rows: newest.iter().map(|it| decision(it)).collect() };
    let note = if state.skipped > 0 { format!("{} not shown", state.skipped) } else { String::new() };
    let shown = ListView {
        none: "no decisions yet",
        note,
        grid: &grid,
        selected: state.decision().filter(|_| selects && state.pane == Pane::Decisions),
        style: &|place| newest.get(place).map_or(DIM, |it| outcome_style(it)),
    };
    list(&shown, area, buffer);
}

/// The titles, and as many rows as fit, the selected one among them.
fn list(shown: &ListView, area: Rect, buffer: &mut Buffer) {
    let (head, body) = split(area, 1);
    if head.height == 0 {
        return;
    }
    let fit = shown.grid.fit(usize::from(area.width).saturating_sub(MARK.len()));
    let titles = match shown.grid.rows.is_empty() {
        true => format!("{NO_MARK}{}", shown.none),
        false => format!("{NO_MARK}{}", shown.grid.head(&fit)),
    };
    buffer.set_stringn(head.x, head.y, &titles, head.width.into(), TITLES);
    let (taken, note) = (cells(&titles) + NO_MARK.len(), cells(&shown.note));
    if taken + note <= head.width.into() {
        buffer.set_string(head.right() - note as u16, head.y, &shown.note, DIM);
    }
    let room = usize::from(body.height);
    let first = shown.selected.map_or(0, |it| (it + 1).saturating_sub(room));
    let rows = (first..shown.grid.rows.len()).take(room);
    for (line, place) in (body.y..).zip(rows) {
        let is_selected = shown.selected == Some(place);
        let (mark, style) = match is_selected {
            true => (MARK, (shown.style)(place).add_modifier(Modifier::REVERSED)),
            false => (NO_MARK, (shown.style)(place)),
        };
        let text = format!("{mark}{}", shown.grid.row(&fit, place));
        buffer.set_stringn(body.x, line, text, body.width.into(), style);
    }
}

fn worker(it: &WorkerView) -> Vec<String> {
    let rates = &it.rates.rates;
    let state = match &*it.state {
        "ready" if it.draining => "draining".to_owned(),
        state if it.draining => format!("{state}, draining"),
        state => state.to_owned(),
    };
    let cache = |usage: f64| format!("{} {}", format::bar(usage, BAR), format::percent(usage));
    let learned = |text: String| if it.rates.learned { text } else { format!("~{text}") };
    vec![
        format::worker_name(Some(&*it.url), it.id),
        state,
        it.requests.to_string(),
        format::count(it.prefill_tokens as f64),
        format::count(it.decode_tokens as f64),
        it.kv_usage.map_or_else(|| UNKNOWN.to_owned(), cache),
        format::percent_or_unknown(it.hit_ratio),
        learned(format::count(rates.prefill_tokens_per_s)),
        learned(format::millis(rates.step_now_ms)),
        it.trust.to_string(),
        format!("{:.2}", it.weight.clamp(0.0, 1e6)),
    ]
}

fn state_style(worker: &WorkerView) -> Style {
    match &*worker.state {
        _ if worker.draining => DIM,
        "ready" => Style::new().fg(Color::Green),
        "ejected" => Style::new().fg(Color::Red),
        _ => Style::new().fg(Color::Yellow),
    }
}

fn decision(it: &DecisionSummary) -> Vec<String> {
    let [expected, actual] = [it.predicted_ttft_ms, it.actual_ttft_ms].map(format::millis_or_unknown);
    vec![
        format::time_of_day(it.at_ms),
        it.model.as_deref().unwrap_or(UNKNOWN).to_owned(),
        format::count(it.prompt_tokens as f64),
        it.expected_cached_tokens.map_or_else(|| UNKNOWN.to_owned(), |it| format::count(it as f64)),
        format::worker_name(it.url.as_deref(), it.worker),
        it.why.to_string(),
        expected,
        actual,
        decision::outcome(&it.outcome).to_owned(),
        format::millis(it.waited_ms),
    ]
}

fn outcome_style(decision: &DecisionSummary) -> Style {
    match &*decision.outcome {
        "failed" | "broke-off" => Style::new().fg(Color::Red),
        "in-flight" => Style::new(),
        "answered" => DIM,
        _ => Style::new().fg(Color::Yellow),
    }
}
