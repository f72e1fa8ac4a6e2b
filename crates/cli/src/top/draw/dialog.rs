//! What lies over the picture: help, a worker, a decision, and the question whether one is sure.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::widgets::{Block, Clear, Widget as _};

use super::super::state::{Dialog, State, Weighed};
use crate::operator::api::{Load, Others, Worker};
use crate::operator::grid::cells;
use crate::operator::show::{self, UNKNOWN};
use crate::operator::weighed::{self, wrap};

/// The frame, and a cell of air on both sides.
const FRAME_WIDTH: u16 = 4;
const FRAME_HEIGHT: u16 = 2;

const HELP: [&str; 14] = [
    "q          quit",
    "Tab        between workers and decisions",
    "j k ↓ ↑    select; PgUp, PgDn by ten",
    "Enter      all about what is selected",
    "d          drain the selected worker",
    "r          resume it",
    "Esc        close this",
    "",
    "now, prefill, decode: requests there, and tokens promised and not yet done",
    "others: of the requests there, those of other routers",
    "cache: how full the engine says its KV cache is; hits: cached prompt tokens",
    "tok/s, step: learned rates of prefill and of a token; ~ while it is a guess",
    "trust: how far its KV events are believed",
    "expected, TTFT: the first token as foreseen and as it came",
];

pub(super) fn draw(state: &State, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(area.width.saturating_sub(FRAME_WIDTH));
    let wrapped = |lines: &[String]| lines.iter().flat_map(|it| wrap(it, width)).collect::<Vec<_>>();
    let top = state.top;
    match &state.dialog {
        Dialog::None => {}
        Dialog::Help => frame("help", &wrapped(&HELP.map(str::to_owned)), top, area, buffer),
        Dialog::Sure(act) => {
            let what = if act.drain { "gets no new requests then" } else { "gets requests again then" };
            let question = format!("{} {}? It {what}. y / n", act.word(), act.url);
            frame(act.word(), &wrapped(&[question]), top, area, buffer);
        }
        Dialog::Worker(id) => match state.find_worker(*id) {
            Some(worker) => frame("worker", &wrapped(&about(worker)), top, area, buffer),
            None => frame("worker", &["it is gone".to_owned()], top, area, buffer),
        },
        Dialog::Decision(shown) => {
            let lines = match shown {
                Weighed::Awaited(number) => vec![format!("asking for decision {number} …")],
                Weighed::There(decision) => weighed::lines(decision, width),
                Weighed::Failed(why) => wrapped(&[why.to_string()]),
            };
            frame("decision", &lines, top, area, buffer);
        }
    }
}

/// Lines in a frame in the middle, from the given one on if they are too many.
fn frame(title: &str, lines: &[String], top: usize, area: Rect, buffer: &mut Buffer) {
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
    // However often a key was pressed, the last line stays in sight.
    let top = top.min(lines.len().saturating_sub(room));
    let columns = usize::from(inner.width.saturating_sub(2));
    for (row, line) in (inner.y..inner.bottom()).zip(&lines[top..]) {
        buffer.set_stringn(inner.x + 1, row, line, columns, Style::new());
    }
}

/// All that is known of a worker, for screens too narrow for the table.
fn about(worker: &Worker) -> Vec<String> {
    let (load, rates) = (&worker.load, &worker.rates);
    let whole = |it: Option<u64>| it.map_or_else(|| UNKNOWN.to_owned(), |it| show::count(it as f64));
    let models: Vec<&str> = worker.models.iter().map(|it| &**it).collect();
    let limits = load.limits.map_or_else(
        || "none known".to_owned(),
        |it| {
            format!(
                "{} requests, {} prefill tokens",
                show::count(it.sequences),
                show::count(it.prefill_tokens)
            )
        },
    );
    let learned = if rates.learned { "learned" } else { "a guess" };
    let lines = [
        format!("{} (worker {})", worker.url, worker.id),
        format!("engine {}; models {}", worker.engine.as_deref().unwrap_or(UNKNOWN), models.join(", ")),
        format!(
            "{}{}; weight {:.2}; last heard of {} ago",
            worker.state,
            if worker.draining { ", draining" } else { "" },
            worker.weight.clamp(0.0, 1e6),
            show::millis_or_unknown(load.heard_ms),
        ),
        format!(
            "{} requests, {} in prefill; {} wait in the engine",
            load.requests,
            load.prefilling,
            whole(load.waiting)
        ),
        format!(
            "promised: {} tokens of prefill, {} of decode",
            show::count(load.prefill_tokens as f64),
            show::count(load.decode_tokens as f64)
        ),
        format!("takes at once: {limits}"),
        format!(
            "cache: {} full of {} tokens; {} tokens known to be held; hits {}; trust {}",
            show::percent_or_unknown(load.kv_usage),
            whole(load.kv_tokens),
            show::count(load.held_tokens as f64),
            show::percent_or_unknown(load.hit_ratio),
            worker.trust,
        ),
        format!(
            "rates ({learned}): prefill {} tokens/s after {}; a token each {}, and {} more for each request",
            show::count(rates.prefill_tokens_per_s),
            show::millis(rates.floor_ms),
            show::millis(rates.step_ms),
            show::millis(rates.step_per_request_ms),
        ),
        format!("{} requests seated, {} failures", load.seated, load.failures),
    ];
    lines.into_iter().chain(others(load)).collect()
}

/// What other routers promised there; nothing if nobody did.
fn others(load: &Load) -> Option<String> {
    let Others { requests, prefill_tokens, decode_tokens } =
        load.others.filter(|it| *it != Others::default())?;
    let [prefill, decode] = [prefill_tokens, decode_tokens].map(|it| show::count(it as f64));
    Some(format!(
        "other routers promised: {requests} requests, {prefill} tokens of prefill, {decode} of decode"
    ))
}
