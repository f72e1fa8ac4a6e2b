//! The rules of the queue, one by one; `laws.rs` has what holds for any input.

mod laws;
mod oracle;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const AGING: Duration = Duration::from_secs(10);

/// A queue of this many classes, each with this much room.
fn classes(count: usize, requests_max: u32, tokens_max: u64) -> Vec<Class> {
    let class = Class {
        name: String::new(),
        requests_max,
        tokens_max,
        deadline: None,
        reserve: 0.0,
        continues: None,
        hedges: None,
    };
    vec![class; count]
}

fn queue() -> WaitQueue {
    WaitQueue::new(&classes(3, 1_000, 1_000_000), AGING)
}

fn at(seconds: u64) -> Instant {
    Instant::from_millis(seconds * 1_000)
}

/// A request of class 1 and tenant 1, a hundred tokens, enqueued at its number in milliseconds.
fn entry(request: u64) -> QueueEntry {
    QueueEntry {
        request: RequestId(request),
        class: ClassId(1),
        tenant: TenantId(1),
        weight: 1.0,
        tokens: 100,
        cost: 100.0,
        since: Instant::from_millis(request),
        latest: None,
    }
}

fn of(tenant: u64, request: u64) -> QueueEntry {
    QueueEntry { tenant: TenantId(tenant), ..entry(request) }
}

fn in_class(class: u8, request: u64) -> QueueEntry {
    QueueEntry { class: ClassId(class), ..entry(request) }
}

fn next(queue: &WaitQueue, now: Instant) -> Vec<u64> {
    let mut found = Vec::new();
    queue.next(now, ClassMask::ALL, &mut found);
    found.iter().map(|it| it.0).collect()
}

/// Dequeues the first request, if there is one.
fn step(queue: &mut WaitQueue, now: Instant) -> Option<QueueEntry> {
    let first = *next(queue, now).first()?;
    queue.dequeue(now, RequestId(first), &[])
}

#[track_caller]
fn enqueue(queue: &mut WaitQueue, entries: impl IntoIterator<Item = QueueEntry>) {
    for entry in entries {
        assert_eq!(queue.enqueue(entry), Ok(None), "{entry:?}");
    }
}

/// Dequeues all requests in order.
#[track_caller]
fn check(entries: &[QueueEntry], expected: &[u64]) {
    let mut queue = queue();
    enqueue(&mut queue, entries.iter().copied());
    let gone: Vec<u64> =
        std::iter::from_fn(|| step(&mut queue, Instant::ZERO)).map(|it| it.request.0).collect();
    assert_eq!(gone, expected, "{entries:?}");
    assert_empty(&queue);
}

#[track_caller]
fn assert_empty(queue: &WaitQueue) {
    assert!(queue.is_empty() && queue.tenants() == 0 && queue.earliest_deadline().is_none(), "{queue:?}");
    for class in 0..3 {
        assert_eq!(queue.waiting(ClassId(class)), Waiting::default());
        assert_eq!(queue.cost_ahead(ClassId(class)), 0.0);
    }
}

#[test]
fn higher_classes_go_first() {
    check(&[in_class(2, 1), in_class(0, 2), in_class(1, 3), in_class(0, 4)], &[2, 4, 3, 1]);
}

#[test]
fn within_a_tenant_the_earliest_deadline_goes_then_the_oldest() {
    let until = |request, seconds| QueueEntry { latest: Some(at(seconds)), ..entry(request) };
    check(&[entry(1), until(2, 9), until(3, 5), entry(4), until(5, 9)], &[3, 2, 5, 1, 4]);
}

/// With a thousand workers, the first request that waits for one of them may have a thousand others before it.
#[test]
fn the_first_request_that_fits_is_found_behind_thousands_that_do_not() {
    let mut queue = WaitQueue::new(&classes(3, 10_000, u64::MAX), AGING);
    enqueue(&mut queue, (0..8_000).map(entry));
    let mut found = Vec::new();
    queue.next_matching(Instant::ZERO, ClassMask::ALL, |it| it.0 % 1_000 == 999, &mut found);
    assert_eq!(found, [RequestId(999)]);
}

/// The same if each request has its own tenant, and if the earlier tenants have more requests each.
#[test]
fn the_first_request_that_fits_is_found_behind_thousands_of_other_tenants() {
    for each in [1, 3] {
        let mut queue = WaitQueue::new(&classes(3, 10_000, u64::MAX), AGING);
        enqueue(&mut queue, (0..8_000).map(|it| of(it / each, it)));
        let mut found = Vec::new();
        queue.next_matching(Instant::ZERO, ClassMask::ALL, |it| it.0 % 1_000 == 999, &mut found);
        assert_eq!(found, [RequestId(999)], "{each} each");
    }
}

#[test]
fn a_recalled_request_regains_its_position() {
    check(&[entry(1), entry(2), QueueEntry { since: Instant::ZERO, ..entry(9) }], &[9, 1, 2]);
}

#[test]
fn equal_tenants_take_turns_however_many_each_sends() {
    check(&[of(1, 1), of(1, 2), of(1, 3), of(2, 4), of(2, 5)], &[1, 4, 2, 5, 3]);
}

#[test]
fn at_equal_times_the_tenant_whose_oldest_request_came_first_goes() {
    let until = |seconds, entry| QueueEntry { latest: Some(at(seconds)), ..entry };
    let since = |millis, entry| QueueEntry { since: Instant::from_millis(millis), ..entry };
    // With one request each, the numbers of tenants do not matter.
    check(&[of(6, 1), of(1, 2), of(5, 3), of(2, 4), of(4, 5), of(3, 6)], &[1, 2, 3, 4, 5, 6]);
    check(&[of(1, 1), of(2, 2), of(3, 3), of(4, 4)], &[1, 2, 3, 4]);
    // The same holds in each round.
    check(&[of(2, 1), of(1, 2), of(1, 3), of(2, 4), of(1, 5), of(2, 6)], &[1, 2, 3, 4, 5, 6]);
    // Weights do not change that.
    check(&[QueueEntry { weight: 0.5, ..of(2, 1) }, QueueEntry { weight: 3.0, ..of(1, 2) }], &[1, 2]);
    // The oldest counts, though another of the same tenant goes first.
    check(&[of(2, 1), of(1, 2), until(9, of(2, 3))], &[3, 2, 1]);
    check(&[of(1, 1), of(2, 2), until(9, of(1, 3))], &[3, 2, 1]);
    // Two that came at the same moment go in the order of their numbers.
    check(&[since(7, of(2, 1)), since(7, of(1, 2))], &[1, 2]);
    // A request that was taken back came before those that joined meanwhile.
    check(&[of(2, 5), of(1, 6), since(0, of(9, 9))], &[9, 5, 6]);
}

/// The same when the time of the class has moved on since it first joined.
#[test]
fn a_recalled_request_regains_its_position_among_tenants() {
    let mut queue = queue();
    enqueue(&mut queue, (1..=4).map(|it| of(10 - it, it)));
    let first = step(&mut queue, Instant::ZERO).unwrap();
    for request in 5..8 {
        enqueue(&mut queue, [of(20 - request, request)]);
        step(&mut queue, Instant::ZERO);
    }
    queue.correct(first.tenant, 1.0, -100.0);
    enqueue(&mut queue, [first]);
    assert_eq!(next(&queue, Instant::ZERO), [1, 5, 6, 7]);
}

#[test]
fn cheap_requests_get_more_turns_than_dear_ones() {
    let cheap = |request| QueueEntry { cost: 25.0, ..of(2, request) };
    check(&[of(1, 1), of(1, 2), cheap(3), cheap(4), cheap(5), cheap(6), cheap(7)], &[1, 3, 4, 5, 6, 2, 7]);
}

#[test]
fn requests_that_cost_nothing_get_no_more_turns_than_a_token_each() {
    let free = |request| QueueEntry { cost: 0.0, ..of(1, request) };
    let other = QueueEntry { cost: 1.0, ..of(2, 4) };
    check(&[free(1), free(2), free(3), other], &[1, 4, 2, 3]);
}

#[test]
fn work_in_one_class_is_charged_in_the_others_where_the_tenant_waits() {
    // Tenant 1 has had its turn in the first class when the second class is served.
    let first = QueueEntry { tenant: TenantId(1), ..in_class(0, 1) };
    check(&[first, of(1, 2), of(2, 3), of(2, 4)], &[1, 3, 2, 4]);
}

#[test]
fn a_new_tenant_does_not_wait_behind_a_backlog_below_a_busy_class() {
    let mut queue = queue();
    enqueue(&mut queue, (1..=50).map(|it| of(1, it)));
    for request in 100..200 {
        enqueue(&mut queue, [QueueEntry { tenant: TenantId(2), ..in_class(0, request) }]);
        step(&mut queue, Instant::ZERO);
    }
    enqueue(&mut queue, [of(3, 300)]);
    assert_eq!(next(&queue, Instant::ZERO)[..2], [1, 300]);
}

#[test]
fn a_new_tenant_does_not_wait_until_one_that_is_far_behind_has_caught_up() {
    let mut queue = queue();
    enqueue(&mut queue, [QueueEntry { cost: 1e6, ..of(1, 1) }]);
    enqueue(&mut queue, (2..=50).map(|it| of(2, it)));
    step(&mut queue, Instant::ZERO);
    enqueue(&mut queue, [of(3, 300)]);
    assert_eq!(next(&queue, Instant::ZERO)[..4], [2, 3, 4, 300]);
}

#[test]
fn a_tenant_that_owes_is_remembered_until_the_class_has_caught_up() {
    let mut queue = queue();
    enqueue(&mut queue, [QueueEntry { cost: 250.0, ..of(1, 1) }, of(2, 2), of(2, 3), of(2, 4), of(2, 5)]);
    assert_eq!(step(&mut queue, Instant::ZERO).unwrap().request.0, 1);
    assert_eq!(queue.tenants(), 2);
    enqueue(&mut queue, [of(1, 9)]);
    assert_eq!(next(&queue, Instant::ZERO), [2, 3, 4, 9, 5]);
    queue.cancel(RequestId(9));
    for _ in 0..3 {
        step(&mut queue, Instant::ZERO);
    }
    // At 300 the class has passed it.
    step(&mut queue, Instant::ZERO);
    assert_empty(&queue);
}

#[test]
fn corrections_change_the_order_of_tenants() {
    let mut queue = queue();
    enqueue(&mut queue, [of(1, 1), of(1, 2), of(2, 3), of(2, 4)]);
    step(&mut queue, Instant::ZERO);
    assert_eq!(next(&queue, Instant::ZERO), [3, 2, 4]);
    // It cost nothing after all; but what was never charged is not given back.
    queue.correct(TenantId(1), 1.0, -100.0);
    queue.correct(TenantId(1), 1.0, -1e9);
    assert_eq!(next(&queue, Instant::ZERO), [2, 3, 4]);
    queue.correct(TenantId(1), 1.0, 150.0);
    assert_eq!(next(&queue, Instant::ZERO), [3, 4, 2]);
    queue.correct(TenantId(77), 1.0, 150.0);
    queue.correct(TenantId(1), 1.0, f64::NAN);
    assert_eq!(next(&queue, Instant::ZERO), [3, 4, 2]);
}

#[test]
fn closed_classes_are_not_shown() {
    let mut queue = queue();
    enqueue(&mut queue, [in_class(0, 1), in_class(1, 2), in_class(2, 3)]);
    let mut found = vec![RequestId(99)];
    queue.next(Instant::ZERO, ClassMask::NONE.with(ClassId(0)).with(ClassId(2)), &mut found);
    assert_eq!(found, [RequestId(1), RequestId(3)]);
    queue.next(Instant::ZERO, ClassMask::NONE, &mut found);
    assert_eq!(found, []);
}

#[test]
fn a_class_out_of_range_is_in_no_set() {
    assert!(ClassMask::ALL.has(ClassId(7)) && !ClassMask::ALL.has(ClassId(8)));
    assert_eq!(ClassMask::NONE.with(ClassId(200)), ClassMask::NONE);
    assert_eq!(queue().enqueue(in_class(3, 1)), Err(ClassFull { class: ClassId(3) }));
    assert_eq!(queue().waiting(ClassId(3)), Waiting::default());
}

#[test]
fn the_list_is_limited_to_look() {
    let mut queue = queue();
    enqueue(&mut queue, (0..20).map(|it| of(it % 3, it)));
    assert_eq!(next(&queue, Instant::ZERO), [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_request_overtaken_too_often_ends_the_list() {
    let mut queue = queue();
    enqueue(&mut queue, (0..100).map(entry));
    // The second does not fit: all others overtake it.
    step(&mut queue, Instant::ZERO);
    for other in 2..2 + u64::from(OVERTAKEN_MAX) {
        let shown = next(&queue, Instant::ZERO);
        assert_eq!(shown[..2], [1, other]);
        queue.dequeue(Instant::ZERO, RequestId(other), &[RequestId(1)]);
    }
    assert_eq!(next(&queue, Instant::ZERO), [1]);
    queue.dequeue(Instant::ZERO, RequestId(1), &[]);
    assert_eq!(next(&queue, Instant::ZERO).len(), LOOK);
}

#[test]
fn requests_ahead_of_a_barrier_still_go() {
    let mut queue = queue();
    enqueue(&mut queue, [in_class(2, 1), in_class(2, 2)]);
    for request in 100..100 + u64::from(OVERTAKEN_MAX) {
        enqueue(&mut queue, [in_class(2, request)]);
        queue.dequeue(Instant::ZERO, RequestId(request), &[RequestId(1)]);
    }
    enqueue(&mut queue, [in_class(0, 500)]);
    assert_eq!(next(&queue, Instant::ZERO), [500, 1]);
}

#[test]
fn aged_requests_go_first_after_ten_times_their_cost() {
    let mut queue = queue();
    enqueue(&mut queue, [in_class(2, 1)]);
    enqueue(&mut queue, (100..150).map(|it| in_class(0, it)));
    let gone = |queue: &mut WaitQueue, now| step(queue, now).unwrap().request.0;
    // Not aged yet: nothing is earned.
    for request in 100..120 {
        assert_eq!(gone(&mut queue, at(9)), request);
    }
    for request in 120..130 {
        assert_eq!(gone(&mut queue, at(11)), request);
    }
    assert_eq!(next(&queue, at(11))[..2], [1, 130]);
    assert_eq!(gone(&mut queue, at(11)), 1);
    assert_eq!(gone(&mut queue, at(11)), 130);
}

#[test]
fn overtaking_a_higher_class_that_does_not_fit_costs_no_credit() {
    let mut queue = queue();
    enqueue(&mut queue, [in_class(2, 1), in_class(2, 2)]);
    enqueue(&mut queue, (100..150).map(|it| in_class(0, it)));
    for _ in 0..10 {
        step(&mut queue, at(11));
    }
    // The first has aged and has the credit, but does not fit, and neither does the first of the higher
    // class.
    queue.dequeue(at(11), RequestId(2), &[RequestId(1), RequestId(110)]);
    assert_eq!(next(&queue, at(11))[..2], [1, 110]);
}

#[test]
fn requests_whose_latest_moment_has_passed_expire() {
    let mut queue = queue();
    let until = |request, seconds| QueueEntry { latest: Some(at(seconds)), ..entry(request) };
    enqueue(&mut queue, [until(1, 7), until(2, 5), entry(3), until(4, 6)]);
    assert_eq!(queue.earliest_deadline(), Some(at(5)));
    let mut late = Vec::new();
    queue.expire(at(6), usize::MAX, &mut late);
    assert_eq!(late.iter().map(|it| it.request.0).collect::<Vec<_>>(), [2]);
    queue.expire(at(6) + SECOND, usize::MAX, &mut late);
    assert_eq!(late.iter().map(|it| it.request.0).collect::<Vec<_>>(), [2, 4]);
    assert_eq!((queue.earliest_deadline(), queue.len()), (Some(at(7)), 2));
}

#[test]
fn queued_work_is_counted_by_class() {
    let mut queue = queue();
    enqueue(&mut queue, [in_class(0, 1), in_class(1, 2), in_class(1, 3), in_class(2, 4)]);
    assert_eq!(queue.waiting(ClassId(1)), Waiting { requests: 2, tokens: 200, cost: 200.0 });
    assert_eq!([0, 1, 2].map(|it| queue.cost_ahead(ClassId(it))), [100.0, 300.0, 400.0]);
}

/// A class with room for four requests and 1,000 tokens.
fn small(entries: impl IntoIterator<Item = QueueEntry>) -> WaitQueue {
    let mut queue = WaitQueue::new(&classes(3, 4, 1_000), AGING);
    enqueue(&mut queue, entries);
    queue
}

fn left(queue: &mut WaitQueue, entry: QueueEntry) -> Result<Option<u64>, ClassFull> {
    queue.enqueue(entry).map(|it| it.map(|it| it.request.0))
}

const FULL: Result<Option<u64>, ClassFull> = Err(ClassFull { class: ClassId(1) });

#[test]
fn the_tenant_with_most_is_displaced_by_others_but_not_by_itself() {
    let mut queue = small((1..=4).map(|it| of(1, it)));
    assert_eq!(left(&mut queue, of(1, 5)), FULL);
    assert_eq!(left(&mut queue, of(2, 6)), Ok(Some(4)));
    // Three and one: the next would make it two and two. After that displacing gains nothing.
    assert_eq!(left(&mut queue, of(2, 7)), Ok(Some(3)));
    assert_eq!(left(&mut queue, of(2, 8)), FULL);
    assert_eq!(left(&mut queue, of(1, 9)), FULL);
    assert_eq!(left(&mut queue, of(3, 10)), Ok(Some(7)));
    assert_eq!(queue.len(), 4);
}

#[test]
fn the_tenant_with_the_largest_share_is_named_with_its_requests() {
    let class = of(1, 1).class;
    assert_eq!(small([]).largest_tenant(class), None);
    let queue = small([of(1, 1), of(2, 2), of(2, 3)]);
    assert_eq!(queue.largest_tenant(class), Some((of(2, 2).tenant, 2)));
    assert_eq!(queue.largest_tenant(ClassId(0)), None);
    // Two requests of a tenant of weight three are a smaller share than one of weight one.
    let heavy = |request| QueueEntry { weight: 3.0, ..of(2, request) };
    let queue = small([of(1, 1), heavy(2), heavy(3)]);
    assert_eq!(queue.largest_tenant(class), Some((of(1, 1).tenant, 1)));
}

#[test]
fn queue_capacity_is_shared_by_weight() {
    let heavy = |request| QueueEntry { weight: 3.0, ..of(2, request) };
    let mut queue = small((1..=4).map(|it| of(1, it)));
    assert_eq!([6, 7, 8].map(|it| left(&mut queue, heavy(it))), [Ok(Some(4)), Ok(Some(3)), Ok(Some(2))]);
    assert_eq!(left(&mut queue, heavy(9)), FULL);
}

#[test]
fn at_most_one_is_displaced_and_only_if_that_makes_enough_room() {
    // Three of 300 tokens: one removal makes room for 350 more, but not for 500.
    let big = |tenant, request, tokens| QueueEntry { tokens, ..of(tenant, request) };
    let mut queue = small((1..=3).map(|it| big(1, it, 300)));
    assert_eq!(left(&mut queue, big(2, 4, 500)), FULL);
    assert_eq!(queue.len(), 3);
    assert_eq!(left(&mut queue, big(2, 5, 350)), Ok(Some(3)));
    assert_eq!(left(&mut queue, big(3, 6, 1_001)), FULL);
}

#[test]
fn a_flood_of_cheap_requests_does_not_exclude_an_expensive_one() {
    // By cost the flood holds less than the newcomer would, but it holds the whole capacity.
    let mut queue = small((1..=4).map(|it| QueueEntry { cost: 0.0, ..of(1, it) }));
    assert_eq!(left(&mut queue, QueueEntry { cost: 1e6, ..of(2, 5) }), Ok(Some(4)));
}

#[test]
fn other_classes_are_not_displaced() {
    let mut queue = small((1..=4).map(|it| QueueEntry { tenant: TenantId(1), ..in_class(2, it) }));
    enqueue(&mut queue, (5..=8).map(|it| of(it, it)));
    assert_eq!(left(&mut queue, of(9, 9)), FULL);
}

#[test]
fn work_ahead_is_the_tenants_own_plus_the_fair_share_of_others() {
    let mut queue = queue();
    let big = |request| of(1, request);
    enqueue(&mut queue, (1..=50).map(big));
    let newcomer = |tenant, latest: Option<u64>| QueueEntry {
        tenant: TenantId(tenant),
        latest: latest.map(Instant::from_millis),
        ..entry(99)
    };
    assert_eq!(queue.cost_before(&newcomer(1, None)), 5_000.0);
    assert_eq!(queue.cost_before(&newcomer(1, Some(1))), 0.0, "a deadline goes before those who have none");
    assert_eq!(queue.cost_before(&newcomer(2, None)), 0.0, "another tenant goes at once");
    enqueue(&mut queue, [QueueEntry { cost: 30.0, ..of(2, 60) }]);
    assert_eq!(queue.cost_before(&newcomer(2, None)), 60.0);
}
