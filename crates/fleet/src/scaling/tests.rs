//! The number, checked by tables and by laws.

use proptest::prelude::*;

use super::*;

/// An 8B model on one large GPU.
const COSTS: TokenCosts = TokenCosts { prefill_s: 50e-6, answer_s: 100e-6, step_s: 0.0 };

const IDLE_POOL: PoolLoad = PoolLoad {
    workers: 1,
    costs: COSTS,
    waiting: 0,
    backlog_s: 0.0,
    kv_tokens: 0.0,
    kv_tokens_each: Some(900_000.0),
};

/// So many workers that prompts do not lengthen the steps of answers.
const LARGE_POOL: PoolLoad = PoolLoad { workers: 1_000, ..IDLE_POOL };

/// Simulated traffic: the current second, and the number of requests in each.
struct Traffic {
    scaler: Scaler,
    second: u64,
}

impl Traffic {
    fn new() -> Traffic {
        Traffic { scaler: Scaler::default(), second: 0 }
    }

    fn now(&self) -> Instant {
        Instant::from_millis(self.second * 1_000)
    }

    /// Sends this many requests of 4,000 tokens in each of these seconds, a quarter of each cached.
    fn run(&mut self, seconds: u64, mut rate: impl FnMut(u64) -> u64) -> &mut Traffic {
        for second in 0..seconds {
            self.second += 1;
            for _ in 0..rate(second) {
                let work =
                    ArrivedWork { prompt_tokens: 4_000, answer_tokens: 200, due: Duration::from_secs(2) };
                self.scaler.arrived(self.now(), work);
                self.scaler.placed(self.now(), 4_000, 3_000);
            }
        }
        self
    }

    fn desired(&mut self, load: PoolLoad, settings: ScalingSettings) -> DesiredWorkers {
        let now = self.now();
        self.scaler.desired(now, &load, 1, &settings)
    }
}

/// Its engine most likely refuses it; until now it asked for 4,096 workers.
#[test]
fn one_request_for_countless_answers_does_not_scale_a_fleet() {
    let mut traffic = Traffic::new();
    traffic.run(60, |_| 1);
    let work = ArrivedWork { prompt_tokens: 10, answer_tokens: 1 << 40, due: Duration::from_secs(2) };
    traffic.scaler.arrived(traffic.now(), work);
    traffic.scaler.placed(traffic.now(), 10, 10);
    let desired = traffic.run(5, |_| 1).desired(IDLE_POOL, ScalingSettings::default());
    assert!(desired.workers <= 3, "{desired:?}");
}

#[test]
fn steady_work_gets_as_many_workers_as_it_keeps_busy() {
    // A request is 0.17 s of work.
    for (rate, at_least, at_most) in [(1, 1, 1), (5, 2, 2), (10, 3, 4), (40, 9, 11), (100, 21, 25)] {
        let desired = Traffic::new().run(300, |_| rate).desired(LARGE_POOL, ScalingSettings::default());
        assert!((at_least..=at_most).contains(&desired.workers), "{rate} a second: {desired:?}");
        assert!((desired.load - rate as f64 * 0.17).abs() < 0.02 * rate as f64, "{desired:?}");
    }
}

#[test]
fn the_first_minute_counts_once() {
    for seconds in [5, 15, 25, 45, 65, 125] {
        let desired = Traffic::new().run(seconds, |_| 10).desired(LARGE_POOL, ScalingSettings::default());
        // A second of traffic is 1.7 s of work, spread over at least ten seconds.
        let expected = 1.7 * seconds.min(10) as f64 / 10.0;
        assert!((desired.load - expected).abs() < 0.2, "{seconds} s: {desired:?}");
    }
}

#[test]
fn a_rise_is_met_before_it_is_there() {
    let mut traffic = Traffic::new();
    traffic.run(300, |_| 10);
    let before = traffic.desired(IDLE_POOL, ScalingSettings::default());
    // It triples in two minutes; after one it has doubled.
    let after = traffic.run(60, |second| 10 + second / 6).desired(IDLE_POOL, ScalingSettings::default());
    assert!(after.load < 3.4, "{after:?}");
    assert!(after.load_ahead > 4.0, "what comes in 90 s counts: {after:?}");
    assert!(after.workers > before.workers * 3 / 2, "{before:?} {after:?}");
    // Workers that start at once need no lead.
    let quick =
        ScalingSettings { start_up: Duration::ZERO, settle: Duration::ZERO, ..ScalingSettings::default() };
    assert!(traffic.desired(IDLE_POOL, quick).load_ahead < 4.0);
}

#[test]
fn noise_is_no_trend() {
    let mut traffic = Traffic::new();
    let mut most = 0.0_f64;
    for step in 0..200 {
        // A rate of ten a second that varies by a third from bucket to bucket.
        traffic.run(10, |_| [7, 13, 9, 12, 8, 11][step % 6]);
        let desired = traffic.desired(LARGE_POOL, ScalingSettings::default());
        most = most.max(if step > 12 { desired.load_ahead } else { 0.0 });
    }
    assert!((1.6..2.2).contains(&most), "{most}");
}

#[test]
fn prompts_that_lengthen_the_steps_of_answers_are_not_counted_twice() {
    // Ten requests a second: 1.5 s of prompts, and answers of 200 tokens, 0.2 s as measured.
    let load = |workers: u32| {
        let pool = PoolLoad { workers, ..IDLE_POOL };
        Traffic::new().run(300, |_| 10).desired(pool, ScalingSettings::default()).load
    };
    assert!((load(1_000) - 1.7).abs() < 0.04 && (load(3) - 1.6).abs() < 0.04, "{} {}", load(1_000), load(3));
    assert!((load(1) - 1.52).abs() < 0.04, "{}", load(1));
}

#[test]
fn short_deadlines_need_more_workers_than_long_ones() {
    let with_due = |due: Duration| {
        let mut scaler = Scaler::default();
        for tick in 0..3_000 {
            let now = Instant::from_millis(tick * 100);
            scaler.arrived(now, ArrivedWork { prompt_tokens: 8_000, answer_tokens: 50, due });
            scaler.placed(now, 8_000, if tick % 20 == 0 { 120_000 } else { 2_000 });
        }
        scaler.desired(Instant::from_millis(300_000), &IDLE_POOL, 1, &ScalingSettings::default())
    };
    let [short, medium, long] = [1_u64, 4, 60].map(|it| with_due(Duration::from_secs(it)));
    assert_eq!((short.reason, long.reason), (ScalingReason::Deadlines, ScalingReason::Demand));
    assert!(
        short.workers > medium.workers && medium.workers >= long.workers,
        "{short:?} {medium:?} {long:?}"
    );
}

#[test]
fn each_signal_can_be_the_reason() {
    let quiet = || {
        let mut traffic = Traffic::new();
        traffic.run(300, |second| u64::from(second % 5 == 0));
        traffic
    };
    let check = |load: PoolLoad, workers: u32, reason: ScalingReason| {
        let desired = quiet().desired(load, ScalingSettings::default());
        assert_eq!((desired.workers, desired.reason), (workers, reason), "{load:?}: {desired:?}");
    };
    check(IDLE_POOL, 1, ScalingReason::Least);
    check(PoolLoad { kv_tokens: 2_000_000.0, ..IDLE_POOL }, 3, ScalingReason::KvCache);
    check(PoolLoad { kv_tokens: 2_000_000.0, kv_tokens_each: None, ..IDLE_POOL }, 1, ScalingReason::Least);
    // One worker would do this in 90 s, before another has started.
    check(PoolLoad { backlog_s: 80.0, ..IDLE_POOL }, 1, ScalingReason::Least);
    check(PoolLoad { backlog_s: 150.0, ..IDLE_POOL }, 5, ScalingReason::Backlog);
}

#[test]
fn a_step_that_few_requests_share_is_part_of_their_work() {
    let load = |room: Option<f64>| {
        let costs = TokenCosts { step_s: 0.035, ..COSTS };
        let pool = PoolLoad { costs, kv_tokens_each: room, ..LARGE_POOL };
        Traffic::new().run(300, |_| 10).desired(pool, ScalingSettings::default()).load
    };
    // Ten requests a second with 200 tokens each: 1.7 s of work, and 70 s of steps, shared by as many requests as
    // fit.
    for (room, sharing) in
        [(Some(33_600.0), 8.0), (Some(4_200.0 * 1_000.0), 256.0), (Some(100.0), 1.0), (None, 256.0)]
    {
        let (got, expected) = (load(room), 1.7 + 70.0 / sharing);
        assert!((got / expected - 1.0).abs() < 0.03, "{room:?}: {got}, not {expected}");
    }
}

#[test]
fn a_backlog_counts_the_workers_that_are_on_their_way_and_ends_with_itself() {
    let settings = ScalingSettings::default();
    let mut traffic = Traffic::new();
    traffic.run(300, |second| u64::from(second % 5 == 0));
    let waits = |backlog_s: f64| PoolLoad { backlog_s, waiting: 10, ..IDLE_POOL };
    let first = traffic.desired(waits(150.0), settings);
    assert_eq!((first.workers, first.reason), (5, ScalingReason::Backlog));
    // The backlog grows slightly while workers start; they will do it when they arrive.
    let mut seen = Vec::new();
    for second in 0..90 {
        traffic.run(1, |it| u64::from(it % 5 == 0));
        seen.push(traffic.desired(waits(150.0 + f64::from(second) / 3.0), settings).workers);
    }
    assert!(seen.iter().all(|&it| (5..=6).contains(&it)), "{seen:?}");
    // Once the backlog is done, its need is not remembered.
    let done = traffic.desired(PoolLoad { workers: 5, ..IDLE_POOL }, settings);
    assert_eq!((done.workers, done.reason), (1, ScalingReason::Least));
}

#[test]
fn a_forecast_counts_while_it_stands() {
    let settings = ScalingSettings::default();
    let mut traffic = Traffic::new();
    let flat = traffic.run(300, |_| 40).desired(LARGE_POOL, settings).workers;
    let rising = traffic.run(40, |second| 40 + second).desired(LARGE_POOL, settings);
    assert!(rising.workers > flat * 3 / 2, "{flat} {rising:?}");
    // The rise ends: what was really needed stays, what was only forecast does not.
    let after = traffic.run(60, |_| 50).desired(LARGE_POOL, settings);
    assert!(after.workers >= flat && after.workers < rising.workers * 4 / 5, "{flat} {rising:?} {after:?}");
}

#[test]
fn the_number_rises_at_once_and_falls_bit_by_bit() {
    let settings = ScalingSettings::default();
    let mut traffic = Traffic::new();
    traffic.run(300, |_| 40);
    let high = traffic.desired(IDLE_POOL, settings).workers;
    let mut seen = Vec::new();
    for _ in 0..80 {
        seen.push((traffic.run(5, |_| 10).desired(IDLE_POOL, settings).workers, traffic.second - 300));
    }
    assert!(seen.iter().filter(|it| it.1 < 60).all(|it| it.0 == high), "{high}: {seen:?}");
    assert!(seen.iter().any(|it| it.0 < high && it.0 > high / 2), "{high}: {seen:?}");
    assert!(seen.iter().filter(|it| it.1 > 260).all(|it| it.0 <= 4), "{seen:?}");
    assert!(seen.is_sorted_by(|one, next| one.0 >= next.0), "it never turns: {seen:?}");
}

#[test]
fn a_model_without_requests_keeps_one_worker_unless_it_may_have_none() {
    let never = ScalingSettings { settle: Duration::ZERO, ..ScalingSettings::default() };
    let soon = ScalingSettings { idle: Duration::from_secs(60), ..never };
    let mut traffic = Traffic::new();
    traffic.run(10, |_| 1).run(50, |_| 0);
    assert_eq!(traffic.desired(IDLE_POOL, soon).workers, 1, "not quiet for long enough");
    traffic.run(60, |_| 0);
    assert_eq!(traffic.desired(IDLE_POOL, never).workers, 1);
    traffic.run(5, |_| 0);
    let idle = traffic.desired(IDLE_POOL, soon);
    assert_eq!((idle.workers, idle.reason), (0, ScalingReason::Idle));
    // A request waits for its first worker, or is in flight.
    let none = PoolLoad { workers: 0, waiting: 1, ..IDLE_POOL };
    assert_eq!(traffic.desired(none, soon).workers, 1);
    assert_eq!(traffic.desired(PoolLoad { kv_tokens: 10.0, ..IDLE_POOL }, soon).workers, 1);
}

#[test]
fn routers_assume_that_each_gets_as_much() {
    let mut traffic = Traffic::new();
    traffic.run(300, |_| 10);
    let (now, settings) =
        (traffic.now(), ScalingSettings { settle: Duration::ZERO, ..ScalingSettings::default() });
    let one = traffic.scaler.desired(now, &IDLE_POOL, 1, &settings);
    let three = traffic.scaler.desired(now, &IDLE_POOL, 3, &settings);
    assert!((three.load - 3.0 * one.load).abs() < 1e-9);
    assert!(three.workers > one.workers);
}

fn any_load() -> impl Strategy<Value = PoolLoad> {
    let kv = (0.0..1e9, proptest::option::of(1.0..1e7));
    (0_u32..200, 0_u32..1_000, 0.0..1e5, kv).prop_map(|(workers, waiting, backlog_s, kv)| PoolLoad {
        workers,
        costs: COSTS,
        waiting,
        backlog_s,
        kv_tokens: kv.0,
        kv_tokens_each: kv.1,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any input the number is within its limits, it is one while a request waits, and its memory is bounded.
    #[test]
    fn the_number_is_sane(
        bursts in proptest::collection::vec((0_u64..200_000, 0_u64..50, 0_u64..300_000), 1..60),
        load in any_load(),
    ) {
        let mut scaler = Scaler::default();
        let mut millis = 0;
        for (pause, count, tokens) in bursts {
            millis += pause;
            let now = Instant::from_millis(millis);
            for _ in 0..count {
                scaler.arrived(now, ArrivedWork { prompt_tokens: tokens, answer_tokens: 10, due: Duration::ZERO });
                scaler.placed(now, tokens, tokens / 2);
            }
            let settings = ScalingSettings { idle: Duration::from_secs(30), ..ScalingSettings::default() };
            let desired = scaler.desired(now, &load, 1, &settings);
            prop_assert!(desired.workers <= DESIRED_MAX);
            prop_assert!(load.waiting == 0 || desired.workers >= 1, "{desired:?}");
            prop_assert!(desired.load.is_finite() && desired.load_ahead >= desired.load, "{desired:?}");
            prop_assert!(scaler.needs.len() as u64 <= settings.settle.as_secs() / STEP.as_secs() + 2);
            prop_assert!(scaler.asked.len() as u64 <= settings.start_up.as_secs() / STEP.as_secs() + 2);
        }
    }

    /// More of anything never means fewer workers.
    #[test]
    fn more_load_never_asks_for_fewer(load in any_load(), rate in 0_u64..30, more in 1_u64..30) {
        let settings = ScalingSettings { settle: Duration::ZERO, ..ScalingSettings::default() };
        let one = Traffic::new().run(60, |_| rate).desired(load, settings);
        let other = Traffic::new().run(60, |_| rate + more).desired(load, settings);
        prop_assert!(other.workers >= one.workers, "{one:?} {other:?}");
        let fuller = PoolLoad { kv_tokens: load.kv_tokens * 2.0, backlog_s: load.backlog_s * 2.0, ..load };
        let full = Traffic::new().run(60, |_| rate).desired(fuller, settings);
        prop_assert!(full.workers >= one.workers, "{one:?} {full:?}");
    }

    /// The number is at least what was needed within a third of `settle`, and at most the largest need in all of it.
    #[test]
    fn it_never_falls_below_what_was_needed_lately(needs in proptest::collection::vec(0_u32..50, 1..100)) {
        let mut scaler = Scaler::default();
        let settle = Duration::from_secs(60);
        for (step, &needed) in needs.iter().enumerate() {
            let actual = scaler.settle(Instant::from_millis(step as u64 * 5_000), needed, settle);
            let most = |steps: usize| needs[step.saturating_sub(steps)..=step].iter().copied().max().unwrap();
            prop_assert!((most(4)..=most(12)).contains(&actual), "{actual}");
        }
    }
}
