//! How many workers of a fleet prefill for others, how many decode, and how many do both: the mixes worth playing.
//!
//! A first round spreads over all numbers of prefill workers; from the best mix the search then moves to its neighbours
//! until none is better. The order of workers does not matter, because they are equal.
//!
//! Nothing is played here: `wants` returns the runs needed next.

use std::fmt;

use maitre_base::Role;

/// Mixes of the first round at most. Chosen: with more workers the neighbours find what lies between.
const FIRST_ROUND: u32 = 9;
/// Mixes that are played for one fleet at most.
pub(super) const MIXES_MAX: usize = 48;

/// Workers by role; the others do both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RoleMix {
    pub(super) prefill: u32,
    pub(super) decode: u32,
}

impl RoleMix {
    /// No worker has a role.
    pub(super) const NONE: RoleMix = RoleMix { prefill: 0, decode: 0 };

    pub(super) fn is_none(self) -> bool {
        self == RoleMix::NONE
    }

    /// One role for each of so many workers.
    pub(super) fn roles(self, workers: u32) -> Vec<Role> {
        let mut roles = vec![Role::Prefill; self.prefill as usize];
        roles.resize((self.prefill + self.decode) as usize, Role::Decode);
        roles.resize(workers as usize, Role::Both);
        roles
    }

    pub(super) fn both(self, workers: u32) -> u32 {
        workers.saturating_sub(self.prefill + self.decode)
    }

    /// About the same parts of a fleet of another size. A single worker has no role.
    pub(super) fn scaled(self, from: u32, to: u32) -> RoleMix {
        if self.is_none() || from == to || to < 2 {
            return if from == to { self } else { RoleMix::NONE };
        }
        let part = |count: u32| (f64::from(count) * f64::from(to) / f64::from(from)).round() as u32;
        let prefill = part(self.prefill).clamp(1, to - 1);
        RoleMix { prefill, decode: part(self.decode).clamp(1, to - prefill) }
    }

    /// As `--workers` of a replay has it.
    pub(super) fn show(self, workers: u32) -> impl fmt::Display {
        let both = self.both(workers);
        let parts = [(self.prefill, "@prefill"), (self.decode, "@decode"), (both, "")];
        let shown = parts.into_iter().filter(|it| it.0 > 0).map(|(count, role)| format!("{count}{role}"));
        shown.collect::<Vec<_>>().join(",")
    }
}

/// The mixes that must be played next, given the best of those that were; empty at the end.
pub(super) fn wants(workers: u32, best: Option<RoleMix>, is_known: impl Fn(RoleMix) -> bool) -> Vec<RoleMix> {
    let wanted = match best {
        None => first_round(workers),
        Some(best) => neighbours(workers, best),
    };
    wanted.into_iter().filter(|&it| !is_known(it)).collect()
}

/// Evenly many prefill workers, from one to all but one; the rest decodes.
fn first_round(workers: u32) -> Vec<RoleMix> {
    let Some(most @ 1..) = workers.checked_sub(1) else { return Vec::new() };
    let rounds = most.min(FIRST_ROUND);
    let mut counts: Vec<u32> =
        (0..rounds).map(|it| 1 + it * most.saturating_sub(1) / (rounds - 1).max(1)).collect();
    counts.dedup();
    counts.into_iter().map(|prefill| RoleMix { prefill, decode: workers - prefill }).collect()
}

/// One prefill worker more or fewer, and some workers between `decode` and `both`.
fn neighbours(workers: u32, mix: RoleMix) -> Vec<RoleMix> {
    let RoleMix { prefill, decode } = mix;
    let some = (workers / 8).max(1);
    let near = [
        (prefill + 1, decode.saturating_sub(1)),
        (prefill.saturating_sub(1), decode + 1),
        (prefill, decode.saturating_sub(some)),
        (prefill, decode + some),
    ];
    let is_possible = |it: &RoleMix| it.prefill > 0 && it.decode > 0 && it.prefill + it.decode <= workers;
    near.map(|(prefill, decode)| RoleMix { prefill, decode }).into_iter().filter(is_possible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches with `cost` as the truth; returns the best mix and how many were played.
    fn search(workers: u32, cost: impl Fn(RoleMix) -> f64) -> (Option<RoleMix>, usize) {
        let mut known: Vec<RoleMix> = Vec::new();
        loop {
            let best = known.iter().copied().min_by(|one, other| cost(*one).total_cmp(&cost(*other)));
            let wanted = wants(workers, best, |it| known.contains(&it));
            if wanted.is_empty() {
                return (best, known.len());
            }
            for it in &wanted {
                assert_eq!(it.roles(workers).len(), workers as usize, "{it:?}");
            }
            known.extend(wanted);
        }
    }

    #[test]
    fn the_best_mix_is_found_in_few_runs() {
        for (workers, best) in
            [(2, (1, 1)), (3, (2, 1)), (8, (2, 4)), (8, (7, 1)), (64, (9, 55)), (64, (20, 28))]
        {
            let far = |it: RoleMix| {
                let both = f64::from(it.both(workers)) - f64::from(workers - best.0 - best.1);
                (f64::from(it.prefill) - f64::from(best.0)).powi(2) + both.powi(2)
            };
            let (found, runs) = search(workers, far);
            assert_eq!(found, Some(RoleMix { prefill: best.0, decode: best.1 }), "{workers}");
            assert!(runs <= MIXES_MAX, "{workers}: {runs} runs");
        }
    }

    #[test]
    fn one_worker_has_no_mix() {
        assert_eq!(search(1, |_| 0.0), (None, 0));
        assert_eq!(RoleMix { prefill: 1, decode: 1 }.scaled(2, 1), RoleMix::NONE);
    }

    #[test]
    fn a_mix_keeps_its_parts_in_another_fleet() {
        let mix = RoleMix { prefill: 2, decode: 4 };
        assert_eq!(mix.scaled(8, 16), RoleMix { prefill: 4, decode: 8 });
        assert_eq!(mix.scaled(8, 4), RoleMix { prefill: 1, decode: 2 });
        assert_eq!(mix.scaled(8, 2), RoleMix { prefill: 1, decode: 1 });
        assert_eq!(RoleMix { prefill: 7, decode: 1 }.scaled(8, 3), RoleMix { prefill: 2, decode: 1 });
        assert_eq!(RoleMix::NONE.scaled(8, 3), RoleMix::NONE);
        assert_eq!(mix.show(8).to_string(), "2@prefill,4@decode,2");
        assert_eq!(RoleMix::NONE.show(8).to_string(), "8");
    }
}
