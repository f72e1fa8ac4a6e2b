//! The laws of several routers.
//!
//! While a run goes on: once the network has been calm for a while and no router's promises change, each router knows
//! what its peers have promised to each worker. At its end: routers that are up see each other as live, know how many
//! requests each has served, and believe that no peer has promised anything; nothing is left of a router that is down.
//! No frame was rejected, no limit on rows was reached, and the brain's outbox did not overflow.
//!
//! Left out: what routers know of each other's caches and tenants. The laws of `maitre_cluster` compare it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use maitre_base::{Instant, PromisedWork};
use maitre_cluster::{PeerState, SILENCE_MAX};
use tokio::time::sleep;

use super::INTERVAL;
use crate::roster::By;
use crate::simulation::cluster::DIAL_MAX;
use crate::simulation::router::{RouterProcess, SimulatedRouter};
use crate::simulation::world::World;

/// How long routers that reach each other may take until they agree: two seconds by the laws of `maitre_cluster`, and
/// one for the latency here.
const AGREE_MAX: Duration = Duration::from_secs(3);

/// The same in checks, since the clock may jump.
const CALM_MIN: u32 = 30;

/// After so many checks without a change, routers must agree: 0.8 s, of which a frame may take a third. A belief may
/// change later than the promise, and a promise may come and go between two checks.
const STEADY_MIN: u32 = 8;

/// How long workers without requests take to leave a fleet or to join it.
const REJOIN: Duration = Duration::from_millis(200);

/// Rows that a router publishes besides those of workers: one account. Its clients have no sessions and are one tenant.
const ACCOUNTS: usize = 1;

/// What a router has promised to a worker, and what it believes that its peers have.
type Promised = (PromisedWork, PromisedWork);

/// By worker.
type Promises = BTreeMap<u64, Promised>;

/// Compares what routers have promised with what their peers believe.
pub(super) struct PeerWatch {
    /// Since when the network is calm, and for how many checks.
    calm: (Option<Instant>, u32),
    /// When it was last checked.
    checked: Instant,
    workers: BTreeMap<u64, SteadyWorker>,
}

/// What routers have promised to a worker and believe of their peers, and for how many checks in a row.
#[derive(Default)]
struct SteadyWorker {
    /// By router that is up; none where the worker is not in the fleet.
    promised: Vec<Option<Promised>>,
    checks: u32,
}

impl Default for PeerWatch {
    fn default() -> PeerWatch {
        PeerWatch { calm: (None, 0), checked: Instant::ZERO, workers: BTreeMap::new() }
    }
}

impl PeerWatch {
    pub(super) fn check(&mut self, world: &World) {
        let Some(network) = &world.network else { return };
        let calm_since = network.calm_since();
        // A clock that jumps ends the calm: nothing was heard of any peer meanwhile, so silent ones are spared once more.
        let now = Instant::from_millis(world.now_ms());
        let has_jumped = now.since(self.checked) > 2 * INTERVAL;
        self.checked = now;
        if calm_since.is_none() || calm_since != self.calm.0 || has_jumped {
            *self = PeerWatch { calm: (calm_since, 0), workers: BTreeMap::new(), ..*self };
            return;
        }
        self.calm.1 += 1;
        if self.calm.1 < CALM_MIN {
            return;
        }
        let running = world.running();
        let promises: Vec<Promises> = running.iter().map(|it| promises(&it.1)).collect();
        let keys: BTreeSet<u64> = promises.iter().flat_map(BTreeMap::keys).copied().collect();
        for key in keys {
            let of_worker: Vec<_> = promises.iter().map(|it| it.get(&key).copied()).collect();
            let worker = self.workers.entry(key).or_default();
            if worker.promised != of_worker {
                *worker = SteadyWorker { promised: of_worker, checks: 0 };
            }
            worker.checks += 1;
            if worker.checks == STEADY_MIN {
                let routers = running.iter().enumerate();
                routers.for_each(|(index, it)| check_belief(world, it.0, index, &worker.promised));
            }
        }
    }
}

fn promises(process: &RouterProcess) -> Promises {
    let mut promises = Promises::new();
    process.state.brain.read(|brain| {
        for worker in brain.fleet().workers() {
            let (own, others) = promises.entry(worker.key).or_default();
            *own = own.plus(&worker.promised.work);
            *others = others.plus(&worker.promised_by_others.work);
        }
    });
    promises
}

/// What the router at `index` believes of its peers is what they have promised.
fn check_belief(world: &World, router: &SimulatedRouter, index: usize, promised: &[Option<Promised>]) {
    let Some((_, believed)) = promised[index] else { return };
    let peers = promised.iter().enumerate().filter(|it| it.0 != index).filter_map(|it| *it.1);
    let actual = peers.fold(PromisedWork::default(), |sum, it| sum.plus(&it.0));
    if actual != PromisedWork::default() {
        world.beliefs.fetch_add(1, Relaxed);
    }
    if believed != actual {
        let name = &router.name;
        world.violate(&format!("{name} believes that peers have promised {believed:?}, not {actual:?}"));
    }
}

pub(super) async fn check_end(world: &World) {
    sleep(SILENCE_MAX + DIAL_MAX + AGREE_MAX).await;
    check_no_promises(world);
    for (router, process) in &world.running() {
        check_status(world, router, process);
    }
    // A router also keeps what peers have promised to workers that it does not have, for when they return.
    for workers in [&[], &world.workers[..]] {
        world.running().iter().for_each(|it| drop(it.1.roster.set(By::Settings, workers)));
        sleep(REJOIN).await;
    }
    check_no_promises(world);
}

fn check_no_promises(world: &World) {
    for (router, process) in &world.running() {
        for (_, believed) in promises(process).values() {
            if *believed != PromisedWork::default() {
                world.violate(&format!("{} believes that peers have promised {believed:?}", router.name));
            }
        }
    }
}

/// A router's view of its peers.
fn check_status(world: &World, router: &SimulatedRouter, process: &RouterProcess) {
    let Some(cluster) = &process.state.cluster else { return };
    let status = cluster.status();
    let live = status.routers.iter().filter(|it| !it.is_self && it.state == PeerState::Live);
    let seen: Vec<_> = live.map(|it| (it.name.clone(), it.incarnation.0, it.served, it.in_flight)).collect();
    let running = world.running();
    let peers = running.iter().filter(|it| it.0.index != router.index);
    let actual: Vec<_> = peers
        .filter_map(|(peer, process)| {
            let incarnation = process.state.cluster.as_ref()?.incarnation.0;
            Some((peer.name.clone(), incarnation, process.state.request_ids.issued(), 0))
        })
        .collect();
    if seen != actual {
        world.violate(&format!("{} sees its peers as {seen:?}, not as {actual:?}", router.name));
    }
    if !status.synced {
        world.violate(&format!("{} has not got all snapshots of its peers", router.name));
    }
    let rows_max = running.len() * (world.hosts.len() + ACCOUNTS);
    if status.stats.rows > rows_max {
        world.violate(&format!("{} holds {} rows, not {rows_max}", router.name, status.stats.rows));
    }
    let sample = cluster.sample(1.0);
    let rejected: u64 = sample.rejected.iter().map(|it| it.1).sum();
    if rejected > 0 || status.overflowed > 0 || status.stats.dropped > 0 {
        let name = &router.name;
        world.violate(&format!("{name} has rejected or dropped: {:?} {:?}", sample.rejected, sample.dropped));
    }
}
