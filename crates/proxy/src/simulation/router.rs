//! A router: its processes one after the other, each started, serving, and ended by a stop or a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use maitre_base::Rng;
use maitre_cluster::Incarnation;
use maitre_dispatch::BrainSettings;
use maitre_net::simulated::SimulatedStream;
use maitre_net::stream::ByteStream;
use maitre_net::worker_url::WorkerUrl;
use maitre_queue::QueueSettings;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::cluster::Network;
use crate::clock::Clock;
use crate::cluster::{ClusterSettings, JOIN_TIMEOUT, Via};
use crate::lane::Lane;
use crate::metrics::Metrics;
use crate::peering::ClusterMember;
use crate::readiness::Readiness;
use crate::request_ids::RequestIds;
use crate::roster::{By, Roster};
use crate::settings::{KvEventSettings, RouterSettings, Timeouts};
use crate::state::{Parts, RouterState};
use crate::tls::Tls;
use crate::tokenize::{EngineTokenizers, LocalTokenizers};
use crate::{router, server, threads};

pub(super) struct SimulatedRouter {
    pub(super) index: usize,
    pub(super) name: String,
    settings: RouterSettings,
    /// None: it is the only router.
    network: Option<Arc<Network>>,
    /// All processes so far. The last one may be running.
    processes: Mutex<Vec<Arc<RouterProcess>>>,
    rng: Mutex<Rng>,
}

/// One life of a router.
pub(super) struct RouterProcess {
    pub(super) state: Arc<RouterState>,
    pub(super) roster: Roster,
    /// None once it has ended. It holds idle connections to workers.
    lane: Mutex<Option<Arc<Lane>>>,
    tasks: Mutex<JoinSet<()>>,
    connections: Mutex<JoinSet<()>>,
    member: Mutex<Option<ClusterMember>>,
    was_ready: AtomicBool,
    /// It was asked to stop, or has crashed: its clients may get nothing.
    is_ending: AtomicBool,
    has_ended: AtomicBool,
    /// It was stopped, and all its requests had ended by then.
    has_drained: AtomicBool,
}

impl SimulatedRouter {
    pub(super) fn new(
        index: usize,
        settings: RouterSettings,
        network: Option<Arc<Network>>,
        rng: Rng,
    ) -> SimulatedRouter {
        let name = format!("router{index}");
        SimulatedRouter { index, name, settings, network, processes: Mutex::default(), rng: Mutex::new(rng) }
    }

    /// The process that runs. None while the router is down.
    pub(super) fn process(&self) -> Option<Arc<RouterProcess>> {
        self.processes.lock().last().filter(|it| !it.has_ended.load(Relaxed)).cloned()
    }

    pub(super) fn processes(&self) -> Vec<Arc<RouterProcess>> {
        self.processes.lock().clone()
    }

    /// Starts a process. Its incarnation is a time in milliseconds, by a clock that may have been set back.
    pub(super) fn start(&self, incarnation: u64) {
        let mut rng = self.rng.lock();
        let mut settings = self.settings.clone();
        settings.brain.seed = rng.next_u64();
        settings.cluster = self.network.is_some().then(|| ClusterSettings {
            via: Via::Mesh { listen: ([127, 0, 0, 1], 0).into(), advertise: None, peers: Vec::new() },
            name: self.name.clone(),
            group: String::new(),
            key: None,
            join_timeout: JOIN_TIMEOUT,
        });
        let state = Arc::new(state(settings, rng.next_u64(), incarnation));
        let process = RouterProcess::start(state);
        if let (Some(network), Some(handles)) = (&self.network, router::handles(&process.state)) {
            let (transport, task) = network.clone().attach(self.index);
            let member = ClusterMember::run(handles, None, (transport, JOIN_TIMEOUT), task);
            *process.member.lock() = Some(member);
        }
        self.processes.lock().push(Arc::new(process));
    }
}

impl RouterProcess {
    fn start(state: Arc<RouterState>) -> RouterProcess {
        let roster = Roster::new(router::watcher(&state));
        roster.set(By::Settings, &state.settings.load().workers);
        let lane = Arc::new(Lane::new(state.clone()));
        let mut tasks = JoinSet::new();
        tasks.spawn(threads::sweep(lane.clone()));
        let brain = state.brain.clone();
        tasks.spawn(async move { brain.tick().await });
        RouterProcess {
            state,
            roster,
            lane: Mutex::new(Some(lane)),
            tasks: Mutex::new(tasks),
            connections: Mutex::default(),
            member: Mutex::default(),
            was_ready: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            has_drained: AtomicBool::new(false),
        }
    }

    /// Waits until it takes requests and knows all workers.
    pub(super) async fn until_ready(&self) {
        let is_ready = |brain: &maitre_dispatch::Brain| {
            brain.fleet().workers().all(maitre_fleet::Worker::is_ready) && !self.state.is_joining()
        };
        while !self.state.brain.read(is_ready) {
            sleep(Duration::from_millis(50)).await;
        }
        self.was_ready.store(true, Relaxed);
    }

    /// Serves a client. False: it is starting or stopping, which a load balancer knows by its readiness.
    pub(super) fn accept(&self, stream: SimulatedStream) -> bool {
        let state = &self.state;
        let takes = match state.brain.read(|brain| state.readiness(brain)) {
            Readiness::Ready => true,
            Readiness::NoWorker => self.was_ready.load(Relaxed),
            Readiness::Draining | Readiness::Joining => false,
        };
        let Some(lane) = self.lane.lock().clone().filter(|_| takes) else { return false };
        self.was_ready.store(true, Relaxed);
        let opening = async { Some(ByteStream::Simulated(stream)) };
        self.connections.lock().spawn(server::serve_stream(lane, opening));
        true
    }

    /// Waits until all client connections have ended. Returns why one of them failed, if one did.
    pub(super) async fn join_connections(&self) -> Option<String> {
        let mut connections = std::mem::take(&mut *self.connections.lock());
        let mut panic = None;
        while let Some(ended) = connections.join_next().await {
            panic = panic.or(ended.err().filter(|it| it.is_panic()).map(|it| it.to_string()));
        }
        panic
    }

    /// Stops it as an operator does: requests in flight are answered, and peers get a goodbye. Returns why a connection
    /// failed, if one did.
    pub(super) async fn stop(&self) -> Option<String> {
        self.is_ending.store(true, Relaxed);
        self.state.shutdown.drain();
        let Timeouts { drain, drain_grace, .. } = self.state.settings.load().timeouts;
        sleep(drain_grace).await;
        self.state.shutdown.close();
        let joined = timeout(drain, self.join_connections()).await;
        self.has_drained.store(joined.is_ok(), Relaxed);
        self.end_tasks();
        let member = self.member.lock().take();
        if let Some(member) = member {
            member.leave().await;
        }
        self.has_ended.store(true, Relaxed);
        joined.unwrap_or_default()
    }

    /// Ends it at once. Its connections break, and nobody hears of it.
    pub(super) fn crash(&self) {
        self.is_ending.store(true, Relaxed);
        self.has_ended.store(true, Relaxed);
        // First, so that peers do not hear that its requests have ended.
        drop(self.member.lock().take());
        self.connections.lock().abort_all();
        self.end_tasks();
    }

    fn end_tasks(&self) {
        self.tasks.lock().abort_all();
        self.roster.stop();
        self.lane.lock().take();
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Relaxed)
    }

    /// Whether nothing may be left of any request once its clients are gone: not so if it crashed, or was stopped in the
    /// midst of requests.
    pub(super) fn ends_clean(&self) -> bool {
        !self.has_ended.load(Relaxed) || self.has_drained.load(Relaxed)
    }
}

pub(super) fn state(settings: RouterSettings, nonce: u64, incarnation: u64) -> RouterState {
    let parts = Parts {
        clock: Clock::start(),
        metrics: Arc::new(Metrics::new(&settings.brain.queue.classes)),
        tokenizers: LocalTokenizers::load(&settings.tokenizers).unwrap(),
        tls: Tls::load(&settings).unwrap(),
        traces: None,
    };
    let mut state = RouterState::new(settings, parts).unwrap();
    // Random in production, and the time of day.
    let mut request_ids = RequestIds::default();
    request_ids.instance_nonce = nonce;
    state.tokenizer.engines = EngineTokenizers::new(nonce);
    state.request_ids = Arc::new(request_ids);
    if let Some(cluster) = state.cluster.as_mut().and_then(Arc::get_mut) {
        cluster.incarnation = Incarnation(incarnation);
    }
    state
}

/// Limits so short that runs reach them, and so that a request has ended after `LIMIT` by any of them but `total`.
pub(super) fn settings(workers: Vec<WorkerUrl>, rng: &mut Rng) -> RouterSettings {
    let seconds = Duration::from_secs;
    let mut queue = QueueSettings {
        sequences_max: [0, 1, 2, 4][rng.below(4)],
        recall: rng.below(3) > 0,
        ..QueueSettings::default()
    };
    for (class, limit) in queue.classes.iter_mut().zip([20, 30, 40]) {
        class.deadline = Some(seconds(limit));
    }
    RouterSettings {
        workers,
        brain: BrainSettings { queue, ..BrainSettings::default() },
        events: KvEventSettings { enabled: false, ..KvEventSettings::default() },
        timeouts: Timeouts {
            client_header: seconds(4),
            client_body: seconds(4),
            client_stalled: seconds(4),
            client_idle: seconds(10),
            connect: Duration::from_millis(500),
            headers: seconds(6),
            first_token: seconds(6),
            inter_token: seconds(3),
            total: seconds(900),
            ..Timeouts::default()
        },
        ..RouterSettings::default()
    }
}
