//! A router stops for a while, as a virtual machine does during migration: meanwhile the others ignore its
//! state, and afterwards they use all of it.

use std::time::Duration;

use crate::clients::Clients;
use crate::stage::{CONVERGED, PATIENCE, Stage, Way, until_agreed};
use crate::watch;

const SUSPENDED: Duration = Duration::from_secs(5);
/// Three seconds of silence, and up to a heartbeat to notice it, on a busy machine.
const EXPIRED: Duration = Duration::from_secs(4);

/// Longer than the scenario.
const LONG: u32 = 3_000;
/// Nine seconds: they end soon after the router resumed.
const SHORT: u32 = 900;

async fn check(way: Way) {
    let stage = Stage::open(way).await;
    let [a, b, c] = [0, 1, 2].map(|it| &stage.routers[it]);
    let clients = Clients::come(&stage.routers);
    clients.until_served(Some(0), 10, watch::now()).await;
    clients.pause();
    let streams = [a.stream(SHORT).await, a.stream(SHORT).await];
    let held = [b.stream(LONG).await, c.stream(LONG).await];
    stage.until_agreed(4, watch::now(), CONVERGED).await;

    clients.go_on();
    clients.until_served(Some(0), 2, watch::now()).await;
    clients.close(0);
    a.program.signal("STOP");
    let stopped = watch::now();
    clients.until_served(None, 20, stopped).await;
    // Some of its clients still wait; those of the other routers are all served.
    let lost = b.until_metric("maitre_cluster_routers{state=\"lost\"}", 1.0, stopped, EXPIRED).await;
    clients.pause();
    let expired = until_agreed(&[b, c], 2, stopped, EXPIRED + CONVERGED).await;
    for router in [b, c] {
        router.until_metric("maitre_cluster_limit_share", 2.0 / 3.0, stopped, PATIENCE).await;
    }
    tokio::time::sleep(SUSPENDED.saturating_sub(stopped.elapsed())).await;

    a.program.signal("CONT");
    let goes_on = watch::now();
    let agreed = stage.until_agreed(4, goes_on, CONVERGED).await;
    eprintln!(
        "{way:?}: suspended; lost after {lost:.1?}, its load gone after {expired:.1?}; agreed {agreed:.1?} after it went on"
    );
    for router in [a, b, c] {
        router.until_metric("maitre_cluster_routers{state=\"live\"}", 3.0, goes_on, CONVERGED).await;
        router.until_metric("maitre_cluster_limit_share", 1.0, goes_on, CONVERGED).await;
    }
    clients.leave().await;
    for stream in streams {
        stream.finish().await;
    }
    drop(held);
    stage.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_router_loses_nothing() {
    tokio::join!(check(Way::Redis), check(Way::Mesh));
}
