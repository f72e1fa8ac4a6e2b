//! How much work arrives for one model: recent arrivals, whether they grow, and by how much.
//!
//! Work is kept in tokens, in buckets of ten seconds, and becomes seconds only when it is read. So rates and hit
//! ratios that were learned meanwhile count for all of it. A request's work is `prefill · seconds a token + answer ·
//! seconds a step and request`, the time that it adds to the steps of its worker. So one worker does at most one
//! second of work per second.
//!
//! Traffic is noisy, and a forecast that follows the noise adds workers for nothing. So the last seconds outweigh the
//! last minute only as far as chance does not explain them. The same holds for a trend (see `trend`).

use std::time::Duration;

use maitre_base::Instant;

use super::trend::LoadHistory;

/// The span of one bucket. Chosen: traces and clients send in batches every few seconds, which shorter buckets would
/// mistake for changes.
const BUCKET: Duration = Duration::from_secs(10);
/// How many buckets are kept: five minutes.
const BUCKETS: usize = 30;
/// How many buckets give the arrival rate, and how many of the newest show whether it has just changed.
const LEVEL: usize = 6;
const NEWEST: usize = 2;
/// The least part of a measured step that belongs to the step itself.
const STEP_PART_MIN: f64 = 0.1;
/// The most requests that share a step, however many fit into the KV cache: the usual limit of engines.
const SHARING_MAX: f64 = 256.0;
/// The longest answer that counts. Chosen: twice the longest that models give. A request that asks for a million answers
/// keeps one worker busy, not thousands, and its engine most likely refuses it.
const ANSWER_TOKENS_MAX: u64 = 1 << 18;
/// How many standard errors count as chance.
const CHANCE: f64 = 2.0;

/// One request, as it arrived.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArrivedWork {
    pub prompt_tokens: u64,
    pub answer_tokens: u64,
    /// How soon its first token is due.
    pub due: Duration,
}

/// Seconds of a worker's time per unit of what a request asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenCosts {
    pub prefill_s: f64,
    pub answer_s: f64,
    /// The base time of a step, whatever is in it.
    pub step_s: f64,
}

/// The workers that do the work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WorkerFigures {
    pub(super) costs: TokenCosts,
    /// How many workers there were when the costs were measured.
    pub(super) workers: f64,
    /// KV tokens that fit one worker, if known.
    pub(super) kv_tokens_each: Option<f64>,
}

impl WorkerFigures {
    /// Measured seconds for one token of an answer, when a worker's batch is full of requests of this length. With
    /// few requests per step the base time dominates: with room for eight, 4 ms of 6.
    fn answer_token_s(&self, tokens_held: f64) -> f64 {
        let fit = self.kv_tokens_each.map_or(SHARING_MAX, |it| it / tokens_held.max(1.0));
        self.costs.answer_s + self.costs.step_s / fit.clamp(1.0, SHARING_MAX)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Bucket {
    requests: f64,
    prompt: f64,
    answer: f64,
    due_s: f64,
    /// Requests that were placed, the tokens of their prompts, the uncached part of those, and its squares.
    placed: f64,
    placed_prompt: f64,
    prefill: f64,
    prefill_squared: f64,
}

impl Bucket {
    fn plus(self, other: &Bucket) -> Bucket {
        Bucket {
            requests: self.requests + other.requests,
            prompt: self.prompt + other.prompt,
            answer: self.answer + other.answer,
            due_s: self.due_s + other.due_s,
            placed: self.placed + other.placed,
            placed_prompt: self.placed_prompt + other.placed_prompt,
            prefill: self.prefill + other.prefill,
            prefill_squared: self.prefill_squared + other.prefill_squared,
        }
    }
}

/// Arrivals, in seconds of work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DemandNow {
    /// Seconds of work that arrive per second.
    pub load: f64,
    /// The same, `lead` ahead.
    pub ahead: f64,
    pub requests_per_s: f64,
    /// The mean prefill of a request in seconds, and the mean of its square.
    pub prefill_s: f64,
    pub prefill_squared_s: f64,
    /// How soon first tokens are due, on average.
    pub due_s: f64,
}

/// What has arrived in the last five minutes.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// By bucket number, modulo their count.
    buckets: [Bucket; BUCKETS],
    /// The number of the bucket that is filling.
    current: u64,
    /// When anything first arrived, and when anything last did.
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Demand {
    pub fn arrived(&mut self, now: Instant, work: ArrivedWork) {
        self.advance(now);
        self.first.get_or_insert(now);
        self.last = Some(now);
        let bucket = self.bucket_mut();
        bucket.requests += 1.0;
        bucket.prompt += work.prompt_tokens as f64;
        bucket.answer += work.answer_tokens.min(ANSWER_TOKENS_MAX) as f64;
        bucket.due_s += work.due.as_secs_f64();
    }

    /// A request was placed; `prefill_tokens` of its prompt are to be computed, in plain tokens.
    pub fn placed(&mut self, now: Instant, prompt_tokens: u64, prefill_tokens: u64) {
        self.advance(now);
        let (bucket, prefill) = (self.bucket_mut(), prefill_tokens as f64);
        bucket.placed += 1.0;
        bucket.placed_prompt += prompt_tokens as f64;
        bucket.prefill += prefill;
        bucket.prefill_squared += prefill * prefill;
    }

    /// When the last request arrived.
    pub fn last(&self) -> Option<Instant> {
        self.last
    }

    /// What arrives now, and `lead` ahead, as work for workers with these figures.
    pub(super) fn now(&mut self, now: Instant, lead: Duration, figures: WorkerFigures) -> DemandNow {
        self.advance(now);
        let Some(first) = self.first else { return DemandNow::default() };
        let all = self.sum(BUCKETS);
        let is_placed = all.placed > 0.0 && all.placed_prompt > 0.0;
        // Before any request was placed, assume that nothing is cached.
        let uncached = if is_placed { all.prefill / all.placed_prompt } else { 1.0 };
        let costs = figures.costs;
        let prefill_token_s = costs.prefill_s * uncached;
        let (level, seconds) = (self.sum(LEVEL), self.span(now, first, LEVEL));
        // Prompts that are computed between the steps of an answer lengthen its measured steps. On eight workers that
        // computed prompts for half of their time, a step seemed to cost four times as much as it does.
        let prefilling = level.prompt * prefill_token_s / seconds / figures.workers.max(f64::MIN_POSITIVE);
        let tokens_held = (all.prompt + all.answer) / all.requests.max(1.0);
        let answer_s = figures.answer_token_s(tokens_held) * (1.0 - prefilling).clamp(STEP_PART_MIN, 1.0);
        let work = |it: &Bucket| it.prompt * prefill_token_s + it.answer * answer_s;
        let load = self.raised(now, first, work(&level) / seconds, &work);
        let ahead = load.max(self.forecast(now, first, lead, &work));
        let squares = if is_placed { all.prefill_squared / all.placed } else { mean_square(&all) };
        DemandNow {
            load,
            ahead,
            requests_per_s: level.requests / seconds,
            prefill_s: all.prompt / all.requests.max(1.0) * prefill_token_s,
            prefill_squared_s: squares * costs.prefill_s * costs.prefill_s,
            due_s: all.due_s / all.requests.max(1.0),
        }
    }

    /// This load, or the load of the newest buckets as far as it is higher by more than chance.
    fn raised(&self, now: Instant, first: Instant, load: f64, work: &impl Fn(&Bucket) -> f64) -> f64 {
        let newest = self.sum(NEWEST);
        let seconds = self.span(now, first, NEWEST);
        if newest.requests < 1.0 {
            return load;
        }
        // Requests come at random and in unequal sizes: the relative error of a sum of n of them is about 1 / √n.
        let mean = work(&newest) / seconds;
        let error = mean * (self.dispersion() / newest.requests).sqrt();
        load.max(mean - CHANCE * error)
    }

    /// One plus the squared variation of prefills: how much unequal sizes add to the noise of a sum.
    fn dispersion(&self) -> f64 {
        let all = self.sum(BUCKETS);
        let mean = all.prefill / all.placed.max(1.0);
        let squares = all.prefill_squared / all.placed.max(1.0);
        if mean > 0.0 { (squares / (mean * mean)).max(1.0) } else { 2.0 }
    }

    /// The load `lead` ahead if it keeps growing as it does; zero if it does not grow.
    fn forecast(&self, now: Instant, first: Instant, lead: Duration, work: &impl Fn(&Bucket) -> f64) -> f64 {
        let width_s = BUCKET.as_secs_f64();
        let loads: Vec<f64> =
            (1..=self.whole_buckets(first)).map(|back| work(self.bucket(back)) / width_s).collect();
        let all = self.sum(BUCKETS);
        let history = LoadHistory {
            loads: &loads,
            width_s,
            age_s: now.as_secs_f64() - self.current as f64 * width_s,
            grain_s: work(&all) / all.requests.max(1.0) * self.dispersion(),
        };
        history.ahead(lead.as_secs_f64())
    }

    /// Full buckets since the first arrival.
    fn whole_buckets(&self, first: Instant) -> usize {
        let since = self.current.saturating_sub(number(first) + 1);
        usize::try_from(since).unwrap_or(BUCKETS).min(BUCKETS - 1)
    }

    /// The bucket this many before the one that is filling.
    fn bucket(&self, back: usize) -> &Bucket {
        let number = self.current.saturating_sub(back as u64);
        &self.buckets[(number % BUCKETS as u64) as usize]
    }

    fn bucket_mut(&mut self) -> &mut Bucket {
        &mut self.buckets[(self.current % BUCKETS as u64) as usize]
    }

    /// The sum of this many full buckets and the one that is filling.
    fn sum(&self, full: usize) -> Bucket {
        // No bucket exists before the clock began.
        let full = full.min(BUCKETS - 1).min(usize::try_from(self.current).unwrap_or(BUCKETS));
        (0..=full).fold(Bucket::default(), |sum, back| sum.plus(self.bucket(back)))
    }

    /// The seconds that `sum` covers, since the first arrival at most; never less than a bucket.
    fn span(&self, now: Instant, first: Instant, full: usize) -> f64 {
        let width = BUCKET.as_secs_f64();
        let begun = now.as_secs_f64() - (self.current as f64 - full as f64) * width;
        begun.min(now.since(first).as_secs_f64()).max(width)
    }

    /// Begins the bucket of `now`, and empties the buckets in which nothing arrived.
    fn advance(&mut self, now: Instant) {
        let number = number(now);
        let passed = number.saturating_sub(self.current).min(BUCKETS as u64);
        for step in 1..=passed {
            let place = (self.current + step) % BUCKETS as u64;
            self.buckets[place as usize] = Bucket::default();
        }
        // After a longer pause the loop has emptied every bucket, in some order.
        self.current = self.current.max(number);
    }
}

fn number(at: Instant) -> u64 {
    at.as_nanos() / BUCKET.as_nanos() as u64
}

/// The mean square of prompt lengths if no request was placed yet: as if all had one length.
fn mean_square(all: &Bucket) -> f64 {
    let mean = all.prompt / all.requests.max(1.0);
    mean * mean
}
