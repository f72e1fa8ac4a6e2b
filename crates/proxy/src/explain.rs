//! A decision as one line of text, for a response header.

use std::fmt::Write as _;

use maitre_base::WorkerId;
use maitre_dispatch::observer::decision::Decision;

use crate::brain::SharedBrain;

/// Workers in a header: more would exceed what every proxy passes on.
const WORKERS_MAX: usize = 8;

/// The candidates, the cheapest first, and the cost of each.
pub(crate) fn header_text(brain: &SharedBrain, decision: &Decision) -> String {
    let mut text = format!("decision={} strategy={}", decision.number, decision.strategy);
    // Writing to a string cannot fail.
    if let Some(predicted) = decision.predicted {
        let _ = write!(text, " ttft_ms={:.1}", millis(predicted));
    }
    let _ = write!(text, " candidates={}", decision.candidates_total);
    for it in decision.candidates.iter().take(WORKERS_MAX) {
        let mark = if it.candidate.worker == decision.worker { "*" } else { "" };
        let (price, candidate) = (millis(it.price), &it.candidate);
        let _ = write!(
            text,
            "; {mark}{} price_ms={price:.1} cached={} prefill={} requests={}",
            worker_url(brain, candidate.worker, candidate.key).unwrap_or_default(),
            candidate.held.0,
            candidate.promised.prefill.tokens.0,
            candidate.requests,
        );
    }
    text
}

/// None once the worker has left: its number may be another's, which has another key.
pub(crate) fn worker_url(brain: &SharedBrain, worker: WorkerId, key: u64) -> Option<String> {
    brain.link(worker).filter(|it| it.key == key).map(|it| it.url.clone())
}

/// Seconds as milliseconds, rounded to the microsecond: more digits would pretend precision.
pub(crate) fn millis(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}
