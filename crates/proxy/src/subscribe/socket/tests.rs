//! The sockets against the simulated publisher, and against peers that mean no good.

use super::*;

use crate::subscribe::peers::{LOOPBACK, opening, place, prompt, publisher};

use std::net::SocketAddr;

use maitre_sim::events::disturbance::Disturbance;
use maitre_sim::http::Host;
use tokio::net::TcpListener;

/// Longer than anything here takes, also on a machine that is busy with other tests.
const PATIENT: Duration = Duration::from_secs(30);
/// For peers that never answer.
const IMPATIENT: Duration = Duration::from_millis(50);

async fn subscriber(host: &Host, topic: &[u8]) -> Subscriber {
    let before = host.handle().stats().events.subscribers;
    let subscriber = Subscriber::connect(place(host.events().unwrap().stream), topic, PATIENT).await.unwrap();
    host.handle().until(|it| it.events.subscribers > before).await;
    subscriber
}

fn number(message: &ZmqMessage) -> u64 {
    u64::from_be_bytes(message[1].as_ref().try_into().unwrap())
}

#[tokio::test]
async fn a_subscriber_hears_topic_number_and_payload() {
    let host = publisher(|it| it.topic = "kv@a".to_owned()).await;
    prompt(&host, 0).await;
    let mut subscriber = subscriber(&host, b"kv@").await;
    for sequence in 1..4 {
        prompt(&host, sequence).await;
        let message = subscriber.next().await.unwrap();
        assert_eq!((message.len(), &message[0][..], number(&message)), (3, b"kv@a".as_slice(), sequence));
        assert_eq!(message[2][0], 0x93);
    }
}

#[tokio::test]
async fn nothing_is_lost_when_next_is_cancelled() {
    let host = publisher(|_| {}).await;
    let mut subscriber = subscriber(&host, b"").await;
    let mut heard = Vec::new();
    let mut cancelled = 0;
    let prompts = async {
        for number in 0..20 {
            prompt(&host, number).await;
        }
    };
    let mut prompts = std::pin::pin!(prompts);
    let mut prompting = true;
    while heard.len() < 20 {
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => cancelled += 1,
            message = subscriber.next() => heard.push(number(&message.unwrap())),
            () = &mut prompts, if prompting => prompting = false,
        }
    }
    assert_eq!(heard, (0..20).collect::<Vec<_>>());
    assert!(cancelled > 0);
}

#[tokio::test]
async fn a_publisher_that_closes_or_restarts_ends_the_subscription() {
    let host = publisher(|_| {}).await;
    let mut first = subscriber(&host, b"").await;
    host.handle().disturb(Disturbance::CloseConnections);
    assert!(matches!(first.next().await, Err(SocketError::Closed | SocketError::Broken(_))));
    prompt(&host, 0).await;
    let mut second = subscriber(&host, b"").await;
    host.handle().restart_engine();
    assert!(matches!(second.next().await, Err(SocketError::Closed | SocketError::Broken(_))));
    let mut third = subscriber(&host, b"").await;
    prompt(&host, 0).await;
    assert_eq!(number(&third.next().await.unwrap()), 0);
}

#[tokio::test]
async fn an_engine_that_stops_ends_the_subscription_and_refuses_the_next() {
    let host = publisher(|_| {}).await;
    let stream = host.events().unwrap().stream;
    let mut subscriber = subscriber(&host, b"").await;
    host.stop().await;
    assert!(matches!(subscriber.next().await, Err(SocketError::Closed | SocketError::Broken(_))));
    let refused = Subscriber::connect(place(stream), b"", PATIENT).await;
    assert!(matches!(refused, Err(SocketError::Unreachable(_))), "{refused:?}");
}

#[tokio::test]
async fn sockets_of_the_wrong_kind_are_recognised() {
    let host = publisher(|_| {}).await;
    let events = host.events().unwrap();
    let wrong = Subscriber::connect(place(events.replay.unwrap()), b"", PATIENT).await;
    let expected = maitre_zmtp::ZmtpError::SocketType { ours: Role::Sub, theirs: "ROUTER".to_owned() };
    assert!(matches!(wrong, Err(SocketError::Protocol(error)) if error == expected));
    let http = Subscriber::connect(place(host.addr()), b"", PATIENT).await;
    assert!(
        matches!(http, Err(SocketError::Protocol(_) | SocketError::Closed | SocketError::Broken(_))),
        "{http:?}"
    );
}

/// A peer that sends this, whatever it receives, and stays connected.
async fn peer_that_sends(bytes: Vec<u8>) -> (SocketAddr, tokio::task::JoinSet<()>) {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(&bytes).await;
        // Reads until the other end is gone.
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    });
    (addr, tasks)
}

/// The result of a subscriber whose publisher opens correctly and then sends this.
async fn error_after_opening(bytes: &[u8]) -> SocketError {
    let (addr, _tasks) = peer_that_sends([&opening(Role::Pub), bytes].concat()).await;
    let mut subscriber = Subscriber::connect(place(addr), b"", PATIENT).await.unwrap();
    subscriber.next().await.unwrap_err()
}

#[tokio::test]
async fn a_huge_frame_ends_the_connection_before_any_room_is_made_for_it() {
    let error = error_after_opening(b"\x02\0\0\0\x10\0\0\0\0").await;
    let expected = maitre_zmtp::ZmtpError::FrameTooLarge { bytes: 64 << 30, bytes_max: MESSAGE_BYTES_MAX };
    assert!(matches!(&error, SocketError::Protocol(it) if *it == expected), "{error}");
}

#[tokio::test]
async fn frames_without_end_end_the_connection() {
    let error = error_after_opening(&b"\x01\0".repeat(100)).await;
    assert!(matches!(error, SocketError::Protocol(maitre_zmtp::ZmtpError::TooManyFrames { .. })), "{error}");
}

#[tokio::test]
async fn an_announced_length_reserves_no_memory() {
    let mut bytes = b"\x02".to_vec();
    bytes.extend((MESSAGE_BYTES_MAX as u64).to_be_bytes());
    bytes.extend([7; 1000]);
    let (addr, _tasks) = peer_that_sends([opening(Role::Pub), bytes].concat()).await;
    let mut subscriber = Subscriber::connect(place(addr), b"", PATIENT).await.unwrap();
    assert!(timeout(IMPATIENT, subscriber.next()).await.is_err());
    assert!(subscriber.0.buffer.capacity() <= 4 * READ_BYTES, "{}", subscriber.0.buffer.capacity());
}

#[tokio::test]
async fn garbage_and_silence_fail_the_handshake() {
    let (addr, _tasks) = peer_that_sends(b"SSH-2.0-OpenSSH_9.6\r\n".to_vec()).await;
    let garbage = Subscriber::connect(place(addr), b"", PATIENT).await;
    assert!(matches!(garbage, Err(SocketError::Protocol(maitre_zmtp::ZmtpError::NotZmtp))), "{garbage:?}");
    for silence in [Vec::new(), opening(Role::Pub)[..20].to_vec(), opening(Role::Pub)[..64].to_vec()] {
        let (addr, _tasks) = peer_that_sends(silence).await;
        let silent = Subscriber::connect(place(addr), b"", IMPATIENT).await;
        assert!(matches!(silent, Err(SocketError::TimedOut(IMPATIENT))), "{silent:?}");
    }
}

#[tokio::test]
async fn pings_are_answered_and_a_flood_of_them_costs_nothing() {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let ping = b"\x04\x0a\x04PING\0\x0actx".repeat(1000);
    let publish = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&[opening(Role::Pub), ping, b"\0\x01x".to_vec()].concat()).await.unwrap();
        let (mut heard, expected) = (Vec::new(), b"\x04\x08\x04PONGctx");
        while !heard.windows(expected.len()).any(|it| it == expected) {
            assert_ne!(stream.read_buf(&mut heard).await.unwrap(), 0);
        }
    };
    let listen = async {
        let mut subscriber = Subscriber::connect(place(addr), b"", PATIENT).await.unwrap();
        assert_eq!(subscriber.next().await.unwrap(), [b"x".as_slice()]);
        // The answer goes out when there is nothing left to read.
        let _ = subscriber.next().await;
    };
    tokio::select! {
        () = publish => {}
        () = listen => panic!("the subscriber left first"),
    }
}
