//! Watches one worker: is it there, what does it serve, how loaded does it say it is.
//!
//! Real traffic tells most of it, and sooner. Probes are for workers that have no traffic, and for the
//! doubts that traffic raises: a probe that times out counts only if nothing else was heard meanwhile,
//! for a busy engine may be slow to answer its health check while it streams to a hundred clients.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::SERVER;
use maitre_base::{EngineLoad, Instant, Rng, hash};
use maitre_dialect::engine::{self, Kind, sources};
use maitre_dialect::models;
use maitre_dispatch::Event;
use maitre_fleet::{Card, Evidence};
use maitre_net::bearer::Bearer;
use maitre_net::connect::ConnectError;
use maitre_net::upstream::{Upstream, UpstreamError, UpstreamRequest};
use maitre_net::worker_url::{EventSource, ZmqEndpoint};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::house::RouterState;
use crate::link::Link;
use crate::refuse::is_fit;
use crate::subscribe::{self, Source};

/// Largest page read from a worker: metrics of a large model are tens of kilobytes.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// Between two ticks of the brain.
const TICK: Duration = Duration::from_millis(500);

/// The same where the brain wants one at once: what it finds due again and again must not keep a core busy.
const TICK_PAUSE: Duration = Duration::from_millis(1);

/// Ticks every so often, and when the brain wants it, as when somebody's deadline passes in line.
pub(crate) async fn tick(house: Arc<RouterState>) {
    loop {
        house.on(Event::Tick);
        let last = house.now();
        let mut is_due = false;
        while !is_due {
            is_due = tokio::select! {
                () = sleep(house.tick_in(last, TICK, TICK_PAUSE)) => true,
                () = house.hurry.notified() => false,
            };
        }
    }
}

/// Watches until the worker is gone from the fleet.
pub(crate) async fn watch(house: Arc<RouterState>, link: Arc<Link>) {
    let seed = hash::bytes(house.salt, link.url.as_bytes());
    let mut watch = Watch {
        house,
        link,
        line: None,
        is_probed: false,
        models_at: None,
        source: None,
        sources_at: None,
        following: JoinSet::new(),
        rng: Rng::new(seed),
    };
    let gone = watch.link.gone.clone();
    tokio::select! {
        // What is heard of one that is gone is not told any more.
        biased;
        () = gone.cancelled() => {}
        () = watch.run() => {}
    }
    // Whoever counts must have stopped before the counters are taken away, or they would come back.
    watch.following.shutdown().await;
    let Watch { house, link, .. } = &watch;
    // The same address may be back with other options: then it goes on counting.
    if !house.links().iter().any(|it| it.url == link.url) {
        house.metrics.caches.feeds.forget(&link.url);
    }
}

struct Watch {
    house: Arc<RouterState>,
    link: Arc<Link>,
    line: Option<Upstream>,
    is_probed: bool,
    /// When the list of models was last read.
    models_at: Option<Instant>,
    /// Where it publishes, and when it was last asked.
    source: Option<Source>,
    sources_at: Option<Instant>,
    /// The one who listens there.
    following: JoinSet<()>,
    rng: Rng,
}

struct Page {
    status: StatusCode,
    server: Option<String>,
    body: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unanswered {
    /// Nobody listens there.
    Refused,
    /// No answer in time.
    TimedOut,
    /// The connection broke.
    Broke,
    /// We have no socket to ask with.
    NoSocket,
}

impl Watch {
    async fn run(&mut self) {
        loop {
            if self.probe().await && self.look().await == Err(Unanswered::TimedOut) {
                // It was well a moment ago and does not answer now: find out at once.
                continue;
            }
            // Jitter, so that a thousand workers are not asked in one breath.
            let pause = self.house.settings().probes.interval.mul_f64(0.9 + 0.2 * self.rng.unit());
            tokio::select! {
                () = sleep(pause) => {}
                () = self.link.probe.notified() => {}
            }
        }
    }

    async fn look(&mut self) -> Result<(), Unanswered> {
        self.ask_about().await?;
        self.read_load().await?;
        self.follow_events().await
    }

    /// Subscribes to what the worker publishes of its cache, once it is known where.
    async fn follow_events(&mut self) -> Result<(), Unanswered> {
        let now = self.house.now();
        let pause = self.house.settings().probes.models_interval;
        if self.sources_at.is_some_and(|at| now.since(at) < pause) {
            return Ok(());
        }
        let source = self.find_source().await?;
        self.sources_at = Some(now);
        if source != self.source {
            self.following.shutdown().await;
            if let Some(source) = source.clone() {
                self.following.spawn(subscribe::follow(self.house.clone(), self.link.clone(), source));
            }
            self.source = source;
        }
        Ok(())
    }

    /// Where the worker publishes: as configured for it, as configured for all, as it says itself.
    async fn find_source(&mut self) -> Result<Option<Source>, Unanswered> {
        let (link, settings) = (self.link.clone(), self.house.settings().events.clone());
        let rank = u16::try_from(link.rank.unwrap_or(0)).unwrap_or(u16::MAX);
        let place = |endpoint: &ZmqEndpoint| {
            let host = endpoint.host.as_deref().unwrap_or(link.address.host());
            (host.to_owned(), endpoint.port.saturating_add(rank))
        };
        let at = |events: &ZmqEndpoint, replay: Option<&ZmqEndpoint>| Source {
            events: place(events),
            replay: replay.map(place),
            topic: settings.topic.clone(),
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

    async fn ask_for_source(&mut self) -> Result<Option<Source>, Unanswered> {
        let kind = self.link.about().kind.unwrap_or(Kind::Generic);
        let Some(path) = kind.sources_path() else { return Ok(None) };
        let page = self.get(path).await?;
        if !page.status.is_success() {
            // A busy engine may not answer; that is no reason to leave a subscription that is well.
            return Ok(self.source.clone());
        }
        let sources = match sources::parse(kind, &page.body) {
            Ok(sources) => sources.sources,
            Err(error) => {
                debug!(worker = self.link.url, path, %error, "no sources of KV events");
                return Ok(self.source.clone());
            }
        };
        if self.link.rank.is_none() && sources.len() > 1 {
            let ranks = sources.len();
            warn!(
                worker = self.link.url,
                ranks, "an engine with several ranks; write ?ranks=N after its URL"
            );
        }
        let rank = self.link.rank.unwrap_or(0);
        let own = self.link.address.host();
        let place = |it: &sources::Address| {
            // The engine's own loopback is its machine's, not ours.
            let host = it.host.as_deref().filter(|it| !is_loopback(it));
            (host.unwrap_or(own).to_owned(), it.port)
        };
        let source = sources.iter().find(|it| it.rank == rank).map(|it| Source {
            events: place(&it.events),
            replay: it.replay.as_ref().map(place),
            topic: it.topic.clone(),
        });
        Ok(source)
    }

    /// Asks for the worker's health and tells the brain; whether it is fit.
    async fn probe(&mut self) -> bool {
        let begun = self.house.now();
        let path = self.house.settings().probes.path.clone();
        let evidence = match self.get(&path).await {
            Ok(page) if is_fit(page.status) => Evidence::ProbeAnswered,
            Ok(_) | Err(Unanswered::Refused | Unanswered::Broke) => Evidence::Refused,
            Err(Unanswered::NoSocket) => return false,
            Err(Unanswered::TimedOut) if self.link.heard_since(begun) => return true,
            Err(Unanswered::TimedOut) => Evidence::Silent,
        };
        // Not fit before we know what it serves: it would get requests for the models of others.
        let known = self.models_at.is_some();
        if evidence == Evidence::ProbeAnswered && self.read_models().await.is_err() && !known {
            return false;
        }
        // Its state does not change by this, so nobody else would say it: a slip in its address, most likely.
        let is_first = !std::mem::replace(&mut self.is_probed, true);
        if is_first && evidence != Evidence::ProbeAnswered {
            warn!(
                worker = self.link.url,
                "does not answer its first probe; it gets no requests until it does"
            );
        }
        self.house.on(Event::Probed { worker: self.link.worker, evidence });
        if evidence != Evidence::ProbeAnswered {
            // Whoever returns there may be somebody else.
            self.models_at = None;
            self.sources_at = None;
            self.link.learn(|about| about.kind = None);
        }
        evidence == Evidence::ProbeAnswered
    }

    /// Finds out what brand of engine it is, once.
    async fn ask_about(&mut self) -> Result<(), Unanswered> {
        if self.link.about().kind.is_some() {
            return Ok(());
        }
        let mut pages = Vec::new();
        for path in engine::PROBES {
            pages.push((path, self.get(path).await?));
        }
        let answers: Vec<engine::Answer<'_>> = pages
            .iter()
            .map(|(path, page)| engine::Answer {
                path,
                status: page.status.as_u16(),
                body: &page.body,
                server: page.server.as_deref(),
            })
            .collect();
        let kind = engine::detect(&answers);
        info!(worker = self.link.url, engine = kind.name(), "worker found");
        if self.house.settings().salt.is_some() && !kind.takes_salts() {
            let (worker, engine) = (&self.link.url, kind.name());
            warn!(worker, engine, "takes no salt, so tenants share its cache though salt.by = \"tenant\"");
        }
        self.link.learn(|about| about.kind = Some(kind));
        Ok(())
    }

    async fn read_models(&mut self) -> Result<(), Unanswered> {
        let now = self.house.now();
        let fresh = self.house.settings().probes.models_interval;
        if self.models_at.is_some_and(|at| now.since(at) < fresh) {
            return Ok(());
        }
        let page = self.get("/v1/models").await?;
        self.models_at = Some(now);
        match models::parse(&page.body) {
            Ok(models) if page.status.is_success() => {
                let cards: Vec<Card<'_>> = models.iter().map(card).collect();
                self.house.on(Event::ModelsReported { worker: self.link.worker, cards: &cards });
                self.link.learn(|about| about.models = Some(page.body.clone()));
            }
            // It lists no models: it may serve any.
            _ => debug!(worker = self.link.url, status = page.status.as_u16(), "lists no models"),
        }
        Ok(())
    }

    async fn read_load(&mut self) -> Result<(), Unanswered> {
        let kind = self.link.about().kind.unwrap_or(Kind::Generic);
        for path in kind.metrics_paths() {
            let page = self.get(path).await?;
            if !page.status.is_success() {
                continue;
            }
            if let Some(adapters) = engine::adapters(kind, &page.body) {
                let loaded: Vec<&str> =
                    adapters.running.iter().chain(&adapters.waiting).map(String::as_str).collect();
                let (worker, slots) = (self.link.worker, adapters.max);
                self.house.on(Event::AdaptersReported { worker, slots, loaded: &loaded });
            }
            match engine::parse_metrics(kind, self.link.rank, &page.body) {
                // Nothing new, from an engine that tells everything once.
                Ok(load) if load == EngineLoad::default() => break,
                Ok(load) => {
                    self.house.on(Event::LoadReported { worker: self.link.worker, load });
                    break;
                }
                Err(error) => debug!(worker = self.link.url, path, %error, "no load"),
            }
        }
        Ok(())
    }

    /// One page of the worker, on a connection that is kept for the next.
    async fn get(&mut self, path: &str) -> Result<Page, Unanswered> {
        let patience = self.house.settings().probes.timeout;
        let kept = self.line.take().filter(|line| {
            self.house.now().since(line.idle_since) < self.house.settings().timeouts.worker_idle
        });
        let key = self.house.settings().worker_key.clone();
        let ask = Ask { house: &self.house, link: &self.link, path, key: key.as_ref() };
        let got = timeout(patience, get(ask, kept)).await;
        let (page, mut line) = got.map_err(|_| Unanswered::TimedOut)??;
        let now = self.house.now();
        self.link.hear(now);
        if line.is_reusable() {
            line.idle_since = now;
            self.line = Some(line);
        }
        Ok(page)
    }
}

/// What is asked of whom, and what they are shown.
#[derive(Clone, Copy)]
struct Ask<'a> {
    house: &'a RouterState,
    link: &'a Link,
    path: &'a str,
    key: Option<&'a Bearer>,
}

async fn get(asked: Ask<'_>, kept: Option<Upstream>) -> Result<(Page, Upstream), Unanswered> {
    if let Some(line) = kept
        && let Ok(answered) = ask(asked, line).await
    {
        return Ok(answered);
    }
    // The kept connection may have been closed from the other end; a new one tells.
    let Ask { house, link, .. } = asked;
    let patience = house.settings().probes.timeout;
    let opened = Upstream::open(&link.address, &house.tls.workers, patience).await;
    let line = opened.map_err(|error| match error {
        ConnectError::Unresolved(_) | ConnectError::Refused(_) => Unanswered::Refused,
        ConnectError::Handshake { .. } => {
            link.distrust(&error.to_string());
            Unanswered::Refused
        }
        ConnectError::TimedOut(_) => Unanswered::TimedOut,
        ConnectError::NoSocket(_) => Unanswered::NoSocket,
    })?;
    ask(asked, line).await
}

async fn ask(
    Ask { link, path, key, .. }: Ask<'_>,
    mut line: Upstream,
) -> Result<(Page, Upstream), Unanswered> {
    let broke = |error: UpstreamError| {
        link.heard_no(&error);
        Unanswered::Broke
    };
    let question = UpstreamRequest::get(path, link.address.header(), key);
    let head = line.send(question).await.map_err(broke)?;
    let body = line.read_all(PAGE_BYTES_MAX).await.map_err(broke)?;
    let server = head.headers.get(SERVER).and_then(|it| it.to_str().ok()).map(str::to_owned);
    Ok((Page { status: head.status, server, body }, line))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
}

fn card(model: &models::Model) -> Card<'_> {
    Card { name: &model.id, parent: model.parent.as_deref() }
}
