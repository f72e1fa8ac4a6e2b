//! The expected size of a prompt and of its answer, learned per model from the `usage` of past answers.

use maitre_base::Tokens;

/// Weight of the newest answer: the last thirteen make up half of the memory.
const NEWEST: f64 = 0.05;

/// The number of answers that this weight remembers. Until then all answers weigh the same.
const FEW: u32 = 20;

/// Expected final length of an answer, as a factor of its length so far. The router looks each time the length has
/// doubled.
const STILL_GOING: f64 = 1.5;

/// Bytes per token before any answer was seen: the ratio for English text with current vocabularies.
const BYTES_PER_TOKEN: f64 = 4.0;

/// Answer length before any was seen; public chat traces have means of 200 to 350 tokens.
const ANSWER_TOKENS: f64 = 256.0;

/// The longest answer that is learned from. Chosen: above what any model generates, so that an engine that counts
/// wrongly once does not make every request look like the work of days.
const ANSWER_TOKENS_MAX: f64 = (1 << 20) as f64;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub bytes_per_token: f64,
    pub answer_tokens: f64,
    /// The part of prompts that engines find in their caches.
    pub cached_part: f64,
    /// Answers that have ended.
    answers: u32,
}

impl Default for Estimate {
    fn default() -> Estimate {
        Estimate {
            bytes_per_token: BYTES_PER_TOKEN,
            answer_tokens: ANSWER_TOKENS,
            cached_part: 0.0,
            answers: 0,
        }
    }
}

/// The size of a prompt as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    Tokens(u64),
    Bytes(u64),
}

/// What an answer's `usage` counted, as far as it reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub prompt: Option<u64>,
    /// Prompt tokens that the engine found in its cache.
    pub cached: Option<u64>,
    pub answer: Option<u64>,
}

/// The size of a request, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub prompt: Tokens,
    pub answer: Tokens,
}

impl Estimate {
    /// What the request will cost. No answer is expected to exceed the client's limit.
    pub fn work(&self, size: Size, answer_max: Option<u64>, answers: Answers) -> Work {
        let prompt = match size {
            Size::Tokens(tokens) => tokens,
            Size::Bytes(bytes) => (bytes as f64 / self.bytes_per_token).ceil() as u64,
        };
        let answer = (self.answer_tokens.round() as u64).min(answer_max.unwrap_or(u64::MAX));
        Work { prompt: Tokens(prompt), answer: Tokens(answer.saturating_mul(answers.0.into())) }
    }

    pub fn learn(&mut self, size: Size, counted: Counted, answers: Answers) {
        if let (Size::Bytes(bytes @ 1..), Some(prompt @ 1..)) = (size, counted.prompt) {
            // Clamped: a cached image or a wrong count must not turn the ratio into nonsense.
            let seen = (bytes as f64 / prompt as f64).clamp(0.5, 16.0);
            self.bytes_per_token += NEWEST * (seen - self.bytes_per_token);
        }
        if let (Some(prompt @ 1..), Some(cached)) = (counted.prompt, counted.cached) {
            let seen = (cached as f64 / prompt as f64).min(1.0);
            self.cached_part += NEWEST * (seen - self.cached_part);
        }
        if let (1.., Some(tokens)) = (answers.0, counted.answer) {
            self.answers = self.answers.saturating_add(1);
            let weight = NEWEST.max(1.0 / (f64::from(self.answers) + 1.0));
            let mean = (tokens as f64 / f64::from(answers.0)).min(ANSWER_TOKENS_MAX);
            self.answer_tokens += weight * (mean - self.answer_tokens);
        }
    }

    /// Whether too few answers have ended to know their length.
    pub fn is_new(&self) -> bool {
        self.answers < FEW
    }

    /// An answer has reached this length and continues.
    pub fn learn_at_least(&mut self, tokens: u64) {
        let expected = STILL_GOING * tokens as f64;
        if expected > self.answer_tokens {
            self.answer_tokens += NEWEST * (expected - self.answer_tokens);
        }
    }
}

/// The expected rest of an answer. Its final length is expected to be at least `STILL_GOING` times the delivered
/// length, and at most the client's limit. The rest is at least one token, since the answer has not ended.
pub fn rest_of_answer(expected: Tokens, delivered: Tokens, answer_max: Option<u64>) -> Tokens {
    let still_going = Tokens((STILL_GOING * delivered.0 as f64) as u64);
    let most = answer_max.map_or(Tokens(u64::MAX), Tokens);
    (expected.max(still_going).min(most) - delivered).max(Tokens(1))
}

/// How many answers an engine decodes for a request: none for an embedding, several if the client asks for several or
/// sends several prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answers(pub u32);

impl Answers {
    pub const NONE: Answers = Answers(0);
    pub const ONE: Answers = Answers(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_and_the_answer_length_are_learned() {
        let mut estimate = Estimate::default();
        for _ in 0..200 {
            let counted = Counted { prompt: Some(1_000), cached: None, answer: Some(40) };
            estimate.learn(Size::Bytes(2_500), counted, Answers::ONE);
        }
        let work = estimate.work(Size::Bytes(5_000), None, Answers::ONE);
        assert_eq!(work, Work { prompt: Tokens(2_000), answer: Tokens(40) });
    }

    #[test]
    fn each_of_several_answers_counts_and_is_limited_and_learned() {
        let mut estimate = Estimate::default();
        let work = |estimate: &Estimate, most, answers| estimate.work(Size::Tokens(9), most, answers).answer;
        for (most, answers, expected) in [
            (None, Answers(64), 64 * 256),
            (Some(100), Answers(64), 6_400),
            (Some(u64::MAX), Answers(u32::MAX), 256 * u64::from(u32::MAX)),
            (Some(100), Answers::NONE, 0),
        ] {
            assert_eq!(work(&estimate, most, answers), Tokens(expected), "{answers:?}, at most {most:?}");
        }
        for _ in 0..200 {
            let counted = Counted { prompt: None, cached: None, answer: Some(6_400) };
            estimate.learn(Size::Tokens(9), counted, Answers(64));
        }
        assert_eq!(work(&estimate, None, Answers::ONE), Tokens(100));
    }

    #[test]
    fn one_answer_that_an_engine_counts_wrongly_is_soon_forgotten() {
        let mut estimate = Estimate::default();
        let mut learn = |answer, times| {
            let counted = Counted { prompt: None, cached: None, answer: Some(answer) };
            (0..times).for_each(|_| estimate.learn(Size::Tokens(9), counted, Answers::ONE));
            estimate.answer_tokens
        };
        learn(100, 100);
        learn(u64::MAX, 1);
        let soon = learn(100, 150);
        assert!(soon < 200.0, "{soon}");
    }

    #[test]
    fn the_cached_part_is_learned_from_engines_that_count_it() {
        let mut estimate = Estimate::default();
        let mut learn = |cached| {
            let counted = Counted { prompt: Some(1_000), cached, answer: None };
            (0..200).for_each(|_| estimate.learn(Size::Tokens(1_000), counted, Answers::ONE));
            estimate.cached_part
        };
        assert_eq!(learn(None), 0.0);
        assert!((learn(Some(900)) - 0.9).abs() < 0.01);
        assert!((learn(Some(5_000)) - 1.0).abs() < 0.01, "an engine that counts wrongly");
    }

    #[test]
    fn the_first_answers_teach_at_once() {
        let mut estimate = Estimate::default();
        let counted = Counted { prompt: None, cached: None, answer: Some(1_000) };
        estimate.learn(Size::Tokens(9), counted, Answers::ONE);
        assert!(estimate.is_new() && (620.0..640.0).contains(&estimate.answer_tokens), "{estimate:?}");
        (0..20).for_each(|_| estimate.learn(Size::Tokens(9), counted, Answers::ONE));
        assert!(!estimate.is_new() && estimate.answer_tokens > 950.0, "{estimate:?}");
    }

    #[test]
    fn four_billion_answers_are_not_too_many() {
        let mut estimate = Estimate { answers: u32::MAX - 1, ..Estimate::default() };
        let counted = Counted { prompt: None, cached: None, answer: Some(1_000) };
        (0..3).for_each(|_| estimate.learn(Size::Tokens(9), counted, Answers::ONE));
        assert!((300.0..400.0).contains(&estimate.answer_tokens), "{estimate:?}");
    }

    #[test]
    fn answers_under_way_teach_that_they_are_long_and_never_that_they_are_short() {
        let mut estimate = Estimate::default();
        estimate.learn_at_least(100);
        assert_eq!(estimate, Estimate::default());
        (0..200).for_each(|_| estimate.learn_at_least(512));
        assert!((760.0..=768.0).contains(&estimate.answer_tokens), "{estimate:?}");
    }

    #[test]
    fn an_answer_that_outran_its_estimate_is_expected_to_go_on_up_to_its_limit() {
        for (expected, delivered, answer_max, rest) in [
            // The expected length counts until the answer nears it.
            (256, 0, None, 256),
            (256, 100, None, 156),
            (256, 200, None, 100),
            (256, 256, None, 128),
            (256, 550, Some(1_500), 275),
            (256, 4_000, None, 2_000),
            // Within the limit, and at least one token.
            (256, 550, Some(600), 50),
            (100, 60, Some(100), 40),
            (100, 100, Some(100), 1),
            (100, 130, Some(100), 1),
            (0, 0, None, 1),
            (256, u64::MAX, None, 1),
        ] {
            let found = rest_of_answer(Tokens(expected), Tokens(delivered), answer_max);
            assert_eq!(found, Tokens(rest), "{delivered} of {expected}, at most {answer_max:?}");
        }
    }

    #[test]
    fn a_limit_caps_the_answer_and_an_embedding_has_none() {
        let estimate = Estimate::default();
        assert_eq!(estimate.work(Size::Tokens(9), Some(3), Answers::ONE).answer, Tokens(3));
        assert_eq!(estimate.work(Size::Tokens(9), Some(3), Answers::NONE).answer, Tokens(0));
    }
}
