//! The whole router: built from settings, run on its threads, stopped gracefully.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use maitre_dispatch::Brain;
use maitre_fleet::{self as fleet, HealthState, Models};
use maitre_net::tls::TlsConfigError;
use maitre_net::worker_url::WorkerUrl;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle as Task;
use tracing::info;

use crate::admin::AdminState;
use crate::clock::Clock;
use crate::lane::Lane;
use crate::metrics::Metrics;
use crate::peering::{self, ClusterMember, NotJoined};
use crate::program::{NoProgram, Program};
use crate::record::{NotRecorded, Recorder};
use crate::roster::{By, Difference, DiscoveryStatus, Roster};
use crate::server::Accepted;
use crate::settings::RouterSettings;
use crate::state::{Parts, RouterState};
use crate::tls::Tls;
use crate::tokenize::{LocalTokenizers, NotLoaded};
use crate::traces::{Exporter, Traces};
use crate::watch::Watcher;
use crate::{admin, cluster, recent, server, threads, tls};

#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    #[error("listen on {address}: {error}{}", advice(error))]
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
const RECORD_TIMEOUT: Duration = Duration::from_secs(2);

/// The same for the last traces.
const TRACES_TIMEOUT: Duration = Duration::from_secs(2);

/// A running router. Dropping it without `stop` cuts off its clients.
pub struct Router {
    state: Arc<RouterState>,
    roster: Arc<Roster>,
    listen: SocketAddr,
    admin: SocketAddr,
    tasks: Vec<Task<()>>,
    threads: Vec<JoinHandle<()>>,
    /// None: this router is alone.
    member: Option<ClusterMember>,
}

/// How a stop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Every request in flight was answered.
    Drained,
    /// The deadline passed with this many requests in flight.
    Cut { open: usize },
}

impl Router {
    /// What keeps a router with these settings from starting on this machine: files of certificates and tokenizers that it
    /// cannot read or use. Blocks on the disk.
    pub fn unusable_files(settings: &RouterSettings) -> Vec<String> {
        let tls = Tls::errors(settings).map(|it| it.to_string());
        let tokenizers = LocalTokenizers::errors(&settings.tokenizers).map(|it| it.to_string());
        tls.chain(tokenizers).collect()
    }

    /// Binds both listeners and begins to serve and to probe workers. Runs on the caller's runtime, and serves requests on
    /// threads of its own.
    pub async fn start(settings: RouterSettings) -> Result<Router, NotStarted> {
        Router::start_in(Arc::new(NoProgram), settings).await
    }

    /// The same, within a program that can reload its settings.
    pub async fn start_in(
        program: Arc<dyn Program>,
        mut settings: RouterSettings,
    ) -> Result<Router, NotStarted> {
        let listener = bind(settings.listen).await?;
        let admin_listener = bind(settings.admin).await?;
        let address = |it: &TcpListener, asked| it.local_addr().unwrap_or(asked);
        let (listen, admin) = (address(&listener, settings.listen), address(&admin_listener, settings.admin));
        if let Some(cluster) = &mut settings.cluster {
            cluster.name = cluster::name(cluster, listen);
        }
        let metrics = Arc::new(Metrics::new(&settings.brain.queue.classes));
        let log = program.clone();
        metrics.process.read_log_drops(move || log.log_lines_dropped());
        let (traces, exporter) = Traces::new(&settings, metrics.traces.clone()).unzip();
        let parts = Parts {
            metrics,
            tokenizers: LocalTokenizers::load(&settings.tokenizers)?,
            tls: Tls::load(&settings)?,
            traces,
            clock: Clock::start(),
        };
        let state = Arc::new(RouterState::new(settings, parts)?);
        let roster = Arc::new(Roster::new(watcher(&state)));
        let (tasks, threads) = (Vec::new(), Vec::new());
        let member = join(&state).await?;
        let mut router = Router { state: state.clone(), roster, listen, admin, tasks, threads, member };
        router.roster.set(By::Settings, &state.settings.load().workers);
        let accepted = router.start_threads()?;
        router.run(server::listen(state.clone(), listener, accepted));
        let admin = AdminState::new(router.roster.clone(), program, Arc::new(Lane::new(state.clone())));
        router.run(admin::listen(Arc::new(admin), admin_listener));
        router.run_tasks(exporter);
        Ok(router)
    }

    /// Starts the threads; returns where to send each its connections.
    fn start_threads(&mut self) -> Result<Vec<mpsc::Sender<Accepted>>, NotStarted> {
        let settings = self.state.settings.snapshot();
        let mut queues = Vec::new();
        for number in 0..thread_count(&settings) {
            let (queue, accepted) = mpsc::channel(settings.limits.connections);
            let thread = threads::start(number, self.state.clone(), accepted);
            self.threads.push(thread.map_err(NotStarted::Thread)?);
            queues.push(queue);
        }
        Ok(queues)
    }

    fn run_tasks(&mut self, exporter: Option<Exporter>) {
        let RouterState { recent, brain, settings, metrics, tls, clock, .. } = &*self.state.clone();
        self.run(recent::run(recent.clone(), brain.clone(), settings.clone()));
        self.run(tls::follow(*clock, tls.clone(), settings.clone(), metrics.clone()));
        if let Some(exporter) = exporter {
            self.run(exporter.run(*clock, tls.collector.clone()));
        }
        let brain = brain.clone();
        self.run(async move { brain.tick().await });
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

    /// Reads the router's beliefs.
    pub fn look<T>(&self, look: impl FnOnce(&Brain) -> T) -> T {
        self.state.brain.read(look)
    }

    /// Waits until the condition holds.
    pub async fn until(&self, wanted: impl Fn(&Brain) -> bool) {
        self.state.brain.until(wanted).await;
    }

    /// Waits until every worker is ready and its models are known.
    pub async fn until_all_ready(&self) {
        let fit =
            |it: &fleet::Worker| it.health.state() == HealthState::Ready && it.models != Models::Unknown;
        self.until(|brain| brain.fleet().workers().all(fit)).await;
    }

    /// The text of `/metrics`.
    pub fn metrics(&self) -> String {
        self.state.metrics_page()
    }

    #[expect(clippy::disallowed_methods, reason = "the router's own tasks, aborted when it stops")]
    fn run(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(tokio::spawn(task));
    }

    /// Applies other settings; or changes nothing, and returns why. Requests in flight keep the old settings; workers that
    /// are no longer listed are drained. Settings of sockets, threads and files need a restart. Reads the TLS files if
    /// others are named, and so blocks on the disk.
    pub fn reload(&self, settings: RouterSettings) -> Result<Difference, String> {
        let workers = settings.workers.clone();
        // Applied first: an operator who replaces keys by client certificates must not leave the router open meanwhile,
        // or for good because of a wrong file name.
        let state = &self.state;
        state.tls.change(&state.settings.load(), &settings, &state.metrics)?;
        state.reconfigure(settings)?;
        Ok(self.roster.set(By::Settings, &workers))
    }

    /// Sets all workers that discovery found, and the state of its sources.
    pub fn discovered(&self, workers: &[WorkerUrl], sources: Vec<DiscoveryStatus>) -> Difference {
        *self.state.sources.lock() = sources;
        self.roster.set(By::Discovery, workers)
    }

    /// Reports that the router is not ready; after the grace closes it; returns when the last stream has ended, or at the
    /// deadline.
    pub async fn stop(self) -> Stopped {
        let timeouts = self.state.settings.load().timeouts;
        self.state.shutdown.drain();
        tokio::time::sleep(timeouts.drain_grace).await;
        self.state.shutdown.close();
        info!("no new connections; waiting for streams to finish");
        let threads = self.threads;
        let joined = tokio::task::spawn_blocking(move || threads.into_iter().for_each(|it| drop(it.join())));
        let drained = tokio::time::timeout(timeouts.drain, joined).await.is_ok();
        if let Some(traces) = &self.state.traces {
            // A collector that does not respond must not delay the stop.
            let _ = tokio::time::timeout(TRACES_TIMEOUT, traces.flush()).await;
        }
        self.tasks.iter().for_each(Task::abort);
        self.roster.stop();
        if let Some(member) = self.member {
            // Not earlier: our promises to workers count for the other routers until they are done.
            member.leave().await;
        }
        let state = self.state.clone();
        let recorded = tokio::task::spawn_blocking(move || state.recorder.as_ref().map(Recorder::finish));
        // A disk that hangs must not delay the stop; what it did not take is lost.
        let _ = tokio::time::timeout(RECORD_TIMEOUT, recorded).await;
        match drained {
            true => Stopped::Drained,
            false => Stopped::Cut { open: self.state.brain.read(|brain| brain.open()) },
        }
    }
}

/// What watches the workers of this router.
pub(crate) fn watcher(state: &RouterState) -> Watcher {
    Watcher {
        brain: state.brain.clone(),
        settings: state.settings.clone(),
        metrics: state.metrics.clone(),
        tls: state.tls.workers.clone(),
        seed: state.request_ids.instance_nonce,
    }
}

async fn join(state: &RouterState) -> Result<Option<ClusterMember>, NotJoined> {
    let (Some(settings), Some(handles)) = (state.settings.load().cluster.clone(), handles(state)) else {
        return Ok(None);
    };
    ClusterMember::join(handles, settings).await.map(Some)
}

/// What a member of the cluster needs of this router. None if it is alone.
pub(crate) fn handles(state: &RouterState) -> Option<peering::Handles> {
    Some(peering::Handles {
        brain: state.brain.clone(),
        view: state.cluster.clone()?,
        request_ids: state.request_ids.clone(),
        in_flight: state.metrics.in_flight.clone(),
    })
}

/// What to do about an address that cannot be listened on.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; stop the process that has this port, or set another one for listen or admin"
        }
        io::ErrorKind::AddrNotAvailable => {
            "; this machine has no such address: set listen and admin to one it has"
        }
        io::ErrorKind::PermissionDenied => {
            "; use a port from 1024 on, or give the process CAP_NET_BIND_SERVICE"
        }
        _ => "",
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, NotStarted> {
    TcpListener::bind(address).await.map_err(|error| NotStarted::Listen { address, error })
}

fn thread_count(settings: &RouterSettings) -> usize {
    match settings.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        count => count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_an_error_with_advice() {
        let address = SocketAddr::from(([127, 0, 0, 1], 8081));
        let refused = |kind: io::ErrorKind| NotStarted::Listen { address, error: kind.into() }.to_string();
        assert_eq!(
            refused(io::ErrorKind::AddrInUse),
            "listen on 127.0.0.1:8081: address in use; stop the process that has this port, or set another one for listen \
             or admin"
        );
        assert!(refused(io::ErrorKind::AddrNotAvailable).ends_with("set listen and admin to one it has"));
        assert_eq!(refused(io::ErrorKind::Other), "listen on 127.0.0.1:8081: other error");
    }
}
