//! Watches one worker: is it healthy, which models does it serve, how loaded does it report to be.
//!
//! Real traffic shows most of that, and sooner. Probes are for workers without traffic, and for doubts that traffic
//! raises. A probe that times out counts only if nothing else was received meanwhile: a busy engine may be slow to
//! answer its health check while it streams to a hundred clients.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::SERVER;
use http::{HeaderValue, StatusCode};
use maitre_base::{EngineLoad, Instant, Rng, Role, hash};
use maitre_dialect::engine::{self, EngineKind, HEALTH_DELAY_MAX, sources};
use maitre_dialect::models::{self, CardList};
use maitre_dispatch::Event;
use maitre_fleet::{Card, Evidence};
use maitre_net::bearer::Bearer;
use maitre_net::connect::ConnectError;
use maitre_net::tls::TlsClient;
use maitre_net::upstream::{Upstream, UpstreamError, UpstreamRequest};
use maitre_net::worker_url::{EventSource, ZmqEndpoint};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::brain::SharedBrain;
use crate::headers;
use crate::link::Link;
use crate::metrics::Metrics;
use crate::model_log::log_change;
use crate::refuse::is_fit;
use crate::request_ids::router_name;
use crate::settings::SharedSettings;
use crate::subscribe::{self, Publisher};

/// Largest response read from a worker: metrics of a large model are tens of kilobytes.
const RESPONSE_BYTES_MAX: usize = 4 << 20;

/// Idle workers that are probed at each interval. A larger fleet is probed about as often in total: a thousand idle
/// workers that were probed each second took 10 % of a core.
pub(crate) const IDLE_WORKERS_PROBED: usize = 350;

/// A report of an engine's load counts for 3.5 s. So even an idle worker is probed before that, at the default interval.
const IDLE_INTERVALS_MAX: usize = 3;

/// How many intervals lie between two probes of an idle worker.
pub(crate) fn idle_intervals(workers: usize) -> u32 {
    workers.div_ceil(IDLE_WORKERS_PROBED).clamp(1, IDLE_INTERVALS_MAX) as u32
}

/// What watching a worker needs of the router.
#[derive(Clone)]
pub(crate) struct Watcher {
    pub(crate) brain: Arc<SharedBrain>,
    pub(crate) settings: Arc<SharedSettings>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tls: Arc<TlsClient>,
    /// Of this run: seeds the jitter of probes, and tells this router from others.
    pub(crate) seed: u64,
}

impl Watcher {
    /// Watches until the worker has left the fleet.
    pub(crate) async fn watch(self, link: Arc<Link>) {
        let seed = hash::bytes(self.seed, link.url.as_bytes());
        let mut watch = WorkerWatch {
            watcher: self,
            link,
            upstream: None,
            is_probed: false,
            models_at: None,
            is_unlisted: false,
            source: None,
            sources_at: None,
            first_rank: 0,
            subscription: JoinSet::new(),
            rng: Rng::new(seed),
        };
        let gone = watch.link.gone.clone();
        tokio::select! {
            // Nothing is reported about a worker that has left.
            biased;
            () = gone.cancelled() => {}
            () = watch.run() => {}
        }
        // The subscription counts its events. It must have ended before its counters are removed, or they would return.
        watch.subscription.shutdown().await;
        let WorkerWatch { watcher, link, .. } = &watch;
        // The same address may be back with other options: then its counters continue.
        if !watcher.brain.links().iter().any(|it| it.url == link.url) {
            watcher.metrics.caches.feeds.forget(&link.url);
        }
    }
}

struct WorkerWatch {
    watcher: Watcher,
    link: Arc<Link>,
    upstream: Option<Upstream>,
    is_probed: bool,
    /// When the list of models was last read.
    models_at: Option<Instant>,
    /// It has been logged that the worker does not list its models.
    is_unlisted: bool,
    /// Where the worker publishes KV events, and when that was last checked.
    source: Option<Publisher>,
    sources_at: Option<Instant>,
    /// By which the engine numbers its first rank. The worker's own rank counts from there.
    first_rank: u32,
    /// The task that follows the events.
    subscription: JoinSet<()>,
    rng: Rng,
}

struct ProbeResponse {
    status: StatusCode,
    server: Option<String>,
    /// Which Maitre router answers, if one does.
    router: Option<HeaderValue>,
    body: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unanswered {
    /// The connection was refused, or TLS failed.
    Refused,
    /// No response in time.
    TimedOut,
    /// The connection broke.
    Broke,
    /// This process has no socket left.
    NoSocket,
}

impl WorkerWatch {
    async fn run(&mut self) {
        loop {
            if self.probe().await && self.look().await == Err(Unanswered::TimedOut) {
                // It was healthy a moment ago and does not respond now: probe again at once.
                continue;
            }
            self.pause().await;
        }
    }

    /// Waits until the next probe: one interval, or several if the worker is healthy and idle.
    async fn pause(&mut self) {
        // Jitter, so that a thousand workers are not probed at the same moment.
        let interval = self.watcher.settings.load().probes.interval.mul_f64(0.9 + 0.2 * self.rng.unit());
        let heard = self.link.heard();
        let is_healthy = heard.is_some() && self.models_at.is_some();
        let intervals = if is_healthy { idle_intervals(self.watcher.brain.workers()) } else { 1 };
        for _ in 0..intervals {
            tokio::select! {
                biased;
                () = self.link.probe.notified() => return,
                () = sleep(interval) => {}
            }
            if self.link.heard() != heard || self.link.has_waiting() {
                return;
            }
        }
    }

    async fn look(&mut self) -> Result<(), Unanswered> {
        self.detect_engine().await?;
        self.read_load().await?;
        self.follow_events().await
    }

    /// Subscribes to the worker's KV events, once it is known where it publishes them.
    async fn follow_events(&mut self) -> Result<(), Unanswered> {
        let now = self.watcher.brain.now();
        let pause = self.watcher.settings.load().probes.models_interval;
        if self.sources_at.is_some_and(|at| now.since(at) < pause) {
            return Ok(());
        }
        let source = self.find_source().await?;
        self.sources_at = Some(now);
        if source != self.source {
            self.subscription.shutdown().await;
            if let Some(source) = source.clone() {
                let (brain, metrics) = (self.watcher.brain.clone(), self.watcher.metrics.clone());
                self.subscription.spawn(subscribe::follow(brain, metrics, self.link.clone(), source));
            }
            self.source = source;
        }
        Ok(())
    }

    /// Where the worker publishes: as configured for it, as configured for all, or as it reports itself.
    async fn find_source(&mut self) -> Result<Option<Publisher>, Unanswered> {
        let (link, settings) = (self.link.clone(), self.watcher.settings.load().events.clone());
        let rank = u16::try_from(link.rank.unwrap_or(0)).unwrap_or(u16::MAX);
        let named = self.named_rank();
        let place = |endpoint: &ZmqEndpoint| {
            let host = endpoint.host.as_deref().unwrap_or(link.address.host());
            (host.to_owned(), endpoint.port.saturating_add(rank))
        };
        let at = |events: &ZmqEndpoint, replay: Option<&ZmqEndpoint>| Publisher {
            events: place(events),
            replay: replay.map(place),
            topic: settings.topic.clone(),
            rank: named,
        };
        let port = |port: usize| u16::try_from(port).ok().filter(|&it| it > 0);
        let usual = |port| ZmqEndpoint { host: None, port };
        match (&link.events, port(settings.port)) {
            _ if !settings.enabled => Ok(None),
            (EventSource::Off, _) => Ok(None),
            (EventSource::At(events), _) => Ok(Some(at(events, link.replay.as_ref()))),
            (EventSource::Auto, Some(events)) => {
                let replay = port(settings.replay_port).map(usual);
                Ok(Some(at(&usual(events), link.replay.as_ref().or(replay.as_ref()))))
            }
            (EventSource::Auto, None) => self.ask_for_source().await,
        }
    }

    async fn ask_for_source(&mut self) -> Result<Option<Publisher>, Unanswered> {
        let kind = self.link.about().kind.unwrap_or(EngineKind::Generic);
        let Some(path) = kind.sources_path() else { return Ok(None) };
        let response = self.get(path).await?;
        if !response.status.is_success() {
            // A busy engine may fail to respond; that is no reason to end a subscription that works.
            return Ok(self.source.clone());
        }
        let sources = match sources::parse(kind, &response.body) {
            Ok(sources) => sources.sources,
            Err(error) => {
                debug!(worker = self.link.url, path, %error, "cannot read where the worker publishes KV events");
                return Ok(self.source.clone());
            }
        };
        if self.link.rank.is_none() && sources.len() > 1 {
            let ranks = sources.len();
            warn!(
                worker = self.link.url,
                ranks, "the engine has several ranks; write ?ranks=N after its URL"
            );
        }
        let own = self.link.address.host();
        let place = |it: &sources::Address| {
            // The engine reports its own loopback address, which is not ours.
            let host = it.host.as_deref().filter(|it| !is_loopback(it));
            (host.unwrap_or(own).to_owned(), it.port)
        };
        // In order, whatever their numbers: those of an engine whose other ranks are elsewhere do not begin at zero.
        let own_place = self.link.rank.unwrap_or(0) as usize;
        let source = sources.get(own_place).map(|it| Publisher {
            events: place(&it.events),
            replay: it.replay.as_ref().map(place),
            topic: it.topic.clone(),
            rank: self.link.rank.map(|_| it.rank),
        });
        Ok(source)
    }

    /// The worker's rank as its engine numbers it, if each rank is a worker of its own.
    fn named_rank(&self) -> Option<u32> {
        self.link.rank.map(|it| it.saturating_add(self.first_rank))
    }

    /// Probes the worker's health and reports it to the brain. Returns whether the worker is healthy.
    async fn probe(&mut self) -> bool {
        let begun = self.watcher.brain.now();
        let path = self.watcher.settings.load().probes.path.clone();
        let timeout = self.health_timeout();
        let evidence = match self.get_within(&path, timeout).await {
            Ok(response) if response.router == Some(router_name(self.watcher.seed)) => {
                self.link.failed("this is the router itself, not an engine".to_owned());
                Evidence::Refused
            }
            Ok(response) if is_fit(response.status) => {
                self.warn_of_router(&response);
                Evidence::ProbeAnswered
            }
            Ok(response) => {
                self.link.failed(format!("GET {path} answered {}", response.status));
                Evidence::Refused
            }
            Err(Unanswered::Refused | Unanswered::Broke) => Evidence::Refused,
            Err(Unanswered::NoSocket) => return false,
            Err(Unanswered::TimedOut) if self.link.heard_since(begun) || self.is_in_a_step().await => {
                return true;
            }
            Err(Unanswered::TimedOut) => {
                self.link.failed(format!("GET {path} timed out after {timeout:?}"));
                Evidence::Silent
            }
        };
        if evidence == Evidence::ProbeAnswered && self.models_at.is_none() {
            // Before it is healthy, or an engine that serves no request alone would get some. What cannot be learned now is
            // asked for again later.
            let _ = self.detect_engine().await;
        }
        // Not healthy before its models are known: it would get requests for models of other workers.
        let known = self.models_at.is_some();
        if evidence == Evidence::ProbeAnswered
            && let Err(error) = self.read_models().await
            && !known
        {
            if error == Unanswered::TimedOut {
                self.link.failed("GET /v1/models timed out");
            }
            // Without a socket nothing was asked: that is no failure of the worker.
            if error != Unanswered::NoSocket {
                self.warn_of_first_probe(false);
            }
            return false;
        }
        self.warn_of_first_probe(evidence == Evidence::ProbeAnswered);
        self.watcher.brain.on(Event::Probed { worker: self.link.worker, evidence });
        if evidence != Evidence::ProbeAnswered {
            // Another engine may come back at this address.
            self.models_at = None;
            self.sources_at = None;
            self.link.forget_engine();
        }
        evidence == Evidence::ProbeAnswered
    }

    /// The worker's state does not change by this, so no other log line reports it. Most likely its address is wrong. A
    /// failure of TLS has its own line.
    fn warn_of_first_probe(&mut self, has_succeeded: bool) {
        let is_first = !std::mem::replace(&mut self.is_probed, true);
        if is_first && !has_succeeded && !self.link.has_tls_failed() {
            warn!(
                worker = self.link.url,
                "first probe failed: {}; the worker gets no requests until one succeeds",
                self.link.last_failure()
            );
        }
    }

    /// Once. It may be meant, but what lies behind a router is not known here.
    fn warn_of_router(&mut self, response: &ProbeResponse) {
        if response.router.is_some() && !self.is_probed {
            warn!(
                worker = self.link.url,
                "the worker is a Maitre router, not an engine: what its engines cache and publish stays unknown"
            );
        }
    }

    /// Detects which engine it is, once.
    async fn detect_engine(&mut self) -> Result<(), Unanswered> {
        if self.link.about().kind.is_some() {
            return Ok(());
        }
        let mut responses = Vec::new();
        while let Some(path) = next_path(&responses) {
            responses.push((path, self.get(path).await?));
        }
        let answers = replies(&responses);
        let kind = engine::detect(&answers);
        info!(worker = self.link.url, engine = kind.name(), "worker found");
        if self.watcher.settings.load().salt.is_some() && !kind.takes_salts() {
            let (worker, engine) = (&self.link.url, kind.name());
            warn!(
                worker,
                engine,
                "the engine does not support salts: tenants share its cache despite salt.by = \"tenant\""
            );
        }
        let info = answers.iter().find(|it| it.path == engine::SERVER_INFO && it.status == 200);
        let disaggregation = info.and_then(|it| engine::disaggregation(kind, it.body).ok().flatten());
        self.link.learn(|about| {
            about.kind = Some(kind);
            about.disaggregation = disaggregation;
        });
        if self.link.role() != Role::Both {
            let (role, style) = (self.link.role().name(), self.link.handoff_style().name());
            info!(worker = self.link.url, role, style, "the worker shares requests with others");
        }
        self.watcher.brain.engine_found(&self.link);
        Ok(())
    }

    async fn read_models(&mut self) -> Result<(), Unanswered> {
        let now = self.watcher.brain.now();
        let fresh = self.watcher.settings.load().probes.models_interval;
        if self.models_at.is_some_and(|at| now.since(at) < fresh) {
            return Ok(());
        }
        let response = self.get("/v1/models").await?;
        self.models_at = Some(now);
        match CardList::read(&response.body) {
            Ok(list) if response.status.is_success() => {
                let cards: Vec<Card<'_>> = list.models().map(card).collect();
                self.watcher.brain.on(Event::ModelsReported { worker: self.link.worker, cards: &cards });
                if let Some(before) = self.link.about().models {
                    log_change(&self.link.url, &before, &list);
                }
                self.link.learn(|about| about.models = Some(Arc::new(list)));
            }
            _ => self.warn_of_no_models(response.status),
        }
        Ok(())
    }

    /// Once, until the first list comes; a list that was read stays. A worker that never sent one may serve any model, so it gets
    /// requests: if it is no engine, or wants a key, clients see its errors while the router is ready.
    fn warn_of_no_models(&mut self, status: StatusCode) {
        let has_list = self.link.about().models.is_some();
        if has_list || std::mem::replace(&mut self.is_unlisted, true) {
            debug!(worker = self.link.url, status = status.as_u16(), has_list, "no list of models");
            return;
        }
        let fix = match (status, self.watcher.settings.load().worker_key.is_some()) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, true) => "it does not accept worker_key",
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, false) => {
                "set worker_key to the key that it requires (its --api-key)"
            }
            _ => "if it is not an engine, fix its URL",
        };
        let (worker, status) = (&self.link.url, status.as_u16());
        warn!(
            worker,
            "/v1/models answered {status} without a list: the worker gets requests for models that no other lists; {fix}"
        );
    }

    async fn read_load(&mut self) -> Result<(), Unanswered> {
        let kind = self.link.about().kind.unwrap_or(EngineKind::Generic);
        for path in kind.metrics_paths() {
            let response = self.get(path).await?;
            if !response.status.is_success() {
                continue;
            }
            if let Some(adapters) = engine::adapters(kind, &response.body) {
                let loaded: Vec<&str> =
                    adapters.running.iter().chain(&adapters.waiting).map(String::as_str).collect();
                let (worker, slots) = (self.link.worker, adapters.max);
                self.watcher.brain.on(Event::AdaptersReported { worker, slots, loaded: &loaded });
            }
            if self.link.rank.is_some() {
                self.first_rank = engine::first_rank(kind, &response.body);
            }
            match engine::parse_metrics(kind, self.named_rank(), &response.body) {
                // Empty, from an engine that reports each number once.
                Ok(load) if load == EngineLoad::default() => break,
                Ok(load) => {
                    self.watcher.brain.on(Event::LoadReported { worker: self.link.worker, load });
                    break;
                }
                Err(error) => debug!(worker = self.link.url, path, %error, "no load"),
            }
        }
        Ok(())
    }

    /// Whether an engine whose health check waits for a token answers what needs none. No token comes while it prefills a long
    /// prompt.
    async fn is_in_a_step(&mut self) -> bool {
        let waits = self.link.about().kind.is_some_and(|it| it.health_delay() > Duration::ZERO);
        waits && self.get("/v1/models").await.is_ok_and(|it| is_fit(it.status))
    }

    /// The time limit of a health probe. An engine of unknown brand may be a slow one.
    fn health_timeout(&self) -> Duration {
        let delay = self.link.expected_kind().map_or(HEALTH_DELAY_MAX, EngineKind::health_delay);
        self.watcher.settings.load().probes.timeout + delay
    }

    async fn get(&mut self, path: &str) -> Result<ProbeResponse, Unanswered> {
        let timeout = self.watcher.settings.load().probes.timeout;
        self.get_within(path, timeout).await
    }

    /// One GET request to the worker, on a connection that is kept for the next one.
    async fn get_within(&mut self, path: &str, timeout: Duration) -> Result<ProbeResponse, Unanswered> {
        let kept = self.upstream.take().filter(|it| {
            self.watcher.brain.now().since(it.idle_since) < self.watcher.settings.load().timeouts.worker_idle
        });
        let key = self.watcher.settings.load().worker_key.clone();
        let tls = &self.watcher.tls;
        let ask = ProbeRequest { tls, timeout, link: &self.link, path, key: key.as_ref() };
        let got = tokio::time::timeout(timeout, get(ask, kept)).await;
        let (response, mut upstream) = got.map_err(|_| Unanswered::TimedOut)??;
        let now = self.watcher.brain.now();
        self.link.hear(now);
        if upstream.is_reusable() {
            upstream.idle_since = now;
            self.upstream = Some(upstream);
        }
        Ok(response)
    }
}

fn next_path(responses: &[(&'static str, ProbeResponse)]) -> Option<&'static str> {
    engine::next_probe(&replies(responses))
}

fn replies<'a>(responses: &'a [(&'static str, ProbeResponse)]) -> Vec<engine::ProbeReply<'a>> {
    let reply = |(path, response): &'a (&'static str, ProbeResponse)| engine::ProbeReply {
        path,
        status: response.status.as_u16(),
        body: &response.body,
        server: response.server.as_deref(),
    };
    responses.iter().map(reply).collect()
}

#[derive(Clone, Copy)]
struct ProbeRequest<'a> {
    tls: &'a TlsClient,
    /// For the whole exchange.
    timeout: Duration,
    link: &'a Link,
    path: &'a str,
    key: Option<&'a Bearer>,
}

async fn get(
    request: ProbeRequest<'_>,
    kept: Option<Upstream>,
) -> Result<(ProbeResponse, Upstream), Unanswered> {
    if let Some(upstream) = kept
        && let Ok(answered) = exchange(request, upstream).await
    {
        return Ok(answered);
    }
    // The worker may have closed the kept connection: only a new one is conclusive.
    let ProbeRequest { tls, timeout, link, .. } = request;
    let opened = Upstream::open(&link.address, tls, timeout).await;
    let upstream = opened.map_err(|error| match error {
        ConnectError::Unresolved(_) | ConnectError::Refused(_) => {
            link.failed(error.to_string());
            Unanswered::Refused
        }
        ConnectError::Handshake { .. } => {
            link.tls_failed(&error.to_string());
            Unanswered::Refused
        }
        ConnectError::TimedOut(_) => Unanswered::TimedOut,
        ConnectError::NoSocket(_) => Unanswered::NoSocket,
    })?;
    exchange(request, upstream).await
}

async fn exchange(
    ProbeRequest { link, path, key, .. }: ProbeRequest<'_>,
    mut upstream: Upstream,
) -> Result<(ProbeResponse, Upstream), Unanswered> {
    let broke = |error: UpstreamError| {
        link.failed(format!("GET {path}: {error}"));
        link.broke(&error);
        Unanswered::Broke
    };
    let outgoing = UpstreamRequest::get(path, link.address.header(), key);
    let head = upstream.send(outgoing).await.map_err(broke)?;
    let body = upstream.read_all(RESPONSE_BYTES_MAX).await.map_err(broke)?;
    let server = head.headers.get(SERVER).and_then(|it| it.to_str().ok()).map(str::to_owned);
    let router = head.headers.get(headers::ROUTER).cloned();
    Ok((ProbeResponse { status: head.status, server, router, body }, upstream))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
}

fn card(model: &models::Model) -> Card<'_> {
    Card { name: &model.id, parent: model.parent.as_deref() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_fleet_is_probed_at_each_interval() {
        let counts = [0, 1, IDLE_WORKERS_PROBED, IDLE_WORKERS_PROBED + 1, 1_000, 4_000].map(idle_intervals);
        assert_eq!(counts, [1, 1, 1, 2, 3, 3]);
    }
}
