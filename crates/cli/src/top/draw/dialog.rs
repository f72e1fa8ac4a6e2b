//! Dialogs over the screen: help, a worker, a decision, and the question before a worker is drained.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Block, Clear, Widget as _};

use super::super::model::{DecisionDialog, Dialog, TopState};
use maitre_views::worker::{PromisedLoad, WorkerView};

use crate::operator::decision;
use crate::operator::format::{self, UNKNOWN};
use crate::operator::programs;
use crate::operator::table::{cells, wrap};

/// The frame, and a space on both sides.
const FRAME_WIDTH: u16 = 4;
const FRAME_HEIGHT: u16 = 2;

const HELP: [&str; 16] = [
    "q          quit",
    "Tab        between workers and decisions",
    "j k ↓ ↑    select; PgUp, PgDn by ten",
    "Enter      details of the selected row",
    "d          drain the selected worker",
    "r          resume it",
    "p          programs, and why calls of them are held",
    "Esc        close this",
    "",
    "now, prefill, decode: requests in flight, and promised tokens not done yet",
    "others: requests of other routers, included in now",
    "cache: KV usage the engine reports",
    "hits: cached part of prompt tokens; on top of 10 s, in rows since the start",
    "tok/s, step: prefill speed and time per output token now; ~ if assumed",
    "trust: whether its KV events arrive complete",
    "expected, TTFT: predicted and actual time to first token",
];

pub(super) fn draw(state: &TopState, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(area.width.saturating_sub(FRAME_WIDTH));
    let wrapped = |lines: &[String]| lines.iter().flat_map(|it| wrap(it, width)).collect::<Vec<_>>();
    let scrolled = state.scrolled;
    match &state.dialog {
        Dialog::None => {}
        Dialog::Help => frame("help", &wrapped(&HELP.map(str::to_owned)), scrolled, area, buffer),
        Dialog::Confirm(action) => {
            let what = if action.drain { "gets no new requests then" } else { "gets requests again then" };
            let question = format!("{} {}? It {what}. y / n", action.word(), action.url);
            frame(action.word(), &wrapped(&[question]), scrolled, area, buffer);
        }
        Dialog::Worker(id) => match state.find_worker(*id) {
            Some(worker) => frame("worker", &wrapped(&about(worker)), scrolled, area, buffer),
            None => frame("worker", &["this worker has left".to_owned()], scrolled, area, buffer),
        },
        Dialog::Programs => {
            let off = || vec!["programs are off".to_owned()];
            let lines = state.overview.programs.as_ref().map_or_else(off, |it| programs::lines(it, width));
            frame("programs", &lines, scrolled, area, buffer);
        }
        Dialog::Decision(shown) => {
            let lines = match shown {
                DecisionDialog::Awaited(number) => vec![format!("loading decision {number} …")],
                DecisionDialog::Shown(decision) => decision::lines(decision, width),
                DecisionDialog::Failed(why) => wrapped(&[why.to_string()]),
            };
            frame("decision", &lines, scrolled, area, buffer);
        }
    }
}

/// Lines in a frame in the middle, scrolled if they do not fit.
fn frame(title: &str, lines: &[String], scrolled: usize, area: Rect, buffer: &mut Buffer) {
    let widest = lines.iter().map(|it| cells(it)).max().unwrap_or(0).max(cells(title) + 2);
    let width = area.width.min(u16::try_from(widest).unwrap_or(u16::MAX).saturating_add(FRAME_WIDTH));
    let height = area.height.min(u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(FRAME_HEIGHT));
    let (x, y) = (area.x + (area.width - width) / 2, area.y + (area.height - height) / 2);
    let outer = Rect { x, y, width, height };
    let block = Block::bordered().title(format!(" {title} "));
    let inner = block.inner(outer);
    let is_cut = lines.len() > usize::from(inner.height);
    let block = if is_cut { block.title_bottom(" j/k: more ") } else { block };
    Clear.render(outer, buffer);
    block.render(outer, buffer);
    let room = usize::from(inner.height);
    // Scrolling stops at the last line.
    let scrolled = scrolled.min(lines.len().saturating_sub(room));
    let columns = usize::from(inner.width.saturating_sub(2));
    for (row, line) in (inner.y..inner.bottom()).zip(&lines[scrolled..]) {
        buffer.set_stringn(inner.x + 1, row, line, columns, Style::new());
    }
}

/// Everything known of a worker, for screens too narrow for the table.
fn about(worker: &WorkerView) -> Vec<String> {
    let rates = &worker.rates.rates;
    let whole = |it: Option<u64>| it.map_or_else(|| UNKNOWN.to_owned(), |it| format::count(it as f64));
    let models: Vec<&str> = worker.models.iter().map(|it| &**it).collect();
    let limits = worker.limits.as_ref().map_or_else(
        || "none known".to_owned(),
        |it| format!("{} requests, {} prefill tokens", it.sequences, format::count(it.prefill_tokens as f64)),
    );
    let learned = if worker.rates.learned { "learned" } else { "assumed" };
    let lines = [
        format!("{} (worker {})", worker.url, worker.id),
        format!("engine {}; models {}", worker.engine.as_deref().unwrap_or(UNKNOWN), models.join(", ")),
        format!(
            "{}{}{}; weight {:.2}; last seen {} ago",
            worker.state,
            worker.unhealthy.as_ref().map_or_else(String::new, |it| format!(" ({it})")),
            if worker.draining { ", draining" } else { "" },
            worker.weight.clamp(0.0, 1e6),
            format::millis_or_unknown(worker.last_seen_ms.map(|it| it as f64)),
        ),
        format!(
            "{} requests in flight, {} in prefill; {} in the engine's queue",
            worker.requests,
            worker.prefilling,
            whole(worker.waiting)
        ),
        format!(
            "promised: {} prefill tokens, {} decode tokens",
            format::count(worker.prefill_tokens as f64),
            format::count(worker.decode_tokens as f64)
        ),
        format!("limits: {limits}"),
        format!(
            "KV usage {} of {} tokens; {} tokens cached as far as known; hits {}; trust {}",
            format::percent_or_unknown(worker.kv_usage),
            whole(worker.kv_tokens),
            format::count(worker.cached_tokens as f64),
            format::percent_or_unknown(worker.hit_ratio),
            worker.trust,
        ),
        format!(
            "rates ({learned}): prefill {} tokens/s after {}; {} per output token now: {} and {} per request",
            format::count(rates.prefill_tokens_per_s),
            format::millis(rates.floor_ms),
            format::millis(rates.step_now_ms),
            format::millis(rates.step_ms),
            format::millis(rates.step_per_request_ms),
        ),
        format!("{} requests since the start, {} failures", worker.requests_total, worker.failures),
    ];
    lines.into_iter().chain(other_routers(&worker.other_routers)).collect()
}

/// What other routers promised; none if they promised nothing.
fn other_routers(load: &PromisedLoad) -> Option<String> {
    let [prefill, decode] = [load.prefill_tokens, load.decode_tokens].map(|it| format::count(it as f64));
    let text = || {
        format!(
            "other routers promised: {} requests, {prefill} prefill tokens, {decode} decode tokens",
            load.requests
        )
    };
    (*load != PromisedLoad::default()).then(text)
}
