//! DualMap's rule (ICLR '26): two homes for each head; the one with more of the prompt cached wins unless it
//! is late.
//!
//! Two independent hash functions name two workers for the head of the prompt. The one with the longer cached
//! prefix comes first; among equals the one whose requests hold less. If its first token would come later
//! than `slo_seconds`, the home with the earlier first token wins. So prompts that begin alike stay together
//! on two workers, and different ones spread as with two random choices.
//!
//! *Hotspots*: the authors move waiting requests to the other home, or to a neighbour if both are late. A router
//! cannot move a request that it has sent, so it decides at arrival. If both homes are late, the next worker in the
//! head's second order takes the request, provided that it is not late. Otherwise the earlier of the two homes takes
//! it.
//!
//! Left out: their prefixes grow until they are rare enough, while our head has a fixed length
//! (`prefix_hash.head_bytes`); and their order of waiting requests, because a strategy has no queue.

use maitre_base::{Rng, hash};

use crate::{Ask, Candidate, Pick, Why, choose};

/// Makes the second hash of a head independent of the first. Any number would do.
const SECOND: u64 = 0x6475_616C_6D61_7032;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DualmapKnobs {
    /// The time to first token that counts as late, in seconds.
    pub slo_seconds: f64,
}

impl Default for DualmapKnobs {
    fn default() -> DualmapKnobs {
        // Chosen: the authors take the service's own objective.
        DualmapKnobs { slo_seconds: 5.0 }
    }
}

/// `None` without a head.
pub fn pick(ask: &Ask, candidates: &[Candidate], knobs: &DualmapKnobs, rng: &mut Rng) -> Option<Pick> {
    let head = ask.head?;
    let again = hash::pair(SECOND, head);
    let one = choose::home(candidates, head, |_| true)?;
    let is_home = |it: &Candidate, home: usize| it.worker == candidates[home].worker;
    let other = choose::home(candidates, again, |it| !is_home(it, one)).unwrap_or(one);
    let soon = |index: usize| first_token(ask, &candidates[index]);
    let is_late = |index: usize| soon(index) > knobs.slo_seconds;

    let uncached = |it: &Candidate| it.uncached(ask).0 as f64;
    let holder = better(ask, candidates, (one, other), uncached, rng);
    if !is_late(holder) {
        return Some(Pick { index: holder, why: Why::Home });
    }
    let sooner = better(ask, candidates, (one, other), |it| first_token(ask, it), rng);
    if is_late(sooner) {
        let neighbour = choose::home(candidates, again, |it| !is_home(it, one) && !is_home(it, other));
        if let Some(index) = neighbour.filter(|&it| !is_late(it)) {
            return Some(Pick { index, why: Why::Spilled });
        }
    }
    let why = if sooner == holder { Why::Home } else { Why::Spilled };
    Some(Pick { index: sooner, why })
}

/// Seconds to the first token if the prompt were placed there.
fn first_token(ask: &Ask, candidate: &Candidate) -> f64 {
    (candidate.wait_seconds + candidate.pace.floor + candidate.uncached_seconds(ask)) / candidate.share
}

/// The cheaper of the two; if equal, the one whose requests hold less, then the tie-breaker.
fn better(
    ask: &Ask,
    candidates: &[Candidate],
    (one, other): (usize, usize),
    cost: impl Fn(&Candidate) -> f64,
    rng: &mut Rng,
) -> usize {
    let of = |index: usize| (cost(&candidates[index]), burden(&candidates[index]));
    let (first, second) = (of(one), of(other));
    match first.0.total_cmp(&second.0).then(first.1.total_cmp(&second.1)) {
        std::cmp::Ordering::Less => one,
        std::cmp::Ordering::Greater => other,
        // The first home follows from a hash, so all routers choose the same.
        std::cmp::Ordering::Equal if ask.tie.is_some() => one,
        std::cmp::Ordering::Equal => [one, other][rng.below(2)],
    }
}

/// How much of the cache its requests hold, or what is promised there if its size is unknown.
fn burden(candidate: &Candidate) -> f64 {
    candidate.room.map_or(candidate.work(), |it| it.pinned.0 as f64 / candidate.share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;
    use maitre_base::Tokens;

    const HEAD: u64 = 7;

    fn place(head: u64, candidates: &[Candidate]) -> Pick {
        let ask = Ask { prefill: Tokens(10_000), head: Some(head), ..Ask::default() };
        pick(&ask, candidates, &DualmapKnobs::default(), &mut Rng::new(1)).unwrap()
    }

    /// The two homes of `HEAD` and its neighbour, in a fleet of eight.
    fn homes() -> [usize; 3] {
        let mut candidates = fleet(&[(0, 0); 8]);
        let mut found = [0; 3];
        for home in 0..3 {
            found[home] = place(HEAD, &candidates).index;
            // Both homes are far too late.
            candidates[found[home]].wait_seconds = 1_000.0 - home as f64;
        }
        found
    }

    /// The two homes and the neighbour as rows of `(wait in seconds, cached tokens of a prompt of 10,000)`.
    /// An uncached prompt takes a second; all other workers are idle. Returns which of the three is picked.
    #[track_caller]
    fn check(rows: [(f64, u64); 3], expected: (usize, Why)) {
        let homes = homes();
        let mut candidates = fleet(&[(0, 0); 8]);
        for (home, row) in homes.into_iter().zip(rows) {
            (candidates[home].wait_seconds, candidates[home].held) = (row.0, Tokens(row.1));
        }
        let pick = place(HEAD, &candidates);
        let home = homes.iter().position(|&it| it == pick.index);
        assert_eq!((home, pick.why), (Some(expected.0), expected.1), "{rows:?}");
    }

    #[test]
    fn the_home_that_holds_more_is_asked_until_it_is_late() {
        check([(4.8, 9_000), (0.0, 0), (0.0, 10_000)], (0, Why::Home));
        check([(5.0, 9_000), (0.0, 0), (0.0, 10_000)], (1, Why::Spilled));
        check([(0.0, 0), (4.8, 9_000), (0.0, 0)], (1, Why::Home));
    }

    #[test]
    fn late_homes_leave_it_to_the_neighbour_unless_that_is_late_too() {
        check([(9.0, 9_000), (7.0, 0), (3.0, 0)], (2, Why::Spilled));
        check([(9.0, 9_000), (7.0, 0), (4.5, 0)], (1, Why::Spilled));
        check([(7.0, 9_000), (7.0, 0), (4.5, 0)], (0, Why::Home));
    }

    #[test]
    fn heads_stay_on_two_workers_and_spread_over_all() {
        let idle = fleet(&[(0, 0); 8]);
        let mut seen = [0u32; 8];
        for head in 0..800 {
            let first = place(head, &idle);
            let mut loaded = idle.clone();
            loaded[first.index].promised.prefill.tokens = Tokens(100);
            let second = place(head, &loaded);
            assert_ne!(first.index, second.index, "of two that hold nothing the less burdened");
            loaded[second.index].promised.prefill.tokens = Tokens(101);
            assert_eq!(place(head, &loaded).index, first.index, "there are but two");
            seen[first.index] += 1;
            seen[second.index] += 1;
        }
        assert!(seen.iter().all(|&count| (150..250).contains(&count)), "{seen:?}");
    }

    #[test]
    fn the_second_home_does_not_follow_from_the_first() {
        let candidates = fleet(&[(0, 0); 8]);
        let mut pairs = [[0u32; 8]; 8];
        for head in 0..5_600 {
            let one = choose::home(&candidates, head, |_| true).unwrap();
            let mut loaded = candidates.clone();
            loaded[one].promised.prefill.tokens = Tokens(100);
            pairs[one][place(head, &loaded).index] += 1;
        }
        for (one, others) in pairs.iter().enumerate() {
            assert_eq!(others[one], 0);
            let spread = others.iter().enumerate().filter(|it| it.0 != one);
            assert!(spread.map(|it| *it.1).all(|count| (60..140).contains(&count)), "{others:?}");
        }
    }

    #[test]
    fn without_a_head_there_is_no_pick_here() {
        assert_eq!(
            pick(&Ask::default(), &fleet(&[(0, 0); 2]), &DualmapKnobs::default(), &mut Rng::new(1)),
            None
        );
    }
}
