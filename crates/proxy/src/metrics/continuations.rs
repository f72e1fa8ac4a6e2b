//! What Prometheus sees of streams that go on at another worker.

use maitre_dialect::continuation::Obstacle;
use maitre_dispatch::Refusal;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::MetricLabel;

/// What came of a stream whose worker failed in the middle, or was drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Continued {
    /// Another worker went on.
    Resumed,
    /// Only its end was missing, which the router added.
    Completed,
    /// Another worker went on, because this one is drained.
    HandedOver,
    /// No worker could go on, or the limits forbid it.
    Refused,
    /// The stream could not be continued.
    NotCovered,
}

pub(crate) struct Continuations {
    breaks: Family<[MetricLabel; 1], Counter>,
    refusals: Family<[MetricLabel; 1], Counter>,
    streams: Family<[MetricLabel; 1], Counter>,
}

impl Continuations {
    pub(super) fn new(registry: &mut Registry) -> Continuations {
        let counts = Continuations {
            breaks: Family::default(),
            refusals: Family::default(),
            streams: Family::default(),
        };
        let help = "Streams whose worker failed in the middle or handed them over, by what came of them";
        registry.register("continuations", help, counts.breaks.clone());
        let help =
            "Streams that broke off and that no worker was asked to continue, by the limit that ended them";
        registry.register("continuations_refused", help, counts.refusals.clone());
        let help = "Streams of classes that are continued, by whether they can be";
        registry.register("stream_coverage", help, counts.streams.clone());
        counts
    }

    pub(crate) fn broke(&self, what: Continued) {
        let name = match what {
            Continued::Resumed => "resumed",
            Continued::Completed => "completed",
            Continued::HandedOver => "handed-over",
            Continued::Refused => "refused",
            Continued::NotCovered => "not-covered",
        };
        self.breaks.get_or_create(&[("outcome", name)]).inc();
    }

    /// No worker goes on with a stream. None: its request was not kept.
    pub(crate) fn refused(&self, refusal: Option<Refusal>) {
        let name = match refusal {
            Some(Refusal::Failed { limit, .. }) => limit.name(),
            Some(Refusal::QueueFull { .. }) => "queue-full",
            Some(Refusal::NoWorker) => "workers",
            _ => "other",
        };
        self.refusals.get_or_create(&[("limit", name)]).inc();
    }

    /// A stream has ended, or began without cover.
    pub(crate) fn streamed(&self, obstacle: Option<Obstacle>) {
        self.streams.get_or_create(&[("coverage", obstacle.map_or("covered", Obstacle::name))]).inc();
    }
}
