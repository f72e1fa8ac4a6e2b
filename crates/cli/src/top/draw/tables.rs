//! The two tables of the picture: workers, and the last decisions.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::super::state::{Pane, State};
use super::{DIM, split};
use crate::operator::api::{Decision, Worker};
use crate::operator::grid::{Column, Grid, cells};
use crate::operator::show::{self, UNKNOWN};
use crate::operator::weighed;

const BAR: usize = 6;

/// Marks what is selected, for terminals without colours too.
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

/// Of the requests there, those of other routers; only where there are any such.
const OTHERS: Column = Column::number("others", 3);
const OTHERS_AT: usize = 3;

const DECISIONS: [Column; 10] = [
    Column::words("UTC", 2, 8),
    Column::words("model", 6, 8),
    Column::number("tokens", 3),
    Column::number("held", 4),
    Column::address("worker", 10),
    Column::words("why", 0, 10),
    Column::number("expected", 5),
    Column::number("TTFT", 1),
    Column::words("outcome", 7, 9),
    Column::number("waited", 8),
];

const TITLES: Style = Style::new().add_modifier(Modifier::UNDERLINED);

/// What is shown of a list, and how.
struct Shown<'a> {
    /// Said if there are none.
    none: &'static str,
    /// Said beside the titles.
    note: String,
    grid: &'a Grid,
    selected: Option<usize>,
    style: &'a dyn Fn(usize) -> Style,
}

pub(super) fn workers(state: &State, selects: bool, area: Rect, buffer: &mut Buffer) {
    let all = &state.overview.workers;
    let mut grid = Grid { columns: WORKERS.to_vec(), rows: all.iter().map(worker).collect() };
    if state.overview.cluster.is_some() {
        grid.columns.insert(OTHERS_AT, OTHERS);
        for (row, it) in grid.rows.iter_mut().zip(all) {
            row.insert(OTHERS_AT, it.load.others.map_or(0, |it| it.requests).to_string());
        }
    }
    let shown = Shown {
        none: "no workers",
        note: String::new(),
        grid: &grid,
        selected: state.worker().filter(|_| selects && state.pane == Pane::Workers),
        style: &|place| all.get(place).map_or(DIM, tint),
    };
    list(&shown, area, buffer);
}

pub(super) fn decisions(state: &State, selects: bool, area: Rect, buffer: &mut Buffer) {
    let newest: Vec<&Decision> = state.decisions.iter().rev().collect();
    let grid = Grid { columns: DECISIONS.to_vec(), rows: newest.iter().map(|it| decision(it)).collect() };
    let note = if state.skipped > 0 { format!("{} more left out", state.skipped) } else { String::new() };
    let shown = Shown {
        none: "no decisions yet",
        note,
        grid: &grid,
        selected: state.decision().filter(|_| selects && state.pane == Pane::Decisions),
        style: &|place| newest.get(place).map_or(DIM, |it| fate(it)),
    };
    list(&shown, area, buffer);
}

/// A line of titles, and as many rows as there is room for, among them the selected one.
fn list(shown: &Shown, area: Rect, buffer: &mut Buffer) {
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

fn worker(it: &Worker) -> Vec<String> {
    let (load, rates) = (&it.load, &it.rates);
    let state = match &*it.state {
        "ready" if it.draining => "draining".to_owned(),
        state if it.draining => format!("{state}, draining"),
        state => state.to_owned(),
    };
    let cache = |usage: f64| format!("{} {}", show::bar(usage, BAR), show::percent(usage));
    let learned = |text: String| if rates.learned { text } else { format!("~{text}") };
    vec![
        weighed::name(Some(&*it.url), it.id),
        state,
        load.requests.to_string(),
        show::count(load.prefill_tokens as f64),
        show::count(load.decode_tokens as f64),
        load.kv_usage.map_or_else(|| UNKNOWN.to_owned(), cache),
        show::percent_or_unknown(load.hit_ratio),
        learned(show::count(rates.prefill_tokens_per_s)),
        learned(show::millis(rates.step_ms)),
        it.trust.to_string(),
        format!("{:.2}", it.weight.clamp(0.0, 1e6)),
    ]
}

fn tint(worker: &Worker) -> Style {
    match &*worker.state {
        _ if worker.draining => DIM,
        "ready" => Style::new().fg(Color::Green),
        "ejected" => Style::new().fg(Color::Red),
        _ => Style::new().fg(Color::Yellow),
    }
}

fn decision(it: &Decision) -> Vec<String> {
    let [expected, actual] = [it.predicted_ttft_ms, it.actual_ttft_ms].map(show::millis_or_unknown);
    vec![
        show::time_of_day(it.at_ms),
        it.model.as_deref().unwrap_or(UNKNOWN).to_owned(),
        show::count(it.prompt_tokens as f64),
        it.held_tokens.map_or_else(|| UNKNOWN.to_owned(), |it| show::count(it as f64)),
        weighed::name(it.url.as_deref(), it.worker),
        it.why.to_string(),
        expected,
        actual,
        it.outcome.to_string(),
        show::millis(it.waited_ms),
    ]
}

fn fate(decision: &Decision) -> Style {
    match &*decision.outcome {
        "failed" | "broke-off" => Style::new().fg(Color::Red),
        "open" => Style::new(),
        "answered" => DIM,
        _ => Style::new().fg(Color::Yellow),
    }
}
