//! The rule of the Gateway API inference extension and of llm-d's scorers: three scores, weighted and added.
//!
//! ```text
//! score = prefix · held / prompt                               cached part of the prompt
//!       + queue  · (longest − waiting) / (longest − shortest)  how short its queue is among the others
//!       + kv     · (1 − usage)                                 free part of its cache
//! ```
//!
//! Each score is in [0, 1] and the highest sum wins. Queue length and usage are the engine's last report; if all
//! queues are equal every worker gets the full score. If any candidate reports no queue length, requests in flight
//! replace it for all, because the two are not comparable. A worker that reports no usage is scored by the part of
//! its cache that our requests hold, or as empty if its size is unknown too.
//!
//! Left out: how long anything takes. A queue is scored against the other queues, so one waiting request costs as
//! much as a thousand. Between two reports every pick sees the same queues, and a burst goes to one worker. llm-d
//! reads them every 50 ms, Maitre every second (`probes.interval`). On shared-prefix groups in the simulator the mean
//! TTFT was 0.11 s and 0.70 s. Compare at 50 ms. A worker that warms up is charged its distance from the full score,
//! divided by its share.

use maitre_base::{Rng, Tokens};

use crate::{Ask, Candidate, Pick, Why, choose};

/// The weight of each score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightedKnobs {
    pub prefix: f64,
    pub queue: f64,
    pub kv: f64,
}

impl Default for WeightedKnobs {
    fn default() -> WeightedKnobs {
        // llm-d's weights.
        WeightedKnobs { prefix: 3.0, queue: 2.0, kv: 2.0 }
    }
}

pub fn pick(ask: &Ask, candidates: &[Candidate], knobs: &WeightedKnobs, rng: &mut Rng) -> Option<Pick> {
    let lengths = QueueLengths::of(candidates)?;
    let full = knobs.prefix + knobs.queue + knobs.kv;
    let lacks = |it: &Candidate| {
        let score = knobs.prefix * prefix(ask, it) + knobs.queue * lengths.mark(it) + knobs.kv * free(it);
        (full - score) / it.share
    };
    let index = choose::least(ask, candidates, rng, lacks)?;
    Some(Pick::priced(candidates, index, Why::LeastCost))
}

fn prefix(ask: &Ask, candidate: &Candidate) -> f64 {
    candidate.held.min(ask.prefill).0 as f64 / ask.prefill.0.max(1) as f64
}

fn free(candidate: &Candidate) -> f64 {
    let ours = || {
        let room = candidate.room.filter(|it| it.capacity > Tokens::ZERO)?;
        Some(room.pinned.0 as f64 / room.capacity.0 as f64)
    };
    let usage = candidate.reported.kv_usage.or_else(ours).unwrap_or(0.0);
    1.0 - usage.clamp(0.0, 1.0)
}

/// The queue lengths of all candidates, in a measure that all of them report.
#[derive(Clone, Copy, Debug)]
struct QueueLengths {
    reported: bool,
    shortest: f64,
    longest: f64,
}

impl QueueLengths {
    fn of(candidates: &[Candidate]) -> Option<QueueLengths> {
        let reported = candidates.iter().all(|it| it.reported.waiting.is_some());
        let lengths = candidates.iter().map(|it| length(it, reported));
        let shortest = lengths.clone().min_by(f64::total_cmp)?;
        let longest = lengths.max_by(f64::total_cmp)?;
        Some(QueueLengths { reported, shortest, longest })
    }

    fn mark(&self, candidate: &Candidate) -> f64 {
        let apart = self.longest - self.shortest;
        if apart > 0.0 { (self.longest - length(candidate, self.reported)) / apart } else { 1.0 }
    }
}

fn length(candidate: &Candidate, reported: bool) -> f64 {
    let waiting = candidate.reported.waiting.filter(|_| reported);
    waiting.unwrap_or(candidate.requests.into()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;
    use maitre_base::{FreshLoad, KvRoom};

    /// Each row is `(held of a prompt of 1,000 tokens, waiting, KV usage)`.
    #[track_caller]
    fn check(rows: &[(u64, u64, f64)], expected: (usize, Why)) {
        let pick = place(&reporting(rows));
        assert_eq!((pick.index, pick.why), expected, "{rows:?}");
    }

    fn reporting(rows: &[(u64, u64, f64)]) -> Vec<Candidate> {
        let mut candidates = fleet(&vec![(0, 0); rows.len()]);
        for (candidate, row) in candidates.iter_mut().zip(rows) {
            candidate.held = Tokens(row.0);
            candidate.reported = FreshLoad { waiting: Some(row.1), kv_usage: Some(row.2) };
        }
        candidates
    }

    fn place(candidates: &[Candidate]) -> Pick {
        let ask = Ask { prefill: Tokens(1_000), ..Ask::default() };
        pick(&ask, candidates, &WeightedKnobs::default(), &mut Rng::new(1)).unwrap()
    }

    #[test]
    fn prefix_weighs_three_and_the_others_two_each() {
        // A whole prompt is worth more than a queue, and less than a queue and half a cache.
        check(&[(1_000, 5, 0.0), (0, 0, 0.0)], (0, Why::Cached));
        check(&[(1_000, 5, 0.49), (0, 0, 0.0)], (0, Why::Cached));
        check(&[(1_000, 5, 0.51), (0, 0, 0.0)], (1, Why::CacheTooBusy));
        check(&[(660, 0, 1.0), (0, 0, 0.0)], (1, Why::CacheTooBusy));
        check(&[(670, 0, 1.0), (0, 0, 0.0)], (0, Why::Cached));
    }

    #[test]
    fn a_queue_is_scored_among_the_other_queues() {
        // One waiting request costs what a hundred cost, if no queue is longer.
        check(&[(660, 1, 0.0), (0, 0, 0.0)], (1, Why::CacheTooBusy));
        check(&[(660, 100, 0.0), (0, 0, 0.0)], (1, Why::CacheTooBusy));
        check(&[(660, 1, 0.0), (0, 0, 0.0), (0, 100, 0.0)], (0, Why::Cached));
        // If all queues are equal the cache decides.
        check(&[(10, 7, 0.5), (0, 7, 0.5)], (0, Why::Cached));
    }

    #[test]
    fn an_uncached_prompt_goes_to_the_short_queue_or_the_empty_cache() {
        check(&[(0, 3, 0.2), (0, 0, 0.2)], (1, Why::LeastCost));
        check(&[(0, 3, 0.2), (0, 3, 0.1)], (1, Why::LeastCost));
    }

    #[test]
    fn requests_stand_in_for_queues_where_one_does_not_report() {
        let mut candidates = reporting(&[(0, 0, 0.0), (0, 9, 0.0)]);
        (candidates[0].requests, candidates[1].requests) = (30, 20);
        assert_eq!(place(&candidates).index, 0);
        candidates[0].reported.waiting = None;
        assert_eq!(place(&candidates).index, 1);
    }

    #[test]
    fn without_reported_usage_our_requests_memory_is_used() {
        let mut candidates = reporting(&[(0, 0, 0.5), (0, 0, 0.0)]);
        candidates[1].reported.kv_usage = None;
        assert_eq!(place(&candidates).index, 1);
        candidates[1].room = Some(KvRoom { capacity: Tokens(1_000), pinned: Tokens(600) });
        assert_eq!(place(&candidates).index, 0);
    }

    #[test]
    fn a_worker_that_warms_up_lacks_more() {
        let mut candidates = reporting(&[(0, 0, 0.0), (0, 1, 0.0)]);
        candidates[0].share = 0.5;
        // It lacks the prefix's three, twice; the other lacks them once and the queue's two.
        assert_eq!(place(&candidates).index, 1);
        candidates[0].held = Tokens(200);
        assert_eq!(place(&candidates).index, 0);
    }
}
