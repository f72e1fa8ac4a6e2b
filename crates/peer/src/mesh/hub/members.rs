//! The hub's part in membership: carries its messages, and does what follows from what it says.
//!
//! Membership does not decide who is sent frames; connections do. It says whom to dial, and which connections only look
//! well.

use std::net::{IpAddr, SocketAddr};

use tokio::time::Instant;

use super::{Hub, STALE};
use crate::mesh::clock;
use crate::mesh::connection::Why;
use crate::mesh::swim::{Change, Identity, Swim};

impl Hub {
    /// Makes ourselves known as a member, at the address others see.
    pub(super) fn join(&mut self, name: &str, you: IpAddr, now: Instant) {
        let address = match &self.card.advertise {
            Some(advertise) => advertise.clone(),
            None if !self.listen.ip().is_unspecified() => self.listen.to_string(),
            None => SocketAddr::new(you.to_canonical(), self.card.port).to_string(),
        };
        let (card, is_loopback) = (&self.card, |it: &str| it.starts_with("127.") || it.starts_with("[::1]"));
        let fresh = || Identity::new(&card.name, &address, clock::stamp(), card.instance);
        let swim = self.swim.get_or_insert_with(|| Swim::new(fresh(), card.instance));
        // A neighbour on our own machine sees an address that is of no use to others.
        if is_loopback(&swim.identity().address) && !is_loopback(&address) {
            swim.move_to(&address, now);
        }
        swim.announce(name, now);
        self.react(now);
    }

    /// Does what membership wants done, and believes what it says.
    pub(super) fn react(&mut self, now: Instant) {
        self.send_gossip();
        let Some(swim) = &mut self.swim else { return };
        // What comes of announcing ourselves is seen to when the answers come.
        let changes: Vec<Change> = std::iter::from_fn(|| swim.take_change()).collect();
        for change in changes {
            match change {
                Change::Up(it) => match it.address.parse() {
                    Ok(place) => {
                        tracing::debug!(router = %it.name, address = %it.address, "up");
                        let is_connected = self.peers.contains_key(&*it.name);
                        self.targets.up(&it.name, place, is_connected, now);
                    }
                    Err(error) => tracing::debug!(router = %it.name, error, "up, at no address"),
                },
                Change::Renewed => self.announce(now),
                Change::Down(it) => {
                    tracing::debug!(router = %it.name, "down");
                    self.targets.down(&it.name, now);
                    // One who still speaks is leaving and will hang up, or is wronged and will object.
                    let peer = self.peers.get(&*it.name);
                    if peer.is_some_and(|p| p.instance == it.instance && p.heard.silence() > STALE) {
                        self.lose(&it.name, &"it is down", now);
                    }
                }
            }
        }
    }

    /// To all we are connected with.
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

    pub(super) fn hear(&mut self, id: u64, message: &[u8]) {
        let now = clock::now();
        let Some(swim) = &mut self.swim else { return };
        // It counts even if the connection is gone by now: a goodbye comes just before its end.
        let heard = swim.hear(message, now);
        let from = self.peers.iter().find(|(_, it)| it.id == id).map(|(name, _)| name.clone());
        if let (Err(nonsense), Some(name)) = (heard, from) {
            self.lose(&name, &Why::Nonsense(nonsense), now);
        }
        self.react(now);
    }
}
