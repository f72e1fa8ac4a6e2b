//! How many workers a model should have, and why: a number for whatever starts and stops workers.
//!
//! A count of waiting requests shows too late that workers are missing, and does not say how many. It is zero until
//! they are missing, and one more worker or ten do not change it before they have started. The router knows more. It
//! sees the work arrive, in tokens; it has learned how long a token takes; it knows when first tokens are due and how
//! much KV cache is in use. So it asks how many workers keep the promised TTFT under the work that will arrive when a
//! worker ordered now is ready. It computes four answers and takes the largest:
//!
//! - **Demand**: seconds of work that arrive per second. A worker does one.
//! - **Deadlines**: at this many workers, few enough requests wait longer than they may. Short deadlines and unequal prompts
//!   need more room than long ones.
//! - **Backlog**: queued work that will not be done before new workers come should be done soon after.
//! - **KV cache**: what requests hold must fit.
//!
//! The number rises at once. It falls to the largest need of the last `settle`, in which older needs count less, so
//! that it does not follow the noise. Forecasts and backlogs are not remembered: a forecast counts while it holds, a
//! backlog until it is done. When both were remembered like needs, a fleet that had met its rise kept half as many
//! workers again for minutes.
//!
//! Left out: how long a particular fleet takes to start (a setting), what a worker costs, and prefill workers.

pub mod demand;
mod trend;

use std::collections::VecDeque;
use std::time::Duration;

use maitre_base::Instant;

use demand::{ArrivedWork, Demand, DemandNow, TokenCosts, WorkerFigures};

/// The part of a worker's time that may be used on average. Above it, waits explode with any forecast error.
const BUSY_MAX: f64 = 0.85;
/// The least part of a worker's time to use, whatever the deadlines: below it, more workers hardly shorten a wait.
const BUSY_MIN: f64 = 0.6;
/// The part of first tokens that may come late for lack of workers. The approximation behind it is pessimistic: on
/// the conversation trace 2 % are late. Smaller values miss less and cost more: there 0.01 took 23 % more
/// worker-hours than 0.1, for 90 fewer misses of 12,031.
const LATE: f64 = 0.2;
/// The part of the KV cache that may be in use: engines preempt requests when it is full.
const KV_MAX: f64 = 0.85;
/// How soon a backlog should be gone once the workers are there, or within a deadline if that is longer.
const CLEAR: Duration = Duration::from_secs(15);
/// The length of a step, the interval at which needs are remembered.
const STEP: Duration = Duration::from_secs(5);
/// The most workers that the router ever asks for.
pub const DESIRED_MAX: u32 = 4_096;
/// The longest `settle`.
pub const SETTLE_MAX: Duration = Duration::from_secs(3_600);

/// What an operator may configure about the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalingSettings {
    /// How soon first tokens are due for requests without a deadline.
    pub ttft: Duration,
    /// From the moment a worker is ordered until it takes requests.
    pub start_up: Duration,
    /// How long a past need counts.
    pub settle: Duration,
    /// After how long without requests no worker is needed; zero: at least one always is.
    pub idle: Duration,
    /// How long a request waits for the first worker of its model, if `idle` lets a fleet shrink to none.
    pub first_worker: Duration,
}

impl ScalingSettings {
    /// Whether requests wait for a first worker.
    pub fn is_from_zero(&self) -> bool {
        !self.idle.is_zero() && !self.first_worker.is_zero()
    }
}

impl Default for ScalingSettings {
    fn default() -> ScalingSettings {
        ScalingSettings {
            ttft: Duration::from_secs(2),
            // Chosen: a container whose image is on the node loads an 8B model in about this time.
            start_up: Duration::from_secs(90),
            settle: Duration::from_secs(180),
            idle: Duration::ZERO,
            // Chosen: three times the start-up, for an image that is not on its node.
            first_worker: Duration::from_secs(300),
        }
    }
}

/// The workers of a model, at one instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolLoad {
    /// Workers that take requests.
    pub workers: u32,
    pub costs: TokenCosts,
    /// Requests in the router's queue.
    pub waiting: u32,
    /// Seconds of waiting work: queued requests, and prompts that workers have not computed yet.
    pub backlog_s: f64,
    /// KV tokens that requests at workers hold and will hold.
    pub kv_tokens: f64,
    /// KV tokens that fit one worker, if known.
    pub kv_tokens_each: Option<f64>,
}

/// Why the number is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalingReason {
    /// No request has come for `idle`.
    Idle,
    /// One worker is enough.
    Least,
    /// There is no worker, and a request waits for one.
    FirstWorker,
    /// Work arrives, or is forecast to arrive.
    Demand,
    /// With fewer, first tokens would come late.
    Deadlines,
    /// Requests wait that new workers must serve.
    Backlog,
    /// The KV cache of fewer workers would be full.
    KvCache,
    /// More was needed a short while ago.
    Settling,
}

impl ScalingReason {
    pub const ALL: [ScalingReason; 8] = [
        ScalingReason::Idle,
        ScalingReason::Least,
        ScalingReason::FirstWorker,
        ScalingReason::Demand,
        ScalingReason::Deadlines,
        ScalingReason::Backlog,
        ScalingReason::KvCache,
        ScalingReason::Settling,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            ScalingReason::Idle => "idle",
            ScalingReason::Least => "least",
            ScalingReason::FirstWorker => "first-worker",
            ScalingReason::Demand => "demand",
            ScalingReason::Deadlines => "deadlines",
            ScalingReason::Backlog => "backlog",
            ScalingReason::KvCache => "kv-cache",
            ScalingReason::Settling => "settling",
        }
    }

    /// The same in plain words, after "because".
    pub const fn words(self) -> &'static str {
        match self {
            ScalingReason::Idle => "no request has come for a while",
            ScalingReason::Least => "one is enough",
            ScalingReason::FirstWorker => "a request waits for the first one",
            ScalingReason::Demand => "fewer could not do the work that arrives",
            ScalingReason::Deadlines => "with fewer, first tokens would come late",
            ScalingReason::Backlog => "requests wait",
            ScalingReason::KvCache => "the KV cache of fewer would be full",
            ScalingReason::Settling => "more were needed a short while ago",
        }
    }
}

/// How many workers a model should have, and the figures behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DesiredWorkers {
    pub workers: u32,
    pub reason: ScalingReason,
    /// Seconds of work that arrive in a second, now and after `start_up`.
    pub load: f64,
    pub load_ahead: f64,
    pub backlog_s: f64,
    /// The part of the KV cache that is in use, if known.
    pub kv_usage: Option<f64>,
}

/// The number for one model.
#[derive(Clone, Debug, Default)]
pub struct Scaler {
    demand: Demand,
    /// What was needed, by step: only steps within `settle`, and only those that no later one exceeds.
    needs: VecDeque<(u64, u32)>,
    /// The number itself during the last `start_up`, by step: workers that are on their way if an autoscaler follows
    /// it.
    asked: VecDeque<(u64, u32)>,
    /// The most that the backlog needed since it began.
    for_backlog: u32,
}

impl Scaler {
    pub fn arrived(&mut self, now: Instant, work: ArrivedWork) {
        self.demand.arrived(now, work);
    }

    /// A request was placed; `prefill_tokens` of its prompt are to be computed.
    pub fn placed(&mut self, now: Instant, prompt_tokens: u64, prefill_tokens: u64) {
        self.demand.placed(now, prompt_tokens, prefill_tokens);
    }

    /// When the last request came.
    pub fn last_arrival(&self) -> Option<Instant> {
        self.demand.last()
    }

    /// The number at this moment. Call it every few seconds: it remembers what was needed at each call.
    pub fn desired(
        &mut self,
        now: Instant,
        load: &PoolLoad,
        routers: u32,
        settings: &ScalingSettings,
    ) -> DesiredWorkers {
        let routers = f64::from(routers.max(1));
        // If several routers share a fleet, this router's demand meets its part of the workers.
        let workers = f64::from(load.workers) / routers;
        let figures = WorkerFigures { costs: load.costs, workers, kv_tokens_each: load.kv_tokens_each };
        let demand = self.demand.now(now, settings.start_up, figures).times(routers);
        let (seen, (expected, reason)) = match self.is_idle(now, load, settings) {
            true => (0, (0, ScalingReason::Idle)),
            false => (need(&demand.without_trend(), load).0, need(&demand, load)),
        };
        let settled = self.settle(now, seen, settings.settle.min(SETTLE_MAX));
        let by_backlog = self.backlog(now, &demand, load, settings);
        let reason = if by_backlog > expected { ScalingReason::Backlog } else { reason };
        let needed = expected.max(by_backlog);
        let workers = settled.max(needed);
        self.asked(now, workers, settings.start_up);
        let kv_usage = load.kv_tokens_each.map(|it| load.kv_tokens / (it * f64::from(load.workers.max(1))));
        DesiredWorkers {
            workers,
            reason: if workers > needed { ScalingReason::Settling } else { reason },
            load: demand.load,
            load_ahead: demand.ahead,
            backlog_s: load.backlog_s,
            kv_usage: kv_usage.filter(|it| it.is_finite()),
        }
    }

    /// Whether no worker is needed.
    fn is_idle(&self, now: Instant, load: &PoolLoad, settings: &ScalingSettings) -> bool {
        let is_quiet = self.demand.last().is_none_or(|it| now.since(it) >= settings.idle);
        !settings.idle.is_zero() && load.waiting == 0 && load.kv_tokens <= 0.0 && is_quiet
    }

    /// Enough workers for what will be left of the backlog when a worker ordered now is ready.
    fn backlog(
        &mut self,
        now: Instant,
        demand: &DemandNow,
        load: &PoolLoad,
        settings: &ScalingSettings,
    ) -> u32 {
        let here = f64::from(load.workers);
        if load.backlog_s <= demand.due_s * here {
            self.for_backlog = 0;
            return 0;
        }
        let start_up = settings.start_up.as_secs_f64();
        let left = load.backlog_s
            - (here + self.coming(now, load.workers, settings.start_up) - demand.ahead) * start_up;
        let clear = CLEAR.as_secs_f64().max(demand.due_s);
        let doing = |backlog_s: f64| whole(demand.ahead / BUSY_MAX + backlog_s / clear);
        let ordered = if left > 0.0 { doing(left.min(load.backlog_s)) } else { 0 };
        // Workers that are here or on their way stay until they have done it.
        let needed = ordered.max(doing(load.backlog_s).min(load.workers));
        self.for_backlog = self.for_backlog.max(needed);
        self.for_backlog
    }

    /// How many more workers than `here` there will be on average over the next `start_up`, if an autoscaler followed
    /// the number. Workers arrive in the order in which they were asked for.
    fn coming(&self, now: Instant, here: u32, start_up: Duration) -> f64 {
        let (step, kept) = (step_of(now), steps(start_up));
        let recent = self.asked.iter().filter(|it| it.0 + kept >= step);
        let more: f64 = recent.map(|it| f64::from(it.1.saturating_sub(here))).sum();
        more / (kept.max(1) as f64)
    }

    fn asked(&mut self, now: Instant, workers: u32, start_up: Duration) {
        let (step, kept) = (step_of(now), steps(start_up.min(SETTLE_MAX)));
        if self.asked.back().is_none_or(|it| it.0 < step) {
            self.asked.push_back((step, workers));
        }
        while self.asked.front().is_some_and(|it| it.0 + kept < step) {
            self.asked.pop_front();
        }
    }

    /// Remembers what is needed now. Returns the largest need within `settle`, with older needs scaled down.
    fn settle(&mut self, now: Instant, needed: u32, settle: Duration) -> u32 {
        let (step, kept) = (step_of(now), steps(settle));
        while self.needs.back().is_some_and(|it| it.1 <= needed) {
            self.needs.pop_back();
        }
        // Keep only the first need of a step, which is its largest.
        if self.needs.back().is_none_or(|it| it.0 < step) {
            self.needs.push_back((step, needed));
        }
        while self.needs.front().is_some_and(|it| it.0 + kept < step) {
            self.needs.pop_front();
        }
        let faded = |it: &(u64, u32)| whole(f64::from(it.1) * remembered(step - it.0, kept));
        self.needs.iter().map(faded).fold(needed, u32::max)
    }
}

/// The number of the step at this moment.
fn step_of(now: Instant) -> u64 {
    now.as_nanos() / STEP.as_nanos() as u64
}

fn steps(time: Duration) -> u64 {
    time.as_nanos().div_ceil(STEP.as_nanos()) as u64
}

/// The part of a need that counts after this many steps: all of it for a third of the time that it is remembered,
/// then less and less.
///
/// A need that counted in full to the end kept 64 workers for minutes after a rush, in case the rush came back. One
/// that faded from the start gave workers back in every pause. A large surplus shrinks sooner, one worker after the
/// other. A small one, which noise makes, stays longest.
fn remembered(age: u64, kept: u64) -> f64 {
    let (age, kept) = (age as f64, kept as f64);
    let full = kept / 3.0;
    if age <= full { 1.0 } else { (kept - age) / (kept - full) }
}

impl DemandNow {
    /// The demand of this many routers that each receive as much.
    fn times(self, routers: f64) -> DemandNow {
        DemandNow {
            load: self.load * routers,
            ahead: self.ahead * routers,
            requests_per_s: self.requests_per_s * routers,
            ..self
        }
    }

    /// As if arrivals stayed as they are.
    fn without_trend(self) -> DemandNow {
        DemandNow { ahead: self.load, ..self }
    }
}

/// How many workers the arrivals need, and why.
fn need(demand: &DemandNow, load: &PoolLoad) -> (u32, ScalingReason) {
    let by_demand = whole(demand.ahead / BUSY_MAX);
    let by_deadline = for_deadlines(demand, by_demand.max(1));
    let by_kv = for_kv(demand, load);
    let least = match load.workers == 0 && load.waiting > 0 {
        true => ScalingReason::FirstWorker,
        false => ScalingReason::Least,
    };
    let answers = [
        (1, least),
        (by_demand, ScalingReason::Demand),
        (by_deadline, ScalingReason::Deadlines),
        (by_kv, ScalingReason::KvCache),
    ];
    // Of equal answers take the first: it is the simplest.
    let most = |best: (u32, ScalingReason), it: (u32, ScalingReason)| if it.0 > best.0 { it } else { best };
    answers.into_iter().fold((0, ScalingReason::Least), most)
}

/// The fewest workers, at least `least`, at which few enough requests wait longer than they may.
fn for_deadlines(demand: &DemandNow, least: u32) -> u32 {
    let is_enough = |workers: &u32| late_part(demand, *workers) <= LATE;
    let most = whole(demand.ahead / BUSY_MIN).max(least);
    (least..=most).find(is_enough).unwrap_or(most)
}

/// The part of requests that wait longer than they may, with this many workers behind one queue.
///
/// The usual approximation of such queues (Sakasegawa): all n workers are busy for ρ to the power √(2(n+1)) − 1 of
/// the time. The waits of requests that find them busy are exponential.
fn late_part(demand: &DemandNow, workers: u32) -> f64 {
    let count = f64::from(workers);
    let busy = demand.ahead / count;
    if busy >= 1.0 {
        return 1.0;
    }
    let all_busy = busy.powf((2.0 * (count + 1.0)).sqrt() - 1.0);
    // The mean work ahead of a waiting request is half of a prompt. Long prompts count more: a request meets them
    // more often.
    let before = demand.prefill_squared_s / (2.0 * demand.prefill_s.max(f64::MIN_POSITIVE));
    let wait = before / (count * (1.0 - busy));
    // If prompts alone take as long as the deadline, no number of workers helps: allow them twice as long.
    let slack = (demand.due_s - demand.prefill_s).max(demand.prefill_s);
    all_busy * (-slack / wait.max(f64::MIN_POSITIVE)).exp()
}

/// Enough for the KV cache that requests hold, and will hold when the load grows.
fn for_kv(demand: &DemandNow, load: &PoolLoad) -> u32 {
    let growth = (demand.ahead / demand.load.max(f64::MIN_POSITIVE)).clamp(1.0, 10.0);
    let each = load.kv_tokens_each.filter(|&it| it > 0.0);
    each.map_or(0, |it| whole(load.kv_tokens * growth / (it * KV_MAX)))
}

/// Rounded up, and limited to `DESIRED_MAX`.
fn whole(workers: f64) -> u32 {
    workers.ceil().clamp(0.0, f64::from(DESIRED_MAX)) as u32
}

#[cfg(test)]
mod tests;
