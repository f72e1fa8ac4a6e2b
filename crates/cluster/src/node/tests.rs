//! Updates that follow from received frames, case by case. Properties over all cases are in `laws`.

use super::*;
use crate::frame::{FrameError, ROUTERS_MAX};
use crate::row::{LinearFit, PeerPlacement, PeerState, Unit, Verdict};
use maitre_base::{PrefillWork, Tokens};

const TIGHT: Duration = Duration::from_secs(3);

fn node(name: &str) -> Node {
    started(name, 1)
}

fn started(name: &str, incarnation: u64) -> Node {
    Node::new(NodeConfig { name: name.into(), incarnation: Incarnation(incarnation), silence_max: TIGHT })
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn load(requests: u32) -> PromisedWork {
    let count = u64::from(requests);
    let prefill = PrefillWork { tokens: Tokens(100 * count), attended: 5_000 * count };
    PromisedWork { requests, prefill, ..PromisedWork::default() }
}

fn chain(links: &[u64]) -> Chain<'_> {
    Chain { unit: Unit::Tokens, block: 16, units: 16 * links.len() as u64 + 3, links }
}

/// Distinct links for a prompt of this name.
fn links(name: u64, count: u64) -> Vec<u64> {
    (0..count).map(|it| maitre_base::hash::pair(name, it).max(1)).collect()
}

fn flush(node: &mut Node, now: Instant) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    node.flush(now, &mut frames);
    frames
}

#[track_caller]
fn receive(node: &mut Node, now: Instant, frames: &[Vec<u8>]) -> Vec<PeerUpdate> {
    let mut updates = Vec::new();
    for frame in frames {
        assert!(frame.len() <= crate::frame::FRAME_MAX);
        node.receive(now, frame, &mut updates).unwrap();
    }
    updates
}

/// The updates that `to` derives from the next flush of `from`.
#[track_caller]
fn pass(from: &mut Node, to: &mut Node, now: Instant) -> Vec<PeerUpdate> {
    let frames = flush(from, now);
    receive(to, now, &frames)
}

const JOINED: PeerUpdate = PeerUpdate::Routers { live: 2, known: 2 };

#[test]
fn promised_loads_are_summed_and_emitted_when_they_change() {
    let (mut a, mut b, mut c) = (node("a"), node("b"), node("c"));
    a.promise(7, load(2));
    assert_eq!(pass(&mut a, &mut c, at(0)), [PeerUpdate::Promised { worker: 7, load: load(2) }, JOINED]);
    b.promise(7, load(3));
    b.promise(8, load(1));
    let published = pass(&mut b, &mut c, at(0));
    let expected = [
        PeerUpdate::Promised { worker: 7, load: load(5) },
        PeerUpdate::Promised { worker: 8, load: load(1) },
        PeerUpdate::Routers { live: 3, known: 3 },
    ];
    assert_eq!(published, expected);
    a.promise(7, load(0));
    assert_eq!(pass(&mut a, &mut c, at(1)), [PeerUpdate::Promised { worker: 7, load: load(3) }]);
    b.forget(7);
    assert_eq!(pass(&mut b, &mut c, at(1)), [PeerUpdate::Promised { worker: 7, load: load(0) }]);
    assert_eq!(c.view.rows(), 1);
}

#[test]
fn a_change_undone_before_a_flush_is_not_published() {
    let mut a = node("a");
    a.promise(7, load(2));
    assert_eq!(flush(&mut a, at(0)).len(), 1);
    a.promise(7, load(3));
    a.promise(7, load(2));
    assert!(!a.is_due(at(1)));
    assert_eq!(flush(&mut a, at(1)), Vec::<Vec<u8>>::new());
}

#[test]
fn chains_arrive_complete_though_only_new_links_are_sent() {
    let (mut a, mut b) = (node("a"), node("b"));
    let all = links(1, 2_048);
    a.place(7, chain(&all[..2_040]));
    let first = flush(&mut a, at(0));
    assert!((2_040 * 8..2_040 * 8 + 100).contains(&first[0].len()), "{}", first[0].len());
    receive(&mut b, at(0), &first);
    a.place(7, chain(&all));
    let second = flush(&mut a, at(20));
    assert!(second[0].len() < 200, "{}", second[0].len());
    let published = receive(&mut b, at(20), &second);
    let total_links =
        PeerPlacement { worker: 7, unit: Unit::Tokens, block: 16, units: 2_048 * 16 + 3, links: all };
    assert_eq!(published, [PeerUpdate::Placed(total_links)]);
}

#[test]
fn facts_are_published_when_they_change_enough() {
    let (mut a, mut b) = (node("a"), node("b"));
    let rates = |base: f32| Some((LinearFit { base, slope: 1e-4 }, LinearFit { base: 0.01, slope: 1e-3 }));
    let fit = WorkerFacts { verdict: Verdict::Healthy, rates: rates(0.1) };
    let cases = [
        (WorkerFacts::default(), false, "the default facts"),
        (fit, true, "rates appear"),
        (WorkerFacts { rates: rates(0.109), ..fit }, false, "they hardly move"),
        (WorkerFacts { rates: rates(0.111), ..fit }, true, "they move by more than a tenth"),
        (WorkerFacts { verdict: Verdict::Ejected, rates: rates(0.111) }, true, "the verdict changes"),
        (
            WorkerFacts { verdict: Verdict::Ejected, rates: rates(f32::NAN) },
            false,
            "rates that are no numbers",
        ),
        (WorkerFacts { verdict: Verdict::Healthy, rates: None }, true, "the verdict changes without rates"),
    ];
    for (facts, is_publishable, what) in cases {
        a.set_facts(7, facts);
        let published = pass(&mut a, &mut b, at(0));
        let facts_are_published_when_they_change_enough =
            published.contains(&PeerUpdate::Assessed { worker: 7, facts });
        assert_eq!(facts_are_published_when_they_change_enough, is_publishable, "{what}: {published:?}");
    }
}

fn spent(tokens: u64) -> Spent {
    Spent { requests: 1, tokens }
}

/// Tokens in all usage updates.
fn tokens(updates: &[PeerUpdate]) -> u64 {
    let tokens =
        updates.iter().map(|it| if let PeerUpdate::Spent { more, .. } = it { more.tokens } else { 0 });
    tokens.sum()
}

#[test]
fn usage_is_counted_once_and_only_while_listening() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.spend(5, 1, spent(100));
    let first = flush(&mut a, at(0));
    // A joining router must not charge a tenant for the hours before it joined.
    receive(&mut b, at(0), &[a.heartbeat(at(0))]);
    assert_eq!(tokens(&receive(&mut b, at(0), &a.snapshot(at(0)))), 0, "from before we listened");
    a.spend(5, 1, spent(7));
    a.spend(5, 2, spent(30));
    assert_eq!(tokens(&pass(&mut a, &mut b, at(20))), 37, "what is more, and what is new");
    assert_eq!(tokens(&receive(&mut b, at(20), &first)), 0, "late");
    // A lost delta arrives with the next one: nothing is missing, nothing is counted twice.
    a.spend(5, 1, spent(1));
    a.spend(5, 3, spent(10));
    flush(&mut a, at(40));
    a.spend(5, 1, spent(2));
    assert_eq!(tokens(&pass(&mut a, &mut b, at(60))), 3);
    assert_eq!(tokens(&pass(&mut b, &mut a, at(60))), 0, "only a request");
    assert_eq!(tokens(&pass(&mut a, &mut b, at(80))), 10);
    assert_eq!(b.stats().repairs, 1);
}

#[test]
fn an_evicted_tenant_restarts_and_is_not_charged_twice() {
    let (mut a, mut b) = (node("a"), node("b"));
    receive(&mut b, at(0), &[a.hello(at(0))]);
    a.spend(5, 0, spent(1_000));
    let mut all = tokens(&pass(&mut a, &mut b, at(0)));
    for tenant in 1..=2 * SPENT_MAX as u64 {
        a.spend(5, tenant, spent(1));
        if tenant % 500 == 0 {
            all += tokens(&pass(&mut a, &mut b, at(0)));
        }
    }
    a.spend(5, 0, spent(3));
    all += tokens(&pass(&mut a, &mut b, at(0)));
    assert_eq!(all, 1_000 + 2 * SPENT_MAX as u64 + 3);
    assert!(a.stats().dropped > 0 && b.stats().dropped > 0);
    assert!(a.stats().rows <= SPENT_MAX && b.stats().rows <= SPENT_MAX);
}

#[test]
fn the_latest_pin_wins_on_every_router() {
    let (mut a, mut b, mut c) = (node("a"), node("b"), node("c"));
    let pinned = |worker| PeerUpdate::Pinned { model: 5, session: 1, worker };
    a.pin(5, 1, 70);
    let published = flush(&mut a, at(0));
    assert!(receive(&mut b, at(0), &published).contains(&pinned(70)));
    // Later than the pin it received.
    b.pin(5, 1, 80);
    let later = flush(&mut b, at(20));
    assert!(receive(&mut c, at(20), &later).contains(&pinned(80)));
    assert!(!receive(&mut c, at(20), &published).contains(&pinned(70)), "the earlier one comes too late");
    assert_eq!(receive(&mut a, at(20), &later), [pinned(80), JOINED]);
    // A pin to the current worker is no update, and repeating a pin sends nothing.
    a.pin(5, 1, 80);
    let again = flush(&mut a, at(40));
    assert_eq!((again.len(), receive(&mut c, at(40), &again)), (1, vec![]));
    a.pin(5, 1, 80);
    assert_eq!(flush(&mut a, at(60)).len(), 0);
    // Concurrent pins: every router selects the same one.
    a.pin(5, 2, 70);
    b.stamp = a.stamp - 1;
    b.pin(5, 2, 80);
    let (from_a, from_b) = (flush(&mut a, at(80)), flush(&mut b, at(80)));
    receive(&mut a, at(80), &from_b);
    receive(&mut b, at(80), &from_a);
    let key = own_rows::row_key(5, 2);
    assert_eq!(a.view.pin(key, a.our_pin(key)), b.view.pin(key, b.our_pin(key)));
}

#[test]
fn leaving_removes_all_rows_and_later_frames_are_stale() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.promise(7, load(2));
    let published = flush(&mut a, at(0));
    receive(&mut b, at(0), &published);
    let left = [PeerUpdate::Promised { worker: 7, load: load(0) }, PeerUpdate::Routers { live: 1, known: 1 }];
    assert_eq!(receive(&mut b, at(10), &[a.leave()]), left);
    let mut updates = Vec::new();
    assert_eq!(b.receive(at(20), &published[0], &mut updates), Ok(Received::Ignored));
    assert_eq!(b.receive(at(20), &a.leave(), &mut updates), Ok(Received::Ignored));
    assert_eq!((updates, b.view.rows(), b.peers().count()), (vec![], 0, 0));
    // The next incarnation is accepted.
    assert_eq!(receive(&mut b, at(30), &[started("a", 2).heartbeat(at(30))]), [JOINED]);
}

#[test]
fn a_silent_router_is_lost_then_forgotten_and_may_return() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.promise(7, load(2));
    a.spend(5, 1, spent(100));
    pass(&mut a, &mut b, at(0));
    let tick = |node: &mut Node, millis| {
        let mut updates = Vec::new();
        node.tick(at(millis), &mut updates);
        updates
    };
    assert_eq!(tick(&mut b, 2_999), []);
    let lost = [PeerUpdate::Promised { worker: 7, load: load(0) }, PeerUpdate::Routers { live: 1, known: 2 }];
    assert_eq!(tick(&mut b, 3_000), lost);
    assert_eq!(b.peers().map(|it| it.state).collect::<Vec<_>>(), [PeerState::Lost]);
    // When it returns, the usage it published meanwhile is requested but not charged.
    a.spend(5, 1, spent(50));
    flush(&mut a, at(4_000));
    assert_eq!(receive(&mut b, at(5_000), &[a.heartbeat(at(5_000))]), [JOINED]);
    pass(&mut b, &mut a, at(5_000));
    assert_eq!(pass(&mut a, &mut b, at(5_000)), [PeerUpdate::Promised { worker: 7, load: load(2) }]);
    a.spend(5, 1, spent(3));
    assert_eq!(tokens(&pass(&mut a, &mut b, at(5_020))), 3);
    tick(&mut b, 9_000);
    assert_eq!(tick(&mut b, 604_000), []);
    assert_eq!(tick(&mut b, 605_020), [PeerUpdate::Routers { live: 1, known: 1 }]);
    assert_eq!(b.peers().count(), 0);
}

#[test]
fn a_stored_snapshot_does_not_revive_a_lost_router() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.promise(7, load(2));
    pass(&mut a, &mut b, at(0));
    let (kept, mut updates) = (a.snapshot(at(0)), Vec::new());
    b.tick(at(3_000), &mut updates);
    for frame in &kept {
        assert_eq!(b.receive(at(4_000), frame, &mut updates), Ok(Received::Ignored));
    }
    assert_eq!((b.view.rows(), b.view.live().count()), (0, 0));
    // If it was only suspended, its heartbeat proves it.
    assert_eq!(receive(&mut b, at(5_000), &[a.heartbeat(at(5_000))]), [JOINED]);
    pass(&mut b, &mut a, at(5_000));
    assert_eq!(pass(&mut a, &mut b, at(5_000)), [PeerUpdate::Promised { worker: 7, load: load(2) }]);
}

#[test]
fn only_the_directory_of_a_stored_snapshot_is_applied() {
    let mut a = node("a");
    a.promise(7, load(3));
    a.spend(1, 2, spent(100));
    a.pin(1, 5, 7);
    a.place(7, chain(&links(1, 20)));
    flush(&mut a, at(0));
    let kept = a.snapshot(at(10));
    // Any reader, including the next incarnation of the same router.
    for name in ["a", "b"] {
        let (mut reader, mut updates) = (started(name, 9), Vec::new());
        for frame in &kept {
            reader.receive_stored(at(20), frame, &mut updates).unwrap();
        }
        assert!(matches!(&updates[..], [PeerUpdate::Placed(it)] if it.links == links(1, 20)), "{updates:?}");
        assert_eq!((reader.peers().count(), reader.view.rows()), (0, 0));
    }
    assert!(node("b").receive_stored(at(20), b"nonsense", &mut Vec::new()).is_err());
}

#[test]
fn a_new_incarnation_replaces_the_old_one() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.promise(7, load(2));
    let old = flush(&mut a, at(0));
    receive(&mut b, at(0), &old);
    let mut again = started("a", 2);
    again.promise(8, load(1));
    let published = pass(&mut again, &mut b, at(10));
    let expected = [
        PeerUpdate::Promised { worker: 7, load: load(0) },
        PeerUpdate::Promised { worker: 8, load: load(1) },
    ];
    assert_eq!(published, expected);
    assert_eq!(b.receive(at(20), &old[0], &mut Vec::new()), Ok(Received::Ignored));
}

#[test]
fn a_router_with_a_clock_set_back_is_accepted_once_its_former_incarnation_is_over() {
    let (mut former, mut again, mut b) = (started("a", 9), started("a", 3), node("b"));
    former.promise(7, load(2));
    pass(&mut former, &mut b, at(0));
    again.promise(8, load(1));
    let published = flush(&mut again, at(1_000));
    let mut updates = Vec::new();
    assert_eq!(
        b.receive(at(1_000), &again.heartbeat(at(1_000)), &mut updates),
        Ok(Received::Ignored),
        "stale"
    );
    b.tick(at(3_000), &mut updates);
    assert_eq!(
        b.receive(at(3_100), &published[0], &mut updates),
        Ok(Received::Ignored),
        "the frame may come from storage"
    );
    // A heartbeat proves that the router is live.
    assert_eq!(receive(&mut b, at(3_500), &[again.heartbeat(at(3_500))]), [JOINED]);
    pass(&mut b, &mut again, at(3_500));
    assert_eq!(pass(&mut again, &mut b, at(3_520)), [PeerUpdate::Promised { worker: 8, load: load(1) }]);
    assert_eq!(b.peers().map(|it| it.incarnation.0).collect::<Vec<_>>(), [3]);
    // The same after it left.
    receive(&mut b, at(4_000), &[started("a", 9).leave()]);
    assert_eq!(
        b.receive(at(6_000), &again.heartbeat(at(6_000)), &mut updates),
        Ok(Received::Ignored),
        "stale"
    );
    assert_eq!(
        b.receive(at(7_500), &started("a", 9).heartbeat(at(7_500)), &mut updates),
        Ok(Received::Ignored),
        "it has left"
    );
    assert_eq!(receive(&mut b, at(7_500), &[again.heartbeat(at(7_500))]), [JOINED]);
}

#[test]
fn frames_with_our_own_name_are_ignored_or_rejected() {
    let mut a = started("a", 5);
    let mut receive = |mut other: Node| a.receive(at(0), &other.heartbeat(at(0)), &mut Vec::new());
    assert_eq!(receive(started("a", 5)), Ok(Received::Ignored), "our own frame");
    assert_eq!(receive(started("a", 4)), Ok(Received::Ignored), "our former incarnation");
    assert_eq!(receive(started("a", 6)), Err(FrameError::NameTaken("a".into())));
    let text = receive(started("a", 6)).unwrap_err().to_string();
    assert_eq!(text, "another router uses our name, \"a\"; give each its own (cluster.name)");
}

#[test]
fn names_are_sanitized_before_they_are_sent() {
    let mut b = node("b");
    let long = format!("line\none{}", "é".repeat(100));
    receive(&mut b, at(0), &[node(&long).heartbeat(at(0))]);
    let peer = b.peers().next().unwrap();
    assert!(peer.name.starts_with("lineoneé") && peer.name.len() <= NAME_MAX, "{}", peer.name);
    assert_eq!(peer.id, RouterId::named(&long));
    // A router without a known name is listed by its id.
    let mut c = node("c");
    c.promise(7, load(1));
    pass(&mut c, &mut b, at(0));
    let number = format!("{:016x}", RouterId::named("c").0);
    assert!(b.peers().any(|it| it.name == number));
}

#[test]
fn heartbeats_measure_lag_and_carry_counters() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.serve(123, 4);
    // 30 ms there, held for 400 ms, 50 ms back.
    let heartbeat = a.heartbeat(at(1_000));
    receive(&mut b, at(1_030), &[heartbeat]);
    let echo = b.heartbeat(at(1_430));
    receive(&mut a, at(1_480), &[echo]);
    let lag = a.peers().next().unwrap().lag;
    assert_eq!(lag, Some(Duration::from_millis(40)));
    let peer = b.peers().next().unwrap();
    assert_eq!((peer.served, peer.in_flight, peer.lag, peer.last_heard), (123, 4, None, at(1_030)));
    // An echo of a forgotten heartbeat is ignored.
    for number in 0..20 {
        a.heartbeat(at(2_000 + number));
    }
    receive(&mut a, at(9_000), &[b.heartbeat(at(9_000))]);
    assert_eq!(a.peers().next().unwrap().lag, lag);
}

#[test]
fn the_number_of_routers_is_bounded() {
    let mut a = node("a");
    for number in 1..ROUTERS_MAX {
        receive(&mut a, at(number as u64), &[node(&number.to_string()).heartbeat(at(0))]);
    }
    let heartbeat = node("one too many").heartbeat(at(100));
    let mut updates = Vec::new();
    assert_eq!(a.receive(at(100), &heartbeat, &mut updates), Err(FrameError::TooManyRouters));
    assert_eq!((a.peers().count(), a.stats().dropped), (ROUTERS_MAX - 1, 1));
    // A silent router is evicted.
    a.tick(at(3_001), &mut updates);
    assert_eq!(a.receive(at(3_001), &heartbeat, &mut updates), Ok(Received::Applied));
    assert_eq!(a.peers().count(), ROUTERS_MAX - 1);
    assert!(a.heartbeat(at(3_001)).len() < 4_096);
    // The list of departed routers is bounded, too.
    for number in 0..1_000 {
        receive(&mut a, at(3_002), &[node(&format!("left {number}")).leave()]);
    }
    a.tick(at(4_000), &mut updates);
    assert_eq!(a.peers().count(), ROUTERS_MAX - 1);
}

#[test]
fn the_number_of_workers_is_bounded_and_the_oldest_is_evicted() {
    let (mut a, mut b) = (node("a"), node("b"));
    for worker in 0..own_rows::WORKERS_MAX as u64 + 100 {
        a.promise(worker, load(1));
        a.set_facts(worker, WorkerFacts { verdict: Verdict::Ejected, rates: None });
        if worker % 1_000 == 0 {
            pass(&mut a, &mut b, at(0));
        }
    }
    pass(&mut a, &mut b, at(0));
    assert_eq!(a.stats().dropped, 100);
    assert_eq!((a.own_rows.rows(), b.view.rows()), (own_rows::WORKERS_MAX, 2 * own_rows::WORKERS_MAX));
    let (from_a, dropped) =
        (b.view.live().next().unwrap().rows.workers_with_load().count(), b.stats().dropped);
    // Workers that `a` evicted are published as removed.
    assert_eq!((from_a, dropped), (own_rows::WORKERS_MAX, 0));
}

#[test]
fn the_number_of_pins_is_bounded() {
    let (mut a, mut b) = (node("a"), node("b"));
    for session in 0..2 * PINS_MAX as u64 {
        a.pin(5, session, 70);
        if session % 9_000 == 0 {
            pass(&mut a, &mut b, at(0));
        }
    }
    pass(&mut a, &mut b, at(0));
    assert!(a.stats().rows <= PINS_MAX && b.stats().rows <= PINS_MAX);
    assert!(a.stats().dropped > 0 && b.stats().dropped > 0);
    // Everything that is left is still sent to a joining router.
    let mut c = node("c");
    receive(&mut c, at(0), &a.snapshot(at(0)));
    assert_eq!(c.stats().rows, a.stats().rows);
}

#[test]
fn a_snapshot_is_self_contained() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.promise(7, load(2));
    a.set_facts(7, WorkerFacts { verdict: Verdict::Suspect, rates: None });
    a.pin(5, 1, 7);
    a.spend(5, 1, spent(9));
    a.place(7, chain(&links(1, 20)));
    flush(&mut a, at(0));
    // Not published yet, so not in the snapshot.
    a.promise(7, load(3));
    let updates = receive(&mut b, at(0), &a.snapshot(at(0)));
    let placed = PeerPlacement { worker: 7, unit: Unit::Tokens, block: 16, units: 323, links: links(1, 20) };
    let expected = [
        PeerUpdate::Assessed { worker: 7, facts: WorkerFacts { verdict: Verdict::Suspect, rates: None } },
        PeerUpdate::Pinned { model: 5, session: 1, worker: 7 },
        PeerUpdate::Promised { worker: 7, load: load(2) },
        JOINED,
        PeerUpdate::Placed(placed),
    ];
    assert_eq!(updates, expected);
    assert_eq!(b.peers().next().unwrap().name, "a");
    assert_eq!(pass(&mut a, &mut b, at(20)), [PeerUpdate::Promised { worker: 7, load: load(3) }]);
    assert_eq!(b.stats().repairs, 0);
}

#[test]
fn missing_rows_are_requested_once_a_second_and_one_answer_serves_all() {
    let (mut a, mut b, mut c) = (node("a"), node("b"), node("c"));
    a.promise(7, load(1));
    flush(&mut a, at(0));
    let heartbeat = a.heartbeat(at(0));
    for node in [&mut b, &mut c] {
        receive(node, at(0), std::slice::from_ref(&heartbeat));
    }
    let (from_b, from_c) = (flush(&mut b, at(0)), flush(&mut c, at(0)));
    assert_eq!((from_b.len(), from_c.len()), (1, 1));
    assert_eq!(flush(&mut b, at(999)).len(), 0);
    receive(&mut a, at(10), &from_b);
    receive(&mut a, at(10), &from_c);
    let answer = flush(&mut a, at(20));
    assert_eq!(answer.len(), 1);
    for node in [&mut b, &mut c] {
        assert_eq!(receive(node, at(20), &answer), [PeerUpdate::Promised { worker: 7, load: load(1) }]);
        assert_eq!(flush(node, at(5_000)).len(), 0, "nothing is missing any more");
    }
    // A repeated request is answered after a pause.
    receive(&mut a, at(30), &from_b);
    assert!(!a.is_due(at(30)) && a.is_due(at(120)));
    assert_eq!((flush(&mut a, at(30)).len(), flush(&mut a, at(120)).len()), (0, 1));
}

#[test]
fn rows_missing_from_a_snapshot_are_removed() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.promise(7, load(1));
    a.promise(8, load(1));
    pass(&mut a, &mut b, at(0));
    a.forget(7);
    flush(&mut a, at(20));
    a.promise(9, load(1));
    // The gap shows with the next delta, which is applied anyway.
    assert_eq!(pass(&mut a, &mut b, at(40)), [PeerUpdate::Promised { worker: 9, load: load(1) }]);
    pass(&mut b, &mut a, at(60));
    assert_eq!(pass(&mut a, &mut b, at(80)), [PeerUpdate::Promised { worker: 7, load: load(0) }]);
    assert_eq!(b.view.rows(), 2);
}

/// Delivers every frame to all nodes at once until there is nothing more to send.
fn talk(nodes: &mut [&mut Node], now: Instant) -> Vec<usize> {
    let mut said = vec![0; nodes.len()];
    for _ in 0..100 {
        for from in 0..nodes.len() {
            for frame in flush(nodes[from], now) {
                said[from] += 1;
                for to in (0..nodes.len()).filter(|&to| to != from) {
                    receive(nodes[to], now, std::slice::from_ref(&frame));
                }
            }
        }
    }
    said
}

#[test]
fn a_joining_router_receives_all_rows_and_one_directory() {
    let (mut a, mut b, mut c) = (node("a"), node("b"), node("c"));
    for (node, name) in [(&mut a, 1), (&mut b, 2)] {
        node.hello(at(0));
        node.tick(at(1_000), &mut Vec::new());
        assert!(node.is_synced(), "it is alone");
        node.promise(7, load(1));
        node.place(7, chain(&links(name, 100)));
    }
    talk(&mut [&mut a, &mut b], at(1_000));
    let hello = c.hello(at(2_000));
    for node in [&mut a, &mut b] {
        receive(node, at(2_000), std::slice::from_ref(&hello));
    }
    assert!(!c.is_synced());
    let (from_a, from_b) = (flush(&mut a, at(2_010)), flush(&mut b, at(2_010)));
    let mut counts = [from_a.len(), from_b.len()];
    counts.sort_unstable();
    assert_eq!(counts, [1, 2], "rows of both, the directory of one");
    let mut updates = receive(&mut c, at(2_020), &from_a);
    assert!(!c.is_synced());
    updates.extend(receive(&mut c, at(2_020), &from_b));
    assert!(c.is_synced());
    let placed = updates.iter().filter(|it| matches!(it, PeerUpdate::Placed(_))).count();
    assert_eq!(placed, 2);
    assert!(updates.contains(&PeerUpdate::Promised { worker: 7, load: load(2) }));
    // Hello on another connection: there is nothing more to send.
    let hello = c.hello(at(3_000));
    for node in [&mut a, &mut b] {
        receive(node, at(3_000), std::slice::from_ref(&hello));
        assert_eq!(flush(node, at(3_000)).len(), 0);
    }
}

#[test]
fn if_a_router_does_not_send_its_directory_the_next_is_asked() {
    let (mut a, mut b, mut c) = (node("a"), node("b"), node("c"));
    receive(&mut a, at(0), &[b.heartbeat(at(0))]);
    receive(&mut b, at(0), &[a.heartbeat(at(0))]);
    let mut senders = Vec::new();
    let mut hello = c.hello(at(0));
    for second in 1..4 {
        for (node, name) in [(&mut a, "a"), (&mut b, "b")] {
            receive(node, at(1_000 * second), std::slice::from_ref(&hello));
            let frames = flush(node, at(1_000 * second));
            // All frames are lost but a heartbeat.
            if frames
                .iter()
                .any(|it| it[3] & !crate::frame::SYNCED == crate::frame::FrameKind::CacheDirectory as u8)
            {
                senders.push(name);
            }
            receive(&mut c, at(1_000 * second), &[node.heartbeat(at(1_000 * second))]);
        }
        c.tick(at(1_000 * second), &mut Vec::new());
        hello = flush(&mut c, at(1_000 * second)).pop().unwrap();
    }
    assert_eq!(senders.len(), 3);
    assert!(senders[0] != senders[1] && senders[0] == senders[2], "{senders:?}");
}

#[test]
fn an_unanswered_router_gives_up_eventually() {
    let (mut a, mut b) = (node("a"), node("b"));
    b.hello(at(0));
    let mut hellos = 0;
    for heartbeat in 1..40 {
        receive(&mut b, at(500 * heartbeat), &[a.heartbeat(at(500 * heartbeat))]);
        b.tick(at(500 * heartbeat), &mut Vec::new());
        hellos += flush(&mut b, at(500 * heartbeat)).len();
        if b.is_synced() {
            break;
        }
    }
    assert_eq!((hellos, b.is_synced()), (5, true));
}

#[test]
fn routers_that_start_together_sync_without_others() {
    let (mut a, mut b, mut c) = (node("a"), node("b"), node("c"));
    let hellos = [a.hello(at(0)), b.hello(at(0)), c.hello(at(0))];
    for node in [&mut a, &mut b, &mut c] {
        receive(node, at(1), &hellos);
    }
    let said = talk(&mut [&mut a, &mut b, &mut c], at(10));
    assert!(a.is_synced() && b.is_synced() && c.is_synced());
    assert!(said.iter().sum::<usize>() <= 9, "{said:?}");
    talk(&mut [&mut a, &mut b, &mut c], at(600));
    assert_eq!(talk(&mut [&mut a, &mut b, &mut c], at(2_000)), [0, 0, 0], "nothing changed");
}

#[test]
fn a_large_directory_is_sent_over_several_flushes() {
    let (mut a, mut b) = (node("a"), node("b"));
    for name in 0..300 {
        a.place(name % 5, chain(&links(name, 1_000)));
        flush(&mut a, at(0));
    }
    a.hello(at(0));
    a.tick(at(1_000), &mut Vec::new());
    receive(&mut a, at(2_000), &[b.hello(at(2_000))]);
    let mut flushes = Vec::new();
    let mut placed = 0;
    while a.is_due(at(2_000)) {
        let frames = flush(&mut a, at(2_000));
        flushes.push(frames.len());
        let updates = receive(&mut b, at(2_000), &frames);
        placed += updates.iter().filter(|it| matches!(it, PeerUpdate::Placed(_))).count();
    }
    assert_eq!((placed, b.is_synced()), (300, true));
    assert_eq!(flushes, [1 + 2, 2, 2, 2, 2, 2], "its rows, and twelve frames of the directory");
}
