//! The table of knobs: a row for each thing that can be set.
//!
//! Nothing about a knob is written anywhere else. Its default is the one in `Settings`; its flag and its
//! variable follow from its key.

mod cluster;
mod strategies;
mod trust;

use std::ops::RangeInclusive;
use std::time::Duration;

use maitre_dispatch::observer::decision::DECISIONS_MAX;
use maitre_dispatch::scheduler::ATTEMPTS_MAX;

use super::field::Field;
use super::knob::{Knob, Section};
use cluster::CLUSTER;
use strategies::{
    CACHE_AWARE, DUALMAP, DYNAMO_COST, PREBLE, PREFIX_HASH, SESSION, STICKY_UNTIL_SATURATED, WEIGHTED,
};
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

const fn knob(key: &'static str, field: Field, help: &'static str) -> Knob {
    Knob { key, field, help }
}

pub(super) static SECTIONS: &[Section] = &[
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
    knob(
        "admin",
        Field::Socket(|it| &mut it.settings.admin),
        "Where the page, the admin API, metrics and health are served.",
    ),
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

static LOG: &[Knob] = &[
    knob(
        "log.level",
        Field::Level(|it| &mut it.log.level),
        "What is logged: off, error, warn, info, debug or trace, or by module: info,hyper=warn.",
    ),
    knob("log.format", Field::Format(|it| &mut it.log.format), "How it is logged: text or json."),
];
