//! Everything an operator can set, with its default. Plain values, checked once where they are read; and the settings in
//! force, which a reload replaces as a whole.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use http::{HeaderName, HeaderValue};
use maitre_base::ClassId;
use maitre_dispatch as dispatch;
use maitre_net::bearer::Bearer;
use maitre_net::tls::{TlsClientSettings, TlsServerSettings};
use maitre_net::worker_url::WorkerUrl;
use maitre_queue::settings::Carrier;

use crate::cluster::ClusterSettings;
use crate::collector::Collector;
use crate::keys::ApiKeys;
use crate::salt::Salter;
use crate::secret::Secret;

#[derive(Clone, Debug)]
pub struct RouterSettings {
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    /// The key of the admin API. None: every request to it is refused.
    pub admin_key: Option<Secret>,
    /// Workers that may be added through the admin API. A pattern that ends in `*` matches a prefix.
    pub admin_workers: Vec<String>,
    pub workers: Vec<WorkerUrl>,
    /// Threads that serve requests; zero means one for each core.
    pub threads: usize,
    /// Who connects to `listen`.
    pub serves: Serves,
    pub picker: PickerSettings,
    pub brain: dispatch::BrainSettings,
    pub limits: RouterLimits,
    pub timeouts: Timeouts,
    pub probes: ProbeSettings,
    pub session: SessionSettings,
    pub hints: ClientHints,
    pub events: KvEventSettings,
    pub record: RecordSettings,
    /// On the listener for clients.
    pub tls: TlsServerSettings,
    /// On the listener for operators.
    pub admin_tls: TlsServerSettings,
    pub worker_tls: TlsClientSettings,
    pub traces: TraceSettings,
    /// How to reach other routers in front of the same workers. None: this router is alone.
    pub cluster: Option<ClusterSettings>,
    /// How many bytes of a prompt's beginning `prefix-hash` hashes.
    pub head_bytes: usize,
    /// Folders with the tokenizers of models, by model.
    pub tokenizers: BTreeMap<String, PathBuf>,
    /// How long a request may wait while an engine tokenizes its prompt.
    pub tokenize_timeout: Duration,
    /// Add response headers that name the worker and the reason for the pick.
    pub explain: bool,
    /// What becomes of a stream whose worker fails, where its class does not say otherwise.
    pub broken_streams: BrokenStreams,
    /// Paths outside the API that are forwarded to a worker. A pattern that ends in `*` matches a prefix.
    pub passthrough: Vec<String>,
    /// Serve to clients, too, the health and metrics paths that sglang-router and vllm-router have.
    pub compat_paths: bool,
    /// Origins whose pages may send requests and read responses; `*` for all. Empty: no CORS.
    pub cors_origins: Vec<String>,
    /// The API keys of clients. Without any, no key is required.
    pub keys: ApiKeys,
    /// The key that workers require. Sent with probes; and, where clients need keys, with requests in place of theirs.
    pub worker_key: Option<Bearer>,
    /// Keeps the caches of tenants apart. None: tenants share caches.
    pub salt: Option<Salter>,
}

/// Who connects to the listener for requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// Clients, with requests that the router sends to workers.
    Clients,
    /// Gateways, which ask where to send the requests that they carry themselves.
    Gateways,
}

#[derive(Clone, Copy, Debug)]
pub struct PickerSettings {
    /// How many more workers a gateway is given, to try if the first one fails.
    pub fallbacks: usize,
}

impl Default for PickerSettings {
    fn default() -> PickerSettings {
        // Two workers seldom die at the same moment, and three hardly ever.
        PickerSettings { fallbacks: 2 }
    }
}

impl RouterSettings {
    /// The defaults of a router that serves gateways. The port is the one at which they look for an endpoint picker.
    pub fn for_gateways() -> RouterSettings {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 9002));
        let mut settings = RouterSettings { listen, serves: Serves::Gateways, ..RouterSettings::default() };
        settings.brain.queue.carrier = Carrier::Gateway;
        settings
    }

    /// Whether streams of this class go on at another worker when theirs fails.
    pub(crate) fn continues(&self, class: ClassId) -> bool {
        let of_class = self.brain.queue.classes.get(class.index()).and_then(|it| it.continues);
        of_class.unwrap_or(self.broken_streams == BrokenStreams::Continue)
    }
}

impl Default for RouterSettings {
    fn default() -> RouterSettings {
        RouterSettings {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 8081)),
            admin_key: None,
            admin_workers: Vec::new(),
            workers: Vec::new(),
            threads: 0,
            serves: Serves::Clients,
            picker: PickerSettings::default(),
            brain: dispatch::BrainSettings::default(),
            limits: RouterLimits::default(),
            timeouts: Timeouts::default(),
            probes: ProbeSettings::default(),
            session: SessionSettings::default(),
            hints: ClientHints::default(),
            events: KvEventSettings::default(),
            record: RecordSettings::default(),
            tls: TlsServerSettings::default(),
            admin_tls: TlsServerSettings::default(),
            worker_tls: TlsClientSettings::default(),
            traces: TraceSettings::default(),
            cluster: None,
            // About 256 tokens: enough to tell system prompts apart, short enough that a growing
            // conversation keeps its worker.
            head_bytes: 1_024,
            tokenizers: BTreeMap::new(),
            // What a prefix hit of a few hundred tokens saves on a small GPU.
            tokenize_timeout: Duration::from_millis(50),
            explain: true,
            // Until it has proven itself on more engines than vLLM.
            broken_streams: BrokenStreams::End,
            passthrough: Vec::new(),
            compat_paths: false,
            cors_origins: Vec::new(),
            keys: ApiKeys::default(),
            worker_key: None,
            salt: None,
        }
    }
}

/// The settings in force.
pub(crate) struct SharedSettings(ArcSwap<RouterSettings>);

impl SharedSettings {
    pub(crate) fn new(settings: RouterSettings) -> SharedSettings {
        SharedSettings(ArcSwap::from_pointee(settings))
    }

    /// The settings of this moment, without a reference count.
    pub(crate) fn load(&self) -> Guard<Arc<RouterSettings>> {
        self.0.load()
    }

    /// The settings of this moment, to keep: a request is served by the settings it arrived under.
    pub(crate) fn snapshot(&self) -> Arc<RouterSettings> {
        self.0.load_full()
    }

    pub(crate) fn replace(&self, settings: RouterSettings) {
        self.0.store(Arc::new(settings));
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RouterLimits {
    pub body_bytes: usize,
    /// All request bodies in memory together. A request that would exceed it is refused with `Retry-After`.
    pub bodies_bytes: usize,
    /// Those of one tenant, for clients with keys.
    pub bodies_per_tenant_bytes: usize,
    /// Bodies that one connection has begun to send and not completed.
    pub bodies_per_connection_bytes: usize,
    /// The longest text of a prompt that is tokenized; longer ones are split into words.
    pub tokenize_bytes: usize,
    /// All text that is tokenized at the same time, but for short texts; what exceeds it is split into words.
    pub tokenizing_bytes: usize,
    pub header_bytes: usize,
    /// Client connections at once; further ones wait in the kernel.
    pub connections: usize,
    /// Idle connections kept to each worker by each thread.
    pub idle_per_worker: usize,
}

impl Default for RouterLimits {
    fn default() -> RouterLimits {
        RouterLimits {
            body_bytes: 16 << 20,
            bodies_bytes: 1 << 30,
            // Half of all, so that one tenant alone cannot keep the others out.
            bodies_per_tenant_bytes: 512 << 20,
            // Four of the largest: a gateway that multiplexes many clients completes most bodies at once.
            bodies_per_connection_bytes: 64 << 20,
            // A quarter of a million tokens: more than most models take.
            tokenize_bytes: 1 << 20,
            // Measured: 600 MB in the tokenizers with random hexadecimal, 300 bytes for each; half of that with prose.
            tokenizing_bytes: 2 << 20,
            header_bytes: 64 << 10,
            connections: 16_384,
            idle_per_worker: 256,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// A client's request head, from its first byte.
    pub client_header: Duration,
    /// A client's request body, from the end of its head.
    pub client_body: Duration,
    /// A client that does not read its response: its connection is closed, or its HTTP/2 stream is reset.
    pub client_stalled: Duration,
    /// A client connection with no request on it.
    pub client_idle: Duration,
    pub connect: Duration,
    /// From sending the request to the head of the response. Responses that do not stream begin when they are complete,
    /// so this is long.
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
    /// After SIGTERM: how long to accept connections while load balancers notice that we are not ready.
    pub drain_grace: Duration,
    /// After that: how long streams may take to finish.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            client_header: Duration::from_secs(10),
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
pub struct ProbeSettings {
    pub path: String,
    /// Between two probes of one worker, give or take a tenth.
    pub interval: Duration,
    pub timeout: Duration,
    /// Between two requests for the list of models.
    pub models_interval: Duration,
}

impl ProbeSettings {
    /// A worker that has sent nothing for this long is silent: a healthy one answers a probe in every interval.
    pub(crate) fn silence(&self) -> Duration {
        self.interval.mul_f64(1.5)
    }
}

impl Default for ProbeSettings {
    fn default() -> ProbeSettings {
        ProbeSettings {
            path: "/health".to_owned(),
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            models_interval: Duration::from_secs(10),
        }
    }
}

/// KV events, by which engines publish what their caches hold.
#[derive(Clone, Debug)]
pub struct KvEventSettings {
    /// Subscribe to workers that publish them.
    pub enabled: bool,
    /// The port of workers that do not report where they publish; zero for none.
    pub port: usize,
    pub replay_port: usize,
    /// The prefix of the topics to subscribe to; empty for all.
    pub topic: String,
}

impl Default for KvEventSettings {
    fn default() -> KvEventSettings {
        KvEventSettings { enabled: true, port: 0, replay_port: 0, topic: String::new() }
    }
}

/// The record of requests for `maitre replay`: hashes, no text.
#[derive(Clone, Debug)]
pub struct RecordSettings {
    /// None: no record.
    pub file: Option<PathBuf>,
    /// The size at which the next file begins.
    pub bytes_max: usize,
    /// Files kept, including the one that is being written.
    pub files: usize,
}

impl Default for RecordSettings {
    fn default() -> RecordSettings {
        // About half a million requests a file, with prompts of two thousand tokens.
        RecordSettings { file: None, bytes_max: 256 << 20, files: 4 }
    }
}

/// OpenTelemetry spans. A reload changes `sample` only.
#[derive(Clone, Debug)]
pub struct TraceSettings {
    /// The collector. None: nothing is traced.
    pub endpoint: Option<Collector>,
    /// The fraction of requests that are traced, of those that arrive without a sampling decision.
    pub sample: f64,
    pub service: String,
    /// Further headers for the collector, such as a key. Marked sensitive, so that nothing prints them.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The CA of the collector's certificate. None: the CAs that browsers trust.
    pub ca: Option<PathBuf>,
}

impl Default for TraceSettings {
    fn default() -> TraceSettings {
        TraceSettings {
            endpoint: None,
            sample: 1.0,
            service: "maitre".to_owned(),
            headers: Vec::new(),
            ca: None,
        }
    }
}

/// What becomes of a stream whose worker fails in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenStreams {
    /// It ends with an error event.
    End,
    /// Another worker goes on with it.
    Continue,
}

/// Where to find the key of a session, in this order; last in the body (`session_id`, `prompt_cache_key`,
/// `conversation`, `user`).
#[derive(Clone, Debug)]
pub struct SessionSettings {
    pub header: HeaderName,
    pub cookie: String,
}

impl Default for SessionSettings {
    fn default() -> SessionSettings {
        SessionSettings {
            header: HeaderName::from_static("x-session-id"),
            cookie: "maitre_session".to_owned(),
        }
    }
}

/// How a request states its tenant and its priority.
#[derive(Clone, Debug)]
pub struct ClientHints {
    pub tenant_by: TenantBy,
    /// The header that names the tenant, with `TenantBy::Header`.
    pub tenant_header: HeaderName,
    /// Which way a `priority` in the body counts.
    pub body_priority: PriorityOrder,
    /// Write the request's priority into its body, for engines that support it.
    pub forward_priority: bool,
}

/// What identifies a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenantBy {
    /// The bearer token, else `x-api-key`, else `api-key`.
    Key,
    Header,
    /// The LoRA adapter, else the model, of the request.
    Adapter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriorityOrder {
    /// As vLLM has it.
    LowerFirst,
    /// As SGLang has it.
    HigherFirst,
}

impl Default for ClientHints {
    fn default() -> ClientHints {
        ClientHints {
            tenant_by: TenantBy::Key,
            tenant_header: HeaderName::from_static("x-maitre-tenant"),
            body_priority: PriorityOrder::LowerFirst,
            // Some engines refuse requests that contain it.
            forward_priority: false,
        }
    }
}
