//! Prefill and decode in virtual time: two engine cores and a link, driven by an event loop without sockets or tasks.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use maitre_base::Instant;
use maitre_sim::engine::transfer::{Content, FetchOutcome, HoldId};
use maitre_sim::engine::{Engine, EngineConfig, Finish, Job, JobId, KnownPrompt, TokenOutput, Transfer};
use maitre_sim::kv::{Names, Root};
use maitre_sim::link::{Link, LinkModel};
use maitre_sim::profile::{H200_8B, Profile, Work};

const PROFILE: Profile = H200_8B;
const PROMPT_TOKENS: u32 = 8_000;

fn job(answer_tokens: u32) -> Job {
    Job {
        prompt: (0..PROMPT_TOKENS).collect(),
        root: Root::new(Names { model: "virtual", adapter: None, salt: "" }),
        seed: 7,
        answer_tokens,
        finish: Finish::Length,
    }
}

/// Runs an engine until it has nothing to do, and returns the time and all outputs.
fn run(engine: &mut Engine, mut now: Instant) -> (Instant, Vec<TokenOutput>) {
    let mut outputs = Vec::new();
    while let Some(span) = engine.begin_step() {
        now = now + span;
        engine.finish_step(now, &mut outputs);
    }
    (now, outputs)
}

fn submit(engine: &mut Engine, answer_tokens: u32, transfer: Transfer) -> JobId {
    engine.submit_transfer(Instant::ZERO, job(answer_tokens), KnownPrompt::default(), transfer).unwrap()
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

#[test]
fn two_legs_cost_a_prefill_a_transfer_and_a_step() {
    let mut prefill = Engine::new(EngineConfig::new(PROFILE));
    let mut decode = Engine::new(EngineConfig::new(PROFILE));
    let mut link = Link::new(LinkModel::of(&PROFILE));

    let first = submit(&mut prefill, 1, Transfer::Out { lease: Duration::from_secs(30) });
    let (answered, _) = run(&mut prefill, Instant::ZERO);
    let hold = HoldId::from(first);
    assert_eq!(prefill.stats().used_blocks, PROMPT_TOKENS / PROFILE.block_tokens);

    let second = submit(&mut decode, 20, Transfer::In);
    assert_eq!(decode.begin_step(), None);
    let fetch = decode.take_fetches()[0];
    assert_eq!((fetch.job, fetch.prompt_tokens, fetch.held_tokens), (second, PROMPT_TOKENS, 0));
    let blocks = u64::from((fetch.prompt_tokens - fetch.held_tokens).div_ceil(PROFILE.block_tokens));
    let bytes = link.model.bytes(blocks, PROFILE.block_tokens);
    let there = link.send(answered, bytes, 1.0);
    assert!(prefill.next_expiry() > Some(there), "the lease lasts longer than the transfer");

    let content = match prefill.hold(hold) {
        Some(it) if it.seed == 7 => Content::Right,
        _ => Content::Wrong,
    };
    assert!(prefill.release_hold(hold));
    decode.finish_fetch(second, FetchOutcome::Arrived { tokens: fetch.prompt_tokens, content });
    let (_, outputs) = run(&mut decode, there);

    let mut alone = Engine::new(EngineConfig::new(PROFILE));
    submit(&mut alone, 20, Transfer::None);
    let (_, expected) = run(&mut alone, Instant::ZERO);
    let tokens = |all: &[TokenOutput]| all.iter().map(|it| it.token).collect::<Vec<_>>();
    assert_eq!(tokens(&outputs), tokens(&expected));

    let transfer = 26.0 + bytes as f64 / 17e6;
    assert!((millis(there.since(answered)) - transfer).abs() < 1e-3);
    let work = Work { prefill_tokens: 1, attended_tokens: f64::from(PROMPT_TOKENS) - 0.5, ..Work::default() };
    let last_token = PROFILE.step.duration(&work);
    let first_token = there + last_token;
    assert!((decode.first_token().sum() - first_token.as_secs_f64()).abs() < 1e-6);
    assert!(millis(last_token) < 5.0, "one step without a prefill");
}

#[test]
fn a_decode_leg_that_comes_after_the_lease_finds_nothing() {
    let mut prefill = Engine::new(EngineConfig::new(PROFILE));
    let first = submit(&mut prefill, 1, Transfer::Out { lease: Duration::from_secs(30) });
    let (answered, _) = run(&mut prefill, Instant::ZERO);
    let end = prefill.next_expiry().unwrap();
    assert_eq!(end.since(answered), Duration::from_secs(30));
    assert!(prefill.expire_holds(end));
    assert_eq!((prefill.hold(first.into()), prefill.next_expiry()), (None, None));
    assert_eq!(prefill.stats().used_blocks, 0);
}
