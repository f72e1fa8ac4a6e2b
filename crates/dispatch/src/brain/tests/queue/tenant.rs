//! Fair shares and limits of tenants.

use super::*;

fn of(tenant: u64, request: u64) -> Arrival<'static> {
    Arrival { tenant: TenantId(tenant), ..one(request) }
}

/// Sets the terms of the tenant with this number.
fn set(queue: &mut Queue, tenant: u64, terms: Terms) {
    queue.tenants.insert(TenantId(tenant), Tenant { name: tenant.to_string(), terms });
}

/// Twenty requests of each tenant wait; checks how many of the first twenty to go are the first tenant's.
#[track_caller]
fn check(first: (f64, u64), second: (f64, u64), expected: std::ops::RangeInclusive<usize>) {
    let mut harness = Harness::queueing(1, |it| {
        set(it, 1, Terms { weight: first.0, ..Terms::default() });
        set(it, 2, Terms { weight: second.0, ..Terms::default() });
    });
    harness.step(Come(one(0)));
    for turn in 1..=20 {
        harness.step(Come(Arrival { size: Size::Tokens(first.1), ..of(1, turn) }));
        harness.step(Come(Arrival { size: Size::Tokens(second.1), ..of(2, 100 + turn) }));
    }
    let (mut last, mut firsts) = (0, Vec::new());
    for _ in 0..20 {
        let counted = Counted { prompt: None, cached: None, answer: Some(100) };
        let (request, counted) = (RequestId(last), Some(counted));
        last = placement(&harness.on(Event::Finished { request, counted, pieces: 100 })).request.0;
        firsts.push(last < 100);
    }
    let count = firsts.iter().filter(|&&it| it).count();
    assert!(expected.contains(&count), "{count} of {firsts:?}");
}

#[test]
fn two_tenants_take_turns_by_weight_and_cost() {
    check((1.0, 1_000), (1.0, 1_000), 10..=10);
    check((3.0, 1_000), (1.0, 1_000), 15..=15);
    check((1.0, 1_000), (3.0, 1_000), 5..=5);
    // Three times the prompt, with a response worth 200: 3,200 against 1,200.
    check((1.0, 3_000), (1.0, 1_000), 5..=6);
    check((3.0, 3_400), (1.0, 1_000), 10..=10);
}

/// A count of 2^32 - 1 kept its tenant behind all others for days.
#[test]
fn an_absurd_count_charges_no_more_than_the_longest_answer() {
    let mut harness = Harness::queueing(1, |_| ());
    harness.step(Come(one(0)));
    for turn in 1..=10 {
        harness.step(Come(of(1, turn)));
        harness.step(Come(of(2, 100 + turn)));
    }
    let mut order = vec![0];
    for answer in [100, u64::from(u32::MAX), 1 << 20, 100, 100, 100, 100] {
        let counted = Some(Counted { prompt: None, cached: None, answer: Some(answer) });
        let request = RequestId(order[order.len() - 1]);
        order.push(placement(&harness.on(Event::Finished { request, counted, pieces: 100 })).request.0);
    }
    assert_eq!(order, [0, 1, 101, 2, 102, 3, 103, 4]);
}

#[test]
fn a_late_tenant_does_not_wait_behind_the_whole_queue_of_another() {
    let mut harness = Harness::queueing(1, |_| ());
    for request in 0..10 {
        harness.step(Come(of(1, request)));
    }
    harness.play(&[(Come(of(2, 100)), "100 waits"), (Come(of(2, 101)), "101 waits")]);
    let mut order = Vec::new();
    let mut last = 0;
    for _ in 0..6 {
        last = placement(&harness.step(End(last))).request.0;
        order.push(last);
    }
    let place = |request| order.iter().position(|&it| it == request);
    assert!(place(100) <= Some(1) && place(101) <= Some(3) && place(101).is_some(), "{order:?}");
}

#[test]
fn a_limited_tenant_gets_a_retry_after_that_holds() {
    let per_minute = Terms { requests_per_minute: Some(2), ..Terms::default() };
    let tokens = Terms { tokens_per_minute: Some(2_200), ..Terms::default() };
    for terms in [per_minute, tokens] {
        let mut harness = Harness::queueing(1, |it| {
            it.sequences_max = 0;
            set(it, 1, terms);
        });
        harness.play(&[(Come(of(1, 1)), "1@0"), (Come(of(1, 2)), "2@0")]);
        let effects = harness.step(Come(of(1, 3)));
        assert_eq!(summary(&effects), "3 limited");
        let span = retry_after(&effects);
        assert!(span > Duration::ZERO && span <= Duration::from_secs(30), "{span:?}");
        // Other tenants are not affected, nor are requests without a tenant.
        harness.play(&[(Come(of(2, 4)), "4@0"), (Come(of(0, 5)), "5@0")]);
        (1..=5).for_each(|it| drop(harness.step(Leave(it))));
        harness.now = harness.now + (span - Duration::from_nanos(1));
        assert_eq!(harness.summary_of(Come(of(1, 6))), "6 limited");
        harness.now = harness.now + Duration::from_nanos(1);
        assert_eq!(harness.summary_of(Come(of(1, 6))), "6@0");
        harness.step(End(6));
        harness.is_clear();
    }
}

#[test]
fn the_default_limit_applies_to_each_tenant() {
    let others = Terms { requests_per_minute: Some(1), ..Terms::default() };
    let mut harness = Harness::queueing(1, |it| (it.sequences_max, it.others) = (0, others));
    harness.play(&[
        (Come(of(1, 1)), "1@0"),
        (Come(of(1, 2)), "2 limited"),
        (Come(of(2, 3)), "3@0"),
        (Come(of(2, 4)), "4 limited"),
    ]);
}

/// Clients retry after `Retry-After`, so refused requests must not count against their limit.
#[test]
fn a_request_refused_for_a_full_queue_spends_no_allowance() {
    let terms = Terms { requests_per_minute: Some(2), ..Terms::default() };
    let mut harness = Harness::queueing(1, |it| {
        it.classes[1].requests_max = 1;
        set(it, 1, terms);
    });
    harness.play(&[
        (Come(of(2, 1)), "1@0"),
        (Come(of(2, 2)), "2 waits"),
        (Come(of(1, 3)), "3 full"),
        (Come(of(1, 4)), "4 full"),
        (Leave(2), ""),
        (Leave(1), ""),
        (Come(of(1, 5)), "5@0"),
    ]);
}

/// Another event than a client that disconnects: that one has had its place in the queue.
#[test]
fn a_request_whose_time_is_over_in_the_queue_spends_no_allowance() {
    let terms = Terms { requests_per_minute: Some(1), ..Terms::default() };
    let mut harness = Harness::queueing(1, |it| set(it, 1, terms));
    harness.play(&[(Come(of(2, 1)), "1@0"), (Come(of(1, 2)), "2 waits")]);
    harness.on(Event::GivenUp { request: RequestId(2) });
    harness.play(&[(Come(of(1, 3)), "3 waits"), (Leave(3), ""), (Come(of(1, 4)), "4 limited")]);
}
