//! The two ways strategies compare workers: the lowest cost, and rendezvous hashing of a key.

use maitre_base::{Rng, hash};

use crate::{Ask, Candidate};

/// The candidate with the lowest cost. A random draw or the ask's tie-breaker breaks ties: otherwise the first worker
/// of an idle fleet would get every request until it is no longer idle.
pub fn least(
    ask: &Ask,
    candidates: &[Candidate],
    rng: &mut Rng,
    cost: impl Fn(&Candidate) -> f64,
) -> Option<usize> {
    least_of(ask, candidates, rng, |_| true, cost)
}

/// The same among the candidates that pass; `None` if none does.
pub fn least_of(
    ask: &Ask,
    candidates: &[Candidate],
    rng: &mut Rng,
    passes: impl Fn(&Candidate) -> bool,
    cost: impl Fn(&Candidate) -> f64,
) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    let mut equals = 0;
    for (index, candidate) in candidates.iter().enumerate().filter(|(_, it)| passes(it)) {
        let cost = cost(candidate);
        match best {
            Some((_, least)) if cost > least => continue,
            Some((before, least)) if cost == least => {
                equals += 1;
                let both = Equals { one: &candidates[before], other: candidate, met: equals };
                if !both.prefer_other(ask, rng) {
                    continue;
                }
            }
            _ => equals = 1,
        }
        best = Some((index, cost));
    }
    best.map(|(index, _)| index)
}

/// Two candidates of equal cost, and how many equals were found, the second included.
pub(crate) struct Equals<'a> {
    pub(crate) one: &'a Candidate,
    pub(crate) other: &'a Candidate,
    pub(crate) met: usize,
}

impl Equals<'_> {
    /// Whether the second replaces the first. At random each equal is equally likely. With a tie-breaker the
    /// candidate that it hashes to wins, and no random number is drawn.
    pub(crate) fn prefer_other(&self, ask: &Ask, rng: &mut Rng) -> bool {
        match ask.tie {
            Some(key) => hash::pair(key, self.other.key) > hash::pair(key, self.one.key),
            None => rng.below(self.met) == 0,
        }
    }
}

/// The candidate that `key` belongs to among those that pass: rendezvous hashing. Routers that see the same
/// workers agree without talking, and a worker that leaves moves only its own keys, each to the next worker
/// in that key's order.
pub fn home(candidates: &[Candidate], key: u64, passes: impl Fn(&Candidate) -> bool) -> Option<usize> {
    (0..candidates.len())
        .filter(|&index| passes(&candidates[index]))
        .max_by_key(|&index| hash::pair(key, candidates[index].key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;

    #[test]
    fn equals_share_evenly() {
        let candidates = fleet(&[(1, 0), (0, 0), (0, 0), (0, 0)]);
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 4];
        for _ in 0..3_000 {
            let index = least(&Ask::default(), &candidates, &mut rng, |it| f64::from(it.requests)).unwrap();
            seen[index] += 1;
        }
        assert_eq!(seen[0], 0);
        assert!(seen[1..].iter().all(|&count| (900..1_100).contains(&count)), "{seen:?}");
    }

    #[test]
    fn a_tie_breaker_decides_between_equals_in_any_order() {
        let candidates = fleet(&[(1, 0), (0, 0), (0, 0), (0, 0)]);
        let mut turned = candidates.clone();
        turned.reverse();
        let mut seen = [0u32; 4];
        for tie in 0..3_000 {
            let ask = Ask { tie: Some(tie), ..Ask::default() };
            let pick = |rows: &[Candidate], seed| {
                let index = least(&ask, rows, &mut Rng::new(seed), |it| f64::from(it.requests)).unwrap();
                rows[index].worker
            };
            let worker = pick(&candidates, 1);
            assert_eq!((pick(&candidates, 2), pick(&turned, 3)), (worker, worker), "of {tie}");
            seen[worker.index()] += 1;
        }
        assert_eq!(seen[0], 0, "who costs more is no equal");
        assert!(seen[1..].iter().all(|&count| (900..1_100).contains(&count)), "{seen:?}");
    }

    #[test]
    fn a_leaving_worker_moves_only_its_own_keys() {
        let all = fleet(&[(0, 0); 8]);
        let rest: Vec<Candidate> = all.iter().copied().filter(|it| it.worker.0 != 3).collect();
        let mut moved = 0;
        for key in 0..2_000 {
            let before = all[home(&all, key, |_| true).unwrap()].worker;
            let after = rest[home(&rest, key, |_| true).unwrap()].worker;
            if before != after {
                assert_eq!(before.0, 3, "key {key} had no reason to move");
                moved += 1;
            }
        }
        assert!((200..300).contains(&moved), "an eighth of 2000 keys, got {moved}");
    }
}
