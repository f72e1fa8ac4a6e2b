//! When those who are refused should come again.
//!
//! To tell everybody "when the line is done" makes a herd: all who were refused in a minute return in the same second,
//! find the pool as full as before, and are refused again, together. So what is told is booked. Each one who is
//! refused is told a time by which what waits is done, and what was promised to those refused before it, and
//! then its own work is booked behind theirs. Those who keep to it come back one after the other, as fast as the pool
//! works. Bookings are worked off in real time, a second a second, whether those who have them come or not; but not
//! before the first of them is due. Until then the pool works on what waits, and to count that second for both
//! would tell the next one a time before those who are booked are done.

use std::time::Duration;

use maitre_base::Instant;

/// Nobody is told to come back sooner: a client that retries faster than this only asks for the same answer.
pub const SOONEST: Duration = Duration::from_secs(1);
/// Nobody is told to come back later, and no more is booked: whoever is refused then may as well try with the others.
pub const FURTHEST: Duration = Duration::from_secs(3_600);

/// No more is booked for one: a giant that nobody will ever serve must not send all others away.
const ONE_BOOKING: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Default)]
pub struct RetrySchedule {
    /// Work of the whole pool that is promised to those who were refused, in seconds.
    booked: f64,
    /// Up to when bookings have been worked off; ahead of now while none is due.
    until: Instant,
}

impl RetrySchedule {
    /// When one who is refused now should come again, if its work takes the pool so many seconds, and what waits
    /// before it so many. What is no number counts as nothing.
    pub fn retry_after(&mut self, now: Instant, work_seconds_ahead: f64, work_seconds: f64) -> Duration {
        let ahead = seconds(work_seconds_ahead);
        self.booked = (self.booked - now.since(self.until).as_secs_f64()).max(0.0);
        self.until = match self.booked > 0.0 {
            true => self.until.max(now),
            false => now + Duration::from_secs_f64(ahead),
        };
        let wait = ahead + self.booked;
        self.booked = seconds(self.booked + seconds(work_seconds).min(ONE_BOOKING.as_secs_f64()));
        Duration::from_secs_f64(wait.clamp(SOONEST.as_secs_f64(), FURTHEST.as_secs_f64()))
    }
}

/// No number counts as nothing, and nothing as more than can be told.
fn seconds(number: f64) -> f64 {
    if number > 0.0 { number.min(FURTHEST.as_secs_f64()) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Instant = Instant::from_millis(1_000);

    #[test]
    fn those_refused_in_one_instant_are_told_times_one_after_the_other() {
        let mut schedule = RetrySchedule::default();
        let told: Vec<u64> = (0..5).map(|_| schedule.retry_after(NOW, 10.0, 2.0).as_secs()).collect();
        assert_eq!(told, [10, 12, 14, 16, 18]);
    }

    #[test]
    fn bookings_are_worked_off_as_time_goes_by() {
        let mut schedule = RetrySchedule::default();
        for _ in 0..10 {
            schedule.retry_after(NOW, 0.0, 2.0);
        }
        assert_eq!(schedule.retry_after(Instant::from_millis(16_000), 1.0, 0.0).as_secs(), 6);
        assert_eq!(schedule.retry_after(Instant::from_millis(60_000), 3.0, 0.0).as_secs(), 3);
    }

    #[test]
    fn nobody_is_told_at_once_or_tomorrow() {
        let mut schedule = RetrySchedule::default();
        assert_eq!(schedule.retry_after(NOW, 0.0, 0.001), SOONEST);
        assert_eq!(schedule.retry_after(NOW + SOONEST, 1e9, 1e9), FURTHEST);
        // Two hours later the schedule is empty, however much was asked for.
        assert_eq!(schedule.retry_after(NOW + SOONEST + FURTHEST * 2, 0.0, 0.0), SOONEST);
    }

    proptest! {
        #[test]
        fn no_number_can_hurt(rows: Vec<(u64, f64, f64)>) {
            let mut schedule = RetrySchedule::default();
            for (nanos, ahead, work) in rows {
                let told = schedule.retry_after(Instant::from_nanos(nanos), ahead, work);
                prop_assert!((SOONEST..=FURTHEST).contains(&told), "{told:?}");
            }
        }

        #[test]
        fn whoever_keeps_to_it_finds_the_work_of_those_before_it_done(
            rows in prop::collection::vec((0u64..2_000, 0.0f64..5.0), 1..100),
            ahead in 0.0f64..100.0,
        ) {
            // The work ahead goes by as time does; between two times told there is room for the work of the first.
            let mut schedule = RetrySchedule::default();
            let (mut now, mut last) = (NOW, None);
            for (pause_ms, work) in rows {
                now = now + Duration::from_millis(pause_ms);
                let left = (ahead - now.since(NOW).as_secs_f64()).max(0.0);
                let told = now.as_secs_f64() + schedule.retry_after(now, left, work).as_secs_f64();
                if let Some((before, took)) = last {
                    prop_assert!(told >= before + took - 1.0 - 1e-6, "told {told}, the one before {before} + {took}");
                }
                last = Some((told, work));
            }
        }
    }
}
