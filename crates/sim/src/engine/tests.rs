//! The scheduler as tables: what each step computes, admits, preempts and hits.

mod load;
mod segments;
mod transfer;

use super::*;

use crate::kv::{self, Medium, Names, Stored};
use crate::profile::{INSTANT, StepModel};
use proptest::prelude::*;

/// Small enough to count by hand: blocks of four tokens, steps of sixteen, 32 usable blocks.
const TINY: Profile = Profile {
    block_tokens: 4,
    kv_blocks: 33,
    batch_tokens_max: 16,
    running_max: 4,
    context_tokens_max: 1_000,
    // One millisecond per prompt token, a thousand per decode: a step's duration shows what it did.
    step: StepModel { prefill_token_ms: 1.0, decode_sequence_ms: 1_000.0, ..INSTANT.step },
    ..INSTANT
};

fn engine(profile: Profile) -> Engine {
    Engine::new(EngineConfig::new(profile))
}

fn root(salt: &str) -> Root {
    Root::new(Names { model: "tiny", adapter: None, salt })
}

/// A prompt of its own family: prompts of one family share their prefix, others share nothing.
fn job(family: u32, prompt_tokens: u32, answer_tokens: u32) -> Job {
    Job {
        prompt: (0..prompt_tokens).map(|index| family * 10_000 + index).collect(),
        root: root(""),
        seed: u64::from(family),
        answer_tokens,
        finish: Finish::Length,
    }
}

fn submit(engine: &mut Engine, job: Job) -> JobId {
    engine.submit(Instant::ZERO, job).unwrap()
}

/// Runs one step and returns (prompt tokens computed, sequences decoded, outputs).
fn step(engine: &mut Engine) -> Option<(u64, u64, Vec<TokenOutput>)> {
    let millis = engine.begin_step()?.as_millis() as u64;
    let mut outputs = Vec::new();
    engine.finish_step(Instant::ZERO, &mut outputs);
    Some((millis % 1_000, millis / 1_000, outputs))
}

fn run(engine: &mut Engine) -> Vec<TokenOutput> {
    let mut all = Vec::new();
    while let Some((_, _, outputs)) = step(engine) {
        all.extend(outputs);
    }
    all
}

/// Submits `(prompt_tokens, answer_tokens)` jobs of different families, and compares each step's
/// `(prefill tokens, decodes, outputs)`.
#[track_caller]
fn check_steps(profile: Profile, jobs: &[(u32, u32)], expected: &[(u64, u64, usize)]) {
    let mut engine = engine(profile);
    for (family, &(prompt_tokens, answer_tokens)) in jobs.iter().enumerate() {
        submit(&mut engine, job(family as u32, prompt_tokens, answer_tokens));
    }
    let actual: Vec<_> = std::iter::from_fn(|| step(&mut engine))
        .map(|(prefill, decodes, outputs)| (prefill, decodes, outputs.len()))
        .collect();
    assert_eq!(actual, expected);
    assert_eq!(engine.stats().used_blocks, 0);
}

/// The hit of `prompt` after `before` ran to their ends, one after the other.
#[track_caller]
fn check_hit(before: &[Job], prompt: Job, expected: u32) {
    let mut engine = engine(TINY);
    for job in before {
        submit(&mut engine, job.clone());
        run(&mut engine);
    }
    submit(&mut engine, prompt);
    assert_eq!(run(&mut engine)[0].cached_tokens, expected);
}

#[test]
fn a_prompt_is_prefilled_in_chunks_and_answered_after_the_last() {
    check_steps(TINY, &[(40, 2)], &[(16, 0, 0), (16, 0, 0), (8, 0, 1), (0, 1, 1)]);
}

#[test]
fn decodes_draw_on_the_budget_before_prefill() {
    // Step 2: one decode leaves 15 tokens for the second prompt.
    check_steps(TINY, &[(10, 3), (24, 1)], &[(16, 0, 1), (15, 1, 1), (3, 1, 2)]);
}

#[test]
fn admission_fills_the_budget_in_order_of_arrival() {
    check_steps(TINY, &[(6, 1), (6, 1), (6, 1)], &[(16, 0, 2), (2, 0, 1)]);
}

#[test]
fn no_more_sequences_run_than_the_profile_allows() {
    let profile = Profile { running_max: 1, ..TINY };
    check_steps(profile, &[(4, 2), (4, 1)], &[(4, 0, 1), (0, 1, 1), (4, 0, 1)]);
}

#[test]
fn the_head_of_the_queue_blocks_smaller_ones_behind_it() {
    // Eight usable blocks: the first holds five, so 16 tokens (four blocks) wait, and so does the small one.
    let profile = Profile { kv_blocks: 9, batch_tokens_max: 64, ..TINY };
    check_steps(profile, &[(20, 2), (16, 1), (4, 1)], &[(20, 0, 1), (0, 1, 1), (20, 0, 2)]);
}

#[test]
fn a_blocked_head_is_admitted_once_its_prefix_is_stored_by_another() {
    let mut engine = engine(Profile { kv_blocks: 8, batch_tokens_max: 12, ..TINY });
    submit(&mut engine, job(0, 20, 3));
    submit(&mut engine, job(0, 20, 1));
    // Step 1 stores three blocks and uses up the budget; three of the seven are used, the other needs five
    // of its own or shares three.
    step(&mut engine);
    assert_eq!(engine.stats().waiting, 1);
    step(&mut engine);
    assert_eq!((engine.stats().running, engine.stats().waiting), (1, 0), "the second was done at once");
    run(&mut engine);
    assert_eq!(engine.stats().counters.hit_tokens, 16);
}

#[test]
fn the_youngest_is_preempted_and_starts_over() {
    // Six usable blocks, two prompts of three blocks each; both need a fourth block at their first decode.
    let mut engine = engine(Profile { kv_blocks: 7, batch_tokens_max: 64, ..TINY });
    let (older, younger) = (submit(&mut engine, job(0, 12, 4)), submit(&mut engine, job(1, 12, 4)));
    step(&mut engine);
    assert_eq!(engine.stats().running, 2);
    let (prefill, decodes, outputs) = step(&mut engine).unwrap();
    assert_eq!((prefill, decodes), (0, 1), "no sequence is admitted in a step that preempts");
    assert_eq!(outputs[0].job, older);
    assert_eq!((engine.stats().waiting, engine.stats().counters.preemptions), (1, 1));
    let rest = run(&mut engine);
    let indexes: Vec<u32> = rest.iter().filter(|it| it.job == younger).map(|it| it.index).collect();
    assert_eq!(indexes, [1, 2, 3], "no token is sent twice");
    assert_eq!(engine.stats().counters.prompt_tokens, 24, "a recomputed prompt counts once");
}

#[test]
fn hits_are_whole_blocks() {
    check_hit(&[job(0, 11, 1)], job(0, 30, 1), 8);
    check_hit(&[job(0, 12, 1)], job(0, 30, 1), 12);
}

#[test]
fn the_last_token_of_a_prompt_is_always_computed() {
    check_hit(&[job(0, 12, 1)], job(0, 12, 1), 8);
    check_hit(&[job(0, 13, 1)], job(0, 13, 1), 12);
}

#[test]
fn nothing_is_hit_under_another_root() {
    check_hit(&[job(0, 12, 1)], Job { root: root("salt"), ..job(0, 12, 1) }, 0);
    let adapted = Root::new(Names { model: "tiny", adapter: Some("tiny-sql"), salt: "" });
    check_hit(&[job(0, 12, 1)], Job { root: adapted, ..job(0, 12, 1) }, 0);
}

#[test]
fn blocks_filled_by_an_answer_are_hit_by_the_next_turn() {
    let first = job(0, 10, 7);
    let mut next = first.clone();
    next.prompt.extend((0..7).map(|index| text::answer_token(first.seed, index)));
    next.prompt.extend([1, 2, 3, 4]);
    // 10 + 7 tokens, of which the last was never fed back: four full blocks.
    check_hit(&[first], next, 16);
}

#[test]
fn the_tail_of_an_old_prompt_goes_first() {
    // 32 blocks: 8 of the first family, then 28 others take the 24 that never held anything and 4 tails.
    check_hit(&[job(0, 32, 1), job(1, 112, 1)], job(0, 100, 1), 16);
}

#[test]
fn equal_prompts_in_one_step_share_their_blocks() {
    let mut engine = engine(TINY);
    submit(&mut engine, job(0, 9, 1));
    submit(&mut engine, job(0, 9, 1));
    assert_eq!(step(&mut engine).map(|it| it.0), Some(10));
    assert_eq!(engine.stats().counters.hit_tokens, 8);
}

#[test]
fn a_job_that_can_never_fit_is_rejected_at_once() {
    let mut engine = engine(TINY);
    let mut reject = |job: Job| engine.submit(Instant::ZERO, job).unwrap_err();
    assert_eq!(reject(job(0, 0, 1)), Reject::Empty);
    assert_eq!(reject(job(0, 990, 11)), Reject::TooLong { max: 1_000, prompt: 990, answer: 11 });
    assert_eq!(reject(job(0, 128, 2)), Reject::NeverFits { needed: 33, capacity: 32 });
    assert_eq!(engine.stats().counters.rejected, 3);
    submit(&mut engine, job(0, 128, 1));
    assert_eq!(run(&mut engine).len(), 1);
}

#[test]
fn an_aborted_job_frees_its_blocks_and_produces_no_more_output() {
    let mut engine = engine(TINY);
    let (leaving, waiting) = (submit(&mut engine, job(0, 16, 9)), submit(&mut engine, job(1, 16, 9)));
    engine.begin_step().unwrap();
    engine.abort(leaving);
    engine.abort(waiting);
    assert_eq!(engine.stats().used_blocks, 4, "the step still writes to them");
    let mut outputs = Vec::new();
    engine.finish_step(Instant::ZERO, &mut outputs);
    assert_eq!(outputs, []);
    assert_eq!(
        engine.stats(),
        EngineStats {
            capacity_blocks: 32,
            counters: EngineCounters {
                steps: 1,
                aborted: 2,
                queried_tokens: 16,
                ..EngineCounters::default()
            },
            ..EngineStats::default()
        }
    );
    engine.abort(leaving);
    assert_eq!(engine.stats().counters.aborted, 2, "ended jobs are left alone");
    assert_eq!(engine.begin_step(), None);
}

#[test]
fn an_old_id_does_not_abort_the_next_job_in_its_slot() {
    let mut engine = engine(TINY);
    let old = submit(&mut engine, job(0, 4, 1));
    run(&mut engine);
    let new = submit(&mut engine, job(0, 4, 1));
    assert_eq!(old.slot, new.slot);
    engine.abort(old);
    assert_eq!(run(&mut engine).len(), 1);
}

#[test]
fn changes_list_stored_and_removed_blocks() {
    let mut engine =
        Engine::new(EngineConfig { changes_max: 100, ..EngineConfig::new(Profile { kv_blocks: 4, ..TINY }) });
    submit(&mut engine, job(0, 9, 1));
    run(&mut engine);
    let (changes, _) = engine.take_changes();
    let first = kv::chain(root("").hash(), &[0, 1, 2, 3]);
    let second = kv::chain(first, &[4, 5, 6, 7]);
    let stored = |hash, parent, tokens: [u32; 4]| {
        Change::Stored(Stored {
            medium: Medium::Gpu,
            hash,
            parent,
            tokens: Box::new(tokens),
            adapter: None,
            salt: None,
        })
    };
    assert_eq!(changes, [stored(first, None, [0, 1, 2, 3]), stored(second, Some(first), [4, 5, 6, 7])]);
    submit(&mut engine, job(1, 8, 1));
    run(&mut engine);
    assert_eq!(engine.take_changes().0[0], Change::Removed { hash: second, medium: Medium::Gpu });
}

#[test]
fn changes_carry_the_adapter_on_every_block_and_the_salt_on_the_first() {
    let mut engine = Engine::new(EngineConfig { changes_max: 100, ..EngineConfig::new(TINY) });
    let root = Root::new(Names { model: "tiny", adapter: Some("tiny-sql"), salt: "pepper" });
    submit(&mut engine, Job { root, ..job(0, 9, 1) });
    run(&mut engine);
    let names = engine.take_changes().0.into_iter().map(|it| match it {
        Change::Stored(stored) => (stored.adapter, stored.salt),
        other => panic!("{other:?}"),
    });
    let (adapter, salt) = (Some("tiny-sql".into()), Some("pepper".into()));
    assert_eq!(names.collect::<Vec<_>>(), [(adapter.clone(), salt), (adapter, None)]);
}

#[test]
fn the_cache_is_cleared_only_while_no_block_is_in_use() {
    let mut engine = Engine::new(EngineConfig { changes_max: 100, ..EngineConfig::new(TINY) });
    submit(&mut engine, job(0, 9, 2));
    step(&mut engine);
    assert!(!engine.clear_cache());
    run(&mut engine);
    assert_eq!((engine.holds(&job(0, 9, 1).prompt, &root("")), engine.resident().len()), (2, 2));
    assert_eq!(engine.holds(&job(0, 9, 1).prompt, &root("salt")), 0);
    assert!(engine.clear_cache());
    assert_eq!((engine.holds(&job(0, 9, 1).prompt, &root("")), engine.resident().len()), (0, 0));
    assert_eq!(engine.take_changes().0.last(), Some(&Change::Cleared));
    submit(&mut engine, job(0, 9, 1));
    assert_eq!(run(&mut engine)[0].cached_tokens, 0);
}

#[test]
fn a_restart_drops_everything_and_old_ids_stay_unknown() {
    let mut engine = engine(TINY);
    let old = submit(&mut engine, job(0, 9, 5));
    engine.begin_step();
    engine.restart();
    assert!(!engine.is_stepping() && engine.resident().is_empty());
    assert_eq!(engine.stats().counters, EngineCounters::default());
    let new = submit(&mut engine, job(0, 9, 1));
    assert_eq!(old.slot, new.slot);
    engine.abort(old);
    assert_eq!(run(&mut engine).len(), 1);
}

#[test]
fn times_to_first_and_next_token_are_kept() {
    let mut engine = engine(TINY);
    submit(&mut engine, job(0, 4, 3));
    for millis in [90, 120, 150] {
        engine.begin_step().unwrap();
        engine.finish_step(Instant::from_millis(millis), &mut Vec::new());
    }
    assert_eq!((engine.first_token().count(), engine.inter_token().count()), (1, 2));
    assert!((engine.first_token().sum() - 0.09).abs() < 1e-9);
    assert!((engine.inter_token().sum() - 0.06).abs() < 1e-9);
}

#[derive(Clone, Debug)]
enum Op {
    Submit { family: u32, prompt_tokens: u32, answer_tokens: u32 },
    EngineStep,
    Abort { index: usize },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        2 => (0..4u32, 1..60u32, 1..30u32).prop_map(|(family, prompt_tokens, answer_tokens)| Op::Submit {
            family,
            prompt_tokens,
            answer_tokens
        }),
        5 => Just(Op::EngineStep),
        1 => (0..20usize).prop_map(|index| Op::Abort { index }),
    ];
    proptest::collection::vec(op, 0..120)
}

proptest! {
    #[test]
    fn every_job_ends_exactly_once_and_no_block_leaks(kv_blocks in 24..40u32, ops in ops()) {
        let mut engine = engine(Profile { kv_blocks, ..TINY });
        let mut jobs: Vec<(JobId, u32, u32)> = Vec::new();
        let mut longest = [0u32; 4];
        let mut outputs = Vec::new();
        for op in ops {
            match op {
                Op::Submit { family, prompt_tokens, answer_tokens } => {
                    let id = submit(&mut engine, job(family, prompt_tokens, answer_tokens));
                    jobs.push((id, family, answer_tokens));
                    longest[family as usize] = longest[family as usize].max(prompt_tokens);
                }
                Op::EngineStep => outputs.extend(step(&mut engine).into_iter().flat_map(|it| it.2)),
                Op::Abort { index } => {
                    if let Some(&(id, ..)) = jobs.get(index) {
                        engine.abort(id);
                    }
                }
            }
            let stats = engine.stats();
            prop_assert!(stats.used_blocks <= stats.capacity_blocks);
            prop_assert!(stats.running <= 4);
        }
        outputs.extend(run(&mut engine));
        let stats = engine.stats();
        prop_assert_eq!((stats.running, stats.waiting, stats.used_blocks), (0, 0, 0));
        let ended = stats.counters.reached_length + stats.counters.aborted;
        prop_assert_eq!(ended, jobs.len() as u64);
        for (id, family, answer_tokens) in jobs {
            let own: Vec<&TokenOutput> = outputs.iter().filter(|it| it.job == id).collect();
            prop_assert!(own.iter().zip(0..).all(|(it, index)| it.index == index), "each token once, in order");
            prop_assert!(own.iter().all(|it| it.cached_tokens < longest[family as usize]));
            let finished = own.iter().filter(|it| it.finish.is_some()).count();
            prop_assert!(finished == usize::from(own.len() == answer_tokens as usize));
        }
    }

    #[test]
    fn the_same_jobs_give_the_same_outputs(ops in ops()) {
        let play = |ops: &[Op]| {
            let mut engine = engine(TINY);
            let mut outputs = Vec::new();
            for op in ops {
                match *op {
                    Op::Submit { family, prompt_tokens, answer_tokens } => {
                        submit(&mut engine, job(family, prompt_tokens, answer_tokens));
                    }
                    _ => outputs.extend(step(&mut engine).into_iter().flat_map(|it| it.2)),
                }
            }
            outputs
        };
        prop_assert_eq!(play(&ops), play(&ops));
    }
}
