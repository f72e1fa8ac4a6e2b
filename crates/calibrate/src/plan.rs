//! Which probes to send: enough to tell the constants apart, and no more than the time allows.
//!
//! A constant shows only where its term is a good part of the sum. Prompts up to the longest that fits tell the cost of a
//! token from that of attention. Wide batches of short contexts tell the cost of a sequence, long contexts that of the KV
//! read back, and both that of the step itself. Each group gets a share of the time, and a rough pace from the first few
//! requests says how many tokens that is.

use std::time::Duration;

use maitre_base::Rng;

use crate::probe::{ProbeRequest, ProbeRound, PromptPart, RoundKind, millis};

/// What the engine has room for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EngineRoom {
    /// Prompt and answer together.
    pub(crate) context_tokens: u32,
    /// In the whole cache. If unknown, what any engine has.
    pub(crate) kv_tokens: u64,
    /// In a block: a shorter prefix is never found again.
    pub(crate) block_tokens: u32,
}

/// What the engine is roughly capable of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RoughPace {
    /// The first token of the shortest prompt.
    pub(crate) least_ms: f64,
    pub(crate) prefill_token_ms: f64,
    /// Between two tokens of one answer.
    pub(crate) step_ms: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProbePlan {
    pub(crate) fitted: Vec<ProbeRound>,
    pub(crate) held_out: Vec<ProbeRound>,
}

/// The lengths from which the pace is taken; the first one twice, because the first request warms the engine up.
const PACE_LENGTHS: [u32; 4] = [32, 32, 512, 1_536];
const PACE_ANSWER: u32 = 16;

/// Shares of the time. The rest is for what takes longer than the pace foretold.
const LONGEST_PROMPT: f64 = 0.05;
const LONG_CONTEXTS: f64 = 0.05;
const CHUNKS: f64 = 0.04;
const DECODE_WINDOW: f64 = 0.008;
const HELD_OUT: f64 = 0.15;

/// Enough for a quadratic term to show on every engine we know.
const PROMPT_TOKENS_MAX: f64 = 32_768.0;
const PROMPT_TOKENS_MIN: f64 = 128.0;
/// All contexts of a batch together: at the fastest engine we know they double the step.
const CONTEXTS_TOKENS_MAX: f64 = 262_144.0;
/// Six times the largest budget that is a default anywhere.
const CHUNKS_TOKENS_MAX: f64 = 49_152.0;
/// The smallest budget whose chunks are all seen.
const SMALLEST_BUDGET: u32 = 256;

/// Few engines have a smaller one.
const USUAL_BUDGET: u32 = 1_024;

/// Part of the cache that requests in flight may fill, so that none is preempted.
const CACHE_SHARE: f64 = 0.7;

/// A context that costs next to nothing, in one step with many others.
pub(crate) const SHORT_CONTEXT: u32 = 64;
const WIDTHS: [u32; 4] = [1, 4, 16, 64];
const LONG_WIDTHS: [u32; 2] = [4, 16];
const STEPS_MIN: f64 = 32.0;
const STEPS_MAX: f64 = 192.0;
/// Tokens of each answer before all of a batch decode, and after the first has ended.
const STEPS_MARGIN: u32 = 16;
/// A single prompt's answer: the step at its context shows too.
const SINGLE_ANSWER: u32 = 8;
/// Steps that decode alone before long prompts join.
const STEPS_BEFORE: f64 = 16.0;
/// Prompts of which the first token takes less than this part of the time are sent more often.
const CHEAP: f64 = 0.002;
const CHEAP_REPEATS: usize = 3;

const MIXED_MIN: usize = 24;
const MIXED_MAX: usize = 60;
const MIXED_LOAD: f64 = 0.5;
const MIXED_GROUPS: usize = 3;
const PREFIX_BLOCKS: f64 = 2.0;

/// Seeds of prompts that were never used: no prompt is in a cache by accident.
pub(crate) struct Seeds(Rng);

impl Seeds {
    pub(crate) fn new(seed: u64) -> Seeds {
        Seeds(Rng::new(seed))
    }

    pub(crate) fn fresh(&mut self) -> u64 {
        self.0.next_u64()
    }
}

fn single(kind: RoundKind, request: ProbeRequest) -> ProbeRound {
    ProbeRound { kind, requests: vec![request] }
}

/// The first requests, before anything is known.
pub(crate) fn first_rounds(room: &EngineRoom, seeds: &mut Seeds) -> Vec<ProbeRound> {
    let longest = room.context_tokens.saturating_sub(PACE_ANSWER).max(1);
    let request = |length: u32| ProbeRequest::new(seeds.fresh(), length.min(longest), PACE_ANSWER);
    PACE_LENGTHS.into_iter().map(request).map(|it| single(RoundKind::Single, it)).collect()
}

/// The pace from the first rounds, each a length and its answer.
pub(crate) fn rough_pace(seen: &[(u32, Duration, Duration)]) -> RoughPace {
    // The first one pays for everything that happens once.
    let seen = if seen.len() > 1 { &seen[1..] } else { seen };
    let first = seen.first().map_or((1, 0.0), |it| (it.0, millis(it.1)));
    let last = seen.last().map_or(first, |it| (it.0, millis(it.1)));
    let tokens = f64::from(last.0.saturating_sub(first.0)).max(1.0);
    let steps: Vec<f64> =
        seen.iter().map(|it| millis(it.2.saturating_sub(it.1)) / f64::from(PACE_ANSWER - 1)).collect();
    let step_ms = steps.iter().copied().fold(f64::INFINITY, f64::min);
    RoughPace {
        least_ms: first.1,
        prefill_token_ms: ((last.1 - first.1) / tokens).max(1e-4),
        step_ms: if step_ms.is_finite() { step_ms.max(0.01) } else { 1.0 },
    }
}

struct Planner<'a> {
    room: EngineRoom,
    pace: RoughPace,
    time_ms: f64,
    seeds: &'a mut Seeds,
}

/// The plan for so much time.
pub(crate) fn plan(room: EngineRoom, pace: RoughPace, time: Duration, seeds: &mut Seeds) -> ProbePlan {
    let mut planner = Planner { room, pace, time_ms: millis(time), seeds };
    // Every group twice, far apart: an engine that was disturbed for a while is not measured only then.
    let mut fitted = planner.singles();
    fitted.extend(planner.decodes());
    fitted.extend(planner.chunks());
    fitted.extend(planner.singles());
    fitted.extend(planner.decodes());
    fitted.extend(planner.chunks());
    fitted.extend(planner.repeats());
    ProbePlan { fitted, held_out: planner.held_out() }
}

impl Planner<'_> {
    /// So many prompt tokens take this share of the time.
    fn tokens_in(&self, share: f64) -> f64 {
        share * self.time_ms / self.pace.prefill_token_ms
    }

    fn prompt_max(&self) -> f64 {
        f64::from(self.room.context_tokens.saturating_sub(4 * SINGLE_ANSWER)).max(1.0)
    }

    fn cache(&self) -> f64 {
        CACHE_SHARE * self.room.kv_tokens as f64
    }

    /// The longest single prompt.
    fn longest(&self) -> f64 {
        let affordable = self.tokens_in(LONGEST_PROMPT).clamp(PROMPT_TOKENS_MIN, PROMPT_TOKENS_MAX);
        affordable.min(self.prompt_max()).min(self.cache()).floor()
    }

    fn singles(&mut self) -> Vec<ProbeRound> {
        let longest = self.longest();
        let halvings = (longest / f64::from(SHORT_CONTEXT)).log2().max(0.0).floor() as i32;
        let mut rounds = Vec::new();
        for halving in (0..=halvings).rev() {
            let length = longest / 2f64.powi(halving);
            let cost = self.pace.least_ms + self.pace.prefill_token_ms * length;
            let repeats = if cost < CHEAP * self.time_ms { CHEAP_REPEATS } else { 1 };
            for _ in 0..repeats {
                let request = ProbeRequest::new(self.seeds.fresh(), length as u32, SINGLE_ANSWER);
                rounds.push(single(RoundKind::Single, request));
            }
        }
        rounds
    }

    fn decodes(&mut self) -> Vec<ProbeRound> {
        let steps = (DECODE_WINDOW * self.time_ms / self.pace.step_ms).clamp(STEPS_MIN, STEPS_MAX) as u32;
        let affordable = self.tokens_in(LONG_CONTEXTS).min(CONTEXTS_TOKENS_MAX);
        let mut rounds = Vec::new();
        for width in WIDTHS {
            rounds.extend(self.decode(width, f64::from(SHORT_CONTEXT), steps));
        }
        for width in LONG_WIDTHS {
            let answers = f64::from(width * (steps + 2 * STEPS_MARGIN));
            let all = affordable.min(self.cache() - answers);
            let context =
                (all / f64::from(width)).min(self.prompt_max() - f64::from(steps + 3 * STEPS_MARGIN));
            if context > 2.0 * f64::from(SHORT_CONTEXT) {
                rounds.extend(self.decode(width, context, steps));
            }
        }
        rounds
    }

    /// A batch that decodes together for so many steps, if the cache holds it.
    fn decode(&mut self, width: u32, context: f64, steps: u32) -> Option<ProbeRound> {
        // While the others are prefilled the first ones decode already, a token for each chunk.
        let chunks = (f64::from(width) * context / f64::from(USUAL_BUDGET)) as u32;
        let answer = steps + STEPS_MARGIN + chunks.min(2 * STEPS_MARGIN);
        let tokens = f64::from(width) * (context + f64::from(answer));
        let fits = tokens <= self.cache().max(1.0) && context + f64::from(answer) <= self.prompt_max();
        let request = |seed| ProbeRequest::new(seed, context as u32, answer);
        let requests = (0..width).map(|_| request(self.seeds.fresh())).collect();
        fits.then_some(ProbeRound { kind: RoundKind::Decode, requests })
    }

    /// One that decodes, and long prompts that join it.
    fn chunks(&mut self) -> Option<ProbeRound> {
        let affordable = self.tokens_in(CHUNKS).clamp(4.0 * f64::from(SMALLEST_BUDGET), CHUNKS_TOKENS_MAX);
        let all = affordable.min(self.cache() * 0.7);
        let count = (all / self.prompt_max()).ceil().max(1.0);
        let length = (all / count) as u32;
        let answer = 3 * STEPS_MARGIN + all as u32 / SMALLEST_BUDGET;
        let fits = length >= SMALLEST_BUDGET && f64::from(SHORT_CONTEXT + answer) < self.prompt_max();
        let wait_ms = self.pace.least_ms + STEPS_BEFORE * self.pace.step_ms;
        let join = |seed| ProbeRequest {
            at: Duration::from_secs_f64(wait_ms / 1e3),
            ..ProbeRequest::new(seed, length, 2)
        };
        let mut requests = vec![ProbeRequest::new(self.seeds.fresh(), SHORT_CONTEXT, answer)];
        requests.extend((0..count as u32).map(|_| join(self.seeds.fresh())));
        fits.then_some(ProbeRound { kind: RoundKind::Chunks, requests })
    }

    /// Prompts that are sent twice. Their lengths differ by odd numbers: what is found of them tells the block.
    fn repeats(&mut self) -> Vec<ProbeRound> {
        let base = (self.longest() / 4.0).clamp(PROMPT_TOKENS_MIN, 2_048.0).min(self.longest());
        let lengths = [1.0, 0.83, 0.61].map(|it| (base * it) as u32);
        let mut rounds = Vec::new();
        for length in lengths {
            let request = ProbeRequest::new(self.seeds.fresh(), length, 2);
            rounds.extend([single(RoundKind::Repeat, request.clone()), single(RoundKind::Repeat, request)]);
        }
        rounds
    }

    /// Single prompts of other lengths, then traffic: prompts and answers of many lengths, some with a shared prefix,
    /// that come at random and meet in the engine.
    fn held_out(&mut self) -> Vec<ProbeRound> {
        let longest = self.longest();
        let lengths = [0.78, 0.37, 0.16, 0.07].map(|it| (longest * it).max(1.0) as u32);
        let mut rounds: Vec<ProbeRound> = Vec::new();
        for length in lengths {
            let request = ProbeRequest::new(self.seeds.fresh(), length, SINGLE_ANSWER);
            rounds.push(single(RoundKind::HeldOut, request));
        }
        rounds.push(self.traffic());
        rounds
    }

    /// Prompts are as long as leaves time for enough of them.
    fn traffic(&mut self) -> ProbeRound {
        let mut longest = self.longest() / 2.0;
        loop {
            let requests = self.requests(longest);
            let mean_ms = requests.iter().map(|it| self.work_ms(it)).sum::<f64>() / requests.len() as f64;
            let gap_ms = (mean_ms / MIXED_LOAD).max(1.0);
            let count = (HELD_OUT * self.time_ms / gap_ms) as usize;
            if count >= MIXED_MIN || longest <= 2.0 * f64::from(SHORT_CONTEXT) {
                return self.spread(requests, count.clamp(MIXED_MIN / 3, MIXED_MAX), gap_ms);
            }
            longest /= 2.0;
        }
    }

    /// At random moments.
    fn spread(&mut self, mut requests: Vec<ProbeRequest>, count: usize, gap_ms: f64) -> ProbeRound {
        let mut rng = Rng::new(self.seeds.fresh());
        requests.truncate(count);
        let mut at_ms = 0.0;
        for request in &mut requests {
            at_ms += rng.exponential(gap_ms);
            request.at = Duration::from_secs_f64(at_ms / 1e3);
        }
        ProbeRound { kind: RoundKind::HeldOut, requests }
    }

    fn work_ms(&self, request: &ProbeRequest) -> f64 {
        // Answers share their steps with others.
        let decode = f64::from(request.answer_tokens) * self.pace.step_ms / 4.0;
        f64::from(request.prompt_tokens()) * self.pace.prefill_token_ms + decode
    }

    /// Prompts of all lengths up to the longest; half of them begin with one of a few prefixes.
    fn requests(&mut self, longest: f64) -> Vec<ProbeRequest> {
        let mut rng = Rng::new(self.seeds.fresh());
        let blocks = PREFIX_BLOCKS * f64::from(self.room.block_tokens);
        let prefix = (longest / 4.0).max(blocks).min(longest).max(1.0) as u32;
        let groups: Vec<PromptPart> =
            (0..MIXED_GROUPS).map(|_| PromptPart { seed: self.seeds.fresh(), tokens: prefix }).collect();
        let least = f64::from(SHORT_CONTEXT).min(longest);
        let mut request = || {
            let own = least * (longest / least).powf(rng.unit());
            let mut parts = vec![PromptPart { seed: self.seeds.fresh(), tokens: own.max(1.0) as u32 }];
            if rng.below(2) == 0 {
                parts.insert(0, groups[rng.below(groups.len())]);
            }
            ProbeRequest { at: Duration::ZERO, parts, answer_tokens: 8 + rng.below(57) as u32 }
        };
        (0..MIXED_MAX).map(|_| request()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: EngineRoom = EngineRoom { context_tokens: 8_192, kv_tokens: 60_000, block_tokens: 16 };
    const PACE: RoughPace = RoughPace { least_ms: 20.0, prefill_token_ms: 0.5, step_ms: 15.0 };

    fn planned(room: EngineRoom, pace: RoughPace) -> ProbePlan {
        plan(room, pace, Duration::from_secs(180), &mut Seeds::new(1))
    }

    #[test]
    fn no_round_asks_for_more_than_the_engine_has() {
        for context_tokens in [256, 1_024, 8_192, 131_072] {
            for kv_tokens in [1_000, 4_000, 60_000, 1_000_000] {
                for prefill_token_ms in [1e-4, 0.015, 0.5, 20.0] {
                    let room = EngineRoom { context_tokens, kv_tokens, ..ROOM };
                    let plan = planned(room, RoughPace { prefill_token_ms, ..PACE });
                    for round in plan.fitted.iter().chain(&plan.held_out) {
                        check_room(room, round);
                    }
                }
            }
        }
    }

    #[track_caller]
    fn check_room(room: EngineRoom, round: &ProbeRound) {
        let tokens = |it: &ProbeRequest| it.prompt_tokens() + it.answer_tokens;
        assert!(!round.requests.is_empty());
        assert!(round.requests.iter().all(|it| it.prompt_tokens() > 0), "{round:?}");
        assert!(round.requests.iter().all(|it| tokens(it) <= room.context_tokens), "{room:?} {round:?}");
        let all: u64 = round.requests.iter().map(|it| u64::from(tokens(it))).sum();
        let is_traffic = round.kind == RoundKind::HeldOut;
        assert!(is_traffic || all <= room.kv_tokens, "{room:?} {:?} {all}", round.kind);
    }

    #[test]
    fn the_prompts_of_a_plan_take_less_than_its_time() {
        for prefill_token_ms in [0.015, 0.5, 2.0] {
            let plan = planned(ROOM, RoughPace { prefill_token_ms, ..PACE });
            let tokens: u32 =
                plan.fitted.iter().flat_map(|it| &it.requests).map(ProbeRequest::prompt_tokens).sum();
            let seconds = f64::from(tokens) * prefill_token_ms / 1e3;
            assert!(seconds < 0.7 * 180.0, "{prefill_token_ms} ms: {seconds} s");
        }
    }

    #[test]
    fn only_repeats_and_shared_prefixes_repeat_a_prompt() {
        let plan = planned(ROOM, PACE);
        let mut seeds: Vec<u64> = plan
            .fitted
            .iter()
            .filter(|it| it.kind != RoundKind::Repeat)
            .flat_map(|it| &it.requests)
            .flat_map(|it| it.parts.iter().map(|it| it.seed))
            .collect();
        let count = seeds.len();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), count);
        let repeated = plan.fitted.iter().filter(|it| it.kind == RoundKind::Repeat).collect::<Vec<_>>();
        assert!(repeated.len() >= 2 && repeated.chunks(2).all(|it| it[0] == it[1]));
    }

    #[test]
    fn the_pace_is_taken_after_the_warm_up() {
        let seen = [
            (32, Duration::from_millis(900), Duration::from_millis(1_200)),
            (32, Duration::from_millis(20), Duration::from_millis(170)),
            (512, Duration::from_millis(68), Duration::from_millis(218)),
        ];
        let pace = rough_pace(&seen);
        assert_eq!((pace.least_ms, pace.step_ms), (20.0, 10.0));
        assert!((pace.prefill_token_ms - 0.1).abs() < 1e-9, "{pace:?}");
    }
}
