//! Clients that announce, hold or drip request bodies: they keep nobody else out.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{chat, engine_settings, fixture, fixture_with, post, settings, until_counted, within};
use crate::keys::{ACME, UMBRA, key, showing, with_keys};

const CHAT: &str = "/v1/chat/completions";
const IN_FLIGHT: &str = "maitre_requests_in_flight";

/// A client that announces a body and has sent only the beginning of it.
async fn announce(addr: SocketAddr, key: &str, announced: usize, sent: usize) -> TcpStream {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: m\r\nauthorization: Bearer {key}\r\ncontent-length: {announced}\r\n\r\n"
    );
    within(socket.write_all(head.as_bytes())).await.unwrap();
    within(socket.write_all(&vec![b' '; sent])).await.unwrap();
    socket
}

/// The status line and whatever else the router sends with it.
async fn first_bytes(socket: &mut TcpStream) -> String {
    let mut seen = vec![0; 4_096];
    let count = within(socket.read(&mut seen)).await.unwrap();
    String::from_utf8_lossy(&seen[..count]).into_owned()
}

#[tokio::test]
async fn announced_lengths_take_no_memory_from_others() {
    let fixture = fixture(1).await;
    let mut silent = Vec::new();
    // 1.6 GiB in all, where `limits.bodies` is one.
    for _ in 0..100 {
        silent.push(announce(fixture.router.listen(), "x", 16 << 20, 0).await);
    }
    until_counted(&fixture.router, IN_FLIGHT, 100.0).await;
    let answer = fixture.client().await.post(CHAT, chat(1, false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(silent.len(), 100);
}

#[tokio::test]
async fn bodies_that_stop_halfway_leave_memory_for_others_and_are_timed_out() {
    let mut settings = settings();
    settings.limits.body_bytes = 1 << 20;
    settings.limits.bodies_bytes = 8 << 20;
    settings.timeouts.client_body = Duration::from_secs(3);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let mut held = Vec::new();
    for _ in 0..16 {
        let announced = 1 << 20;
        held.push(announce(fixture.router.listen(), "x", announced, announced - 1).await);
    }
    // Four mebibytes, half of the memory, are for bodies under way; the rest of them is refused.
    let busy = r#"maitre_requests_total{route="chat",outcome="refused",code="too_busy"}"#;
    until_counted(&fixture.router, busy, 12.0).await;
    let answer = fixture.client().await.post(CHAT, chat(1, false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut statuses = Vec::new();
    for socket in &mut held {
        let seen = first_bytes(socket).await;
        let is_busy = seen.starts_with("HTTP/1.1 503");
        assert!(!is_busy || seen.to_lowercase().contains("retry-after: 1\r\n"), "{seen}");
        statuses.push(seen.chars().skip(9).take(3).collect::<String>());
    }
    statuses.sort();
    assert_eq!(statuses, [vec!["408"; 4], vec!["503"; 12]].concat());
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn a_body_sent_byte_by_byte_is_timed_out() {
    let mut settings = settings();
    settings.timeouts.client_body = Duration::from_millis(300);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let (mut reader, mut writer) = announce(fixture.router.listen(), "x", 1 << 20, 1).await.into_split();
    let drip = async {
        // The pace of the client; it goes on until the router closes the connection.
        while writer.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        std::future::pending::<()>().await;
    };
    let mut seen = [0; 12];
    tokio::select! {
        read = within(reader.read_exact(&mut seen)) => drop(read.unwrap()),
        () = drip => {}
    }
    assert_eq!(&seen, b"HTTP/1.1 408");
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn the_bodies_of_one_tenant_leave_memory_for_other_tenants() {
    let mut settings = with_keys(key("acme"));
    settings.limits.body_bytes = 1 << 20;
    settings.limits.bodies_bytes = 64 << 20;
    settings.limits.bodies_per_tenant_bytes = 2 << 20;
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let (listen, bytes) = (fixture.router.listen(), 1 << 20);
    let announce = async || announce(listen, ACME, bytes, bytes - 1).await;
    let (mut one, mut two, mut three) = (announce().await, announce().await, announce().await);
    // The one that is read last.
    let refused = tokio::select! {
        refused = first_bytes(&mut one) => refused,
        refused = first_bytes(&mut two) => refused,
        refused = first_bytes(&mut three) => refused,
    };
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("of this tenant"), "{refused}");
    let request = showing(post(CHAT, chat(1, false)), UMBRA);
    let answer = fixture.client().await.ask(request).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
}
