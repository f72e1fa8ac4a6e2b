//! The table of knobs: a row for each thing that can be set.
//!
//! Nothing about a knob is written anywhere else. Its default is the one in `Settings`; its flag and its
//! variable follow from its key.

mod cluster;
mod programs;
mod scaling;
mod strategies;
mod timeouts;
mod trust;

use std::ops::RangeInclusive;
use std::time::Duration;

use maitre_dispatch::observer::decision::DECISIONS_MAX;
use maitre_dispatch::scheduler::ATTEMPTS_MAX;

use crate::field::{At, List};
use crate::form::{Count, Ratio, Size, Switch, Time};
use crate::knob::{Knob, Section, knob};
use crate::queue::class::{CLASS_LIST, CLASS_NAME};
use crate::queue::tenant::TENANT_LIST;
use crate::types::{
    BROKEN_STREAMS, FILE, FOLDER_BY_MODEL, FREE_TEXT, HEADER, KUBERNETES_API, LOG_FORMAT, LOG_LEVEL, ON_OFF,
    ORIGIN, PATH_PATTERN, PRIORITY_ORDER, SOCKET, SPLIT_RULE, STRATEGY, STRATEGY_BY_MODEL, TENANT_BY,
    URL_PATH, URL_PATTERN, WORKER_LIST, WORKER_SOURCE,
};
use cluster::CLUSTER;
use programs::PROGRAMS;
use scaling::SCALING;
use strategies::{
    CACHE_AWARE, DUALMAP, DYNAMO_COST, PREBLE, PREFIX_HASH, SESSION, STICKY_UNTIL_SATURATED, WEIGHTED,
};
use timeouts::TIMEOUTS;
use trust::{KEYS, TLS, TRACES};

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

pub(crate) fn all() -> impl Iterator<Item = &'static Knob> {
    SECTIONS.iter().flat_map(|section| section.knobs)
}

/// Chosen: a gateway that has tried this many gives up anyway.
const FALLBACKS_MAX: usize = 16;

static PICKER: &[Knob] = &[knob(
    "picker.fallbacks",
    &At(|it| &mut it.settings.picker.fallbacks, Count(0..=FALLBACKS_MAX)),
    "How many more workers `maitre picker` names, best first, for the gateway to try if the first one \
     fails. Set it to 0 for gateways that accept only one address.",
)];

pub(crate) static SECTIONS: &[Section] = &[
    Section { title: None, knobs: MAIN },
    Section { title: Some("Keys"), knobs: KEYS },
    Section { title: Some("Discovery"), knobs: DISCOVERY },
    Section { title: Some("Other routers"), knobs: CLUSTER },
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
    Section { title: Some("Endpoint picker"), knobs: PICKER },
    Section { title: Some("Decisions"), knobs: DECISIONS },
    Section { title: Some("Queue"), knobs: QUEUE },
    Section { title: Some("Tenants"), knobs: TENANTS },
    Section { title: Some("Programs"), knobs: PROGRAMS },
    Section { title: Some("Scaling"), knobs: SCALING },
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
    knob(
        "listen",
        &At(|it| &mut it.settings.listen, SOCKET),
        "Where clients connect: an IP address and a port.",
    )
    .common()
    .at_restart(),
    knob(
        "admin",
        &At(|it| &mut it.settings.admin, SOCKET),
        "Address of the page, the admin API, metrics and health checks.",
    )
    .common()
    .at_restart(),
    knob(
        "workers",
        &At(|it| &mut it.settings.workers, WORKER_LIST),
        "The engines that serve requests; repeat the flag for each. Options after the URL, as in \
         ?events=5557&ranks=2: events=PORT and replay=PORT, where it publishes and replays KV events \
         (events=off for nowhere); ranks=N, how many data-parallel ranks it has; role=prefill or \
         role=decode, its part of requests; transfer=STYLE, bootstrap=PORT, engine-id=NAME and tp=N, how it \
         hands KV cache over; pull=PORT, where other workers pull its KV cache; store=NAME, the store of KV \
         cache that it shares; chunks=PART, it reuses KV at any position and computes this part of it \
         again.",
    )
    .common()
    .with_flag("worker"),
    knob(
        "strategy",
        &At(|it| &mut it.settings.brain.strategy, STRATEGY),
        "How the router picks a worker: least-delay, cache-aware, prefix-hash, sticky-session, least-work, \
         least-request, power-of-two, round-robin or random; or a published rule: dynamo-cost, weighted, \
         sticky-until-saturated, preble, lmetric or dualmap.",
    )
    .common(),
    knob(
        "split",
        &At(|it| &mut it.settings.brain.split, SPLIT_RULE),
        "Which prompts the router sends through workers of role prefill, if there are any: those for which \
         it is cheaper (price), all (always) or none (never).",
    ),
    knob(
        "continue",
        &At(|it| &mut it.settings.broken_streams, BROKEN_STREAMS),
        "Continue a stream at another worker if its worker fails in the middle: on or off. A class can \
         override it.",
    )
    .common(),
    knob(
        "hedge",
        &At(|it| &mut it.settings.brain.hedges.are_on, ON_OFF),
        "Send a stream's request to a second worker when its first token is overdue and its deadline is \
         near: on or off. The client gets the answer that begins first. A class can override it.",
    )
    .common(),
    knob(
        "hedge_share",
        &At(|it| &mut it.settings.brain.hedges.share, Ratio(0.0..=1.0)),
        "Budget for second attempts, as a share of the prefill work of all requests.",
    ),
    knob(
        "strategies",
        &At(|it| &mut it.settings.brain.strategies, STRATEGY_BY_MODEL),
        "Strategies of single models, in place of strategy; repeat the flag for each.",
    ),
    knob(
        "threads",
        &At(|it| &mut it.settings.threads, Count(0..=THREADS_MAX)),
        "Number of threads that carry traffic; 0 for one per core.",
    )
    .at_restart(),
    knob(
        "insecure",
        &At(|it| &mut it.insecure, Switch),
        "Allow listeners that other machines can reach without a key or a client certificate. Use it only \
         where the network decides who can connect.",
    )
    .common(),
    knob(
        "admin_workers",
        &At(|it| &mut it.settings.admin_workers, List::of(URL_PATTERN)),
        "Workers that the admin API may add; a trailing * matches any rest. Empty: it may add none.",
    ),
    knob(
        "explain",
        &At(|it| &mut it.settings.explain, Switch),
        "Add response headers that say which worker answered, and why. With keys, only trusted ones see the \
         worker.",
    ),
    knob(
        "passthrough",
        &At(|it| &mut it.settings.passthrough, List::of(PATH_PATTERN)),
        "Paths outside the API that the router forwards to a worker; a trailing * matches any rest.",
    ),
    knob(
        "compat_paths",
        &At(|it| &mut it.settings.compat_paths, Switch),
        "Also serve the health and metrics paths of sglang-router and vllm-router to clients: /liveness, \
         /readiness, /health_generate, and /metrics (with keys, for trusted ones only).",
    ),
    knob(
        "cors_origins",
        &At(|it| &mut it.settings.cors_origins, List::of(ORIGIN)),
        "Origins whose pages may call the API from a browser; * for all. Empty: browsers block requests \
         from other origins.",
    ),
    knob(
        "seed",
        &At(|it| &mut it.settings.brain.seed, Count(0..=u64::MAX)),
        "Seed of the random numbers. The same seed and the same events give the same picks.",
    )
    .at_restart(),
];

static DISCOVERY: &[Knob] = &[
    knob(
        "discovery.from",
        &At(|it| &mut it.discovery.from, List::of(WORKER_SOURCE)),
        "Sources of workers, in addition to `workers`: file:PATH, dns:HOST:PORT, srv:NAME, \
         kubernetes:NAMESPACE/SERVICE, kubernetes:NAMESPACE?pods=SELECTOR&port=PORT or \
         kubernetes:NAMESPACE?pool=NAME; repeat the flag for each.",
    )
    .common(),
    knob(
        "discovery.gone_after",
        &At(|it| &mut it.discovery.grace.gone_after, Time(FROM_ZERO)),
        "How long the router keeps a worker that its source no longer lists. Raise it for a name server \
         that returns only part of a long list.",
    ),
    knob(
        "discovery.empty_after",
        &At(|it| &mut it.discovery.grace.empty_after, Time(FROM_ZERO)),
        "How long the router keeps the last list of a source that suddenly lists no workers; 0s keeps it \
         forever.",
    ),
    knob(
        "discovery.dns",
        &At(|it| &mut it.discovery.servers, List::of(SOCKET)),
        "Name servers for dns: and srv: sources; empty for the system's.",
    ),
    knob(
        "discovery.kubernetes_api",
        &At(|it| &mut it.discovery.api, KUBERNETES_API),
        "Address of the Kubernetes API; empty for the cluster that the router runs in. Plain HTTP is \
         allowed on loopback only, as with `kubectl proxy`.",
    ),
];

static CACHES: &[Knob] = &[
    knob(
        "tokenizers",
        &At(|it| &mut it.settings.tokenizers, FOLDER_BY_MODEL),
        "Folders with tokenizer.json and the chat template of a model; repeat the flag for each. Without \
         one, the router asks an engine for the tokens, or counts four bytes of text as one.",
    )
    .common()
    .at_restart(),
    knob(
        "tokenize_timeout",
        &At(|it| &mut it.settings.tokenize_timeout, Time(FROM_ZERO)),
        "How long a request may wait for an engine to tokenize its prompt; 0s never asks an engine.",
    ),
    knob(
        "index.budget",
        &At(|it| &mut it.settings.brain.index.budget_bytes, Size(4_096..=BODIES_BYTES_MAX)),
        "Memory for the index of the workers' KV caches. When it is full, the router evicts the least \
         recently used entries.",
    )
    .at_restart(),
];

static EVENTS: &[Knob] = &[
    knob(
        "events.enabled",
        &At(|it| &mut it.settings.events.enabled, Switch),
        "Subscribe to the KV events of workers that publish them.",
    ),
    knob(
        "events.endpoint",
        &At(|it| &mut it.settings.events.port, Count(0..=65_535)),
        "Port of the KV events of all workers whose URL names none; 0 to ask each engine for its port.",
    ),
    knob(
        "events.replay_endpoint",
        &At(|it| &mut it.settings.events.replay_port, Count(0..=65_535)),
        "With events.endpoint: the port at which those workers replay missed events; 0 for none.",
    ),
    knob(
        "events.topic",
        &At(|it| &mut it.settings.events.topic, FREE_TEXT),
        "Subscribe only to topics with this prefix; empty for all.",
    ),
];

static DECISIONS: &[Knob] = &[
    knob(
        "decisions.kept",
        &At(|it| &mut it.settings.brain.explain.decisions, Count(0..=DECISIONS_MAX)),
        "How many of the latest decisions the router keeps for `explain`; 0 keeps none and turns TTFT \
         forecasts off.",
    ),
    knob(
        "shadow.strategies",
        &At(|it| &mut it.settings.brain.shadows, List::of(STRATEGY)),
        "Strategies that the router evaluates for each decision without applying them, to show where they \
         would differ; repeat the flag for each.",
    ),
    knob(
        "shadow.sample",
        &At(|it| &mut it.settings.brain.shadow_sample, Ratio(0.0..=1.0)),
        "Share of decisions for which the router evaluates shadow.strategies.",
    ),
];

static QUEUE: &[Knob] = &[
    knob(
        "queue.enabled",
        &At(|it| &mut it.settings.brain.queue.enabled, Switch),
        "Queue requests by class while all workers are busy. Otherwise every request goes to a worker on \
         arrival.",
    )
    .common(),
    knob(
        "classes",
        &At(|it| &mut it.settings.brain.queue.classes, CLASS_LIST),
        "Classes of requests, highest priority first. Options after the name, as in \
         ?deadline=10s&reserve=0.2: requests=COUNT and tokens=COUNT, the most in the queue; \
         deadline=DURATION, the longest wait of requests without a deadline of their own (none for no \
         limit); reserve=NUMBER, a share of the fleet that lower classes never use; continue=on|off and \
         hedge=on|off, in place of the settings of that name.",
    ),
    knob(
        "queue.standard",
        &At(|it| &mut it.queue.standard, CLASS_NAME),
        "The class of requests that name none.",
    ),
    knob(
        "queue.aging",
        &At(|it| &mut it.settings.brain.queue.aging, Time(ABOVE_ZERO)),
        "Time in the queue after which a request joins a group that gets a tenth of the work beside higher \
         classes.",
    ),
    knob(
        "queue.recall",
        &At(|it| &mut it.settings.brain.queue.recall, Switch),
        "Take a request of a lower class back from its worker, if one of a higher class would otherwise \
         miss its deadline. Only before the first byte of its response.",
    ),
    knob(
        "queue.prefill_max",
        &At(|it| &mut it.settings.brain.queue.prefill_tokens_max, Count(0..=TOKENS_MAX)),
        "Most tokens in prefill at one worker, if the learned limit is higher; 0 to use only the learned \
         limit.",
    ),
    knob(
        "queue.sequences_max",
        &At(|it| &mut it.settings.brain.queue.sequences_max, Count(0..=1_000_000)),
        "Most requests in flight at one worker, if the learned limit is higher; 0 to use only the learned \
         limit.",
    ),
    knob(
        "queue.body_priority",
        &At(|it| &mut it.settings.hints.body_priority, PRIORITY_ORDER),
        "Order of the number in a body's priority, where 0 is the standard class: lower-first as in vLLM, \
         or higher-first as in SGLang.",
    ),
    knob(
        "queue.forward_priority",
        &At(|it| &mut it.settings.hints.forward_priority, Switch),
        "Send the class of a request to vLLM and SGLang in the body's priority, in the engine's own order. \
         Set it only if the engines run with priority scheduling.",
    ),
];

static TENANTS: &[Knob] = &[
    knob(
        "tenant.by",
        &At(|it| &mut it.settings.hints.tenant_by, TENANT_BY),
        "What identifies a tenant: its key, a header, or the adapter of the request (its model if it names \
         no adapter).",
    ),
    knob(
        "tenant.header",
        &At(|it| &mut it.settings.hints.tenant_header, HEADER),
        "The header that identifies a tenant, with tenant.by = \"header\".",
    ),
    knob(
        "tenants",
        &At(|it| &mut it.queue.tenants, TENANT_LIST),
        "Terms of tenants; repeat the flag for each. Options after the name (* for all other tenants), as \
         in ?weight=3&rpm=600: weight=NUMBER, the share within a class; best=CLASS, the highest class \
         allowed; usual=CLASS, the class of requests that name none; rpm=COUNT and tpm=COUNT, requests and \
         tokens per minute.",
    ),
];

static LIMITS: &[Knob] = &[
    knob(
        "limits.body",
        &At(|it| &mut it.settings.limits.body_bytes, Size(1..=BODY_BYTES_MAX)),
        "Size of the largest request body that the router accepts.",
    ),
    knob(
        "limits.bodies",
        &At(|it| &mut it.settings.limits.bodies_bytes, Size(1..=BODIES_BYTES_MAX)),
        "Memory for all request bodies. Above it, the router refuses requests with Retry-After.",
    ),
    knob(
        "limits.bodies_per_tenant",
        &At(|it| &mut it.settings.limits.bodies_per_tenant_bytes, Size(1..=BODIES_BYTES_MAX)),
        "Memory for the request bodies of one tenant, where clients have keys.",
    ),
    knob(
        "limits.bodies_per_connection",
        &At(|it| &mut it.settings.limits.bodies_per_connection_bytes, Size(1..=BODIES_BYTES_MAX)),
        "Memory for the request bodies that one connection is still sending.",
    ),
    knob(
        "limits.tokenize",
        &At(|it| &mut it.settings.limits.tokenize_bytes, Size(0..=BODY_BYTES_MAX)),
        "Size of the longest prompt text that is tokenized. The router splits longer ones into words of \
         four bytes, which match no KV events.",
    ),
    knob(
        "limits.tokenizing",
        &At(|it| &mut it.settings.limits.tokenizing_bytes, Size(0..=BODIES_BYTES_MAX)),
        "Size of all new prompt text that is tokenized at the same time. The router splits what exceeds it \
         into words of four bytes.",
    ),
    knob(
        "limits.headers",
        &At(|it| &mut it.settings.limits.header_bytes, Size(1..=HEADER_BYTES_MAX)),
        "Size of the largest request header that the router accepts.",
    ),
    knob(
        "limits.connections",
        &At(|it| &mut it.settings.limits.connections, Count(1..=CONNECTIONS_MAX)),
        "Most client connections at a time; further ones wait in the kernel.",
    )
    .at_restart(),
    knob(
        "limits.idle_per_worker",
        &At(|it| &mut it.settings.limits.idle_per_worker, Count(0..=CONNECTIONS_MAX)),
        "Most idle connections that each thread keeps to each worker.",
    )
    .at_restart(),
];

static PROBES: &[Knob] = &[
    knob(
        "probes.path",
        &At(|it| &mut it.settings.probes.path, URL_PATH),
        "The path that a health probe requests.",
    ),
    knob(
        "probes.interval",
        &At(|it| &mut it.settings.probes.interval, Time(ABOVE_ZERO)),
        "Time between two probes of one worker, give or take a tenth. In fleets of more than 350, the \
         router probes idle workers every second or third time.",
    ),
    knob(
        "probes.timeout",
        &At(|it| &mut it.settings.probes.timeout, Time(ABOVE_ZERO)),
        "Time limit of a probe. Health probes get two seconds more where the engine is an SGLang, which answers after one, or of unknown brand.",
    ),
    knob(
        "probes.models_interval",
        &At(|it| &mut it.settings.probes.models_interval, Time(ABOVE_ZERO)),
        "Time between two reads of a worker's list of models.",
    ),
];

static HEALTH: &[Knob] = &[
    knob(
        "health.failures_max",
        &At(|it| &mut it.settings.brain.health.failures_max, Count(1..=1_000_000)),
        "Number of failed responses in a row after which the router ejects a worker.",
    ),
    knob(
        "health.back_off",
        &At(|it| &mut it.settings.brain.health.back_off, Time(ABOVE_ZERO)),
        "Length of the first ejection. It doubles with each further one.",
    ),
    knob(
        "health.back_off_max",
        &At(|it| &mut it.settings.brain.health.back_off_max, Time(ABOVE_ZERO)),
        "Length of the longest ejection.",
    ),
    knob(
        "health.slow_start",
        &At(|it| &mut it.settings.brain.health.slow_start, Time(FROM_ZERO)),
        "Time in which the share of a returned worker grows from a tenth to the whole.",
    ),
];

static RETRIES: &[Knob] = &[
    knob(
        "retries.per_request",
        &At(|it| &mut it.settings.brain.budget.per_request, Ratio(0.0..=10.0)),
        "How many retries each request adds to the budget of the fleet.",
    ),
    knob(
        "retries.per_second",
        &At(|it| &mut it.settings.brain.budget.per_second, Ratio(0.0..=1_000_000.0)),
        "How many retries each second adds to the budget of the fleet.",
    ),
    knob(
        "retries.failovers_max",
        &At(|it| &mut it.settings.brain.failovers_max, Count(0..=ATTEMPTS_MAX)),
        "How many more workers may receive a request after one that received it has failed. Refused \
         connections do not count.",
    ),
];

static RECORD: &[Knob] = &[
    knob(
        "record.file",
        &At(|it| &mut it.settings.record.file, FILE),
        "Where to record requests for `maitre replay`, as hashes without text; empty for nowhere.",
    )
    .common()
    .with_flag("record")
    .at_restart(),
    knob(
        "record.max_bytes",
        &At(|it| &mut it.settings.record.bytes_max, Size(4_096..=BODIES_BYTES_MAX)),
        "Size of the largest such file. The router renames a full one to FILE.1, that one to FILE.2, and so \
         on.",
    )
    .at_restart(),
    knob(
        "record.files",
        &At(|it| &mut it.settings.record.files, Count(1..=RECORD_FILES_MAX)),
        "How many files the router keeps, including the current one.",
    )
    .at_restart(),
];

static LOG: &[Knob] = &[
    knob(
        "log.level",
        &At(|it| &mut it.log.level, LOG_LEVEL),
        "What the router logs: off, error, warn, info, debug or trace, or by module: info,hyper=warn.",
    )
    .common(),
    knob("log.format", &At(|it| &mut it.log.format, LOG_FORMAT), "Format of the log: text or json.")
        .at_restart(),
];
