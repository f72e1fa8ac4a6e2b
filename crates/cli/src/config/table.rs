//! The table of knobs: a row for each thing that can be set.
//!
//! Nothing about a knob is written anywhere else. Its default is the one in `Settings`; its flag and its
//! variable follow from its key.

use std::ops::RangeInclusive;
use std::time::Duration;

use maitre_dispatch::brain::ATTEMPTS_MAX;
use maitre_dispatch::explain::DECISIONS_MAX;

use super::field::Field;
use super::knob::{Knob, Section};

const DAY: Duration = Duration::from_secs(86_400);
/// Anything up to a day: longer than any answer takes, short enough to add to any clock.
const FROM_ZERO: RangeInclusive<Duration> = Duration::ZERO..=DAY;
/// The same for what would never succeed, or never rest, with no time at all.
const ABOVE_ZERO: RangeInclusive<Duration> = Duration::from_millis(1)..=DAY;

/// The same as a bare number, for rules that are known by one.
const SECONDS: RangeInclusive<f64> = 0.0..=86_400.0;
/// Chosen: beyond it the rest is nothing.
const WEIGHTS: RangeInclusive<f64> = 0.0..=1_000.0;

/// Chosen: more than any machine we know has cores, so beyond it is a slip of the finger.
const THREADS_MAX: usize = 1_024;
/// Chosen: two hundred times a prompt of a million tokens as text. Each request may hold this much memory.
const BODY_BYTES_MAX: usize = 1 << 30;
/// More than any machine has.
const BODIES_BYTES_MAX: usize = 1 << 40;
/// Chosen: well above what any proxy in front of us would let through.
const HEADER_BYTES_MAX: usize = 1 << 20;
/// Linux's limit on the open files of a process (`fs.nr_open`: 1,048,576), rounded down.
const CONNECTIONS_MAX: usize = 1_000_000;

/// Chosen: more than the context of any model.
const TOKENS_MAX: u64 = 1_000_000_000;
/// Chosen: each one more is renamed whenever one is full.
const RECORD_FILES_MAX: usize = 1_000;

const fn knob(key: &'static str, field: Field, help: &'static str) -> Knob {
    Knob { key, field, help }
}

pub(super) static SECTIONS: &[Section] = &[
    Section { title: None, knobs: MAIN },
    Section { title: Some("Keys"), knobs: KEYS },
    Section { title: Some("Discovery"), knobs: DISCOVERY },
    Section { title: Some("Caches"), knobs: CACHES },
    Section { title: Some("KV events"), knobs: EVENTS },
    Section { title: Some("Cache aware"), knobs: CACHE_AWARE },
    Section { title: Some("Prefix hash"), knobs: PREFIX_HASH },
    Section { title: Some("Sessions"), knobs: SESSION },
    Section { title: Some("Dynamo cost"), knobs: DYNAMO_COST },
    Section { title: Some("Weighted"), knobs: WEIGHTED },
    Section { title: Some("Sticky until saturated"), knobs: STICKY_UNTIL_SATURATED },
    Section { title: Some("Preble"), knobs: PREBLE },
    Section { title: Some("DualMap"), knobs: DUALMAP },
    Section { title: Some("Decisions"), knobs: DECISIONS },
    Section { title: Some("Queue"), knobs: QUEUE },
    Section { title: Some("Tenants"), knobs: TENANTS },
    Section { title: Some("TLS"), knobs: TLS },
    Section { title: Some("Limits"), knobs: LIMITS },
    Section { title: Some("Timeouts"), knobs: TIMEOUTS },
    Section { title: Some("Probes"), knobs: PROBES },
    Section { title: Some("Health"), knobs: HEALTH },
    Section { title: Some("Retries"), knobs: RETRIES },
    Section { title: Some("Record"), knobs: RECORD },
    Section { title: Some("Traces"), knobs: TRACES },
    Section { title: Some("Log"), knobs: LOG },
];

static MAIN: &[Knob] = &[
    knob("listen", Field::Socket(|it| &mut it.settings.listen), "Where clients connect."),
    knob("admin", Field::Socket(|it| &mut it.settings.admin), "Where metrics and health are served."),
    knob(
        "workers",
        Field::Workers(|it| &mut it.settings.workers),
        "The engines that take requests; as a flag, one at a time. After the URL may follow \
         ?events=PORT&replay=PORT&ranks=N: where it publishes KV events (or events=off), and its \
         data-parallel ranks.",
    ),
    knob(
        "strategy",
        Field::Strategy(|it| &mut it.settings.brain.strategy),
        "How a worker is picked: least-delay, cache-aware, prefix-hash, sticky-session, least-work, \
         least-request, power-of-two, round-robin or random; or a rule as others published it: dynamo-cost, \
         weighted, sticky-until-saturated, preble, lmetric or dualmap.",
    ),
    knob(
        "strategies",
        Field::Strategies(|it| &mut it.settings.brain.strategies),
        "Models that go by a strategy of their own; as a flag, one at a time.",
    ),
    knob(
        "threads",
        Field::Count(|it| &mut it.settings.threads, 0..=THREADS_MAX),
        "Threads that carry traffic; 0 means one for each core.",
    ),
    knob(
        "insecure",
        Field::Switch(|it| &mut it.insecure),
        "Accept addresses that other machines can reach, though no key and no certificate is asked for there.",
    ),
    knob(
        "admin_workers",
        Field::Beginnings(|it| &mut it.settings.admin_workers),
        "Workers that may be added through the admin API; one that ends in * stands for all that begin so.",
    ),
    knob(
        "explain",
        Field::Switch(|it| &mut it.settings.explain),
        "Say in response headers which worker answered and why.",
    ),
    knob(
        "pass",
        Field::Paths(|it| &mut it.settings.pass),
        "Paths outside the API that are passed on to a worker; one that ends in * stands for all that begin so.",
    ),
    knob(
        "seed",
        Field::Count64(|it| &mut it.settings.brain.seed, 0..=u64::MAX),
        "Where the dice start; the same seed and the same events give the same picks.",
    ),
];

static KEYS: &[Knob] = &[
    knob(
        "keys",
        Field::Keys(|it| &mut it.secrets.keys),
        "The keys that requests need, as hashes or in plain text; as a flag, one at a time. With any, every request \
         needs one. After the key may follow ?tenant=NAME&best=CLASS&models=NAME|NAME*&rpm=COUNT&tpm=COUNT&trusted: \
         whose it is, the best class and the models it may ask for, the tenant's requests and tokens a minute, and \
         whether it may ask why and steer engines. `maitre key` makes them.",
    ),
    knob(
        "keys_file",
        Field::File(|it| &mut it.secrets.keys_file),
        "A file with more of them, one a line; # begins a comment. Read again whenever settings are.",
    ),
    knob(
        "worker_key",
        Field::Hidden(|it| &mut it.secrets.worker_key),
        "What workers ask for (their --api-key): sent with probes and, where requests need a key, in place of the \
         client's. Without, a client's key goes to the worker only where we ask for none.",
    ),
    knob(
        "worker_key_file",
        Field::File(|it| &mut it.secrets.worker_key_file),
        "A file that holds it instead.",
    ),
    knob(
        "admin_key",
        Field::Secret(|it| &mut it.secrets.admin_key),
        "What the admin listener asks for, but not for /healthz and /readyz: a key, or its hash.",
    ),
    knob("admin_key_file", Field::File(|it| &mut it.secrets.admin_key_file), "A file that holds it instead."),
    knob(
        "salt.by",
        Field::SaltBy(|it| &mut it.secrets.salt_by),
        "What the caches of engines are kept apart by: off, or tenant, where each tenant gets a cache_salt of ours \
         and no other tenant can tell what it has asked.",
    ),
    knob(
        "salt.secret",
        Field::Hidden(|it| &mut it.secrets.salt_secret),
        "What salts follow from; the same for all routers of a fleet. Without one each process has its own, so that \
         routers do not share what they warm, and a restart begins cold.",
    ),
    knob(
        "salt.secret_file",
        Field::File(|it| &mut it.secrets.salt_secret_file),
        "A file that holds it instead.",
    ),
];

static DISCOVERY: &[Knob] = &[
    knob(
        "discovery.from",
        Field::Sources(|it| &mut it.discovery.from),
        "Where workers are found, besides those in `workers`: file:PATH, dns:HOST:PORT, srv:NAME, \
         kubernetes:NAMESPACE/SERVICE or kubernetes:NAMESPACE?pods=SELECTOR&port=PORT; as a flag, one at a time.",
    ),
    knob(
        "discovery.gone_after",
        Field::Time(|it| &mut it.discovery.grace.gone_after, FROM_ZERO),
        "How long a worker is kept that its source no longer names.",
    ),
    knob(
        "discovery.empty_after",
        Field::Time(|it| &mut it.discovery.grace.empty_after, FROM_ZERO),
        "How long the last list is kept of a source that suddenly names nobody; 0s for ever.",
    ),
    knob(
        "discovery.dns",
        Field::Sockets(|it| &mut it.discovery.servers),
        "Name servers to ask; those of the system if there are none here.",
    ),
    knob(
        "discovery.kubernetes_api",
        Field::Api(|it| &mut it.discovery.api),
        "The API of the cluster; the one we run in if empty. Plain http only on loopback, as `kubectl proxy` serves it.",
    ),
];

static CACHES: &[Knob] = &[
    knob(
        "tokenizers",
        Field::Folders(|it| &mut it.settings.tokenizers),
        "Folders with tokenizer.json and the chat template of models; as a flag, one at a time. Where there \
         is none, an engine is asked, or bytes stand for tokens.",
    ),
    knob(
        "ask_patience",
        Field::Time(|it| &mut it.settings.ask_patience, FROM_ZERO),
        "How long a request may be held up while an engine is asked for its tokens; 0s asks nobody.",
    ),
    knob(
        "index.budget",
        Field::Size(|it| &mut it.settings.brain.index.budget_bytes, 4_096..=BODIES_BYTES_MAX),
        "Memory for what is known of the workers' caches.",
    ),
];

static EVENTS: &[Knob] = &[
    knob(
        "events.enabled",
        Field::Switch(|it| &mut it.settings.events.enabled),
        "Subscribe to workers that publish what their caches hold.",
    ),
    knob(
        "events.at",
        Field::Count(|it| &mut it.settings.events.port, 0..=65_535),
        "Where to subscribe at a worker that does not say where it publishes; 0 for nowhere.",
    ),
    knob(
        "events.replay_at",
        Field::Count(|it| &mut it.settings.events.replay_port, 0..=65_535),
        "Where to ask such a worker for events that were missed; 0 for nowhere.",
    ),
    knob(
        "events.topic",
        Field::Text(|it| &mut it.settings.events.topic),
        "Only events whose topic begins so; all of them if empty.",
    ),
];

static CACHE_AWARE: &[Knob] = &[
    knob(
        "cache_aware.cache_threshold",
        Field::Ratio(|it| &mut it.settings.brain.knobs.cache_aware.cache_threshold, 0.0..=1.0),
        "The part of a prompt that must be cached somewhere for it to be sent there.",
    ),
    knob(
        "cache_aware.balance_abs_threshold",
        Field::Count32(|it| &mut it.settings.brain.knobs.cache_aware.balance_abs_threshold, 0..=1_000_000),
        "Requests that the busiest worker must be ahead for the fleet to be out of balance,",
    ),
    knob(
        "cache_aware.balance_rel_threshold",
        Field::Ratio(|it| &mut it.settings.brain.knobs.cache_aware.balance_rel_threshold, 1.0..=1_000.0),
        "and how many times as many as the least busy one it must have.",
    ),
];

static PREFIX_HASH: &[Knob] = &[
    knob(
        "prefix_hash.head_bytes",
        Field::Count(|it| &mut it.settings.head_bytes, 1..=BODY_BYTES_MAX),
        "How many bytes of a prompt's beginning name its home.",
    ),
    knob(
        "prefix_hash.load_factor",
        Field::Ratio(|it| &mut it.settings.brain.knobs.load_factor, 1.0..=1_000.0),
        "How far above the mean a home may be loaded before its prompts spill over.",
    ),
];

static SESSION: &[Knob] = &[
    knob(
        "session.header",
        Field::Header(|it| &mut it.settings.session.header),
        "The request header that names a session.",
    ),
    knob(
        "session.cookie",
        Field::Cookie(|it| &mut it.settings.session.cookie),
        "The cookie that names a session, if the header does not.",
    ),
];

static DYNAMO_COST: &[Knob] = &[knob(
    "dynamo_cost.prefill_weight",
    Field::Ratio(|it| &mut it.settings.brain.knobs.dynamo_cost.prefill_weight, WEIGHTS),
    "What a block to prefill costs beside a block to keep.",
)];

static WEIGHTED: &[Knob] = &[
    knob(
        "weighted.prefix",
        Field::Ratio(|it| &mut it.settings.brain.knobs.weighted.prefix, WEIGHTS),
        "What the cached part of a prompt weighs,",
    ),
    knob(
        "weighted.queue",
        Field::Ratio(|it| &mut it.settings.brain.knobs.weighted.queue, WEIGHTS),
        "what a short line of waiting requests weighs,",
    ),
    knob(
        "weighted.kv",
        Field::Ratio(|it| &mut it.settings.brain.knobs.weighted.kv, WEIGHTS),
        "and what a free KV cache weighs.",
    ),
];

static STICKY_UNTIL_SATURATED: &[Knob] = &[
    knob(
        "sticky_until_saturated.threshold",
        Field::Ratio(|it| &mut it.settings.brain.knobs.sticky_until_saturated.threshold, 0.0..=1.0),
        "The part of a prompt that must be cached somewhere for it to stay there; 0 for none ever.",
    ),
    knob(
        "sticky_until_saturated.seconds",
        Field::Ratio(|it| &mut it.settings.brain.knobs.sticky_until_saturated.seconds, SECONDS),
        "How many seconds more prefill may be waiting there than elsewhere; 0 for any.",
    ),
];

static PREBLE: &[Knob] = &[knob(
    "preble.balance",
    Field::Ratio(|it| &mut it.settings.brain.knobs.preble.balance, 1.0..=1_000.0),
    "How many times the least load the most may be before cached prompts leave it.",
)];

static DUALMAP: &[Knob] = &[knob(
    "dualmap.slo_seconds",
    Field::Ratio(|it| &mut it.settings.brain.knobs.dualmap.slo_seconds, SECONDS),
    "How late, in seconds, a first token may be expected before the cache is left for the other home.",
)];

static DECISIONS: &[Knob] = &[
    knob(
        "decisions.kept",
        Field::Count(|it| &mut it.settings.brain.explain.decisions, 0..=DECISIONS_MAX),
        "How many decisions are kept for those who ask why, the newest; 0 keeps none, and foresees no first tokens.",
    ),
    knob(
        "shadow.strategies",
        Field::Names(|it| &mut it.settings.brain.shadows),
        "Strategies that are asked about every decision and not obeyed, to see where they would differ; as a flag, one \
         at a time.",
    ),
    knob(
        "shadow.sample",
        Field::Ratio(|it| &mut it.settings.brain.shadow_sample, 0.0..=1.0),
        "The part of all decisions that they are asked about.",
    ),
];

static QUEUE: &[Knob] = &[
    knob(
        "queue.enabled",
        Field::Switch(|it| &mut it.settings.brain.queue.enabled),
        "Let requests wait here while all workers are busy, and go by their class; without it they are passed on \
         as they come.",
    ),
    knob(
        "classes",
        Field::Classes(|it| &mut it.settings.brain.queue.classes),
        "Classes of requests, the one that goes first at the head. After the name may follow \
         ?requests=COUNT&tokens=COUNT&deadline=DURATION&reserve=NUMBER: how many may wait and of how many tokens, \
         how long they may stand in line (or deadline=none), and the part of the fleet that classes below never take.",
    ),
    knob(
        "queue.standard",
        Field::ClassName(|it| &mut it.queue.standard),
        "The class of requests that ask for none.",
    ),
    knob(
        "queue.aging",
        Field::Time(|it| &mut it.settings.brain.queue.aging, ABOVE_ZERO),
        "How long a request waits before those of higher classes no longer all go first.",
    ),
    knob(
        "queue.recall",
        Field::Switch(|it| &mut it.settings.brain.queue.recall),
        "Call a request of a lower class back from its worker, while it has no first byte, for one of a higher \
         class that would miss its deadline.",
    ),
    knob(
        "queue.prefill_max",
        Field::Count64(|it| &mut it.settings.brain.queue.prefill_tokens_max, 0..=TOKENS_MAX),
        "Most tokens that one worker is given to prefill at once; 0 for what is learned of it alone.",
    ),
    knob(
        "queue.sequences_max",
        Field::Count32(|it| &mut it.settings.brain.queue.sequences_max, 0..=1_000_000),
        "Most requests that one worker is given at once; 0 for what is learned of it alone.",
    ),
    knob(
        "queue.body_priority",
        Field::Sense(|it| &mut it.settings.door.body_priority),
        "Which way a number in a body's priority counts from the standard class, which is 0: lower-first as with \
         vLLM, or higher-first as with SGLang.",
    ),
    knob(
        "queue.forward_priority",
        Field::Switch(|it| &mut it.settings.door.forward_priority),
        "Tell vLLM and SGLang the class of a request in its body's priority, each in its own order; only for \
         engines that were started to heed it.",
    ),
];

static TENANTS: &[Knob] = &[
    knob(
        "tenant.by",
        Field::By(|it| &mut it.settings.door.tenant_by),
        "What tells tenants apart: their key, a header, or the adapter (else the model) they ask for.",
    ),
    knob(
        "tenant.header",
        Field::Header(|it| &mut it.settings.door.tenant_header),
        "Which header, if it is one.",
    ),
    knob(
        "tenants",
        Field::Tenants(|it| &mut it.queue.tenants),
        "Terms of tenants; as a flag, one at a time. After the name, or * for everybody else, may follow \
         ?weight=NUMBER&best=CLASS&usual=CLASS&rpm=COUNT&tpm=COUNT: the share beside others of the class, the best \
         class it may use and the one it has if it asks for none, and requests and tokens a minute.",
    ),
];

static LIMITS: &[Knob] = &[
    knob(
        "limits.body",
        Field::Size(|it| &mut it.settings.limits.body_bytes, 1..=BODY_BYTES_MAX),
        "The largest request body.",
    ),
    knob(
        "limits.bodies",
        Field::Size(|it| &mut it.settings.limits.bodies_bytes, 1..=BODIES_BYTES_MAX),
        "All request bodies held at once; what would go past it is asked to come again.",
    ),
    knob(
        "limits.headers",
        Field::Size(|it| &mut it.settings.limits.header_bytes, 1..=HEADER_BYTES_MAX),
        "The largest request head.",
    ),
    knob(
        "limits.connections",
        Field::Count(|it| &mut it.settings.limits.connections, 1..=CONNECTIONS_MAX),
        "Client connections at once; further ones wait in the kernel.",
    ),
    knob(
        "limits.idle_per_worker",
        Field::Count(|it| &mut it.settings.limits.idle_per_worker, 0..=CONNECTIONS_MAX),
        "Idle connections kept to each worker by each thread.",
    ),
];

static TIMEOUTS: &[Knob] = &[
    knob(
        "timeouts.client_head",
        Field::Time(|it| &mut it.settings.timeouts.client_head, ABOVE_ZERO),
        "A client's request head, from its first byte.",
    ),
    knob(
        "timeouts.client_body",
        Field::Time(|it| &mut it.settings.timeouts.client_body, ABOVE_ZERO),
        "A client's request body, from the end of its head.",
    ),
    knob(
        "timeouts.client_stalled",
        Field::Time(|it| &mut it.settings.timeouts.client_stalled, ABOVE_ZERO),
        "A client that takes nothing of what is written to it.",
    ),
    knob(
        "timeouts.client_idle",
        Field::Time(|it| &mut it.settings.timeouts.client_idle, ABOVE_ZERO),
        "A client connection with no request on it.",
    ),
    knob(
        "timeouts.connect",
        Field::Time(|it| &mut it.settings.timeouts.connect, ABOVE_ZERO),
        "Connecting to a worker.",
    ),
    knob(
        "timeouts.headers",
        Field::Time(|it| &mut it.settings.timeouts.headers, ABOVE_ZERO),
        "From sending the request to the head of the answer, which for one that does not stream is its end.",
    ),
    knob(
        "timeouts.first_token",
        Field::Time(|it| &mut it.settings.timeouts.first_token, ABOVE_ZERO),
        "From sending the request to the first event of a stream.",
    ),
    knob(
        "timeouts.inter_token",
        Field::Time(|it| &mut it.settings.timeouts.inter_token, ABOVE_ZERO),
        "Between two events of a stream.",
    ),
    knob(
        "timeouts.total",
        Field::Time(|it| &mut it.settings.timeouts.total, ABOVE_ZERO),
        "From a request's arrival to the last byte of its answer.",
    ),
    knob(
        "timeouts.worker_idle",
        Field::Time(|it| &mut it.settings.timeouts.worker_idle, FROM_ZERO),
        "How long an idle connection to a worker is kept; less than the worker keeps it (uvicorn: 5s).",
    ),
    knob(
        "timeouts.drain_grace",
        Field::Time(|it| &mut it.settings.timeouts.drain_grace, FROM_ZERO),
        "After SIGTERM: how long to stay open while load balancers notice that we are not ready.",
    ),
    knob(
        "timeouts.drain",
        Field::Time(|it| &mut it.settings.timeouts.drain, FROM_ZERO),
        "After that: how long streams may take to finish.",
    ),
];

static PROBES: &[Knob] = &[
    knob("probes.path", Field::Path(|it| &mut it.settings.probes.path), "What a worker is asked for."),
    knob(
        "probes.interval",
        Field::Time(|it| &mut it.settings.probes.interval, ABOVE_ZERO),
        "Between two probes of one worker, give or take a tenth.",
    ),
    knob(
        "probes.timeout",
        Field::Time(|it| &mut it.settings.probes.timeout, ABOVE_ZERO),
        "How long a probe waits for its answer.",
    ),
    knob(
        "probes.models_interval",
        Field::Time(|it| &mut it.settings.probes.models_interval, ABOVE_ZERO),
        "Between two looks at a worker's list of models.",
    ),
];

static HEALTH: &[Knob] = &[
    knob(
        "health.failures_max",
        Field::Count32(|it| &mut it.settings.brain.health.failures_max, 1..=1_000_000),
        "Failed answers in a row before a worker is out.",
    ),
    knob(
        "health.back_off",
        Field::Time(|it| &mut it.settings.brain.health.back_off, ABOVE_ZERO),
        "How long it is out the first time; doubles each time.",
    ),
    knob(
        "health.back_off_max",
        Field::Time(|it| &mut it.settings.brain.health.back_off_max, ABOVE_ZERO),
        "How long it is out at the most.",
    ),
    knob(
        "health.slow_start",
        Field::Time(|it| &mut it.settings.brain.health.slow_start, FROM_ZERO),
        "How long a returned worker's share grows from a tenth to the whole.",
    ),
];

static RETRIES: &[Knob] = &[
    knob(
        "retries.per_request",
        Field::Ratio(|it| &mut it.settings.brain.budget.per_request, 0.0..=10.0),
        "Retries that each request earns for the fleet.",
    ),
    knob(
        "retries.per_second",
        Field::Ratio(|it| &mut it.settings.brain.budget.per_second, 0.0..=1_000_000.0),
        "Retries earned each second, traffic or not.",
    ),
    knob(
        "retries.failovers_max",
        Field::Count32(|it| &mut it.settings.brain.failovers_max, 0..=ATTEMPTS_MAX),
        "Further attempts of a request that a worker has seen.",
    ),
];

static TLS: &[Knob] = &[
    knob(
        "tls.cert",
        Field::File(|it| &mut it.settings.tls.cert),
        "The certificate that clients are shown, and those that vouch for it, as PEM; without one, clients speak \
         plain HTTP. Read again when it changes.",
    ),
    knob("tls.key", Field::File(|it| &mut it.settings.tls.key), "Its private key, as PEM."),
    knob(
        "tls.client_ca",
        Field::File(|it| &mut it.settings.tls.client_ca),
        "Who signs the certificates of clients, as PEM; without it, clients are not asked for any.",
    ),
    knob(
        "tls.client_auth",
        Field::ClientAuth(|it| &mut it.settings.tls.client_auth),
        "With client_ca: whether a client must show a certificate (required) or may (optional).",
    ),
    knob(
        "admin_tls.cert",
        Field::File(|it| &mut it.settings.admin_tls.cert),
        "The same for the admin listener.",
    ),
    knob("admin_tls.key", Field::File(|it| &mut it.settings.admin_tls.key), "Its private key, as PEM."),
    knob(
        "admin_tls.client_ca",
        Field::File(|it| &mut it.settings.admin_tls.client_ca),
        "Who signs the certificates of operators and scrapers, as PEM.",
    ),
    knob(
        "admin_tls.client_auth",
        Field::ClientAuth(|it| &mut it.settings.admin_tls.client_auth),
        "With client_ca: whether they must show one (required) or may (optional).",
    ),
    knob(
        "worker_tls.ca",
        Field::File(|it| &mut it.settings.worker_tls.ca),
        "Who signs the certificates of workers with https:// URLs, as PEM, instead of the authorities that \
         browsers trust.",
    ),
    knob(
        "worker_tls.cert",
        Field::File(|it| &mut it.settings.worker_tls.cert),
        "The certificate that workers are shown if they ask for one, as PEM.",
    ),
    knob("worker_tls.key", Field::File(|it| &mut it.settings.worker_tls.key), "Its private key, as PEM."),
    knob(
        "worker_tls.verify",
        Field::Switch(|it| &mut it.settings.worker_tls.verify),
        "Whether workers must prove who they are; false believes anybody who answers at their address.",
    ),
    knob(
        "worker_tls.server_name",
        Field::Text(|it| &mut it.settings.worker_tls.server_name),
        "The name that the workers' certificates are for; the host of each URL if empty.",
    ),
];

static RECORD: &[Knob] = &[
    knob(
        "record.file",
        Field::File(|it| &mut it.settings.record.file),
        "Where requests are taken down for maitre replay, as hashes without any text; nowhere if empty.",
    ),
    knob(
        "record.max_bytes",
        Field::Size(|it| &mut it.settings.record.bytes_max, 4_096..=BODIES_BYTES_MAX),
        "The largest such file; then it is moved to FILE.1, that to FILE.2, and a new one begins.",
    ),
    knob(
        "record.files",
        Field::Count(|it| &mut it.settings.record.files, 1..=RECORD_FILES_MAX),
        "How many are kept, the one that is being written included.",
    ),
];

static TRACES: &[Knob] = &[
    knob(
        "traces.endpoint",
        Field::Collector(|it| &mut it.settings.traces.endpoint),
        "The OpenTelemetry collector that spans are posted to, as OTLP over HTTP; nothing is traced if empty.",
    ),
    knob(
        "traces.sample",
        Field::Ratio(|it| &mut it.settings.traces.sample, 0.0..=1.0),
        "The part of requests that are traced, of those whose callers do not say in traceparent.",
    ),
    knob(
        "traces.service",
        Field::Text(|it| &mut it.settings.traces.service),
        "What we are called there (service.name).",
    ),
    knob(
        "traces.header",
        Field::Headers(|it| &mut it.settings.traces.headers),
        "Headers that the collector wants, such as a key; as a flag, one at a time. Values with commas only in a file.",
    ),
    knob(
        "traces.ca",
        Field::File(|it| &mut it.settings.traces.ca),
        "Who signs the certificate of a collector with an https:// URL, as PEM, instead of the authorities that \
         browsers trust.",
    ),
];

static LOG: &[Knob] = &[
    knob(
        "log.level",
        Field::Level(|it| &mut it.log.level),
        "What is logged: off, error, warn, info, debug or trace, or by module: info,hyper=warn.",
    ),
    knob("log.format", Field::Format(|it| &mut it.log.format), "How it is logged: text or json."),
];
