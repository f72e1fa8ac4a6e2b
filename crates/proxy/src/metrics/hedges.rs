//! What Prometheus sees of second attempts.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::MetricLabel;

/// What came of a request whose first token was overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hedged {
    /// The second attempt answered first.
    Won,
    /// The first attempt answered after all.
    Lost,
    /// The second attempt failed.
    Failed,
    /// There was none: no worker had room, or the budget was spent.
    Refused,
}

impl Hedged {
    /// The metric label, and the value of a response header.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Hedged::Won => "won",
            Hedged::Lost => "lost",
            Hedged::Failed => "failed",
            Hedged::Refused => "refused",
        }
    }
}

pub(crate) struct Hedges {
    requests: Family<[MetricLabel; 1], Counter>,
}

impl Hedges {
    pub(super) fn new(registry: &mut Registry) -> Hedges {
        let hedges = Hedges { requests: Family::default() };
        let help = "Requests whose first token was overdue, by what came of a second attempt";
        registry.register("hedges", help, hedges.requests.clone());
        hedges
    }

    pub(crate) fn count(&self, what: Hedged) {
        self.requests.get_or_create(&[("outcome", what.name())]).inc();
    }
}
