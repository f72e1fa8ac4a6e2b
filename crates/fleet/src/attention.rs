//! How the cost of a prompt token grows with its position in the prompt, learned for each model and kind of GPU.
//!
//! A prompt token attends to all tokens before it. On dense models and large GPUs a token takes twice as long after
//! 60,000 to 85,000 tokens, on an 8B model after 18,000 (the profiles of our engine model). While every token counted
//! alike, a conversation of 100,000 tokens that an engine computed again looked half as expensive as it is. A turn of
//! 500 tokens at its end looked cheaper still. With this model, responses of the conversation trace end 5 to 6 %
//! sooner on `a100x8-70b`. On `h200-8b` they end 8 % sooner with the usual figure and 15 % with the learned one
//! (decision 035).
//!
//! The router learns it by a regression of first-token times on tokens and on what those attend to. Short prompts say
//! nothing about it; then a prior keeps it in place.

use maitre_base::PrefillWork;

/// The usual figure: after this many tokens a prompt token takes twice as long as at the beginning.
const DOUBLED_AFTER: f64 = 60_000.0;
/// No engine doubles sooner: a bound for what noise can do.
const DOUBLED_AFTER_MIN: f64 = 2_000.0;
/// The prior counts like one first token that attends to so much, a whole prompt of 45,000 tokens. With half of it,
/// noise moved the figure without bound under a RAG load that hardly shows it. With ten times as much, the estimate
/// for `h200-8b` was still 40,000 after a whole hour.
const PRIOR: f64 = 1e9;
/// The weight that a first token keeps after the next one: half after 1,400. The figure belongs to model and GPU and
/// hardly changes.
const MEMORY: f64 = 0.9995;

/// Seconds to the first token: a base, a time for each prompt token to compute, and one for each token that those attend to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefillFit {
    pub base: f64,
    pub slope: f64,
    pub attention: f64,
}

impl PrefillFit {
    /// A base and a time per token, where attending to a token takes this part of computing one.
    pub(crate) const fn new(base: f64, slope: f64, part: f64) -> PrefillFit {
        PrefillFit { base, slope, attention: slope * part }
    }

    /// Seconds to the first token with this much to prefill before it.
    pub fn at(&self, work: PrefillWork) -> f64 {
        self.base + self.seconds(work)
    }

    /// Seconds that the prefill itself takes.
    pub fn seconds(&self, work: PrefillWork) -> f64 {
        self.slope * work.tokens.0 as f64 + self.attention * work.attended as f64
    }

    /// The same work, in tokens that attend to nothing.
    pub fn plain_tokens(&self, work: PrefillWork) -> f64 {
        self.seconds(work) / self.slope
    }

    /// The mean number of plain tokens that take as long as one token of this work; one if there is no work.
    pub fn plain_per_token(&self, work: PrefillWork) -> f64 {
        if work.tokens.0 == 0 { 1.0 } else { self.plain_tokens(work) / work.tokens.0 as f64 }
    }

    /// Moved by this part towards another fit.
    pub(crate) fn faded(&self, part: f64, to: &PrefillFit) -> PrefillFit {
        let mix = |own: f64, other: f64| own + part * (other - own);
        PrefillFit {
            base: mix(self.base, to.base),
            slope: mix(self.slope, to.slope),
            attention: mix(self.attention, to.attention),
        }
    }
}

/// The time to attend to one token, as a part of the time to compute one.
pub(crate) const USUAL: f64 = 1.0 / DOUBLED_AFTER;

/// First tokens as decaying sums, by tokens and by what those attend to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attention {
    weight: f64,
    tokens: f64,
    attended: f64,
    seconds: f64,
    tokens_tokens: f64,
    tokens_attended: f64,
    attended_attended: f64,
    tokens_seconds: f64,
    attended_seconds: f64,
}

impl Attention {
    /// A first token came after `seconds`, with this much to prefill before it.
    pub(crate) fn learn(&mut self, work: PrefillWork, seconds: f64) {
        let (tokens, attended) = (work.tokens.0 as f64, work.attended as f64);
        let add = |sum: &mut f64, value: f64| *sum = *sum * MEMORY + value;
        add(&mut self.weight, 1.0);
        add(&mut self.tokens, tokens);
        add(&mut self.attended, attended);
        add(&mut self.seconds, seconds);
        add(&mut self.tokens_tokens, tokens * tokens);
        add(&mut self.tokens_attended, tokens * attended);
        add(&mut self.attended_attended, attended * attended);
        add(&mut self.tokens_seconds, tokens * seconds);
        add(&mut self.attended_seconds, attended * seconds);
    }

    /// The time to attend to one token, as a part of the time to compute one. It comes from the slopes of a plane
    /// through the first tokens and the prior. The prior fixes only the ratio of the two slopes.
    pub(crate) fn part(&self) -> f64 {
        let weight = self.weight.max(1.0);
        let around = |sum: f64, one: f64, other: f64| sum - one * other / weight;
        let tokens = around(self.tokens_tokens, self.tokens, self.tokens) + (PRIOR * USUAL).powi(2);
        let both = around(self.tokens_attended, self.tokens, self.attended) - PRIOR * PRIOR * USUAL;
        let attended = around(self.attended_attended, self.attended, self.attended) + PRIOR * PRIOR;
        let by_tokens = around(self.tokens_seconds, self.tokens, self.seconds);
        let by_attended = around(self.attended_seconds, self.attended, self.seconds);
        let determinant = tokens * attended - both * both;
        let token = by_tokens * attended - by_attended * both;
        let attending = by_attended * tokens - by_tokens * both;
        // Prompts of one length lie on a line, through which any plane fits.
        if determinant <= SINGULAR * tokens * attended || token <= 0.0 {
            return USUAL;
        }
        (attending / token).clamp(0.0, 1.0 / DOUBLED_AFTER_MIN)
    }
}

/// A determinant this small relative to its terms is a rounding error.
const SINGULAR: f64 = 1e-9;

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::{Rng, Tokens};

    /// After how many tokens a token takes twice as long, learned from the prompts of `draw`: tokens before, and
    /// tokens to compute. A token takes 0.1 ms, with 10 % noise.
    #[track_caller]
    fn check(doubled_after: f64, draw: impl Fn(&mut Rng) -> (u64, u64), expected: std::ops::Range<f64>) {
        let mut rng = Rng::new(3);
        let mut attention = Attention::default();
        for _ in 0..2_000 {
            let (before, tokens) = draw(&mut rng);
            let work = PrefillWork::after(Tokens(before), Tokens(tokens));
            let fit = PrefillFit::new(0.03, 1e-4, 1.0 / doubled_after);
            let seconds = fit.at(work) * (0.9 + 0.2 * rng.unit());
            attention.learn(work, seconds);
        }
        let found = 1.0 / attention.part();
        assert!(expected.contains(&found), "{found}");
    }

    #[test]
    fn long_contexts_show_it() {
        let turns = |rng: &mut Rng| (rng.below(100_000) as u64, 500 + rng.below(8_000) as u64);
        check(18_000.0, turns, 15_000.0..24_000.0);
        check(85_000.0, turns, 72_000.0..98_000.0);
        let whole = |rng: &mut Rng| (0, 500 + rng.below(120_000) as u64);
        check(18_000.0, whole, 16_000.0..21_000.0);
        check(1e9, whole, 300_000.0..f64::INFINITY);
    }

    #[test]
    fn short_prompts_say_nothing() {
        let short = |rng: &mut Rng| (0, 100 + rng.below(3_000) as u64);
        check(18_000.0, short, 50_000.0..70_000.0);
        check(18_000.0, |_: &mut Rng| (0, 40_000), 50_000.0..70_000.0);
        assert_eq!(Attention::default().part(), USUAL);
    }

    #[test]
    fn work_in_plain_tokens_takes_as_long() {
        let fit = PrefillFit::new(0.5, 1e-4, 1.0 / 50_000.0);
        let work = PrefillWork::after(Tokens(50_000), Tokens(1_000));
        assert_eq!(work.attended, 50_500_000);
        assert!((fit.plain_tokens(work) - 2_010.0).abs() < 1e-6, "{}", fit.plain_tokens(work));
        assert!((fit.at(work) - 0.701).abs() < 1e-9, "{}", fit.at(work));
    }
}
