//! The work promised to one worker, and when its prefill last progressed.
//!
//! Every promise is released exactly once, however its request ends. A sum below zero is a bug and stops a debug
//! build.

use maitre_base::{Instant, PrefillWork, Promise, PromisedWork};

use crate::attention::PrefillFit;

/// Work promised to one worker, by this router or by all others. Other routers send only the sums; the router infers
/// `progress` from how those change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    pub work: PromisedWork,
    /// When the prefill last progressed: a first token came out, or the first request of an empty backlog was placed.
    pub progress: Instant,
}

impl Backlog {
    pub fn make(&mut self, now: Instant, promise: Promise) {
        if self.work.prefilling == 0 {
            self.progress = now;
        }
        self.work.requests += 1;
        self.work.prefilling += 1;
        self.work.prefill += promise.prefill;
        self.work.decode += promise.decode;
        self.work.context += promise.context;
    }

    /// The first token has arrived, so the prefill is done. Removes it from the sums and from the caller's promise.
    pub fn prefilled(&mut self, now: Instant, promise: &mut Promise) {
        debug_assert!(self.work.prefill.contains(promise.prefill), "prefilled more than was promised");
        debug_assert!(!promise.prefilled, "prefilled twice");
        self.work.prefilling = self.work.prefilling.saturating_sub(1);
        self.progress = now;
        self.work.prefill -= promise.prefill;
        promise.prefill = PrefillWork::ZERO;
        promise.prefilled = true;
    }

    pub fn release(&mut self, promise: Promise) {
        let work = &mut self.work;
        debug_assert!(work.requests > 0, "released a promise that was never made");
        debug_assert!(
            work.prefill.contains(promise.prefill) && work.decode >= promise.decode,
            "released too much"
        );
        work.requests = work.requests.saturating_sub(1);
        work.prefilling = work.prefilling.saturating_sub(u32::from(!promise.prefilled));
        work.prefill -= promise.prefill;
        work.decode -= promise.decode;
        work.context -= promise.context;
        if work.requests == 0 {
            self.progress = Instant::ZERO;
        }
    }

    /// Replaces the sums by newer ones of other routers, and infers progress: the prefill progressed if a backlog
    /// begins or the prefill shrank.
    pub fn update(&mut self, now: Instant, work: PromisedWork) {
        let begins = self.work.prefilling == 0 && work.prefilling > 0;
        let shrank = work.prefilling < self.work.prefilling || !work.prefill.contains(self.work.prefill);
        let progress = match (work.requests, begins || shrank) {
            (0, _) => Instant::ZERO,
            (_, true) => now,
            (_, false) => self.progress,
        };
        *self = Backlog { work, progress };
    }

    /// Both together. The engine has one queue for all routers, so the latest progress counts.
    #[must_use]
    pub fn plus(&self, other: &Backlog) -> Backlog {
        Backlog { work: self.work.plus(&other.work), progress: self.progress.max(other.progress) }
    }

    /// Seconds until the promised prefill is done.
    ///
    /// Engines prefill in order of arrival, so the time since the last progress went into the first request. Only the
    /// sums are kept: assume that the first request has the mean size.
    pub fn wait_seconds(&self, now: Instant, prefill: &PrefillFit) -> f64 {
        if self.work.prefilling == 0 {
            return 0.0;
        }
        let all = prefill.seconds(self.work.prefill);
        let first = all / f64::from(self.work.prefilling);
        all - now.since(self.progress).as_secs_f64().min(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::Tokens;

    fn promise(prefill: u64, decode: u64) -> Promise {
        let context = Tokens(prefill + decode);
        Promise {
            prefill: PrefillWork::whole(Tokens(prefill)),
            decode: Tokens(decode),
            context,
            prefilled: false,
        }
    }

    #[test]
    fn releases_in_any_order_leave_exactly_zero() {
        let mut backlog = Backlog::default();
        let (mut one, two) = (promise(100, 7), promise(5, 0));
        backlog.make(Instant::ZERO, one);
        backlog.make(Instant::ZERO, two);
        backlog.prefilled(Instant::ZERO, &mut one);
        let expected = PromisedWork {
            requests: 2,
            prefilling: 1,
            prefill: PrefillWork::whole(Tokens(5)),
            decode: Tokens(7),
            context: Tokens(112),
        };
        assert_eq!(backlog.work, expected);
        backlog.release(one);
        backlog.release(two);
        assert_eq!(backlog, Backlog::default());
    }

    #[test]
    fn progress_of_other_routers_follows_from_their_sums() {
        let at = Instant::from_millis;
        let sums = |requests: u32, prefilling: u32, prefill: u64| PromisedWork {
            requests,
            prefilling,
            prefill: PrefillWork::whole(Tokens(prefill)),
            ..PromisedWork::default()
        };
        let mut backlog = Backlog::default();
        // Each row: the time, the sums that arrive, and the time of the last progress after that.
        for (now, work, expected) in [
            (10, sums(1, 1, 500), 10),
            (20, sums(2, 2, 900), 10),
            (30, sums(2, 1, 400), 30),
            (40, sums(3, 2, 700), 30),
            (50, sums(3, 2, 600), 50),
            (60, sums(3, 0, 0), 60),
            (70, sums(4, 1, 100), 70),
            (80, sums(0, 0, 0), 0),
        ] {
            backlog.update(at(now), work);
            assert_eq!(backlog, Backlog { work, progress: at(expected) }, "at {now}");
        }
    }

    #[test]
    fn elapsed_time_counts_for_the_first_request_only() {
        let mut backlog = Backlog::default();
        let start = Instant::from_millis(1_000);
        for _ in 0..4 {
            backlog.make(start, promise(1_000, 0));
        }
        let fit = PrefillFit::new(0.5, 1e-3, 0.0);
        let wait = |millis, backlog: &Backlog| backlog.wait_seconds(Instant::from_millis(millis), &fit);
        assert_eq!(wait(1_000, &backlog), 4.0);
        assert_eq!(wait(1_500, &backlog), 3.5);
        // However late the first one is, the others have not begun.
        assert_eq!(wait(60_000, &backlog), 3.0);
        assert_eq!(Backlog::default().wait_seconds(start, &fit), 0.0);
    }
}
