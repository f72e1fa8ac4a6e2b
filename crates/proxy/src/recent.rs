//! The last quarter of an hour for the admin page: running totals, recent TTFTs, and a sample of both each second.
//!
//! Prometheus has more, but not every operator has a Prometheus. This is in memory, bounded, and computes percentiles of
//! the times themselves and not of histogram buckets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use maitre_base::{ClassId, Instant};
use maitre_dialect::usage::Usage;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use crate::brain::SharedBrain;
use crate::outcome::RequestOutcome;
use crate::settings::SharedSettings;

/// Between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Samples kept: a quarter of an hour.
const SAMPLES_MAX: usize = 900;
/// Samples that percentiles and ratios cover.
const WINDOW: usize = 10;
/// TTFTs kept for that. If there are more in ten seconds, the oldest are dropped.
const TTFTS_MAX: usize = 8_192;

#[derive(Default)]
pub(crate) struct Recent {
    totals: Totals,
    ttfts_ms: Mutex<VecDeque<(Instant, f32)>>,
    samples: Mutex<VecDeque<RecentSample>>,
}

/// Since the start. The counters are independent: a reader may see one a moment before another.
#[derive(Default)]
struct Totals {
    answered: AtomicU64,
    refused: AtomicU64,
    declined: AtomicU64,
    failed: AtomicU64,
    left: AtomicU64,
    prompt_tokens: AtomicU64,
    answer_tokens: AtomicU64,
    /// Of responses that report cached tokens.
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

    /// None if no engine reports cached tokens.
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

/// One second; percentiles and ratios cover the last ten.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RecentSample {
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

/// A request that ended.
pub(crate) struct EndedRequest {
    pub(crate) outcome: RequestOutcome,
    pub(crate) usage: Option<Usage>,
    pub(crate) chunks: u32,
    pub(crate) ttft: Option<Duration>,
}

impl Recent {
    pub(crate) fn ended(&self, now: Instant, ended: &EndedRequest) {
        let totals = &self.totals;
        let count = match ended.outcome {
            RequestOutcome::Answered => &totals.answered,
            RequestOutcome::Refused(_) => &totals.refused,
            RequestOutcome::Declined(_) => &totals.declined,
            RequestOutcome::Gone => &totals.left,
            RequestOutcome::Broke | RequestOutcome::Stalled | RequestOutcome::Overdue => &totals.failed,
        };
        add(count, 1);
        let counts = ended.usage;
        let prompt = counts.and_then(|it| it.prompt_tokens);
        add(&totals.prompt_tokens, prompt.unwrap_or(0));
        // A stream without token counts has about one token in each chunk.
        add(
            &totals.answer_tokens,
            counts.and_then(|it| it.completion_tokens).unwrap_or(u64::from(ended.chunks)),
        );
        if let (Some(prompt), Some(cached)) = (prompt, counts.and_then(|it| it.cached_tokens)) {
            add(&totals.known_tokens, prompt);
            add(&totals.cached_tokens, cached);
        }
        if let (RequestOutcome::Answered, Some(ttft)) = (ended.outcome, ended.ttft) {
            let mut ttfts = self.ttfts_ms.lock();
            if ttfts.len() >= TTFTS_MAX {
                ttfts.pop_front();
            }
            ttfts.push_back((now, ttft.as_secs_f32() * 1_000.0));
        }
    }

    pub(crate) fn sums(&self) -> Sums {
        let totals = &self.totals;
        let read = |it: &AtomicU64| it.load(Ordering::Relaxed);
        // Cached tokens are read first, so that the ratio never exceeds one.
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

    /// The last sample, or an empty one.
    pub(crate) fn latest(&self) -> RecentSample {
        self.samples.lock().back().cloned().unwrap_or_default()
    }

    /// Oldest first.
    pub(crate) fn samples(&self) -> Vec<RecentSample> {
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
        samples.push_back(RecentSample {
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

    /// Of the TTFTs of the last ten seconds; drops older ones.
    fn percentiles(&self, now: Instant) -> (Option<f64>, Option<f64>) {
        let mut ttfts = self.ttfts_ms.lock();
        let window = SAMPLE_INTERVAL * WINDOW as u32;
        while ttfts.front().is_some_and(|&(at, _)| now.since(at) > window) {
            ttfts.pop_front();
        }
        let mut sorted: Vec<f32> = ttfts.iter().map(|it| it.1).collect();
        drop(ttfts);
        sorted.sort_unstable_by(f32::total_cmp);
        let at = |part: f64| {
            let rank = (sorted.len() as f64 * part).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).map(|&it| f64::from(it))
        };
        (at(0.5), at(0.99))
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Takes a sample each second, until aborted.
pub(crate) async fn run(recent: Arc<Recent>, brain: Arc<SharedBrain>, settings: Arc<SharedSettings>) {
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let classes = settings.load().brain.queue.classes.len();
        let waiting = brain.read(|brain| {
            let classes = 0..u8::try_from(classes).unwrap_or(u8::MAX);
            classes.map(|it| brain.waiting(ClassId(it)).requests).collect()
        });
        recent.sample(brain.now(), brain.clock.unix_ms(), waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(recent: &Recent, now: Instant, ttft_ms: u64) {
        let usage = Usage { prompt_tokens: Some(100), cached_tokens: Some(40), completion_tokens: Some(7) };
        let ttft = Some(Duration::from_millis(ttft_ms));
        recent.ended(
            now,
            &EndedRequest { outcome: RequestOutcome::Answered, usage: Some(usage), chunks: 9, ttft },
        );
    }

    fn second(number: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(number)
    }

    #[test]
    fn a_sample_covers_its_second_and_the_ten_before() {
        let recent = Recent::default();
        recent.sample(second(0), 0, vec![0]);
        (1..=100).for_each(|it| answered(&recent, second(1), it));
        recent.sample(second(1), 1_000, vec![3]);
        let sample = recent.latest();
        assert_eq!((sample.ttft_p50_ms, sample.ttft_p99_ms), (Some(50.0), Some(99.0)));
        assert_eq!((sample.requests_per_s, sample.answer_tokens_per_s), (100.0, 700.0));
        assert_eq!((sample.hit_ratio, sample.waiting), (Some(0.4), vec![3]));
        // After twelve quiet seconds there are no percentiles and no ratio.
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
        assert_eq!(recent.ttfts_ms.lock().len(), TTFTS_MAX);
    }

    #[test]
    fn failed_outcomes_are_counted_apart() {
        let recent = Recent::default();
        let all = [
            RequestOutcome::Refused("no_worker"),
            RequestOutcome::Declined("4xx"),
            RequestOutcome::Gone,
            RequestOutcome::Broke,
            RequestOutcome::Stalled,
        ];
        for outcome in all {
            recent.ended(second(0), &EndedRequest { outcome, usage: None, chunks: 0, ttft: None });
        }
        let sums = recent.sums();
        assert_eq!((sums.refused, sums.declined, sums.left, sums.failed), (1, 1, 1, 2));
        assert_eq!((sums.requests(), sums.hit_ratio()), (5, None));
    }
}
