//! How long a worker's rates hold after the last request that showed them.
//!
//! Prices keep requests away from a worker that was slow, so nothing shows that it has recovered. (A worker that had
//! been ten times slower for a minute got none of 1,840 requests in the minutes after.) So evidence has an age: after
//! a while without any, an idle worker's rates fade to those of its model, until a request tries it again.
//!
//! The longer a worker has been unlike its model, the longer its rates hold. A trial costs one request the
//! difference, and a worker that has been slow for an hour is likely to be slow in a minute. Age counts in seconds
//! and in first tokens of the model: otherwise a model with a request a minute would try a slow worker with every
//! second one.

use std::time::Duration;

use maitre_base::Instant;

/// Rates hold for this part of the time that the worker has been unlike its model, within limits. Then they fade in
/// the same time. A worker that was slow for a minute is tried again every fifteen seconds.
const HOLDS_PART: u32 = 8;
const HOLDS_MIN: Duration = Duration::from_secs(4);
const HOLDS_MAX: Duration = Duration::from_mins(1);
/// Rates hold for this many first tokens of its model, and fade within as many: trials are at most one request in
/// twenty.
const HOLDS_FIRST_TOKENS: u32 = 10;

/// A worker whose times differ from its model's by more than this factor is unlike it.
pub(crate) const UNLIKE: f64 = 1.25;
/// The same for a worker that is not on trial, whose rates only several observations in a row disprove. Under load a
/// worker gets requests even while it is slow.
const FAR_UNLIKE: f64 = 2.0;
const DISPROOFS: u8 = 3;
/// After this long, a difference above `UNLIKE` is enough, because workers like the others do not look unlike them
/// for so long.
const UNLIKE_LONG: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Staleness {
    /// When the worker last showed its rates.
    at: Instant,
    /// First tokens that its model had seen by then.
    first_tokens: u32,
    /// Since when the worker has been unlike its model.
    unlike_since: Option<Instant>,
    /// Its process may have been replaced since then.
    is_void: bool,
    /// Whether it has a request that was placed there after the rates began to fade.
    on_trial: bool,
    /// Observations in a row that disprove the rates.
    disproofs: u8,
}

impl Staleness {
    /// The worker showed its rates, after this many first tokens of its model.
    pub(crate) fn refresh(&mut self, now: Instant, first_tokens: u32, is_unlike: bool) {
        let unlike_since = is_unlike.then(|| self.unlike_since.unwrap_or(now));
        *self = Staleness { at: now, first_tokens, unlike_since, is_void: false, on_trial: false, ..*self };
    }

    /// A request is placed at the idle worker.
    pub(crate) fn place(&mut self, now: Instant, first_tokens: u32) {
        self.on_trial = self.faded(now, first_tokens) > 0.0;
    }

    /// The worker took `seen` seconds. `expected` is what its own rates predict, `usual` what its model's predict.
    /// Returns whether its rates no longer hold: what was seen is nearer to its model's. In a trial one observation
    /// decides, even by a small difference: a worker priced 13 % above the others gets nothing but trials.
    pub(crate) fn is_disproved(&mut self, seen: f64, expected: f64, usual: f64) -> bool {
        let off = |expected: f64| (seen / expected).ln().abs();
        let is_nearer = off(usual) < off(expected);
        self.disproofs = if is_nearer { self.disproofs.saturating_add(1) } else { 0 };
        let is_far = is_unlike(expected, usual, FAR_UNLIKE)
            || self.unlike() >= UNLIKE_LONG && is_unlike(expected, usual, UNLIKE);
        let is_sure = self.disproofs >= DISPROOFS && is_far;
        is_sure || is_nearer && self.on_trial
    }

    /// Nothing seen so far holds any longer.
    pub(crate) fn void(&mut self) {
        self.is_void = true;
    }

    /// For how long the worker had been unlike its model when it last showed its rates.
    fn unlike(&self) -> Duration {
        self.unlike_since.map_or(Duration::ZERO, |it| self.at.since(it))
    }

    /// How far the rates have faded: 0 if they hold, 1 if nothing is left of them.
    pub(crate) fn faded(&self, now: Instant, first_tokens: u32) -> f64 {
        if self.is_void {
            return 1.0;
        }
        // A smaller number is that of other workers, with which it is compared since.
        let later = first_tokens.checked_sub(self.first_tokens).unwrap_or(first_tokens);
        if later <= HOLDS_FIRST_TOKENS {
            return 0.0;
        }
        let by_count = f64::from(later) / f64::from(HOLDS_FIRST_TOKENS) - 1.0;
        let holds = (self.unlike() / HOLDS_PART).clamp(HOLDS_MIN, HOLDS_MAX);
        let by_time = now.since(self.at).as_secs_f64() / holds.as_secs_f64() - 1.0;
        by_time.min(by_count).clamp(0.0, 1.0)
    }
}

pub(crate) fn is_unlike(own: f64, usual: f64, factor: f64) -> bool {
    !(1.0 / factor..=factor).contains(&(own / usual))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1_000)
    }

    /// A worker was unlike its model for `unlike` seconds. Each row: seconds and first tokens later, and how far its
    /// rates have faded.
    #[track_caller]
    fn check(unlike: u64, rows: &[(u64, u32, f64)]) {
        let mut staleness = Staleness::default();
        staleness.refresh(at(100), 500, true);
        staleness.refresh(at(100 + unlike), 500, true);
        for &(seconds, first_tokens, expected) in rows {
            let faded = staleness.faded(at(100 + unlike + seconds), 500 + first_tokens);
            assert!((faded - expected).abs() < 1e-9, "after {seconds} s and {first_tokens}: {faded}");
        }
    }

    #[test]
    fn rates_hold_for_an_eighth_of_their_age_and_fade_in_another() {
        check(80, &[(0, 99, 0.0), (10, 99, 0.0), (15, 99, 0.5), (20, 99, 1.0), (900, 99, 1.0)]);
        check(0, &[(4, 99, 0.0), (6, 99, 0.5), (8, 99, 1.0)]);
        check(86_400, &[(60, 99, 0.0), (90, 99, 0.5), (120, 99, 1.0)]);
    }

    #[test]
    fn they_hold_while_the_model_has_shown_little() {
        check(80, &[(900, 0, 0.0), (900, 10, 0.0), (900, 15, 0.5), (900, 20, 1.0)]);
    }

    #[test]
    fn a_worker_like_the_others_again_starts_anew() {
        let mut staleness = Staleness::default();
        staleness.refresh(at(0), 0, true);
        staleness.refresh(at(800), 0, false);
        assert_eq!(staleness.faded(at(808), 99), 1.0);
        staleness.refresh(at(808), 99, true);
        assert_eq!(staleness.faded(at(816), 198), 1.0);
    }

    #[test]
    fn only_a_request_placed_on_faded_rates_is_a_trial() {
        let mut staleness = Staleness::default();
        staleness.refresh(at(100), 0, false);
        for (seconds, is_trial) in [(103, false), (107, true)] {
            staleness.place(at(seconds), 99);
            assert_eq!(staleness.on_trial, is_trial, "after {seconds} s");
        }
        staleness.refresh(at(108), 99, false);
        assert!(!staleness.on_trial);
        staleness.void();
        staleness.place(at(108), 99);
        assert!(staleness.on_trial && staleness.faded(at(108), 99) == 1.0);
    }

    #[test]
    fn rates_are_disproved_by_one_trial_or_three_observations_of_a_busy_worker() {
        // Each row: seconds seen, expected of the worker, and usual; whether they disprove the rates in a trial, and
        // at the third time.
        for (seen, expected, usual, in_trial, at_last) in [
            (1.1, 10.0, 1.0, true, true),
            (9.0, 10.0, 1.0, false, false),
            (1.1, 1.6, 1.0, true, false),
            (1.0, 1.1, 1.0, true, false),
            (1.0, 0.1, 1.0, true, true),
        ] {
            let row = format!("{seen} of {expected}, usually {usual}");
            let mut busy = Staleness::default();
            let mut trial = Staleness { on_trial: true, ..busy };
            assert_eq!(trial.is_disproved(seen, expected, usual), in_trial, "{row}");
            let verdicts = [(); 3].map(|()| busy.is_disproved(seen, expected, usual));
            assert_eq!(verdicts, [false, false, at_last], "{row}");
            assert!(!busy.is_disproved(expected, expected, usual), "{row}");
        }
    }

    #[test]
    fn a_worker_that_was_unlike_for_long_is_disproved_by_small_differences_too() {
        for (unlike, expected) in [(29, false), (30, true)] {
            let mut busy = Staleness::default();
            busy.refresh(at(100), 500, true);
            busy.refresh(at(100 + unlike), 600, true);
            let verdicts = [(); 3].map(|()| busy.is_disproved(1.1, 1.6, 1.0));
            assert_eq!(verdicts, [false, false, expected], "after {unlike} s");
        }
    }
}
