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

use crate::field::{At, List};
use crate::form::{Count, Ratio, Size, Switch, Time};
use crate::knob::{Knob, Section, knob};
use crate::queue::class::{CLASS_LIST, CLASS_NAME};
use crate::queue::tenant::TENANT_LIST;
use crate::types::{
    FILE, FOLDER_BY_MODEL, FREE_TEXT, HEADER, KUBERNETES_API, LOG_FORMAT, LOG_LEVEL, PATH_PATTERN,
    PRIORITY_ORDER, SOCKET, STRATEGY, STRATEGY_BY_MODEL, TENANT_BY, URL_PATH, URL_PATTERN, WORKER_LIST,
    WORKER_SOURCE,
};
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

pub(crate) fn all() -> impl Iterator<Item = &'static Knob> {
    SECTIONS.iter().flat_map(|section| section.knobs)
}

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
    knob("listen", &At(|it| &mut it.settings.listen, SOCKET), "Where clients connect.").at_restart(),
    knob(
        "admin",
        &At(|it| &mut it.settings.admin, SOCKET),
        "Where the page, the admin API, metrics and health are served.",
    )
    .at_restart(),
    knob(
        "workers",
        &At(|it| &mut it.settings.workers, WORKER_LIST),
        "The engines that take requests; as a flag, one at a time. After the URL may follow \
         ?events=PORT&replay=PORT&ranks=N: where it publishes KV events (or events=off), and its \
         data-parallel ranks.",
    )
    .with_flag("worker"),
    knob(
        "strategy",
        &At(|it| &mut it.settings.brain.strategy, STRATEGY),
        "How a worker is picked: least-delay, cache-aware, prefix-hash, sticky-session, least-work, \
         least-request, power-of-two, round-robin or random; or a rule as others published it: dynamo-cost, \
         weighted, sticky-until-saturated, preble, lmetric or dualmap.",
    ),
    knob(
        "strategies",
        &At(|it| &mut it.settings.brain.strategies, STRATEGY_BY_MODEL),
        "Models that go by a strategy of their own; as a flag, one at a time.",
    ),
    knob(
        "threads",
        &At(|it| &mut it.settings.threads, Count(0..=THREADS_MAX)),
        "Threads that carry traffic; 0 means one for each core.",
    )
    .at_restart(),
    knob(
        "insecure",
        &At(|it| &mut it.insecure, Switch),
        "Accept addresses that other machines can reach, though no key and no certificate is asked for there.",
    ),
    knob(
        "admin_workers",
        &At(|it| &mut it.settings.admin_workers, List::of(URL_PATTERN)),
        "Workers that may be added through the admin API; one that ends in * stands for all that begin so.",
    ),
    knob(
        "explain",
        &At(|it| &mut it.settings.explain, Switch),
        "Say in response headers which worker answered and why.",
    ),
    knob(
        "pass",
        &At(|it| &mut it.settings.pass, List::of(PATH_PATTERN)),
        "Paths outside the API that are passed on to a worker; one that ends in * stands for all that begin so.",
    ),
    knob(
        "seed",
        &At(|it| &mut it.settings.brain.seed, Count(0..=u64::MAX)),
        "Where the dice start; the same seed and the same events give the same picks.",
    )
    .at_restart(),
];

static DISCOVERY: &[Knob] = &[
    knob(
        "discovery.from",
        &At(|it| &mut it.discovery.from, List::of(WORKER_SOURCE)),
        "Where workers are found, besides those in `workers`: file:PATH, dns:HOST:PORT, srv:NAME, \
         kubernetes:NAMESPACE/SERVICE or kubernetes:NAMESPACE?pods=SELECTOR&port=PORT; as a flag, one at a time.",
    ),
    knob(
        "discovery.gone_after",
        &At(|it| &mut it.discovery.grace.gone_after, Time(FROM_ZERO)),
        "How long a worker is kept that its source no longer names.",
    ),
    knob(
        "discovery.empty_after",
        &At(|it| &mut it.discovery.grace.empty_after, Time(FROM_ZERO)),
        "How long the last list is kept of a source that suddenly names nobody; 0s for ever.",
    ),
    knob(
        "discovery.dns",
        &At(|it| &mut it.discovery.servers, List::of(SOCKET)),
        "Name servers to ask; those of the system if there are none here.",
    ),
    knob(
        "discovery.kubernetes_api",
        &At(|it| &mut it.discovery.api, KUBERNETES_API),
        "The API of the cluster; the one we run in if empty. Plain http only on loopback, as `kubectl proxy` serves it.",
    ),
];

static CACHES: &[Knob] = &[
    knob(
        "tokenizers",
        &At(|it| &mut it.settings.tokenizers, FOLDER_BY_MODEL),
        "Folders with tokenizer.json and the chat template of models; as a flag, one at a time. Where there \
         is none, an engine is asked, or bytes stand for tokens.",
    )
    .at_restart(),
    knob(
        "ask_patience",
        &At(|it| &mut it.settings.ask_patience, Time(FROM_ZERO)),
        "How long a request may be held up while an engine is asked for its tokens; 0s asks nobody.",
    ),
    knob(
        "index.budget",
        &At(|it| &mut it.settings.brain.index.budget_bytes, Size(4_096..=BODIES_BYTES_MAX)),
        "Memory for what is known of the workers' caches.",
    )
    .at_restart(),
];

static EVENTS: &[Knob] = &[
    knob(
        "events.enabled",
        &At(|it| &mut it.settings.events.enabled, Switch),
        "Subscribe to workers that publish what their caches hold.",
    ),
    knob(
        "events.at",
        &At(|it| &mut it.settings.events.port, Count(0..=65_535)),
        "Where to subscribe at a worker that does not say where it publishes; 0 for nowhere.",
    ),
    knob(
        "events.replay_at",
        &At(|it| &mut it.settings.events.replay_port, Count(0..=65_535)),
        "Where to ask such a worker for events that were missed; 0 for nowhere.",
    ),
    knob(
        "events.topic",
        &At(|it| &mut it.settings.events.topic, FREE_TEXT),
        "Only events whose topic begins so; all of them if empty.",
    ),
];

static DECISIONS: &[Knob] = &[
    knob(
        "decisions.kept",
        &At(|it| &mut it.settings.brain.explain.decisions, Count(0..=DECISIONS_MAX)),
        "How many decisions are kept for those who ask why, the newest; 0 keeps none, and foresees no first tokens.",
    ),
    knob(
        "shadow.strategies",
        &At(|it| &mut it.settings.brain.shadows, List::of(STRATEGY)),
        "Strategies that are asked about every decision and not obeyed, to see where they would differ; as a flag, one \
         at a time.",
    ),
    knob(
        "shadow.sample",
        &At(|it| &mut it.settings.brain.shadow_sample, Ratio(0.0..=1.0)),
        "The part of all decisions that they are asked about.",
    ),
];

static QUEUE: &[Knob] = &[
    knob(
        "queue.enabled",
        &At(|it| &mut it.settings.brain.queue.enabled, Switch),
        "Let requests wait here while all workers are busy, and go by their class; without it they are passed on \
         as they come.",
    ),
    knob(
        "classes",
        &At(|it| &mut it.settings.brain.queue.classes, CLASS_LIST),
        "Classes of requests, the one that goes first at the head. After the name may follow \
         ?requests=COUNT&tokens=COUNT&deadline=DURATION&reserve=NUMBER: how many may wait and of how many tokens, \
         how long they may stand in line (or deadline=none), and the part of the fleet that classes below never take.",
    ),
    knob(
        "queue.standard",
        &At(|it| &mut it.queue.standard, CLASS_NAME),
        "The class of requests that ask for none.",
    ),
    knob(
        "queue.aging",
        &At(|it| &mut it.settings.brain.queue.aging, Time(ABOVE_ZERO)),
        "How long a request waits before those of higher classes no longer all go first.",
    ),
    knob(
        "queue.recall",
        &At(|it| &mut it.settings.brain.queue.recall, Switch),
        "Call a request of a lower class back from its worker, while it has no first byte, for one of a higher \
         class that would miss its deadline.",
    ),
    knob(
        "queue.prefill_max",
        &At(|it| &mut it.settings.brain.queue.prefill_tokens_max, Count(0..=TOKENS_MAX)),
        "Most tokens that one worker is given to prefill at once; 0 for what is learned of it alone.",
    ),
    knob(
        "queue.sequences_max",
        &At(|it| &mut it.settings.brain.queue.sequences_max, Count(0..=1_000_000)),
        "Most requests that one worker is given at once; 0 for what is learned of it alone.",
    ),
    knob(
        "queue.body_priority",
        &At(|it| &mut it.settings.door.body_priority, PRIORITY_ORDER),
        "Which way a number in a body's priority counts from the standard class, which is 0: lower-first as with \
         vLLM, or higher-first as with SGLang.",
    ),
    knob(
        "queue.forward_priority",
        &At(|it| &mut it.settings.door.forward_priority, Switch),
        "Tell vLLM and SGLang the class of a request in its body's priority, each in its own order; only for \
         engines that were started to heed it.",
    ),
];

static TENANTS: &[Knob] = &[
    knob(
        "tenant.by",
        &At(|it| &mut it.settings.door.tenant_by, TENANT_BY),
        "What tells tenants apart: their key, a header, or the adapter (else the model) they ask for.",
    ),
    knob(
        "tenant.header",
        &At(|it| &mut it.settings.door.tenant_header, HEADER),
        "Which header, if it is one.",
    ),
    knob(
        "tenants",
        &At(|it| &mut it.queue.tenants, TENANT_LIST),
        "Terms of tenants; as a flag, one at a time. After the name, or * for everybody else, may follow \
         ?weight=NUMBER&best=CLASS&usual=CLASS&rpm=COUNT&tpm=COUNT: the share beside others of the class, the best \
         class it may use and the one it has if it asks for none, and requests and tokens a minute.",
    ),
];

static LIMITS: &[Knob] = &[
    knob(
        "limits.body",
        &At(|it| &mut it.settings.limits.body_bytes, Size(1..=BODY_BYTES_MAX)),
        "The largest request body.",
    ),
    knob(
        "limits.bodies",
        &At(|it| &mut it.settings.limits.bodies_bytes, Size(1..=BODIES_BYTES_MAX)),
        "All request bodies held at once; what would go past it is asked to come again.",
    ),
    knob(
        "limits.headers",
        &At(|it| &mut it.settings.limits.header_bytes, Size(1..=HEADER_BYTES_MAX)),
        "The largest request head.",
    ),
    knob(
        "limits.connections",
        &At(|it| &mut it.settings.limits.connections, Count(1..=CONNECTIONS_MAX)),
        "Client connections at once; further ones wait in the kernel.",
    )
    .at_restart(),
    knob(
        "limits.idle_per_worker",
        &At(|it| &mut it.settings.limits.idle_per_worker, Count(0..=CONNECTIONS_MAX)),
        "Idle connections kept to each worker by each thread.",
    )
    .at_restart(),
];

static TIMEOUTS: &[Knob] = &[
    knob(
        "timeouts.client_head",
        &At(|it| &mut it.settings.timeouts.client_head, Time(ABOVE_ZERO)),
        "A client's request head, from its first byte.",
    ),
    knob(
        "timeouts.client_body",
        &At(|it| &mut it.settings.timeouts.client_body, Time(ABOVE_ZERO)),
        "A client's request body, from the end of its head.",
    ),
    knob(
        "timeouts.client_stalled",
        &At(|it| &mut it.settings.timeouts.client_stalled, Time(ABOVE_ZERO)),
        "A client that takes nothing of what is written to it.",
    ),
    knob(
        "timeouts.client_idle",
        &At(|it| &mut it.settings.timeouts.client_idle, Time(ABOVE_ZERO)),
        "A client connection with no request on it.",
    ),
    knob(
        "timeouts.connect",
        &At(|it| &mut it.settings.timeouts.connect, Time(ABOVE_ZERO)),
        "Connecting to a worker.",
    ),
    knob(
        "timeouts.headers",
        &At(|it| &mut it.settings.timeouts.headers, Time(ABOVE_ZERO)),
        "From sending the request to the head of the answer, which for one that does not stream is its end.",
    ),
    knob(
        "timeouts.first_token",
        &At(|it| &mut it.settings.timeouts.first_token, Time(ABOVE_ZERO)),
        "From sending the request to the first event of a stream.",
    ),
    knob(
        "timeouts.inter_token",
        &At(|it| &mut it.settings.timeouts.inter_token, Time(ABOVE_ZERO)),
        "Between two events of a stream.",
    ),
    knob(
        "timeouts.total",
        &At(|it| &mut it.settings.timeouts.total, Time(ABOVE_ZERO)),
        "From a request's arrival to the last byte of its answer.",
    ),
    knob(
        "timeouts.worker_idle",
        &At(|it| &mut it.settings.timeouts.worker_idle, Time(FROM_ZERO)),
        "How long an idle connection to a worker is kept; less than the worker keeps it (uvicorn: 5s).",
    ),
    knob(
        "timeouts.drain_grace",
        &At(|it| &mut it.settings.timeouts.drain_grace, Time(FROM_ZERO)),
        "After SIGTERM: how long to stay open while load balancers notice that we are not ready.",
    ),
    knob(
        "timeouts.drain",
        &At(|it| &mut it.settings.timeouts.drain, Time(FROM_ZERO)),
        "After that: how long streams may take to finish.",
    ),
];

static PROBES: &[Knob] = &[
    knob("probes.path", &At(|it| &mut it.settings.probes.path, URL_PATH), "What a worker is asked for."),
    knob(
        "probes.interval",
        &At(|it| &mut it.settings.probes.interval, Time(ABOVE_ZERO)),
        "Between two probes of one worker, give or take a tenth.",
    ),
    knob(
        "probes.timeout",
        &At(|it| &mut it.settings.probes.timeout, Time(ABOVE_ZERO)),
        "How long a probe waits for its answer.",
    ),
    knob(
        "probes.models_interval",
        &At(|it| &mut it.settings.probes.models_interval, Time(ABOVE_ZERO)),
        "Between two looks at a worker's list of models.",
    ),
];

static HEALTH: &[Knob] = &[
    knob(
        "health.failures_max",
        &At(|it| &mut it.settings.brain.health.failures_max, Count(1..=1_000_000)),
        "Failed answers in a row before a worker is out.",
    ),
    knob(
        "health.back_off",
        &At(|it| &mut it.settings.brain.health.back_off, Time(ABOVE_ZERO)),
        "How long it is out the first time; doubles each time.",
    ),
    knob(
        "health.back_off_max",
        &At(|it| &mut it.settings.brain.health.back_off_max, Time(ABOVE_ZERO)),
        "How long it is out at the most.",
    ),
    knob(
        "health.slow_start",
        &At(|it| &mut it.settings.brain.health.slow_start, Time(FROM_ZERO)),
        "How long a returned worker's share grows from a tenth to the whole.",
    ),
];

static RETRIES: &[Knob] = &[
    knob(
        "retries.per_request",
        &At(|it| &mut it.settings.brain.budget.per_request, Ratio(0.0..=10.0)),
        "Retries that each request earns for the fleet.",
    ),
    knob(
        "retries.per_second",
        &At(|it| &mut it.settings.brain.budget.per_second, Ratio(0.0..=1_000_000.0)),
        "Retries earned each second, traffic or not.",
    ),
    knob(
        "retries.failovers_max",
        &At(|it| &mut it.settings.brain.failovers_max, Count(0..=ATTEMPTS_MAX)),
        "Further attempts of a request that a worker has seen.",
    ),
];

static RECORD: &[Knob] = &[
    knob(
        "record.file",
        &At(|it| &mut it.settings.record.file, FILE),
        "Where requests are taken down for maitre replay, as hashes without any text; nowhere if empty.",
    )
    .with_flag("record")
    .at_restart(),
    knob(
        "record.max_bytes",
        &At(|it| &mut it.settings.record.bytes_max, Size(4_096..=BODIES_BYTES_MAX)),
        "The largest such file; then it is moved to FILE.1, that to FILE.2, and a new one begins.",
    )
    .at_restart(),
    knob(
        "record.files",
        &At(|it| &mut it.settings.record.files, Count(1..=RECORD_FILES_MAX)),
        "How many are kept, the one that is being written included.",
    )
    .at_restart(),
];

static LOG: &[Knob] = &[
    knob(
        "log.level",
        &At(|it| &mut it.log.level, LOG_LEVEL),
        "What is logged: off, error, warn, info, debug or trace, or by module: info,hyper=warn.",
    ),
    knob("log.format", &At(|it| &mut it.log.format, LOG_FORMAT), "How it is logged: text or json.")
        .at_restart(),
];
