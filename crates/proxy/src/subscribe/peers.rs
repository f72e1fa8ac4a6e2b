//! Shared by the tests of sockets: engines that publish, and the opening bytes of hand-made peers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use maitre_sim::events;
use maitre_sim::http::{Host, HostConfig};
use maitre_sim::profile::INSTANT;
use maitre_zmtp::{Next, Role, ZmtpLimits, ZmtpPeer, greeting};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::socket::ZmqAddress;

/// Any port.
pub(super) const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

pub(super) fn place(addr: SocketAddr) -> ZmqAddress<'static> {
    ZmqAddress { host: "127.0.0.1", port: addr.port() }
}

/// An engine that publishes and replays.
pub(super) async fn publisher(change: impl FnOnce(&mut events::PublisherConfig)) -> Host {
    let mut events =
        events::PublisherConfig { replay: Some(LOOPBACK), ..events::PublisherConfig::new(LOOPBACK) };
    change(&mut events);
    Host::bind(LOOPBACK, HostConfig { events: Some(events), ..HostConfig::new(INSTANT) }).await.unwrap()
}

/// Sends a unique prompt to the engine. That takes one step, and so publishes one batch.
pub(super) async fn prompt(host: &Host, number: u64) {
    let text = format!("{number} ").repeat(100);
    let body = format!(r#"{{"prompt":"{text}","max_tokens":1}}"#);
    let length = body.len();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(host.addr()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

/// Everything a peer of this role sends before its first message.
pub(super) fn opening(role: Role) -> Vec<u8> {
    let mut peer = ZmtpPeer::new(role, ZmtpLimits { message_bytes_max: 0, frames_max: 0 });
    let mut sent = greeting::OPENING.to_vec();
    let mut at = 0;
    // It sends its next frame once it has received one: feed it its own.
    while let Ok(Next::Handled { bytes, reply }) = peer.next(&sent[at..]) {
        at += bytes;
        sent.extend(reply);
    }
    sent
}
