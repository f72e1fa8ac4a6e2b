//! One calibration from beginning to end: pace, plan, measurements, fit, and the error on requests that were held out.
//!
//! It knows neither sockets nor clocks. A target answers rounds of requests; the tests have one in virtual time.

use std::time::Duration;

use maitre_sim::profile::Profile;

use crate::facts::{EngineFacts, Fact, FactSource};
use crate::fill::{CacheSize, FillLimits, measure_cache};
use crate::fit::{EngineFit, Measurements, rounded_budget};
use crate::held_out::{Compared, compare};
use crate::plan::{self, EngineRoom, RoughPace, Seeds};
use crate::probe::{ProbeTarget, RoundKind};

/// What to do, and what is known already.
#[derive(Clone, Debug)]
pub(crate) struct SessionSettings {
    pub(crate) facts: EngineFacts,
    /// How long probes may take.
    pub(crate) time: Duration,
    /// Names the prompts. Another one for each run, or the engine finds them in its cache.
    pub(crate) seed: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Calibration {
    /// Its name is empty.
    pub(crate) profile: Profile,
    pub(crate) sizes: Sizes,
    pub(crate) fit: EngineFit,
    pub(crate) measured: Measurements,
    /// Single prompts and mixed traffic that were not fitted.
    pub(crate) singles: Vec<Compared>,
    pub(crate) mixed: Vec<Compared>,
    /// Rounds of the plan for which there was no time.
    pub(crate) skipped: usize,
}

/// The sizes in the profile, with where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) block_tokens: Fact,
    pub(crate) kv_tokens: Fact,
    pub(crate) batch_tokens_max: Fact,
    pub(crate) running_max: Fact,
    pub(crate) context_tokens_max: Fact,
}

/// What an engine has at least, for the plan, where it does not say.
const CONTEXT_TOKENS: u64 = 4_096;
const KV_TOKENS: u64 = 16_384;

/// vLLM's defaults on large GPUs, where the probes did not reach a limit.
const BATCH_TOKENS_MAX: u64 = 8_192;
const RUNNING_MAX: u64 = 1_024;
const BLOCK_TOKENS: u64 = 16;

/// After this part of the time no further round is begun; what is held out comes after it.
const FITTED_SHARE: f64 = 0.85;

/// Calibrates. `progress` hears how many rounds of how many are done.
pub(crate) async fn calibrate(
    target: &mut impl ProbeTarget,
    settings: &SessionSettings,
    mut progress: impl FnMut(usize, usize),
) -> anyhow::Result<Calibration> {
    let mut seeds = Seeds::new(settings.seed);
    let room = room(&settings.facts);
    let pace = take_pace(target, &room, &mut seeds).await?;
    let plan = plan::plan(room, pace, settings.time, &mut seeds);
    let mut measured = Measurements::default();
    let rounds = plan.fitted.len() + plan.held_out.len();
    let mut skipped = 0;
    for (index, round) in plan.fitted.iter().enumerate() {
        progress(index, rounds);
        // Repeats are few, quick and last: without them nothing is known of the cache.
        let is_late = target.elapsed() > settings.time.mul_f64(FITTED_SHARE);
        if is_late && round.kind != RoundKind::Repeat {
            skipped += 1;
            continue;
        }
        measured.record(round, &target.run(round).await?);
    }
    let mut held_out = Vec::new();
    for (index, round) in plan.held_out.iter().enumerate() {
        progress(plan.fitted.len() + index, rounds);
        held_out.push((round, target.run(round).await?));
    }
    let kv_tokens = match settings.facts.kv_tokens {
        Some(kv_tokens) => kv_tokens,
        None => {
            let limits = FillLimits { room, pace, time: settings.time };
            filled(measure_cache(target, &limits, &mut seeds).await?)
        }
    };
    let known = settings.facts.batch_tokens_max.and_then(|it| u32::try_from(it.value).ok());
    let fit = measured.fit(known);
    let sizes = sizes(&settings.facts, kv_tokens, &measured, &fit);
    let profile = sizes.profile(&fit);
    let (mut singles, mut mixed) = (Vec::new(), Vec::new());
    for (round, answers) in &held_out {
        let group = if round.requests.len() == 1 { &mut singles } else { &mut mixed };
        group.extend(compare(&profile, round, answers));
    }
    Ok(Calibration { profile, sizes, fit, measured, singles, mixed, skipped })
}

fn room(facts: &EngineFacts) -> EngineRoom {
    let value = |fact: Option<Fact>, least: u64| fact.map_or(least, |it| it.value);
    EngineRoom {
        context_tokens: u32::try_from(value(facts.context_tokens_max, CONTEXT_TOKENS)).unwrap_or(u32::MAX),
        kv_tokens: value(facts.kv_tokens, KV_TOKENS),
        block_tokens: u32::try_from(value(facts.block_tokens, BLOCK_TOKENS)).unwrap_or(u32::MAX),
    }
}

async fn take_pace(
    target: &mut impl ProbeTarget,
    room: &EngineRoom,
    seeds: &mut Seeds,
) -> anyhow::Result<RoughPace> {
    let mut seen = Vec::new();
    for round in plan::first_rounds(room, seeds) {
        let answers = target.run(&round).await?;
        for (request, answer) in round.requests.iter().zip(&answers) {
            let times = answer.first_token().zip(answer.total());
            let (first, total) =
                times.ok_or_else(|| anyhow::anyhow!("the engine answered without a token"))?;
            seen.push((request.prompt_tokens(), first, total));
        }
    }
    Ok(plan::rough_pace(&seen))
}

fn filled(size: CacheSize) -> Fact {
    match size {
        CacheSize::Tokens(value) => Fact { value, source: FactSource::Measured },
        CacheSize::AtLeast(value) => Fact { value, source: FactSource::Assumed },
    }
}

fn sizes(facts: &EngineFacts, kv_tokens: Fact, measured: &Measurements, fit: &EngineFit) -> Sizes {
    let or = |fact: Option<Fact>, measured: Option<u64>, assumed: u64| {
        let measured = measured.map(|value| Fact { value, source: FactSource::Measured });
        fact.or(measured).unwrap_or(Fact { value: assumed, source: FactSource::Assumed })
    };
    let budget = fit.batch_tokens.map(|it| u64::from(rounded_budget(it)));
    // A limit that was not reached is above what was.
    let budget_assumed = BATCH_TOKENS_MAX.max(u64::from(measured.joined_tokens_max));
    let running_assumed = RUNNING_MAX.max(u64::from(measured.width_max));
    Sizes {
        block_tokens: or(facts.block_tokens, measured.block_tokens().map(u64::from), BLOCK_TOKENS),
        kv_tokens,
        batch_tokens_max: or(facts.batch_tokens_max, budget, budget_assumed),
        running_max: or(facts.running_max, measured.running_max.map(u64::from), running_assumed),
        context_tokens_max: or(facts.context_tokens_max, None, CONTEXT_TOKENS),
    }
}

impl Sizes {
    fn profile(&self, fit: &EngineFit) -> Profile {
        let count = |fact: Fact| u32::try_from(fact.value).unwrap_or(u32::MAX);
        let block_tokens = count(self.block_tokens).max(1);
        let blocks = (self.kv_tokens.value / u64::from(block_tokens)).max(2);
        Profile {
            name: "",
            block_tokens,
            kv_blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
            batch_tokens_max: count(self.batch_tokens_max).max(1),
            running_max: count(self.running_max).max(1),
            context_tokens_max: count(self.context_tokens_max).max(1),
            step: fit.step,
            overhead: fit.overhead,
        }
    }
}

#[cfg(test)]
mod tests;
