//! The fixture of every scenario: four simulated engines, three routers, and what connects the routers.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use http::StatusCode;
use maitre_sim::http::{Host, HostConfig};
use maitre_sim::profile::{H200_8B, Profile, StepModel};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::client::{Answer, Begun, CHAT, Client, post};
use crate::operator::{ADMIN_KEY, Load, Operator, Promises};
use crate::program::{Program, Serve, without_colours};
use crate::watch;
use maitre_testkit::redis::Redis;

pub(crate) const CLUSTER_KEY: &str = "what-all-these-routers-share";
pub(crate) const GROUP: &str = "scenes";

/// Timeout of steps without a promised bound.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The maximum time until views agree again.
pub(crate) const CONVERGED: Duration = Duration::from_secs(2);

const ENGINES: usize = 4;

/// One token every 10 ms, so that a stream of some seconds causes little load.
const SLOW: Profile = Profile { step: StepModel { floor_ms: 10.0, ..H200_8B.step }, ..H200_8B };

/// Scenarios that run at once. One that measures has the machine to itself.
static PLACES: Semaphore = Semaphore::const_new(PLACES_MAX as usize);
const PLACES_MAX: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Redis,
    Mesh,
}

pub(crate) struct Stage {
    pub(crate) way: Way,
    pub(crate) engines: Vec<Host>,
    /// The Redis server; none for a mesh.
    pub(crate) redis: Option<Redis>,
    /// a, b and c; the names include the transport, for messages of failed tests.
    pub(crate) routers: Vec<Router>,
    _place: SemaphorePermit<'static>,
}

/// One `maitre serve` process.
pub(crate) struct Router {
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// Where other routers of a mesh connect.
    pub(crate) mesh: Option<SocketAddr>,
}

impl Stage {
    /// Three routers that know each other, in parallel with other scenarios.
    pub(crate) async fn open(way: Way) -> Stage {
        Stage::filled(way, 1, SLOW).await
    }

    /// Alone on this machine, as far as possible.
    pub(crate) async fn open_alone(way: Way) -> Stage {
        Stage::filled(way, PLACES_MAX, H200_8B).await
    }

    async fn filled(way: Way, places: u32, engine: Profile) -> Stage {
        let mut stage = Stage::engines(way, places, engine).await;
        for name in ["a", "b", "c"] {
            let router = stage.start(&format!("{way:?}-{name}").to_lowercase()).await;
            stage.routers.push(router);
        }
        stage.until_together().await;
        stage
    }

    /// Without routers.
    pub(crate) async fn empty(way: Way) -> Stage {
        Stage::engines(way, 1, SLOW).await
    }

    async fn engines(way: Way, places: u32, engine: Profile) -> Stage {
        let _place = PLACES.acquire_many(places).await.unwrap();
        let mut engines = Vec::new();
        for _ in 0..ENGINES {
            let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            engines.push(Host::bind(anywhere, HostConfig::new(engine)).await.unwrap());
        }
        let redis = match way {
            Way::Redis => Some(Redis::start(&[]).await),
            Way::Mesh => None,
        };
        Stage { way, engines, redis, routers: Vec::new(), _place }
    }

    /// A router that knows the addresses of the others, if there are any.
    pub(crate) async fn start(&self, name: &str) -> Router {
        let others = self.routers.iter().filter(|it| it.name != name).filter_map(|it| it.mesh);
        let peers: Vec<String> = others.flat_map(|it| ["--peer".to_owned(), it.to_string()]).collect();
        self.start_with(name, &peers, CLUSTER_KEY).await
    }

    pub(crate) async fn start_with(&self, name: &str, more: &[String], key: &str) -> Router {
        let fixed = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--threads", "1"];
        let own = ["--cluster-name", name, "--cluster-group", GROUP, "--cluster-listen", "127.0.0.1:0"];
        let via = self.redis.as_ref().map_or("mesh".to_owned(), Redis::url);
        let workers =
            self.engines.iter().flat_map(|it| ["--worker".to_owned(), format!("http://{}", it.addr())]);
        let mut args: Vec<String> = fixed.into_iter().chain(own).map(str::to_owned).collect();
        args.extend(["--cluster".to_owned(), via].into_iter().chain(workers).chain(more.iter().cloned()));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let variables = [("MAITRE_ADMIN_KEY", ADMIN_KEY), ("MAITRE_CLUSTER_KEY", key)];
        let Serve { mut program, listen, admin } = Serve::of(Program::start_with(&args, &variables)).await;
        let mesh = match self.way {
            Way::Mesh => Some(program.until_says(joins_at).await),
            Way::Redis => None,
        };
        let router = Router { name: name.to_owned(), program, listen, admin, mesh };
        router.until_ready().await;
        router
    }

    /// Waits until all routers are connected to each other.
    pub(crate) async fn until_together(&self) -> Duration {
        let since = watch::now();
        let all = self.routers.len() as f64;
        for router in &self.routers {
            router.until_metric("maitre_cluster_routers{state=\"live\"}", all, since, PATIENCE).await;
        }
        since.elapsed()
    }

    /// Waits until each router's view of the others matches their own, with this many requests in total.
    /// Returns how long after `since` that was.
    pub(crate) async fn until_agreed(&self, requests: u64, since: Instant, limit: Duration) -> Duration {
        let all: Vec<&Router> = self.routers.iter().collect();
        until_agreed(&all, requests, since, limit).await
    }

    /// Waits until no router has promises and nothing is in flight anywhere.
    pub(crate) async fn until_nothing_is_left(&self) {
        self.until_agreed(0, watch::now(), CONVERGED).await;
        for router in &self.routers {
            let mut operator = router.operator().await;
            assert!(operator.promises().await.is_nothing(), "{}", router.name);
            let what = format!("{} hears of nothing open", router.name);
            let looked = watch::until(&what, watch::now(), CONVERGED, async || {
                let view = operator.see("/admin/v1/cluster").await;
                let routers = view["routers"].as_array().unwrap();
                let is_idle = routers.iter().all(|it| it["in_flight"] == 0 && it["state"] == "live");
                (is_idle && routers.len() == self.routers.len()).then_some(()).ok_or(view.to_string())
            });
            looked.await;
        }
        for engine in &self.engines {
            watch::until("engines are idle", watch::now(), PATIENCE, async || {
                let stats = engine.handle().stats().engine;
                (stats.running + stats.waiting == 0).then_some(()).ok_or(format!("{stats:?}"))
            })
            .await;
        }
    }

    /// Sends a new prompt to one router, and asks another at the same time: first until it knows that a
    /// worker holds it, then until it would choose the same worker for that.
    pub(crate) async fn follow(&self, from: usize, to: &mut Operator, prompt: &Value) -> Followed {
        let mut client = Client::connect(self.routers[from].listen).await;
        let what = format!("{}'s prefix is known elsewhere", self.routers[from].name);
        let sent = watch::now();
        let asked = watch::until(&what, sent, PATIENCE, async || {
            let considered = to.explain(prompt).await;
            (considered.held_most > 0).then_some(()).ok_or(format!("{considered:?}"))
        });
        let (begun, ((), known)) = tokio::join!(client.begin(post(CHAT, prompt)), asked);
        let worker = begun.headers["x-maitre-worker"].to_str().unwrap().to_owned();
        let what = format!("{}'s prefix is followed", self.routers[from].name);
        let looked = watch::until(&what, watch::now(), PATIENCE, async || {
            let considered = to.explain(prompt).await;
            let is_followed = considered.worker == worker && considered.held > 0;
            is_followed.then_some(()).ok_or(format!("{considered:?}, not {worker}"))
        });
        let followed = looked.await.1;
        check_whole(&begun.rest().await);
        Followed { worker, known, followed }
    }
}

/// How one router followed another.
pub(crate) struct Followed {
    /// The worker that the first router chose.
    pub(crate) worker: String,
    /// From when it was sent until the other router knew.
    pub(crate) known: Duration,
    /// From the first token, or from when it knew if that was later, until it would choose the same worker.
    pub(crate) followed: Duration,
}

impl Router {
    pub(crate) async fn operator(&self) -> Operator {
        Operator::of(self.admin).await
    }

    pub(crate) async fn until_ready(&self) {
        let mut operator = self.operator().await;
        watch::until(&format!("{} is ready", self.name), watch::now(), PATIENCE, async || {
            operator.is_ready().await.then_some(()).ok_or("not ready".to_owned())
        })
        .await;
    }

    /// Returns how long after `since` that was.
    pub(crate) async fn until_metric(
        &self,
        name: &str,
        value: f64,
        since: Instant,
        limit: Duration,
    ) -> Duration {
        let mut operator = self.operator().await;
        let what = format!("{name} of {} is {value:.3}", self.name);
        let looked = watch::until(&what, since, limit, async || {
            let seen = operator.metric(name).await;
            ((seen - value).abs() < 0.001).then_some(()).ok_or(seen.to_string())
        });
        looked.await.1
    }

    /// A stream of this many tokens whose first token has arrived.
    pub(crate) async fn stream(&self, tokens: u32) -> Stream {
        let mut client = Client::connect(self.listen).await;
        let body = prompt(&format!("stream of {tokens} at {}", self.name), tokens);
        let begun = client.begin(post(CHAT, &body)).await;
        assert_eq!(begun.status, StatusCode::OK);
        Stream { begun, _client: client }
    }

    /// Lines of the log at warning level or above.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let said = self.program.said();
        let lines = said.lines().map(without_colours);
        lines.filter(|it| it.contains(" WARN ") || it.contains(" ERROR ")).collect()
    }
}

/// An answer in progress.
pub(crate) struct Stream {
    begun: Begun,
    _client: Client,
}

impl Stream {
    /// Reads to the end, which must be a good one.
    pub(crate) async fn finish(self) {
        check_whole(&self.begun.rest().await);
    }
}

#[track_caller]
pub(crate) fn check_whole(answer: &Answer) {
    let text = answer.text();
    assert!(answer.status == StatusCode::OK && text.trim_end().ends_with("data: [DONE]"), "{text}");
}

/// Like `Stage::until_agreed`, for some routers.
pub(crate) async fn until_agreed(
    routers: &[&Router],
    requests: u64,
    since: Instant,
    limit: Duration,
) -> Duration {
    let mut operators = Vec::new();
    for router in routers {
        operators.push(router.operator().await);
    }
    let names: Vec<&str> = routers.iter().map(|it| it.name.as_str()).collect();
    let what = format!("{names:?} agree, with {requests} requests in all");
    let looked = watch::until(&what, since, limit, async || {
        let mut seen = Vec::new();
        for operator in &mut operators {
            seen.push(operator.promises().await);
        }
        let total: u64 = seen.iter().flat_map(|it| it.own.values()).map(|it| it[0]).sum();
        (agree(&seen) && total == requests).then_some(()).ok_or(format!("{seen:#?}"))
    });
    looked.await.1
}

/// Whether each router's view of the others matches their own.
fn agree(seen: &[Promises]) -> bool {
    seen.iter().enumerate().all(|(place, it)| {
        let mut sums: BTreeMap<String, Load> =
            it.others.keys().map(|url| (url.clone(), Load::default())).collect();
        let others = seen.iter().enumerate().filter(|(other, _)| *other != place);
        for (url, load) in others.flat_map(|(_, other)| &other.own) {
            let sum = sums.entry(url.clone()).or_default();
            (0..sum.len()).for_each(|field| sum[field] += load[field]);
        }
        it.others == sums
    })
}

/// A prompt of a thousand or two thousand tokens that begins with its topic, with an answer of this many
/// tokens.
pub(crate) fn prompt(about: &str, tokens: u32) -> Value {
    let text: String = (0..120).map(|line| format!("Line {line} of the book of {about}. ")).collect();
    json!({
        "model": "maitre-sim",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": true,
        "stream": true,
        "stream_options": {"include_usage": true},
    })
}

fn joins_at(line: &str) -> Option<SocketAddr> {
    let plain = without_colours(line);
    plain.contains("joining the other routers").then_some(())?;
    plain.split_whitespace().find_map(|it| it.strip_prefix("listen=")?.parse().ok())
}
