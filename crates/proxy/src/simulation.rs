//! The routers' own code in one thread and in virtual time, over in-memory connections that a seed drives.
//!
//! Real: connections of clients, the request path with its retries, recalls and timers, connections to workers
//! and their pool, probes, the brain and its ticks, and the exchange between up to three routers. Simulated: the bytes
//! below them (`maitre_net::simulated`), workers, clients, and the network between routers (`cluster`). A seed decides
//! how bytes are split, what workers, clients, routers and their network do wrong and when, so the same seed gives the
//! same run. `laws` checks the runs. A seed that breaks a law prints its number and its script.
//!
//! Left out: TLS, HTTP/2, several lanes; the transports of the cluster themselves, and what Redis stores.

mod client;
mod cluster;
mod host;
mod idle;
mod laws;
mod message;
mod outages;
mod router;
mod worker;
mod world;

use std::sync::Arc;
use std::time::Duration;

use maitre_base::Rng;
use maitre_net::simulated::{self, Dialed};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use client::Client;
use world::World;

/// Every request must have ended after this time. Far above all limits in `router::settings` together, except for the one
/// on the whole request: a request that ends by that one alone has missed a wake-up.
const LIMIT: Duration = Duration::from_secs(240);

/// What a run was, and which laws it broke.
#[derive(Debug, PartialEq, Eq)]
struct SeedReport {
    script: Vec<String>,
    violations: Vec<String>,
    recalls: u64,
    /// How often a router's belief was compared with promises that its peers had.
    beliefs: u64,
    /// A hash of all frames between routers.
    frames: u64,
}

impl SeedReport {
    /// What is counted over all seeds: events, recalls and beliefs.
    fn counts(&self) -> [u64; 3] {
        [self.script.len() as u64, self.recalls, self.beliefs]
    }
}

/// Runs one seed.
fn run(seed: u64) -> SeedReport {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let report = runtime.unwrap().block_on(simulate(seed));
    simulated::set_network(None);
    report
}

async fn simulate(seed: u64) -> SeedReport {
    let mut rng = Rng::new(seed);
    let world = Arc::new(World::new(&mut rng));
    let network = world.clone();
    simulated::set_network(Some(Box::new(move |address| {
        let host = network.hosts.iter().find(|it| it.name == address.host());
        host.map_or(Dialed::Refused, |it| worker::dial(&network, it))
    })));
    let mut background = JoinSet::new();
    start(&world, &mut background).await;
    background.spawn(laws::watch(world.clone()));
    let (of_workers, of_routers) = (rng.next_u64(), rng.next_u64());
    let clients = async {
        serve_clients(&world, &mut rng).await;
        world.ending.cancel();
    };
    let routers = async {
        if let Some(network) = &world.network {
            outages::disturb(&world, network, of_routers).await;
        }
    };
    tokio::join!(clients, worker::disturb(&world, of_workers), routers);
    laws::check_end(&world).await;
    world.report()
}

/// Starts all routers, and waits until they are ready.
async fn start(world: &Arc<World>, background: &mut JoinSet<()>) {
    if let Some(network) = &world.network {
        for (a, b) in (0..world.routers.len()).flat_map(|b| (0..b).map(move |a| (a, b))) {
            background.spawn(network.clone().keep_connected(a, b));
        }
    }
    world.routers.iter().for_each(|it| outages::start(world, it));
    for (router, process) in world.running() {
        if timeout(LIMIT, process.until_ready()).await.is_err() {
            world.violate(&format!("{} never became ready", router.name));
        }
    }
}

/// Runs all clients to their end, and the routers' side of their connections.
async fn serve_clients(world: &Arc<World>, rng: &mut Rng) {
    let mut clients = JoinSet::new();
    for number in 0..1 + rng.below(8) as u32 {
        let (world, client_rng) = (world.clone(), Rng::new(rng.next_u64()));
        let at = (rng.below(world.routers.len()), [64, 700, 16_000][rng.below(3)]);
        // Where routers restart, some clients come later.
        let within = if world.network.is_some() && rng.below(4) == 0 { 12_000 } else { 3_000 };
        let begins = Duration::from_millis(rng.below(within) as u64);
        clients.spawn(async move {
            sleep(begins).await;
            match Client::connect(world.clone(), number, at, client_rng) {
                Some(client) => client.run().await,
                None => world.say(&format!("client {number} finds router{} not ready", at.0)),
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.expect("a client of the simulation");
    }
    for router in &world.routers {
        for process in router.processes() {
            match timeout(LIMIT, process.join_connections()).await {
                Ok(None) => {}
                Ok(Some(panic)) => world.violate(&format!("{} panicked: {panic}", router.name)),
                Err(_) => world.violate("a connection of a client that has left is still served"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planted::{Planted, plant};

    /// Seeds of `cargo test`. `scripts/simulate` runs more.
    const SEEDS: u64 = 300;

    #[expect(clippy::disallowed_methods, reason = "how many seeds to run is no setting of the router")]
    fn number(key: &str, otherwise: u64) -> u64 {
        std::env::var(key).map_or(otherwise, |it| it.parse().expect(key))
    }

    #[track_caller]
    fn check(seed: u64) -> SeedReport {
        let report = run(seed);
        let SeedReport { script, violations, .. } = &report;
        assert!(
            violations.is_empty(),
            "seed {seed} breaks laws:\n{}\n\nits script:\n{}",
            violations.join("\n"),
            script.join("\n")
        );
        report
    }

    #[test]
    fn no_seed_breaks_a_law() {
        let (first, count) = (number("MAITRE_SIMULATE_FROM", 0), number("MAITRE_SIMULATE_SEEDS", SEEDS));
        let threads = std::thread::available_parallelism().map_or(1, |it| it.get() as u64);
        let add = |a: [u64; 3], b: [u64; 3]| [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
        let [events, recalls, beliefs] = std::thread::scope(|scope| {
            let spawn = |thread| {
                let seeds = (first..first + count).skip(thread as usize).step_by(threads as usize);
                scope.spawn(move || seeds.map(|it| check(it).counts()).fold([0; 3], add))
            };
            let running: Vec<_> = (0..threads).map(spawn).collect();
            running.into_iter().map(|it| it.join().expect("no law is broken")).fold([0; 3], add)
        });
        println!(
            "{count} seeds from {first}: {events} events, {recalls} recalls, {beliefs} beliefs about peers compared, \
             no violation"
        );
        assert!(
            count < SEEDS || recalls > 0,
            "no seed recalled a request, so nothing was checked of recalls"
        );
        assert!(count < SEEDS || beliefs > 0, "no seed compared what routers know of each other's promises");
    }

    #[test]
    fn a_seed_gives_the_same_run_each_time() {
        for seed in 0..30 {
            assert_eq!(run(seed), run(seed), "seed {seed}");
        }
    }

    /// The law that a planted fault breaks, within a thousand seeds.
    #[track_caller]
    fn check_found(fault: Planted, law: &str) {
        plant(Some(fault));
        let found = (0..1_000).find(|&seed| run(seed).violations.iter().any(|it| it.contains(law)));
        plant(None);
        let seed = found.unwrap_or_else(|| panic!("{fault:?} was not found in 1,000 seeds"));
        println!("{fault:?} was found after {} seeds", seed + 1);
    }

    #[test]
    fn a_reused_connection_with_unread_bytes_is_found() {
        check_found(Planted::ReusedConnection, "another's answer");
    }

    #[test]
    fn a_promise_that_is_never_released_is_found() {
        check_found(Planted::LostRelease, "left in the brain");
    }

    #[test]
    fn a_promise_that_is_released_too_early_is_found() {
        check_found(Planted::EarlyRelease, "no promise for it");
    }

    #[test]
    fn a_lost_wake_up_of_a_queued_request_is_found() {
        check_found(Planted::LostDecision, "did not end");
    }

    #[test]
    fn a_lost_wake_up_of_a_recalled_request_is_found() {
        check_found(Planted::LostRecall, "has not noticed");
    }

    #[test]
    fn a_silent_peer_whose_promises_are_kept_is_found() {
        check_found(Planted::SilentPeerKept, "believes that peers have promised");
    }

    #[test]
    fn a_lost_frame_that_is_never_repaired_is_found() {
        check_found(Planted::NoRepair, "believes that peers have promised");
    }
}
