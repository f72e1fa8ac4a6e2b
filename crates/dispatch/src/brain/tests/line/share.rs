//! Tenants: whose turn it is, and who has had enough for now.

use super::*;

fn of(tenant: u64, request: u64) -> Arrival<'static> {
    Arrival { tenant: TenantId(tenant), ..one(request) }
}

/// Terms of a tenant of this number.
fn set(queue: &mut Queue, tenant: u64, terms: Terms) {
    queue.tenants.insert(TenantId(tenant), Tenant { name: tenant.to_string(), terms });
}

/// Twenty of each tenant wait; how many of each of the first twenty to go are the first tenant's.
#[track_caller]
fn check(first: (f64, u64), second: (f64, u64), expected: std::ops::RangeInclusive<usize>) {
    let mut table = Table::in_line(1, |it| {
        set(it, 1, Terms { weight: first.0, ..Terms::default() });
        set(it, 2, Terms { weight: second.0, ..Terms::default() });
    });
    table.step(Come(one(0)));
    for turn in 1..=20 {
        table.step(Come(Arrival { size: Size::Tokens(first.1), ..of(1, turn) }));
        table.step(Come(Arrival { size: Size::Tokens(second.1), ..of(2, 100 + turn) }));
    }
    let (mut last, mut firsts) = (0, Vec::new());
    for _ in 0..20 {
        let counted = Counted { prompt: None, cached: None, answer: Some(100) };
        let (request, counted) = (RequestId(last), Some(counted));
        last = placement(&table.on(Event::Finished { request, counted, pieces: 100 })).request.0;
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
    // Three times the prompt, with an answer worth 200: 3,200 against 1,200.
    check((1.0, 3_000), (1.0, 1_000), 5..=6);
    check((3.0, 3_400), (1.0, 1_000), 10..=10);
}

#[test]
fn a_tenant_that_comes_late_does_not_wait_for_all_who_were_first() {
    let mut table = Table::in_line(1, |_| ());
    for request in 0..10 {
        table.step(Come(of(1, request)));
    }
    table.play(&[(Come(of(2, 100)), "100 waits"), (Come(of(2, 101)), "101 waits")]);
    let mut order = Vec::new();
    let mut last = 0;
    for _ in 0..6 {
        last = placement(&table.step(End(last))).request.0;
        order.push(last);
    }
    let place = |request| order.iter().position(|&it| it == request);
    assert!(place(100) <= Some(1) && place(101) <= Some(3) && place(101).is_some(), "{order:?}");
}

#[test]
fn a_limited_tenant_is_told_when_it_passes_and_passes_then() {
    let per_minute = Terms { requests_per_minute: Some(2), ..Terms::default() };
    let tokens = Terms { tokens_per_minute: Some(2_200), ..Terms::default() };
    for terms in [per_minute, tokens] {
        let mut table = Table::in_line(1, |it| {
            it.sequences_max = 0;
            set(it, 1, terms);
        });
        table.play(&[(Come(of(1, 1)), "1@0"), (Come(of(1, 2)), "2@0")]);
        let effects = table.step(Come(of(1, 3)));
        assert_eq!(told(&effects), "3 limited");
        let span = retry_after(&effects);
        assert!(span > Duration::ZERO && span <= Duration::from_secs(30), "{span:?}");
        // Others have nothing to do with it, and nobody is one of them.
        table.play(&[(Come(of(2, 4)), "4@0"), (Come(of(0, 5)), "5@0")]);
        (1..=5).for_each(|it| drop(table.step(Leave(it))));
        table.now = table.now + (span - Duration::from_nanos(1));
        assert_eq!(table.tell(Come(of(1, 6))), "6 limited");
        table.now = table.now + Duration::from_nanos(1);
        assert_eq!(table.tell(Come(of(1, 6))), "6@0");
        table.step(End(6));
        table.is_clear();
    }
}

#[test]
fn limits_of_others_hold_for_each_by_itself() {
    let others = Terms { requests_per_minute: Some(1), ..Terms::default() };
    let mut table = Table::in_line(1, |it| (it.sequences_max, it.others) = (0, others));
    table.play(&[
        (Come(of(1, 1)), "1@0"),
        (Come(of(1, 2)), "2 limited"),
        (Come(of(2, 3)), "3@0"),
        (Come(of(2, 4)), "4 limited"),
    ]);
}

/// Clients come again as they are told: what they were refused must not count against them.
#[test]
fn who_was_refused_for_want_of_room_has_used_up_nothing() {
    let terms = Terms { requests_per_minute: Some(2), ..Terms::default() };
    let mut table = Table::in_line(1, |it| {
        it.classes[1].requests_max = 1;
        set(it, 1, terms);
    });
    table.play(&[
        (Come(of(2, 1)), "1@0"),
        (Come(of(2, 2)), "2 waits"),
        (Come(of(1, 3)), "3 full"),
        (Come(of(1, 4)), "4 full"),
        (Leave(2), ""),
        (Leave(1), ""),
        (Come(of(1, 5)), "5@0"),
    ]);
}
