//! Scripts of reports over time, and the_laws_hold_for_any_reports that hold for any reports.

use super::*;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

/// Workers are single letters here.
fn workers(letters: &str) -> Vec<WorkerUrl> {
    letters.chars().map(|it| format!("http://{it}:1").parse().unwrap()).collect()
}

fn letters(list: &StableList) -> String {
    list.workers().map(|it| it.address.host().to_owned()).collect()
}

fn at(seconds: u64) -> Instant {
    Instant::from_millis(1_000 * seconds)
}

enum Say {
    List(&'static str),
    Part(&'static str),
    /// Ready, unready.
    Census(&'static str, &'static str),
    Fail,
    /// Nothing: time passes.
    Silence,
}
use Say::{Census, Fail, List, Part, Silence};

/// Rows of `(second, report, workers then, of which held)`. A missing worker is gone after five seconds, a
/// held one after a hundred.
#[track_caller]
fn check(rows: &[(u64, Say, &str, usize)]) {
    let grace = Grace { gone_after: Duration::from_secs(5), empty_after: Duration::from_secs(100) };
    let mut list = StableList::new(grace);
    for (row, (second, say, there, held)) in rows.iter().enumerate() {
        let heard = match *say {
            List(letters) => Some(ReportedWorkers::List(workers(letters))),
            Part(letters) => Some(ReportedWorkers::Partial(workers(letters))),
            Census(ready, unready) => {
                Some(ReportedWorkers::Census { ready: workers(ready), unready: workers(unready) })
            }
            Fail => Some(ReportedWorkers::Failure),
            Silence => None,
        };
        match heard {
            Some(heard) => list.apply(at(*second), SourceReport::of(heard)),
            None => list.expire(at(*second)),
        }
        assert_eq!((letters(&list).as_str(), list.held()), (*there, *held), "row {row}");
    }
}

#[test]
fn new_workers_are_accepted_at_once() {
    check(&[(0, List("ab"), "ab", 0), (1, List("abc"), "abc", 0)]);
}

#[test]
fn a_missing_worker_is_gone_after_the_delay() {
    check(&[(0, List("ab"), "ab", 0), (1, List("a"), "ab", 0), (5, Silence, "ab", 0), (6, Silence, "a", 0)]);
}

#[test]
fn a_flapping_worker_stays() {
    check(&[
        (0, List("ab"), "ab", 0),
        (1, List("a"), "ab", 0),
        (5, List("ab"), "ab", 0),
        (6, List("a"), "ab", 0),
        (10, Silence, "ab", 0),
        (11, Silence, "a", 0),
    ]);
}

#[test]
fn a_second_missing_report_does_not_restart_the_delay() {
    check(&[
        (0, List("ab"), "ab", 0),
        (1, List("a"), "ab", 0),
        (4, List("a"), "ab", 0),
        (6, List("a"), "a", 0),
    ]);
}

#[test]
fn an_empty_report_takes_effect_after_the_hold() {
    check(&[
        (0, List("ab"), "ab", 0),
        (1, List(""), "ab", 2),
        (50, List(""), "ab", 2),
        (100, Silence, "ab", 2),
        (101, Silence, "", 0),
        (102, List("a"), "a", 0),
    ]);
}

#[test]
fn a_good_report_ends_the_hold() {
    check(&[
        (0, List("abc"), "abc", 0),
        (1, List(""), "abc", 3),
        (50, List("a"), "abc", 0),
        (54, Silence, "abc", 0),
        (55, Silence, "a", 0),
    ]);
}

#[test]
fn an_already_missing_worker_is_not_held() {
    check(&[(0, List("ab"), "ab", 0), (1, List("a"), "ab", 0), (2, List(""), "ab", 1), (6, Silence, "a", 1)]);
}

#[test]
fn a_failure_changes_nothing_for_ever() {
    check(&[
        (0, List("ab"), "ab", 0),
        (1, Fail, "ab", 0),
        (100_000, Fail, "ab", 0),
        (100_001, Silence, "ab", 0),
    ]);
}

#[test]
fn a_failure_does_not_keep_a_missing_worker() {
    check(&[(0, List("ab"), "ab", 0), (1, List("a"), "ab", 0), (2, Fail, "ab", 0), (6, Fail, "a", 0)]);
}

#[test]
fn a_partial_report_that_loses_most_workers_holds_them() {
    check(&[(0, List("abcd"), "abcd", 0), (1, Part("a"), "abcd", 3), (101, Silence, "a", 0)]);
    check(&[(0, List("abcd"), "abcd", 0), (1, Part("ab"), "abcd", 0), (6, Silence, "ab", 0)]);
    check(&[(0, List("ab"), "ab", 0), (1, Part("cde"), "abcde", 2)]);
    check(&[(0, Part(""), "", 0), (1, Part("a"), "a", 0)]);
}

#[test]
fn a_whole_report_that_loses_most_workers_is_accepted() {
    check(&[(0, List("abcd"), "abcd", 0), (1, List("a"), "abcd", 0), (6, Silence, "a", 0)]);
}

#[test]
fn a_deleted_or_terminating_worker_is_gone_at_once() {
    check(&[(0, Census("ab", ""), "ab", 0), (1, Census("a", ""), "a", 0), (2, Census("", ""), "", 0)]);
}

#[test]
fn an_unready_worker_is_gone_after_the_delay_and_may_return() {
    check(&[
        (0, Census("ab", ""), "ab", 0),
        (1, Census("a", "b"), "ab", 0),
        (3, Census("ab", ""), "ab", 0),
        (4, Census("a", "b"), "ab", 0),
        (9, Silence, "a", 0),
    ]);
}

#[test]
fn a_worker_that_was_never_ready_is_absent() {
    check(&[(0, Census("", "ab"), "", 0), (1, Census("a", "b"), "a", 0)]);
}

#[test]
fn if_all_are_unready_they_are_held_except_the_deleted() {
    check(&[
        (0, Census("abc", ""), "abc", 0),
        (1, Census("", "ab"), "ab", 2),
        (2, Census("", "b"), "b", 1),
        (101, Silence, "", 0),
    ]);
}

#[test]
fn zero_holds_for_ever() {
    let grace = Grace { gone_after: Duration::ZERO, empty_after: Duration::ZERO };
    let mut list = StableList::new(grace);
    list.apply(at(0), SourceReport::of(ReportedWorkers::List(workers("ab"))));
    list.apply(at(1), SourceReport::of(ReportedWorkers::List(workers("a"))));
    assert_eq!(letters(&list), "a", "no time to be missing in");
    list.apply(at(2), SourceReport::of(ReportedWorkers::List(workers(""))));
    list.expire(at(1_000_000_000));
    assert_eq!((letters(&list).as_str(), list.next_expiry()), ("a", None));
}

#[test]
fn options_change_in_place() {
    let mut list = StableList::new(Grace::default());
    for url in ["http://a:1", "http://a:1?ranks=2"] {
        list.apply(at(0), SourceReport::of(ReportedWorkers::List(vec![url.parse().unwrap()])));
        assert_eq!(list.workers().map(|it| it.to_string()).collect::<Vec<_>>(), [url]);
    }
}

#[test]
fn a_list_that_is_too_long_is_a_failure() {
    let many = |count: usize| (0..count).map(|it| format!("http://w{it}:1").parse().unwrap()).collect();
    let mut list = StableList::new(Grace::default());
    list.apply(at(0), SourceReport::of(ReportedWorkers::List(many(WORKERS_MAX))));
    assert_eq!((list.count(), list.last_report()), (WORKERS_MAX, Some(LastReport::Workers)));
    list.apply(at(1), SourceReport::of(ReportedWorkers::List(many(WORKERS_MAX + 1))));
    assert_eq!((list.count(), list.last_report()), (WORKERS_MAX, Some(LastReport::Failure)));
    assert_eq!(list.note(), Some("has 4097 workers; at most 4096 are taken"));
    assert_eq!(list.answered(), Some(at(0)));
}

/// Any report about six workers.
fn heard() -> impl Strategy<Value = ReportedWorkers> {
    let some = |bits: u8| -> Vec<WorkerUrl> {
        workers(
            &('a'..='f').enumerate().filter(|it| bits >> it.0 & 1 == 1).map(|it| it.1).collect::<String>(),
        )
    };
    prop_oneof![
        3 => any::<u8>().prop_map(move |it| ReportedWorkers::List(some(it))),
        1 => Just(ReportedWorkers::List(Vec::new())),
        2 => any::<u8>().prop_map(move |it| ReportedWorkers::Partial(some(it))),
        2 => any::<(u8, u8)>().prop_map(move |(ready, unready)| {
            ReportedWorkers::Census { ready: some(ready), unready: some(unready & !ready) }
        }),
        2 => Just(ReportedWorkers::Failure),
    ]
}

fn named(heard: &ReportedWorkers) -> &[WorkerUrl] {
    match heard {
        ReportedWorkers::List(named)
        | ReportedWorkers::Partial(named)
        | ReportedWorkers::Census { ready: named, .. } => named,
        ReportedWorkers::Failure => &[],
    }
}

proptest! {
    /// For any reports in any order and at any pace: a worker just named is present; a present worker was
    /// named before, and not too long ago unless the source fails; no worker is gone before its delay unless
    /// deleted.
    #[test]
    fn the_laws_hold_for_any_reports(script in proptest::collection::vec((1u64..40_000, heard()), 1..60)) {
        let grace = Grace { gone_after: Duration::from_secs(5), empty_after: Duration::from_secs(100) };
        let (mut list, mut now) = (StableList::new(grace), Instant::ZERO);
        let mut last_named: BTreeMap<Address, Instant> = BTreeMap::new();
        // When each worker went missing: the first report about workers after the last that named it.
        let mut unnamed: BTreeMap<Address, Instant> = BTreeMap::new();
        for (pause, heard) in script {
            now = now + Duration::from_millis(pause);
            list.apply(now, SourceReport::of(heard.clone()));
            for found in named(&heard) {
                last_named.insert(found.address.clone(), now);
                unnamed.remove(&found.address);
            }
            let deleted = |address: &Address| match &heard {
                ReportedWorkers::Census { ready, unready } => {
                    !ready.iter().chain(unready).any(|it| it.address == *address)
                }
                _ => false,
            };
            let there: Vec<Address> = list.workers().map(|it| it.address.clone()).collect();
            if heard != ReportedWorkers::Failure {
                let absent = last_named.keys().filter(|it| last_named[*it] < now || deleted(it));
                absent.for_each(|it| _ = unnamed.entry(it.clone()).or_insert(now));
            }
            for address in last_named.keys().cloned().collect::<Vec<_>>() {
                let is_there = there.contains(&address);
                match unnamed.get(&address) {
                    None => prop_assert!(is_there, "{address} was named and nobody said otherwise"),
                    Some(_) if deleted(&address) => prop_assert!(!is_there, "{address} was deleted"),
                    Some(since) => {
                        let missing = now.since(*since);
                        // Held, then missing, takes longest.
                        prop_assert!(!is_there || missing < grace.empty_after + grace.gone_after);
                        prop_assert!(is_there || missing >= grace.gone_after, "{address} had time left");
                    }
                }
                if deleted(&address) {
                    last_named.remove(&address);
                    unnamed.remove(&address);
                }
            }
            prop_assert!(there.iter().all(|it| last_named.contains_key(it)), "somebody nobody named");
            prop_assert!(list.next_expiry().is_none_or(|it| it > now), "nothing that is due is left");
        }
    }

    /// Flapping shorter than `gone_after` loses no worker.
    #[test]
    fn short_flapping_loses_no_worker(script in proptest::collection::vec((0u64..4_999, any::<bool>()), 1..60)) {
        let mut list = StableList::new(Grace::default());
        list.apply(Instant::ZERO, SourceReport::of(ReportedWorkers::List(workers("ab"))));
        let mut now = Instant::ZERO;
        for (pause, fails) in script {
            now = now + Duration::from_millis(pause);
            let gap = if fails { ReportedWorkers::Failure } else { ReportedWorkers::List(workers("a")) };
            list.apply(now, SourceReport::of(gap));
            now = now + Duration::from_millis(4_999 - pause);
            list.apply(now, SourceReport::of(ReportedWorkers::List(workers("ab"))));
            prop_assert_eq!(letters(&list), "ab");
        }
    }

    /// Calling `expire` more often changes nothing; only the reports and their times matter.
    #[test]
    fn expiring_more_often_changes_nothing(
        script in proptest::collection::vec((0u64..40_000, heard()), 1..40),
        looks in 1u64..5,
    ) {
        let (mut one, mut other) = (StableList::new(Grace::default()), StableList::new(Grace::default()));
        let mut now = Instant::ZERO;
        for (pause, heard) in script {
            for _ in 0..looks {
                now = now + Duration::from_millis(pause) / u32::try_from(looks).unwrap();
                other.expire(now);
            }
            one.apply(now, SourceReport::of(heard.clone()));
            other.apply(now, SourceReport::of(heard));
            prop_assert_eq!(letters(&one), letters(&other));
            prop_assert_eq!(one.next_expiry(), other.next_expiry());
        }
    }
}
