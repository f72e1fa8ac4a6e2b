//! Frames reach every peer in order; an overfull backlog drops its oldest.

use std::collections::BTreeMap;

use bytes::Bytes;
use maitre_peer::{Incoming, Outgoing};
use maitre_testkit::log::Log;

use crate::router::{LIMIT, Router, config, meet, now, reach, start};

/// Receives a hundred numbers from each of the others, in order.
async fn receive_numbers(router: &mut Router, others: &[&str]) {
    let mut next: BTreeMap<String, u32> = others.iter().map(|&it| (it.to_owned(), 0)).collect();
    while next.values().any(|&it| it < 100) {
        let frame = String::from_utf8(router.frame().await.to_vec()).unwrap();
        let Some((who, number)) = frame.split_once(' ') else { continue };
        let expected = next.get_mut(who).unwrap();
        assert_eq!(number, expected.to_string(), "of {who}");
        *expected += 1;
    }
}

#[tokio::test]
async fn three_routers_receive_each_others_frames_in_order() {
    let mut a = start("a", &[]).await;
    let mut b = start("b", &[&a]).await;
    let mut c = start("c", &[&a]).await;
    meet(&mut [&mut a, &mut b, &mut c]).await;
    reach(&b, &mut c, "settled").await;
    for number in 0..100 {
        [&a, &b, &c]
            .into_iter()
            .zip(["a", "b", "c"])
            .for_each(|(it, name)| it.send_text(&format!("{name} {number}")));
    }
    receive_numbers(&mut a, &["b", "c"]).await;
    receive_numbers(&mut b, &["a", "c"]).await;
    receive_numbers(&mut c, &["a", "b"]).await;
    let status = a.until("all counted", |it| it.frames_in >= 200 && it.frames_out >= 200).await;
    assert_eq!((status.dropped, status.refused, status.trouble), (0, 0, None));
    assert!(status.bytes_in > 200 * 3, "{}", status.bytes_in);
}

#[tokio::test]
async fn a_router_that_knows_one_peer_learns_of_all() {
    let mut a = start("a", &[]).await;
    let mut b = start("b", &[&a]).await;
    let mut c = start("c", &[&b]).await;
    let mut d = start("d", &[&c]).await;
    meet(&mut [&mut a, &mut b, &mut c, &mut d]).await;
    for router in [&mut a, &mut b, &mut c] {
        reach(&d, router, "hello").await;
        reach(router, &mut d, "hello").await;
    }
    assert_eq!(a.status().trouble, None);
}

#[tokio::test]
async fn connected_comes_before_any_frame() {
    let mut a = start("a", &[]).await;
    let mut b = start("b", &[&a]).await;
    b.peers(&["a"]).await;
    b.send_text("first");
    assert!(matches!(a.incoming().await, Incoming::Connected));
    assert!(matches!(b.incoming().await, Incoming::Connected));
    a.expect_frame("first").await;
}

#[tokio::test]
async fn frames_of_all_sizes_arrive_and_oversized_ones_are_dropped() {
    let mut a = start("a", &[]).await;
    let mut b = start("b", &[&a]).await;
    a.peers(&["b"]).await;
    let sizes = [0, 1, 65_000, 65_519, 65_520, 70_000, 131_038, 256 * 1024, 256 * 1024 + 1024];
    let frame = |size: usize| Bytes::from((0..size).map(|it| (it * 31 + size) as u8).collect::<Vec<u8>>());
    b.peers(&["a"]).await;
    b.line.outgoing.send(Outgoing::Snapshot(vec![frame(9)])).await.unwrap();
    b.send(frame(256 * 1024 + 1025));
    sizes.iter().for_each(|&size| b.send(frame(size)));
    for size in sizes {
        assert_eq!(a.frame().await, frame(size), "{size}");
    }
    b.until("one dropped", |it| it.dropped == 1 && it.frames_out == sizes.len() as u64).await;
}

#[tokio::test]
async fn a_router_that_does_not_read_misses_frames_but_stays_connected() {
    let log = Log::new();
    let mut a = start("a", &[]).await;
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    let all: u32 = 3_000;
    for number in 0..all {
        a.line.outgoing.send(Outgoing::Frame(Bytes::copy_from_slice(&number.to_be_bytes()))).await.unwrap();
    }
    // Nothing reads from b; it still receives heartbeats of a.
    let dropped = b.until("frames dropped", |it| it.dropped > 0 && it.frames_in > 2_000).await.dropped;
    let (mut last, mut heard) = (None, 0);
    while let Ok(incoming) = b.line.incoming.try_recv() {
        let Incoming::Frame(frame) = incoming else { continue };
        let number = u32::from_be_bytes(frame.as_ref().try_into().unwrap());
        assert!(last.is_none_or(|last| last < number), "{number} after {last:?}");
        (last, heard) = (Some(number), heard + 1);
    }
    assert!(heard > 0, "frames that had room");
    reach(&a, &mut b, "and now").await;
    assert!(heard + dropped <= u64::from(all), "{heard} heard, {dropped} dropped");
    assert_eq!(log.with("disconnected from another router").len(), 0, "{:?}", log.with(""));
}

#[tokio::test]
async fn an_idle_mesh_sends_little() {
    let mut a = start("a", &[]).await;
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    // Membership changes are gossiped ten times; then there are none.
    let settled = a.until("the beginning to be over", |it| it.bytes_out > 2_000).await.bytes_out;
    let since = now();
    let later = a.until("some more", |it| it.bytes_out > settled + 1_000).await;
    let rate = (later.bytes_out - settled) as f64 / since.elapsed().as_secs_f64();
    println!("idle: {rate:.0} bytes a second to one peer");
    assert!(rate < 500.0, "{rate} bytes a second");
    assert_eq!((later.frames_in, later.frames_out), (0, 0));
}

#[tokio::test]
async fn the_last_frames_of_a_leaving_router_arrive() {
    let mut a = start("a", &[]).await;
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    (0..500).for_each(|it| b.send_text(&format!("{it}")));
    b.send_text("bye");
    let since = now();
    b.leave().await;
    assert!(since.elapsed() < LIMIT / 10, "{:?}", since.elapsed());
    for number in 0..500 {
        a.expect_frame(&number.to_string()).await;
    }
    a.expect_frame("bye").await;
    a.peers(&[]).await;
}

#[tokio::test]
async fn a_router_returns_under_the_same_name() {
    let log = Log::new();
    let mut a = start("a", &[]).await;
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    for round in 0..3 {
        b.leave().await;
        a.peers(&[]).await;
        assert_eq!(a.status().trouble, None, "it is not expected");
        b = start("b", &[&a]).await;
        meet(&mut [&mut a, &mut b]).await;
        b.send_text(&format!("back {round}"));
        a.expect_frame(&format!("back {round}")).await;
    }
    assert_eq!(log.with("WARN").len() + log.with("ERROR").len(), 0, "{:?}", log.with(""));
    // Without an announcement.
    b.task.shutdown().await;
    a.peers(&[]).await;
    let mut b = start("b", &[&a]).await;
    meet(&mut [&mut a, &mut b]).await;
    a.send_text("welcome");
    b.expect_frame("welcome").await;
}

#[tokio::test]
async fn it_works_over_ipv6() {
    let listen = "[::1]:0".parse().unwrap();
    let mut a = Router::new(maitre_peer::mesh::MeshConfig { listen, ..config("a", &[]) }).await;
    let peers = [a.address.to_string()];
    let mut b = Router::new(maitre_peer::mesh::MeshConfig { listen, ..config("b", &peers) }).await;
    let mut c = Router::new(maitre_peer::mesh::MeshConfig { listen, ..config("c", &peers) }).await;
    meet(&mut [&mut a, &mut b, &mut c]).await;
    reach(&b, &mut c, "six").await;
}

#[tokio::test]
async fn a_router_on_a_wildcard_address_learns_its_address() {
    let listen = "0.0.0.0:0".parse().unwrap();
    let mut a = Router::new(maitre_peer::mesh::MeshConfig { listen, ..config("a", &[]) }).await;
    let peers = [format!("127.0.0.1:{}", a.address.port())];
    let mut b = Router::new(maitre_peer::mesh::MeshConfig { listen, ..config("b", &peers) }).await;
    let mut c = Router::new(maitre_peer::mesh::MeshConfig { listen, ..config("c", &peers) }).await;
    meet(&mut [&mut a, &mut b, &mut c]).await;
    reach(&b, &mut c, "here").await;
}
