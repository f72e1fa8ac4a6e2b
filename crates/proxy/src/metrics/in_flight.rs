//! What Prometheus sees of requests before they end: arrivals, tokens of answers, and waits for a first token.

use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Float;
use crate::in_flight::LaneSums;

/// Read from the lanes at each scrape.
pub(super) struct InFlight {
    arrived: Counter,
    answer_tokens: Counter,
    awaiting: Gauge,
    longest_wait: Float,
}

impl InFlight {
    pub(super) fn new(registry: &mut Registry) -> InFlight {
        let arrived = Counter::default();
        registry.register("requests_arrived", "Requests that arrived", arrived.clone());
        let answer_tokens = Counter::default();
        let help = "Tokens of answers, as they are passed on";
        registry.register("answer_tokens", help, answer_tokens.clone());
        let awaiting = Gauge::default();
        let help = "Requests in flight that have no first token yet";
        registry.register("requests_awaiting_first_token", help, awaiting.clone());
        let longest_wait = Float::default();
        let help = "Longest time that a request in flight has waited for its first token";
        registry.register("first_token_longest_wait_seconds", help, longest_wait.clone());
        InFlight { arrived, answer_tokens, awaiting, longest_wait }
    }

    pub(super) fn set(&self, sums: &LaneSums, waits: &[Duration]) {
        self.arrived.inner().store(sums.arrived, Ordering::Relaxed);
        self.answer_tokens.inner().store(sums.answer_tokens, Ordering::Relaxed);
        self.awaiting.set(i64::try_from(waits.len()).unwrap_or(i64::MAX));
        self.longest_wait.set(waits.iter().max().map_or(0.0, Duration::as_secs_f64));
    }
}
