//! Finds the smallest number of workers that is enough, in few runs.
//!
//! More workers are nearly always better. So the search doubles until it is past the boundary and then
//! narrows it down, always two runs at a time: the number of runs at once must not depend on the machine, or
//! the answer would. There are exceptions: a prompt goes to another worker, a cached prefix is lost. So both
//! neighbours of the boundary are played as well. If they contradict it, so are all fleets around it.
//!
//! Nothing is played here: `step` returns what must be known next.

use std::collections::BTreeMap;

/// How far around the boundary every fleet is played, once a smaller fleet has done better than a larger one.
const AROUND: u32 = 4;

/// The fewest and the most workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) min: u32,
    pub(super) max: u32,
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The smallest fleet that is enough; none if none is.
    pub(super) workers: Option<u32>,
    /// From this size on, every fleet that was played is enough. Larger than `workers` if some larger fleet
    /// is not.
    pub(super) steady: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Fleets that must be played first. Never empty.
    Play(Vec<u32>),
    Done(Found),
}

/// The next step. `known` says which fleet sizes are enough; the search begins at `start`.
pub(super) fn step(known: &BTreeMap<u32, bool>, span: Span, start: u32) -> Step {
    let enough = known.iter().find(|it| *it.1).map(|it| *it.0);
    let short = known.iter().rev().find(|it| !it.1 && enough.is_none_or(|enough| *it.0 < enough));
    let wanted = match (enough, short.map(|it| *it.0)) {
        (None, None) if start.saturating_mul(2) <= span.max => vec![start, start * 2],
        (None, None) => vec![start.saturating_sub(1), start],
        (None, Some(short)) if short >= span.max => {
            return Step::Done(Found { workers: None, steady: None });
        }
        (None, Some(short)) => [2, 4].map(|it| short.saturating_mul(it).min(span.max)).to_vec(),
        (Some(enough), None) if enough > span.min => vec![(enough / 2).max(span.min), enough - 1],
        (Some(enough), Some(short)) if enough - short > 1 => {
            let gap = enough - short;
            vec![short + (gap / 3).max(1), short + (gap * 2 / 3).max(1)]
        }
        (Some(enough), _) => around(known, enough),
    };
    let mut unknown: Vec<u32> = wanted
        .into_iter()
        .filter(|it| (span.min..=span.max).contains(it) && !known.contains_key(it))
        .collect();
    unknown.sort_unstable();
    unknown.dedup();
    match unknown.is_empty() {
        true => Step::Done(Found { workers: enough, steady: steady(known) }),
        false => Step::Play(unknown),
    }
}

/// The unplayed neighbours of the smallest fleet that is enough.
fn around(known: &BTreeMap<u32, bool>, enough: u32) -> Vec<u32> {
    let contradicted = known.range(enough..).any(|it| !it.1);
    let far = if contradicted { AROUND } else { 1 };
    // One fewer is known to be too few; two fewer show whether that was an accident.
    (enough.saturating_sub(far.max(2))..=enough + far).collect()
}

fn steady(known: &BTreeMap<u32, bool>) -> Option<u32> {
    known.iter().rev().take_while(|it| *it.1).last().map(|it| *it.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches with `is_enough` as the truth; returns the result and how often it was asked.
    fn search(span: Span, start: u32, is_enough: impl Fn(u32) -> bool) -> (Found, usize) {
        let mut known = BTreeMap::new();
        loop {
            match step(&known, span, start) {
                Step::Done(found) => return (found, known.len()),
                Step::Play(counts) => {
                    assert!(!counts.is_empty() && counts.iter().all(|it| !known.contains_key(it)));
                    known.extend(counts.into_iter().map(|it| (it, is_enough(it))));
                }
            }
        }
    }

    #[test]
    fn every_boundary_is_found_from_everywhere_in_few_runs() {
        for (min, max) in [(1, 1), (1, 2), (1, 64), (5, 40), (1, 1_024)] {
            let span = Span { min, max };
            for start in [min, (min + max) / 2, max] {
                for least in min..=max + 1 {
                    let (found, runs) = search(span, start, |it| it >= least);
                    let expected = (least <= max).then_some(least);
                    assert_eq!((found.workers, found.steady), (expected, expected), "{span:?} {start}");
                    assert!(runs <= 26, "{span:?} from {start} to {least}: {runs} runs");
                }
            }
        }
    }

    #[test]
    fn an_irregular_boundary_is_noticed() {
        let span = Span { min: 1, max: 64 };
        // Eleven are enough by luck: playing both neighbours of 13 finds them.
        let (found, _) = search(span, 1, |it| it == 11 || it >= 13);
        assert_eq!(found, Found { workers: Some(11), steady: Some(13) });
        // Fifteen are not enough, by bad luck.
        let (found, _) = search(span, 1, |it| it >= 14 && it != 15);
        assert_eq!(found, Found { workers: Some(14), steady: Some(16) });
    }
}
