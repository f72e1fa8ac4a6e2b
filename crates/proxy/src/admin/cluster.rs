//! The other routers, as an operator sees them.

use maitre_base::Instant;
use maitre_cluster::PeerState;
use maitre_dispatch::Brain;
use serde_json::{Value, json};

use super::decisions::millis;
use crate::cluster::{Router, Seen};
use crate::house::RouterState;

/// Null where there is one router only.
pub(super) fn view(house: &RouterState) -> Value {
    let Some(seen) = house.cluster.as_deref() else { return Value::Null };
    show(seen, house.now(), house.look(Brain::limit_share))
}

fn show(seen: &Seen, now: Instant, limit_share: f64) -> Value {
    let (shown, status) = (seen.shown(), seen.status());
    let dropped = status.dropped + shown.undelivered + shown.numbers.dropped + shown.untold;
    json!({
        "via": seen.via,
        "name": seen.name,
        "connected": status.connected,
        "trouble": status.trouble.as_ref().or(shown.trouble.as_ref()),
        "warm": shown.warm,
        "limit_share": limit_share,
        "routers": shown.routers.iter().map(|it| router(it, now)).collect::<Vec<_>>(),
        "bytes_out": status.bytes_out,
        "bytes_in": status.bytes_in,
        "dropped": dropped,
        "repairs": shown.numbers.repairs,
    })
}

fn router(it: &Router, now: Instant) -> Value {
    let heard = if it.is_self { 0 } else { now.since(it.heard).as_millis() as u64 };
    json!({
        "name": it.name,
        "self": it.is_self,
        "state": match it.standing {
            PeerState::Live => "live",
            PeerState::Lost => "lost",
        },
        "lag_ms": it.lag.map(|it| millis(it.as_secs_f64())),
        "served": it.served,
        "open": it.open,
        "share": it.share,
        "heard_ms": heard,
        "incarnation": it.incarnation.0,
    })
}
