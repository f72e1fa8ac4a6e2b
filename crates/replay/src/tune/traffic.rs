//! The traffic that strategies are tuned on, and the traffic their gains are checked on.
//!
//! Knobs that were fitted to a trace are good at that trace. So a gain counts only if it also appears on
//! traffic that the search has not seen: other seeds of a workload, or the other half of a recording.

use maitre_base::Instant;
use maitre_sim::trace::Trace;

use crate::study::Study;

/// The whole trace is always the first.
pub(super) const WHOLE: usize = 0;

/// How many other seeds of a workload are used for checking.
const OTHER_SEEDS: u64 = 2;

#[derive(Debug)]
pub(super) struct Traffic {
    /// In a word or two.
    pub(super) what: String,
    pub(super) trace: Trace,
    pub(super) seed: u64,
}

/// All traffic, and the purpose of each.
#[derive(Debug)]
pub(super) struct Split {
    pub(super) traffics: Vec<Traffic>,
    /// Dials are searched on this.
    pub(super) shown: usize,
    /// Gains are checked on these.
    pub(super) hidden: Vec<usize>,
    /// Traffic of the same kind that is not part of the trace: fleets are checked on it.
    pub(super) fresh: Vec<usize>,
}

/// Traffic without anything to check it on.
fn whole(study: &Study, speed: f64) -> Split {
    let trace = study.hastened(speed);
    let traffic = Traffic { what: "whole".to_owned(), trace, seed: study.seed };
    Split { traffics: vec![traffic], shown: WHOLE, hidden: Vec::new(), fresh: Vec::new() }
}

/// All traffic; halves of a recording only if there are knobs or roles to search (`is_fitted`).
pub(super) fn split(study: &Study, speed: f64, is_fitted: bool) -> anyhow::Result<Split> {
    let mut split = whole(study, speed);
    let requests = study.trace.requests.len();
    if crate::trace::is_workload(&study.source) {
        for seed in (1..=OTHER_SEEDS).map(|it| study.seed.wrapping_add(it)) {
            let mut trace = crate::trace::load(&study.source, seed)?;
            // Cut like the first, by `--limit`.
            trace.requests.truncate(requests);
            trace.hasten(speed);
            split.traffics.push(Traffic { what: format!("seed {seed}"), trace, seed });
        }
        split.hidden = (1..split.traffics.len()).collect();
        split.fresh = split.hidden.clone();
    } else if is_fitted && requests >= 2 {
        let trace = &split.traffics[WHOLE].trace;
        let (first, second) = trace.requests.split_at(requests / 2);
        let half = |what: &str, requests: &[maitre_sim::trace::Request]| Traffic {
            what: what.to_owned(),
            trace: from_zero(requests),
            seed: study.seed,
        };
        let halves = [half("1st half", first), half("2nd half", second)];
        split.traffics.extend(halves);
        (split.shown, split.hidden) = (1, vec![2]);
    }
    Ok(split)
}

/// The same requests, shifted so that the first arrives at once.
fn from_zero(requests: &[maitre_sim::trace::Request]) -> Trace {
    let begin = requests.first().map_or(Instant::ZERO, |it| it.at);
    let mut requests = requests.to_vec();
    requests.iter_mut().for_each(|it| it.at = Instant::ZERO + it.at.since(begin));
    Trace { requests }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_begin_at_zero_and_lose_no_request() {
        let whole = crate::trace::load("hot:qps=5,seconds=4", 1).unwrap();
        let half = from_zero(&whole.requests[3..]);
        assert_eq!(half.requests.len(), whole.requests.len() - 3);
        assert_eq!(half.requests[0].at, Instant::ZERO);
        assert_eq!(half.span() + whole.requests[3].at.since(Instant::ZERO), whole.span());
    }
}
