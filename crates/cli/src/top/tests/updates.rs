//! Updates and keys in, commands out.

use std::time::Duration;

use serde_json::json;

use super::super::model::{
    Command, DECISIONS_MAX, DecisionDialog, Dialog, Pane, RouterSnapshot, StreamState, TopKey, TopState,
    Update, WorkerAction,
};
use super::{SECOND, decision, snapshot, state};
use maitre_views::decision::DecisionEvent;

use crate::operator::trouble::Trouble;

fn decided(numbers: &[u64]) -> Update {
    let decisions: Vec<_> = numbers.iter().map(|&it| decision(it)).collect();
    Update::Decisions(serde_json::from_value(json!({ "skipped": 4, "decisions": decisions })).unwrap())
}

fn numbers(state: &TopState) -> Vec<u64> {
    state.decisions.iter().filter_map(|it| it.number).collect()
}

fn lost() -> Update {
    Update::Lost(Trouble::Lost("connect to http://a: refused".to_owned()), 4 * SECOND)
}

fn press(state: &mut TopState, keys: &[TopKey]) -> Option<Command> {
    keys.iter().map(|&it| state.press(it)).last().flatten()
}

#[test]
fn decisions_stay_in_order_and_are_updated_in_place() {
    let mut state = state();
    assert_eq!(numbers(&state), [1, 2]);
    state.apply(decided(&[5, 3, 4]), SECOND);
    assert_eq!((numbers(&state), state.skipped), (vec![1, 2, 3, 4, 5], 4));
    let mut open = decision(3);
    open["outcome"] = json!("failed");
    let update: DecisionEvent = serde_json::from_value(json!({ "decisions": [open] })).unwrap();
    state.apply(Update::Decisions(update), SECOND);
    assert_eq!(numbers(&state), [1, 2, 3, 4, 5]);
    assert_eq!(&*state.decisions[2].outcome, "failed");
    state.apply(decided(&(6..1_000).collect::<Vec<_>>()), SECOND);
    assert_eq!(state.decisions.len(), DECISIONS_MAX);
    assert_eq!(state.decisions.back().unwrap().number, Some(999));
}

#[test]
fn decisions_of_a_restarted_router_replace_the_old_ones() {
    let mut state = state();
    state.apply(decided(&[10, 11]), SECOND);
    let snapshot = RouterSnapshot { decisions: Vec::new(), ..snapshot() };
    state.apply(Update::Snapshot(Box::new(snapshot)), 2 * SECOND);
    assert_eq!(numbers(&state), [] as [u64; 0], "the old ones were of another process");
    state.apply(decided(&[1]), 3 * SECOND);
    assert_eq!(numbers(&state), [1]);
}

#[test]
fn each_overview_adds_a_sample_up_to_the_limit() {
    let mut state = state();
    let before = state.samples.len();
    let mut overview = snapshot().overview;
    state.apply(Update::Overview(Box::new(overview.clone())), SECOND);
    assert_eq!(state.samples.len(), before, "the same moment again");
    for _ in 0..2_000 {
        overview.at_ms += 1_000;
        state.apply(Update::Overview(Box::new(overview.clone())), SECOND);
    }
    assert_eq!(state.samples.len(), 900);
    assert_eq!(state.samples.back().unwrap().at_ms, overview.at_ms);
}

#[test]
fn a_lost_stream_is_known_until_the_next_update() {
    let mut state = state();
    state.apply(decided(&[3]), 10 * SECOND);
    assert!(state.apply(lost(), 12 * SECOND), "it should be seen at once");
    assert!(matches!(&state.stream, StreamState::Lost(_, at) if *at == 16 * SECOND));
    assert_eq!(state.age(15 * SECOND), 5 * SECOND);
    state.apply(Update::Snapshot(Box::new(snapshot())), 17 * SECOND);
    assert!(matches!(state.stream, StreamState::Live));
    assert_eq!((state.age(17 * SECOND), numbers(&state)), (Duration::ZERO, vec![1, 2]));
}

#[test]
fn no_worker_is_drained_without_a_confirmation() {
    let url = "http://worker-with-a-long-name.example:9002".to_owned();
    let action = |drain| WorkerAction { worker: 3, url: url.clone(), drain };
    let mut state = state();
    assert_eq!(press(&mut state, &[TopKey::Letter('j'), TopKey::Letter('d')]), None);
    assert!(matches!(&state.dialog, Dialog::Confirm(asked) if *asked == action(true)));
    assert_eq!(
        press(&mut state, &[TopKey::Letter('j'), TopKey::Enter, TopKey::Tab]),
        None,
        "neither yes nor no"
    );
    assert_eq!(press(&mut state, &[TopKey::Letter('n'), TopKey::Letter('y')]), None);
    assert_eq!(
        press(&mut state, &[TopKey::Letter('d'), TopKey::Letter('y')]),
        Some(Command::Worker(action(true)))
    );
    assert!(matches!(state.dialog, Dialog::None));
    assert_eq!(
        press(&mut state, &[TopKey::Letter('r'), TopKey::Letter('y')]),
        Some(Command::Worker(action(false)))
    );
    assert!(state.apply(Update::Acted(action(true), Ok(())), SECOND));
    assert_eq!(
        state.notice(2 * SECOND),
        Some(format!("{url} is draining: it gets no new requests").as_str())
    );
    assert_eq!(state.notice(60 * SECOND), None);
    state.apply(Update::Acted(action(false), Err(Trouble::refused("read-only"))), SECOND);
    assert_eq!(state.notice(SECOND), Some(format!("could not resume {url}: read-only").as_str()));
    assert_eq!(
        press(&mut state, &[TopKey::Tab, TopKey::Letter('d'), TopKey::Letter('y')]),
        None,
        "among decisions"
    );
}

#[test]
fn a_selection_stays_on_its_row_while_the_list_moves() {
    let mut state = state();
    press(&mut state, &[TopKey::Letter('k'), TopKey::Down, TopKey::PageDown]);
    assert_eq!(state.worker(), Some(1), "no further than the last");
    press(&mut state, &[TopKey::Tab, TopKey::Letter('j')]);
    assert_eq!((state.pane, state.decision()), (Pane::Decisions, Some(1)));
    state.apply(decided(&[3, 4]), SECOND);
    assert_eq!(state.decision(), Some(3), "the same one, further down");
    let mut overview = snapshot().overview;
    overview.workers.remove(1);
    state.apply(Update::Overview(Box::new(overview)), SECOND);
    assert_eq!(state.worker(), Some(0), "the selected one is gone");
    let mut empty = TopState::default();
    assert_eq!(
        press(
            &mut empty,
            &[TopKey::Down, TopKey::Enter, TopKey::Letter('d'), TopKey::Tab, TopKey::Up, TopKey::Enter]
        ),
        None
    );
    assert!(matches!(empty.dialog, Dialog::None), "there is nothing to open");
}

#[test]
fn a_decision_is_loaded_and_shown_if_its_dialog_is_still_open() {
    let whole = |number| serde_json::from_value(decision(number)).map(Box::new).unwrap();
    let mut state = state();
    assert_eq!(press(&mut state, &[TopKey::Tab, TopKey::Enter]), Some(Command::Decision(2)));
    state.apply(Update::Decision(Ok(whole(1))), SECOND);
    assert!(matches!(state.dialog, Dialog::Decision(DecisionDialog::Awaited(2))), "that was another one");
    state.apply(Update::Decision(Ok(whole(2))), SECOND);
    assert!(
        matches!(&state.dialog, Dialog::Decision(DecisionDialog::Shown(it)) if it.summary.number == Some(2))
    );
    press(&mut state, &[TopKey::Down, TopKey::PageDown, TopKey::Up]);
    assert_eq!(state.scrolled, 10);
    press(&mut state, &[TopKey::Escape]);
    state.apply(Update::Decision(Ok(whole(2))), SECOND);
    assert!(matches!(state.dialog, Dialog::None), "it was closed");
    press(&mut state, &[TopKey::Enter]);
    state.apply(Update::Decision(Err(Trouble::refused("forgotten"))), SECOND);
    assert!(matches!(state.dialog, Dialog::Decision(DecisionDialog::Failed(_))));
    assert_eq!(press(&mut state, &[TopKey::Letter('q')]), None, "closes it");
    assert_eq!(press(&mut state, &[TopKey::Letter('q')]), Some(Command::Quit));
}
