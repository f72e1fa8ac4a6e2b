//! Programs in words: why a call is held, where a program went, and what has memory.

use maitre_views::programs::{HeldCallView, HoldView, ProgramStepView, ProgramView, ProgramsView};

use super::format::{self, UNKNOWN, count, millis, percent, span, worker_name};
use super::table::{Column, TextTable, wrap};

/// Why a call is held: `… the emptiest memory, 10.0.0.3:8000, is 97% full; 3 calls ahead; goes at the latest in 8m 41s`.
pub(crate) fn hold(it: &HoldView) -> String {
    let memory = match (it.roomiest_usage, it.roomiest) {
        (Some(usage), Some(worker)) => {
            let place = worker_name(it.roomiest_url.as_deref(), worker);
            format!(
                "needs {} tokens; the emptiest memory, {place}, is {} full",
                count(it.tokens as f64),
                percent(usage)
            )
        }
        _ => format!("needs {} tokens, and no worker has room", count(it.tokens as f64)),
    };
    let ahead = match it.ahead {
        1 => "1 call ahead".to_owned(),
        many => format!("{many} calls ahead"),
    };
    format!("{memory}; {ahead}; goes at the latest in {}", span(it.at_latest_ms / 1e3))
}

/// That a program stayed or moved, and the price of its memory.
pub(crate) fn step(it: &ProgramStepView, worker: u32) -> String {
    let last = it.last_worker.map(|last| (last, worker_name(it.last_url.as_deref(), last)));
    let price = |ms: f64| match ms > 0.0 {
        true => format!("its memory costs other programs {}", millis(ms)),
        false => "its memory costs other programs nothing".to_owned(),
    };
    let here = price(it.memory_ms);
    let went = match last {
        None if it.calls <= 1 => format!("begins here: {here}"),
        None => format!("its last worker is gone: {here}"),
        Some((last, _)) if last == worker => format!("stays with its worker: {here}"),
        Some((_, place)) => match it.last_memory_ms {
            Some(there) => format!("moves from {place}: {here} here, and {} there", millis(there)),
            None => format!("moves from {place}: {here} here"),
        },
    };
    let held = match it.held_ms > 0.0 {
        true => format!("; it was held for {} until there was memory", millis(it.held_ms)),
        false => String::new(),
    };
    format!("call {} of program {} {went}{held}", it.calls, it.program)
}

/// One line of the screen.
pub(crate) fn summary(it: &ProgramsView) -> Vec<String> {
    let set = match it.kv_tokens {
        Some(all) => format!(
            "working set {} of {} tokens ({})",
            count(it.resident_tokens as f64),
            count(all as f64),
            percent(it.resident_tokens as f64 / all.max(1) as f64)
        ),
        None => format!("working set {} tokens", count(it.resident_tokens as f64)),
    };
    let longest = it.held_longest_ms.map(|it| format!(", longest {}", span(it / 1e3)));
    vec![
        "programs".to_owned(),
        format!("{} resident of {}", it.resident, it.known),
        format!("{} calls held{}", it.calls_held, longest.unwrap_or_default()),
        set,
    ]
}

/// The lists, for a dialog.
pub(crate) fn lines(it: &ProgramsView, width: usize) -> Vec<String> {
    let mut lines = wrap(&summary(it).join("; "), width);
    lines.push(String::new());
    if it.calls.is_empty() {
        lines.push("no call is held".to_owned());
    }
    for call in &it.calls {
        lines.extend(wrap(&held_call(call), width));
    }
    lines.push(String::new());
    lines.extend(programs(&it.programs).lines(width));
    lines
}

fn held_call(it: &HeldCallView) -> String {
    let tenant = it.tenant.as_ref().map(|it| format!(" of {it}")).unwrap_or_default();
    format!("{}{tenant} held for {}: {}", it.program, span(it.held_ms / 1e3), hold(&it.hold))
}

fn programs(all: &[ProgramView]) -> TextTable {
    let columns = vec![
        Column::words("program", 0, 8),
        Column::words("state", 1, 9),
        Column::address("worker", 11),
        Column::number("tokens", 0),
        Column::number("calls", 2),
        Column::number("idle", 3),
        Column::words("tenant", 5, 8),
    ];
    let row = |it: &ProgramView| {
        let worker = it.worker.map(|worker| worker_name(it.url.as_deref(), worker));
        vec![
            it.program.to_string(),
            state(&it.state).to_owned(),
            worker.unwrap_or_else(|| UNKNOWN.to_owned()),
            count(it.tokens as f64),
            it.calls.to_string(),
            it.idle_ms.map_or_else(|| UNKNOWN.to_owned(), |it| format::span(it / 1e3)),
            it.tenant.as_deref().unwrap_or(UNKNOWN).to_owned(),
        ]
    };
    TextTable { columns, rows: all.iter().map(row).collect() }
}

fn state(word: &str) -> &str {
    match word {
        "no-memory" => "no memory",
        word => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_says_what_is_full_who_is_ahead_and_until_when() {
        let it = HoldView {
            tokens: 127_000,
            roomiest: Some(2),
            roomiest_url: Some("http://10.0.0.3:8000".into()),
            roomiest_usage: Some(0.97),
            ahead: 3,
            at_latest_ms: 521_000.0,
        };
        let expected = "needs 127k tokens; the emptiest memory, 10.0.0.3:8000, is 97% full; 3 calls ahead; goes at the latest in 8m 41s";
        assert_eq!(hold(&it), expected);
        let unknown = HoldView { roomiest: None, roomiest_usage: None, ahead: 1, ..it };
        assert!(hold(&unknown).starts_with("needs 127k tokens, and no worker has room; 1 call ahead;"));
    }

    #[test]
    fn a_step_says_whether_the_program_stayed_and_what_its_memory_costs() {
        let it = ProgramStepView {
            program: "1a2b3c4d".into(),
            calls: 7,
            last_worker: Some(1),
            last_url: Some("http://10.0.0.2:8000".into()),
            held_ms: 0.0,
            memory_ms: 0.0,
            last_memory_ms: Some(2_500.0),
        };
        assert_eq!(
            step(&it, 1),
            "call 7 of program 1a2b3c4d stays with its worker: its memory costs other programs nothing"
        );
        assert_eq!(
            step(&it, 2),
            "call 7 of program 1a2b3c4d moves from 10.0.0.2:8000: its memory costs other programs nothing here, and 2.5 s there"
        );
        let first =
            ProgramStepView { calls: 1, last_worker: None, held_ms: 90_000.0, memory_ms: 1_200.0, ..it };
        assert_eq!(
            step(&first, 0),
            "call 1 of program 1a2b3c4d begins here: its memory costs other programs 1.2 s; it was held for 90.0 s until there was memory"
        );
    }
}
