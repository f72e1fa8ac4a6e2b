//! What a step of the queue costs with 50,000 queued requests: to enqueue, to find and dequeue the next one, to
//! cancel.
//!
//! Three classes, a hundred tenants, half of the requests with deadlines, all mixed. The bar is 100 µs for the worst
//! step, because all requests wait for it: a mean would hide a pause. All rounds do the same steps, and other
//! programs on the machine only add time, so the fastest round of each step counts.
//!
//! `cargo bench -p maitre-queue --bench wait_queue` measures; `cargo test` runs it once, small.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench reads the clock and prints")]

use std::time::{Duration, Instant as Clock};

use maitre_base::{ClassId, Instant, RequestId, Rng, TenantId};
use maitre_queue::{Class, ClassMask, QueueEntry, WaitQueue};

const CLASSES: usize = 3;
const TENANTS: usize = 100;
const BODY: usize = 5_000;
const AGING: Duration = Duration::from_secs(10);

fn main() {
    let measuring = std::env::args().any(|it| it == "--bench");
    let (rounds, entries, leaves) = if measuring { (10, 50_000, 10_000) } else { (1, 500, 100) };
    let mut best = round(entries, leaves);
    for _ in 1..rounds {
        for (best, took) in best.iter_mut().zip(round(entries, leaves)) {
            best.iter_mut().zip(took).for_each(|(best, took)| *best = took.min(*best));
        }
    }
    for (name, took) in ["join", "next and go", "cancel"].iter().zip(best) {
        let Spread { mean, p99, worst } = Spread::of(took);
        let micros = |it: Duration| it.as_nanos() as f64 / 1e3;
        println!(
            "{name:<12}: mean {:5.2} µs, p99 {:5.2} µs, worst {:5.1} µs",
            micros(mean),
            micros(p99),
            micros(worst)
        );
    }
}

struct Spread {
    mean: Duration,
    p99: Duration,
    worst: Duration,
}

impl Spread {
    fn of(mut took: Vec<Duration>) -> Spread {
        took.sort_unstable();
        let mean = took.iter().sum::<Duration>() / took.len().max(1) as u32;
        let place = |at: usize| took.get(at).copied().unwrap_or_default();
        Spread { mean, p99: place(took.len() * 99 / 100), worst: place(took.len().saturating_sub(1)) }
    }
}

/// Enqueues all, dequeues all in order; enqueues all again and cancels some. Returns what each step took.
fn round(entries: usize, leaves: usize) -> [Vec<Duration>; 3] {
    let mut rng = Rng::new(1);
    let mut queue = WaitQueue::new(&classes(), AGING);
    let joins = join_all(&mut queue, &mut rng, entries);
    // A minute later: requests of the lower classes have aged.
    let now = Instant::from_millis(70_000);
    let mut found = Vec::new();
    let goes = (0..entries).map(|_| {
        timed(|| {
            queue.next(now, ClassMask::ALL, &mut found);
            found.first().and_then(|&it| queue.dequeue(now, it, &[]))
        })
    });
    let goes = goes.collect();
    assert!(queue.is_empty(), "{} still wait", queue.len());
    join_all(&mut queue, &mut rng, entries);
    let leaving = (0..leaves).map(|_| RequestId(rng.below(entries) as u64)).collect::<Vec<_>>();
    let left = leaving.into_iter().map(|it| timed(|| queue.cancel(it))).collect();
    [joins, goes, left]
}

fn join_all(queue: &mut WaitQueue, rng: &mut Rng, entries: usize) -> Vec<Duration> {
    let entries: Vec<QueueEntry> = (0..entries as u64).map(|it| entry(rng, it)).collect();
    let took = entries.iter().map(|&it| timed(|| queue.enqueue(it))).collect();
    assert_eq!(queue.len(), entries.len(), "some found no place");
    took
}

fn entry(rng: &mut Rng, request: u64) -> QueueEntry {
    let tenant = rng.below(TENANTS);
    let since = Instant::from_nanos(request * 200_000);
    let tokens = 100 + rng.below(8_000) as u64;
    QueueEntry {
        request: RequestId(request),
        class: ClassId(rng.below(CLASSES) as u8),
        tenant: TenantId(maitre_base::hash::mix(tenant as u64)),
        weight: [1.0, 3.0][tenant % 2],
        tokens,
        cost: tokens as f64 * rng.unit(),
        since,
        latest: (rng.unit() < 0.5).then(|| since + Duration::from_millis(rng.below(60_000) as u64)),
    }
}

fn classes() -> Vec<Class> {
    let class = Class {
        name: String::new(),
        requests_max: 50_000,
        tokens_max: u64::MAX,
        deadline: None,
        reserve: 0.0,
        continues: None,
        hedges: None,
    };
    vec![class; CLASSES]
}

fn timed<T>(step: impl FnOnce() -> T) -> Duration {
    // What a router allocates for the bytes of a request, between any two steps. Without it, one step in ten thousand
    // pays some 200 µs for all the others: glibc defers sorting freed memory until an allocation of a new size.
    drop(std::hint::black_box(vec![0u8; BODY]));
    let start = Clock::now();
    std::hint::black_box(step());
    start.elapsed()
}
