//! A router is killed under load and started again: with the state that the others kept, it is as good as
//! before.

use std::time::Duration;

use crate::clients::{BOOKS, Clients};
use crate::stage::{Stage, Way};
use crate::watch;

/// The period within which it must be as good as before, or nearly.
const RECOVERED: Duration = Duration::from_secs(5);
const RECOVERED_TO: f64 = 0.95;

/// Longer than the scenario.
const LONG: u32 = 3_000;

/// The minimum sample of a ratio.
const SAMPLE: usize = 50;

async fn check(way: Way) {
    let mut stage = Stage::open(way).await;
    let clients = Clients::come(&stage.routers);
    let begin = watch::now();
    clients.until_served(None, 4 * BOOKS as usize, begin).await;
    let warm = watch::now();
    clients.until_served(Some(0), SAMPLE, warm).await;
    let before = clients.hit_ratio(Some(0), warm);

    // What it has promised is gone with it.
    let held = [stage.routers[0].stream(LONG).await, stage.routers[0].stream(LONG).await];
    clients.give_up(0);
    // Dropping the value kills the process.
    let name = stage.routers.remove(0).name;
    let killed = watch::now();
    let again = stage.start(&name).await;
    let ready = watch::now();
    clients.open(0, again.listen);
    stage.routers.insert(0, again);
    let took = clients.until_served(Some(0), SAMPLE, ready).await;
    let (after, others) = (clients.hit_ratio(Some(0), ready), clients.hit_ratio(None, ready));
    eprintln!(
        "{way:?}: killed, and ready again after {:.1?}; hit ratio {before:.3} before, {after:.3} within {took:.1?}, \
         {others:.3} of all in that time",
        ready - killed
    );
    assert!(took <= RECOVERED, "{SAMPLE} requests took {took:?}");
    let least = RECOVERED_TO * before.max(others);
    assert!(after >= least, "{after:.3}; {before:.3} before, {others:.3} of all");
    assert!(before > 0.5, "there was something to lose");

    drop(held);
    clients.leave().await;
    stage.until_together().await;
    stage.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_router_is_as_good_as_before_within_5_s() {
    tokio::join!(check(Way::Redis), check(Way::Mesh));
}
