//! What the token times of a round say: the step of a batch that decodes together, how many ran at once, and the tokens
//! of each step while long prompts were prefilled.

use std::time::Duration;

use crate::probe::{ProbeAnswer, ProbeRound, millis};
use crate::solve::quantile;

/// The mean step while all requests of a round decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DecodeWindow {
    pub(crate) sequences: u32,
    /// KV tokens of all of them, in the mean.
    pub(crate) context_tokens: f64,
    pub(crate) step_ms: f64,
}

/// Fewer steps than this are no mean.
const STEPS_MIN: usize = 6;

/// The window of a round; none if its requests never decoded all at once for long enough.
pub(crate) fn decode_window(round: &ProbeRound, answers: &[ProbeAnswer]) -> Option<DecodeWindow> {
    let begin = answers.iter().map(|it| it.tokens.first()).max()??;
    let end = answers.iter().filter_map(|it| it.tokens.last()).min()?;
    let (mut span, mut steps, mut context_tokens) = (0.0, 0, 0.0);
    for (request, answer) in round.requests.iter().zip(answers) {
        let first = answer.tokens.partition_point(|it| it < begin);
        let after = answer.tokens.partition_point(|it| it <= end);
        if after < first + 1 + STEPS_MIN {
            return None;
        }
        span += millis(answer.tokens[after - 1].saturating_sub(answer.tokens[first]));
        steps += after - 1 - first;
        // A step reads the prompt and all tokens before the one it makes.
        context_tokens += f64::from(request.prompt_tokens()) + (first + after) as f64 / 2.0;
    }
    let sequences = round.requests.len() as u32;
    Some(DecodeWindow { sequences, context_tokens, step_ms: span / steps as f64 })
}

/// How many requests decoded at once, where the most was decoded. Tokens of one step are not read in one moment, so the
/// largest count of all may be too large.
pub(crate) fn most_at_once(answers: &[ProbeAnswer]) -> u32 {
    let mut edges: Vec<(Duration, i32)> = Vec::new();
    for answer in answers.iter().filter(|it| it.tokens.len() > 1) {
        let (Some(&first), Some(&last)) = (answer.tokens.first(), answer.tokens.last()) else { continue };
        edges.extend([(first, 1), (last, -1)]);
    }
    edges.sort();
    let mut time_at = vec![0.0; answers.len() + 1];
    let mut running = 0;
    for pair in edges.windows(2) {
        running += pair[0].1;
        time_at[running.max(0) as usize] += millis(pair[1].0.saturating_sub(pair[0].0));
    }
    let decoded = |&count: &usize| time_at[count] * count as f64;
    (0..time_at.len()).max_by(|a, b| decoded(a).total_cmp(&decoded(b))).unwrap_or(0) as u32
}

/// What long prompts added to the steps of a request that decoded meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChunkSteps {
    /// Of each long prompt.
    pub(crate) prompt_tokens: Vec<u32>,
    /// What each step took beyond one without prefill, in order.
    pub(crate) extra_ms: Vec<f64>,
}

/// A step that takes less than this part of the longest one's surplus counts as one without a chunk: it was disturbed, or
/// has the few tokens that were left over. Attention makes the last chunk of a prompt up to four times as slow as the first.
const CHUNK_SHARE: f64 = 0.1;

/// The first request of the round decodes, the others are long prompts. None if the steps do not show.
pub(crate) fn chunk_steps(round: &ProbeRound, answers: &[ProbeAnswer]) -> Option<ChunkSteps> {
    let (decoder, prompts) = answers.split_first()?;
    let joined = prompts.iter().map(|it| it.sent).min()?;
    let ended = prompts.iter().filter_map(|it| it.tokens.first()).max()?;
    let gaps: Vec<(Duration, f64)> =
        decoder.tokens.windows(2).map(|it| (it[1], millis(it[1].saturating_sub(it[0])))).collect();
    let quiet: Vec<f64> = gaps.iter().filter(|it| it.0 <= joined).map(|it| it.1).collect();
    let quiet_ms = mean(&quiet)?;
    // The step that ends the prefill also has a token of ours, which may arrive a little after theirs.
    let until = *ended + Duration::from_secs_f64(quiet_ms / 2e3);
    let during = gaps.iter().filter(|it| it.0 > joined && it.0 <= until).map(|it| it.1 - quiet_ms);
    let surplus: Vec<f64> = during.collect();
    let largest = surplus.iter().copied().fold(0.0, f64::max);
    let ended_first = decoder.tokens.last()? < ended;
    if ended_first || largest < quiet_ms.max(1.0) {
        return None;
    }
    let extra_ms = surplus.into_iter().filter(|&it| it > CHUNK_SHARE * largest).collect();
    let prompt_tokens = round.requests.iter().skip(1).map(|it| it.prompt_tokens()).collect();
    Some(ChunkSteps { prompt_tokens, extra_ms })
}

impl ChunkSteps {
    pub(crate) fn total_tokens(&self) -> f64 {
        self.prompt_tokens.iter().map(|&it| f64::from(it)).sum()
    }

    /// How many prompt tokens each step computed, given what one costs by itself and for each token before it.
    pub(crate) fn tokens(&self, token_ms: f64, attended_ms: f64) -> Vec<f64> {
        // Positions in the prompts, which are computed one after the other and are all of about one length.
        let length = self.total_tokens() / self.prompt_tokens.len().max(1) as f64;
        let cost = |position: f64| token_ms + attended_ms * (position % length.max(1.0));
        let all = self.extra_ms.iter().sum::<f64>().max(1e-9);
        let total = self.total_tokens();
        // Walks through the prompts in small pieces, each charged to the step in which its cost falls.
        let pieces = 4_096;
        let piece = total / f64::from(pieces);
        let whole: f64 = (0..pieces).map(|it| cost((f64::from(it) + 0.5) * piece) * piece).sum();
        let mut tokens = vec![0.0; self.extra_ms.len()];
        let (mut spent, mut step, mut limit) = (0.0, 0, self.extra_ms.first().copied().unwrap_or_default());
        for number in 0..pieces {
            spent += cost((f64::from(number) + 0.5) * piece) * piece / whole * all;
            tokens[step] += piece;
            while spent > limit && step + 1 < tokens.len() {
                step += 1;
                limit += self.extra_ms[step];
            }
        }
        tokens
    }

    /// Prompt tokens of a full step: all but the last are. None if everything fitted into one.
    pub(crate) fn full_step(&self, token_ms: f64, attended_ms: f64) -> Option<f64> {
        let tokens = self.tokens(token_ms, attended_ms);
        let (_, full) = tokens.split_last()?;
        if full.is_empty() {
            return None;
        }
        // Times may be disturbed; the number of steps is not.
        let (least, most) =
            (self.total_tokens() / tokens.len() as f64, self.total_tokens() / full.len() as f64);
        Some(quantile(full, 0.5).clamp(least, most))
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{EngineRoom, RoughPace, Seeds, plan};
    use crate::predict::VirtualEngine;
    use crate::probe::{ProbeRequest, RoundKind};
    use maitre_sim::profile::{A10G_8B, H200_8B, Profile};

    fn batch(width: u64, context: u32, answer: u32) -> ProbeRound {
        let requests = (0..width).map(|seed| ProbeRequest::new(seed, context, answer)).collect();
        ProbeRound { kind: RoundKind::Decode, requests }
    }

    #[test]
    fn the_window_of_a_batch_is_its_step() {
        let round = batch(8, 1_000, 60);
        let answers = VirtualEngine::new(&H200_8B).play(&round.requests);
        let window = decode_window(&round, &answers).unwrap();
        let step = H200_8B.step;
        let expected =
            step.floor_ms + 8.0 * step.decode_sequence_ms + window.context_tokens * step.context_token_ms;
        assert_eq!(window.sequences, 8);
        assert!((window.context_tokens / (8.0 * 1_030.0) - 1.0).abs() < 0.002, "{window:?}");
        assert!((window.step_ms / expected - 1.0).abs() < 1e-3, "{window:?}, expected {expected}");
    }

    #[test]
    fn a_batch_that_never_runs_whole_tells_how_many_do() {
        let profile = Profile { running_max: 5, ..H200_8B };
        let round = batch(8, 100, 60);
        let answers = VirtualEngine::new(&profile).play(&round.requests);
        assert_eq!((decode_window(&round, &answers), most_at_once(&answers)), (None, 5));
        let all = VirtualEngine::new(&H200_8B).play(&round.requests);
        assert_eq!(most_at_once(&all), 8);
    }

    #[track_caller]
    fn check_budget(profile: Profile, kv_tokens: u64) {
        let room = EngineRoom { context_tokens: profile.context_tokens_max, kv_tokens, block_tokens: 16 };
        let pace = RoughPace {
            least_ms: 20.0,
            prefill_token_ms: profile.step.prefill_token_ms,
            step_ms: profile.step.floor_ms,
        };
        let plan = plan(room, pace, Duration::from_secs(180), &mut Seeds::new(1));
        let round = plan.fitted.iter().find(|it| it.kind == RoundKind::Chunks).unwrap();
        let answers = VirtualEngine::new(&profile).play(&round.requests);
        let steps = chunk_steps(round, &answers).unwrap();
        let full = steps.full_step(profile.step.prefill_token_ms, profile.step.attended_token_ms).unwrap();
        let expected = f64::from(profile.batch_tokens_max - 1);
        assert!((full / expected - 1.0).abs() < 0.01, "{full}, expected {expected}: {steps:?}");
    }

    #[test]
    fn the_steps_of_another_request_tell_the_budget() {
        check_budget(H200_8B, 900_000);
        check_budget(Profile { context_tokens_max: 10_000, ..H200_8B }, 900_000);
        check_budget(A10G_8B, A10G_8B.kv_tokens());
        check_budget(Profile { batch_tokens_max: 512, ..A10G_8B }, A10G_8B.kv_tokens());
    }

    #[test]
    fn prompts_that_fit_one_step_tell_no_budget() {
        let profile = Profile { batch_tokens_max: 100_000, ..H200_8B };
        let mut round = batch(2, 64, 100);
        round.requests[1] = ProbeRequest { at: Duration::from_millis(100), ..ProbeRequest::new(9, 8_000, 2) };
        let answers = VirtualEngine::new(&profile).play(&round.requests);
        let steps = chunk_steps(&round, &answers).unwrap();
        assert_eq!((steps.extra_ms.len(), steps.full_step(1.0, 0.0)), (1, None));
    }
}
