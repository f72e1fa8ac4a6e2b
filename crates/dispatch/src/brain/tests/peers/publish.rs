//! What a router publishes: each change once, and nothing without a change.

use super::*;
use crate::observer::dirty::KEPT_MAX;
use maitre_queue::settings::{Tenant, Terms};

#[test]
fn a_single_router_publishes_nothing() {
    let mut harness = Harness::with(2, BrainSettings::default());
    harness.arrive(1, Some("llama")).unwrap();
    assert!(!harness.brain.has_outbox());
    assert!(harness.outbox().is_empty());
}

#[test]
fn each_changed_worker_is_published_once_with_its_current_promises() {
    let mut harness = Harness::with(3, sharing(Name::RoundRobin));
    harness.outbox();
    assert!(!harness.brain.has_outbox());
    for request in 0..4 {
        harness.arrive(request, Some("llama")).unwrap();
    }
    assert!(harness.brain.has_outbox());
    let all = |requests: u32| load(requests, 1_000);
    assert_eq!(harness.outbox().promised, [(key_of(0), all(2)), (key_of(1), all(1)), (key_of(2), all(1))]);
    assert!(!harness.brain.has_outbox() && harness.outbox().is_empty(), "nothing happened since");

    harness.begin(1);
    let begun = PromisedWork { prefilling: 0, prefill: PrefillWork::ZERO, ..all(1) };
    assert_eq!(harness.outbox().promised, [(key_of(1), begun)]);
    harness.on(Event::Finished { request: RequestId(1), counted: None, pieces: 1 });
    harness.arrive(5, Some("llama")).unwrap();
    harness.on(Event::Left { request: RequestId(5) });
    assert_eq!(harness.outbox().promised, [(key_of(1), PromisedWork::default())]);
    // A router does not publish what others have promised.
    harness.promise_elsewhere(2, load(7, 7));
    assert!(!harness.brain.has_outbox());
}

#[test]
fn an_unstreamed_response_is_published_as_prefilled_when_it_should_be() {
    let mut harness = Harness::with(1, sharing(Name::RoundRobin));
    harness.on(Event::Arrived(Arrival { form: Form::Whole, ..arrival(1, Some("llama")) }));
    harness.outbox();
    harness.now = harness.now + Duration::from_secs(1);
    harness.on(Event::Tick);
    let published = harness.outbox().promised;
    assert!(
        matches!(
            published[..],
            [(_, PromisedWork { requests: 1, prefilling: 0, prefill: PrefillWork::ZERO, .. })]
        ),
        "{published:?}"
    );
}

#[test]
fn a_departure_is_published_unless_the_worker_came_back_at_once() {
    let mut harness = Harness::with(2, sharing(Name::RoundRobin));
    harness.arrive(1, Some("llama")).unwrap();
    harness.outbox();
    harness.on(Event::WorkerGone { worker: WorkerId(0) });
    let published = harness.outbox();
    assert_eq!((published.gone, published.promised), (vec![key_of(0)], Vec::new()));
    harness.on(Event::WorkerGone { worker: WorkerId(1) });
    harness.on(Event::WorkerJoined { url: &url(1) });
    let published = harness.outbox();
    assert_eq!(
        (published.gone, published.promised),
        (Vec::new(), vec![(key_of(1), PromisedWork::default())])
    );
    harness.on(Event::Left { request: RequestId(1) });
    assert_eq!(harness.outbox().promised, [], "promises to a worker that left are not published");
}

#[test]
fn health_changes_are_published_at_once_and_rates_every_second() {
    let mut harness = Harness::with(2, sharing(Name::RoundRobin));
    let verdicts = |harness: &mut Harness| {
        let published = harness.outbox().assessed;
        published.into_iter().map(|(key, it)| (key, it.verdict, it.rates.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(
        verdicts(&mut harness),
        [(key_of(0), Verdict::Healthy, false), (key_of(1), Verdict::Healthy, false)]
    );
    for (evidence, verdict) in [
        (Evidence::Silent, Some(Verdict::Suspect)),
        (Evidence::Silent, Some(Verdict::Ejected)),
        (Evidence::Silent, None),
        (Evidence::ProbeAnswered, Some(Verdict::Healthy)),
    ] {
        harness.on(Event::Probed { worker: WorkerId(0), evidence });
        let expected: Vec<_> = verdict.map(|it| (key_of(0), it, false)).into_iter().collect();
        assert_eq!(verdicts(&mut harness), expected, "{evidence:?}");
    }
    for request in 0..12 {
        harness.arrive(request, Some("llama")).unwrap();
        harness.now = harness.now + Duration::from_millis(70);
        harness.begin(request);
        harness.on(Event::Left { request: RequestId(request) });
    }
    harness.outbox();
    harness.now = harness.now + Duration::from_secs(1);
    for expected in [1, 0] {
        harness.on(Event::Tick);
        let published = verdicts(&mut harness);
        assert_eq!(
            published.iter().filter(|it| it.0 == key_of(1) && it.2).count(),
            expected,
            "{published:?}"
        );
    }
}

#[test]
fn new_pins_are_published_and_explain_publishes_nothing() {
    let mut harness = Harness::with(3, sharing(Name::StickySession));
    let session = |request, session| Arrival { session: Some(session), ..arrival(request, Some("llama")) };
    harness.brain.explain(harness.now, &session(9, 7)).unwrap();
    assert_eq!(harness.outbox().pinned, []);
    let home = outcome(&harness.on(Event::Arrived(session(1, 7)))).unwrap();
    harness.on(Event::Arrived(session(2, 7)));
    assert_eq!(harness.outbox().pinned, [(hash_of("llama"), 7, key_of(home))]);
    let other = (home + 1) % 3;
    harness.receive(PeerUpdate::Pinned { model: hash_of("llama"), session: 8, worker: key_of(other) });
    assert_eq!(outcome(&harness.on(Event::Arrived(session(3, 8)))), Ok(other));
    assert_eq!(harness.outbox().pinned, [], "others know that");
    harness.on(Event::Arrived(Arrival { session: Some(5), ..arrival(4, None) }));
    assert!(matches!(harness.outbox().pinned[..], [(0, 5, _)]));
}

#[test]
fn placed_prompts_are_published_and_beyond_the_limit_the_oldest_are_dropped() {
    let mut harness = Harness::with(2, sharing(Name::LeastDelay));
    for request in 0..KEPT_MAX as u64 + 5 {
        let text = prompt(request, 2);
        harness.on(Event::Arrived(chat(request, &text)));
        harness.on(Event::Left { request: RequestId(request) });
    }
    let published = harness.outbox();
    assert_eq!((published.placed.len(), published.dropped), (KEPT_MAX, 5));
    assert_eq!(published.placed[0].1.chain, prompt(5, 2).chain);
    harness.arrive(99_999, Some("llama")).unwrap();
    assert!(harness.outbox().placed.is_empty(), "a prompt that was not read is not published");
}

#[test]
fn spending_is_published_for_limited_tenants_and_for_all_while_requests_wait() {
    let mut queue =
        maitre_queue::QueueSettings { sequences_max: 1, ..maitre_queue::QueueSettings::default() };
    let terms = Terms { requests_per_minute: Some(2), ..Terms::default() };
    let limited = Tenant { name: "limited".to_owned(), terms };
    let (tenant, other) = (limited.id(), TenantId(77));
    queue.tenants.insert(tenant, limited);
    let mut harness = Harness::with_queue(1, BrainSettings { queue, ..sharing(Name::RoundRobin) });
    let come = |harness: &mut Harness, request, tenant| {
        harness.on(Event::Arrived(Arrival { tenant, ..arrival(request, Some("llama")) }));
        harness.outbox().spent
    };
    let spent = |tenant| vec![(hash_of("llama"), tenant, Spent { requests: 1, tokens: 1_100 })];
    assert_eq!(come(&mut harness, 1, other), [], "its tenant is not limited, and the queue is empty");
    assert_eq!(come(&mut harness, 2, tenant), spent(tenant));
    assert_eq!(come(&mut harness, 3, other), spent(other), "the queue is not empty");
    assert_eq!(come(&mut harness, 4, tenant), spent(tenant));
    assert_eq!(come(&mut harness, 5, tenant), [], "it was refused");
    // A request that expires in the queue spends nothing.
    harness.now = harness.now + Duration::from_secs(3_600);
    harness.on(Event::Tick);
    assert_eq!(harness.brain.parts.scheduler.waiting(), 0);
    assert_eq!(come(&mut harness, 6, tenant), [], "two were given back");
}

#[test]
fn a_fetch_swaps_lists_and_allocates_nothing() {
    let mut harness = Harness::with(2, sharing(Name::LeastDelay));
    let mut outbox = Outbox::default();
    let mut places = BTreeMap::new();
    for request in 0..200 {
        let text = prompt(request, 4);
        harness.on(Event::Arrived(chat(request, &text)));
        harness.on(Event::Left { request: RequestId(request) });
        harness.brain.take_outbox(&mut outbox);
        assert_eq!(outbox.placed.len(), 1);
        *places.entry(outbox.placed.as_ptr()).or_insert(0) += 1;
        outbox.clear();
    }
    assert_eq!(places.len(), 2, "one is filled while the other is read");
}

#[test]
fn a_router_that_begins_to_share_publishes_everything_once() {
    let mut harness =
        Harness::with(2, BrainSettings { strategy: Name::RoundRobin, ..BrainSettings::default() });
    harness.arrive(1, Some("llama")).unwrap();
    let mut settings = harness.brain.settings().clone();
    settings.shares = true;
    harness.brain.reconfigure(harness.now, settings.clone(), &mut Vec::new()).unwrap();
    let published = harness.outbox();
    assert_eq!(published.promised, [(key_of(0), load(1, 1_000)), (key_of(1), PromisedWork::default())]);
    assert_eq!(published.assessed.len(), 2);
    settings.shares = false;
    harness.arrive(2, Some("llama")).unwrap();
    harness.brain.reconfigure(harness.now, settings, &mut Vec::new()).unwrap();
    assert!(!harness.brain.has_outbox() && harness.outbox().is_empty());
}
