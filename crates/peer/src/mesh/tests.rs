//! A peer with the key that sends malformed data: its connection ends with one log line, and nothing else changes.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::handshake::SecureConnection;
use super::wire::{DialVerdict, MeshFrameKind, put_frame};
use super::*;
use crate::Incoming;

const LIMIT: Duration = Duration::from_secs(30);

struct Rogue {
    line: Transport,
    listen: SocketAddr,
    identity: LocalIdentity,
    _task: JoinSet<()>,
}

impl Rogue {
    /// A router, and the identity of another that will dial it.
    async fn new() -> Rogue {
        let key = ClusterKey::new(b"key");
        let psk = key.derive("mesh");
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = MeshConfig { listen, advertise: None, peers: Vec::new(), name: "a".to_owned(), key };
        let (line, listen, run) = join(config).await.unwrap();
        let mut task = JoinSet::new();
        task.spawn(run);
        let identity = LocalIdentity { psk, name: "rogue".to_owned(), instance: 1, advertise: None, port: 1 };
        Rogue { line, listen, identity, _task: task }
    }

    async fn dial(&self) -> SecureConnection {
        let connection = self.identity.dial(self.listen).await.unwrap();
        let (connection, verdict) = self.identity.introduce(connection).await.unwrap();
        assert_eq!(verdict, DialVerdict::Welcome);
        connection
    }

    async fn refused(&mut self, times: u64) {
        let is_so = |it: &TransportStatus| it.refused == times && it.peers.is_empty();
        let found = timeout(LIMIT, self.line.status.wait_for(is_so)).await.map(drop);
        found.unwrap_or_else(|_| panic!("{:?}", self.line.status.borrow()));
    }
}

/// Waits until the other end hangs up.
async fn is_hung_up(connection: &mut SecureConnection) {
    let mut received = Vec::new();
    let _ = timeout(LIMIT, connection.stream.read_to_end(&mut received)).await.expect("it hangs up");
}

#[tokio::test]
async fn malformed_data_from_a_peer_with_the_key_ends_only_its_connection() {
    let mut rogue = Rogue::new().await;
    let mut bad_gossip = Vec::new();
    put_frame(&mut bad_gossip, MeshFrameKind::Gossip, b"no message about members");
    let cases = [vec![9], vec![2, 0xFF, 0xFF, 0xFF, 0xFF], vec![0, 0, 0, 0, 1], bad_gossip];
    for (number, words) in cases.iter().enumerate() {
        let mut connection = rogue.dial().await;
        connection.send_record(words).await.unwrap();
        is_hung_up(&mut connection).await;
        rogue.refused(number as u64 + 1).await;
    }
    for raw in
        [&[0, 5, 1, 2, 3, 4, 5][..], &[0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]
    {
        let mut connection = rogue.dial().await;
        connection.stream.write_all(raw).await.unwrap();
        is_hung_up(&mut connection).await;
    }
    rogue.refused(6).await;
    let mut connection = rogue.dial().await;
    let mut frame = Vec::new();
    put_frame(&mut frame, MeshFrameKind::Data, b"sense");
    // In pieces, as a network may deliver it.
    for byte in frame {
        connection.send_record(&[byte]).await.unwrap();
    }
    let received = async {
        loop {
            if let Some(Incoming::Frame(frame)) = rogue.line.incoming.recv().await {
                return frame;
            }
        }
    };
    assert_eq!(timeout(LIMIT, received).await.unwrap(), "sense");
}

#[tokio::test]
async fn a_replayed_record_ends_the_connection() {
    let mut rogue = Rogue::new().await;
    let mut connection = rogue.dial().await;
    let (mut frame, mut sealed) = (Vec::new(), Vec::new());
    put_frame(&mut frame, MeshFrameKind::Data, b"once");
    connection.sealer.seal(&frame, &mut sealed).unwrap();
    connection.stream.write_all(&sealed).await.unwrap();
    connection.stream.write_all(&sealed).await.unwrap();
    is_hung_up(&mut connection).await;
    rogue.refused(1).await;
    let mut frames = 0;
    while let Ok(incoming) = rogue.line.incoming.try_recv() {
        frames += usize::from(matches!(incoming, Incoming::Frame(_)));
    }
    assert_eq!(frames, 1);
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let mut rogue = Rogue::new().await;
    let _shaken = rogue.dial().await;
    let connected = timeout(LIMIT, rogue.line.status.wait_for(|it| it.peers == ["rogue"])).await.map(drop);
    connected.expect("it is connected");
    rogue.refused(0).await;
}

#[tokio::test]
async fn the_number_of_connections_is_bounded() {
    let mut rogue = Rogue::new().await;
    let mut queued = Vec::new();
    for number in 0..64 {
        rogue.identity.name = format!("rogue {number}");
        queued.push(rogue.dial().await);
        let mut beat = Vec::new();
        put_frame(&mut beat, MeshFrameKind::Heartbeat, &[]);
        for connection in &mut queued {
            connection.send_record(&beat).await.unwrap();
        }
    }
    rogue.identity.name = "one too many".to_owned();
    let connection = rogue.identity.dial(rogue.listen).await.unwrap();
    assert_eq!(rogue.identity.introduce(connection).await.unwrap().1, DialVerdict::Full);
}

#[tokio::test]
async fn strangers_without_the_key_keep_no_router_out() {
    let rogue = Rogue::new().await;
    let mut strangers = Vec::new();
    for _ in 0..100 {
        strangers.push(tokio::net::TcpStream::connect(rogue.listen).await.unwrap());
    }
    // The strangers are accepted before it. `dial` panics unless it is welcome within two seconds.
    let _router = rogue.dial().await;
    // The earliest connections made room for the later ones.
    let mut received = Vec::new();
    let ended = timeout(LIMIT, strangers[0].read_to_end(&mut received)).await.expect("it hangs up");
    assert!(ended.is_err() || received.is_empty());
}

/// Frames by number, until this one arrives.
async fn read_until(connection: &mut SecureConnection, last: u32) -> Vec<u32> {
    let (mut plain, mut numbers) = (Vec::new(), Vec::new());
    while numbers.last() != Some(&last) {
        let mut length = [0; wire::LENGTH];
        connection.stream.read_exact(&mut length).await.unwrap();
        let mut record = vec![0; wire::record(length).unwrap()];
        connection.stream.read_exact(&mut record).await.unwrap();
        connection.opener.open(&record, &mut plain).unwrap();
        while let Some((kind, length)) = wire::frame(&plain).unwrap() {
            if kind == MeshFrameKind::Data {
                numbers.push(u32::from_be_bytes(*plain[wire::HEADER..].first_chunk().unwrap()));
            }
            plain.drain(..wire::HEADER + length);
        }
    }
    numbers
}

#[tokio::test]
async fn a_peer_that_does_not_read_loses_the_oldest_frames() {
    let mut rogue = Rogue::new().await;
    let mut connection = rogue.dial().await;
    let (mut beat, mut logged) = (Vec::new(), 0);
    put_frame(&mut beat, MeshFrameKind::Heartbeat, &[]);
    while rogue.line.status.borrow().dropped == 0 {
        let mut frame = vec![0; 64 * 1024];
        frame[..4].copy_from_slice(&u32::to_be_bytes(logged));
        rogue.line.outgoing.send(crate::Outgoing::Frame(frame.into())).await.unwrap();
        logged += 1;
        // It sends heartbeats, like a healthy router.
        connection.send_record(&beat).await.unwrap();
        assert!(logged < 10_000, "nothing is dropped");
    }
    let numbers = timeout(LIMIT, read_until(&mut connection, logged - 1)).await.expect("the newest comes");
    assert!(numbers.windows(2).all(|it| it[0] < it[1]), "{numbers:?}");
    let missed = logged as usize - numbers.len();
    assert!(missed > 0 && numbers[0] == 0, "{missed} missed of {logged}");
    let counted =
        timeout(LIMIT, rogue.line.status.wait_for(|it| it.dropped == missed as u64)).await.map(drop);
    counted.expect("all are counted");
}
