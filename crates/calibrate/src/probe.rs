//! What a calibration sends and sees: rounds of requests, and when the tokens of their answers came.

use std::time::Duration;

use maitre_base::Rng;

/// Token ids of prompts. Below lie the special tokens of many models; above, small vocabularies end.
const FIRST_ID: u32 = 1_000;
const IDS: usize = 4_000;

/// A run of tokens. Equal seeds are equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PromptPart {
    pub(crate) seed: u64,
    pub(crate) tokens: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProbeRequest {
    /// When it leaves, after the round began.
    pub(crate) at: Duration,
    pub(crate) parts: Vec<PromptPart>,
    pub(crate) answer_tokens: u32,
}

/// What a round of requests is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundKind {
    /// One prompt alone: the first token's time by length.
    Single,
    /// Several that decode together: the step's time by width and context.
    Decode,
    /// One that decodes while long prompts are prefilled: the tokens of a step.
    Chunks,
    /// One prompt, sent again in the next round: whether prefixes are cached.
    Repeat,
    /// Fills the cache, or looks what is left of it.
    Fill,
    /// Not fitted.
    HeldOut,
}

/// Requests that are in flight together. The next round begins when all are answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProbeRound {
    pub(crate) kind: RoundKind,
    pub(crate) requests: Vec<ProbeRequest>,
}

/// What came of a request. All times count from the beginning of the round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ProbeAnswer {
    pub(crate) sent: Duration,
    /// When each token came.
    pub(crate) tokens: Vec<Duration>,
    /// Prompt tokens that the engine found in its cache, if it says so.
    pub(crate) cached_tokens: Option<u32>,
}

/// An engine that can be probed.
pub(crate) trait ProbeTarget {
    /// Sends the requests of a round, each when it is due, and waits for all answers.
    fn run(&mut self, round: &ProbeRound) -> impl Future<Output = anyhow::Result<Vec<ProbeAnswer>>>;

    /// Since the calibration began.
    fn elapsed(&self) -> Duration;
}

impl ProbeRequest {
    /// A prompt that is in no cache, at the beginning of the round.
    pub(crate) fn new(seed: u64, tokens: u32, answer_tokens: u32) -> ProbeRequest {
        ProbeRequest { at: Duration::ZERO, parts: vec![PromptPart { seed, tokens }], answer_tokens }
    }

    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.parts.iter().map(|it| it.tokens).sum()
    }

    /// The token ids of the prompt.
    pub(crate) fn prompt(&self) -> Vec<u32> {
        let ids = |part: &PromptPart| {
            let mut rng = Rng::new(part.seed);
            (0..part.tokens).map(move |_| FIRST_ID + rng.below(IDS) as u32)
        };
        self.parts.iter().flat_map(ids).collect()
    }
}

impl ProbeAnswer {
    pub(crate) fn first_token(&self) -> Option<Duration> {
        Some(self.tokens.first()?.saturating_sub(self.sent))
    }

    /// From the request to the last token.
    pub(crate) fn total(&self) -> Option<Duration> {
        Some(self.tokens.last()?.saturating_sub(self.sent))
    }
}

pub(crate) fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_are_equal_tokens() {
        let shared = |own| ProbeRequest {
            parts: vec![PromptPart { seed: 7, tokens: 100 }, PromptPart { seed: own, tokens: 20 }],
            ..ProbeRequest::new(0, 0, 1)
        };
        let (one, other) = (shared(1).prompt(), shared(2).prompt());
        assert_eq!((one.len(), shared(1).prompt_tokens()), (120, 120));
        assert_eq!(one[..100], other[..100]);
        assert_ne!(one[100..], other[100..]);
        assert!(one.iter().all(|it| (FIRST_ID..FIRST_ID + IDS as u32).contains(it)));
    }
}
