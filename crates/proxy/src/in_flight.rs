//! What is counted of requests while they are in flight: arrivals, tokens of their answers, and how long those without a
//! first token have waited.
//!
//! Counts that are taken when a request ends hide an overload until it is over: with 20 requests arriving each second and
//! 306 in flight, the p99 of those that had finished was 47 ms and the truth 5.5 s.
//!
//! Each lane has its own counts. A chunk adds to a number that no other core writes, and takes no lock; readers, once a
//! second and at each scrape, add up all lanes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use maitre_base::Instant;
use parking_lot::Mutex;

/// The counts of one lane. They only grow, except for `awaiting`.
#[derive(Default)]
pub(crate) struct LaneCounts {
    arrived: AtomicU64,
    prompt_tokens: AtomicU64,
    answer_tokens: AtomicU64,
    awaiting: Mutex<Awaiting>,
}

/// When the requests without a first token arrived. A request has the same place until it leaves; the list is as long as
/// the most requests that ever waited at once, which the limit on connections and streams bounds.
#[derive(Default)]
struct Awaiting {
    arrived: Vec<Option<Instant>>,
    free: Vec<u32>,
}

/// A request's place in `Awaiting`. It is given back once.
#[derive(Debug)]
pub(crate) struct AwaitingPlace(u32);

impl LaneCounts {
    /// A request arrived; it waits for its first token.
    pub(crate) fn arrive(&self, now: Instant) -> AwaitingPlace {
        self.arrived.fetch_add(1, Ordering::Relaxed);
        let mut awaiting = self.awaiting.lock();
        match awaiting.free.pop() {
            Some(place) => {
                awaiting.arrived[place as usize] = Some(now);
                AwaitingPlace(place)
            }
            None => {
                awaiting.arrived.push(Some(now));
                AwaitingPlace(awaiting.arrived.len() as u32 - 1)
            }
        }
    }

    /// The first token came, or the request ended without one.
    pub(crate) fn leave(&self, AwaitingPlace(place): AwaitingPlace) {
        let mut awaiting = self.awaiting.lock();
        awaiting.arrived[place as usize] = None;
        awaiting.free.push(place);
    }

    pub(crate) fn add_prompt_tokens(&self, count: u64) {
        self.prompt_tokens.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn add_answer_tokens(&self, count: u64) {
        self.answer_tokens.fetch_add(count, Ordering::Relaxed);
    }
}

/// All lanes.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<Vec<Arc<LaneCounts>>>);

/// The sums over all lanes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneSums {
    pub(crate) arrived: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) answer_tokens: u64,
}

impl Lanes {
    /// The counts of one more lane.
    pub(crate) fn add(&self) -> Arc<LaneCounts> {
        let counts = Arc::new(LaneCounts::default());
        self.0.lock().push(counts.clone());
        counts
    }

    pub(crate) fn sums(&self) -> LaneSums {
        let lanes = self.0.lock();
        let sum = |read: fn(&LaneCounts) -> &AtomicU64| {
            lanes.iter().map(|it| read(it).load(Ordering::Relaxed)).sum()
        };
        LaneSums {
            arrived: sum(|it| &it.arrived),
            prompt_tokens: sum(|it| &it.prompt_tokens),
            answer_tokens: sum(|it| &it.answer_tokens),
        }
    }

    /// How long each request without a first token has waited.
    pub(crate) fn waits(&self, now: Instant) -> Vec<Duration> {
        let mut waits = Vec::new();
        for lane in self.0.lock().iter() {
            waits.extend(lane.awaiting.lock().arrived.iter().flatten().map(|&it| now.since(it)));
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(number: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(number)
    }

    #[test]
    fn a_request_waits_until_it_leaves_and_its_place_is_used_again() {
        let lanes = Lanes::default();
        let (one, other) = (lanes.add(), lanes.add());
        let first = one.arrive(second(1));
        let _second = other.arrive(second(2));
        let mut waits = lanes.waits(second(6));
        waits.sort_unstable();
        assert_eq!(waits, [4, 5].map(Duration::from_secs));
        one.leave(first);
        assert_eq!(lanes.waits(second(6)), [Duration::from_secs(4)]);
        (0..100).for_each(|_| one.leave(one.arrive(second(7))));
        assert_eq!(one.awaiting.lock().arrived.len(), 1);
        assert_eq!(lanes.sums().arrived, 102);
    }

    #[test]
    fn tokens_of_all_lanes_are_added_up() {
        let lanes = Lanes::default();
        lanes.add().add_answer_tokens(2);
        lanes.add().add_answer_tokens(3);
        lanes.add().add_prompt_tokens(7);
        assert_eq!(lanes.sums(), LaneSums { arrived: 0, prompt_tokens: 7, answer_tokens: 5 });
    }
}
