//! KV between engines: holds and their leases, and sequences that wait for their KV.

use std::time::Duration;

use super::*;
use crate::engine::transfer::{Content, FetchOutcome};
use crate::text;

const LEASE: Duration = Duration::from_secs(30);

fn submit_out(engine: &mut Engine, job: Job) -> JobId {
    let transfer = Transfer::Out { lease: LEASE };
    engine.submit_transfer(Instant::ZERO, job, KnownPrompt::default(), transfer).unwrap()
}

fn submit_in(engine: &mut Engine, job: Job) -> JobId {
    engine.submit_transfer(Instant::ZERO, job, KnownPrompt::default(), Transfer::In).unwrap()
}

fn arrived(tokens: u32) -> FetchOutcome {
    FetchOutcome::Arrived { tokens, content: Content::Right }
}

/// Submits a job that waits for its KV, and returns it once its blocks are reserved.
fn fetching(engine: &mut Engine, job: Job) -> JobId {
    let id = submit_in(engine, job);
    assert_eq!(engine.begin_step(), None, "it computes nothing while it waits");
    id
}

#[test]
fn a_prefill_leg_holds_its_blocks_until_they_are_released() {
    let mut engine = engine(TINY);
    let id = submit_out(&mut engine, job(1, 10, 1));
    run(&mut engine);
    assert_eq!((engine.stats().running, engine.stats().used_blocks), (0, 3));
    let hold = engine.hold(id.into()).unwrap();
    assert_eq!((hold.blocks.len(), hold.until, hold.seed), (3, Instant::ZERO + LEASE, 1));
    assert!(engine.release_hold(id.into()));
    assert_eq!(engine.stats().used_blocks, 0);
    assert!(!engine.release_hold(id.into()), "a hold is released once");
    assert_eq!(engine.holds(&job(1, 8, 0).prompt, &root("")), 2, "what was held stays cached");
}

#[test]
fn an_answer_that_ends_by_itself_holds_nothing() {
    let mut engine = engine(TINY);
    let id = submit_out(&mut engine, Job { finish: Finish::Stop, ..job(1, 10, 1) });
    run(&mut engine);
    assert_eq!((engine.hold(id.into()), engine.stats().used_blocks), (None, 0));
}

#[test]
fn a_lease_ends_unless_it_is_extended() {
    let mut engine = engine(TINY);
    let [first, second] = [1, 2].map(|family| submit_out(&mut engine, job(family, 4, 1)));
    run(&mut engine);
    let end = Instant::ZERO + LEASE;
    engine.extend_hold(second.into(), end + LEASE);
    engine.extend_hold(second.into(), end);
    assert_eq!(engine.next_expiry(), Some(end));
    assert!(!engine.expire_holds(end.before(Duration::from_nanos(1))));
    assert!(engine.expire_holds(end));
    assert_eq!((engine.hold(first.into()), engine.stats().used_blocks), (None, 1));
    assert_eq!(engine.next_expiry(), Some(end + LEASE));
    assert_eq!(engine.transfer_counters().expired, 1);
}

#[test]
fn held_blocks_keep_a_prompt_waiting() {
    let mut engine = engine(Profile { kv_blocks: 5, ..TINY });
    let held = submit_out(&mut engine, job(1, 12, 1));
    run(&mut engine);
    submit(&mut engine, job(2, 12, 1));
    assert_eq!(engine.begin_step(), None);
    assert_eq!(engine.stats().waiting, 1);
    engine.release_hold(held.into());
    assert_eq!(run(&mut engine).len(), 1);
}

#[test]
fn a_decode_leg_waits_for_its_kv_and_computes_one_token() {
    let mut engine = engine(TINY);
    let id = fetching(&mut engine, job(1, 40, 2));
    let fetch =
        KvFetch { job: id, held_tokens: 0, prompt_tokens: 40, is_wanted: true, origin: FetchOrigin::Request };
    assert_eq!(engine.take_fetches(), [fetch]);
    let stats = engine.stats();
    assert_eq!((stats.used_blocks, stats.receiving, stats.waiting, stats.running), (10, 1, 1, 0));
    engine.finish_fetch(id, arrived(40));
    let (prefill, decodes, outputs) = step(&mut engine).unwrap();
    assert_eq!((prefill, decodes, outputs[0].cached_tokens), (1, 0, 40));
    assert_eq!(step(&mut engine).unwrap().1, 1);
    let counters = engine.transfer_counters();
    assert_eq!((counters.received_tokens, counters.local_tokens), (40, 0));
    assert_eq!((engine.stats().used_blocks, engine.stats().waiting), (0, 0));
    assert_eq!(engine.holds(&job(1, 40, 0).prompt, &root("")), 10, "what arrived is cached");
}

#[test]
fn only_what_is_not_cached_is_fetched() {
    let mut engine = engine(TINY);
    submit(&mut engine, job(1, 30, 1));
    run(&mut engine);
    let id = fetching(&mut engine, job(1, 30, 1));
    assert_eq!(engine.take_fetches()[0].held_tokens, 28);
    engine.finish_fetch(id, arrived(30));
    run(&mut engine);
    let counters = engine.transfer_counters();
    assert_eq!((counters.received_tokens, counters.local_tokens), (2, 28));
}

#[test]
fn the_answer_is_that_of_one_engine_unless_the_kv_was_wrong() {
    let tokens = |all: &[TokenOutput]| all.iter().map(|it| it.token).collect::<Vec<_>>();
    let mut plain = engine(TINY);
    submit(&mut plain, job(7, 10, 5));
    let expected = tokens(&run(&mut plain));
    for content in [Content::Right, Content::Wrong] {
        let mut engine = engine(TINY);
        let id = fetching(&mut engine, job(7, 10, 5));
        engine.finish_fetch(id, FetchOutcome::Arrived { tokens: 10, content });
        let answer = tokens(&run(&mut engine));
        assert_eq!(answer == expected, content == Content::Right);
        let wrong: Vec<u32> = (0..5).map(|index| text::answer_token(text::wrong_seed(7), index)).collect();
        assert_eq!(answer == wrong, content == Content::Wrong, "always the same wrong answer");
    }
}

#[test]
fn what_does_not_arrive_is_computed() {
    let mut engine = engine(TINY);
    let id = fetching(&mut engine, job(1, 12, 1));
    engine.finish_fetch(id, arrived(8));
    assert_eq!(step(&mut engine).unwrap().0, 4);
    let id = fetching(&mut engine, job(2, 12, 1));
    engine.finish_fetch(id, arrived(0));
    assert_eq!(step(&mut engine).unwrap().0, 12);
    assert_eq!(engine.transfer_counters().received_tokens, 8);
}

#[test]
fn a_failed_fetch_ends_its_job_and_frees_its_blocks() {
    let mut engine = engine(TINY);
    let id = fetching(&mut engine, job(1, 12, 1));
    engine.finish_fetch(id, FetchOutcome::Failed);
    let stats = engine.stats();
    assert_eq!((stats.used_blocks, stats.waiting, engine.transfer_counters().failed), (0, 0, 1));
    engine.finish_fetch(id, arrived(12));
    assert_eq!(run(&mut engine), [], "an ended job stays ended");
}

#[test]
fn a_client_that_leaves_does_not_end_the_fetch() {
    let mut engine = engine(TINY);
    let id = fetching(&mut engine, job(1, 12, 1));
    engine.take_fetches();
    engine.abort(id);
    assert_eq!(engine.stats().used_blocks, 3, "blocks that are written to are not free");
    engine.finish_fetch(id, arrived(12));
    assert_eq!((engine.stats().used_blocks, engine.stats().counters.aborted), (0, 1));
    assert_eq!(run(&mut engine), []);
}

#[test]
fn a_job_that_ends_before_its_fetch_still_notifies_the_owner() {
    let mut engine = engine(Profile { running_max: 1, ..TINY });
    submit(&mut engine, job(1, 12, 3));
    step(&mut engine);
    let id = submit_in(&mut engine, job(2, 12, 1));
    step(&mut engine);
    assert_eq!(engine.take_fetches(), [], "another one runs");
    engine.abort(id);
    assert_eq!(
        engine.take_fetches(),
        [KvFetch {
            job: id,
            held_tokens: 0,
            prompt_tokens: 12,
            is_wanted: false,
            origin: FetchOrigin::Request
        }]
    );
}

#[test]
fn a_job_can_end_between_arrival_and_its_step() {
    let mut engine = engine(TINY);
    let id = fetching(&mut engine, job(1, 12, 1));
    engine.finish_fetch(id, arrived(12));
    engine.abort(id);
    assert_eq!((engine.stats().used_blocks, engine.stats().waiting), (0, 0));
    assert_eq!(run(&mut engine), []);
}

#[test]
fn others_run_while_one_waits_for_its_kv() {
    let mut engine = engine(TINY);
    let waiting = submit_in(&mut engine, job(1, 12, 1));
    submit(&mut engine, job(2, 12, 2));
    assert_eq!(step(&mut engine).unwrap().0, 12);
    engine.finish_fetch(waiting, arrived(12));
    let (prefill, decodes, outputs) = step(&mut engine).unwrap();
    assert_eq!((prefill, decodes, outputs.len()), (1, 1, 2));
}

#[test]
fn a_preempted_sequence_computes_what_it_had_received() {
    // Seven blocks: two prompts of three blocks, and each answer needs one more.
    let mut engine = engine(Profile { kv_blocks: 8, ..TINY });
    submit(&mut engine, job(1, 12, 6));
    let id = submit_in(&mut engine, job(2, 12, 6));
    step(&mut engine);
    engine.finish_fetch(id, arrived(12));
    let outputs = run(&mut engine);
    assert_eq!(engine.stats().counters.preemptions, 1);
    assert_eq!(outputs.iter().filter(|it| it.job == id).count(), 6);
    assert_eq!(engine.take_fetches().len(), 1, "it is not fetched again");
    assert_eq!(engine.stats().used_blocks, 0);
}

#[test]
fn a_sequence_that_preempts_itself_lets_the_next_one_run() {
    // Seven blocks: four wait for their KV, three are the prompt that runs, and its answer needs one more.
    let mut engine = engine(Profile { kv_blocks: 8, ..TINY });
    let received = submit_in(&mut engine, job(1, 16, 1));
    let preempted = submit(&mut engine, job(2, 12, 6));
    step(&mut engine);
    engine.finish_fetch(received, arrived(16));
    let outputs = run(&mut engine);
    let of = |id| outputs.iter().filter(|it| it.job == id).count();
    assert_eq!((of(received), of(preempted)), (1, 5));
    assert_eq!((engine.stats().counters.preemptions, engine.stats().used_blocks), (1, 0));
}

#[derive(Clone, Debug)]
enum TransferOp {
    Submit { family: u32, prompt_tokens: u32, answer_tokens: u32, transfer: Transfer },
    EngineStep,
    Abort { index: usize },
    FinishFetch { tokens: u32 },
    FailFetch,
    Expire,
}

fn ops() -> impl Strategy<Value = Vec<TransferOp>> {
    let transfer =
        prop_oneof![Just(Transfer::None), Just(Transfer::Out { lease: LEASE }), Just(Transfer::In)];
    let submit = (0..4u32, 1..60u32, 1..20u32, transfer).prop_map(
        |(family, prompt_tokens, answer_tokens, transfer)| TransferOp::Submit {
            family,
            prompt_tokens,
            answer_tokens,
            transfer,
        },
    );
    let op = prop_oneof![
        3 => submit,
        5 => Just(TransferOp::EngineStep),
        1 => (0..20usize).prop_map(|index| TransferOp::Abort { index }),
        2 => (0..70u32).prop_map(|tokens| TransferOp::FinishFetch { tokens }),
        1 => Just(TransferOp::FailFetch),
        1 => Just(TransferOp::Expire),
    ];
    proptest::collection::vec(op, 0..120)
}

proptest! {
    #[test]
    fn every_transfer_ends_exactly_once_and_no_block_leaks(kv_blocks in 24..40u32, ops in ops()) {
        let mut engine = engine(Profile { kv_blocks, ..TINY });
        let mut jobs = Vec::new();
        let mut fetches = VecDeque::new();
        for op in ops {
            match op {
                TransferOp::Submit { family, prompt_tokens, answer_tokens, transfer } => {
                    let job = job(family, prompt_tokens, answer_tokens);
                    jobs.push(engine.submit_transfer(Instant::ZERO, job, KnownPrompt::default(), transfer).unwrap());
                }
                TransferOp::EngineStep => drop(step(&mut engine)),
                TransferOp::Abort { index } => jobs.get(index).into_iter().for_each(|&id| engine.abort(id)),
                TransferOp::FinishFetch { tokens } => {
                    let fetch: Option<KvFetch> = fetches.pop_front();
                    fetch.into_iter().for_each(|it| engine.finish_fetch(it.job, arrived(tokens)));
                }
                TransferOp::FailFetch => {
                    let fetch = fetches.pop_front();
                    fetch.into_iter().for_each(|it| engine.finish_fetch(it.job, FetchOutcome::Failed));
                }
                TransferOp::Expire => drop(engine.expire_holds(Instant::ZERO + LEASE)),
            }
            fetches.extend(engine.take_fetches());
            let stats = engine.stats();
            prop_assert!(stats.used_blocks <= stats.capacity_blocks);
            prop_assert!(stats.receiving <= stats.waiting);
        }
        // Every round ends at least one fetch or lease, or is the last.
        loop {
            engine.expire_holds(Instant::ZERO + LEASE);
            run(&mut engine);
            fetches.extend(engine.take_fetches());
            if fetches.is_empty() && engine.next_expiry().is_none() {
                break;
            }
            fetches.drain(..).for_each(|it| engine.finish_fetch(it.job, arrived(it.prompt_tokens)));
        }
        let stats = engine.stats();
        prop_assert_eq!((stats.running, stats.waiting, stats.receiving, stats.used_blocks), (0, 0, 0, 0));
        let ended = stats.counters.reached_length + stats.counters.aborted + engine.transfer_counters().failed;
        prop_assert_eq!(ended, jobs.len() as u64);
    }
}
