//! Screens, cell by cell, as a terminal shows them.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::model::{RouterSnapshot, TopKey, TopState, Update};
use super::super::{draw, printed};
use super::{SECOND, clustered, decision, snapshot, state};
use maitre_views::decision::DecisionDetail;
use maitre_views::worker::WorkerView;

use crate::operator::trouble::Trouble;

/// The rows of a screen of this size.
fn screen(state: &TopState, now: Duration, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::screen(state, now, frame.area(), frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(row).collect::<Vec<_>>().join("\n")
}

/// The screen is the one in the file.
#[track_caller]
fn check(actual: &str, expected: &str, file: &str) {
    assert_eq!(actual, expected.trim_end_matches('\n'), "{file} should be:\n{actual}\n");
}

macro_rules! check {
    ($actual:expr, $file:literal) => {
        check(&$actual, include_str!($file), $file)
    };
}

#[test]
fn who_floods_the_queue_is_named() {
    let line = |waiting, own| {
        let mut state = state();
        let class = &mut state.overview.queue.classes[1];
        (class.waiting, class.largest_tenant_waiting) = (waiting, own);
        class.largest_tenant = Some("acme".into());
        screen(&state, SECOND, 80, 24).lines().find(|it| it.starts_with("queue")).unwrap().to_owned()
    };
    assert_eq!(line(432, 429), "queue  interactive 0  standard 432 (429 of acme)  batch 0");
    assert_eq!(line(3, 3), "queue  interactive 0  standard 3 (all of acme)  batch 0");
}

#[test]
fn an_ordinary_terminal_shows_everything() {
    check!(screen(&state(), SECOND, 80, 24), "80x24.txt");
}

#[test]
fn a_wide_terminal_has_every_column() {
    check!(screen(&state(), SECOND, 150, 30), "150x30.txt");
}

#[test]
fn a_narrow_terminal_keeps_the_key_numbers() {
    check!(screen(&state(), SECOND, 40, 20), "40x20.txt");
}

#[test]
fn the_number_of_workers_that_are_wanted_is_below_those_that_are_here() {
    let mut overview: serde_json::Value = serde_json::from_str(include_str!("overview.json")).unwrap();
    overview["scaling"] = serde_json::json!([
        { "model": "llama-8b", "desired_workers": 3, "workers": 2, "reason": "backlog", "because": "requests wait" },
    ]);
    let overview = serde_json::from_value(overview).unwrap();
    let state = TopState::new("http://127.0.0.1:8081", RouterSnapshot { overview, ..snapshot() });
    let shown = screen(&state, SECOND, 80, 24);
    assert!(shown.contains("llama-8b: 3 wanted, 2 here (requests wait)"), "{shown}");
}

#[test]
fn a_lost_router_is_shown_with_the_age_of_the_data() {
    let mut state = state();
    let why = Trouble::Lost("connect to http://127.0.0.1:8081: Connection refused".to_owned());
    state.apply(Update::Lost(why, 4 * SECOND), 10 * SECOND);
    let shown = screen(&state, 12 * SECOND, 80, 24);
    let banner = "data is 12s old; next try in 2s: connect to http://127.0.0.1:8081: Connection\nrefused\n";
    assert!(shown.contains(banner), "{shown}");
    let mut state = super::state();
    assert!(screen(&state, 9 * SECOND, 80, 24).contains("data is 9s old"), "a silent stream too");
    state.apply(Update::Overview(Box::new(snapshot().overview)), 9 * SECOND);
    assert!(!screen(&state, 10 * SECOND, 80, 24).contains("old"));
}

#[test]
fn programs_are_one_line_and_a_dialog() {
    let mut state = state();
    state.press(TopKey::Letter('p'));
    assert!(!screen(&state, SECOND, 100, 30).contains("programs"), "while they are off");
    state.overview.programs = Some(
        serde_json::from_value(serde_json::json!({
            "rule": "working-set", "known": 9, "resident": 4, "calls_held": 2, "held_longest_ms": 130_000.0,
            "resident_tokens": 760_000, "kv_tokens": 800_000,
            "calls": [{"program": "1a2b3c4d", "tenant": "ac…e", "held_ms": 130_000.0, "tokens": 127_000, "roomiest": 1,
                "roomiest_url": "http://127.0.0.1:9002", "roomiest_usage": 0.97, "ahead": 3, "at_latest_ms": 410_000.0}],
            "programs": [{"program": "5e6f7081", "state": "idle", "worker": 0, "url": "http://127.0.0.1:9001", "tokens": 210_000,
                "calls": 12, "idle_ms": 8_000.0}],
        }))
        .unwrap(),
    );
    let shown = screen(&state, SECOND, 110, 30);
    let line =
        "programs  4 resident of 9  2 calls held, longest 2m 10s  working set 760k of 800k tokens (95%)";
    assert!(shown.contains(line) && shown.contains("p programs"), "{shown}");
    state.press(TopKey::Letter('p'));
    let shown = screen(&state, SECOND, 110, 30);
    for part in [
        "1a2b3c4d of ac…e held for 2m 10s: needs 127k tokens",
        "goes at the latest",
        "5e6f7081",
        "idle",
        "210k",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn a_decision_opens_over_the_screen_with_its_candidates() {
    let mut state = state();
    state.press(TopKey::Tab);
    state.press(TopKey::Enter);
    let mut whole = decision(2);
    whole["candidates_total"] = 2.into();
    whole["candidates"] = serde_json::json!([
        {"worker": 0, "url": "http://127.0.0.1:9001", "chosen": true, "cached_tokens": 1536, "requests": 3, "share": 1.0, "can_start": "now",
         "ttft_ms": 61.2, "price_ms": 96.0, "terms_ms": {"wait": 5.0, "floor": 12.0, "prefill": 21.0, "others": 58.0}},
        {"worker": 3, "url": "http://127.0.0.1:9002", "share": 1.0, "price_ms": 310.0, "terms_ms": {"prefill": 310.0}},
    ]);
    state.apply(Update::Decision(Ok(Box::new(serde_json::from_value(whole).unwrap()))), SECOND);
    check!(screen(&state, SECOND, 80, 24), "decision.txt");
    for width in 40..120 {
        let shown = screen(&state, SECOND, width, 34);
        let has = |it: &str| shown.contains(it);
        assert!(has("310.0") && has("prefill") && has("58.0"), "in {width} columns:\n{shown}");
    }
}

#[test]
fn a_worker_opens_over_the_screen_with_everything_known() {
    let mut state = state();
    state.press(TopKey::Enter);
    check!(screen(&state, SECOND, 80, 24), "worker.txt");
}

#[test]
fn other_routers_have_a_line_and_cluster_errors_one_at_the_top() {
    let mut snapshot = snapshot();
    snapshot.overview = serde_json::from_value(clustered()).unwrap();
    let mut state = TopState::new("http://127.0.0.1:8081", snapshot);
    check!(screen(&state, SECOND, 100, 24), "routers.txt");
    state.press(TopKey::Enter);
    let shown = screen(&state, SECOND, 120, 24);
    assert!(
        shown.contains("other routers promised: 2 requests, 700 prefill tokens, 480 decode tokens"),
        "{shown}"
    );
    let text = printed(&mut state);
    for part in ["tenant limits are split", "routers  2 live, 1 lost, via mesh", "c lost for 41.0 s"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    let mut alone = clustered();
    (alone["cluster"], alone["workers"][0]["other_routers"]) =
        (serde_json::Value::Null, serde_json::json!({ "requests": 0 }));
    let mut snapshot = super::snapshot();
    snapshot.overview = serde_json::from_value(alone).unwrap();
    let mut state = TopState::new("http://127.0.0.1:8081", snapshot);
    state.press(TopKey::Enter);
    let shown = screen(&state, SECOND, 120, 24) + &printed(&mut state);
    assert!(!shown.contains("routers") && !shown.contains("others"), "{shown}");
}

#[test]
fn draining_a_worker_asks_with_its_name_first() {
    let mut state = state();
    state.press(TopKey::Letter('d'));
    let shown = screen(&state, SECOND, 80, 24);
    assert!(shown.contains("drain http://127.0.0.1:9001? It gets no new requests then. y / n"), "{shown}");
}

#[test]
fn a_dialog_that_does_not_fit_scrolls() {
    let mut state = state();
    state.press(TopKey::Letter('?'));
    let last = "predicted";
    let shown = screen(&state, SECOND, 40, 14);
    assert!(shown.contains("quit") && shown.contains("j/k: more") && !shown.contains(last), "{shown}");
    (0..9).for_each(|_| drop(state.press(TopKey::PageDown)));
    let shown = screen(&state, SECOND, 40, 14);
    assert!(!shown.contains("quit") && shown.contains(last), "{shown}");
    assert!(!screen(&state, SECOND, 100, 24).contains("j/k: more"), "it fits");
}

#[test]
fn names_cannot_act_on_the_terminal() {
    let evil = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\r\n";
    let mut overview = clustered();
    for path in [
        "/cluster/via",
        "/cluster/error",
        "/cluster/routers/0/name",
        "/cluster/routers/2/state",
        "/strategy",
        "/version",
        "/workers/0/url",
        "/workers/0/state",
        "/workers/0/trust",
        "/workers/0/engine",
    ] {
        *overview.pointer_mut(path).unwrap() = evil.into();
    }
    overview["workers"][0]["models"][0] = evil.into();
    overview["queue"]["classes"][0]["class"] = evil.into();
    overview["shadows"][0]["strategy"] = evil.into();
    let mut snapshot = snapshot();
    snapshot.overview = serde_json::from_value(overview).unwrap();
    let mut named = decision(3);
    for key in ["model", "url", "why", "outcome", "id", "strategy", "class", "tenant"] {
        named[key] = evil.into();
    }
    let named: DecisionDetail = serde_json::from_value(named).unwrap();
    snapshot.decisions.push(named.summary.clone());
    let mut state = TopState::new("http://127.0.0.1:8081", snapshot);
    let harmless = |state: &TopState| {
        let shown = screen(state, SECOND, 150, 30);
        assert!(shown.chars().all(|it| it == '\n' || !it.is_control()), "{shown:?}");
        assert!(!shown.contains('\u{202e}') && shown.contains("owned"), "{shown:?}");
    };
    harmless(&state);
    state.press(TopKey::Enter);
    harmless(&state);
    state.press(TopKey::Escape);
    state.press(TopKey::Tab);
    state.press(TopKey::Enter);
    state.apply(Update::Decision(Ok(Box::new(named))), SECOND);
    harmless(&state);
}

#[test]
fn no_size_is_too_small_and_no_number_too_large() {
    let mut overview = clustered();
    for path in [
        "/uptime_s",
        "/now/ttft_p50_ms",
        "/now/requests_per_s",
        "/workers/0/kv_usage",
        "/workers/0/weight",
        "/cluster/routers/1/lag_ms",
        "/cluster/routers/1/share",
    ] {
        *overview.pointer_mut(path).unwrap() = 1e300.into();
    }
    overview["workers"][0]["prefill_tokens"] = u64::MAX.into();
    overview["cluster"]["routers"][2]["last_seen_ms"] = u64::MAX.into();
    let mut odd = snapshot();
    odd.overview = serde_json::from_value(overview).unwrap();
    let states = [state(), TopState::default(), TopState::new("", odd)];
    for mut state in states {
        for key in
            [TopKey::Letter('?'), TopKey::Escape, TopKey::Enter, TopKey::Escape, TopKey::Tab, TopKey::Enter]
        {
            state.press(key);
            for (width, height) in [(0, 0), (1, 1), (2, 30), (30, 2), (7, 7), (39, 12), (80, 24), (300, 80)] {
                let shown = screen(&state, SECOND, width, height);
                assert!(shown.lines().count() <= height.into());
            }
        }
    }
}

#[test]
fn a_long_wait_for_a_first_token_stands_beside_the_percentiles() {
    let mut snapshot = snapshot();
    let now = &mut snapshot.overview.now;
    (now.ttft_p99_ms, now.longest_wait_ms) = (Some(47.0), Some(5_500.0));
    (snapshot.overview.ready, snapshot.overview.not_ready) = (false, Some("no worker is ready".into()));
    let mut state = TopState::new("http://127.0.0.1:8081", snapshot);
    let text = printed(&mut state);
    assert!(text.contains("p99 47 ms  longest wait 5.5 s"), "{text}");
    assert!(text.contains("not ready: no worker is ready"), "{text}");
    state.overview.now.longest_wait_ms = Some(900.0);
    assert!(!printed(&mut state).contains("longest wait"));
}

#[test]
fn the_selected_row_is_always_in_sight() {
    let mut snapshot = snapshot();
    let numbers = (1..=50).map(|it| serde_json::from_value(decision(it)).unwrap());
    snapshot.decisions = numbers.collect();
    let mut state = TopState::new("http://127.0.0.1:8081", snapshot);
    state.press(TopKey::Tab);
    for place in 1..50 {
        state.press(TopKey::Down);
        let marked = screen(&state, SECOND, 80, 24).lines().filter(|it| it.starts_with("> ")).count();
        assert_eq!(marked, 1, "after {place}");
    }
}

#[test]
fn output_into_a_pipe_has_all_workers_and_no_marks() {
    let mut snapshot = snapshot();
    let one = snapshot.overview.workers[0].clone();
    snapshot.overview.workers =
        (0..100).map(|id| WorkerView { id, url: format!("http://w:{id}").into(), ..one.clone() }).collect();
    let mut state = TopState::new("http://127.0.0.1:8081", snapshot);
    let text = printed(&mut state);
    assert!(text.starts_with("http://127.0.0.1:8081\nmaitre 0.1.0  least-delay  ready"), "{text}");
    for id in 0..100 {
        assert!(text.lines().any(|it| it.trim_start().starts_with(&format!("w:{id} "))), "{id}: {text}");
    }
    assert!(!text.contains("> ") && !text.contains('\u{1b}') && !text.contains("quit"), "{text}");
    assert!(text.lines().all(|it| it.chars().count() <= 120 && it.trim_end() == it), "{text}");
}
