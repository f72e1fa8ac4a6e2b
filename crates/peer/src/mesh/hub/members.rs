//! Membership in the hub: delivers its messages and acts on its changes.
//!
//! Connections, not membership, decide which peers receive frames. Membership supplies addresses to dial and finds
//! connections that are dead but still open.

use std::net::{IpAddr, SocketAddr};

use tokio::time::Instant;

use super::{Hub, STALE};
use crate::mesh::clock;
use crate::mesh::connection::CloseReason;
use crate::mesh::swim::{Identity, MemberChange, Swim};

impl Hub {
    /// Announces us as a member, at the address that others see.
    pub(super) fn join(&mut self, name: &str, you: IpAddr, now: Instant) {
        let address = match &self.identity.advertise {
            Some(advertise) => advertise.clone(),
            None if !self.listen.ip().is_unspecified() => self.listen.to_string(),
            None => SocketAddr::new(you.to_canonical(), self.identity.port).to_string(),
        };
        let (identity, is_loopback) =
            (&self.identity, |it: &str| it.starts_with("127.") || it.starts_with("[::1]"));
        let fresh = || Identity::new(&identity.name, &address, clock::stamp(), identity.instance);
        let swim = self.swim.get_or_insert_with(|| Swim::new(fresh(), identity.instance));
        // A peer on the same machine sees a loopback address, which is useless to others.
        if is_loopback(&swim.identity().address) && !is_loopback(&address) {
            swim.move_to(&address, now);
        }
        swim.announce(name, now);
        self.react(now);
    }

    /// Sends pending membership messages and acts on changes.
    pub(super) fn react(&mut self, now: Instant) {
        self.send_gossip();
        let Some(swim) = &mut self.swim else { return };
        // Replies to our announcements are handled when they arrive.
        let changes: Vec<MemberChange> = std::iter::from_fn(|| swim.take_change()).collect();
        for change in changes {
            match change {
                MemberChange::Up(it) => match it.address.parse() {
                    Ok(address) => {
                        tracing::debug!(router = %it.name, address = %it.address, "up");
                        let is_connected = self.peers.contains_key(&*it.name);
                        self.targets.up(&it.name, address, is_connected, now);
                    }
                    Err(error) => tracing::debug!(router = %it.name, error, "up, at no address"),
                },
                MemberChange::Renewed => self.announce(now),
                MemberChange::Down(it) => {
                    tracing::debug!(router = %it.name, "down");
                    self.targets.down(&it.name, now);
                    // A router that still sends is leaving, and will hang up, or was declared down by mistake, and
                    // will refute it.
                    let peer = self.peers.get(&*it.name);
                    if peer.is_some_and(|p| p.instance == it.instance && p.last_received.silence() > STALE) {
                        self.lose(&it.name, &"it is down", now);
                    }
                }
            }
        }
    }

    /// Announces us to all connected peers.
    fn announce(&mut self, now: Instant) {
        let Some(swim) = &mut self.swim else { return };
        self.peers.keys().for_each(|name| swim.announce(name, now));
        self.send_gossip();
    }

    fn send_gossip(&mut self) {
        let Some(swim) = &mut self.swim else { return };
        while let Some((name, message)) = swim.take_message() {
            if let Some(peer) = self.peers.get(&*name) {
                peer.backlog.push_gossip(message);
            }
        }
    }

    pub(super) fn receive_gossip(&mut self, id: u64, message: &[u8]) {
        let now = clock::now();
        let Some(swim) = &mut self.swim else { return };
        // Counts even if the connection is gone by now: the last message arrives just before the end.
        let received = swim.receive(message, now);
        let from = self.peers.iter().find(|(_, it)| it.id == id).map(|(name, _)| name.clone());
        if let (Err(error), Some(name)) = (received, from) {
            self.lose(&name, &CloseReason::Malformed(error), now);
        }
        self.react(now);
    }
}
