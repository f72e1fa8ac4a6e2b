//! Everything an operator can set, with its default. Plain values, checked once where they are read.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use maitre_dispatch as dispatch;
use maitre_net::bearer::Bearer;
use maitre_net::tls::{TlsClientSettings, TlsServerSettings};
use maitre_net::worker_url::WorkerUrl;

use crate::cluster;
use crate::keys::Keys;
use crate::salt::Salter;
use crate::secret::Secret;
use crate::traces::Collector;

#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    /// What the admin API asks for; none: nobody gets in.
    pub admin_key: Option<Secret>,
    /// What may be added through it; one that ends in `*` stands for all that begin so.
    pub admin_workers: Vec<String>,
    pub workers: Vec<WorkerUrl>,
    /// Threads that carry traffic; zero means one for each core.
    pub threads: usize,
    pub brain: dispatch::BrainSettings,
    pub limits: Limits,
    pub timeouts: Timeouts,
    pub probes: Probes,
    pub session: Session,
    pub door: Door,
    pub events: Events,
    pub record: Record,
    /// On the listener for clients.
    pub tls: TlsServerSettings,
    /// On the listener for operators.
    pub admin_tls: TlsServerSettings,
    pub worker_tls: TlsClientSettings,
    pub traces: Traces,
    /// Other routers in front of the same workers; none: there are none that we would tell anything.
    pub cluster: Option<cluster::Settings>,
    /// How much of a prompt's beginning `prefix-hash` goes by.
    pub head_bytes: usize,
    /// Folders with the tokenizers of models, by model.
    pub tokenizers: BTreeMap<String, PathBuf>,
    /// How long a request may be held up while an engine is asked for its tokens.
    pub tokenize_timeout: Duration,
    /// Say in response headers who answered and why.
    pub explain: bool,
    /// Paths outside the API that are passed on to a worker; one that ends in `*` stands for all that
    /// begin so.
    pub pass: Vec<String>,
    /// Who may ask; none: everybody who reaches us.
    pub keys: Keys,
    /// What workers ask us for: sent with probes, and where there are keys with requests, in place of the client's.
    pub worker_key: Option<Bearer>,
    /// Keeps the caches of tenants apart; none: they share as clients and engines have it.
    pub salt: Option<Salter>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)),
            admin_key: None,
            admin_workers: Vec::new(),
            workers: Vec::new(),
            threads: 0,
            brain: dispatch::BrainSettings::default(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            probes: Probes::default(),
            session: Session::default(),
            door: Door::default(),
            events: Events::default(),
            record: Record::default(),
            tls: TlsServerSettings::default(),
            admin_tls: TlsServerSettings::default(),
            worker_tls: TlsClientSettings::default(),
            traces: Traces::default(),
            cluster: None,
            // About 256 tokens: enough to tell system prompts apart, short enough that a growing
            // conversation keeps its place.
            head_bytes: 1_024,
            tokenizers: BTreeMap::new(),
            // What a prefix hit of a few hundred tokens saves on a small GPU.
            tokenize_timeout: Duration::from_millis(50),
            explain: true,
            pass: Vec::new(),
            keys: Keys::default(),
            worker_key: None,
            salt: None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub body_bytes: usize,
    /// All request bodies held at once; what would go past it is asked to come again.
    pub bodies_bytes: usize,
    pub header_bytes: usize,
    /// Client connections at once; further ones wait in the kernel.
    pub connections: usize,
    /// Idle connections kept to each worker by each thread.
    pub idle_per_worker: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 16 << 20,
            bodies_bytes: 1 << 30,
            header_bytes: 64 << 10,
            connections: 16_384,
            idle_per_worker: 256,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// A client's request head, from its first byte.
    pub client_head: Duration,
    /// A client's request body, from the end of its head.
    pub client_body: Duration,
    /// A client that takes nothing of what is written to it.
    pub client_stalled: Duration,
    /// A client connection with no request on it.
    pub client_idle: Duration,
    pub connect: Duration,
    /// From sending the request to the head of the answer. Answers that do not stream begin when they
    /// are complete, so this is long.
    pub headers: Duration,
    /// From sending the request to the first event of a stream.
    pub first_token: Duration,
    /// Between two events of a stream.
    pub inter_token: Duration,
    /// From arrival to the last byte.
    pub total: Duration,
    /// How long an idle connection to a worker is kept. Below the five seconds after which uvicorn,
    /// which serves vLLM and SGLang, closes its end.
    pub worker_idle: Duration,
    /// After SIGTERM: how long to stay open while load balancers notice that we are not ready.
    pub drain_grace: Duration,
    /// After that: how long streams may take to finish.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            client_head: Duration::from_secs(10),
            client_body: Duration::from_secs(60),
            client_stalled: Duration::from_secs(60),
            client_idle: Duration::from_secs(90),
            connect: Duration::from_secs(2),
            headers: Duration::from_secs(600),
            first_token: Duration::from_secs(300),
            inter_token: Duration::from_secs(60),
            total: Duration::from_secs(3_600),
            worker_idle: Duration::from_secs(4),
            drain_grace: Duration::ZERO,
            drain: Duration::from_secs(30),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Probes {
    pub path: String,
    /// Between two probes of one worker, give or take a tenth.
    pub interval: Duration,
    pub timeout: Duration,
    /// Between two looks at the list of models.
    pub models_interval: Duration,
}

impl Default for Probes {
    fn default() -> Probes {
        Probes {
            path: "/health".to_owned(),
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            models_interval: Duration::from_secs(10),
        }
    }
}

/// What engines publish of their caches (KV events).
#[derive(Clone, Debug)]
pub struct Events {
    /// Subscribe to workers that publish any.
    pub enabled: bool,
    /// Where to look at a worker that does not say where it publishes; zero for nowhere.
    pub port: usize,
    pub replay_port: usize,
    /// Topics that begin with this; all of them if empty.
    pub topic: String,
}

impl Default for Events {
    fn default() -> Events {
        Events { enabled: true, port: 0, replay_port: 0, topic: String::new() }
    }
}

/// What came, taken down for `maitre replay`: hashes, no text.
#[derive(Clone, Debug)]
pub struct Record {
    /// None: nothing is taken down.
    pub file: Option<PathBuf>,
    /// The largest file; then the next one begins.
    pub bytes_max: usize,
    /// Files kept in all, the one that is being written included.
    pub files: usize,
}

impl Default for Record {
    fn default() -> Record {
        // About half a million requests a file, with prompts of two thousand tokens.
        Record { file: None, bytes_max: 256 << 20, files: 4 }
    }
}

/// OpenTelemetry spans. All but `sample` holds from the start on.
#[derive(Clone, Debug)]
pub struct Traces {
    /// Where they are sent; none: nothing is traced.
    pub endpoint: Option<Collector>,
    /// The part of requests that are traced, of those whose callers do not say.
    pub sample: f64,
    pub service: String,
    /// What the collector is sent besides, such as a key. Marked sensitive, so that nothing prints it.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Who may vouch for the collector; none: the authorities that browsers trust.
    pub ca: Option<PathBuf>,
}

impl Default for Traces {
    fn default() -> Traces {
        Traces { endpoint: None, sample: 1.0, service: "maitre".to_owned(), headers: Vec::new(), ca: None }
    }
}

/// Where a session's key is looked for, in this order; last in the body (`session_id`,
/// `prompt_cache_key`, `conversation`, `user`).
#[derive(Clone, Debug)]
pub struct Session {
    pub header: HeaderName,
    pub cookie: String,
}

impl Default for Session {
    fn default() -> Session {
        Session { header: HeaderName::from_static("x-session-id"), cookie: "maitre_session".to_owned() }
    }
}

/// How a request says who pays for it and how urgent it is.
#[derive(Clone, Debug)]
pub struct Door {
    pub tenant_by: By,
    /// Where tenants are known by a header, which one.
    pub tenant_header: HeaderName,
    /// Which way a number in the body counts.
    pub body_priority: Sense,
    /// Tell engines that know of such a thing how urgent a request is, in its body.
    pub forward_priority: bool,
}

/// What a tenant is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The bearer token, else `x-api-key`, else `api-key`.
    Key,
    Header,
    /// The adapter, else the model, that is asked for.
    Adapter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    /// As vLLM has it.
    LowerFirst,
    /// As SGLang has it.
    HigherFirst,
}

impl Default for Door {
    fn default() -> Door {
        Door {
            tenant_by: By::Key,
            tenant_header: HeaderName::from_static("x-maitre-tenant"),
            body_priority: Sense::LowerFirst,
            // Some engines refuse requests that say it.
            forward_priority: false,
        }
    }
}
