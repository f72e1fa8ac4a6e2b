//! The screen: a pure function of what is known, the time and the size.
//!
//! From the top: key numbers, errors, the last minutes, workers, queue, routers, shadows, decisions. On a smaller
//! terminal, tables lose columns and then rows; the key numbers stay.

mod dialog;
mod routers;
mod tables;

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::widgets::{Sparkline, Widget as _};

use super::model::{SparkSample, StreamState, TopState};
use crate::operator::format;
use crate::operator::programs;
use crate::operator::table::{Side, cells, cut, wrap};
use maitre_views::overview::{ClassQueueView, Overview};
use maitre_views::scaling::ModelScalingView;
use maitre_views::worker::WorkerView;

/// Data older than this is marked: the stream has an event each second.
const OLD: Duration = Duration::from_secs(3);

/// A shorter wait for a first token is not mentioned.
const WAIT_LONG_MS: f64 = 1_000.0;

/// Sparklines need a screen of this many rows.
const ROWS_FOR_SPARKS: u16 = 18;

/// Most rows of the key numbers, errors and shadows.
const HEADER_MAX: usize = 4;
const BANNER_MAX: usize = 2;
const SHADOWS_MAX: usize = 2;
const SCALING_MAX: usize = 2;

const BETWEEN: &str = "  ";

pub(super) const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const ALARM: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

const KEYS: [&str; 7] = ["q quit", "? help", "Tab pane", "j/k select", "Enter open", "d drain", "r resume"];
/// Only where programs are on.
const PROGRAMS_KEY: &str = "p programs";

/// The whole screen: content, keys, and a dialog on top.
pub(super) fn screen(state: &TopState, now: Duration, area: Rect, buffer: &mut Buffer) {
    let (above, keys) = split(area, area.height.saturating_sub(1));
    content(state, Some(now), above, buffer);
    let programs = state.overview.programs.as_ref().map(|_| PROGRAMS_KEY);
    let known: Vec<String> = KEYS.into_iter().chain(programs).map(str::to_owned).collect();
    write(&flow(&known, keys.width.into(), 1), DIM, keys, buffer);
    dialog::draw(state, area, buffer);
}

/// Everything but keys and dialogs; without a time, without selection and age.
pub(super) fn content(state: &TopState, now: Option<Duration>, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(area.width);
    let mut rest = area;
    let numbers = flow(&numbers(&state.overview), width, HEADER_MAX);
    rest = write(&numbers, BOLD, rest, buffer);
    let banner = now.and_then(|it| banner(state, it)).map(|it| wrap(&it, width)).unwrap_or_default();
    rest = write(&banner[..banner.len().min(BANNER_MAX)], ALARM, rest, buffer);
    rest = write(&cluster_error(&state.overview, width), ALARM, rest, buffer);
    if area.height >= ROWS_FOR_SPARKS {
        rest = sparks(state, rest, buffer);
    }
    let below = below(&state.overview, width);
    let tables = rest.height.saturating_sub(below.len() as u16);
    let (workers, decisions) = share(tables, state.overview.workers.len(), state.decisions.len());
    let selects = now.is_some();
    let (part, after) = split(rest, workers);
    tables::workers(state, selects, part, buffer);
    let after = write(&below, Style::new(), after, buffer);
    tables::decisions(state, selects, split(after, decisions).0, buffer);
}

/// Rows that all workers and all decisions take.
pub(super) fn rows(state: &TopState, width: u16) -> u16 {
    let width = usize::from(width);
    let fixed = flow(&numbers(&state.overview), width, HEADER_MAX).len()
        + cluster_error(&state.overview, width).len()
        + below(&state.overview, width).len();
    let lists = state.overview.workers.len() + 1 + state.decisions.len() + 1;
    u16::try_from(fixed + lists + 2).unwrap_or(u16::MAX).max(ROWS_FOR_SPARKS)
}

/// Rows for workers and for decisions, titles included: half each, plus what the other does not need.
fn share(rows: u16, workers: usize, decisions: usize) -> (u16, u16) {
    let wanted = |count: usize| u16::try_from(count + 1).unwrap_or(u16::MAX);
    let left = rows.saturating_sub(wanted(decisions));
    let workers = wanted(workers).min(left.max(rows.div_ceil(2)));
    (workers, rows - workers)
}

fn numbers(overview: &Overview) -> Vec<String> {
    let now = &overview.now;
    let ready = match (overview.draining, overview.ready, &overview.not_ready) {
        (true, _, _) => "draining".to_owned(),
        (false, true, _) => format!("ready{}", missing(overview)),
        (false, false, Some(reason)) => format!("not ready: {reason}"),
        (false, false, None) => "not ready".to_owned(),
    };
    let longest = now.longest_wait_ms.filter(|&it| it > now.ttft_p99_ms.unwrap_or(0.0).max(WAIT_LONG_MS));
    let mut numbers = vec![
        format!("maitre {}", overview.version),
        overview.strategy.to_string(),
        ready,
        format!("up {}", format::span(overview.uptime_s)),
        format!("TTFT p50 {}", format::millis_or_unknown(now.ttft_p50_ms)),
        format!("p99 {}", format::millis_or_unknown(now.ttft_p99_ms)),
        format!("{} req/s", format::rate(now.requests_per_s)),
        format!("{} tok/s", format::rate(now.answer_tokens_per_s)),
        format!("hits {}", format::percent_or_unknown(now.hit_ratio)),
        format!("waiting {}", now.waiting),
        format!("prediction error {}", format::percent_or_unknown(overview.prediction.median_error)),
    ];
    // Beside the percentiles.
    numbers.splice(6..6, longest.map(|it| format!("longest wait {}", format::millis(it))));
    numbers
}

/// How many workers take requests, if some do not: their rows may be below the screen.
fn missing(overview: &Overview) -> String {
    let takes = |it: &&WorkerView| !it.draining && matches!(&*it.state, "ready" | "warming");
    let (some, all) = (overview.workers.iter().filter(takes).count(), overview.workers.len());
    if some == all { String::new() } else { format!(", {some} of {all} workers") }
}

/// The loss of the connection, or the result of the last command.
fn banner(state: &TopState, now: Duration) -> Option<String> {
    let age = state.age(now);
    let old = format!("data is {} old", format::span(age.as_secs_f64()));
    match &state.stream {
        StreamState::Lost(why, again) => {
            let again = again.saturating_sub(now).as_secs_f64().ceil();
            Some(format!("{old}; next try in {}: {why}", format::span(again)))
        }
        StreamState::Live => state.notice(now).map(str::to_owned).or((age > OLD).then_some(old)),
    }
}

/// What is wrong in the cluster.
fn cluster_error(overview: &Overview, width: usize) -> Vec<String> {
    let error = overview.cluster.as_ref().and_then(routers::error);
    let mut lines = error.map(|it| wrap(&it, width)).unwrap_or_default();
    lines.truncate(BANNER_MAX);
    lines
}

/// How many workers each model should have, and why.
fn scaling(overview: &Overview) -> Vec<String> {
    let line = |it: &ModelScalingView| {
        let name = if it.model.is_empty() { "workers" } else { &it.model };
        format!("{name}: {} wanted, {} here ({})", it.desired_workers, it.workers, it.because)
    };
    overview.scaling.iter().map(line).collect()
}

/// The lines below the workers.
fn below(overview: &Overview, width: usize) -> Vec<String> {
    let routers = overview.cluster.as_ref().map(routers::items).unwrap_or_default();
    [
        flow(&queue(overview), width, 1),
        flow(&scaling(overview), width, SCALING_MAX),
        flow(&overview.programs.as_ref().map(programs::summary).unwrap_or_default(), width, 1),
        flow(&routers, width, routers::LINES_MAX),
        flow(&shadows(overview), width, SHADOWS_MAX),
    ]
    .concat()
}

fn queue(overview: &Overview) -> Vec<String> {
    let queue = &overview.queue;
    let mut items = vec![if queue.enabled { "queue" } else { "queue off" }.to_owned()];
    items.extend(queue.classes.iter().map(|it| format!("{} {}{}", it.class, it.waiting, largest_tenant(it))));
    items
}

/// Who floods the queue.
fn largest_tenant(class: &ClassQueueView) -> String {
    match (&class.largest_tenant, class.largest_tenant_waiting) {
        (None, _) => String::new(),
        (Some(tenant), own) if own == class.waiting => format!(" (all of {tenant})"),
        (Some(tenant), own) => format!(" ({own} of {tenant})"),
    }
}

/// Mean price of each shadow's choices beside ours, over the same decisions unless a shadow was added later.
fn shadows(overview: &Overview) -> Vec<String> {
    let Some(first) = overview.shadows.first() else { return Vec::new() };
    let is_same = overview.shadows.iter().all(|it| it.our_price_ms == first.our_price_ms);
    let ours = |ms: Option<f64>| format!("our price {}", format::millis_or_unknown(ms));
    let mut items = vec!["shadows".to_owned()];
    items.extend(is_same.then(|| ours(first.our_price_ms)));
    for it in &overview.shadows {
        let price = format::millis_or_unknown(it.price_ms);
        let against = if is_same { String::new() } else { format!(" ({})", ours(it.our_price_ms)) };
        let differed = format::percent(it.differed as f64 / it.decisions.max(1) as f64);
        items.push(format!("{} {price}{against}, {differed} differ", it.strategy));
    }
    items
}

/// Sparklines of the last minutes: time to first token, and requests.
fn sparks(state: &TopState, area: Rect, buffer: &mut Buffer) -> Rect {
    let last = state.samples.back();
    let ttft = format::millis_or_unknown(last.and_then(|it| it.ttft_p50_ms));
    let requests = format::rate(last.map_or(0.0, |it| it.requests_per_s));
    // Sparklines take integers; tenths keep small values apart.
    let tenths = |it: f64| (it * 10.0) as u64;
    let rest = spark(state, &format!("TTFT p50 {ttft:>7} "), |it| it.ttft_p50_ms.map(tenths), area, buffer);
    spark(state, &format!("req/s {requests:>10} "), |it| Some(tenths(it.requests_per_s)), rest, buffer)
}

fn spark(
    state: &TopState,
    label: &str,
    read: impl Fn(&SparkSample) -> Option<u64>,
    area: Rect,
    buffer: &mut Buffer,
) -> Rect {
    let (line, rest) = split(area, 1);
    if line.height == 0 {
        return rest;
    }
    buffer.set_stringn(line.x, line.y, label, line.width.into(), DIM);
    let taken = (cells(label) as u16).min(line.width);
    let room = Rect { x: line.x + taken, width: line.width - taken, ..line };
    let skipped = state.samples.len().saturating_sub(room.width.into());
    let data: Vec<Option<u64>> = state.samples.iter().skip(skipped).map(read).collect();
    Sparkline::default()
        .data(data)
        .absent_value_symbol(" ")
        .style(Style::new().fg(Color::Cyan))
        .render(room, buffer);
    rest
}

/// Items side by side, in at most `lines_max` lines.
fn flow(items: &[String], width: usize, lines_max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for item in items {
        let (is_full, last) = (lines.len() == lines_max, lines.last_mut());
        match last {
            Some(line) if cells(line) + BETWEEN.len() + cells(item) <= width => {
                line.push_str(BETWEEN);
                line.push_str(item);
            }
            _ if is_full => break,
            _ => lines.push(cut(item, width, Side::Left)),
        }
    }
    lines
}

/// Writes lines from the top of an area, and returns the rest of it.
fn write(lines: &[String], style: Style, area: Rect, buffer: &mut Buffer) -> Rect {
    let mut rest = area;
    for line in lines {
        let (row, below) = split(rest, 1);
        if row.height > 0 {
            buffer.set_stringn(row.x, row.y, line, row.width.into(), style);
        }
        rest = below;
    }
    rest
}

/// The upper rows of an area, and the others.
fn split(area: Rect, rows: u16) -> (Rect, Rect) {
    let rows = rows.min(area.height);
    (Rect { height: rows, ..area }, Rect { y: area.y + rows, height: area.height - rows, ..area })
}
