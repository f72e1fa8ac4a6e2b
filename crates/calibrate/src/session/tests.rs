//! A calibration of every built-in profile in virtual time finds its constants.

use super::*;
use crate::held_out::{agreement, hit_ratio};
use crate::virtual_target::VirtualTarget;
use maitre_sim::profile::{A10G_8B, A100X8_70B, H100X2_32B, H200_8B, INSTANT};

const TIME: Duration = Duration::from_secs(180);

/// What an engine of this profile says of itself.
fn facts(profile: &Profile) -> EngineFacts {
    let read = |value| Some(Fact { value, source: FactSource::Read("/metrics") });
    EngineFacts {
        block_tokens: read(u64::from(profile.block_tokens)),
        kv_tokens: read(u64::from(profile.kv_blocks) * u64::from(profile.block_tokens)),
        context_tokens_max: read(u64::from(profile.context_tokens_max)),
        ..EngineFacts::default()
    }
}

async fn calibrated(target: &mut VirtualTarget, facts: EngineFacts) -> Calibration {
    calibrate(target, &SessionSettings { facts, time: TIME, seed: 1 }, |_, _| {}).await.unwrap()
}

fn constants(profile: &Profile) -> [(&'static str, f64); 6] {
    let step = &profile.step;
    [
        ("overhead", profile.overhead.as_secs_f64() * 1e3),
        ("floor", step.floor_ms),
        ("prefill", step.prefill_token_ms),
        ("attended", step.attended_token_ms),
        ("context", step.context_token_ms),
        ("sequence", step.decode_sequence_ms),
    ]
}

#[track_caller]
fn check(found: &Profile, expected: &Profile, tolerance: f64) {
    let profile = expected.name;
    for ((name, found), (_, expected)) in constants(found).into_iter().zip(constants(expected)) {
        let error = found / expected - 1.0;
        assert!(error.abs() <= tolerance, "{profile}: {name} is {found}, not {expected}: {error:+.4}");
    }
    assert_eq!(found.batch_tokens_max, expected.batch_tokens_max, "{}", expected.name);
}

#[tokio::test]
async fn the_constants_of_every_profile_are_found() {
    for profile in [H200_8B, H100X2_32B, A100X8_70B, A10G_8B] {
        let mut target = VirtualTarget::new(&profile);
        let found = calibrated(&mut target, facts(&profile)).await;
        check(&found.profile, &profile, 0.005);
        assert_eq!((found.profile.kv_blocks, found.skipped), (profile.kv_blocks, 0), "{}", profile.name);
        assert!(target.elapsed() < TIME.mul_f64(1.2), "{}: {:?}", profile.name, target.elapsed());
        let first = agreement(&found.mixed, |it| it.first).unwrap();
        assert!(first.mean.error().abs() < 0.01 && first.requests >= 12, "{}: {first:?}", profile.name);
        let hits = hit_ratio(&found.mixed).unwrap();
        assert!(hits.seen > 0.05 && (hits.seen - hits.predicted).abs() < 0.01, "{}: {hits:?}", profile.name);
    }
}

#[tokio::test]
async fn late_tokens_leave_them_within_five_percent() {
    for profile in [H200_8B, H100X2_32B, A100X8_70B, A10G_8B] {
        let mut target = VirtualTarget::new(&profile);
        target.late = Duration::from_millis(1);
        let found = calibrated(&mut target, facts(&profile)).await;
        // Half a millisecond is added to every first token, and is the engine's to an outsider.
        let seen = Profile { overhead: profile.overhead + Duration::from_micros(500), ..profile };
        check(&found.profile, &seen, 0.05);
    }
}

#[tokio::test]
async fn an_engine_without_time_is_measured_without_harm() {
    let found = calibrated(&mut VirtualTarget::new(&INSTANT), facts(&INSTANT)).await;
    assert_eq!((found.profile.step, found.profile.overhead), (INSTANT.step, INSTANT.overhead));
    let assumed = |value| Fact { value, source: FactSource::Assumed };
    assert_eq!((found.sizes.batch_tokens_max, found.sizes.running_max), (assumed(8_192), assumed(1_024)));
}

#[tokio::test]
async fn sizes_that_are_not_told_are_measured() {
    let profile = Profile { running_max: 12, block_tokens: 32, kv_blocks: 900, ..A10G_8B };
    let told = facts(&profile);
    let untold = EngineFacts { context_tokens_max: told.context_tokens_max, ..EngineFacts::default() };
    let found = calibrated(&mut VirtualTarget::new(&profile), untold).await;
    let measured = |value| Fact { value, source: FactSource::Measured };
    assert_eq!(found.sizes.block_tokens, measured(32));
    assert_eq!(found.sizes.running_max, measured(12));
    let error = found.sizes.kv_tokens.value as f64 / profile.kv_tokens() as f64 - 1.0;
    assert!(found.sizes.kv_tokens.source == FactSource::Measured && error.abs() < 0.05, "{:?}", found.sizes);
    check(&found.profile, &Profile { batch_tokens_max: 2_048, ..profile }, 0.03);
}

#[tokio::test]
async fn a_slow_engine_is_not_probed_beyond_its_time() {
    let slow = Profile { context_tokens_max: 4_096, kv_blocks: 600, ..A10G_8B }.slower(10.0);
    let mut target = VirtualTarget::new(&slow);
    let found = calibrated(&mut target, facts(&slow)).await;
    assert!(target.elapsed() < TIME * 2, "{:?}", target.elapsed());
    assert!(found.fit.error_most < 0.05, "{:?}", found.fit);
}
