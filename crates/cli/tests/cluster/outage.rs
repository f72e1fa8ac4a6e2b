//! Redis is gone for ten seconds, or hangs: each router continues alone, with its share of all limits, and no
//! request is affected.

use std::time::Duration;

use crate::clients::Clients;
use crate::stage::{CONVERGED, Stage, Way, prompt};
use crate::watch;

const AWAY: Duration = Duration::from_secs(10);
/// When a silent router counts as lost: three seconds, and a heartbeat or two to notice.
const ALONE: Duration = Duration::from_secs(5);

/// Longer than the scenario.
const LONG: u32 = 3_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    /// Redis restarts and has lost all data.
    Stopped,
    /// Redis hangs; its connections look healthy.
    Hung,
}

async fn check(gone: Gone) {
    let mut stage = Stage::open(Way::Redis).await;
    let mut held = Vec::new();
    for router in &stage.routers {
        held.push(router.stream(LONG).await);
    }
    let clients = Clients::come(&stage.routers);
    clients.until_served(None, 60, watch::now()).await;

    let redis = stage.redis.as_mut().unwrap();
    match gone {
        Gone::Stopped => redis.stop(),
        Gone::Hung => redis.signal("STOP"),
    }
    let stopped = watch::now();
    for router in &stage.routers {
        router.until_metric("maitre_cluster_connected", 0.0, stopped, ALONE).await;
        router.until_metric("maitre_cluster_limit_share", 1.0 / 3.0, stopped, ALONE).await;
        router.until_metric("maitre_cluster_routers{state=\"lost\"}", 2.0, stopped, ALONE).await;
        assert_eq!(router.operator().await.promises().await.requests_of_others(), 0);
    }
    // The others learn afterwards what happens in the meantime.
    held.push(stage.routers[0].stream(LONG).await);
    tokio::time::sleep(AWAY.saturating_sub(stopped.elapsed())).await;
    clients.until_served(None, 100, stopped).await;
    clients.pause();
    let redis = stage.redis.as_mut().unwrap();
    match gone {
        Gone::Stopped => redis.start_again().await,
        Gone::Hung => redis.signal("CONT"),
    }
    let back = watch::now();

    let mut connected = Duration::ZERO;
    for router in &stage.routers {
        connected =
            connected.max(router.until_metric("maitre_cluster_connected", 1.0, back, CONVERGED).await);
    }
    let agreed = stage.until_agreed(4, back, CONVERGED).await;
    for router in &stage.routers {
        router.until_metric("maitre_cluster_limit_share", 1.0, back, CONVERGED + ALONE).await;
    }
    eprintln!(
        "Redis, {gone:?}: away for {AWAY:?}; connected {connected:.1?} and agreed {agreed:.1?} after it was back"
    );
    clients.go_on();
    clients.until_served(None, 20, watch::now()).await;
    let served = clients.leave().await;
    eprintln!("Redis, {gone:?}: {served} requests around the outage, none failed");
    let mut b = stage.routers[1].operator().await;
    stage.follow(0, &mut b, &prompt("what comes after", 2)).await;
    drop(held);
    stage.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_outage_affects_no_request_and_views_converge_afterwards() {
    tokio::join!(check(Gone::Stopped), check(Gone::Hung));
}
