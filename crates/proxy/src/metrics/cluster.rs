//! What Prometheus sees of other routers: set at each scrape, and absent where there is only one router.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Float, MetricLabel};

/// Most routers that have metrics of their own.
const ROUTERS_MAX: usize = 64;

type NoLabels = [MetricLabel; 0];
type ByRouter = [(&'static str, String); 1];

/// The values of one scrape. Pairs are the value of a label and a count.
pub(crate) struct ClusterSample {
    pub(crate) live: usize,
    pub(crate) lost: usize,
    /// By name, of live routers.
    pub(crate) lags: Vec<(String, Duration)>,
    pub(crate) frames: [(&'static str, u64); 2],
    pub(crate) bytes: [(&'static str, u64); 2],
    pub(crate) dropped: [(&'static str, u64); 3],
    pub(crate) rejected: Vec<(&'static str, u64)>,
    pub(crate) repairs: u64,
    pub(crate) connected: bool,
    pub(crate) limit_share: f64,
    pub(crate) segments: usize,
    pub(crate) rows: usize,
}

pub(super) struct ClusterMetrics {
    routers: Family<[MetricLabel; 1], Gauge>,
    lag: Family<ByRouter, Float>,
    frames: Family<[MetricLabel; 1], Counter>,
    bytes: Family<[MetricLabel; 1], Counter>,
    dropped: Family<[MetricLabel; 1], Counter>,
    repairs: Family<NoLabels, Counter>,
    rejected: Family<[MetricLabel; 1], Counter>,
    connected: Family<NoLabels, Gauge>,
    limit_share: Family<NoLabels, Float>,
    segments: Family<NoLabels, Gauge>,
    rows: Family<NoLabels, Gauge>,
}

impl ClusterMetrics {
    pub(super) fn new(registry: &mut Registry) -> ClusterMetrics {
        let routers = Family::default();
        registry.register("cluster_routers", "Known routers, this one included", routers.clone());
        let lag = Family::default();
        registry.register("cluster_lag_seconds", "Delay of a router's updates", Family::clone(&lag));
        let mut count = |name, help| {
            let family = Family::<[MetricLabel; 1], Counter>::default();
            registry.register(name, help, family.clone());
            family
        };
        let frames = count("cluster_frames", "Frames to and from other routers");
        let bytes = count("cluster_bytes", "Bytes of those frames on the wire");
        let dropped = count("cluster_dropped", "Updates that were dropped because a queue was full");
        let rejected =
            count("cluster_frames_refused", "Frames and connections of other routers that were rejected");
        let repairs = Family::default();
        registry.register(
            "cluster_repairs",
            "Times that rows had to be requested again",
            Family::clone(&repairs),
        );
        let mut gauge = |name, help| {
            let family = Family::<NoLabels, Gauge>::default();
            registry.register(name, help, family.clone());
            family
        };
        let connected = gauge("cluster_connected", "1 while other routers can be reached");
        let segments = gauge("cluster_segments", "Segments of prefix chains shared between routers");
        let rows = gauge("cluster_rows", "Rows of all routers in the view");
        let limit_share = Family::default();
        registry.register(
            "cluster_limit_share",
            "The part of each rate limit that this router may use",
            Family::clone(&limit_share),
        );
        ClusterMetrics {
            routers,
            lag,
            frames,
            bytes,
            dropped,
            repairs,
            rejected,
            connected,
            limit_share,
            segments,
            rows,
        }
    }

    pub(super) fn set(&self, sample: &ClusterSample) {
        self.routers.get_or_create(&[("state", "live")]).set(whole(sample.live));
        self.routers.get_or_create(&[("state", "lost")]).set(whole(sample.lost));
        self.lag.clear();
        for (router, lag) in sample.lags.iter().take(ROUTERS_MAX) {
            self.lag.get_or_create(&[("router", label(router))]).set(lag.as_secs_f64());
        }
        set(&self.frames, "direction", &sample.frames);
        set(&self.bytes, "direction", &sample.bytes);
        set(&self.dropped, "what", &sample.dropped);
        set(&self.rejected, "cause", &sample.rejected);
        self.repairs.clear();
        self.repairs.get_or_create(&[]).inc_by(sample.repairs);
        self.connected.get_or_create(&[]).set(i64::from(sample.connected));
        self.limit_share.get_or_create(&[]).set(sample.limit_share);
        self.segments.get_or_create(&[]).set(whole(sample.segments));
        self.rows.get_or_create(&[]).set(whole(sample.rows));
    }
}

/// Sets counters that are counted elsewhere.
fn set(family: &Family<[MetricLabel; 1], Counter>, label: &'static str, counts: &[(&'static str, u64)]) {
    family.clear();
    for &(value, count) in counts {
        family.get_or_create(&[(label, value)]).inc_by(count);
    }
}

/// A name as the value of a label. Another router chose it, and the encoder does not escape it.
fn label(name: &str) -> String {
    name.chars().map(|it| if it.is_control() || "\"\\".contains(it) { '_' } else { it }).collect()
}

fn whole(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::label;

    #[test]
    fn a_name_cannot_inject_metrics() {
        assert_eq!(label("a:8080"), "a:8080");
        assert_eq!(label("a\"} 1\nmaitre_up{b=\"\\"), "a_} 1_maitre_up{b=__");
    }
}
