//! A random worker: the baseline that every other strategy must beat.

use maitre_base::Rng;

use crate::{Candidate, Pick, Why};

pub fn pick(candidates: &[Candidate], rng: &mut Rng) -> Option<Pick> {
    let total: f64 = candidates.iter().map(|it| it.share).sum();
    let mut left = rng.unit() * total;
    let index = candidates
        .iter()
        .position(|it| {
            left -= it.share;
            left < 0.0
        })
        // Rounding may leave a sliver past the last share.
        .or(candidates.len().checked_sub(1))?;
    Some(Pick { index, why: Why::Dice })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;

    #[test]
    fn the_dice_follow_the_shares() {
        let mut candidates = fleet(&[(0, 0); 3]);
        candidates[2].share = 0.5;
        let mut rng = Rng::new(9);
        let mut seen = [0u32; 3];
        for _ in 0..5_000 {
            seen[pick(&candidates, &mut rng).unwrap().index] += 1;
        }
        assert!((1_850..2_150).contains(&seen[0]) && (900..1_100).contains(&seen[2]), "{seen:?}");
    }
}
