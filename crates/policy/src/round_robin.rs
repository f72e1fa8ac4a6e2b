//! Each worker in turn. The cursor is a worker number, not a position, so that workers may join and leave
//! between two turns without one being skipped or chosen twice.

use maitre_base::{Rng, WorkerId};

use crate::{Candidate, Pick, Why};

#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    last: Option<WorkerId>,
}

impl RoundRobin {
    /// Candidates come in the order of their numbers.
    pub fn pick(&mut self, candidates: &[Candidate], rng: &mut Rng) -> Option<Pick> {
        let count = candidates.len();
        let start = match self.last {
            Some(last) => candidates.partition_point(|it| it.worker <= last) % count.max(1),
            None => 0,
        };
        // A worker that warms up takes only part of its turns, and so does every worker beside a heavier one. If the
        // random draw skips all of them, the first one takes it.
        let whole = candidates.iter().map(|it| it.share).fold(1.0, f64::max);
        let mut in_line = (0..count).map(|step| (start + step) % count);
        let first = in_line.clone().next();
        let index = in_line.find(|&it| rng.unit() * whole < candidates[it].share).or(first)?;
        self.last = Some(candidates[index].worker);
        Some(Pick { index, why: Why::Turn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;

    fn turns(strategy: &mut RoundRobin, candidates: &[Candidate], count: usize) -> Vec<u32> {
        let mut rng = Rng::new(0);
        let mut turn = || strategy.pick(candidates, &mut rng).map(|it| candidates[it.index].worker.0);
        (0..count).filter_map(|_| turn()).collect()
    }

    #[test]
    fn everyone_in_turn_and_around() {
        let mut strategy = RoundRobin::default();
        assert_eq!(turns(&mut strategy, &fleet(&[(0, 0); 3]), 7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn a_worker_that_leaves_skips_no_other() {
        let mut strategy = RoundRobin::default();
        let all = fleet(&[(0, 0); 4]);
        assert_eq!(turns(&mut strategy, &all, 2), [0, 1]);
        let without_two: Vec<Candidate> = all.iter().copied().filter(|it| it.worker.0 != 2).collect();
        assert_eq!(turns(&mut strategy, &without_two, 3), [3, 0, 1]);
        assert_eq!(turns(&mut strategy, &all, 2), [2, 3]);
    }

    #[test]
    fn a_warming_worker_takes_its_share_of_turns() {
        let mut strategy = RoundRobin::default();
        let mut candidates = fleet(&[(0, 0); 2]);
        candidates[1].share = 0.25;
        let picked = turns(&mut strategy, &candidates, 1_000);
        let warming = picked.iter().filter(|&&worker| worker == 1).count();
        assert!((150..260).contains(&warming), "a fifth of 1000, got {warming}");
    }
}
