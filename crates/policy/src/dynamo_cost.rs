//! NVIDIA Dynamo's rule: the fewest KV blocks to compute and to keep, a block of either kind costing the same.
//!
//! ```text
//! cost = prefill_weight · (promised + prompt − held − 0.75 · held_below)    still to be prefilled there
//!      +                   in_use + prompt − held_in_use                    then in use there
//! ```
//!
//! As in Dynamo 1.6 with its defaults: promised prefill leaves the sum with the first token. In use are the blocks of
//! prompts in flight, with shared blocks counted once; answers never count. Dynamo counts blocks and we count tokens:
//! dividing all terms by a block size moves no minimum.
//!
//! Left out: time. A block to prefill costs as much as a block to keep, though one is milliseconds of a whole GPU and
//! the other is memory. No observation enters, so a stalled worker keeps its part. Dynamo's disk tier (0.25) is not
//! distinguished from host memory here, and its temperature is zero.

use maitre_base::Rng;

use crate::{Ask, Candidate, Pick, Why, choose};

/// Value of a token in a slower tier relative to one on the GPU: Dynamo's weight for host memory.
const BELOW: f64 = 0.75;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamoKnobs {
    /// Cost of a token to prefill relative to one to keep.
    pub prefill_weight: f64,
}

impl Default for DynamoKnobs {
    fn default() -> DynamoKnobs {
        // Dynamo's default.
        DynamoKnobs { prefill_weight: 1.0 }
    }
}

pub fn pick(ask: &Ask, candidates: &[Candidate], knobs: &DynamoKnobs, rng: &mut Rng) -> Option<Pick> {
    let index = choose::least(ask, candidates, rng, |it| cost(ask, it, knobs))?;
    Some(Pick::priced(candidates, index, Why::LeastCost))
}

fn cost(ask: &Ask, candidate: &Candidate, knobs: &DynamoKnobs) -> f64 {
    let uncached = candidate.uncached(ask);
    let below = candidate.held_below.min(uncached);
    let prefill = (candidate.promised.prefill.tokens + uncached).0 as f64 - BELOW * below.0 as f64;
    let kept = candidate.in_use + (ask.prefill - candidate.held_in_use);
    (knobs.prefill_weight * prefill + kept.0 as f64) / candidate.share
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;
    use maitre_base::Tokens;

    /// One worker: what is promised, held and in use there, and what is in use of this prompt.
    #[derive(Clone, Copy, Debug, Default)]
    struct PricedRow {
        prefill: u64,
        held: u64,
        held_below: u64,
        in_use: u64,
        held_in_use: u64,
    }

    /// The prompt has 1,000 tokens.
    #[track_caller]
    fn check(prefill_weight: f64, rows: &[PricedRow], expected: (usize, Why)) {
        let mut candidates = fleet(&rows.iter().map(|it| (0, it.prefill)).collect::<Vec<_>>());
        for (candidate, row) in candidates.iter_mut().zip(rows) {
            (candidate.held, candidate.held_below) = (Tokens(row.held), Tokens(row.held_below));
            (candidate.in_use, candidate.held_in_use) = (Tokens(row.in_use), Tokens(row.held_in_use));
        }
        let ask = Ask { prefill: Tokens(1_000), decode: Tokens(10), ..Ask::default() };
        let pick = pick(&ask, &candidates, &DynamoKnobs { prefill_weight }, &mut Rng::new(1)).unwrap();
        assert_eq!((pick.index, pick.why), expected, "{rows:?}");
    }

    const IDLE: PricedRow = PricedRow { prefill: 0, held: 0, held_below: 0, in_use: 0, held_in_use: 0 };

    #[test]
    fn a_token_to_prefill_costs_what_a_token_to_keep_costs() {
        check(
            1.0,
            &[PricedRow { prefill: 501, ..IDLE }, PricedRow { in_use: 500, ..IDLE }],
            (1, Why::LeastCost),
        );
        check(
            1.0,
            &[PricedRow { prefill: 500, ..IDLE }, PricedRow { in_use: 501, ..IDLE }],
            (0, Why::LeastCost),
        );
        check(
            2.0,
            &[PricedRow { prefill: 300, ..IDLE }, PricedRow { in_use: 599, ..IDLE }],
            (1, Why::LeastCost),
        );
    }

    #[test]
    fn a_cached_token_counts_once_and_one_in_use_twice() {
        let cached = PricedRow { held: 900, ..IDLE };
        check(1.0, &[PricedRow { prefill: 899, ..cached }, IDLE], (0, Why::Cached));
        check(1.0, &[PricedRow { prefill: 901, ..cached }, IDLE], (1, Why::CacheTooBusy));
        // Blocks that are kept for other requests anyway are not counted again for this one.
        let shared = PricedRow { held: 900, held_in_use: 900, ..IDLE };
        check(1.0, &[PricedRow { prefill: 1_799, ..shared }, IDLE], (0, Why::Cached));
        check(1.0, &[PricedRow { prefill: 1_801, ..shared }, IDLE], (1, Why::CacheTooBusy));
    }

    #[test]
    fn slower_memory_is_worth_three_quarters() {
        let below = PricedRow { held_below: 800, ..IDLE };
        check(1.0, &[below, PricedRow { held: 599, ..IDLE }], (0, Why::CacheTooBusy));
        check(1.0, &[below, PricedRow { held: 601, ..IDLE }], (1, Why::Cached));
    }

    #[test]
    fn a_longer_sibling_in_the_index_does_not_reduce_other_prefill() {
        check(1.0, &[PricedRow { prefill: 1_001, held: 5_000, ..IDLE }, IDLE], (1, Why::CacheTooBusy));
    }

    #[test]
    fn a_worker_that_warms_up_costs_more() {
        let mut candidates = fleet(&[(0, 0), (0, 900)]);
        candidates[0].share = 0.5;
        let ask = Ask { prefill: Tokens(1_000), ..Ask::default() };
        assert_eq!(pick(&ask, &candidates, &DynamoKnobs::default(), &mut Rng::new(1)).unwrap().index, 1);
    }
}
