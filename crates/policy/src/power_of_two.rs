//! Two random workers, the one with less work of the two: nearly as good as comparing all, and routers that
//! share nothing do not all choose the same idle worker.

use maitre_base::Rng;

use crate::{Candidate, Pick, Why};

pub fn pick(candidates: &[Candidate], rng: &mut Rng) -> Option<Pick> {
    let count = candidates.len();
    if count < 2 {
        return (count == 1).then_some(Pick { index: 0, why: Why::Only });
    }
    let one = rng.below(count);
    let other = (one + 1 + rng.below(count - 1)) % count;
    let cost = |index: usize| candidates[index].work() + f64::from(candidates[index].requests);
    let index = if cost(other) < cost(one) { other } else { one };
    Some(Pick { index, why: Why::BetterOfTwo })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;

    #[test]
    fn the_worst_of_the_fleet_is_never_picked() {
        let candidates = fleet(&[(0, 100), (0, 900), (0, 500)]);
        let mut rng = Rng::new(4);
        let mut seen = [0u32; 3];
        for _ in 0..3_000 {
            seen[pick(&candidates, &mut rng).unwrap().index] += 1;
        }
        assert_eq!(seen[1], 0);
        assert!((1_900..2_100).contains(&seen[0]), "two thirds of the pairs hold the best: {seen:?}");
    }
}
