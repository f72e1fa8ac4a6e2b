//! Rate limits per minute.

use proptest::prelude::*;

use super::*;

const ONE: TenantId = TenantId(1);

fn terms(requests: Option<u32>, tokens: Option<u64>) -> Terms {
    Terms { requests_per_minute: requests, tokens_per_minute: tokens, ..Terms::default() }
}

fn at(seconds: u64) -> Instant {
    Instant::from_millis(seconds * 1_000)
}

fn seconds(wait: u64) -> Result<(), Duration> {
    Err(Duration::from_secs(wait))
}

/// Each row is a request: its time in seconds, its tokens, and the result.
#[track_caller]
fn check(terms: Terms, rows: &[(u64, u64, Result<(), Duration>)]) {
    let mut rates = Allowances::new();
    for &(now, tokens, expected) in rows {
        assert_eq!(
            rates.take(at(now), ONE, &terms, tokens).map(|_| ()).map_err(|it| it.retry_after),
            expected,
            "{tokens} tokens at {now} s of {rows:?}"
        );
    }
}

#[test]
fn a_minutes_worth_may_burst_and_then_refills() {
    let ok = Ok(());
    check(terms(Some(3), None), &[(0, 9, ok), (0, 9, ok), (0, 9, ok), (5, 9, seconds(15)), (20, 9, ok)]);
    check(
        terms(None, Some(60)),
        &[(0, 40, ok), (0, 30, seconds(10)), (0, 20, ok), (7, 8, seconds(1)), (8, 8, ok)],
    );
}

#[test]
fn a_request_over_the_bucket_passes_when_it_is_full_and_leaves_a_debt() {
    let terms = terms(None, Some(60));
    check(terms, &[(0, 180, Ok(())), (100, 1, seconds(21)), (121, 1, Ok(()))]);
    check(terms, &[(0, 1, Ok(())), (0, 180, seconds(1)), (1, 180, Ok(()))]);
}

#[test]
fn a_request_over_one_limit_is_not_charged_to_the_other() {
    let terms = terms(Some(2), Some(60));
    check(terms, &[(0, 60, Ok(())), (0, 30, seconds(30)), (0, 30, seconds(30)), (0, 0, Ok(()))]);
}

#[test]
fn a_limit_of_zero_lets_nothing_through() {
    check(terms(Some(0), None), &[(0, 1, Err(Duration::MAX)), (1_000, 1, Err(Duration::MAX))]);
    check(terms(None, Some(0)), &[(0, 1, Err(Duration::MAX))]);
}

#[test]
fn a_refusal_names_the_limit_that_takes_longer() {
    let mut rates = Allowances::new();
    let both = terms(Some(60), Some(600));
    assert!(rates.take(at(0), ONE, &both, 600).is_ok());
    let limit = |tokens| rates.check(at(0), ONE, &both, tokens).unwrap_err();
    let by_tokens = OverLimit { retry_after: Duration::from_secs(10), limit: RateLimit::Tokens(600) };
    assert_eq!(limit(100), by_tokens);
    for _ in 0..59 {
        assert!(rates.take(at(0), ONE, &both, 0).is_ok());
    }
    let limit = |tokens| rates.check(at(0), ONE, &both, tokens).unwrap_err();
    assert_eq!(limit(1).limit, RateLimit::Requests(60));
    assert_eq!(limit(100), by_tokens);
}

#[test]
fn budgets_say_what_is_left_and_when_all_of_it_is_back() {
    let mut rates = Allowances::new();
    let both = terms(Some(60), Some(600));
    let budget = |per_minute, remaining, seconds| {
        Some(Budget { per_minute, remaining, reset: Duration::from_secs(seconds) })
    };
    let full = Budgets { requests: budget(60, 60, 0), tokens: budget(600, 600, 0) };
    assert_eq!(rates.budgets(at(0), ONE, &both), full);
    assert!(rates.take(at(0), ONE, &both, 200).is_ok());
    let after = Budgets { requests: budget(60, 59, 1), tokens: budget(600, 400, 20) };
    assert_eq!(rates.budgets(at(0), ONE, &both), after);
    // A debt leaves nothing.
    rates.charge(at(0), ONE, &both, PeerUsage { requests: 0, tokens: 1_000 });
    assert_eq!(rates.budgets(at(0), ONE, &both).tokens, budget(600, 0, 120));
    assert_eq!(rates.budgets(at(90), ONE, &both).tokens, budget(600, 300, 30));
    // Half of the routers are heard, so each take counts twice.
    rates.share(RouterShare::of(1, 2));
    assert_eq!(rates.budgets(at(90), ONE, &both).tokens, budget(600, 150, 30));
    assert_eq!(rates.budgets(at(0), ONE, &terms(None, None)), Budgets::default());
}

#[test]
fn returned_allowance_can_be_taken_again() {
    let terms = terms(Some(1), Some(100));
    let mut rates = Allowances::new();
    for _ in 0..5 {
        let taken = rates.take(at(0), ONE, &terms, 100).unwrap();
        assert!(rates.take(at(0), ONE, &terms, 1).is_err());
        rates.give_back(ONE, taken);
    }
    // Returning what was taken from an unknown tenant gains it nothing.
    let taken = rates.clone().take(at(0), ONE, &terms, 100).unwrap();
    rates.give_back(TenantId(2), taken);
    assert!(rates.take(at(0), TenantId(2), &terms, 100).is_ok());
    assert!(rates.take(at(0), TenantId(2), &terms, 1).is_err());
}

#[test]
fn tenants_without_limits_or_with_full_buckets_are_forgotten() {
    let mut rates = Allowances::new();
    assert_eq!(rates.take(at(0), ONE, &terms(None, None), u64::MAX), Ok(Taken::default()));
    assert!(rates.is_empty());
    let limited = terms(Some(60), None);
    for tenant in 0..100 {
        assert!(rates.take(at(tenant), TenantId(tenant), &limited, 1).is_ok());
        assert!(rates.len() <= 2, "{}", rates.len());
    }
}

#[test]
fn tenants_beyond_the_maximum_share_the_overflow_bucket() {
    let mut rates = Allowances::new();
    let terms = terms(Some(2), None);
    let take = |rates: &mut Allowances, tenant| rates.take(at(0), TenantId(tenant), &terms, 1);
    for tenant in 0..TENANTS_HELD as u64 {
        assert!(take(&mut rates, tenant).is_ok());
    }
    let taken = take(&mut rates, 1_000_001).unwrap();
    assert!(take(&mut rates, 1_000_002).is_ok());
    assert!(take(&mut rates, 1_000_003).is_err());
    rates.give_back(TenantId(1_000_001), taken);
    assert!(take(&mut rates, 1_000_003).is_ok());
    assert!(take(&mut rates, 5).is_ok());
    assert_eq!(rates.len(), TENANTS_HELD);
    // Once buckets are full again there is room.
    assert!(rates.take(at(60), TenantId(1_000_004), &terms, 1).is_ok());
    assert_eq!(rates.len(), TENANTS_HELD - 1);
}

#[test]
fn any_number_gives_a_time_in_range() {
    for (limit, tokens) in [(1, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, 0), (0, u64::MAX)] {
        let mut rates = Allowances::new();
        let terms = terms(Some(u32::MAX), Some(limit));
        for now in [0, 1, u64::MAX] {
            let now = Instant::from_nanos(now);
            rates.share(RouterShare::of(1, u32::MAX));
            let taken = rates.take(now, ONE, &terms, tokens).unwrap_or_default();
            rates.charge(now, ONE, &terms, PeerUsage { requests: u64::MAX, tokens });
            rates.share(RouterShare::of(0, 0));
            rates.give_back(ONE, taken);
            let _ = rates.check(now, ONE, &terms, tokens);
        }
    }
}

#[test]
fn other_routers_spending_is_charged_whether_it_fits_or_not() {
    let terms = terms(Some(60), Some(600));
    let mut rates = Allowances::new();
    rates.charge(at(0), ONE, &terms, PeerUsage { requests: 90, tokens: 10 });
    assert_eq!(rates.take(at(0), ONE, &terms, 1).map_err(|it| it.retry_after), Err(Duration::from_secs(31)));
    rates.charge(at(10), ONE, &terms, PeerUsage { requests: 0, tokens: 1_000 });
    assert_eq!(
        rates.check(at(31), ONE, &terms, 60).map_err(|it| it.retry_after),
        Err(Duration::from_secs(25))
    );
    // Such usage does not make the limiter remember tenants without limits, or with a limit of zero.
    rates.charge(at(10), TenantId(2), &Terms::default(), PeerUsage { requests: 5, tokens: 5 });
    assert_eq!(rates.len(), 1);
    let none = Terms { requests_per_minute: Some(0), ..Terms::default() };
    rates.charge(at(10), TenantId(3), &none, PeerUsage { requests: 5, tokens: 5 });
    assert!(rates.take(at(11), TenantId(3), &terms, 1).is_ok());
}

#[test]
fn a_router_that_hears_one_in_three_grants_a_third_and_returns_what_it_took() {
    let terms = terms(Some(60), None);
    let mut rates = Allowances::new();
    rates.share(RouterShare::of(1, 3));
    let taken: Vec<Taken> = (0..20).map(|_| rates.take(at(0), ONE, &terms, 1).unwrap()).collect();
    assert_eq!(rates.take(at(0), ONE, &terms, 1).map_err(|it| it.retry_after), Err(Duration::from_secs(3)));
    rates.share(RouterShare::of(3, 3));
    taken.into_iter().for_each(|it| rates.give_back(ONE, it));
    assert_eq!((0..100).filter(|_| rates.take(at(0), ONE, &terms, 1).is_ok()).count(), 60);
}

proptest! {
    #[test]
    fn no_minute_exceeds_twice_the_limit_and_the_returned_wait_is_right(
        limits in (1u32..20, 1u64..2_000),
        rows in prop::collection::vec((0u64..20_000, 0u64..500), 1..200),
    ) {
        let terms = terms(Some(limits.0), Some(limits.1));
        let mut rates = Allowances::new();
        let mut now = Instant::ZERO;
        let mut passed: Vec<(Instant, u64)> = Vec::new();
        for (pause_ms, tokens) in rows {
            now = now + Duration::from_millis(pause_ms);
            let tokens = tokens.min(limits.1);
            match rates.clone().take(now, ONE, &terms, tokens) {
                Ok(_) => {
                    prop_assert!(rates.take(now, ONE, &terms, tokens).is_ok());
                    passed.push((now, tokens));
                }
                Err(OverLimit { retry_after: wait, .. }) => {
                    let just_before = earlier(now + wait, Duration::from_nanos(1));
                    prop_assert!(rates.clone().take(just_before, ONE, &terms, tokens).is_err());
                    prop_assert!(rates.clone().take(now + wait, ONE, &terms, tokens).is_ok());
                }
            }
            let minute = passed.iter().filter(|it| now.since(it.0) <= MINUTE);
            prop_assert!(minute.clone().count() <= 2 * limits.0 as usize);
            prop_assert!(minute.map(|it| it.1).sum::<u64>() <= 2 * limits.1);
        }
    }
}
