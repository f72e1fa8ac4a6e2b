//! What Prometheus sees of other routers. All of it is read at each scrape from what the driver shows; where there is one
//! router only there is none of it.

use std::time::Duration;

use maitre_cluster::PeerState;
use maitre_dispatch::Brain;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Float, Label};
use crate::cluster::{Cause, Seen, Shown};

/// Most routers that have lines of their own.
const ROUTERS_MAX: usize = 64;

type Plain = [Label; 0];
type ByRouter = [(&'static str, String); 1];

pub(crate) struct Cluster {
    routers: Family<[Label; 1], Gauge>,
    lag: Family<ByRouter, Float>,
    frames: Family<[Label; 1], Counter>,
    bytes: Family<[Label; 1], Counter>,
    dropped: Family<[Label; 1], Counter>,
    repairs: Family<Plain, Counter>,
    refused: Family<[Label; 1], Counter>,
    connected: Family<Plain, Gauge>,
    limit_share: Family<Plain, Float>,
    pages: Family<Plain, Gauge>,
    rows: Family<Plain, Gauge>,
}

impl Cluster {
    pub(super) fn new(registry: &mut Registry) -> Cluster {
        let routers = Family::default();
        registry.register("cluster_routers", "Routers that are known, this one included", routers.clone());
        let lag = Family::default();
        registry.register(
            "cluster_lag_seconds",
            "How long what a router tells is under way",
            Family::clone(&lag),
        );
        let mut count = |name, help| {
            let family = Family::<[Label; 1], Counter>::default();
            registry.register(name, help, family.clone());
            family
        };
        let frames = count("cluster_frames", "Frames to and from other routers");
        let bytes = count("cluster_bytes", "Bytes of those on the wire");
        let dropped = count("cluster_dropped", "What was not told for want of room");
        let refused =
            count("cluster_frames_refused", "Frames and connections of others that were refused, by why");
        let repairs = Family::default();
        registry.register(
            "cluster_repairs",
            "Times that rows had to be asked for again",
            Family::clone(&repairs),
        );
        let mut gauge = |name, help| {
            let family = Family::<Plain, Gauge>::default();
            registry.register(name, help, family.clone());
            family
        };
        let connected = gauge("cluster_connected", "1 while others can be told anything");
        let pages = gauge("cluster_segments", "Segments of prefix chains shared between routers");
        let rows = gauge("cluster_rows", "Rows of all routers that are in the view");
        let limit_share = Family::default();
        registry.register(
            "cluster_limit_share",
            "The part of each limit that this router lets through by itself",
            Family::clone(&limit_share),
        );
        Cluster {
            routers,
            lag,
            frames,
            bytes,
            dropped,
            repairs,
            refused,
            connected,
            limit_share,
            pages,
            rows,
        }
    }

    pub(super) fn look(&self, seen: &Seen, brain: &Brain) {
        let (shown, status) = (seen.shown(), seen.status());
        for (standing, state) in [(PeerState::Live, "live"), (PeerState::Lost, "lost")] {
            self.routers.get_or_create(&[("state", state)]).set(whole(shown.count(standing)));
        }
        self.look_at_lags(&shown);
        let numbers = shown.numbers;
        set(&self.frames, "direction", [("out", status.frames_out), ("in", status.frames_in)]);
        set(&self.bytes, "direction", [("out", status.bytes_out), ("in", status.bytes_in)]);
        let dropped = [
            ("frames", status.dropped + shown.undelivered),
            ("chains", numbers.dropped),
            ("outbox", shown.untold),
        ];
        set(&self.dropped, "what", dropped);
        let causes = Cause::ALL.map(|it| (it.name(), shown.refused[it as usize]));
        set(&self.refused, "cause", causes.into_iter().chain([("transport", status.refused)]));
        self.repairs.clear();
        self.repairs.get_or_create(&[]).inc_by(numbers.repairs);
        self.connected.get_or_create(&[]).set(i64::from(status.connected));
        self.limit_share.get_or_create(&[]).set(brain.limit_share());
        self.pages.get_or_create(&[]).set(whole(numbers.segments));
        self.rows.get_or_create(&[]).set(whole(numbers.rows));
    }

    fn look_at_lags(&self, shown: &Shown) {
        self.lag.clear();
        let live = shown.routers.iter().filter(|it| it.standing == PeerState::Live);
        for (router, lag) in live.filter_map(|it| Some((it, it.lag?))).take(ROUTERS_MAX) {
            let lag = Duration::as_secs_f64(&lag);
            self.lag.get_or_create(&[("router", label(&router.name))]).set(lag);
        }
    }
}

/// Counters that others have counted.
fn set(
    family: &Family<[Label; 1], Counter>,
    label: &'static str,
    counts: impl IntoIterator<Item = (&'static str, u64)>,
) {
    family.clear();
    for (value, count) in counts {
        family.get_or_create(&[(label, value)]).inc_by(count);
    }
}

/// A name as the value of a label. Another router chose it, and nothing escapes it for us.
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
    fn a_name_cannot_write_lines_of_its_own() {
        assert_eq!(label("a:8080"), "a:8080");
        assert_eq!(label("a\"} 1\nmaitre_up{b=\"\\"), "a_} 1_maitre_up{b=__");
    }
}
