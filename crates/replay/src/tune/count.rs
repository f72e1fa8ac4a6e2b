//! The smallest number of workers that is enough, in few runs.
//!
//! More workers are nearly always better, so the search gallops until it is past the boundary, then narrows it
//! down, always with two runs at a time: how many there are must not depend on the machine, or its answer
//! would. Nearly always is not always: a prompt falls to another worker, a cache is lost. So both sides of the
//! boundary are looked at as well, and if they contradict it, all around is.
//!
//! Nothing is played here: `step` says what must be known next.

use std::collections::BTreeMap;

/// How far around the boundary all is played once a fleet has been seen to do better with fewer.
const AROUND: u32 = 4;

/// From the fewest workers to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) min: u32,
    pub(super) max: u32,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The smallest that is enough; none if none is.
    pub(super) workers: Option<u32>,
    /// From here on all that were played are enough; more than `workers` if some larger ones are not.
    pub(super) steady: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// These must be known first. Never empty.
    Play(Vec<u32>),
    Done(Found),
}

/// What is next, with what is known: whether so many are enough. Begins at `start`.
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

/// What to know of the neighbours of the smallest that is enough.
fn around(known: &BTreeMap<u32, bool>, enough: u32) -> Vec<u32> {
    let contradicted = known.range(enough..).any(|it| !it.1);
    let far = if contradicted { AROUND } else { 1 };
    // One fewer is known to be too few; the one below it shows whether that was an accident.
    (enough.saturating_sub(far.max(2))..=enough + far).collect()
}

fn steady(known: &BTreeMap<u32, bool>) -> Option<u32> {
    known.iter().rev().take_while(|it| *it.1).last().map(|it| *it.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches where `is_enough` says what is; with what came out, how often it was asked.
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
    fn a_boundary_that_is_none_is_seen() {
        let span = Span { min: 1, max: 64 };
        // Eleven are enough by luck: the look at both sides of 13 meets them.
        let (found, _) = search(span, 1, |it| it == 11 || it >= 13);
        assert_eq!(found, Found { workers: Some(11), steady: Some(13) });
        // Fifteen are not, by bad luck.
        let (found, _) = search(span, 1, |it| it >= 14 && it != 15);
        assert_eq!(found, Found { workers: Some(14), steady: Some(16) });
    }
}
