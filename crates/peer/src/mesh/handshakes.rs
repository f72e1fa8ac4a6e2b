//! Incoming connections that have not completed the handshake: few, and none keeps another out.
//!
//! Anyone who reaches the port can open connections and stay silent. At the limit a new connection is therefore not
//! refused; it replaces the one that matters least. A router proves that it has the key with its first packet, so a
//! connection that has not done so goes first; among equals, the oldest of the address that has the most. A stranger
//! with many connections thus displaces its own.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::AbortHandle;

/// Maximum incoming handshakes at once. Chosen: half of the routers that a cluster may have, all starting at once.
pub(super) const HANDSHAKES_MAX: usize = 32;

/// Set once the other side has proved that it has the key.
pub(super) type KeyProof = Arc<AtomicBool>;

struct PendingHandshake {
    from: IpAddr,
    proof: KeyProof,
    task: AbortHandle,
}

#[derive(Default)]
pub(super) struct Handshakes {
    begun: u64,
    /// By number, so the oldest first.
    pending: BTreeMap<u64, PendingHandshake>,
}

impl Handshakes {
    /// The number of a new handshake, and the flag that it sets.
    pub(super) fn begin(&mut self) -> (u64, KeyProof) {
        self.begun += 1;
        (self.begun, KeyProof::default())
    }

    pub(super) fn add(&mut self, number: u64, from: IpAddr, proof: KeyProof, task: AbortHandle) {
        self.pending.insert(number, PendingHandshake { from, proof, task });
    }

    pub(super) fn end(&mut self, number: u64) {
        self.pending.remove(&number);
    }

    /// Ends a handshake if there are too many for one more. Returns where it came from.
    pub(super) fn make_room(&mut self) -> Option<IpAddr> {
        if self.pending.len() < HANDSHAKES_MAX {
            return None;
        }
        let displaced = self.pending.remove(&self.least_important()?)?;
        displaced.task.abort();
        Some(displaced.from)
    }

    fn least_important(&self) -> Option<u64> {
        let mut by_address: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for it in self.pending.values() {
            *by_address.entry(it.from).or_default() += 1;
        }
        let rank = |(number, it): (&u64, &PendingHandshake)| {
            let crowd = by_address.get(&it.from).copied().unwrap_or_default();
            (it.proof.load(Ordering::Relaxed), usize::MAX - crowd, *number)
        };
        self.pending.iter().map(rank).min().map(|(_, _, number)| number)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Adds a handshake of each address and proof; returns the numbers of those displaced by one more.
    async fn displaced(rows: &[(u8, bool)], times: usize) -> Vec<u64> {
        let mut handshakes = Handshakes::default();
        let mut tasks = tokio::task::JoinSet::new();
        for &(address, is_proved) in rows {
            let (number, proof) = handshakes.begin();
            proof.store(is_proved, Ordering::Relaxed);
            let task = tasks.spawn(std::future::pending::<()>());
            handshakes.add(number, Ipv4Addr::new(10, 0, 0, address).into(), proof, task);
        }
        let all: Vec<u64> = handshakes.pending.keys().copied().collect();
        for _ in 0..times {
            assert!(handshakes.make_room().is_some());
            // In its place, one of an address that has no other and will prove its key.
            let (number, proof) = handshakes.begin();
            proof.store(true, Ordering::Relaxed);
            let task = tasks.spawn(std::future::pending::<()>());
            handshakes.add(number, Ipv4Addr::new(10, 1, 0, number as u8).into(), proof, task);
        }
        all.into_iter().filter(|it| !handshakes.pending.contains_key(it)).collect()
    }

    #[tokio::test]
    async fn below_the_limit_nothing_is_displaced() {
        assert_eq!(Handshakes::default().make_room(), None);
    }

    #[tokio::test]
    async fn the_crowd_of_one_address_displaces_itself() {
        let mut rows = vec![(1, false), (2, false)];
        rows.extend([(9, false); HANDSHAKES_MAX - 2]);
        assert_eq!(displaced(&rows, 3).await, [3, 4, 5]);
    }

    #[tokio::test]
    async fn a_router_with_the_key_stays() {
        let mut rows = vec![(1, true); HANDSHAKES_MAX - 1];
        rows.push((2, false));
        assert_eq!(displaced(&rows, 1).await, [HANDSHAKES_MAX as u64]);
    }
}
