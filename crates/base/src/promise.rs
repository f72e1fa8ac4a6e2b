//! Promised work: unfinished requests that routers have sent to a worker, in tokens.

use std::ops::{Add, AddAssign, Sub, SubAssign};

use crate::tokens::Tokens;

/// Prompt tokens to compute, and what they attend to. Each token attends to all before it, so the last tokens of a long
/// prompt take longer than its first. Sums saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefillWork {
    pub tokens: Tokens,
    /// For each of these tokens the number of tokens before it in its prompt, summed.
    pub attended: u64,
}

impl PrefillWork {
    pub const ZERO: PrefillWork = PrefillWork { tokens: Tokens::ZERO, attended: 0 };

    /// This many tokens of a prompt, after those `before` them.
    pub const fn after(before: Tokens, tokens: Tokens) -> PrefillWork {
        let mean = before.0.saturating_add(tokens.0 / 2);
        PrefillWork { tokens, attended: tokens.0.saturating_mul(mean) }
    }

    /// A prompt from its beginning.
    pub const fn whole(tokens: Tokens) -> PrefillWork {
        PrefillWork::after(Tokens::ZERO, tokens)
    }

    #[must_use]
    pub fn times(self, part: f64) -> PrefillWork {
        let times = |it: u64| (it as f64 * part) as u64;
        PrefillWork { tokens: Tokens(times(self.tokens.0)), attended: times(self.attended) }
    }

    /// Whether both are at least those of the other.
    pub fn contains(&self, other: PrefillWork) -> bool {
        self.tokens >= other.tokens && self.attended >= other.attended
    }
}

impl Add for PrefillWork {
    type Output = PrefillWork;
    fn add(self, other: PrefillWork) -> PrefillWork {
        let attended = self.attended.saturating_add(other.attended);
        PrefillWork { tokens: self.tokens + other.tokens, attended }
    }
}

impl Sub for PrefillWork {
    type Output = PrefillWork;
    fn sub(self, other: PrefillWork) -> PrefillWork {
        let attended = self.attended.saturating_sub(other.attended);
        PrefillWork { tokens: self.tokens - other.tokens, attended }
    }
}

impl AddAssign for PrefillWork {
    fn add_assign(&mut self, other: PrefillWork) {
        *self = *self + other;
    }
}

impl SubAssign for PrefillWork {
    fn sub_assign(&mut self, other: PrefillWork) {
        *self = *self - other;
    }
}

/// What one request will cost a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// The part of its prompt to compute; zero once the first token has come.
    pub prefill: PrefillWork,
    pub decode: Tokens,
    /// What the request adds to the KV cache by its end: the computed part of the prompt, and the answer. The rest of
    /// the prompt is already cached, and shared.
    pub context: Tokens,
    /// Whether the first token has come.
    pub prefilled: bool,
}

/// The sum of promises to one worker: by one router, or by several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromisedWork {
    pub requests: u32,
    /// Requests whose first token has not come yet.
    pub prefilling: u32,
    pub prefill: PrefillWork,
    pub decode: Tokens,
    pub context: Tokens,
}

impl PromisedWork {
    /// The sum of both. Saturates.
    #[must_use]
    pub fn plus(&self, other: &PromisedWork) -> PromisedWork {
        PromisedWork {
            requests: self.requests.saturating_add(other.requests),
            prefilling: self.prefilling.saturating_add(other.prefilling),
            prefill: self.prefill + other.prefill,
            decode: self.decode + other.decode,
            context: self.context + other.context,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_far_into_a_prompt_attend_to_more() {
        let work = |before, tokens| PrefillWork::after(Tokens(before), Tokens(tokens)).attended;
        assert_eq!((work(0, 1_000), work(10_000, 1_000)), (500_000, 10_500_000));
        assert_eq!(work(0, 300), work(0, 100) + work(100, 200), "a prompt in two parts is the whole");
        assert_eq!(PrefillWork::after(Tokens(u64::MAX), Tokens(2)).attended, u64::MAX);
    }

    #[test]
    fn work_is_never_negative() {
        let work = |tokens, attended| PrefillWork { tokens: Tokens(tokens), attended };
        assert_eq!(work(3, 50) - work(5, 20), work(0, 30));
        assert_eq!(work(3, u64::MAX) + work(5, 1), work(8, u64::MAX));
        assert!(work(3, 4).contains(work(3, 4)) && !work(3, 4).contains(work(2, 5)));
    }
}
