//! One router of a mesh is cut off from the two others, silently or by resets. All three continue to serve,
//! and soon after the cut ends they agree again.
//!
//! All routers reach a through its proxy, and a reaches the others through theirs; b and c also have a direct
//! connection.

use std::net::SocketAddr;
use std::time::Duration;

use crate::clients::Clients;
use crate::door::{Door, Pass};
use crate::stage::{CLUSTER_KEY, CONVERGED, Router, Stage, Way, prompt, until_agreed};
use crate::watch;

/// When a router that is cut off counts as lost: three seconds, and a heartbeat or two to notice.
const ALONE: Duration = Duration::from_secs(5);

/// Longer than the scenario.
const LONG: u32 = 3_000;

async fn check(cut: Pass, lasts: Duration) {
    let mut stage = Stage::empty(Way::Mesh).await;
    let doors = [Door::new().await, Door::new().await, Door::new().await];
    let at = |it: &Door| it.address.to_string();
    let [to_a, to_b, to_c] = &doors;
    let b = join(&stage, "b", to_b, &[at(to_a)]).await;
    let c = join(&stage, "c", to_c, &[b.mesh.unwrap().to_string(), at(to_a)]).await;
    stage.routers.extend([b, c]);
    stage.until_together().await;
    let a = join(&stage, "a", to_a, &[at(to_b), at(to_c)]).await;
    stage.routers.insert(0, a);
    stage.until_together().await;
    let [a, b, c] = [0, 1, 2].map(|it| &stage.routers[it]);
    let mut held =
        vec![a.stream(LONG).await, a.stream(LONG).await, b.stream(LONG).await, c.stream(LONG).await];
    stage.until_agreed(4, watch::now(), CONVERGED).await;
    let clients = Clients::come(&stage.routers);
    clients.until_served(None, 30, watch::now()).await;

    doors.iter().for_each(|it| it.set(cut));
    let since = watch::now();
    for (router, lost) in [(a, 2.0), (b, 1.0), (c, 1.0)] {
        router.until_metric("maitre_cluster_routers{state=\"lost\"}", lost, since, ALONE).await;
        let share = 1.0 - lost / 3.0;
        router.until_metric("maitre_cluster_limit_share", share, since, ALONE).await;
    }
    // The others learn afterwards what happens in the meantime.
    held.push(a.stream(LONG).await);
    held.push(b.stream(LONG).await);
    held.remove(0);
    tokio::time::sleep(lasts.saturating_sub(since.elapsed())).await;
    clients.until_served(None, 50, since).await;
    clients.pause();
    // Routers that still reach each other agree all the time.
    until_agreed(&[b, c], 3, watch::now(), CONVERGED).await;

    let said = a.program.said();
    assert_eq!(
        said.matches("disconnected from another router").count(),
        2,
        "both connections were given up: {said}"
    );

    doors.iter().for_each(|it| it.set(Pass::Open));
    let healed = watch::now();
    let agreed = stage.until_agreed(5, healed, CONVERGED).await;
    for router in [a, b, c] {
        router.until_metric("maitre_cluster_routers{state=\"live\"}", 3.0, healed, CONVERGED).await;
        router.until_metric("maitre_cluster_limit_share", 1.0, healed, CONVERGED).await;
    }
    clients.go_on();
    clients.until_served(None, 20, watch::now()).await;
    let served = clients.leave().await;
    eprintln!(
        "Mesh: {cut:?} for {lasts:?}; agreed {agreed:.1?} after it was healed, {served} requests, none failed"
    );
    let mut operator = b.operator().await;
    stage.follow(0, &mut operator, &prompt("what comes after", 2)).await;
    drop(held);
    stage.until_nothing_is_left().await;
}

/// A router that others reach through this proxy, and that finds them at these addresses.
async fn join(stage: &Stage, name: &str, door: &Door, peers: &[String]) -> Router {
    let address: SocketAddr = door.address;
    let mut args = vec!["--cluster-advertise".to_owned(), address.to_string()];
    args.extend(peers.iter().flat_map(|it| ["--peer".to_owned(), it.clone()]));
    let router = stage.start_with(name, &args, CLUSTER_KEY).await;
    door.lead_to(router.mesh.unwrap());
    router
}

/// The silent cut lasts long enough for all connections through it to be given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_fails_no_request_and_views_converge_within_2_s_of_its_end() {
    let silent = check(Pass::Silent, Duration::from_secs(8));
    let reset = check(Pass::Reset, Duration::from_secs(4));
    tokio::join!(silent, reset);
}
