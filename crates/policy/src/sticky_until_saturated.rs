//! llm-d's newer rule: stay with the workers that have the prompt cached until their queue is seconds longer
//! than elsewhere.
//!
//! A worker with at least `threshold` of the prompt cached is sticky. While the shortest queue among sticky workers
//! is at most `seconds` longer than the shortest among the others, only sticky workers compete. Otherwise, and if
//! none is sticky, all do. The worker with the fewest tokens to prefill wins: promised and not yet done, plus the
//! uncached part of this prompt.
//!
//! A queue's seconds are its tokens at the worker's own learned prefill rate. llm-d divides by one peak
//! throughput for the whole fleet, calibrated by hand; its default is for one model on one pair of H100.
//!
//! Left out: answers, and everything below the threshold: with 0.8, a cached half of a long prompt counts as nothing.
//! llm-d's random exploration is off by default and not implemented here.

use maitre_base::Rng;

use crate::{Ask, Candidate, Pick, Why, choose};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StickyKnobs {
    /// Part of the prompt that makes a worker sticky; with zero, none is.
    pub threshold: f64,
    /// How much longer the queue of sticky workers may be; with zero, any length.
    pub seconds: f64,
}

impl Default for StickyKnobs {
    fn default() -> StickyKnobs {
        // llm-d's defaults.
        StickyKnobs { threshold: 0.8, seconds: 18.0 }
    }
}

pub fn pick(ask: &Ask, candidates: &[Candidate], knobs: &StickyKnobs, rng: &mut Rng) -> Option<Pick> {
    let needed = knobs.threshold * ask.prefill.0 as f64;
    let is_sticky = |it: &Candidate| needed > 0.0 && it.held.0 as f64 >= needed;
    let shortest = |sticky: bool| {
        let lines = candidates.iter().filter(|it| is_sticky(it) == sticky).map(line_seconds);
        lines.min_by(f64::total_cmp)
    };
    let only_sticky = match (shortest(true), shortest(false)) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(sticky), Some(other)) => knobs.seconds == 0.0 || sticky - other <= knobs.seconds,
    };
    let asked = |it: &Candidate| !only_sticky || is_sticky(it);
    let tokens = |it: &Candidate| (it.promised.prefill.tokens + it.uncached(ask)).0 as f64 / it.share;
    let index = choose::least_of(ask, candidates, rng, asked, tokens)?;
    Some(Pick::priced(candidates, index, Why::LeastWork))
}

fn line_seconds(candidate: &Candidate) -> f64 {
    candidate.pace.prefill(candidate.promised.prefill) / candidate.share
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;
    use maitre_base::Tokens;

    /// Each row is `(promised prefill, held of a prompt of 1,000 tokens)`; 10,000 tokens are a second.
    #[track_caller]
    fn check(knobs: StickyKnobs, rows: &[(u64, u64)], expected: (usize, Why)) {
        let mut candidates = fleet(&rows.iter().map(|it| (0, it.0)).collect::<Vec<_>>());
        for (candidate, row) in candidates.iter_mut().zip(rows) {
            candidate.held = Tokens(row.1);
        }
        let ask = Ask { prefill: Tokens(1_000), ..Ask::default() };
        let pick = pick(&ask, &candidates, &knobs, &mut Rng::new(1)).unwrap();
        assert_eq!((pick.index, pick.why), expected, "{rows:?}");
    }

    fn usual() -> StickyKnobs {
        StickyKnobs::default()
    }

    #[test]
    fn sticky_workers_are_kept_until_their_queue_is_too_long() {
        check(usual(), &[(0, 0), (179_000, 900)], (1, Why::Cached));
        check(usual(), &[(0, 0), (181_000, 900)], (0, Why::CacheTooBusy));
        // Only the difference counts.
        check(usual(), &[(100_000, 0), (279_000, 900)], (1, Why::Cached));
    }

    #[test]
    fn four_fifths_make_sticky_and_less_does_not() {
        check(usual(), &[(0, 0), (5_000, 800)], (1, Why::Cached));
        check(usual(), &[(0, 0), (5_000, 799)], (0, Why::CacheTooBusy));
    }

    #[test]
    fn one_sticky_worker_with_a_short_queue_is_enough() {
        check(usual(), &[(0, 0), (500_000, 1_000), (1_000, 800)], (2, Why::CacheTooBusy));
    }

    #[test]
    fn among_the_sticky_the_fewest_tokens_win_and_own_ones_count() {
        check(usual(), &[(0, 0), (300, 1_000), (150, 800)], (1, Why::Cached));
        check(usual(), &[(0, 0), (300, 1_000), (50, 800)], (2, Why::CacheTooBusy));
    }

    #[test]
    fn without_a_sticky_worker_the_fewest_tokens_win() {
        check(usual(), &[(400, 0), (700, 500)], (1, Why::Cached));
        check(usual(), &[(100, 0), (700, 500)], (0, Why::CacheTooBusy));
        check(usual(), &[(100, 0), (50, 0)], (1, Why::LeastWork));
    }

    #[test]
    fn zero_switches_either_half_off() {
        check(StickyKnobs { seconds: 0.0, ..usual() }, &[(0, 0), (9_000_000, 900)], (1, Why::Cached));
        check(StickyKnobs { threshold: 0.0, ..usual() }, &[(0, 0), (5_000, 900)], (0, Why::CacheTooBusy));
    }

    #[test]
    fn a_slow_worker_has_a_longer_queue_in_seconds() {
        let mut candidates = fleet(&[(0, 0), (60_000, 0)].map(|it: (u64, u64)| (0, it.0)));
        candidates[1].held = Tokens(900);
        let ask = Ask { prefill: Tokens(1_000), ..Ask::default() };
        let seat =
            |candidates: &[Candidate]| pick(&ask, candidates, &usual(), &mut Rng::new(1)).unwrap().index;
        assert_eq!(seat(&candidates), 1);
        candidates[1].pace.prefill_token *= 4.0;
        assert_eq!(seat(&candidates), 0);
    }
}
