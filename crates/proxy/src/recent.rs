//! What the last minutes were like: running totals, the last first-token times, and a sample of both each second.
//!
//! Prometheus has all of it and better, for those who have a Prometheus. This is for whoever opens the page: a quarter
//! of an hour, in memory, bounded, with percentiles of the very times and not of buckets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use maitre_base::{ClassId, Instant};
use maitre_dialect::usage::Usage;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use crate::house::RouterState;
use crate::metrics::Outcome;

/// Between two samples.
const EVERY: Duration = Duration::from_secs(1);
/// Samples kept: a quarter of an hour.
const SAMPLES_MAX: usize = 900;
/// What percentiles and ratios of a sample look back on.
const WINDOW: usize = 10;
/// First-token times kept for that; of more than so many in ten seconds the older ones are left out.
const FIRSTS_MAX: usize = 8_192;

#[derive(Default)]
pub(crate) struct Recent {
    totals: Totals,
    firsts: Mutex<VecDeque<(Instant, f32)>>,
    samples: Mutex<VecDeque<Sample>>,
}

/// Since the start. Each a counter of its own: a reader may see one a moment before another.
#[derive(Default)]
struct Totals {
    answered: AtomicU64,
    refused: AtomicU64,
    declined: AtomicU64,
    failed: AtomicU64,
    left: AtomicU64,
    prompt_tokens: AtomicU64,
    answer_tokens: AtomicU64,
    /// Of answers that told how much of the prompt was cached.
    known_tokens: AtomicU64,
    cached_tokens: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) answered: u64,
    pub(crate) refused: u64,
    pub(crate) declined: u64,
    pub(crate) failed: u64,
    pub(crate) left: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) answer_tokens: u64,
    pub(crate) known_tokens: u64,
    pub(crate) cached_tokens: u64,
}

impl Sums {
    pub(crate) fn requests(&self) -> u64 {
        self.answered + self.refused + self.declined + self.failed + self.left
    }

    /// None where no engine has told.
    pub(crate) fn hit_ratio(&self) -> Option<f64> {
        (self.known_tokens > 0).then(|| self.cached_tokens as f64 / self.known_tokens as f64)
    }

    fn since(&self, then: &Sums) -> Sums {
        Sums {
            answered: self.answered - then.answered,
            refused: self.refused - then.refused,
            declined: self.declined - then.declined,
            failed: self.failed - then.failed,
            left: self.left - then.left,
            prompt_tokens: self.prompt_tokens - then.prompt_tokens,
            answer_tokens: self.answer_tokens - then.answer_tokens,
            known_tokens: self.known_tokens - then.known_tokens,
            cached_tokens: self.cached_tokens - then.cached_tokens,
        }
    }
}

/// One second, and what led up to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) at_ms: u64,
    pub(crate) ttft_p50_ms: Option<f64>,
    pub(crate) ttft_p99_ms: Option<f64>,
    pub(crate) requests_per_s: f64,
    pub(crate) answer_tokens_per_s: f64,
    pub(crate) prompt_tokens_per_s: f64,
    pub(crate) hit_ratio: Option<f64>,
    /// By class, in order of precedence.
    pub(crate) waiting: Vec<u32>,
    sums: Sums,
    at: Instant,
}

/// A request as it ended.
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) usage: Option<Usage>,
    pub(crate) pieces: u32,
    /// From its arrival to its first token, if it had one.
    pub(crate) first: Option<Duration>,
}

impl Recent {
    pub(crate) fn ended(&self, now: Instant, ended: &Ended) {
        let totals = &self.totals;
        let count = match ended.outcome {
            Outcome::Answered => &totals.answered,
            Outcome::Refused(_) => &totals.refused,
            Outcome::Declined(_) => &totals.declined,
            Outcome::Gone => &totals.left,
            Outcome::Broke | Outcome::Stalled | Outcome::Overdue => &totals.failed,
        };
        add(count, 1);
        let counts = ended.usage;
        let prompt = counts.and_then(|it| it.prompt_tokens);
        add(&totals.prompt_tokens, prompt.unwrap_or(0));
        // A stream that counts nothing comes a token a piece.
        add(
            &totals.answer_tokens,
            counts.and_then(|it| it.completion_tokens).unwrap_or(u64::from(ended.pieces)),
        );
        if let (Some(prompt), Some(cached)) = (prompt, counts.and_then(|it| it.cached_tokens)) {
            add(&totals.known_tokens, prompt);
            add(&totals.cached_tokens, cached);
        }
        if let (Outcome::Answered, Some(first)) = (ended.outcome, ended.first) {
            let mut firsts = self.firsts.lock();
            if firsts.len() >= FIRSTS_MAX {
                firsts.pop_front();
            }
            firsts.push_back((now, first.as_secs_f32() * 1_000.0));
        }
    }

    pub(crate) fn sums(&self) -> Sums {
        let totals = &self.totals;
        let read = |it: &AtomicU64| it.load(Ordering::Relaxed);
        // Cached before known, so that a ratio never exceeds one.
        let cached_tokens = read(&totals.cached_tokens);
        Sums {
            answered: read(&totals.answered),
            refused: read(&totals.refused),
            declined: read(&totals.declined),
            failed: read(&totals.failed),
            left: read(&totals.left),
            prompt_tokens: read(&totals.prompt_tokens),
            answer_tokens: read(&totals.answer_tokens),
            known_tokens: read(&totals.known_tokens),
            cached_tokens,
        }
    }

    /// The last one, or an empty one.
    pub(crate) fn latest(&self) -> Sample {
        self.samples.lock().back().cloned().unwrap_or_default()
    }

    /// Oldest first.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.samples.lock().iter().cloned().collect()
    }

    fn sample(&self, now: Instant, at_ms: u64, waiting: Vec<u32>) {
        let sums = self.sums();
        let (ttft_p50_ms, ttft_p99_ms) = self.percentiles(now);
        let mut samples = self.samples.lock();
        let second = samples.back().map_or_else(Sums::default, |it| sums.since(&it.sums));
        let seconds = samples.back().map_or(1.0, |it| now.since(it.at).as_secs_f64()).max(0.001);
        let window = samples.len().checked_sub(WINDOW).map_or_else(Sums::default, |it| samples[it].sums);
        if samples.len() >= SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(Sample {
            at_ms,
            ttft_p50_ms,
            ttft_p99_ms,
            requests_per_s: second.requests() as f64 / seconds,
            answer_tokens_per_s: second.answer_tokens as f64 / seconds,
            prompt_tokens_per_s: second.prompt_tokens as f64 / seconds,
            hit_ratio: sums.since(&window).hit_ratio(),
            waiting,
            sums,
            at: now,
        });
    }

    /// Of the first tokens of the last ten seconds; forgets those before.
    fn percentiles(&self, now: Instant) -> (Option<f64>, Option<f64>) {
        let mut firsts = self.firsts.lock();
        let window = EVERY * WINDOW as u32;
        while firsts.front().is_some_and(|&(at, _)| now.since(at) > window) {
            firsts.pop_front();
        }
        let mut sorted: Vec<f32> = firsts.iter().map(|it| it.1).collect();
        drop(firsts);
        sorted.sort_unstable_by(f32::total_cmp);
        let at = |part: f64| {
            let place = (sorted.len() as f64 * part).ceil() as usize;
            sorted.get(place.saturating_sub(1)).map(|&it| f64::from(it))
        };
        (at(0.5), at(0.99))
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Takes a sample each second, for as long as the router runs.
pub(crate) async fn take(house: Arc<RouterState>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let classes = house.settings().brain.queue.classes.len();
        let waiting = house.look(|brain| {
            let classes = 0..u8::try_from(classes).unwrap_or(u8::MAX);
            classes.map(|it| brain.waiting(ClassId(it)).requests).collect()
        });
        house.recent.sample(house.now(), house.clock.unix_ms(), waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(recent: &Recent, now: Instant, first_ms: u64) {
        let usage = Usage { prompt_tokens: Some(100), cached_tokens: Some(40), completion_tokens: Some(7) };
        let first = Some(Duration::from_millis(first_ms));
        recent.ended(now, &Ended { outcome: Outcome::Answered, usage: Some(usage), pieces: 9, first });
    }

    fn second(number: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(number)
    }

    #[test]
    fn a_sample_tells_of_its_second_and_the_ten_before() {
        let recent = Recent::default();
        recent.sample(second(0), 0, vec![0]);
        (1..=100).for_each(|it| answered(&recent, second(1), it));
        recent.sample(second(1), 1_000, vec![3]);
        let sample = recent.latest();
        assert_eq!((sample.ttft_p50_ms, sample.ttft_p99_ms), (Some(50.0), Some(99.0)));
        assert_eq!((sample.requests_per_s, sample.answer_tokens_per_s), (100.0, 700.0));
        assert_eq!((sample.hit_ratio, sample.waiting), (Some(0.4), vec![3]));
        // Twelve quiet seconds later the percentiles know nothing, and neither does the ratio.
        (2..=13).for_each(|it| recent.sample(second(it), it * 1_000, vec![0]));
        let sample = recent.latest();
        assert_eq!((sample.ttft_p50_ms, sample.requests_per_s, sample.hit_ratio), (None, 0.0, None));
        assert_eq!(recent.sums().answered, 100);
    }

    #[test]
    fn a_quarter_of_an_hour_is_kept_and_no_more() {
        let recent = Recent::default();
        (0..2_000).for_each(|it| recent.sample(second(it), it, Vec::new()));
        let samples = recent.samples();
        assert_eq!((samples.len(), samples[0].at_ms), (SAMPLES_MAX, 1_100));
        (0..10_000).for_each(|_| answered(&recent, second(2_000), 1));
        assert_eq!(recent.firsts.lock().len(), FIRSTS_MAX);
    }

    #[test]
    fn what_did_not_end_well_is_told_apart() {
        let recent = Recent::default();
        let all = [
            Outcome::Refused("no_worker"),
            Outcome::Declined("4xx"),
            Outcome::Gone,
            Outcome::Broke,
            Outcome::Stalled,
        ];
        for outcome in all {
            recent.ended(second(0), &Ended { outcome, usage: None, pieces: 0, first: None });
        }
        let sums = recent.sums();
        assert_eq!((sums.refused, sums.declined, sums.left, sums.failed), (1, 1, 1, 2));
        assert_eq!((sums.requests(), sums.hit_ratio()), (5, None));
    }
}
