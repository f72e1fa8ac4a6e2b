//! SGLang's rule, for users who come from it: follow the cache while the fleet is balanced.
//!
//! While no worker is far ahead of the others in requests, a prompt goes to the worker with the longest
//! cached prefix, if that is more than `cache_threshold` of it; else to the cache with the most room. Once
//! one worker is ahead by more than `balance_abs_threshold` requests and `balance_rel_threshold` times, every
//! prompt goes to the fewest requests, cached or not.
//!
//! Its weaknesses are why `least-delay` is the default: a long shared prefix of a longer prompt falls under
//! the ratio, all requests count the same, and the two modes flip the whole fleet at once. Unlike in SGLang,
//! cached prefixes come from the best source there is: KV events where they exist.

use maitre_base::Rng;

use crate::{Ask, Candidate, Pick, Why, choose, least_request};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheAwareKnobs {
    /// Part of a prompt that a worker must have cached to attract it.
    pub cache_threshold: f64,
    /// Unbalanced: more requests apart than this,
    pub balance_abs_threshold: u32,
    /// and the most more than this many times the fewest.
    pub balance_rel_threshold: f64,
}

impl Default for CacheAwareKnobs {
    fn default() -> CacheAwareKnobs {
        // sglang-router's defaults.
        CacheAwareKnobs { cache_threshold: 0.3, balance_abs_threshold: 64, balance_rel_threshold: 1.5 }
    }
}

pub fn pick(ask: &Ask, candidates: &[Candidate], knobs: &CacheAwareKnobs, rng: &mut Rng) -> Option<Pick> {
    let most = candidates.iter().map(|it| it.requests).max()?;
    let fewest = candidates.iter().map(|it| it.requests).min()?;
    let apart = most - fewest > knobs.balance_abs_threshold;
    if apart && f64::from(most) > f64::from(fewest) * knobs.balance_rel_threshold {
        return least_request::pick(ask, candidates, rng);
    }
    let best = choose::least(ask, candidates, rng, |it| -(it.held.0 as f64))?;
    if candidates[best].held.0 as f64 > knobs.cache_threshold * ask.prefill.0 as f64 {
        return Some(Pick { index: best, why: Why::Cached });
    }
    // Caches fill up and stay full. What was promised tells then where the next prompt evicts least that is in use.
    let index =
        choose::least(ask, candidates, rng, |it| (it.holds + it.promised.context).0 as f64 / it.share)?;
    Some(Pick { index, why: Why::MostRoom })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;
    use maitre_base::Tokens;

    /// Each row is `(requests, held of a prompt of 1,000 tokens, held of anything)`.
    #[track_caller]
    fn check(rows: &[(u32, u64, u64)], expected: (usize, Why)) {
        let mut candidates = fleet(&rows.iter().map(|it| (it.0, 0)).collect::<Vec<_>>());
        for (candidate, row) in candidates.iter_mut().zip(rows) {
            (candidate.held, candidate.holds) = (Tokens(row.1), Tokens(row.2));
        }
        let ask = Ask { prefill: Tokens(1_000), ..Ask::default() };
        let pick = pick(&ask, &candidates, &CacheAwareKnobs::default(), &mut Rng::new(1)).unwrap();
        assert_eq!((pick.index, pick.why), expected, "{rows:?}");
    }

    #[test]
    fn the_longest_prefix_wins_if_it_is_long_enough() {
        check(&[(0, 301, 5_000), (9, 400, 9_000)], (1, Why::Cached));
        check(&[(0, 0, 5_000), (9, 300, 9_000)], (0, Why::MostRoom));
    }

    #[test]
    fn out_of_balance_needs_both_distances() {
        check(&[(0, 0, 0), (64, 900, 0)], (1, Why::Cached));
        check(&[(0, 0, 0), (65, 900, 0)], (0, Why::FewestRequests));
        check(&[(200, 0, 0), (290, 900, 0)], (1, Why::Cached));
    }
}
