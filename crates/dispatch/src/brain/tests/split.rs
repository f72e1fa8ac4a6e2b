//! One worker prefills, another answers: who is chosen, and what each is promised until when.

use super::*;
use maitre_base::{Handoff, HandoffStyle, PrefillAnswer, PrefillWork, Role};
use maitre_fleet::Fleet;
use maitre_fleet::estimate::Answers;
use maitre_fleet::transfers::Way;
use maitre_policy::split::{SplitRule, whole_price};
use proptest::prelude::Strategy as _;

/// The prefill worker, and the first decode worker.
const P: WorkerId = WorkerId(0);
const D: WorkerId = WorkerId(1);

/// The first workers of a fleet only prefill, the others decode.
fn fleet(prefill: u32, decode: u32) -> Harness {
    let settings = BrainSettings { failovers_max: 2, ..BrainSettings::default() };
    let mut harness = Harness::with(prefill + decode, settings);
    for number in 0..prefill + decode {
        let role = if number < prefill { Role::Prefill } else { Role::Decode };
        harness.on(Event::WorkerRole { worker: WorkerId(number), role });
    }
    harness
}

/// The decode workers answer so many requests each.
fn busy(mut harness: Harness, requests: u64) -> Harness {
    let decode = harness.brain.fleet().workers().filter(|it| it.role == Role::Decode).count() as u64;
    for request in 1_000..1_000 + requests * decode {
        let arrival =
            Arrival { may_split: false, size: Size::Tokens(100), ..arrival(request, Some("llama")) };
        harness.on(Event::Arrived(arrival));
        harness.begin(request);
    }
    harness
}

fn long(request: u64) -> Arrival<'static> {
    Arrival { size: Size::Tokens(20_000), ..arrival(request, Some("llama")) }
}

/// Where a long prompt is prefilled, if not where it is answered.
fn prefilled_by(harness: &mut Harness, arrival: Arrival<'_>) -> Option<WorkerId> {
    placement(&harness.on(Event::Arrived(arrival))).prefill
}

#[test]
fn a_long_prompt_spares_a_busy_decode_worker() {
    let mut harness = busy(fleet(1, 1), 40);
    assert_eq!(prefilled_by(&mut harness, long(1)), Some(P));
    let [prefill, decode] = [P, D].map(|it| harness.promised()[it.index()]);
    assert_eq!((prefill.requests, prefill.prefill.tokens, prefill.decode), (1, Tokens(20_000), Tokens(1)));
    assert_eq!((decode.requests, decode.prefill), (41, PrefillWork::ZERO));
}

#[test]
fn what_cannot_or_need_not_be_split_is_not() {
    assert_eq!(prefilled_by(&mut busy(fleet(1, 1), 40), Arrival { may_split: false, ..long(1) }), None);
    assert_eq!(prefilled_by(&mut busy(fleet(0, 2), 40), long(1)), None);
    assert_eq!(prefilled_by(&mut fleet(1, 1), long(1)), None, "an idle decode worker is as fast");
    let mut plain = busy(fleet(1, 1), 40);
    plain.on(Event::WorkerRole { worker: D, role: Role::Both });
    assert_eq!(prefilled_by(&mut plain, long(1)), None, "a worker of no role fetches nothing");
}

#[test]
fn a_prefill_worker_answers_nobody() {
    let mut harness = fleet(1, 2);
    for request in 0..20 {
        assert_ne!(placement(&harness.on(Event::Arrived(long(request)))).worker, P);
    }
    let mut alone = fleet(1, 0);
    assert_eq!(alone.arrive(1, Some("llama")), Err(Refusal::NoWorker));
}

#[test]
fn each_promise_ends_with_its_leg() {
    let mut harness = busy(fleet(1, 1), 40);
    harness.on(Event::Arrived(long(1)));
    harness.on(Event::Prefilled { request: RequestId(1), worker: P, counted: None });
    assert_eq!(harness.promised()[P.index()], PromisedWork::default());
    assert_eq!(harness.promised()[D.index()].requests, 41);
    harness.begin(1);
    harness.on(Event::Finished { request: RequestId(1), counted: None, pieces: 3 });
    assert_eq!(harness.promised()[D.index()].requests, 40);
}

#[test]
fn a_failed_prefill_is_done_by_another_or_where_it_is_answered() {
    let mut harness = busy(fleet(2, 1), 40);
    let first = prefilled_by(&mut harness, long(1)).unwrap();
    let failed = |worker| Event::Failed { request: RequestId(1), worker, failure: Failure::Broke };
    let second = placement(&harness.on(failed(first)));
    assert_eq!((second.worker, second.prefill), (WorkerId(2), Some(WorkerId(1 - first.0))));
    let third = placement(&harness.on(failed(WorkerId(1 - first.0))));
    assert_eq!((third.worker, third.prefill), (WorkerId(2), None));
    assert_eq!(harness.promised()[..2], [PromisedWork::default(); 2]);
}

#[test]
fn the_last_attempt_is_a_plain_one() {
    let mut harness = busy(fleet(3, 1), 40);
    let prefilled = [(); 2].map(|()| {
        let worker = match harness.brain.pending.get(&1) {
            None => prefilled_by(&mut harness, long(1)),
            Some(request) => request.prefill_worker(),
        };
        let worker = worker.unwrap();
        harness.on(Event::Failed { request: RequestId(1), worker, failure: Failure::Broke });
        worker
    });
    assert_ne!(prefilled[0], prefilled[1]);
    let request = &harness.brain.pending[&1];
    assert_eq!((request.worker(), request.prefill_worker()), (Some(WorkerId(3)), None));
}

#[test]
fn a_failed_handoff_is_served_whole_where_it_is_answered() {
    let mut harness = busy(fleet(1, 1), 40);
    assert_eq!(prefilled_by(&mut harness, long(1)), Some(P));
    harness.on(Event::Prefilled { request: RequestId(1), worker: P, counted: None });
    let second = placement(&harness.fail_attempt(1, Failure::Handoff));
    assert_eq!((second.worker, second.prefill), (D, None));
    assert_eq!(prefilled_by(&mut harness, long(2)), None, "not again at once");
    harness.now = harness.now + Duration::from_secs(11);
    assert_eq!(prefilled_by(&mut harness, long(3)), Some(P));
}

#[test]
fn a_deadline_that_only_the_decode_worker_meets_is_kept() {
    let mut harness = busy(fleet(1, 1), 40);
    (100..110).for_each(|it| drop(harness.on(Event::Arrived(long(it)))));
    harness.brain.parts.settings.queue.enabled = true;
    let soon = harness.now + Duration::from_millis(1_300);
    assert_eq!(prefilled_by(&mut harness, Arrival { deadline: Some(soon), ..long(1) }), None);
}

#[test]
fn a_worker_id_is_not_reused_while_an_answer_may_name_it() {
    let mut harness = busy(fleet(1, 1), 40);
    harness.on(Event::Arrived(long(1)));
    harness.on(Event::Prefilled { request: RequestId(1), worker: P, counted: None });
    assert!(harness.brain.pending[&1].workers_named().any(|it| it == P));
}

#[test]
fn a_failed_answer_is_prefilled_anew() {
    let mut harness = busy(fleet(1, 2), 40);
    let first = placement(&harness.on(Event::Arrived(long(1))));
    assert_eq!(first.prefill, Some(P));
    harness.on(Event::Prefilled { request: RequestId(1), worker: P, counted: None });
    let second = placement(&harness.fail_attempt(1, Failure::Failed));
    assert_ne!(second.worker, first.worker);
    assert_eq!(second.prefill, Some(P), "what was handed over serves once");
    harness.on(Event::Left { request: RequestId(1) });
    assert_eq!(harness.promised()[P.index()], PromisedWork::default());
}

#[test]
fn what_the_prefill_worker_had_cached_says_nothing_about_the_decode_worker() {
    let mut harness = busy(fleet(1, 1), 40);
    harness.brain.parts.settings.split = SplitRule::Always;
    let tokens: Vec<u32> = (0..20_000).collect();
    let chain = |tokens: &[u32]| {
        let mut chain = Vec::new();
        maitre_index::prefix::chain(Root::new(Unit::Tokens, "llama", None, None), tokens, 16, &mut chain);
        PromptChain {
            unit: Unit::Tokens,
            units: tokens.len() as u64,
            block: 16,
            chain: chain.into(),
            chunks: None,
        }
    };
    let held = |harness: &Harness| harness.brain.cache().numbers(D).unwrap().predicted_blocks;
    // The decode worker has another prompt, and then the first half of this one.
    let earlier = [chain(&[7; 1_600]), chain(&tokens[..10_000])];
    for (request, prompt) in (1..).zip(&earlier) {
        harness.on(Event::Arrived(Arrival { prompt: Some(prompt), may_split: false, ..long(request) }));
        harness.begin(request);
        harness.on(Event::Finished { request: RequestId(request), counted: None, pieces: 3 });
        harness.now = harness.now + Duration::from_secs(1);
    }
    let prompt = chain(&tokens);
    let arrival = Arrival { prompt: Some(&prompt), ..long(3) };
    assert_eq!(prefilled_by(&mut harness, arrival), Some(P));
    harness.on(Event::Prefilled { request: RequestId(3), worker: P, counted: None });
    harness.begin(3);
    let before = held(&harness);
    let counted = Counted { prompt: Some(20_000), cached: Some(0), answer: Some(3) };
    harness.on(Event::Finished { request: RequestId(3), counted: Some(counted), pieces: 3 });
    assert_eq!((before, held(&harness)), (1_350, 1_350), "nothing is evicted there");
}

#[test]
fn slow_transfers_are_learned_and_avoided() {
    let mut harness = busy(fleet(1, 1), 40);
    let mut splits = 0;
    for request in 0..40 {
        let split = prefilled_by(&mut harness, long(request)).is_some();
        splits += u32::from(split);
        if split {
            harness.on(Event::Prefilled { request: RequestId(request), worker: P, counted: None });
        }
        harness.now = harness.now + Duration::from_secs(if split { 30 } else { 1 });
        harness.begin(request);
        harness.on(Event::Finished { request: RequestId(request), counted: None, pieces: 3 });
    }
    assert!((1..15).contains(&splits), "{splits} of 40");
}

/// The prompt of a split request is prefilled, and its first token comes so much later.
fn hand_over(harness: &mut Harness, request: u64, after: Duration) {
    harness.on(Event::Prefilled { request: RequestId(request), worker: P, counted: None });
    harness.now = harness.now + after;
    harness.begin(request);
    harness.now = harness.now + Duration::from_millis(40);
    harness.on(Event::Finished { request: RequestId(request), counted: None, pieces: 3 });
}

#[test]
fn a_rule_that_stopped_to_split_begins_again_once_requests_come_in_time() {
    let mut harness = busy(fleet(1, 1), 40);
    harness.brain.parts.settings.split = "edpp-1000".parse().unwrap();
    let mut request = 0;
    let mut tries = |harness: &mut Harness, times: u64| {
        let splits = (0..times).filter(|_| {
            request += 1;
            let split = prefilled_by(harness, long(request)).is_some();
            // The prefill takes long, not the transfer.
            harness.now = harness.now + Duration::from_millis(if split { 1_500 } else { 900 });
            hand_over(harness, request, Duration::from_millis(100));
            split
        });
        splits.count()
    };
    let first = tries(&mut harness, 10);
    assert!((1..5).contains(&first), "{first}");
    let later = tries(&mut harness, 60);
    assert!(later > 0, "it never splits again");
}

#[test]
fn the_record_has_both_prices() {
    let mut harness = busy(fleet(1, 1), 40);
    let explained = harness.brain.explain(harness.now, &long(7)).unwrap();
    harness.on(Event::Arrived(long(1)));
    let decision = harness.brain.decisions().newest_first().next().unwrap();
    for prefill in [explained.prefill, decision.prefill] {
        let prefill = prefill.unwrap();
        assert_eq!((prefill.worker, prefill.fetches), (P, Tokens(20_000)));
        assert!(prefill.elsewhere < prefill.here, "{prefill:?}");
    }
    let chosen = decision.chosen().unwrap();
    assert_eq!(decision.prefill.unwrap().here, whole_price(&decision.ask, &chosen.candidate));
}

/// All workers are of a style whose workers serve no request alone.
fn dependent(prefill: u32, decode: u32) -> Harness {
    let mut harness = fleet(prefill, decode);
    let handoff = Handoff {
        style: HandoffStyle::Sglang,
        answer: PrefillAnswer::Fetched,
        needs_partner: true,
        caches_prefixes: true,
    };
    for number in 0..prefill + decode {
        harness.on(Event::WorkerHandoff { worker: WorkerId(number), handoff });
    }
    harness
}

#[test]
fn a_worker_that_serves_nothing_alone_always_has_a_partner() {
    let mut harness = dependent(1, 1);
    harness.brain.parts.settings.split = SplitRule::Never;
    for (request, size) in [(1, 20_000), (2, 5)] {
        let arrival = Arrival { size: Size::Tokens(size), ..long(request) };
        assert_eq!(prefilled_by(&mut harness, arrival), Some(P), "{size} tokens");
    }
    let alone = Arrival { may_split: false, ..long(3) };
    let refused = harness.on(Event::Arrived(alone));
    assert_eq!(refused, [Effect::Refuse { request: RequestId(3), refusal: Refusal::NoWorker }]);
    let counts = Arrival { may_split: false, answers: Answers::NONE, ..long(4) };
    assert_eq!(placement(&harness.on(Event::Arrived(counts))).worker, D, "needs no answer");
    let mut lonely = dependent(0, 1);
    assert_eq!(lonely.arrive(1, Some("llama")), Err(Refusal::NoWorker));
}

#[test]
fn the_last_attempt_of_a_request_that_cannot_be_plain_is_split_too() {
    let mut harness = dependent(3, 1);
    let mut prefilled = vec![prefilled_by(&mut harness, long(1)).unwrap()];
    for _ in 0..2 {
        let worker = *prefilled.last().unwrap();
        let failed = Event::Failed { request: RequestId(1), worker, failure: Failure::Broke };
        prefilled.push(placement(&harness.on(failed)).prefill.unwrap());
    }
    prefilled.sort();
    assert_eq!(prefilled, [0, 1, 2].map(WorkerId));
}

#[test]
fn a_doubtful_prefill_worker_is_better_than_none_where_one_is_needed() {
    let mut harness = dependent(1, 1);
    assert_eq!(prefilled_by(&mut harness, long(1)), Some(P));
    harness.on(Event::Prefilled { request: RequestId(1), worker: P, counted: None });
    harness.fail_attempt(1, Failure::Handoff);
    assert_eq!(prefilled_by(&mut harness, long(2)), Some(P));
}

#[test]
fn workers_of_different_styles_are_no_partners() {
    let mut harness = busy(fleet(1, 1), 40);
    let handoff = Handoff { style: HandoffStyle::Mooncake, ..Handoff::default() };
    harness.on(Event::WorkerHandoff { worker: P, handoff });
    assert_eq!(prefilled_by(&mut harness, long(1)), None);
    harness.on(Event::WorkerHandoff { worker: D, handoff });
    assert_eq!(prefilled_by(&mut harness, long(2)), Some(P));
}

#[test]
fn a_first_token_ends_a_prefill_leg_that_runs_beside_it() {
    let mut harness = dependent(1, 1);
    assert_eq!(prefilled_by(&mut harness, long(1)), Some(P));
    harness.begin(1);
    assert_eq!(harness.promised()[P.index()], PromisedWork::default());
    let way = Way::between(P, D);
    let before = harness.brain.fleet().transfer_time(way, Tokens(20_000));
    assert_eq!(before, Fleet::default().transfer_time(way, Tokens(20_000)), "teaches nothing about the link");
    harness.on(Event::Prefilled { request: RequestId(1), worker: P, counted: None });
    harness.on(Event::Finished { request: RequestId(1), counted: None, pieces: 3 });
    assert_eq!(harness.promised()[D.index()], PromisedWork::default());
}

#[test]
fn a_prefill_worker_with_a_slow_link_to_the_decode_worker_is_passed_over() {
    let mut harness = busy(fleet(2, 1), 40);
    let (slow, decodes) = (P, WorkerId(2));
    for _ in 0..30 {
        let way = Way::between(slow, decodes);
        harness.brain.parts.fleet.learn_transfer(way, Tokens(20_000), Duration::from_secs(9));
        let way = Way::between(WorkerId(1), decodes);
        harness.brain.parts.fleet.learn_transfer(way, Tokens(20_000), Duration::from_millis(120));
    }
    for request in 1..4 {
        assert_eq!(prefilled_by(&mut harness, long(request)), Some(WorkerId(1)), "{request}");
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive(bool),
    Prefilled(u8),
    PrefillFails(u8),
    Begin(u8),
    Fail(u8),
    Finish(u8),
    Leave(u8),
    PrefillWorkerGone,
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    let request = || 0..12_u8;
    proptest::prop_oneof![
        any::<bool>().prop_map(Step::Arrive),
        request().prop_map(Step::Prefilled),
        request().prop_map(Step::PrefillFails),
        request().prop_map(Step::Begin),
        request().prop_map(Step::Fail),
        request().prop_map(Step::Finish),
        request().prop_map(Step::Leave),
        proptest::prelude::Just(Step::PrefillWorkerGone),
    ]
}

proptest! {
    #[test]
    fn nothing_stays_promised(steps in prop::collection::vec(step(), 1..80), is_dependent in any::<bool>()) {
        let mut harness = if is_dependent { dependent(2, 2) } else { fleet(2, 2) };
        let mut next = 0;
        for step in steps {
            harness.now = harness.now + Duration::from_millis(30);
            let id = |it: u8| RequestId(u64::from(it));
            let leg = |harness: &Harness, it: u8| {
                harness.brain.pending.get(&u64::from(it)).and_then(|it| it.prefill_worker())
            };
            match step {
                Step::Arrive(is_long) => {
                    let size = Size::Tokens(if is_long { 20_000 } else { 50 });
                    harness.on(Event::Arrived(Arrival { size, ..arrival(next, Some("llama")) }));
                    next += 1;
                }
                Step::Prefilled(it) => {
                    let worker = leg(&harness, it).unwrap_or(P);
                    harness.on(Event::Prefilled { request: id(it), worker, counted: None });
                }
                Step::PrefillFails(it) => {
                    let worker = leg(&harness, it).unwrap_or(P);
                    harness.on(Event::Failed { request: id(it), worker, failure: Failure::Broke });
                }
                Step::Begin(it) => drop(harness.begin(u64::from(it))),
                Step::Fail(it) => drop(harness.fail_attempt(u64::from(it), Failure::Failed)),
                Step::Finish(it) => drop(harness.on(Event::Finished { request: id(it), counted: None, pieces: 2 })),
                Step::Leave(it) => drop(harness.on(Event::Left { request: id(it) })),
                Step::PrefillWorkerGone => drop(harness.on(Event::WorkerGone { worker: WorkerId(1) })),
            }
        }
        (0..next).for_each(|it| drop(harness.on(Event::Left { request: RequestId(it) })));
        prop_assert_eq!(harness.brain.open(), 0);
        for work in harness.promised() {
            prop_assert_eq!(work, PromisedWork::default());
        }
    }
}
