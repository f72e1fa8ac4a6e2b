//! Work routed to a worker and not yet done. Whoever makes a promise must release it, whatever happens
//! to the request; sums that go below zero are a bug, and tests say so.

use maitre_base::{Instant, Tokens};

/// What one request will cost a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    /// Prompt tokens it will have to compute; zero once the first token is out.
    pub prefill: Tokens,
    pub decode: Tokens,
    /// What it adds to the KV cache by its end: what is computed of the prompt, and the answer. The rest of
    /// the prompt is there already, and shared.
    pub context: Tokens,
    /// Whether its first token is out.
    pub prefilled: bool,
}

/// All that is promised to one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promised {
    pub requests: u32,
    /// Those whose first token is not out yet.
    pub prefilling: u32,
    pub prefill: Tokens,
    pub decode: Tokens,
    pub context: Tokens,
    /// When the prefill last got on: a first token came out, or the first of a new line was seated.
    pub progress: Instant,
}

impl Promised {
    pub fn make(&mut self, now: Instant, promise: Promise) {
        if self.prefilling == 0 {
            self.progress = now;
        }
        self.requests += 1;
        self.prefilling += 1;
        self.prefill += promise.prefill;
        self.decode += promise.decode;
        self.context += promise.context;
    }

    /// The first token is out: the prefill is done. The caller's promise shrinks with ours.
    pub fn prefilled(&mut self, now: Instant, promise: &mut Promise) {
        debug_assert!(self.prefill >= promise.prefill, "prefilled more than was promised");
        debug_assert!(!promise.prefilled, "prefilled twice");
        self.prefilling = self.prefilling.saturating_sub(1);
        self.progress = now;
        self.prefill -= promise.prefill;
        promise.prefill = Tokens::ZERO;
        promise.prefilled = true;
    }

    pub fn release(&mut self, promise: Promise) {
        debug_assert!(self.requests > 0, "released a promise nobody made");
        debug_assert!(self.prefill >= promise.prefill && self.decode >= promise.decode, "released too much");
        self.requests = self.requests.saturating_sub(1);
        self.prefilling = self.prefilling.saturating_sub(u32::from(!promise.prefilled));
        self.prefill -= promise.prefill;
        self.decode -= promise.decode;
        self.context -= promise.context;
        if self.requests == 0 {
            self.progress = Instant::ZERO;
        }
    }

    /// Somebody else's sums, told anew: when their prefill got on follows from how they have changed.
    pub fn hear(&mut self, now: Instant, told: Promised) {
        let begins = self.prefilling == 0 && told.prefilling > 0;
        let gets_on = told.prefilling < self.prefilling || told.prefill < self.prefill;
        let progress = match (told.requests, begins || gets_on) {
            (0, _) => Instant::ZERO,
            (_, true) => now,
            (_, false) => self.progress,
        };
        *self = Promised { progress, ..told };
    }

    /// Both together. It is one line that they stand in, so whoever saw it get on last is right.
    #[must_use]
    pub fn with(&self, other: &Promised) -> Promised {
        Promised {
            requests: self.requests.saturating_add(other.requests),
            prefilling: self.prefilling.saturating_add(other.prefilling),
            prefill: self.prefill + other.prefill,
            decode: self.decode + other.decode,
            context: self.context + other.context,
            progress: self.progress.max(other.progress),
        }
    }

    /// Seconds until the prefill promised so far is done, at so many seconds a token.
    ///
    /// Engines prefill in the order of arrival, so the time since the last progress has gone into the
    /// first of the line: into one of the size of the mean, for all we keep.
    pub fn wait_seconds(&self, now: Instant, prefill_token: f64) -> f64 {
        if self.prefilling == 0 {
            return 0.0;
        }
        let all = self.prefill.0 as f64 * prefill_token;
        let first = all / f64::from(self.prefilling);
        all - now.since(self.progress).as_secs_f64().min(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(prefill: u64, decode: u64) -> Promise {
        let context = Tokens(prefill + decode);
        Promise { prefill: Tokens(prefill), decode: Tokens(decode), context, prefilled: false }
    }

    #[test]
    fn what_is_released_in_any_order_leaves_exactly_zero() {
        let mut promised = Promised::default();
        let (mut one, two) = (promise(100, 7), promise(5, 0));
        promised.make(Instant::ZERO, one);
        promised.make(Instant::ZERO, two);
        promised.prefilled(Instant::ZERO, &mut one);
        assert_eq!((promised.requests, promised.prefilling), (2, 1));
        assert_eq!(
            (promised.prefill, promised.decode, promised.context),
            (Tokens(5), Tokens(7), Tokens(112))
        );
        promised.release(one);
        promised.release(two);
        assert_eq!(promised, Promised::default());
    }

    #[test]
    fn what_is_told_says_when_prefill_got_on() {
        let at = Instant::from_millis;
        let told = |requests: u32, prefilling: u32, prefill: u64| Promised {
            requests,
            prefilling,
            prefill: Tokens(prefill),
            ..Promised::default()
        };
        let mut promised = Promised::default();
        // When, what is told, and since when the line has not got on.
        for (now, sums, expected) in [
            (10, told(1, 1, 500), 10),
            (20, told(2, 2, 900), 10),
            (30, told(2, 1, 400), 30),
            (40, told(3, 2, 700), 30),
            (50, told(3, 2, 600), 50),
            (60, told(3, 0, 0), 60),
            (70, told(4, 1, 100), 70),
            (80, told(0, 0, 0), 0),
        ] {
            promised.hear(at(now), sums);
            assert_eq!(promised, Promised { progress: at(expected), ..sums }, "at {now}");
        }
    }

    #[test]
    fn time_goes_into_the_first_of_the_line() {
        let mut promised = Promised::default();
        let start = Instant::from_millis(1_000);
        for _ in 0..4 {
            promised.make(start, promise(1_000, 0));
        }
        let wait = |millis, promised: &Promised| promised.wait_seconds(Instant::from_millis(millis), 1e-3);
        assert_eq!(wait(1_000, &promised), 4.0);
        assert_eq!(wait(1_500, &promised), 3.5);
        // However late it is, the others have not been begun.
        assert_eq!(wait(60_000, &promised), 3.0);
        assert_eq!(Promised::default().wait_seconds(start, 1e-3), 0.0);
    }
}
