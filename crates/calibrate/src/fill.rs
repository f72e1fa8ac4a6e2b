//! The size of a cache that an engine does not tell: fills it with prompts and looks how many of the latest are left.
//!
//! Caches evict what was used longest ago. So after a fill the prompts are sent again, the newest first, until one is
//! computed anew: the ones before it are what the cache holds. Each pass is finer than the one before.

use std::time::Duration;

use crate::plan::{EngineRoom, RoughPace, Seeds};
use crate::probe::{ProbeAnswer, ProbeRequest, ProbeRound, ProbeTarget, PromptPart, RoundKind, millis};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheSize {
    Tokens(u64),
    /// All that was sent was still there, and the time was up.
    AtLeast(u64),
}

/// Prompts of the first pass, and at most so many that are left make a finer one worth while.
const PROMPTS: u32 = 32;
const ENOUGH_LEFT: u32 = 16;
const PASSES: usize = 3;
/// A finer pass sends this times what the cache can hold at most.
const BEYOND: f64 = 1.2;

/// Share of the time for the first pass.
const SHARE: f64 = 0.2;
/// Prompts are a multiple of this: blocks of every usual size are then full, and only full ones are kept.
const PROMPT_TOKENS: f64 = 256.0;

pub(crate) struct FillLimits {
    pub(crate) room: EngineRoom,
    pub(crate) pace: RoughPace,
    pub(crate) time: Duration,
}

pub(crate) async fn measure_cache(
    target: &mut impl ProbeTarget,
    limits: &FillLimits,
    seeds: &mut Seeds,
) -> anyhow::Result<CacheSize> {
    let longest = f64::from(limits.room.context_tokens.saturating_sub(3)).max(1.0);
    let affordable = SHARE * millis(limits.time) / limits.pace.prefill_token_ms;
    let full = |tokens: f64| ((tokens.min(longest) / PROMPT_TOKENS).floor().max(1.0)) * PROMPT_TOKENS;
    let mut length = full(affordable / f64::from(PROMPTS));
    let (mut estimate, mut bound) = (0.0, 0.0);
    for pass in 0..PASSES {
        let count = if pass == 0 { PROMPTS } else { (bound * BEYOND / length).ceil() as u32 };
        let left = fill(target, length as u32, count, seeds).await?;
        if left == count {
            return Ok(CacheSize::AtLeast(u64::from(left) * length as u64));
        }
        // A prompt of which more than half is left counts, so the border lies where a prompt ends, give or take half of one.
        estimate = f64::from(left).max(0.5) * length;
        bound = f64::from(left + 1) * length;
        if left >= ENOUGH_LEFT || length <= PROMPT_TOKENS {
            break;
        }
        length = full(estimate / f64::from(PROMPTS));
    }
    Ok(CacheSize::Tokens(estimate as u64))
}

/// Sends so many new prompts and returns how many of the latest are left.
async fn fill(
    target: &mut impl ProbeTarget,
    length: u32,
    count: u32,
    seeds: &mut Seeds,
) -> anyhow::Result<u32> {
    let mut cold_ms = f64::INFINITY;
    let requests: Vec<ProbeRequest> =
        (0..count).map(|_| ProbeRequest::new(seeds.fresh(), length, 1)).collect();
    for request in &requests {
        let answer = send(target, request).await?;
        cold_ms = cold_ms.min(answer.first_token().map_or(f64::INFINITY, millis));
    }
    for (left, request) in requests.iter().rev().enumerate() {
        // The last token of a prompt is always computed. One more, and that takes no block from the others.
        let mut again = request.clone();
        again.parts.push(PromptPart { seed: 0, tokens: 1 });
        let answer = send(target, &again).await?;
        let is_found = match answer.cached_tokens {
            Some(cached) => cached * 2 > length,
            // An engine that does not say what it found is faster if it did.
            None => answer.first_token().is_some_and(|it| millis(it) < cold_ms / 2.0),
        };
        if !is_found {
            return Ok(left as u32);
        }
    }
    Ok(count)
}

async fn send(target: &mut impl ProbeTarget, request: &ProbeRequest) -> anyhow::Result<ProbeAnswer> {
    let round = ProbeRound { kind: RoundKind::Fill, requests: vec![request.clone()] };
    Ok(target.run(&round).await?.pop().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtual_target::VirtualTarget;
    use maitre_sim::profile::{A10G_8B, Profile};

    async fn measured(profile: Profile, tells_cached: bool) -> CacheSize {
        let mut target = VirtualTarget::new(&profile);
        target.tells_cached = tells_cached;
        let limits = FillLimits {
            room: EngineRoom {
                context_tokens: profile.context_tokens_max,
                kv_tokens: 16_384,
                block_tokens: 16,
            },
            pace: RoughPace {
                least_ms: 40.0,
                prefill_token_ms: profile.step.prefill_token_ms,
                step_ms: 35.0,
            },
            time: Duration::from_secs(180),
        };
        measure_cache(&mut target, &limits, &mut Seeds::new(1)).await.unwrap()
    }

    #[tokio::test]
    async fn what_is_left_after_a_fill_is_the_size() {
        for kv_blocks in [200, 1_000, 2_261] {
            for tells_cached in [true, false] {
                let profile = Profile { kv_blocks, ..A10G_8B };
                let CacheSize::Tokens(tokens) = measured(profile, tells_cached).await else {
                    panic!("{kv_blocks} blocks were not filled")
                };
                let error = tokens as f64 / profile.kv_tokens() as f64 - 1.0;
                assert!(error.abs() < 0.05, "{kv_blocks} blocks: {tokens} tokens, {error:+.3}");
            }
        }
    }

    #[tokio::test]
    async fn a_cache_too_large_for_the_time_is_at_least_that_large() {
        let profile = Profile { kv_blocks: 100_000, ..A10G_8B };
        let CacheSize::AtLeast(tokens) = measured(profile, true).await else { panic!("it was filled") };
        assert!((50_000..100_000).contains(&tokens), "{tokens}");
    }
}
