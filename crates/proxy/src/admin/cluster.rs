//! The routers of the cluster as views.

use maitre_base::Instant;
use maitre_cluster::PeerState;
use maitre_dispatch::Brain;
use maitre_views::cluster::{ClusterView, RouterView};

use super::decisions::millis;
use crate::cluster::{Router, Seen};
use crate::house::RouterState;

/// None where there is one router only.
pub(super) fn view(router: &RouterState) -> Option<ClusterView> {
    let seen = router.cluster.as_deref()?;
    Some(cluster_view(seen, router.now(), router.look(Brain::limit_share)))
}

fn cluster_view(seen: &Seen, now: Instant, limit_share: f64) -> ClusterView {
    let (shown, status) = (seen.shown(), seen.status());
    ClusterView {
        via: seen.via.into(),
        name: seen.name.clone().into(),
        connected: status.connected,
        error: status.trouble.or(shown.trouble).map(Into::into),
        synced: shown.warm,
        limit_share: Some(limit_share),
        routers: shown.routers.iter().map(|it| router_view(it, now)).collect(),
        bytes_out: status.bytes_out,
        bytes_in: status.bytes_in,
        dropped: status.dropped + shown.undelivered + shown.numbers.dropped + shown.untold,
        repairs: shown.numbers.repairs,
    }
}

fn router_view(it: &Router, now: Instant) -> RouterView {
    let last_seen_ms = if it.is_self { 0 } else { now.since(it.heard).as_millis() as u64 };
    RouterView {
        name: it.name.clone().into(),
        is_self: it.is_self,
        state: match it.standing {
            PeerState::Live => "live".into(),
            PeerState::Lost => "lost".into(),
        },
        lag_ms: it.lag.map(|it| millis(it.as_secs_f64())),
        served: it.served,
        in_flight: it.open.into(),
        share: it.share,
        last_seen_ms: Some(last_seen_ms),
        incarnation: it.incarnation.0,
    }
}
