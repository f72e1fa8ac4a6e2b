//! `CacheTTL`'s rule (Continuum, arXiv 2511.02230), as published: when a call ends, its KV is kept for the time τ that maximises
//! P(return ≤ τ)·(prefill saved + queueing avoided) − τ·(cost of memory), and calls go first come, first served by programs.
//!
//! The published rule pins memory in the engine. Here a program is resident for τ, as with working sets, and gives way after
//! it. A second of memory costs a second of delay: that long it keeps a held program of its size from going on. The queueing
//! that a return within τ avoids is the mean time that calls were held.

use std::time::Duration;

use super::Programs;
use super::think::ThinkTimes;

/// The part of the mean hold that each new one makes. Chosen: the last few dozen count.
const NEW: f64 = 0.05;

impl Programs {
    pub(super) fn learn_hold(&mut self, held: Duration) {
        self.hold_seconds += NEW * (held.as_secs_f64() - self.hold_seconds);
    }
}

impl ThinkTimes {
    /// The time for which it pays most to keep memory, if a return within it saves so many seconds.
    pub(super) fn time_to_live(&self, saved_seconds: f64) -> Duration {
        let mut best = (0.0, 0.0);
        for (end, returned) in self.returned_by() {
            let gain = returned * saved_seconds - end;
            if gain > best.1 {
                best = (end, gain);
            }
        }
        Duration::try_from_secs_f64(best.0).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_for_the_tools_if_a_return_saves_more_than_waiting_costs() {
        let mut times = ThinkTimes::default();
        (0..80).for_each(|_| times.observe(Duration::from_secs(5)));
        (0..20).for_each(|_| times.observe(Duration::from_secs(600)));
        let kept = times.time_to_live(30.0).as_secs_f64();
        assert!((5.0..8.0).contains(&kept), "{kept}");
        assert_eq!(times.time_to_live(2.0), Duration::ZERO, "0.8 · 2 s is less than five seconds of memory");
        assert!(times.time_to_live(10_000.0) >= Duration::from_secs(600));
        assert_eq!(ThinkTimes::default().time_to_live(30.0), Duration::ZERO, "nothing is known yet");
    }
}
