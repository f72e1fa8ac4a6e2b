//! What Prometheus sees of the fleet that each model should have.

use maitre_dispatch::Brain;
use maitre_dispatch::scaling::ModelScaling;
use maitre_fleet::scaling::ScalingReason;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Float;

type ByModel = [(&'static str, String); 1];

/// Set at each scrape.
pub(crate) struct Scaling {
    desired: Family<ByModel, Gauge>,
    reasons: Family<[(&'static str, String); 2], Gauge>,
    load: Family<ByModel, Float>,
    load_ahead: Family<ByModel, Float>,
    backlog: Family<ByModel, Float>,
}

impl Scaling {
    pub(super) fn new(registry: &mut Registry) -> Scaling {
        let (desired, reasons) = (Family::default(), Family::default());
        registry.register("desired_workers", "Workers that the model should have", desired.clone());
        registry.register("desired_workers_reason", "1 for the reason of that number", reasons.clone());
        let mut float = |name, help| {
            let family = Family::<ByModel, Float>::default();
            registry.register(name, help, family.clone());
            family
        };
        Scaling {
            load: float("scaling_load", "Seconds of work that arrive in a second"),
            load_ahead: float("scaling_load_ahead", "The same, once a worker asked for now is ready"),
            backlog: float("scaling_backlog_seconds", "Seconds of work that wait for a worker"),
            desired,
            reasons,
        }
    }

    pub(super) fn set(&self, brain: &Brain) {
        self.desired.clear();
        self.reasons.clear();
        [&self.load, &self.load_ahead, &self.backlog].into_iter().for_each(Family::clear);
        for ModelScaling { model, desired, .. } in brain.scaling() {
            let name =
                model.and_then(|it| brain.fleet().name(it)).map_or_else(String::new, |it| it.to_string());
            for reason in ScalingReason::ALL {
                let labels = [("model", name.clone()), ("reason", reason.name().to_owned())];
                self.reasons.get_or_create(&labels).set(i64::from(reason == desired.reason));
            }
            let label = [("model", name)];
            self.desired.get_or_create(&label).set(i64::from(desired.workers));
            self.load.get_or_create(&label).set(desired.load);
            self.load_ahead.get_or_create(&label).set(desired.load_ahead);
            self.backlog.get_or_create(&label).set(desired.backlog_s);
        }
    }
}
