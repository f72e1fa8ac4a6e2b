//! What Prometheus sees of decisions: the error of our forecasts, and what shadow strategies would have done.

use std::sync::atomic::AtomicU64;

use maitre_dispatch::Brain;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Float;

type ByStrategy = [(&'static str, String); 1];
type Seconds = Family<ByStrategy, Counter<f64, AtomicU64>>;

pub(crate) struct Decisions {
    /// Set at each scrape.
    kept: Gauge,
    /// Absent where nothing is known.
    error: Family<[(&'static str, String); 0], Float>,
    decisions: Family<ByStrategy, Counter>,
    differed: Family<ByStrategy, Counter>,
    price: Seconds,
    our_price: Seconds,
    first: Seconds,
    our_first: Seconds,
}

impl Decisions {
    pub(super) fn new(registry: &mut Registry) -> Decisions {
        let kept = Gauge::default();
        registry.register("decisions_kept", "Decisions that can be looked up", kept.clone());
        let error = Family::default();
        registry.register(
            "forecast_error_ratio",
            "Median error of the last TTFT forecasts, relative to the actual TTFT",
            error.clone(),
        );
        let mut count = |name, help| {
            let family = Family::<ByStrategy, Counter>::default();
            registry.register(name, help, family.clone());
            family
        };
        let decisions = count("shadow_decisions", "Decisions that the shadow strategy made, too");
        let differed = count("shadow_differed", "Decisions in which it picked another worker");
        let mut seconds = |name, help| {
            let family = Seconds::default();
            registry.register(name, help, family.clone());
            family
        };
        let price = seconds("shadow_price_seconds", "Forecast cost of its picks");
        let our_price =
            seconds("shadow_own_price_seconds", "Forecast cost of our picks in the same decisions");
        let first = seconds("shadow_first_token_seconds", "Forecast TTFT of its picks");
        let our_first = seconds("shadow_own_first_token_seconds", "Forecast TTFT of our picks");
        Decisions { kept, error, decisions, differed, price, our_price, first, our_first }
    }

    pub(super) fn set(&self, brain: &Brain) {
        let decisions = brain.decisions();
        let kept = decisions.newest().min(decisions.kept() as u64);
        self.kept.set(i64::try_from(kept).unwrap_or(i64::MAX));
        self.error.clear();
        if let Some(error) = brain.prediction().median_error {
            self.error.get_or_create(&[]).set(error);
        }
        [&self.decisions, &self.differed].into_iter().for_each(Family::clear);
        [&self.price, &self.our_price, &self.first, &self.our_first].into_iter().for_each(Family::clear);
        for shadow in brain.shadows() {
            let name = [("strategy", shadow.name.to_string())];
            self.decisions.get_or_create(&name).inc_by(shadow.decisions);
            self.differed.get_or_create(&name).inc_by(shadow.differed);
            self.price.get_or_create(&name).inc_by(shadow.price_seconds);
            self.our_price.get_or_create(&name).inc_by(shadow.our_price_seconds);
            self.first.get_or_create(&name).inc_by(shadow.ttft_seconds);
            self.our_first.get_or_create(&name).inc_by(shadow.our_ttft_seconds);
        }
    }
}
