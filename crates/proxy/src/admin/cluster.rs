//! The routers of the cluster as views.

use maitre_base::Instant;
use maitre_cluster::PeerState;
use maitre_dispatch::Brain;
use maitre_views::cluster::{ClusterView, RouterView};

use crate::explain::millis;
use crate::peering::{ClusterHandle, RouterStatus};
use crate::state::RouterState;

/// None where there is one router only.
pub(super) fn view(router: &RouterState) -> Option<ClusterView> {
    let cluster = router.cluster.as_deref()?;
    Some(cluster_view(cluster, router.clock.now(), router.brain.read(Brain::limit_share)))
}

fn cluster_view(cluster: &ClusterHandle, now: Instant, limit_share: f64) -> ClusterView {
    let (status, transport) = (cluster.status(), cluster.transport());
    ClusterView {
        via: cluster.via.into(),
        name: cluster.name.clone().into(),
        connected: transport.connected,
        error: transport.trouble.or(status.problem).map(Into::into),
        synced: status.synced,
        limit_share: Some(limit_share),
        routers: status.routers.iter().map(|it| router_view(it, now)).collect(),
        bytes_out: transport.bytes_out,
        bytes_in: transport.bytes_in,
        dropped: transport.dropped + status.undelivered + status.stats.dropped + status.overflowed,
        repairs: status.stats.repairs,
    }
}

fn router_view(it: &RouterStatus, now: Instant) -> RouterView {
    let last_seen_ms = if it.is_self { 0 } else { now.since(it.heard).as_millis() as u64 };
    RouterView {
        name: it.name.clone().into(),
        is_self: it.is_self,
        state: match it.state {
            PeerState::Live => "live".into(),
            PeerState::Lost => "lost".into(),
        },
        lag_ms: it.lag.map(|it| millis(it.as_secs_f64())),
        served: it.served,
        in_flight: it.in_flight.into(),
        share: it.share,
        last_seen_ms: Some(last_seen_ms),
        incarnation: it.incarnation.0,
    }
}
