//! The router's own code in one thread and in virtual time, over in-memory connections that a seed drives.
//!
//! Real: connections of clients, the request path with its retries, recalls and timers, connections to workers
//! and their pool, probes, the brain and its ticks. Simulated: the bytes below them (`maitre_net::simulated`), workers and
//! clients. A seed decides how bytes are split, what workers and clients do wrong and when, so the same seed gives the
//! same run. `laws` checks the runs. A seed that breaks a law prints its number and its script.
//!
//! Left out: TLS, HTTP/2, several lanes, and the cluster.

mod client;
mod host;
mod laws;
mod message;
mod worker;
mod world;

use std::sync::Arc;
use std::time::Duration;

use maitre_base::Rng;
use maitre_net::simulated::{self, Dialed};
use maitre_net::stream::ByteStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::lane::Lane;
use crate::roster::{By, Roster};
use crate::{router, server, threads};
use client::Client;
use world::World;

/// Every request must have ended after this time. Far above all limits in `world::settings` together, except for the one
/// on the whole request: a request that ends by that one alone has missed a wake-up.
const LIMIT: Duration = Duration::from_secs(240);

/// What a run was, and which laws it broke.
#[derive(Debug, PartialEq, Eq)]
struct SeedReport {
    script: Vec<String>,
    violations: Vec<String>,
    recalls: u64,
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
    let state = world.state.clone();
    let roster = Arc::new(Roster::new(router::watcher(&state)));
    roster.set(By::Settings, &state.settings.load().workers);
    let lane = Arc::new(Lane::new(state.clone()));
    let mut background = JoinSet::new();
    background.spawn(threads::sweep(lane.clone()));
    background.spawn({
        let brain = state.brain.clone();
        async move { brain.tick().await }
    });
    let ready = state.brain.until(|brain| brain.fleet().workers().all(maitre_fleet::Worker::is_ready));
    if timeout(LIMIT, ready).await.is_err() {
        world.violate("the workers never became ready");
    }
    background.spawn(laws::watch(world.clone()));
    background.spawn(worker::disturb(world.clone(), roster.clone(), rng.next_u64()));
    serve_clients(&world, &lane, &mut rng).await;
    laws::check_end(&world).await;
    roster.stop();
    world.report()
}

/// Runs all clients to their end, and the router's side of their connections.
async fn serve_clients(world: &Arc<World>, lane: &Arc<Lane>, rng: &mut Rng) {
    let (mut clients, mut connections) = (JoinSet::new(), JoinSet::new());
    for number in 0..1 + rng.below(8) as u32 {
        let bytes_max = [64, 700, 16_000][rng.below(3)];
        let (ours, theirs) = simulated::pair(Rng::new(rng.next_u64()), bytes_max);
        let client = Client::new(world.clone(), number, (theirs, bytes_max), Rng::new(rng.next_u64()));
        let begins = Duration::from_millis(rng.below(3_000) as u64);
        let opening = async move {
            sleep(begins).await;
            Some(ByteStream::Simulated(ours))
        };
        connections.spawn(server::serve_stream(lane.clone(), opening));
        clients.spawn(async move {
            sleep(begins).await;
            client.run().await;
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.expect("a client of the simulation");
    }
    let ending = async {
        while let Some(ended) = connections.join_next().await {
            if let Err(error) = ended {
                world.violate(&format!("the router panicked: {error}"));
            }
        }
    };
    if timeout(LIMIT, ending).await.is_err() {
        world.violate("a connection of a client that has left is still served");
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
        let sums = std::thread::scope(|scope| {
            let spawn = |thread| {
                scope.spawn(move || {
                    (first..first + count).skip(thread as usize).step_by(threads as usize).fold(
                        (0, 0),
                        |sum, seed| {
                            let report = check(seed);
                            (sum.0 + report.script.len() as u64, sum.1 + report.recalls)
                        },
                    )
                })
            };
            let running: Vec<_> = (0..threads).map(spawn).collect();
            running
                .into_iter()
                .map(|it| it.join().expect("no law is broken"))
                .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
        });
        println!("{count} seeds from {first}: {} events, {} recalls, no violation", sums.0, sums.1);
        assert!(count < SEEDS || sums.1 > 0, "no seed recalled a request, so nothing was checked of recalls");
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
}
