//! Partitions, suspension, and connections that cross.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use maitre_peer::Incoming;
use maitre_peer::mesh::MeshConfig;
use tokio::time::timeout;

use crate::proxy::Proxy;
use crate::router::{LIMIT, Router, config, meet, now, reach, start};

/// A router that is reachable, and reaches others, only through proxies.
async fn behind(
    name: &str,
    own: (Proxy, tokio::sync::watch::Sender<Option<SocketAddr>>),
    peers: &[&Proxy],
) -> (Router, Proxy) {
    let (proxy, lead) = own;
    let peers: Vec<String> = peers.iter().map(|it| it.address.to_string()).collect();
    let advertise = Some(proxy.address.to_string());
    let router = Router::new(MeshConfig { advertise, ..config(name, &peers) }).await;
    lead.send_replace(Some(router.address));
    (router, proxy)
}

#[tokio::test]
async fn a_partition_is_detected_within_five_seconds_and_its_end_within_two() {
    let (first, second) = (Proxy::new().await, Proxy::new().await);
    let (mut a, a_way) = behind("a", first, &[&second.0]).await;
    let (mut b, b_way) = behind("b", second, &[&a_way]).await;
    meet(&mut [&mut a, &mut b]).await;
    // Heartbeats have gone both ways.
    a.until("members known", |it| it.bytes_in > 1_000).await;
    for _ in 0..2 {
        let since = now();
        a_way.cut();
        b_way.cut();
        a.peers(&[]).await;
        b.peers(&[]).await;
        let noticed = since.elapsed();
        assert!(noticed < Duration::from_secs(6), "{noticed:?}");
        a.until("trouble", |it| it.trouble.is_some()).await;
        a.send_text("lost");
        while a.line.incoming.try_recv().is_ok() {}
        while b.line.incoming.try_recv().is_ok() {}
        let since = now();
        a_way.heal();
        b_way.heal();
        assert!(matches!(a.incoming().await, Incoming::Connected));
        assert!(matches!(b.incoming().await, Incoming::Connected));
        let healed = since.elapsed();
        println!("noticed after {noticed:?}, healed after {healed:?}");
        assert!(healed < Duration::from_secs(2), "{healed:?}");
        meet(&mut [&mut a, &mut b]).await;
        reach(&a, &mut b, "again").await;
        reach(&b, &mut a, "again").await;
        a.until("no trouble", |it| it.trouble.is_none()).await;
    }
}

#[tokio::test]
async fn one_of_three_routers_is_cut_off_and_returns() {
    let (first, second, third) = (Proxy::new().await, Proxy::new().await, Proxy::new().await);
    let (mut a, a_way) = behind("a", first, &[]).await;
    let (mut b, b_way) = behind("b", second, &[&a_way]).await;
    let (mut c, c_way) = behind("c", third, &[&a_way]).await;
    meet(&mut [&mut a, &mut b, &mut c]).await;
    // With all paths cut, no router reaches another, configured or not.
    [&a_way, &b_way, &c_way].into_iter().for_each(Proxy::cut);
    for router in [&mut a, &mut b, &mut c] {
        router.peers(&[]).await;
    }
    [&a_way, &b_way, &c_way].into_iter().for_each(Proxy::heal);
    meet(&mut [&mut a, &mut b, &mut c]).await;
    reach(&c, &mut a, "back").await;
    reach(&c, &mut b, "back").await;
}

#[tokio::test]
async fn both_dialling_at_once_leaves_one_connection() {
    for _ in 0..10 {
        let (first, second) = (Proxy::new().await, Proxy::new().await);
        let (mut a, mut a_way) = behind("a", first, &[&second.0]).await;
        let (mut b, mut b_way) = behind("b", second, &[&a_way]).await;
        meet(&mut [&mut a, &mut b]).await;
        // Surplus connections are closed, and the remaining one carries frames both ways.
        timeout(LIMIT, async {
            while *a_way.open.borrow_and_update() + *b_way.open.borrow_and_update() != 1 {
                tokio::select! {
                    changed = a_way.open.changed() => changed.unwrap(),
                    changed = b_way.open.changed() => changed.unwrap(),
                }
            }
        })
        .await
        .expect("one connection is left");
        meet(&mut [&mut a, &mut b]).await;
        reach(&a, &mut b, "to b").await;
        reach(&b, &mut a, "to a").await;
    }
}

/// A router on a thread of its own, which can be suspended as a whole.
struct Sleeper {
    address: SocketAddr,
    /// Each is awaited until it is dropped.
    sleep: tokio::sync::mpsc::UnboundedSender<mpsc::Receiver<()>>,
}

impl Sleeper {
    fn new(name: &'static str, peer: SocketAddr) -> Sleeper {
        let (told, address) = mpsc::channel();
        let (sleep, mut naps) = tokio::sync::mpsc::unbounded_channel::<mpsc::Receiver<()>>();
        let body = async move {
            let router = Router::new(config(name, &[peer.to_string()])).await;
            told.send(router.address).unwrap();
            while let Some(nap) = naps.recv().await {
                assert!(nap.recv().is_err(), "it ends when the other end is dropped");
                router.send_text("good morning");
            }
        };
        let run = move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(body)
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(run).unwrap();
        Sleeper { address: address.recv().unwrap(), sleep }
    }
}

#[tokio::test]
async fn a_suspended_router_is_down_and_returns_when_it_resumes() {
    let mut a = start("a", &[]).await;
    let mut b = start("b", &[&a]).await;
    let sleeper = Sleeper::new("c", a.address);
    a.peers(&["b", "c"]).await;
    b.peers(&["a", "c"]).await;
    for _ in 0..2 {
        let (wake, nap) = mpsc::channel();
        sleeper.sleep.send(nap).unwrap();
        let since = now();
        a.peers(&["b"]).await;
        b.peers(&["a"]).await;
        assert!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
        drop(wake);
        a.peers(&["b", "c"]).await;
        b.peers(&["a", "c"]).await;
    }
    assert_ne!(sleeper.address, a.address);
}
