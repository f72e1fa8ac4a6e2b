//! The whole router: built from settings, running on its threads, stopped in good order.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use maitre_dispatch::Brain;
use maitre_fleet::{self as fleet, HealthState, Models};
use maitre_net::pool::UpstreamPool;
use maitre_net::tls::TlsConfigError;
use maitre_net::worker_url::WorkerUrl;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle as Task;
use tracing::info;

use crate::admin::AdminState;
use crate::cluster::{self, Member, NotJoined};
use crate::house::RouterState;
use crate::lane::Lane;
use crate::program::{Plain, Program};
use crate::reading::{NotLoaded, Tokenizers};
use crate::record::{NotRecorded, Recorder};
use crate::roster::{By, Difference, Roster, Source};
use crate::settings::Settings;
use crate::tls::Tls;
use crate::traces::Traces;
use crate::{admin, lane, recent, server, tls, watch};

#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    #[error("listen on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("start a thread: {0}")]
    Thread(io::Error),
    #[error(transparent)]
    Tokenizer(#[from] NotLoaded),
    #[error(transparent)]
    Record(#[from] NotRecorded),
    #[error(transparent)]
    Tls(#[from] TlsConfigError),
    #[error(transparent)]
    Cluster(#[from] NotJoined),
}

/// How long a stop waits for the last lines of the record. Chosen: a healthy disk takes milliseconds.
const RECORD_PATIENCE: Duration = Duration::from_secs(2);

/// The same for the last traces.
const TRACES_PATIENCE: Duration = Duration::from_secs(2);

/// A running router. Dropped without `stop`, it leaves its clients where they are.
pub struct Router {
    house: Arc<RouterState>,
    roster: Arc<Roster>,
    listen: SocketAddr,
    admin: SocketAddr,
    tasks: Vec<Task<()>>,
    lanes: Vec<JoinHandle<()>>,
    /// None: there are no other routers.
    member: Option<Member>,
}

/// How a stop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Every client had its answer.
    Drained,
    /// The deadline passed with this many requests open.
    Cut { open: usize },
}

impl Router {
    /// Binds both listeners and begins to serve; workers are probed from now on. Runs on the caller's
    /// runtime, with traffic on threads of its own.
    pub async fn start(settings: Settings) -> Result<Router, NotStarted> {
        Router::start_in(Arc::new(Plain), settings).await
    }

    /// The same, within a program that can read its settings again.
    pub async fn start_in(program: Arc<dyn Program>, mut settings: Settings) -> Result<Router, NotStarted> {
        let listener = bind(settings.listen).await?;
        let admin_listener = bind(settings.admin).await?;
        let address = |it: &TcpListener, asked| it.local_addr().unwrap_or(asked);
        let (listen, admin) = (address(&listener, settings.listen), address(&admin_listener, settings.admin));
        let tokenizers = Tokenizers::load(&settings.tokenizers)?;
        let tls = Tls::load(&settings)?;
        let (traces, exporter) = Traces::new(&settings).unzip();
        if let Some(cluster) = &mut settings.cluster {
            cluster.name = cluster::name(cluster, listen);
        }
        let house = Arc::new(RouterState::new(settings, tokenizers, tls, traces)?);
        let roster = Arc::new(Roster::new(house.clone()));
        let (tasks, lanes) = (Vec::new(), Vec::new());
        let member = join(&house).await?;
        let mut router = Router { house: house.clone(), roster, listen, admin, tasks, lanes, member };
        router.roster.set(By::Settings, &house.settings().workers);
        let mut queues = Vec::new();
        for number in 0..threads(&house.settings()) {
            let (queue, guests) = mpsc::channel(house.settings().limits.connections);
            router.lanes.push(lane::start(number, house.clone(), guests).map_err(NotStarted::Thread)?);
            queues.push(queue);
        }
        router.run(server::listen(house.clone(), listener, queues));
        let lane =
            Lane { house: house.clone(), pool: UpstreamPool::new(house.settings().limits.idle_per_worker) };
        let desk = AdminState::new(router.roster.clone(), program, lane);
        router.run(admin::listen(Arc::new(desk), admin_listener));
        router.run(recent::take(house.clone()));
        router.run(tls::follow(house.clone()));
        if let Some(exporter) = exporter {
            router.run(exporter.run(house.clone()));
        }
        router.run(watch::tick(house));
        Ok(router)
    }

    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Where other routers reach this one; none unless they are a mesh.
    pub fn mesh(&self) -> Option<SocketAddr> {
        self.member.as_ref()?.address
    }

    /// Looks at what the router believes.
    pub fn look<T>(&self, look: impl FnOnce(&Brain) -> T) -> T {
        self.house.look(look)
    }

    /// Waits until the router believes what is wanted.
    pub async fn until(&self, wanted: impl Fn(&Brain) -> bool) {
        self.house.until(wanted).await;
    }

    /// Waits until every worker has told what it serves and is fit to serve it.
    pub async fn until_all_ready(&self) {
        let fit =
            |it: &fleet::Worker| it.health.state() == HealthState::Ready && it.models != Models::Unknown;
        self.until(|brain| brain.fleet().workers().all(fit)).await;
    }

    /// What a scraper of `/metrics` sees.
    pub fn metrics(&self) -> String {
        self.house.metrics_page()
    }

    #[expect(clippy::disallowed_methods, reason = "the router's own tasks, aborted when it stops")]
    fn run(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(tokio::spawn(task));
    }

    /// Goes by other settings from now on; or changes nothing, and says why not. Requests under way are served as they
    /// were taken in; workers that are no longer named are drained. What is built in (sockets, threads, files) is not
    /// looked at. Reads the TLS files, if others are named, and so blocks on the disk.
    pub fn reload(&self, settings: Settings) -> Result<Difference, String> {
        let workers = settings.workers.clone();
        // In force before the rest: who drops keys for client certificates must not be open to everybody meanwhile, or
        // for good because of a slip in the name of a file.
        self.house.tls.change(&self.house.settings(), &settings, &self.house.metrics)?;
        self.house.reconfigure(settings)?;
        Ok(self.roster.set(By::Settings, &workers))
    }

    /// All workers that were discovered, from now on, and how those fare who found them.
    pub fn discovered(&self, workers: &[WorkerUrl], sources: Vec<Source>) -> Difference {
        *self.house.sources.lock() = sources;
        self.roster.set(By::Discovery, workers)
    }

    /// Not ready from now on; closed after the grace; done when the last stream is, or at the deadline.
    pub async fn stop(self) -> Stopped {
        let timeouts = self.house.settings().timeouts;
        self.house.leaving.cancel();
        tokio::time::sleep(timeouts.drain_grace).await;
        self.house.closing.cancel();
        info!("no new connections; waiting for streams to finish");
        let lanes = self.lanes;
        let joined = tokio::task::spawn_blocking(move || lanes.into_iter().for_each(|it| drop(it.join())));
        let drained = tokio::time::timeout(timeouts.drain, joined).await.is_ok();
        if let Some(traces) = &self.house.traces {
            // A collector that does not answer must not hold us.
            let _ = tokio::time::timeout(TRACES_PATIENCE, traces.flush()).await;
        }
        self.tasks.iter().for_each(Task::abort);
        self.roster.stop();
        if let Some(member) = self.member {
            // Not before: what is promised to workers counts for the others until it is done.
            member.leave().await;
        }
        let house = self.house.clone();
        let taken_down = tokio::task::spawn_blocking(move || house.recorder.as_ref().map(Recorder::finish));
        // A disk that hangs must not hold us; what it did not take is lost.
        let _ = tokio::time::timeout(RECORD_PATIENCE, taken_down).await;
        match drained {
            true => Stopped::Drained,
            false => Stopped::Cut { open: self.house.look(|brain| brain.open()) },
        }
    }
}

async fn join(house: &Arc<RouterState>) -> Result<Option<Member>, NotJoined> {
    let settings = house.settings().cluster.clone();
    match (settings, house.cluster.clone()) {
        (Some(settings), Some(seen)) => Member::join(house, seen, settings).await.map(Some),
        _ => Ok(None),
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, NotStarted> {
    TcpListener::bind(address).await.map_err(|error| NotStarted::Listen { address, error })
}

fn threads(settings: &Settings) -> usize {
    match settings.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
}
