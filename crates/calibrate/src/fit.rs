//! The constants of the engine model from what was seen.
//!
//! Two kinds of sums share six unknowns. A first token takes the overhead, a floor for each step of its prefill, and its
//! prompt. A step of a batch takes a floor, its sequences and their contexts. Only the second kind distinguishes the floor
//! from the overhead, because a short prompt pays both once.

use std::time::Duration;

use maitre_sim::profile::StepModel;

use crate::plan::SHORT_CONTEXT;
use crate::probe::{ProbeAnswer, ProbeRound, RoundKind, millis};
use crate::solve::{Equation, quantile, solve};
use crate::window::{ChunkSteps, DecodeWindow, chunk_steps, decode_window, most_at_once};

/// A first token of a prompt that was alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SingleFirst {
    pub(crate) prompt_tokens: u32,
    pub(crate) first_ms: f64,
}

/// A prompt's second time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RepeatSeen {
    pub(crate) prompt_tokens: u32,
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) first_ms: f64,
    pub(crate) again_ms: f64,
}

/// All that is fitted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurements {
    pub(crate) firsts: Vec<SingleFirst>,
    pub(crate) windows: Vec<DecodeWindow>,
    pub(crate) chunks: Vec<ChunkSteps>,
    pub(crate) repeats: Vec<RepeatSeen>,
    /// The most that ran at once in a batch of which some had to wait.
    pub(crate) running_max: Option<u32>,
    /// The widest batch.
    pub(crate) width_max: u32,
    /// The most prompt tokens that came at once and showed in the steps of another request.
    pub(crate) joined_tokens_max: u32,
    /// The first half of a repeat.
    pending: Option<SingleFirst>,
}

/// What was found, and how well it describes what it was fitted to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EngineFit {
    pub(crate) overhead: Duration,
    pub(crate) step: StepModel,
    /// Tokens of a step, of which one decodes; none if no prompt was long enough to show it.
    pub(crate) batch_tokens: Option<f64>,
    /// How many sums were fitted, and the relative errors: of half of them, and of nine tenths, at most.
    pub(crate) equations: usize,
    pub(crate) error_half: f64,
    pub(crate) error_most: f64,
}

/// An answer that decodes for less than this is read in one piece.
const DECODE_MS_MIN: f64 = 10.0;

impl Measurements {
    /// Adds what a round has shown.
    pub(crate) fn record(&mut self, round: &ProbeRound, answers: &[ProbeAnswer]) {
        match round.kind {
            RoundKind::Single => {
                self.firsts.extend(single_first(round, answers));
                self.windows.extend(decode_window(round, answers));
            }
            RoundKind::Decode => self.record_batch(round, answers),
            RoundKind::Chunks => {
                let steps = chunk_steps(round, answers);
                let joined = steps.as_ref().map_or(0, |it| it.prompt_tokens.iter().sum());
                self.joined_tokens_max = self.joined_tokens_max.max(joined);
                self.chunks.extend(steps);
            }
            RoundKind::Repeat => self.record_repeat(round, answers),
            RoundKind::Fill | RoundKind::HeldOut => {}
        }
    }

    fn record_batch(&mut self, round: &ProbeRound, answers: &[ProbeAnswer]) {
        let width = round.requests.len() as u32;
        self.width_max = self.width_max.max(width);
        let at_once = most_at_once(answers);
        // Long prompts may begin one after the other for want of tokens in a step, and answers that take no time do not
        // meet.
        let are_short = round.requests.iter().all(|it| it.prompt_tokens() <= SHORT_CONTEXT);
        let tells = are_short && at_once < width && usual_decode_ms(answers) >= DECODE_MS_MIN;
        match decode_window(round, answers) {
            Some(window) => self.windows.push(window),
            None if tells => self.running_max = self.running_max.max(Some(at_once)),
            None => {}
        }
    }

    fn record_repeat(&mut self, round: &ProbeRound, answers: &[ProbeAnswer]) {
        let Some(seen) = single_first(round, answers) else { return };
        match self.pending.take().filter(|it| it.prompt_tokens == seen.prompt_tokens) {
            None => self.pending = Some(seen),
            Some(first) => self.repeats.push(RepeatSeen {
                prompt_tokens: seen.prompt_tokens,
                cached_tokens: answers.first().and_then(|it| it.cached_tokens),
                first_ms: first.first_ms,
                again_ms: seen.first_ms,
            }),
        }
    }

    /// Fits. `batch_tokens` is the budget of a step if it is known.
    pub(crate) fn fit(&self, batch_tokens: Option<u32>) -> EngineFit {
        let seen = |step: &StepModel| {
            let full = self
                .chunks
                .iter()
                .filter_map(|it| it.full_step(step.prefill_token_ms, step.attended_token_ms));
            let full: Vec<f64> = full.collect();
            // One token of each step decodes.
            (!full.is_empty()).then(|| quantile(&full, 0.5) + 1.0)
        };
        // Where tokens cost the same at every position, the steps tell the budget before anything is fitted.
        let even = StepModel { prefill_token_ms: 1.0, ..maitre_sim::profile::INSTANT.step };
        let given = batch_tokens.map(f64::from);
        let mut budget = given.or_else(|| seen(&even));
        let mut found = solve(&self.equations(budget));
        for _ in 0..3 {
            budget = given.or_else(|| seen(&step_model(&found)));
            found = solve(&self.equations(budget));
        }
        let equations = self.equations(budget);
        let errors: Vec<f64> = equations.iter().map(|it| it.error(&found).abs()).collect();
        EngineFit {
            overhead: Duration::try_from_secs_f64(found[0] / 1e3).unwrap_or_default(),
            step: step_model(&found),
            batch_tokens: seen(&step_model(&found)),
            equations: equations.len(),
            error_half: quantile(&errors, 0.5),
            error_most: quantile(&errors, 0.9),
        }
    }

    /// The unknowns: overhead, floor, prefill token, attended token, context token, sequence.
    fn equations(&self, batch_tokens: Option<f64>) -> Vec<Equation<6>> {
        let steps = |tokens: f64| batch_tokens.map_or(1.0, |it| (tokens / it.max(1.0)).ceil().max(1.0));
        let first = |it: &SingleFirst| {
            let tokens = f64::from(it.prompt_tokens);
            let terms = [1.0, steps(tokens), tokens, tokens * tokens / 2.0, 0.0, 0.0];
            Equation { terms, sum: it.first_ms }
        };
        let window = |it: &DecodeWindow| {
            let terms = [0.0, 1.0, 0.0, 0.0, it.context_tokens, f64::from(it.sequences)];
            Equation { terms, sum: it.step_ms }
        };
        self.firsts.iter().map(first).chain(self.windows.iter().map(window)).collect()
    }

    /// Tokens in a block: what repeated prompts found are multiples of it. None if engines do not say what they found.
    pub(crate) fn block_tokens(&self) -> Option<u32> {
        let found = self.repeats.iter().filter_map(|it| it.cached_tokens).filter(|&it| it > 0);
        let block = found.fold(0, gcd);
        (block > 0).then_some(block)
    }
}

/// From the first to the last token of half of the answers.
fn usual_decode_ms(answers: &[ProbeAnswer]) -> f64 {
    let decode = |it: &ProbeAnswer| Some(millis(it.total()?.saturating_sub(it.first_token()?)));
    quantile(&answers.iter().filter_map(decode).collect::<Vec<_>>(), 0.5)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn single_first(round: &ProbeRound, answers: &[ProbeAnswer]) -> Option<SingleFirst> {
    let (request, answer) = (round.requests.first()?, answers.first()?);
    let first_ms = millis(answer.first_token()?);
    Some(SingleFirst { prompt_tokens: request.prompt_tokens(), first_ms })
}

fn step_model(found: &[f64; 6]) -> StepModel {
    StepModel {
        floor_ms: found[1],
        prefill_token_ms: found[2],
        attended_token_ms: found[3],
        context_token_ms: found[4],
        decode_sequence_ms: found[5],
    }
}

/// Budgets are set by people, to round numbers: the nearest power of two, or multiple of 64, if it is near enough.
pub(crate) fn rounded_budget(tokens: f64) -> u32 {
    /// How far off the measurement may be.
    const NEAR: f64 = 0.06;
    let power = 2f64.powf(tokens.max(1.0).log2().round());
    let multiple = (tokens / 64.0).round() * 64.0;
    let near = |it: &f64| *it > 0.0 && (tokens / it - 1.0).abs() <= NEAR;
    let candidates = [power, multiple, tokens.round()];
    candidates.into_iter().find(near).unwrap_or(tokens.round()).max(1.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::ProbeRequest;

    #[test]
    fn a_budget_is_a_round_number() {
        for (tokens, expected) in [
            (8_160.0, 8_192),
            (2_100.0, 2_048),
            (1_530.0, 1_536),
            (10_010.0, 9_984),
            (40.0, 40),
            (16_000.0, 16_384),
            (0.0, 1),
        ] {
            assert_eq!(rounded_budget(tokens), expected, "{tokens}");
        }
    }

    #[test]
    fn the_block_divides_all_that_was_found() {
        let repeat =
            |cached_tokens| RepeatSeen { prompt_tokens: 0, cached_tokens, first_ms: 0.0, again_ms: 0.0 };
        let block = |found: &[Option<u32>]| {
            Measurements { repeats: found.iter().map(|&it| repeat(it)).collect(), ..Measurements::default() }
                .block_tokens()
        };
        assert_eq!(block(&[Some(2_032), Some(1_696), Some(1_248)]), Some(16));
        assert_eq!(block(&[Some(0), None]), None);
        assert_eq!(block(&[Some(0), Some(128)]), Some(128));
    }

    #[test]
    fn a_repeat_needs_both_halves() {
        let mut measured = Measurements::default();
        let round = ProbeRound { kind: RoundKind::Repeat, requests: vec![ProbeRequest::new(1, 500, 1)] };
        let answer = |first_ms, cached| ProbeAnswer {
            sent: Duration::ZERO,
            tokens: vec![Duration::from_millis(first_ms)],
            cached_tokens: Some(cached),
        };
        measured.record(&round, &[answer(90, 0)]);
        assert!(measured.repeats.is_empty());
        measured.record(&round, &[answer(20, 496)]);
        let expected =
            RepeatSeen { prompt_tokens: 500, cached_tokens: Some(496), first_ms: 90.0, again_ms: 20.0 };
        assert_eq!(measured.repeats, [expected]);
    }
}
