//! The routers that share one fleet.

use crate::schema::view;
use crate::text::Text;

view! {
    /// The routers that share this fleet, and the connection to them.
    ClusterView {
        ..
        /// `mesh` or `redis`.
        via: Text,
        /// The name of the router that answers.
        name: Text,
        /// Whether any other router can be reached: Redis answers, or a peer of the mesh does.
        connected: bool,
        /// What is wrong, if an operator has to act.
        error: Option<Text>,
        /// Whether this router has applied every peer's snapshot.
        synced: bool,
        /// The part of each tenant's limits that this router admits. Below 1 while a known router cannot be reached.
        limit_share: Option<f64>,
        /// All known routers, the one that answers first.
        routers: Vec<RouterView>,
        /// Bytes sent to other routers since the start.
        bytes_out: u64,
        /// Bytes received from other routers since the start.
        bytes_in: u64,
        /// Updates that were dropped because a queue was full.
        dropped: u64,
        /// How often missing updates were requested again.
        repairs: u64,
    }

    /// One router of the cluster.
    RouterView {
        ..
        name: Text,
        /// Whether it is the router that answers.
        is_self as "self": bool,
        /// `live`, or `lost` after three seconds of silence: its promises no longer count.
        state: Text,
        /// Time its updates take to arrive here.
        lag_ms: Option<f64>,
        /// Requests it has admitted since it started.
        served: u64,
        /// Requests it has in flight.
        in_flight: u64,
        /// Its part of all requests of the last ten seconds.
        share: Option<f64>,
        /// Time since its last message.
        last_seen_ms: Option<u64>,
        /// When it started, in milliseconds since 1970 by its own clock.
        incarnation: u64,
    }
}

impl RouterView {
    pub fn is_live(&self) -> bool {
        &*self.state == "live"
    }
}
