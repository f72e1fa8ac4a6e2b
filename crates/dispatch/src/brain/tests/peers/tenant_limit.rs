//! Tenant limits and fair shares over several routers.

use super::several_routers::Cluster;
use super::*;
use maitre_queue::settings::{Tenant, Terms};

/// A tenant with this limit per minute.
fn limited(requests: Option<u32>, tokens: Option<u64>) -> (BrainSettings, TenantId) {
    let terms = Terms { requests_per_minute: requests, tokens_per_minute: tokens, ..Terms::default() };
    let tenant = Tenant { name: "limited".to_owned(), terms };
    let id = tenant.id();
    let mut settings = sharing(Name::RoundRobin);
    settings.queue.tenants.insert(id, tenant);
    (settings, id)
}

/// Requests that pass in each minute, if they arrive at these rates per second and each router has `live` live routers.
fn play(rates: [u32; 3], (settings, tenant): (BrainSettings, TenantId), live: u32) -> Vec<u32> {
    const STEP: Duration = Duration::from_millis(10);
    let harnesses = (0..3).map(|_| Harness::with_queue(2, settings.clone())).collect();
    let mut cluster = Cluster::of(harnesses, Duration::from_millis(50));
    for harness in &mut cluster.harnesses {
        harness.receive(PeerUpdate::Routers { live, known: 3 });
    }
    if live == 1 {
        // Updates do not arrive.
        cluster.delay = Duration::from_secs(1_000_000);
    }
    let mut passed = vec![0; 6];
    let (mut request, mut due) = (0, [0.0; 3]);
    for step in 0..6_000 * passed.len() {
        for router in 0..3 {
            due[router] += f64::from(rates[router]) * STEP.as_secs_f64();
            while due[router] >= 1.0 {
                due[router] -= 1.0;
                request += 1;
                let harness = &mut cluster.harnesses[router];
                let effects =
                    harness.on(Event::Arrived(Arrival { tenant, ..arrival(request, Some("llama")) }));
                passed[step / 6_000] += u32::from(matches!(effects[..], [Effect::Place(_)]));
                harness.on(Event::Left { request: RequestId(request) });
            }
        }
        cluster.after(STEP);
    }
    passed
}

#[test]
fn connected_routers_grant_a_tenant_limit_once() {
    let (requests, tokens) = (limited(Some(600), None), limited(None, Some(600 * 1_100)));
    for (settings, rates) in [(requests, [100, 10, 0]), (tokens, [10, 100, 1])] {
        let passed = play(rates, settings, 3);
        assert!(passed[1..].iter().all(|it| (540..=660).contains(it)), "{passed:?} at {rates:?}");
        assert!(passed[0] <= 2 * 660, "a minute's worth more at the beginning: {passed:?}");
    }
}

#[test]
fn disconnected_routers_grant_their_share_of_a_limit() {
    for (rates, most) in [([100, 10, 0], 2), ([100, 100, 100], 3)] {
        let passed = play(rates, limited(Some(600), None), 1);
        let (least, most) = (most * 180, most * 220);
        assert!(passed[1..].iter().all(|it| (least..=most).contains(it)), "{passed:?} at {rates:?}");
        assert!(passed[0] <= 2 * most, "{passed:?}");
    }
}

#[test]
fn the_share_of_a_limit_follows_from_live_routers() {
    let mut harness = Harness::of(1);
    assert_eq!(harness.brain.limit_share(), 1.0);
    for (live, known, expected) in [(1, 4, 0.25), (3, 4, 0.75), (4, 4, 1.0), (0, 0, 1.0), (9, 2, 1.0)] {
        harness.receive(PeerUpdate::Routers { live, known });
        assert_eq!(harness.brain.limit_share(), expected, "{live} of {known}");
    }
}

#[test]
fn a_tenant_served_by_another_router_waits_here() {
    let (mut settings, one) = limited(None, None);
    settings.queue.sequences_max = 1;
    let mut harness = Harness::with_queue(1, settings);
    let other = TenantId(2);
    let come = |harness: &mut Harness, request, tenant| {
        harness.on(Event::Arrived(Arrival { tenant, ..arrival(request, Some("llama")) }))
    };
    come(&mut harness, 0, TenantId(3));
    for (request, tenant) in [(1, one), (2, other), (3, one), (4, other)] {
        assert_eq!(come(&mut harness, request, tenant), [Effect::Wait { request: RequestId(request) }]);
    }
    harness.receive(PeerUpdate::Spent {
        model: hash_of("llama"),
        tenant: one,
        more: Spent { requests: 9, tokens: 50_000 },
    });
    let mut order = Vec::new();
    let mut last = 0;
    for _ in 0..4 {
        let placement =
            placement(&harness.on(Event::Finished { request: RequestId(last), counted: None, pieces: 1 }));
        last = placement.request.0;
        order.push(last);
    }
    assert_eq!(order, [2, 4, 1, 3]);
}
