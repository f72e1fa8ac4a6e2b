//! The rule of the Gateway API inference extension and of llm-d's scorers: three marks, weighed and added.
//!
//! ```text
//! score = prefix · held / prompt                               how much of the prompt is there
//!       + queue  · (longest − waiting) / (longest − shortest)  how short its line is among the others
//!       + kv     · (1 − usage)                                 how much of its cache is free
//! ```
//!
//! Each mark is in [0, 1] and the highest sum wins. A line and a usage are what the engine said of itself last;
//! where all lines are equal everybody gets the whole mark. If any candidate reports no line, requests stand
//! for the lines of all, for a line and a count of requests do not compare. One that reports no usage is
//! marked by the part of its cache that our requests hold, or as empty if its size is not known either.
//!
//! What it leaves out: how long anything takes. The line is marked against the other lines, so one request
//! waiting somewhere costs as much as a thousand; between two reports every pick sees the same lines, and a
//! burst runs to the same worker. llm-d reads them every 50 ms, we every second (`probes.interval`); on
//! shared-prefix groups in the laboratory that was a mean first token of 0.11 and of 0.70 s. Compare at 50 ms.
//! A worker that warms up is told what it lacks to the full score, the more the less of its part it may take.

use maitre_base::{Rng, Tokens};

use crate::{Ask, Candidate, Pick, Why, choose};

/// What each mark weighs.
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
    let lines = QueueLengths::of(candidates)?;
    let full = knobs.prefix + knobs.queue + knobs.kv;
    let lacks = |it: &Candidate| {
        let score = knobs.prefix * prefix(ask, it) + knobs.queue * lines.mark(it) + knobs.kv * free(it);
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

/// The lines before the candidates, in a measure that all of them have.
#[derive(Clone, Copy, Debug)]
struct QueueLengths {
    reported: bool,
    shortest: f64,
    longest: f64,
}

impl QueueLengths {
    fn of(candidates: &[Candidate]) -> Option<QueueLengths> {
        let reported = candidates.iter().all(|it| it.reported.waiting.is_some());
        let lines = candidates.iter().map(|it| length(it, reported));
        let shortest = lines.clone().min_by(f64::total_cmp)?;
        let longest = lines.max_by(f64::total_cmp)?;
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
        let pick = seat(&reporting(rows));
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

    fn seat(candidates: &[Candidate]) -> Pick {
        let ask = Ask { prefill: Tokens(1_000), ..Ask::default() };
        pick(&ask, candidates, &WeightedKnobs::default(), &mut Rng::new(1)).unwrap()
    }

    #[test]
    fn prefix_weighs_three_and_the_others_two_each() {
        // A whole prompt is worth more than a line, and less than a line and half a cache.
        check(&[(1_000, 5, 0.0), (0, 0, 0.0)], (0, Why::Cached));
        check(&[(1_000, 5, 0.49), (0, 0, 0.0)], (0, Why::Cached));
        check(&[(1_000, 5, 0.51), (0, 0, 0.0)], (1, Why::CacheTooBusy));
        check(&[(660, 0, 1.0), (0, 0, 0.0)], (1, Why::CacheTooBusy));
        check(&[(670, 0, 1.0), (0, 0, 0.0)], (0, Why::Cached));
    }

    #[test]
    fn a_line_is_marked_among_the_other_lines() {
        // One request waiting costs what a hundred cost, if nobody waits longer.
        check(&[(660, 1, 0.0), (0, 0, 0.0)], (1, Why::CacheTooBusy));
        check(&[(660, 100, 0.0), (0, 0, 0.0)], (1, Why::CacheTooBusy));
        check(&[(660, 1, 0.0), (0, 0, 0.0), (0, 100, 0.0)], (0, Why::Cached));
        // Where all are equal the cache decides.
        check(&[(10, 7, 0.5), (0, 7, 0.5)], (0, Why::Cached));
    }

    #[test]
    fn a_cold_prompt_goes_to_the_short_line_or_the_empty_cache() {
        check(&[(0, 3, 0.2), (0, 0, 0.2)], (1, Why::LeastCost));
        check(&[(0, 3, 0.2), (0, 3, 0.1)], (1, Why::LeastCost));
    }

    #[test]
    fn where_one_is_silent_requests_stand_for_all_lines() {
        let mut candidates = reporting(&[(0, 0, 0.0), (0, 9, 0.0)]);
        (candidates[0].requests, candidates[1].requests) = (30, 20);
        assert_eq!(seat(&candidates).index, 0);
        candidates[0].reported.waiting = None;
        assert_eq!(seat(&candidates).index, 1);
    }

    #[test]
    fn where_usage_is_not_told_what_we_pinned_stands_for_it() {
        let mut candidates = reporting(&[(0, 0, 0.5), (0, 0, 0.0)]);
        candidates[1].reported.kv_usage = None;
        assert_eq!(seat(&candidates).index, 1);
        candidates[1].room = Some(KvRoom { capacity: Tokens(1_000), pinned: Tokens(600) });
        assert_eq!(seat(&candidates).index, 0);
    }

    #[test]
    fn a_worker_that_warms_up_lacks_more() {
        let mut candidates = reporting(&[(0, 0, 0.0), (0, 1, 0.0)]);
        candidates[0].share = 0.5;
        // It lacks the prefix's three, twice; the other lacks them once and the line's two.
        assert_eq!(seat(&candidates).index, 1);
        candidates[0].held = Tokens(200);
        assert_eq!(seat(&candidates).index, 0);
    }
}
