//! What others are told: each change once, nothing twice, nothing without reason.

use super::*;
use crate::observer::dirty::KEPT_MAX;
use maitre_queue::settings::{Tenant, Terms};

#[test]
fn who_is_alone_tells_nothing() {
    let mut table = Table::with(2, Settings::default());
    table.arrive(1, Some("llama")).unwrap();
    assert!(!table.brain.has_outbox());
    assert!(table.outbox().is_empty());
}

#[test]
fn each_worker_that_changed_is_told_once_and_with_what_is_promised_now() {
    let mut table = Table::with(3, sharing(Name::RoundRobin));
    table.outbox();
    assert!(!table.brain.has_outbox());
    for request in 0..4 {
        table.arrive(request, Some("llama")).unwrap();
    }
    assert!(table.brain.has_outbox());
    let all = |requests: u32| load(requests, 1_000);
    assert_eq!(table.outbox().promised, [(key_of(0), all(2)), (key_of(1), all(1)), (key_of(2), all(1))]);
    assert!(!table.brain.has_outbox() && table.outbox().is_empty(), "nothing happened since");

    table.begin(1);
    let begun = PromisedWork { prefilling: 0, prefill: Tokens::ZERO, ..all(1) };
    assert_eq!(table.outbox().promised, [(key_of(1), begun)]);
    table.on(Event::Finished { request: RequestId(1), counted: None, pieces: 1 });
    table.arrive(5, Some("llama")).unwrap();
    table.on(Event::Left { request: RequestId(5) });
    assert_eq!(table.outbox().promised, [(key_of(1), PromisedWork::default())]);
    // What others told is not ours to tell.
    table.promise_elsewhere(2, load(7, 7));
    assert!(!table.brain.has_outbox());
}

#[test]
fn an_answer_in_one_piece_is_told_as_prefilled_when_it_should_be() {
    let mut table = Table::with(1, sharing(Name::RoundRobin));
    table.on(Event::Arrived(Arrival { form: Form::Whole, ..arrival(1, Some("llama")) }));
    table.outbox();
    table.now = table.now + Duration::from_secs(1);
    table.on(Event::Tick);
    let told = table.outbox().promised;
    assert!(
        matches!(told[..], [(_, PromisedWork { requests: 1, prefilling: 0, prefill: Tokens(0), .. })]),
        "{told:?}"
    );
}

#[test]
fn a_worker_that_left_is_gone_and_one_that_came_back_at_once_is_not() {
    let mut table = Table::with(2, sharing(Name::RoundRobin));
    table.arrive(1, Some("llama")).unwrap();
    table.outbox();
    table.on(Event::WorkerGone { worker: WorkerId(0) });
    let told = table.outbox();
    assert_eq!((told.gone, told.promised), (vec![key_of(0)], Vec::new()));
    table.on(Event::WorkerGone { worker: WorkerId(1) });
    table.on(Event::WorkerJoined { url: &url(1) });
    let told = table.outbox();
    assert_eq!((told.gone, told.promised), (Vec::new(), vec![(key_of(1), PromisedWork::default())]));
    table.on(Event::Left { request: RequestId(1) });
    assert_eq!(table.outbox().promised, [], "what was promised to one that left is nobody's");
}

#[test]
fn a_change_of_mind_is_told_and_what_was_learned_every_second() {
    let mut table = Table::with(2, sharing(Name::RoundRobin));
    let verdicts = |table: &mut Table| {
        let told = table.outbox().assessed;
        told.into_iter().map(|(key, it)| (key, it.verdict, it.rates.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(
        verdicts(&mut table),
        [(key_of(0), Verdict::Healthy, false), (key_of(1), Verdict::Healthy, false)]
    );
    for (evidence, verdict) in [
        (Evidence::Silent, Some(Verdict::Suspect)),
        (Evidence::Silent, Some(Verdict::Ejected)),
        (Evidence::Silent, None),
        (Evidence::ProbeAnswered, Some(Verdict::Healthy)),
    ] {
        table.on(Event::Probed { worker: WorkerId(0), evidence });
        let expected: Vec<_> = verdict.map(|it| (key_of(0), it, false)).into_iter().collect();
        assert_eq!(verdicts(&mut table), expected, "{evidence:?}");
    }
    for request in 0..12 {
        table.arrive(request, Some("llama")).unwrap();
        table.now = table.now + Duration::from_millis(70);
        table.begin(request);
        table.on(Event::Left { request: RequestId(request) });
    }
    table.outbox();
    table.now = table.now + Duration::from_secs(1);
    for expected in [1, 0] {
        table.on(Event::Tick);
        let told = verdicts(&mut table);
        assert_eq!(told.iter().filter(|it| it.0 == key_of(1) && it.2).count(), expected, "{told:?}");
    }
}

#[test]
fn new_pins_are_told_and_looking_tells_nothing() {
    let mut table = Table::with(3, sharing(Name::StickySession));
    let session = |request, session| Arrival { session: Some(session), ..arrival(request, Some("llama")) };
    table.brain.explain(table.now, &session(9, 7)).unwrap();
    assert_eq!(table.outbox().pinned, []);
    let home = outcome(&table.on(Event::Arrived(session(1, 7)))).unwrap();
    table.on(Event::Arrived(session(2, 7)));
    assert_eq!(table.outbox().pinned, [(hash_of("llama"), 7, key_of(home))]);
    let other = (home + 1) % 3;
    table.hear(PeerUpdate::Pinned { model: hash_of("llama"), session: 8, worker: key_of(other) });
    assert_eq!(outcome(&table.on(Event::Arrived(session(3, 8)))), Ok(other));
    assert_eq!(table.outbox().pinned, [], "others know that");
    table.on(Event::Arrived(Arrival { session: Some(5), ..arrival(4, None) }));
    assert!(matches!(table.outbox().pinned[..], [(0, 5, _)]));
}

#[test]
fn prompts_are_told_when_they_are_seated_and_beyond_the_bound_the_oldest_are_dropped() {
    let mut table = Table::with(2, sharing(Name::LeastDelay));
    for request in 0..KEPT_MAX as u64 + 5 {
        let text = prompt(request, 2);
        table.on(Event::Arrived(chat(request, &text)));
        table.on(Event::Left { request: RequestId(request) });
    }
    let told = table.outbox();
    assert_eq!((told.placed.len(), told.dropped), (KEPT_MAX, 5));
    assert_eq!(told.placed[0].1.chain, prompt(5, 2).chain);
    table.arrive(99_999, Some("llama")).unwrap();
    assert!(table.outbox().placed.is_empty(), "of one that nobody read there is nothing to tell");
}

#[test]
fn spending_is_told_of_limited_tenants_and_of_all_while_anybody_waits() {
    let mut queue = maitre_queue::Settings { sequences_max: 1, ..maitre_queue::Settings::default() };
    let terms = Terms { requests_per_minute: Some(2), ..Terms::default() };
    let limited = Tenant { name: "limited".to_owned(), terms };
    let (tenant, other) = (limited.id(), TenantId(77));
    queue.tenants.insert(tenant, limited);
    let mut table = Table::with_line(1, Settings { queue, ..sharing(Name::RoundRobin) });
    let come = |table: &mut Table, request, tenant| {
        table.on(Event::Arrived(Arrival { tenant, ..arrival(request, Some("llama")) }));
        table.outbox().spent
    };
    let spent = |tenant| vec![(hash_of("llama"), tenant, Spent { requests: 1, tokens: 1_100 })];
    assert_eq!(come(&mut table, 1, other), [], "nobody cares");
    assert_eq!(come(&mut table, 2, tenant), spent(tenant));
    assert_eq!(come(&mut table, 3, other), spent(other), "somebody waits");
    assert_eq!(come(&mut table, 4, tenant), spent(tenant));
    assert_eq!(come(&mut table, 5, tenant), [], "it was refused");
    // One that waits until it is too late took nothing.
    table.now = table.now + Duration::from_secs(3_600);
    table.on(Event::Tick);
    assert_eq!(table.brain.parts.scheduler.waiting(), 0);
    assert_eq!(come(&mut table, 6, tenant), [], "two were given back");
}

#[test]
fn lists_change_places_with_those_of_whoever_fetches_them() {
    let mut table = Table::with(2, sharing(Name::LeastDelay));
    let mut outbox = Outbox::default();
    let mut places = BTreeMap::new();
    for request in 0..200 {
        let text = prompt(request, 4);
        table.on(Event::Arrived(chat(request, &text)));
        table.on(Event::Left { request: RequestId(request) });
        table.brain.take_outbox(&mut outbox);
        assert_eq!(outbox.placed.len(), 1);
        *places.entry(outbox.placed.as_ptr()).or_insert(0) += 1;
        outbox.clear();
    }
    assert_eq!(places.len(), 2, "one is filled while the other is read");
}

#[test]
fn who_begins_to_share_tells_everything_once() {
    let mut table = Table::with(2, Settings { strategy: Name::RoundRobin, ..Settings::default() });
    table.arrive(1, Some("llama")).unwrap();
    let mut settings = table.brain.settings().clone();
    settings.shares = true;
    table.brain.reconfigure(table.now, settings.clone(), &mut Vec::new()).unwrap();
    let told = table.outbox();
    assert_eq!(told.promised, [(key_of(0), load(1, 1_000)), (key_of(1), PromisedWork::default())]);
    assert_eq!(told.assessed.len(), 2);
    settings.shares = false;
    table.arrive(2, Some("llama")).unwrap();
    table.brain.reconfigure(table.now, settings, &mut Vec::new()).unwrap();
    assert!(!table.brain.has_outbox() && table.outbox().is_empty());
}
