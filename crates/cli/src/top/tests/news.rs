//! News and keys in, wishes out.

use std::time::Duration;

use serde_json::json;

use super::super::state::{Act, DECISIONS_MAX, Dialog, Key, Link, News, Pane, Picture, State, Weighed, Wish};
use super::{SECOND, decision, picture, state};
use crate::operator::api::Decisions;
use crate::operator::trouble::Trouble;

fn news(numbers: &[u64]) -> News {
    let decisions: Vec<_> = numbers.iter().map(|&it| decision(it)).collect();
    News::Decisions(serde_json::from_value(json!({ "skipped": 4, "decisions": decisions })).unwrap())
}

fn numbers(state: &State) -> Vec<u64> {
    state.decisions.iter().filter_map(|it| it.number).collect()
}

fn lost() -> News {
    News::Lost(Trouble::Lost("connect to http://a: refused".to_owned()), 4 * SECOND)
}

fn press(state: &mut State, keys: &[Key]) -> Option<Wish> {
    keys.iter().map(|&it| state.press(it)).last().flatten()
}

#[test]
fn decisions_stay_in_order_and_are_updated_in_place() {
    let mut state = state();
    assert_eq!(numbers(&state), [1, 2]);
    state.hear(news(&[5, 3, 4]), SECOND);
    assert_eq!((numbers(&state), state.skipped), (vec![1, 2, 3, 4, 5], 4));
    let mut open = decision(3);
    open["outcome"] = json!("failed");
    let update: Decisions = serde_json::from_value(json!({ "decisions": [open] })).unwrap();
    state.hear(News::Decisions(update), SECOND);
    assert_eq!(numbers(&state), [1, 2, 3, 4, 5]);
    assert_eq!(&*state.decisions[2].outcome, "failed");
    state.hear(news(&(6..1_000).collect::<Vec<_>>()), SECOND);
    assert_eq!(state.decisions.len(), DECISIONS_MAX);
    assert_eq!(state.decisions.back().unwrap().number, Some(999));
}

#[test]
fn a_router_that_was_restarted_begins_anew() {
    let mut state = state();
    state.hear(news(&[10, 11]), SECOND);
    let picture = Picture { decisions: Decisions::default(), ..picture() };
    state.hear(News::Picture(Box::new(picture)), 2 * SECOND);
    assert_eq!(numbers(&state), [] as [u64; 0], "they were another router's");
    state.hear(news(&[1]), 3 * SECOND);
    assert_eq!(numbers(&state), [1]);
}

#[test]
fn each_overview_is_one_more_sample_and_they_are_bounded() {
    let mut state = state();
    let before = state.samples.len();
    let mut overview = picture().overview;
    state.hear(News::Overview(Box::new(overview.clone())), SECOND);
    assert_eq!(state.samples.len(), before, "the same moment again");
    for _ in 0..2_000 {
        overview.at_ms += 1_000;
        state.hear(News::Overview(Box::new(overview.clone())), SECOND);
    }
    assert_eq!(state.samples.len(), 900);
    assert_eq!(state.samples.back().unwrap().at_ms, overview.at_ms);
}

#[test]
fn a_loss_is_known_until_something_is_heard() {
    let mut state = state();
    state.hear(news(&[3]), 10 * SECOND);
    assert!(state.hear(lost(), 12 * SECOND), "it should be seen at once");
    assert!(matches!(&state.link, Link::Lost(_, at) if *at == 16 * SECOND));
    assert_eq!(state.age(15 * SECOND), 5 * SECOND);
    state.hear(News::Picture(Box::new(picture())), 17 * SECOND);
    assert!(matches!(state.link, Link::Live));
    assert_eq!((state.age(17 * SECOND), numbers(&state)), (Duration::ZERO, vec![1, 2]));
}

#[test]
fn nobody_is_drained_without_being_asked_twice() {
    let url = "http://worker-with-a-long-name.example:9002".to_owned();
    let act = |drain| Act { worker: 3, url: url.clone(), drain };
    let mut state = state();
    assert_eq!(press(&mut state, &[Key::Letter('j'), Key::Letter('d')]), None);
    assert!(matches!(&state.dialog, Dialog::Sure(asked) if *asked == act(true)));
    assert_eq!(press(&mut state, &[Key::Letter('j'), Key::Enter, Key::Tab]), None, "neither yes nor no");
    assert_eq!(press(&mut state, &[Key::Letter('n'), Key::Letter('y')]), None);
    assert_eq!(press(&mut state, &[Key::Letter('d'), Key::Letter('y')]), Some(Wish::Act(act(true))));
    assert!(matches!(state.dialog, Dialog::None));
    assert_eq!(press(&mut state, &[Key::Letter('r'), Key::Letter('y')]), Some(Wish::Act(act(false))));
    assert!(state.hear(News::Acted(act(true), Ok(())), SECOND));
    assert_eq!(state.notice(2 * SECOND), Some(format!("{url} drains: it gets no new requests").as_str()));
    assert_eq!(state.notice(60 * SECOND), None);
    state.hear(News::Acted(act(false), Err(Trouble::refused("read-only"))), SECOND);
    assert_eq!(state.notice(SECOND), Some(format!("could not resume {url}: read-only").as_str()));
    assert_eq!(press(&mut state, &[Key::Tab, Key::Letter('d'), Key::Letter('y')]), None, "among decisions");
}

#[test]
fn what_is_selected_stays_while_the_list_moves() {
    let mut state = state();
    press(&mut state, &[Key::Letter('k'), Key::Down, Key::PageDown]);
    assert_eq!(state.worker(), Some(1), "no further than the last");
    press(&mut state, &[Key::Tab, Key::Letter('j')]);
    assert_eq!((state.pane, state.decision()), (Pane::Decisions, Some(1)));
    state.hear(news(&[3, 4]), SECOND);
    assert_eq!(state.decision(), Some(3), "the same one, further down");
    let mut overview = picture().overview;
    overview.workers.remove(1);
    state.hear(News::Overview(Box::new(overview)), SECOND);
    assert_eq!(state.worker(), Some(0), "the selected one is gone");
    let mut empty = State::default();
    assert_eq!(
        press(&mut empty, &[Key::Down, Key::Enter, Key::Letter('d'), Key::Tab, Key::Up, Key::Enter]),
        None
    );
    assert!(matches!(empty.dialog, Dialog::None), "there is nothing to open");
}

#[test]
fn a_decision_is_asked_for_and_shown_if_it_is_still_wanted() {
    let whole = |number| serde_json::from_value(decision(number)).map(Box::new).unwrap();
    let mut state = state();
    assert_eq!(press(&mut state, &[Key::Tab, Key::Enter]), Some(Wish::Weigh(2)));
    state.hear(News::Weighed(Ok(whole(1))), SECOND);
    assert!(matches!(state.dialog, Dialog::Decision(Weighed::Awaited(2))), "that was another one");
    state.hear(News::Weighed(Ok(whole(2))), SECOND);
    assert!(matches!(&state.dialog, Dialog::Decision(Weighed::There(it)) if it.number == Some(2)));
    press(&mut state, &[Key::Down, Key::PageDown, Key::Up]);
    assert_eq!(state.top, 10);
    press(&mut state, &[Key::Escape]);
    state.hear(News::Weighed(Ok(whole(2))), SECOND);
    assert!(matches!(state.dialog, Dialog::None), "it was closed");
    press(&mut state, &[Key::Enter]);
    state.hear(News::Weighed(Err(Trouble::refused("forgotten"))), SECOND);
    assert!(matches!(state.dialog, Dialog::Decision(Weighed::Failed(_))));
    assert_eq!(press(&mut state, &[Key::Letter('q')]), None, "closes it");
    assert_eq!(press(&mut state, &[Key::Letter('q')]), Some(Wish::Quit));
}
