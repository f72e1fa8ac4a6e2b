//! The last quarter of an hour for the admin page: running totals, recent TTFTs, and a sample of both each second.
//!
//! Prometheus has more, but not every operator has a Prometheus. This is in memory, bounded, and computes percentiles of
//! the times themselves and not of histogram buckets.
//!
//! A request that still waits for its first token counts in the percentiles: its TTFT is unknown, but longer than its wait
//! so far. Without it, the slowest requests would be missing exactly while they are slow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use maitre_base::{ClassId, Instant};
use maitre_dialect::usage::Usage;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use crate::brain::SharedBrain;
use crate::in_flight::Lanes;
use crate::outcome::RequestOutcome;
use crate::settings::SharedSettings;

/// Between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Samples kept: a quarter of an hour.
const SAMPLES_MAX: usize = 900;
/// Samples that percentiles and ratios cover.
const WINDOW: usize = 10;
/// Waits kept for that. If there are more in ten seconds, the oldest are dropped.
const WAITS_MAX: usize = 8_192;

#[derive(Default)]
pub(crate) struct Recent {
    /// What is counted of requests in flight.
    pub(crate) lanes: Lanes,
    totals: Totals,
    /// Waits for a first token that are over, with the time they ended.
    waits: Mutex<VecDeque<(Instant, TokenWait)>>,
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
    /// Of responses that report cached tokens.
    known_tokens: AtomicU64,
    cached_tokens: AtomicU64,
}

/// How long a request waited for its first token.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TokenWait {
    ms: f32,
    /// False: it has no token yet, or its client left without one. Its TTFT is longer than `ms`.
    has_token: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// All that have arrived, whether they have ended or not.
    pub(crate) arrived: u64,
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
    pub(crate) fn ended(&self) -> u64 {
        self.answered + self.refused + self.declined + self.failed + self.left
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.arrived.saturating_sub(self.ended())
    }

    /// None if no engine reports cached tokens.
    pub(crate) fn hit_ratio(&self) -> Option<f64> {
        (self.known_tokens > 0).then(|| self.cached_tokens as f64 / self.known_tokens as f64)
    }

    fn since(&self, then: &Sums) -> Sums {
        Sums {
            arrived: self.arrived - then.arrived,
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

impl Recent {
    /// The first token of a request came after this time.
    pub(crate) fn first_token(&self, now: Instant, ttft: Duration) {
        self.keep(now, TokenWait { ms: millis(ttft), has_token: true });
    }

    /// A client left after this time without a first token.
    pub(crate) fn left_without_token(&self, now: Instant, waited: Duration) {
        self.keep(now, TokenWait { ms: millis(waited), has_token: false });
    }

    fn keep(&self, now: Instant, wait: TokenWait) {
        let mut waits = self.waits.lock();
        if waits.len() >= WAITS_MAX {
            waits.pop_front();
        }
        waits.push_back((now, wait));
    }

    /// A request ended, with the token counts that its response reported.
    pub(crate) fn ended(&self, outcome: RequestOutcome, usage: Option<Usage>) {
        let totals = &self.totals;
        let count = match outcome {
            RequestOutcome::Answered => &totals.answered,
            RequestOutcome::Refused(_) => &totals.refused,
            RequestOutcome::Declined(_) => &totals.declined,
            RequestOutcome::Gone | RequestOutcome::ClientStalled => &totals.left,
            RequestOutcome::Broke | RequestOutcome::Stalled | RequestOutcome::Overdue => &totals.failed,
        };
        add(count, 1);
        let reported = usage.and_then(|it| Some((it.prompt_tokens?, it.cached_tokens?)));
        if let Some((prompt, cached)) = reported {
            add(&totals.known_tokens, prompt);
            add(&totals.cached_tokens, cached);
        }
    }

    pub(crate) fn sums(&self) -> Sums {
        let totals = &self.totals;
        let read = |it: &AtomicU64| it.load(Ordering::Relaxed);
        // Cached tokens are read first, so that the ratio never exceeds one.
        let cached_tokens = read(&totals.cached_tokens);
        let mut sums = Sums {
            answered: read(&totals.answered),
            refused: read(&totals.refused),
            declined: read(&totals.declined),
            failed: read(&totals.failed),
            left: read(&totals.left),
            known_tokens: read(&totals.known_tokens),
            cached_tokens,
            ..Sums::default()
        };
        // Arrivals are read last, so that no more have ended than arrived.
        let lanes = self.lanes.sums();
        (sums.arrived, sums.prompt_tokens, sums.answer_tokens) =
            (lanes.arrived, lanes.prompt_tokens, lanes.answer_tokens);
        sums
    }

    /// The longest wait of a request that has no first token yet; none if there is no such request.
    pub(crate) fn longest_wait(&self, now: Instant) -> Option<Duration> {
        self.lanes.waits(now).into_iter().max()
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
            requests_per_s: second.arrived as f64 / seconds,
            answer_tokens_per_s: second.answer_tokens as f64 / seconds,
            prompt_tokens_per_s: second.prompt_tokens as f64 / seconds,
            hit_ratio: sums.since(&window).hit_ratio(),
            waiting,
            sums,
            at: now,
        });
    }

    /// Of the waits that ended in the last ten seconds and of those that have not ended; drops older ones.
    fn percentiles(&self, now: Instant) -> (Option<f64>, Option<f64>) {
        let mut kept = self.waits.lock();
        let window = SAMPLE_INTERVAL * WINDOW as u32;
        while kept.front().is_some_and(|&(at, _)| now.since(at) > window) {
            kept.pop_front();
        }
        let mut waits: Vec<TokenWait> = kept.iter().map(|it| it.1).collect();
        drop(kept);
        let open = self.lanes.waits(now).into_iter();
        waits.extend(open.map(|it| TokenWait { ms: millis(it), has_token: false }));
        // A token before a wait that is still open after the same time.
        waits.sort_unstable_by(|one, other| {
            one.ms.total_cmp(&other.ms).then(other.has_token.cmp(&one.has_token))
        });
        (percentile(&waits, 0.5), percentile(&waits, 0.99))
    }
}

/// The time within which this part of all requests has its first token, by the estimate of Kaplan and Meier: a request
/// without a token counts among the candidates for one for as long as it has waited. Where too few have a token for that
/// part, the longest wait: the percentile is at least that. `waits` are in order.
fn percentile(waits: &[TokenWait], part: f64) -> Option<f64> {
    // Products of many ratios are off by rounding.
    const ROUNDING: f64 = 1e-9;
    let mut without_token = 1.0;
    for (index, wait) in waits.iter().enumerate().filter(|it| it.1.has_token) {
        without_token *= 1.0 - 1.0 / (waits.len() - index) as f64;
        if 1.0 - without_token >= part - ROUNDING {
            return Some(wait.ms.into());
        }
    }
    waits.last().map(|it| it.ms.into())
}

fn millis(duration: Duration) -> f32 {
    duration.as_secs_f32() * 1_000.0
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

    /// A request that arrived, had its first token after this time, and ended.
    fn answered(recent: &Recent, now: Instant, ttft_ms: u64) {
        let lane = recent.lanes.add();
        lane.leave(lane.arrive(now));
        lane.add_answer_tokens(7);
        recent.first_token(now, Duration::from_millis(ttft_ms));
        let usage = Usage { prompt_tokens: Some(100), cached_tokens: Some(40), completion_tokens: Some(7) };
        recent.ended(RequestOutcome::Answered, Some(usage));
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
        assert_eq!(recent.waits.lock().len(), WAITS_MAX);
    }

    #[test]
    fn requests_that_still_wait_count_in_the_percentiles_and_in_the_rate() {
        let recent = Recent::default();
        recent.sample(second(0), 0, Vec::new());
        // Five a second are answered after 47 ms; fifteen a second get no token.
        let lane = recent.lanes.add();
        for number in 1..=6 {
            (0..5).for_each(|_| answered(&recent, second(number), 47));
            (0..15).for_each(|_| _ = lane.arrive(second(number)));
            recent.sample(second(number), number * 1_000, Vec::new());
        }
        let sample = recent.latest();
        assert_eq!((sample.ttft_p50_ms, sample.ttft_p99_ms), (Some(5_000.0), Some(5_000.0)));
        assert_eq!(sample.requests_per_s, 20.0);
        assert_eq!(recent.longest_wait(second(6)), Some(Duration::from_secs(5)));
        assert_eq!((recent.sums().arrived, recent.sums().in_flight()), (120, 90));
    }

    #[track_caller]
    fn check_percentile(tokens_ms: &[u16], waiting_ms: &[u16], part: f64, expected: Option<f64>) {
        let wait = |has_token| move |&ms: &u16| TokenWait { ms: ms.into(), has_token };
        let mut waits: Vec<TokenWait> = tokens_ms.iter().map(wait(true)).collect();
        waits.extend(waiting_ms.iter().map(wait(false)));
        waits.sort_by(|one, other| one.ms.total_cmp(&other.ms));
        assert_eq!(percentile(&waits, part), expected, "{tokens_ms:?}, {waiting_ms:?}");
    }

    #[test]
    fn a_wait_counts_for_as_long_as_it_lasts() {
        check_percentile(&[], &[], 0.5, None);
        check_percentile(&[10, 20, 30, 40], &[], 0.5, Some(20.0));
        // Requests that arrived a moment ago say nothing yet.
        check_percentile(&[10, 20, 30, 40], &[1, 2, 3], 0.5, Some(20.0));
        // Three of five will take longer than 15 ms.
        check_percentile(&[10, 20, 30], &[15, 15], 0.5, Some(20.0));
        check_percentile(&[10, 20, 30], &[5_500, 5_600], 0.5, Some(30.0));
        check_percentile(&[10, 20, 30], &[5_500, 5_600], 0.99, Some(5_600.0));
        check_percentile(&[], &[700], 0.5, Some(700.0));
    }

    #[test]
    fn a_client_that_left_without_a_token_counts_with_its_wait() {
        let recent = Recent::default();
        recent.first_token(second(1), Duration::from_millis(50));
        recent.left_without_token(second(1), Duration::from_secs(30));
        recent.sample(second(1), 1_000, Vec::new());
        assert_eq!(recent.latest().ttft_p99_ms, Some(30_000.0));
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
        all.iter().for_each(|&it| recent.ended(it, None));
        let sums = recent.sums();
        assert_eq!((sums.refused, sums.declined, sums.left, sums.failed), (1, 1, 1, 2));
        assert_eq!((sums.ended(), sums.hit_ratio()), (5, None));
    }
}
