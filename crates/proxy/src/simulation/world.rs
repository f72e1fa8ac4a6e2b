//! Everything that a run shares: the routers, the workers, the script, and the laws that were broken.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use maitre_base::{RequestId, Rng};
use maitre_net::simulated::ConnectionHandle;
use maitre_net::worker_url::WorkerUrl;
use parking_lot::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::SeedReport;
use super::cluster::Network;
use super::host::Host;
use super::router::{self, RouterProcess, SimulatedRouter};
use crate::clock::Clock;

pub(super) struct World {
    clock: Clock,
    pub(super) routers: Vec<SimulatedRouter>,
    /// None with one router.
    pub(super) network: Option<Arc<Network>>,
    pub(super) hosts: Vec<Arc<Host>>,
    pub(super) workers: Vec<WorkerUrl>,
    /// Of a hundred things that a worker does, so many go wrong.
    pub(super) faults_percent: usize,
    /// Answers that workers are giving now.
    pub(super) exchanges: Mutex<Vec<Exchange>>,
    /// By client: the process that it is connected to.
    pub(super) served_by: Mutex<BTreeMap<u32, Arc<RouterProcess>>>,
    /// How often a router's belief was compared with promises that its peers had.
    pub(super) beliefs: AtomicU64,
    /// The last client has left: nothing more goes wrong.
    pub(super) ending: CancellationToken,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    script: Vec<String>,
    violations: Vec<String>,
}

/// A worker answers a request.
pub(super) struct Exchange {
    pub(super) request: u32,
    /// As the router named it.
    pub(super) id: Option<String>,
    /// The router's number of it, once it was looked up: a search reads all ids that the router keeps.
    pub(super) number: Option<RequestId>,
    /// From the worker's end.
    pub(super) connection: ConnectionHandle,
    /// How often in a row the brain did not know of it.
    pub(super) misses: u32,
}

impl World {
    pub(super) fn new(rng: &mut Rng) -> World {
        let clock = Clock::start();
        let hosts: Vec<_> = (0..1 + rng.below(3)).map(|it| Arc::new(Host::new(it, rng))).collect();
        let workers: Vec<WorkerUrl> =
            hosts.iter().map(|it| format!("http://{}:8000", it.name).parse().unwrap()).collect();
        let faults_percent = [0, 5, 20, 60][rng.below(4)];
        let settings = router::settings(workers.clone(), rng);
        let count = [1, 1, 2, 3][rng.below(4)];
        let network = (count > 1).then(|| Arc::new(Network::new(clock, count, rng)));
        let router =
            |index| SimulatedRouter::new(index, settings.clone(), network.clone(), Rng::new(rng.next_u64()));
        World {
            clock,
            routers: (0..count).map(router).collect(),
            network,
            hosts,
            workers,
            faults_percent,
            exchanges: Mutex::default(),
            served_by: Mutex::default(),
            beliefs: AtomicU64::new(0),
            ending: CancellationToken::new(),
            log: Mutex::default(),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.clock.now().as_nanos() / 1_000_000
    }

    /// The routers that are up, each with its process.
    pub(super) fn running(&self) -> Vec<(&SimulatedRouter, Arc<RouterProcess>)> {
        self.routers.iter().filter_map(|it| Some((it, it.process()?))).collect()
    }

    /// Waits for this time, or until the run ends. Returns whether it goes on.
    pub(super) async fn goes_on_after(&self, pause: Duration) -> bool {
        timeout(pause, self.ending.cancelled()).await.is_err()
    }

    pub(super) fn say(&self, event: &str) {
        let now = self.now_ms();
        self.log.lock().script.push(format!("{now:>7} ms  {event}"));
    }

    /// A law is broken.
    pub(super) fn violate(&self, law: &str) {
        self.say(&format!("VIOLATION: {law}"));
        self.log.lock().violations.push(law.to_owned());
    }

    pub(super) fn report(&self) -> SeedReport {
        let Log { script, violations } = std::mem::take(&mut *self.log.lock());
        let processes = self.routers.iter().flat_map(SimulatedRouter::processes);
        let recalls = processes.map(|it| it.state.metrics.queue.recalls.get()).sum();
        let frames = self.network.as_ref().map_or(0, |it| it.fingerprint());
        SeedReport { script, violations, recalls, frames, beliefs: self.beliefs.load(Relaxed) }
    }
}
