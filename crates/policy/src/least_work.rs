//! The worker with the least work promised, in tokens: prefill not yet done plus answers not yet
//! written. Blind to caches, but not to size: one prompt of 50,000 tokens weighs as much as fifty of
//! a thousand.

use maitre_base::Rng;

use crate::{Ask, Candidate, Pick, Why, choose};

pub fn pick(ask: &Ask, candidates: &[Candidate], rng: &mut Rng) -> Option<Pick> {
    // Requests break the ties that empty estimates leave (embeddings of unknown size, say).
    let cost = |it: &Candidate| it.work() + f64::from(it.requests) / it.share;
    let index = choose::least(ask, candidates, rng, cost)?;
    Some(Pick { index, why: Why::LeastWork })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;

    #[test]
    fn one_huge_prompt_outweighs_many_small_ones() {
        let candidates = fleet(&[(1, 50_000), (20, 10_000)]);
        assert_eq!(pick(&Ask::default(), &candidates, &mut Rng::new(0)).unwrap().index, 1);
    }

    #[test]
    fn equal_work_goes_to_the_fewest_requests() {
        let candidates = fleet(&[(5, 0), (1, 0), (3, 0)]);
        assert_eq!(pick(&Ask::default(), &candidates, &mut Rng::new(0)).unwrap().index, 1);
    }
}
