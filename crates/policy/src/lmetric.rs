//! LMetric's rule (OSDI '26): tokens to prefill times requests, and the smallest product wins.
//!
//! ```text
//! cost = (promised prefill + ours that is not cached) · (requests + 1)
//! ```
//!
//! The first factor falls with what is cached, the second is the number of requests affected. A sum would
//! need a weight that suits one model on one GPU; in a product any such weight cancels out.
//!
//! Left out: KV room, and how fast a worker is. An engine computes at least the last token of a prompt, so
//! the first factor is never zero, and of two workers with the whole prompt cached the less busy wins.

use maitre_base::{Rng, Tokens};

use crate::{Ask, Candidate, Pick, Why, choose};

pub fn pick(ask: &Ask, candidates: &[Candidate], rng: &mut Rng) -> Option<Pick> {
    let index = choose::least(ask, candidates, rng, |it| cost(ask, it))?;
    Some(Pick::priced(candidates, index, Why::LeastCost))
}

fn cost(ask: &Ask, candidate: &Candidate) -> f64 {
    let tokens = candidate.promised.prefill.tokens + candidate.uncached(ask).max(Tokens(1));
    tokens.0 as f64 * (f64::from(candidate.requests) + 1.0) / candidate.share
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;

    /// Each row is `(requests, promised prefill, held)`; the prompt has 1,000 tokens.
    #[track_caller]
    fn check(rows: &[(u32, u64, u64)], expected: (usize, Why)) {
        let mut candidates = fleet(&rows.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>());
        for (candidate, row) in candidates.iter_mut().zip(rows) {
            candidate.held = Tokens(row.2);
        }
        let ask = Ask { prefill: Tokens(1_000), ..Ask::default() };
        let pick = pick(&ask, &candidates, &mut Rng::new(1)).unwrap();
        assert_eq!((pick.index, pick.why), expected, "{rows:?}");
    }

    #[test]
    fn tokens_and_requests_are_multiplied() {
        // 100 · (8 + 1) is less than 1,000 · 1, and 100 · (10 + 1) is more.
        check(&[(8, 0, 900), (0, 0, 0)], (0, Why::Cached));
        check(&[(10, 0, 900), (0, 0, 0)], (1, Why::CacheTooBusy));
        // The ratio decides, not the difference: 500 · 200 against 1,000 · 101.
        check(&[(199, 0, 500), (100, 0, 0)], (0, Why::Cached));
    }

    #[test]
    fn promised_work_is_added_first() {
        check(&[(1, 0, 0), (1, 500, 600)], (1, Why::Cached));
        check(&[(1, 0, 0), (1, 700, 600)], (0, Why::CacheTooBusy));
        check(&[(3, 100, 0), (2, 400, 0)], (1, Why::LeastCost));
    }

    #[test]
    fn of_two_that_hold_all_of_it_the_less_crowded_wins() {
        check(&[(30, 0, 1_000), (3, 0, 5_000), (2, 0, 0)], (1, Why::Cached));
    }

    #[test]
    fn a_worker_that_warms_up_costs_more() {
        let mut candidates = fleet(&[(0, 0), (0, 500)]);
        candidates[0].share = 0.5;
        let ask = Ask { prefill: Tokens(1_000), ..Ask::default() };
        assert_eq!(pick(&ask, &candidates, &mut Rng::new(1)).unwrap().index, 1);
    }
}
