//! The worker with the fewest requests in flight: what a good load balancer does without knowing that
//! requests differ a hundredfold.

use maitre_base::Rng;

use crate::{Ask, Candidate, Pick, Why, choose};

pub fn pick(ask: &Ask, candidates: &[Candidate], rng: &mut Rng) -> Option<Pick> {
    let index = choose::least(ask, candidates, rng, |it| (f64::from(it.requests) + 1.0) / it.share)?;
    Some(Pick { index, why: Why::FewestRequests })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;

    #[test]
    fn fewest_requests_win_whatever_they_weigh() {
        let candidates = fleet(&[(2, 10), (1, 90_000), (3, 0)]);
        assert_eq!(pick(&Ask::default(), &candidates, &mut Rng::new(0)).unwrap().index, 1);
    }

    #[test]
    fn a_warming_worker_fills_up_to_its_share_only() {
        let mut candidates = fleet(&[(4, 0), (0, 0)]);
        candidates[1].share = 0.1;
        assert_eq!(pick(&Ask::default(), &candidates, &mut Rng::new(0)).unwrap().index, 0);
    }
}
