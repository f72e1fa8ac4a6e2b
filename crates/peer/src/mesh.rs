//! Routers connected with each other, all with all, and no service between them.
//!
//! Each has a listener, and dials the others. Between two there is one connection, authenticated by the shared key and
//! secret (`handshake`). Frames go to every peer, from a backlog of its own each (`backlog`, `connection`). Who is up,
//! who is down, and routers that nobody configured are known by membership (`swim`), whose messages go over the same
//! connections. `targets` is whom to dial, `hub` holds it all together.
//!
//! What is not here: what frames mean, and asking again for those that got lost. A snapshot is not kept: who joins
//! asks those who are there. With nobody else configured or coming a router is alone, which is no trouble: somebody is
//! always the first.

mod backlog;
mod clock;
mod connection;
mod handshake;
mod hub;
mod notices;
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

use self::handshake::Card;
use self::hub::{Far, Hub};
use self::resolve::Place;
use self::targets::Targets;
use self::wire::TEXT_MAX;
use crate::seal::Key;
use crate::{Status, Transport};

/// Frames that wait for us.
const OUTGOING_MAX: usize = 1024;
/// Frames that wait for whoever takes them: at most 64 MiB, as large as they may be.
const INCOMING_MAX: usize = 256;
const NAME_MAX: usize = 128;
const PEERS_MAX: usize = 64;

#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: SocketAddr,
    /// What others reach us at; the address we listen on, if that says it.
    pub advertise: Option<String>,
    /// `host:port` of some others, or a name that stands for several.
    pub peers: Vec<String>,
    /// This router's name.
    pub name: String,
    pub key: Key,
}

/// Binds, and returns the near end, where it listens, and what must be polled for it to work. When the near end is
/// dropped, it says goodbye and ends within half a second; dropped itself, it ends at once.
pub async fn join(
    settings: Settings,
) -> io::Result<(Transport, SocketAddr, impl Future<Output = ()> + Send + 'static)> {
    let peers = check(&settings).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    let bind = |error: io::Error| {
        io::Error::new(error.kind(), format!("listen for other routers at {}: {error}", settings.listen))
    };
    let listener = TcpListener::bind(settings.listen).await.map_err(bind)?;
    let listen = listener.local_addr()?;
    let card = Card {
        psk: settings.key.derive("mesh"),
        name: settings.name,
        instance: random()?,
        advertise: settings.advertise,
        port: listen.port(),
    };
    let targets = Targets::new(&card.name, peers, Rng::new(random()?), clock::now());
    let (outgoing, to_send) = mpsc::channel(OUTGOING_MAX);
    let (received, incoming) = mpsc::channel(INCOMING_MAX);
    let (told, status) = watch::channel(Status::default());
    let far = Far { outgoing: to_send, incoming: received, status: told };
    let hub = Hub::new(card, listener, targets, far)?;
    Ok((Transport { outgoing, incoming, status }, listen, hub.run()))
}

fn check(settings: &Settings) -> Result<Vec<Place>, String> {
    let name = &settings.name;
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(format!(
            "cluster.name: {name:?} is not a name; write 1 to {NAME_MAX} bytes of plain text"
        ));
    }
    if let Some(advertise) = &settings.advertise {
        advertise.parse::<Place>().map_err(|why| format!("cluster.advertise: {why}"))?;
        if advertise.len() > TEXT_MAX {
            return Err(format!("cluster.advertise: longer than {TEXT_MAX} bytes"));
        }
    }
    if settings.peers.len() > PEERS_MAX {
        return Err(format!(
            "cluster.peers: {} of them, and {PEERS_MAX} may be; some suffice",
            settings.peers.len()
        ));
    }
    let place = |it: &String| it.parse().map_err(|why| format!("cluster.peers: {why}"));
    settings.peers.iter().map(place).collect()
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| io::Error::other("the system has no randomness to give"))?;
    Ok(u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests;
