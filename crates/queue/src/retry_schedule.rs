//! The `Retry-After` of refused requests, spread so that clients do not return all at once.
//!
//! If every refused client learned when the queue will be empty, all of them would return in the same second and be
//! refused again together. So each refused request books its work: its `Retry-After` is the time until the queue and
//! all earlier bookings are done. Clients that follow it return one after the other, as fast as the pool works.
//! Bookings elapse in real time, whether their clients return or not. They do not elapse before the first one is due:
//! until then the pool works on the queue, and one second must not count for both.

use std::time::Duration;

use maitre_base::Instant;

/// Minimum: a client that retries sooner only gets the same answer.
pub(crate) const SOONEST: Duration = Duration::from_secs(1);
/// Maximum, of one `Retry-After` and of all bookings together.
pub(crate) const FURTHEST: Duration = Duration::from_secs(3_600);

/// Maximum booked by one request: a huge request that no worker can serve must not delay all others.
const ONE_BOOKING: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Default)]
pub struct RetrySchedule {
    /// Work booked by refused requests, in seconds of the whole pool.
    booked: f64,
    /// Up to this time bookings have elapsed; in the future while none is due.
    until: Instant,
}

impl RetrySchedule {
    /// The `Retry-After` of a request that is refused now. The pool takes `work_seconds` for it and
    /// `work_seconds_ahead` for the queue before it. NaN counts as zero.
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

/// Clamps to [0, `FURTHEST`]; NaN becomes zero.
fn seconds(number: f64) -> f64 {
    if number > 0.0 { number.min(FURTHEST.as_secs_f64()) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Instant = Instant::from_millis(1_000);

    #[test]
    fn requests_refused_at_once_get_successive_times() {
        let mut schedule = RetrySchedule::default();
        let told: Vec<u64> = (0..5).map(|_| schedule.retry_after(NOW, 10.0, 2.0).as_secs()).collect();
        assert_eq!(told, [10, 12, 14, 16, 18]);
    }

    #[test]
    fn bookings_are_worked_off_in_real_time() {
        let mut schedule = RetrySchedule::default();
        for _ in 0..10 {
            schedule.retry_after(NOW, 0.0, 2.0);
        }
        assert_eq!(schedule.retry_after(Instant::from_millis(16_000), 1.0, 0.0).as_secs(), 6);
        assert_eq!(schedule.retry_after(Instant::from_millis(60_000), 3.0, 0.0).as_secs(), 3);
    }

    #[test]
    fn times_stay_between_the_minimum_and_the_maximum() {
        let mut schedule = RetrySchedule::default();
        assert_eq!(schedule.retry_after(NOW, 0.0, 0.001), SOONEST);
        assert_eq!(schedule.retry_after(NOW + SOONEST, 1e9, 1e9), FURTHEST);
        // Two hours later no booking is left, however much was booked.
        assert_eq!(schedule.retry_after(NOW + SOONEST + FURTHEST * 2, 0.0, 0.0), SOONEST);
    }

    proptest! {
        #[test]
        fn any_number_gives_a_time_in_range(rows: Vec<(u64, f64, f64)>) {
            let mut schedule = RetrySchedule::default();
            for (nanos, ahead, work) in rows {
                let told = schedule.retry_after(Instant::from_nanos(nanos), ahead, work);
                prop_assert!((SOONEST..=FURTHEST).contains(&told), "{told:?}");
            }
        }

        #[test]
        fn a_client_that_follows_its_time_finds_earlier_bookings_done(
            rows in prop::collection::vec((0u64..2_000, 0.0f64..5.0), 1..100),
            ahead in 0.0f64..100.0,
        ) {
            // The work ahead shrinks as time passes; between two times there is room for the work of the
            // first request.
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
