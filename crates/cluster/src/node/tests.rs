//! What follows for whoever decides, case by case. The laws that hold over all cases are in `laws`.

use super::*;
use crate::row::{Fit, Seated, Unit, Verdict};

const TIGHT: Duration = Duration::from_secs(3);

fn node(name: &str) -> Node {
    born(name, 1)
}

fn born(name: &str, incarnation: u64) -> Node {
    Node::new(Settings { name: name.into(), incarnation: Incarnation(incarnation), silence_max: TIGHT })
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn load(requests: u32) -> Load {
    Load { requests, prefill_tokens: 100 * u64::from(requests), ..Load::default() }
}

fn chain(links: &[u64]) -> Chain<'_> {
    Chain { unit: Unit::Tokens, block: 16, units: 16 * links.len() as u64 + 3, links }
}

/// Links that are all different, of a prompt of this name.
fn links(name: u64, count: u64) -> Vec<u64> {
    (0..count).map(|it| maitre_base::hash::pair(name, it).max(1)).collect()
}

fn flush(node: &mut Node, now: Instant) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    node.flush(now, &mut frames);
    frames
}

#[track_caller]
fn hear(node: &mut Node, now: Instant, frames: &[Vec<u8>]) -> Vec<PeerUpdate> {
    let mut news = Vec::new();
    for frame in frames {
        assert!(frame.len() <= crate::frame::FRAME_MAX);
        node.hear(now, frame, &mut news).unwrap();
    }
    news
}

/// What the others hear of this one's next flush.
#[track_caller]
fn pass(from: &mut Node, to: &mut Node, now: Instant) -> Vec<PeerUpdate> {
    let frames = flush(from, now);
    hear(to, now, &frames)
}

const JOINED: PeerUpdate = PeerUpdate::Routers { heard: 2, known: 2 };

#[test]
fn what_others_promised_is_summed_and_told_when_it_changes() {
    let (mut a, mut b, mut c) = (node("a"), node("b"), node("c"));
    a.promise(7, load(2));
    assert_eq!(pass(&mut a, &mut c, at(0)), [PeerUpdate::Promised { worker: 7, load: load(2) }, JOINED]);
    b.promise(7, load(3));
    b.promise(8, load(1));
    let told = pass(&mut b, &mut c, at(0));
    let expected = [
        PeerUpdate::Promised { worker: 7, load: load(5) },
        PeerUpdate::Promised { worker: 8, load: load(1) },
        PeerUpdate::Routers { heard: 3, known: 3 },
    ];
    assert_eq!(told, expected);
    a.promise(7, load(0));
    assert_eq!(pass(&mut a, &mut c, at(1)), [PeerUpdate::Promised { worker: 7, load: load(3) }]);
    b.forget(7);
    assert_eq!(pass(&mut b, &mut c, at(1)), [PeerUpdate::Promised { worker: 7, load: load(0) }]);
    assert_eq!(c.view.rows(), 1);
}

#[test]
fn what_changes_back_before_a_flush_is_not_told() {
    let mut a = node("a");
    a.promise(7, load(2));
    assert_eq!(flush(&mut a, at(0)).len(), 1);
    a.promise(7, load(3));
    a.promise(7, load(2));
    assert!(!a.is_due(at(1)));
    assert_eq!(flush(&mut a, at(1)), Vec::<Vec<u8>>::new());
}

#[test]
fn chains_arrive_whole_though_only_what_is_new_is_told() {
    let (mut a, mut b) = (node("a"), node("b"));
    let all = links(1, 2_048);
    a.seat(7, chain(&all[..2_040]));
    let first = flush(&mut a, at(0));
    assert!((2_040 * 8..2_040 * 8 + 100).contains(&first[0].len()), "{}", first[0].len());
    hear(&mut b, at(0), &first);
    a.seat(7, chain(&all));
    let second = flush(&mut a, at(20));
    assert!(second[0].len() < 200, "{}", second[0].len());
    let told = hear(&mut b, at(20), &second);
    let whole = Seated { worker: 7, unit: Unit::Tokens, block: 16, units: 2_048 * 16 + 3, links: all };
    assert_eq!(told, [PeerUpdate::Seated(whole)]);
}

#[test]
fn judged() {
    let (mut a, mut b) = (node("a"), node("b"));
    let rates = |base: f32| Some((Fit { base, slope: 1e-4 }, Fit { base: 0.01, slope: 1e-3 }));
    let fit = Facts { verdict: Verdict::Fit, rates: rates(0.1) };
    let cases = [
        (Facts::default(), false, "nothing but that it is fit"),
        (fit, true, "rates appear"),
        (Facts { rates: rates(0.109), ..fit }, false, "they hardly move"),
        (Facts { rates: rates(0.111), ..fit }, true, "they move by more than a tenth"),
        (Facts { verdict: Verdict::Out, rates: rates(0.111) }, true, "the verdict changes"),
        (Facts { verdict: Verdict::Out, rates: rates(f32::NAN) }, false, "rates that are no numbers"),
        (Facts { verdict: Verdict::Fit, rates: None }, true, "the verdict changes without rates"),
    ];
    for (facts, is_told, what) in cases {
        a.judge(7, facts);
        let told = pass(&mut a, &mut b, at(0));
        let judged = told.contains(&PeerUpdate::Judged { worker: 7, facts });
        assert_eq!(judged, is_told, "{what}: {told:?}");
    }
}

fn spent(tokens: u64) -> Spent {
    Spent { requests: 1, tokens }
}

/// What was told as spent, in tokens.
fn tokens(news: &[PeerUpdate]) -> u64 {
    let tokens = news.iter().map(|it| if let PeerUpdate::Spent { more, .. } = it { more.tokens } else { 0 });
    tokens.sum()
}

#[test]
fn what_was_spent_is_counted_once_and_only_while_we_listen() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.spend(5, 1, spent(100));
    let first = flush(&mut a, at(0));
    // One who joins must not charge a tenant for hours.
    hear(&mut b, at(0), &[a.beat(at(0))]);
    assert_eq!(tokens(&hear(&mut b, at(0), &a.snapshot(at(0)))), 0, "from before we listened");
    a.spend(5, 1, spent(7));
    a.spend(5, 2, spent(30));
    assert_eq!(tokens(&pass(&mut a, &mut b, at(20))), 37, "what is more, and what is new");
    assert_eq!(tokens(&hear(&mut b, at(20), &first)), 0, "late");
    // Lost, and then told with the next: nothing is missing, nothing doubled.
    a.spend(5, 1, spent(1));
    a.spend(5, 3, spent(10));
    flush(&mut a, at(40));
    a.spend(5, 1, spent(2));
    assert_eq!(tokens(&pass(&mut a, &mut b, at(60))), 3);
    assert_eq!(tokens(&pass(&mut b, &mut a, at(60))), 0, "asks for what it lacks");
    assert_eq!(tokens(&pass(&mut a, &mut b, at(80))), 10);
    assert_eq!(b.numbers().repairs, 1);
}

#[test]
fn a_tenant_that_was_forgotten_begins_anew_and_is_not_charged_twice() {
    let (mut a, mut b) = (node("a"), node("b"));
    hear(&mut b, at(0), &[a.hello(at(0))]);
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
    assert!(a.numbers().dropped > 0 && b.numbers().dropped > 0);
    assert!(a.numbers().rows <= SPENT_MAX && b.numbers().rows <= SPENT_MAX);
}

#[test]
fn the_later_pin_holds_whoever_set_it() {
    let (mut a, mut b, mut c) = (node("a"), node("b"), node("c"));
    let pinned = |worker| PeerUpdate::Pinned { model: 5, session: 1, worker };
    a.pin(5, 1, 70);
    let told = flush(&mut a, at(0));
    assert!(hear(&mut b, at(0), &told).contains(&pinned(70)));
    // Later than what it has heard.
    b.pin(5, 1, 80);
    let later = flush(&mut b, at(20));
    assert!(hear(&mut c, at(20), &later).contains(&pinned(80)));
    assert!(!hear(&mut c, at(20), &told).contains(&pinned(70)), "the earlier one comes too late");
    assert_eq!(hear(&mut a, at(20), &later), [pinned(80), JOINED]);
    // To the worker where it sits already is no news, and to say it again costs nothing.
    a.pin(5, 1, 80);
    let again = flush(&mut a, at(40));
    assert_eq!((again.len(), hear(&mut c, at(40), &again)), (1, vec![]));
    a.pin(5, 1, 80);
    assert_eq!(flush(&mut a, at(60)).len(), 0);
    // At the same time: the same one everywhere.
    a.pin(5, 2, 70);
    b.stamp = a.stamp - 1;
    b.pin(5, 2, 80);
    let (of_a, of_b) = (flush(&mut a, at(80)), flush(&mut b, at(80)));
    hear(&mut a, at(80), &of_b);
    hear(&mut b, at(80), &of_a);
    let key = own::key(5, 2);
    assert_eq!(a.view.pin(key, a.our_pin(key)), b.view.pin(key, b.our_pin(key)));
}

#[test]
fn a_bye_takes_all_rows_along_and_what_comes_later_is_late() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.promise(7, load(2));
    let told = flush(&mut a, at(0));
    hear(&mut b, at(0), &told);
    let left =
        [PeerUpdate::Promised { worker: 7, load: load(0) }, PeerUpdate::Routers { heard: 1, known: 1 }];
    assert_eq!(hear(&mut b, at(10), &[a.bye()]), left);
    let mut news = Vec::new();
    assert_eq!(b.hear(at(20), &told[0], &mut news), Ok(Heard::Ignored));
    assert_eq!(b.hear(at(20), &a.bye(), &mut news), Ok(Heard::Ignored));
    assert_eq!((news, b.view.rows(), b.peers().count()), (vec![], 0, 0));
    // Its next life is another matter.
    assert_eq!(hear(&mut b, at(30), &[born("a", 2).beat(at(30))]), [JOINED]);
}

#[test]
fn the_silent_are_lost_then_forgotten_and_may_come_back() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.promise(7, load(2));
    a.spend(5, 1, spent(100));
    pass(&mut a, &mut b, at(0));
    let tick = |node: &mut Node, millis| {
        let mut news = Vec::new();
        node.tick(at(millis), &mut news);
        news
    };
    assert_eq!(tick(&mut b, 2_999), []);
    let lost =
        [PeerUpdate::Promised { worker: 7, load: load(0) }, PeerUpdate::Routers { heard: 1, known: 2 }];
    assert_eq!(tick(&mut b, 3_000), lost);
    assert_eq!(b.peers().map(|it| it.standing).collect::<Vec<_>>(), [PeerState::Lost]);
    // It comes back, and what it said while nobody heard is asked for, but not charged.
    a.spend(5, 1, spent(50));
    flush(&mut a, at(4_000));
    assert_eq!(hear(&mut b, at(5_000), &[a.beat(at(5_000))]), [JOINED]);
    pass(&mut b, &mut a, at(5_000));
    assert_eq!(pass(&mut a, &mut b, at(5_000)), [PeerUpdate::Promised { worker: 7, load: load(2) }]);
    a.spend(5, 1, spent(3));
    assert_eq!(tokens(&pass(&mut a, &mut b, at(5_020))), 3);
    tick(&mut b, 9_000);
    assert_eq!(tick(&mut b, 604_000), []);
    assert_eq!(tick(&mut b, 605_020), [PeerUpdate::Routers { heard: 1, known: 1 }]);
    assert_eq!(b.peers().count(), 0);
}

#[test]
fn what_was_kept_of_one_who_fell_silent_does_not_bring_it_back() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.promise(7, load(2));
    pass(&mut a, &mut b, at(0));
    let (kept, mut news) = (a.snapshot(at(0)), Vec::new());
    b.tick(at(3_000), &mut news);
    for frame in &kept {
        assert_eq!(b.hear(at(4_000), frame, &mut news), Ok(Heard::Ignored));
    }
    assert_eq!((b.view.rows(), b.view.live().count()), (0, 0));
    // If it was only suspended, it says so itself.
    assert_eq!(hear(&mut b, at(5_000), &[a.beat(at(5_000))]), [JOINED]);
    pass(&mut b, &mut a, at(5_000));
    assert_eq!(pass(&mut a, &mut b, at(5_000)), [PeerUpdate::Promised { worker: 7, load: load(2) }]);
}

#[test]
fn of_what_was_kept_only_the_book_is_believed() {
    let mut a = node("a");
    a.promise(7, load(3));
    a.spend(1, 2, spent(100));
    a.pin(1, 5, 7);
    a.seat(7, chain(&links(1, 20)));
    flush(&mut a, at(0));
    let kept = a.snapshot(at(10));
    // Whoever reads it, and be it the router itself in its next life.
    for name in ["a", "b"] {
        let (mut reader, mut news) = (born(name, 9), Vec::new());
        for frame in &kept {
            reader.recall(at(20), frame, &mut news).unwrap();
        }
        assert!(matches!(&news[..], [PeerUpdate::Seated(it)] if it.links == links(1, 20)), "{news:?}");
        assert_eq!((reader.peers().count(), reader.view.rows()), (0, 0));
    }
    assert!(node("b").recall(at(20), b"nonsense", &mut Vec::new()).is_err());
}

#[test]
fn a_new_life_ends_the_old_one() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.promise(7, load(2));
    let old = flush(&mut a, at(0));
    hear(&mut b, at(0), &old);
    let mut again = born("a", 2);
    again.promise(8, load(1));
    let told = pass(&mut again, &mut b, at(10));
    let expected = [
        PeerUpdate::Promised { worker: 7, load: load(0) },
        PeerUpdate::Promised { worker: 8, load: load(1) },
    ];
    assert_eq!(told, expected);
    assert_eq!(b.hear(at(20), &old[0], &mut Vec::new()), Ok(Heard::Ignored));
}

#[test]
fn a_router_whose_clock_was_set_back_is_heard_once_its_former_life_is_over() {
    let (mut former, mut again, mut b) = (born("a", 9), born("a", 3), node("b"));
    former.promise(7, load(2));
    pass(&mut former, &mut b, at(0));
    again.promise(8, load(1));
    let told = flush(&mut again, at(1_000));
    let mut news = Vec::new();
    assert_eq!(b.hear(at(1_000), &again.beat(at(1_000)), &mut news), Ok(Heard::Ignored), "it is late");
    b.tick(at(3_000), &mut news);
    assert_eq!(b.hear(at(3_100), &told[0], &mut news), Ok(Heard::Ignored), "it may have been kept somewhere");
    // A sign of life is of one who lives.
    assert_eq!(hear(&mut b, at(3_500), &[again.beat(at(3_500))]), [JOINED]);
    pass(&mut b, &mut again, at(3_500));
    assert_eq!(pass(&mut again, &mut b, at(3_520)), [PeerUpdate::Promised { worker: 8, load: load(1) }]);
    assert_eq!(b.peers().map(|it| it.incarnation.0).collect::<Vec<_>>(), [3]);
    // The same after a goodbye.
    hear(&mut b, at(4_000), &[born("a", 9).bye()]);
    assert_eq!(b.hear(at(6_000), &again.beat(at(6_000)), &mut news), Ok(Heard::Ignored), "it is late");
    assert_eq!(
        b.hear(at(7_500), &born("a", 9).beat(at(7_500)), &mut news),
        Ok(Heard::Ignored),
        "it has left"
    );
    assert_eq!(hear(&mut b, at(7_500), &[again.beat(at(7_500))]), [JOINED]);
}

#[test]
fn our_own_name_is_heard_with_care() {
    let mut a = born("a", 5);
    let mut hear = |mut other: Node| a.hear(at(0), &other.beat(at(0)), &mut Vec::new());
    assert_eq!(hear(born("a", 5)), Ok(Heard::Ignored), "ourselves");
    assert_eq!(hear(born("a", 4)), Ok(Heard::Ignored), "our past life");
    assert_eq!(hear(born("a", 6)), Err(Unheard::Namesake("a".into())));
    let text = hear(born("a", 6)).unwrap_err().to_string();
    assert_eq!(text, "another router has our name, \"a\"; give each its own (cluster.name)");
}

#[test]
fn names_travel_as_they_may() {
    let mut b = node("b");
    let long = format!("line\none{}", "é".repeat(100));
    hear(&mut b, at(0), &[node(&long).beat(at(0))]);
    let peer = b.peers().next().unwrap();
    assert!(peer.name.starts_with("lineoneé") && peer.name.len() <= NAME_MAX, "{}", peer.name);
    assert_eq!(peer.id, RouterId::named(&long));
    // One that has not told its name goes by its number.
    let mut c = node("c");
    c.promise(7, load(1));
    pass(&mut c, &mut b, at(0));
    let number = format!("{:016x}", RouterId::named("c").0);
    assert!(b.peers().any(|it| it.name == number));
}

#[test]
fn beats_tell_how_long_the_way_is_and_what_is_served() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.serve(123, 4);
    // There in 30 ms, kept for 400, back in 50.
    let beat = a.beat(at(1_000));
    hear(&mut b, at(1_030), &[beat]);
    let echo = b.beat(at(1_430));
    hear(&mut a, at(1_480), &[echo]);
    let lag = a.peers().next().unwrap().lag;
    assert_eq!(lag, Some(Duration::from_millis(40)));
    let peer = b.peers().next().unwrap();
    assert_eq!((peer.served, peer.open, peer.lag, peer.heard), (123, 4, None, at(1_030)));
    // An echo of a beat that is forgotten says nothing.
    for number in 0..20 {
        a.beat(at(2_000 + number));
    }
    hear(&mut a, at(9_000), &[b.beat(at(9_000))]);
    assert_eq!(a.peers().next().unwrap().lag, lag);
}

#[test]
fn no_more_routers_than_there_may_be() {
    let mut a = node("a");
    for number in 1..ROUTERS_MAX {
        hear(&mut a, at(number as u64), &[node(&number.to_string()).beat(at(0))]);
    }
    let beat = node("one too many").beat(at(100));
    let mut news = Vec::new();
    assert_eq!(a.hear(at(100), &beat, &mut news), Err(Unheard::Crowded));
    assert_eq!((a.peers().count(), a.numbers().dropped), (ROUTERS_MAX - 1, 1));
    // One that has fallen silent makes way.
    a.tick(at(3_001), &mut news);
    assert_eq!(a.hear(at(3_001), &beat, &mut news), Ok(Heard::Taken));
    assert_eq!(a.peers().count(), ROUTERS_MAX - 1);
    assert!(a.beat(at(3_001)).len() < 4_096);
    // Nor more farewells.
    for number in 0..1_000 {
        hear(&mut a, at(3_002), &[node(&format!("left {number}")).bye()]);
    }
    a.tick(at(4_000), &mut news);
    assert_eq!(a.peers().count(), ROUTERS_MAX - 1);
}

#[test]
fn no_more_workers_than_there_may_be_and_the_oldest_go() {
    let (mut a, mut b) = (node("a"), node("b"));
    for worker in 0..own::WORKERS_MAX as u64 + 100 {
        a.promise(worker, load(1));
        a.judge(worker, Facts { verdict: Verdict::Out, rates: None });
        if worker % 1_000 == 0 {
            pass(&mut a, &mut b, at(0));
        }
    }
    pass(&mut a, &mut b, at(0));
    assert_eq!(a.numbers().dropped, 100);
    assert_eq!((a.own.rows(), b.view.rows()), (own::WORKERS_MAX, 2 * own::WORKERS_MAX));
    let (of_a, dropped) = (b.view.live().next().unwrap().rows.loaded().count(), b.numbers().dropped);
    // Those that a dropped it told as gone.
    assert_eq!((of_a, dropped), (own::WORKERS_MAX, 0));
}

#[test]
fn no_more_pins_than_there_may_be() {
    let (mut a, mut b) = (node("a"), node("b"));
    for session in 0..2 * PINS_MAX as u64 {
        a.pin(5, session, 70);
        if session % 9_000 == 0 {
            pass(&mut a, &mut b, at(0));
        }
    }
    pass(&mut a, &mut b, at(0));
    assert!(a.numbers().rows <= PINS_MAX && b.numbers().rows <= PINS_MAX);
    assert!(a.numbers().dropped > 0 && b.numbers().dropped > 0);
    // All that is left is still told to one who joins.
    let mut c = node("c");
    hear(&mut c, at(0), &a.snapshot(at(0)));
    assert_eq!(c.numbers().rows, a.numbers().rows);
}

#[test]
fn a_snapshot_stands_for_itself() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.promise(7, load(2));
    a.judge(7, Facts { verdict: Verdict::Doubted, rates: None });
    a.pin(5, 1, 7);
    a.spend(5, 1, spent(9));
    a.seat(7, chain(&links(1, 20)));
    flush(&mut a, at(0));
    // Not told yet, so not in it.
    a.promise(7, load(3));
    let news = hear(&mut b, at(0), &a.snapshot(at(0)));
    let seated = Seated { worker: 7, unit: Unit::Tokens, block: 16, units: 323, links: links(1, 20) };
    let expected = [
        PeerUpdate::Judged { worker: 7, facts: Facts { verdict: Verdict::Doubted, rates: None } },
        PeerUpdate::Pinned { model: 5, session: 1, worker: 7 },
        PeerUpdate::Promised { worker: 7, load: load(2) },
        JOINED,
        PeerUpdate::Seated(seated),
    ];
    assert_eq!(news, expected);
    assert_eq!(b.peers().next().unwrap().name, "a");
    assert_eq!(pass(&mut a, &mut b, at(20)), [PeerUpdate::Promised { worker: 7, load: load(3) }]);
    assert_eq!(b.numbers().repairs, 0);
}

#[test]
fn what_is_missing_is_asked_for_once_a_second_and_told_once_to_all() {
    let (mut a, mut b, mut c) = (node("a"), node("b"), node("c"));
    a.promise(7, load(1));
    flush(&mut a, at(0));
    let beat = a.beat(at(0));
    for node in [&mut b, &mut c] {
        hear(node, at(0), std::slice::from_ref(&beat));
    }
    let (of_b, of_c) = (flush(&mut b, at(0)), flush(&mut c, at(0)));
    assert_eq!((of_b.len(), of_c.len()), (1, 1));
    assert_eq!(flush(&mut b, at(999)).len(), 0);
    hear(&mut a, at(10), &of_b);
    hear(&mut a, at(10), &of_c);
    let answer = flush(&mut a, at(20));
    assert_eq!(answer.len(), 1);
    for node in [&mut b, &mut c] {
        assert_eq!(hear(node, at(20), &answer), [PeerUpdate::Promised { worker: 7, load: load(1) }]);
        assert_eq!(flush(node, at(5_000)).len(), 0, "nothing is missing any more");
    }
    // Asked again right away it waits a little.
    hear(&mut a, at(30), &of_b);
    assert!(!a.is_due(at(30)) && a.is_due(at(120)));
    assert_eq!((flush(&mut a, at(30)).len(), flush(&mut a, at(120)).len()), (0, 1));
}

#[test]
fn rows_that_a_snapshot_does_not_name_are_gone() {
    let (mut a, mut b) = (node("a"), node("b"));
    a.promise(7, load(1));
    a.promise(8, load(1));
    pass(&mut a, &mut b, at(0));
    a.forget(7);
    flush(&mut a, at(20));
    a.promise(9, load(1));
    // The loss shows with the next delta, which is heard anyway.
    assert_eq!(pass(&mut a, &mut b, at(40)), [PeerUpdate::Promised { worker: 9, load: load(1) }]);
    pass(&mut b, &mut a, at(60));
    assert_eq!(pass(&mut a, &mut b, at(80)), [PeerUpdate::Promised { worker: 7, load: load(0) }]);
    assert_eq!(b.view.rows(), 2);
}

/// A cluster in which everybody hears everything at once, until nobody has more to say.
fn talk(nodes: &mut [&mut Node], now: Instant) -> Vec<usize> {
    let mut said = vec![0; nodes.len()];
    for _ in 0..100 {
        for from in 0..nodes.len() {
            for frame in flush(nodes[from], now) {
                said[from] += 1;
                for to in (0..nodes.len()).filter(|&to| to != from) {
                    hear(nodes[to], now, std::slice::from_ref(&frame));
                }
            }
        }
    }
    said
}

#[test]
fn who_joins_hears_everybody_s_rows_and_one_book() {
    let (mut a, mut b, mut c) = (node("a"), node("b"), node("c"));
    for (node, name) in [(&mut a, 1), (&mut b, 2)] {
        node.hello(at(0));
        node.tick(at(1_000), &mut Vec::new());
        assert!(node.is_warm(), "there is nobody");
        node.promise(7, load(1));
        node.seat(7, chain(&links(name, 100)));
    }
    talk(&mut [&mut a, &mut b], at(1_000));
    let hello = c.hello(at(2_000));
    for node in [&mut a, &mut b] {
        hear(node, at(2_000), std::slice::from_ref(&hello));
    }
    assert!(!c.is_warm());
    let (of_a, of_b) = (flush(&mut a, at(2_010)), flush(&mut b, at(2_010)));
    let mut counts = [of_a.len(), of_b.len()];
    counts.sort_unstable();
    assert_eq!(counts, [1, 2], "rows of both, the book of one");
    let mut news = hear(&mut c, at(2_020), &of_a);
    assert!(!c.is_warm());
    news.extend(hear(&mut c, at(2_020), &of_b));
    assert!(c.is_warm());
    let seated = news.iter().filter(|it| matches!(it, PeerUpdate::Seated(_))).count();
    assert_eq!(seated, 2);
    assert!(news.contains(&PeerUpdate::Promised { worker: 7, load: load(2) }));
    // Hello again, as on every connection: there is nothing more to say.
    let hello = c.hello(at(3_000));
    for node in [&mut a, &mut b] {
        hear(node, at(3_000), std::slice::from_ref(&hello));
        assert_eq!(flush(node, at(3_000)).len(), 0);
    }
}

#[test]
fn if_one_does_not_tell_its_book_the_next_is_asked() {
    let (mut a, mut b, mut c) = (node("a"), node("b"), node("c"));
    hear(&mut a, at(0), &[b.beat(at(0))]);
    hear(&mut b, at(0), &[a.beat(at(0))]);
    let mut tellers = Vec::new();
    let mut hello = c.hello(at(0));
    for second in 1..4 {
        for (node, name) in [(&mut a, "a"), (&mut b, "b")] {
            hear(node, at(1_000 * second), std::slice::from_ref(&hello));
            let frames = flush(node, at(1_000 * second));
            // All of it is lost but a sign of life.
            if frames.iter().any(|it| it[3] & !crate::frame::WARM == crate::frame::Kind::CacheDirectory as u8)
            {
                tellers.push(name);
            }
            hear(&mut c, at(1_000 * second), &[node.beat(at(1_000 * second))]);
        }
        c.tick(at(1_000 * second), &mut Vec::new());
        hello = flush(&mut c, at(1_000 * second)).pop().unwrap();
    }
    assert_eq!(tellers.len(), 3);
    assert!(tellers[0] != tellers[1] && tellers[0] == tellers[2], "{tellers:?}");
}

#[test]
fn who_is_not_answered_gives_up_in_the_end() {
    let (mut a, mut b) = (node("a"), node("b"));
    b.hello(at(0));
    let mut hellos = 0;
    for beat in 1..40 {
        hear(&mut b, at(500 * beat), &[a.beat(at(500 * beat))]);
        b.tick(at(500 * beat), &mut Vec::new());
        hellos += flush(&mut b, at(500 * beat)).len();
        if b.is_warm() {
            break;
        }
    }
    assert_eq!((hellos, b.is_warm()), (5, true));
}

#[test]
fn those_who_start_together_need_nobody_else() {
    let (mut a, mut b, mut c) = (node("a"), node("b"), node("c"));
    let hellos = [a.hello(at(0)), b.hello(at(0)), c.hello(at(0))];
    for node in [&mut a, &mut b, &mut c] {
        hear(node, at(1), &hellos);
    }
    let said = talk(&mut [&mut a, &mut b, &mut c], at(10));
    assert!(a.is_warm() && b.is_warm() && c.is_warm());
    assert!(said.iter().sum::<usize>() <= 9, "{said:?}");
    talk(&mut [&mut a, &mut b, &mut c], at(600));
    assert_eq!(talk(&mut [&mut a, &mut b, &mut c], at(2_000)), [0, 0, 0], "nothing changed");
}

#[test]
fn a_large_book_is_told_in_portions() {
    let (mut a, mut b) = (node("a"), node("b"));
    for name in 0..300 {
        a.seat(name % 5, chain(&links(name, 1_000)));
        flush(&mut a, at(0));
    }
    a.hello(at(0));
    a.tick(at(1_000), &mut Vec::new());
    hear(&mut a, at(2_000), &[b.hello(at(2_000))]);
    let mut flushes = Vec::new();
    let mut seated = 0;
    while a.is_due(at(2_000)) {
        let frames = flush(&mut a, at(2_000));
        flushes.push(frames.len());
        let news = hear(&mut b, at(2_000), &frames);
        seated += news.iter().filter(|it| matches!(it, PeerUpdate::Seated(_))).count();
    }
    assert_eq!((seated, b.is_warm()), (300, true));
    assert_eq!(flushes, [1 + 2, 2, 2, 2, 2, 2], "its rows, and twelve frames of the book");
}
