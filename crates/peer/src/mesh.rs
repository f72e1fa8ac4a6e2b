//! A full mesh: every router is connected to every other, without a server in between.
//!
//! Each router listens and dials the others. Two routers share one connection, authenticated and encrypted with the
//! cluster key (`handshake`). Frames go to every peer through a backlog per peer (`backlog`, `connection`).
//! Membership (`swim`) detects which routers are up and finds routers that are not configured; its messages use the
//! same connections. `targets` decides which addresses to dial, and `hub` combines the parts.
//!
//! Left out: the meaning of frames, and repeating lost ones. Snapshots are not stored: a joining router asks its
//! peers. A router without peers is not an error, because one router is always the first.

mod backlog;
mod clock;
mod connection;
mod handshake;
mod handshakes;
mod hub;
mod log_limiter;
mod resolve;
mod swim;
mod targets;
mod wire;

use std::io;
use std::net::SocketAddr;

use maitre_base::Rng;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use self::handshake::LocalIdentity;
use self::hub::{Hub, TransportBackend};
use self::resolve::PeerAddress;
use self::targets::Targets;
use self::wire::TEXT_MAX;
use crate::seal::ClusterKey;
use crate::{Transport, TransportStatus};

/// Maximum frames from the router to this transport.
const OUTGOING_MAX: usize = 1024;
/// Maximum received frames waiting for the router: at most 64 MiB.
const INCOMING_MAX: usize = 256;
const NAME_MAX: usize = 128;
const PEERS_MAX: usize = 64;

#[derive(Clone, Debug)]
pub struct MeshConfig {
    pub listen: SocketAddr,
    /// The address that peers dial; by default the listen address.
    pub advertise: Option<String>,
    /// `host:port` of some peers, or a DNS name with several addresses.
    pub peers: Vec<String>,
    /// This router's name.
    pub name: String,
    pub key: ClusterKey,
}

/// Binds the listener. Returns the router's end of the transport, the bound address, and the future that runs the
/// transport. When the transport is dropped, the future announces the departure and ends within half a second; when
/// the future is dropped, it ends at once.
pub async fn join(
    config: MeshConfig,
) -> io::Result<(Transport, SocketAddr, impl Future<Output = ()> + Send + 'static)> {
    let peers = check(&config).map_err(|reason| io::Error::new(io::ErrorKind::InvalidInput, reason))?;
    let bind = |error: io::Error| {
        io::Error::new(error.kind(), format!("listen for other routers at {}: {error}", config.listen))
    };
    let listener = TcpListener::bind(config.listen).await.map_err(bind)?;
    let listen = listener.local_addr()?;
    let identity = LocalIdentity {
        psk: config.key.derive("mesh"),
        name: config.name,
        instance: random()?,
        advertise: config.advertise,
        port: listen.port(),
    };
    let targets = Targets::new(&identity.name, peers, Rng::new(random()?), clock::now());
    let (outgoing, to_send) = mpsc::channel(OUTGOING_MAX);
    let (received, incoming) = mpsc::channel(INCOMING_MAX);
    let (told, status) = watch::channel(TransportStatus::default());
    let backend = TransportBackend { outgoing: to_send, incoming: received, status: told };
    let hub = Hub::new(identity, listener, targets, backend)?;
    Ok((Transport { outgoing, incoming, status }, listen, hub.run()))
}

fn check(config: &MeshConfig) -> Result<Vec<PeerAddress>, String> {
    let name = &config.name;
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(format!(
            "cluster.name: {name:?} is not a valid name; write 1 to {NAME_MAX} bytes of plain text"
        ));
    }
    if let Some(advertise) = &config.advertise {
        advertise.parse::<PeerAddress>().map_err(|reason| format!("cluster.advertise: {reason}"))?;
        if advertise.len() > TEXT_MAX {
            return Err(format!("cluster.advertise: longer than {TEXT_MAX} bytes"));
        }
    }
    if config.peers.len() > PEERS_MAX {
        return Err(format!(
            "cluster.peers: {} entries, at most {PEERS_MAX} are allowed; a few are enough",
            config.peers.len()
        ));
    }
    let address = |it: &String| it.parse().map_err(|reason| format!("cluster.peers: {reason}"));
    config.peers.iter().map(address).collect()
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the system provides no randomness"))?;
    Ok(u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests;
