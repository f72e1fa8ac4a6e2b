//! What must hold in every run, whatever workers and clients do.
//!
//! While it runs: each request that a worker answers has a promise in the brain, and a recalled request notices at once.
//! At its end: nothing is left of any request, in the brain, in the queue, in memory or in a gauge. The clients check the
//! rest: each answer is to its own request, comes once, and comes to an end. `cluster` has the laws of several routers.

mod cluster;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use self::cluster::PeerWatch;
use super::client::Client;
use super::router::{RouterProcess, SimulatedRouter};
use super::world::World;
use crate::state::RouterState;

/// Between two checks. What is wrong at one only may be on its way.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long after the last client a router may still hold anything for it.
const SETTLE: Duration = Duration::from_secs(1);

/// Checks the laws that hold all the time.
pub(super) async fn watch(world: Arc<World>) {
    let mut unnoticed_before = vec![0; world.routers.len()];
    let mut peers = PeerWatch::default();
    loop {
        sleep(INTERVAL).await;
        for (router, process) in world.running() {
            let (_, unnoticed) = process.state.brain.waiting();
            if unnoticed.min(unnoticed_before[router.index]) > 0 {
                world.violate("a request was recalled and has not noticed");
            }
            unnoticed_before[router.index] = unnoticed;
        }
        check_promises(&world);
        peers.check(&world);
    }
}

/// Each answer that a worker is giving was promised, as long as the router holds its connection.
fn check_promises(world: &World) {
    let mut unknown = Vec::new();
    let served_by = world.served_by.lock();
    for exchange in world.exchanges.lock().iter_mut() {
        let Some(process) = served_by.get(&Client::of(exchange.request)) else { continue };
        let RouterState { request_ids, brain, .. } = &*process.state;
        exchange.number = exchange.number.or_else(|| request_ids.find(exchange.id.as_deref()?));
        let is_lost = exchange.number.is_some_and(|it| brain.read(|brain| brain.worker_of(it)).is_none());
        let counts = exchange.connection.is_peer_open() && is_lost;
        exchange.misses = if counts { exchange.misses + 1 } else { 0 };
        if exchange.misses == 2 {
            unknown.push(exchange.request);
        }
    }
    drop(served_by);
    for request in unknown {
        world.violate(&format!("a worker answers r{request}, and the brain has no promise for it"));
    }
}

/// Checks that nothing is left once the last client has gone.
pub(super) async fn check_end(world: &World) {
    if let Some(network) = &world.network {
        network.heal();
    }
    sleep(SETTLE).await;
    for process in world.routers.iter().flat_map(SimulatedRouter::processes).filter(|it| it.ends_clean()) {
        check_left(world, &process);
    }
    if world.network.is_some() {
        cluster::check_end(world).await;
    }
}

fn check_left(world: &World, process: &RouterProcess) {
    let state = &process.state;
    let (waiters, recalls) = state.brain.waiting();
    let (open, promised) = state.brain.read(|brain| {
        let promised = brain.fleet().workers().map(|it| {
            let work = it.promised.work;
            u64::from(work.requests)
                + work.prefill.tokens.0
                + work.prefill.attended
                + work.decode.0
                + work.context.0
        });
        (brain.open() as u64, promised.sum())
    });
    let left = [
        ("requests left in the brain", open),
        ("promises left in the brain", promised),
        ("waiters left", waiters as u64),
        ("recalls left", recalls as u64),
        ("requests in flight", state.metrics.in_flight.get().unsigned_abs()),
        ("client connections", state.metrics.connections.get().unsigned_abs()),
        ("requests awaiting a first token", state.recent.lanes.waits(state.clock.now()).len() as u64),
        ("bytes of bodies", state.bodies.held()),
    ];
    for (what, count) in left.into_iter().filter(|it| it.1 > 0) {
        world.violate(&format!("{what}: {count}, though no client is left"));
    }
}
