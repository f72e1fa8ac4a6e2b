//! Which workers can pull KV cache from each other, and how long that takes.

use std::time::Duration;

use maitre_base::{Instant, Tokens, WorkerId};

use super::Fleet;
use crate::pulls::{PullWatch, Pulls};
use crate::transfers::{KvOrigin, TransferTime, Way};
use crate::worker::Worker;

impl Fleet {
    /// Sets whether this worker can pull from other workers that can, and they from it.
    pub fn set_pulls(&mut self, worker: WorkerId, pulls: bool) {
        if let Some(it) = self.worker_mut(worker) {
            it.pulls = pulls.then(Pulls::default);
            self.pulling_workers = self.workers().filter(|it| it.pulls.is_some()).count();
        }
    }

    /// Whether any worker has another to pull from.
    pub fn has_pulls(&self) -> bool {
        self.pulling_workers > 1
    }

    /// Whether a first pull is under way while too little is known of pulls.
    pub fn awaits_first_pull(&self) -> bool {
        self.pull_times.awaits_trial()
    }

    /// Whether this worker can pull now.
    pub fn may_pull(&self, now: Instant, worker: WorkerId) -> bool {
        self.pulls_of(worker).is_some_and(|it| !it.is_paused(now))
    }

    /// Whether others may pull from this worker now.
    pub fn is_source(&self, now: Instant, worker: WorkerId, watch: PullWatch) -> bool {
        let is_ready = self.worker(worker).is_some_and(Worker::is_ready);
        is_ready && self.pulls_of(worker).is_some_and(|it| it.is_trusted(now, watch))
    }

    fn pulls_of(&self, worker: WorkerId) -> Option<&Pulls> {
        self.worker(worker)?.pulls.as_ref()
    }

    fn pulls_of_mut(&mut self, worker: WorkerId) -> Option<&mut Pulls> {
        self.worker_mut(worker)?.pulls.as_mut()
    }

    /// How long a worker takes to pull the KV cache of so many tokens, or to load it from a shared store.
    pub fn pull_time(&self, way: Way, tokens: Tokens) -> TransferTime {
        let times = match way.from {
            KvOrigin::Worker(_) => &self.pull_times,
            KvOrigin::Store(_) => &self.load_times,
        };
        times.time(way, self.fetches(way), tokens)
    }

    /// A worker starts to pull so many tokens from another, or to load them from a store. Returns how many are before
    /// them on its link.
    pub fn begin_pull(&mut self, worker: WorkerId, source: Option<WorkerId>, tokens: Tokens) -> Tokens {
        if let Some(it) = source.and_then(|it| self.pulls_of_mut(it)) {
            it.under_way += 1;
        }
        if source.is_some() {
            self.pull_times.begin();
        }
        self.promise_fetch(worker, tokens);
        self.begin_fetch(worker, tokens)
    }

    /// The pull is over, with any result.
    pub fn end_pull(&mut self, worker: WorkerId, source: Option<WorkerId>, tokens: Tokens) {
        if let Some(it) = source.and_then(|it| self.pulls_of_mut(it)) {
            it.under_way = it.under_way.saturating_sub(1);
        }
        if source.is_some() {
            self.pull_times.end();
        }
        self.end_fetch(worker, tokens, true);
    }

    /// A worker pulled so many tokens from another, or loaded them from a store. The tokens before them on the link
    /// are included.
    pub fn learn_pull(&mut self, now: Instant, way: Way, tokens: Tokens, took: Duration) {
        let KvOrigin::Worker(source) = way.from else {
            return self.load_times.learn(way, tokens, took);
        };
        if let Some(it) = self.pulls_of_mut(source) {
            it.proven = Some(now);
        }
        self.pull_times.learn(way, tokens, took);
    }

    /// This worker could not pull so many tokens from that one, including those before them on the same link. Either
    /// may be at fault, or the link is slow: the pull would have taken longer than this.
    pub fn pull_failed(
        &mut self,
        now: Instant,
        (worker, source): (WorkerId, WorkerId),
        tokens: Tokens,
        took: Duration,
    ) {
        self.pull_times.learn_at_least(Way::between(source, worker), tokens, took);
        for worker in [worker, source] {
            if let Some(it) = self.pulls_of_mut(worker) {
                (it.failed, it.proven) = (Some(now), None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Evidence;

    const ONE: WorkerId = WorkerId(0);
    const OTHER: WorkerId = WorkerId(1);
    const WAY: Way = Way { from: KvOrigin::Worker(OTHER), to: ONE };

    fn pair() -> Fleet {
        let mut fleet = Fleet::default();
        for url in ["http://one", "http://other"] {
            let worker = fleet.add(url);
            fleet.see(Instant::ZERO, worker, Evidence::Answered);
            fleet.set_pulls(worker, true);
        }
        fleet
    }

    fn seconds(seconds: u64) -> Instant {
        Instant::from_millis(seconds * 1_000)
    }

    #[test]
    fn one_worker_alone_has_nobody_to_pull_from() {
        let mut fleet = pair();
        assert!(fleet.has_pulls());
        fleet.set_pulls(OTHER, false);
        assert!(!fleet.has_pulls());
        assert!(!fleet.may_pull(Instant::ZERO, OTHER));
        fleet.set_pulls(OTHER, true);
        fleet.remove(Instant::ZERO, ONE);
        assert!(!fleet.has_pulls());
    }

    #[test]
    fn an_unproven_source_serves_one_pull_at_a_time_and_only_one_that_is_watched() {
        let mut fleet = pair();
        let is_source = |fleet: &Fleet, at, watch| fleet.is_source(seconds(at), OTHER, watch);
        assert!(is_source(&fleet, 0, PullWatch::FirstToken));
        assert!(!is_source(&fleet, 0, PullWatch::Nothing));
        fleet.begin_pull(ONE, Some(OTHER), Tokens(1_000));
        assert!(!is_source(&fleet, 0, PullWatch::FirstToken));
        fleet.learn_pull(seconds(1), WAY, Tokens(1_000), Duration::from_millis(50));
        assert!(is_source(&fleet, 1, PullWatch::Nothing));
        assert!(!is_source(&fleet, 61, PullWatch::Nothing), "proven too long ago");
        fleet.end_pull(ONE, Some(OTHER), Tokens(1_000));
        assert!(is_source(&fleet, 61, PullWatch::FirstToken));
    }

    #[test]
    fn after_a_failed_pull_both_rest_for_a_minute() {
        let mut fleet = pair();
        fleet.learn_pull(seconds(1), WAY, Tokens(1_000), Duration::from_millis(50));
        fleet.pull_failed(seconds(2), (ONE, OTHER), Tokens(1_000), Duration::from_millis(1));
        for at in [2, 61] {
            assert!(!fleet.is_source(seconds(at), OTHER, PullWatch::FirstToken), "{at} s");
            assert!(!fleet.may_pull(seconds(at), ONE), "{at} s");
        }
        assert!(fleet.is_source(seconds(62), OTHER, PullWatch::FirstToken));
        assert!(!fleet.is_source(seconds(62), OTHER, PullWatch::Nothing), "no longer proven");
        assert!(fleet.may_pull(seconds(62), ONE));
    }

    #[test]
    fn the_first_pulls_are_tried_one_at_a_time() {
        let mut fleet = pair();
        for round in 1..=2 {
            assert!(!fleet.awaits_first_pull(), "round {round}");
            fleet.begin_pull(ONE, Some(OTHER), Tokens(1_000));
            assert!(fleet.awaits_first_pull(), "round {round}");
            fleet.learn_pull(seconds(round), WAY, Tokens(1_000), Duration::from_millis(50));
            fleet.end_pull(ONE, Some(OTHER), Tokens(1_000));
        }
        fleet.begin_pull(ONE, Some(OTHER), Tokens(1_000));
        assert!(!fleet.awaits_first_pull());
        fleet.begin_pull(ONE, None, Tokens(1_000));
        fleet.end_pull(ONE, None, Tokens(1_000));
    }

    #[test]
    fn a_pull_that_was_given_up_shows_that_the_link_is_slow() {
        let mut fleet = pair();
        let before = fleet.pull_time(WAY, Tokens(8_000));
        fleet.pull_failed(seconds(1), (ONE, OTHER), Tokens(8_000), Duration::from_millis(1));
        assert_eq!(fleet.pull_time(WAY, Tokens(8_000)), before, "refused at once");
        fleet.pull_failed(seconds(2), (ONE, OTHER), Tokens(8_000), Duration::from_secs(6));
        assert!(fleet.pull_time(WAY, Tokens(8_000)).own > 0.5);
    }

    #[test]
    fn what_is_being_pulled_waits_on_the_link() {
        let mut fleet = pair();
        let idle = fleet.pull_time(WAY, Tokens(8_000));
        assert_eq!(idle.queue, 0.0);
        assert_eq!(fleet.begin_pull(ONE, Some(OTHER), Tokens(10_000)), Tokens::ZERO);
        assert_eq!(fleet.begin_pull(ONE, Some(OTHER), Tokens(5_000)), Tokens(10_000));
        assert!(fleet.pull_time(WAY, Tokens(8_000)).queue > 0.0);
        fleet.end_pull(ONE, Some(OTHER), Tokens(10_000));
        fleet.end_pull(ONE, Some(OTHER), Tokens(5_000));
        assert_eq!(fleet.pull_time(WAY, Tokens(8_000)), idle);
    }
}
