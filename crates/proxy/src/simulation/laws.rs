//! What must hold in every run, whatever workers and clients do.
//!
//! While it runs: each request that a worker answers has a promise in the brain, and a recalled request notices at once.
//! At its end: nothing is left of any request, in the brain, in the queue, in memory or in a gauge. The clients check the
//! rest: each answer is to its own request, comes once, and comes to an end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::world::World;

/// Between two checks. What is wrong at one only may be on its way.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long after the last client the router may still hold anything for it.
const SETTLE: Duration = Duration::from_secs(1);

/// Checks the laws that hold all the time.
pub(super) async fn watch(world: Arc<World>) {
    let mut unnoticed_before = 0;
    loop {
        sleep(INTERVAL).await;
        let (_, unnoticed) = world.state.brain.waiting();
        if unnoticed.min(unnoticed_before) > 0 {
            world.violate("a request was recalled and has not noticed");
        }
        unnoticed_before = unnoticed;
        check_promises(&world);
    }
}

/// Each answer that a worker is giving was promised, as long as the router holds its connection.
fn check_promises(world: &World) {
    let mut unknown = Vec::new();
    for exchange in world.exchanges.lock().iter_mut() {
        let number = world.state.request_ids.find(&format!("c{}", exchange.request));
        let is_known = |number| world.state.brain.read(|brain| brain.worker_of(number)).is_some();
        if exchange.connection.is_peer_open() && number.is_some_and(|it| !is_known(it)) {
            exchange.misses += 1;
        } else {
            exchange.misses = 0;
        }
        if exchange.misses == 2 {
            unknown.push(exchange.request);
        }
    }
    for request in unknown {
        world.violate(&format!("a worker answers r{request}, and the brain has no promise for it"));
    }
}

/// Checks that nothing is left once the last client has gone.
pub(super) async fn check_end(world: &World) {
    sleep(SETTLE).await;
    let state = &world.state;
    let (waiters, recalls) = state.brain.waiting();
    let (open, promised) = state.brain.read(|brain| {
        let promised = brain.fleet().workers().map(|it| {
            let work = it.promised.work;
            u64::from(work.requests) + work.prefill.0 + work.decode.0 + work.context.0
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
