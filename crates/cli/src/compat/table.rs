//! Every flag of `sglang-router` 0.3.2, `smg` 1.13.0 and `vllm-router` 0.1.16, and its outcome here.
//!
//! The first list has the flags that both families share; the flags of only one follow. Flags that are left
//! out for the same reason are grouped, by the kind of value. A test compares all of it with the flags that
//! the three programs list.

mod vllm;

use super::flag::ArgumentForm::{Bytes, Plain, Seconds, SecondsOrNever, Word};
use super::flag::Fate::{Changed, Essential, Kept, Left, Needless};
use super::flag::Goal::{Key, Part};
use super::flag::Takes::{Nothing, One, Several};
use super::flag::{Fate, Flag, Old, Takes};

const ENCODE: &str = "separate encode engines are not supported: run engines that encode media themselves";
const PREFILL_CHOICE: &str =
    "the prefill worker with the lowest price is chosen, whatever the strategy: see docs/prefill-decode.md";
const ONE_QUEUE: &str =
    "prefill workers have no queue of their own: requests wait in the router's, see queue.*";
const ALL_SPLIT: &str = "every prompt that can be is computed by a prefill worker, as before; split = \"price\" does so where it is faster";
const ROLE_PODS: &str = "a second source of workers, with this role; the bootstrap port of a Pod is maitre.dev/bootstrap-port, if its engine does not tell it";
const HISTORY: &str = "Maitre stores no conversations or responses";
const IDENTITY: &str = "Maitre supports keys and client certificates only: no JWT, roles or audit log";
const PROBED: &str = "after one failed probe a worker is suspect, after two it is ejected; a successful probe brings it back, with a share that grows";
const AT_ONCE: &str = "the router retries on another worker at once, within a budget for the whole fleet";
pub(super) const MANIFEST: &str = "JSON manifests are not supported: write the workers into a file, one per line, and set discovery.from to it";
const WATCHED: &str = "Pods with these labels in one namespace; docs/discovery.md has the Role it needs";
const OVER_HTTP: &str =
    "spans are sent over HTTP, not gRPC; collectors accept it on port 4318, and port 4317 is changed to that";

/// Flags that are left out for one reason, by the kind of value.
struct Reason {
    fate: Fate,
    flags: [&'static [&'static [&'static str]]; 3],
}

static SHARED: &[Flag] = &[
    Flag::new(&["--host"], One, Kept(Part("listen"))),
    Flag::new(&["--port"], One, Kept(Part("listen"))),
    Flag::new(&["--worker-urls"], Several, Kept(Part("workers"))),
    Flag::new(&["--policy"], One, Kept(Part("strategy"))),
    Flag::new(
        &["--cache-threshold", "--cache-match-threshold"],
        One,
        Kept(Key("cache_aware.cache_threshold", Plain)),
    ),
    Flag::new(
        &["--balance-abs-threshold", "--spill-abs-threshold"],
        One,
        Kept(Key("cache_aware.balance_abs_threshold", Plain)),
    ),
    Flag::new(
        &["--balance-rel-threshold", "--spill-rel-threshold"],
        One,
        Kept(Key("cache_aware.balance_rel_threshold", Plain)),
    ),
    Flag::new(&["--max-payload-size"], One, Kept(Key("limits.body", Bytes))),
    Flag::new(&["--prometheus-host"], One, Changed(Part("admin"), "also serves health and readiness")),
    Flag::new(&["--prometheus-port"], One, Changed(Part("admin"), "also serves health and readiness")),
    Flag::new(
        &["--request-timeout-secs"],
        One,
        Changed(Part("timeouts.total"), "also limits the time to the response head and to the first token"),
    ),
    Flag::new(&["--log-level"], One, Kept(Part("log.level"))),
    Flag::new(
        &["--cors-allowed-origins"],
        Several,
        Changed(Part("cors_origins"), "in lower case and without a path, as browsers send them"),
    ),
    Flag::new(
        &["--max-concurrent-requests"],
        One,
        Changed(
            Part("queue.sequences_max"),
            "divided evenly: each worker gets at most its part, and further requests wait in the queue",
        ),
    ),
    Flag::new(
        &["--queue-size"],
        One,
        Changed(Part("classes"), "one class, whose queue has this limit for all requests"),
    ),
    Flag::new(
        &["--queue-timeout-secs"],
        One,
        Changed(
            Part("classes"),
            "a request that cannot be placed by then is refused as soon as this is known",
        ),
    ),
    Flag::new(
        &["--retry-max-retries"],
        One,
        Changed(
            Part("retries.failovers_max"),
            "counts retries, at most eight; a refused connection does not count",
        ),
    ),
    Flag::new(
        &["--disable-retries"],
        Nothing,
        Changed(
            Part("retries.failovers_max"),
            "after a refused connection another worker is still tried, because no worker has seen the request",
        ),
    ),
    Flag::new(&["--cb-failure-threshold"], One, Changed(Part("health.failures_max"), "failures in a row")),
    Flag::new(
        &["--cb-timeout-duration-secs"],
        One,
        Changed(Part("health.back_off"), "doubles each time, up to health.back_off_max"),
    ),
    Flag::new(
        &["--disable-circuit-breaker"],
        Nothing,
        Changed(Part("health.failures_max"), "a worker that fails its probes is still ejected"),
    ),
    Flag::new(&["--health-check-timeout-secs"], One, Kept(Key("probes.timeout", Seconds))),
    Flag::new(&["--health-check-interval-secs"], One, Kept(Key("probes.interval", Seconds))),
    Flag::new(
        &["--health-check-endpoint"],
        One,
        Changed(Key("probes.path", Plain), "any status except 5xx counts as healthy"),
    ),
    Flag::new(&["--service-discovery"], Nothing, Changed(Part("discovery.from"), WATCHED)),
    Flag::new(&["--selector"], Several, Kept(Part("discovery.from"))),
    Flag::new(&["--service-discovery-port"], One, Kept(Part("discovery.from"))),
    Flag::new(&["--service-discovery-namespace"], One, Kept(Part("discovery.from"))),
    Flag::new(
        &["--prefill"],
        Several,
        Changed(Part("workers"), "a worker with role=prefill, and its port as bootstrap=PORT"),
    ),
    Flag::new(&["--decode"], One, Changed(Part("workers"), "a worker with role=decode")),
    Flag::new(
        &["--decode-policy"],
        One,
        Changed(Part("strategy"), "the strategy chooses who answers, so this replaces --policy"),
    ),
    Flag::new(&["--prefill-selector"], Several, Changed(Part("discovery.from"), ROLE_PODS)),
    Flag::new(&["--decode-selector"], Several, Changed(Part("discovery.from"), ROLE_PODS)),
    Flag::new(&["--mini-lb"], Nothing, Needless("the router itself drives prefill and decode workers")),
    Flag::new(&["--enable-igw"], Nothing, Needless("several models behind one router need no special mode")),
    Flag::new(
        &["--worker-startup-timeout-secs"],
        One,
        Needless("Maitre starts at once, and a worker joins when it answers, however late"),
    ),
    Flag::new(
        &["--worker-startup-check-interval"],
        One,
        Needless("Maitre starts at once, and a worker joins when it answers, however late"),
    ),
    Flag::new(
        &["--eviction-interval-secs"],
        One,
        Needless("the index stays within its budget, and drops what engines evict"),
    ),
];

static SHARED_LEFT: &[Reason] = &[
    Reason {
        fate: Left("try maitre compat --help, or maitre serve --help"),
        flags: [&[&["--help"]], &[], &[]],
    },
    Reason {
        fate: Left("the index is bounded in bytes, not in characters: set index.budget"),
        flags: [&[], &[&["--max-tree-size"]], &[]],
    },
    Reason { fate: Left(PREFILL_CHOICE), flags: [&[], &[&["--prefill-policy"]], &[]] },
    Reason {
        fate: Left("the log goes to standard error; let the service manager write it to files"),
        flags: [&[], &[&["--log-dir"]], &[]],
    },
    Reason {
        fate: Left("only x-request-id is read as the request id"),
        flags: [&[], &[], &[&["--request-id-headers"]]],
    },
    Reason {
        fate: Left("rate limits are per tenant, in requests and tokens per minute: set tenants"),
        flags: [&[], &[&["--rate-limit-tokens-per-second"]], &[]],
    },
    Reason {
        fate: Left(AT_ONCE),
        flags: [
            &[],
            &[
                &["--retry-initial-backoff-ms"],
                &["--retry-max-backoff-ms"],
                &["--retry-backoff-multiplier"],
                &["--retry-jitter-factor"],
            ],
            &[],
        ],
    },
    Reason {
        fate: Left(PROBED),
        flags: [
            &[],
            &[
                &["--cb-success-threshold"],
                &["--cb-window-duration-secs"],
                &["--health-failure-threshold"],
                &["--health-success-threshold"],
            ],
            &[],
        ],
    },
];

static SGLANG: &[Flag] = &[
    Flag::new(&["--pd-disaggregation"], Nothing, Changed(Key("split", Word("always")), ALL_SPLIT)),
    Flag::new(&["--shutdown-grace-period-secs"], One, Kept(Key("timeouts.drain", Seconds))),
    Flag::new(
        &["--model-path", "--model"],
        One,
        Changed(Part("tokenizers"), "for requests whose model is exactly this path"),
    ),
    Flag::new(
        &["--tokenizer-path"],
        One,
        Changed(
            Part("tokenizers"),
            "a folder; for requests whose model is --model-path, or exactly this path",
        ),
    ),
    Flag::new(
        &["--prefix-token-count"],
        One,
        Changed(
            Part("prefix_hash.head_bytes"),
            "four bytes per token; the beginning of the prompt is hashed as text",
        ),
    ),
    Flag::new(&["--prefix-hash-load-factor"], One, Kept(Key("prefix_hash.load_factor", Plain))),
    Flag::new(
        &["--routing-key-override", "--sticky-sessions"],
        Nothing,
        Changed(Part("strategy"), "sessions are a strategy here, which replaces --policy"),
    ),
    Flag::new(
        &["--routing-key-headers"],
        Several,
        Changed(Part("session.header"), "only the first of these headers identifies a session"),
    ),
    Flag::new(&["--upstream-pool-idle-timeout-secs"], One, Kept(Key("timeouts.worker_idle", SecondsOrNever))),
    Flag::new(&["--header-read-timeout-secs"], One, Kept(Key("timeouts.client_header", SecondsOrNever))),
    Flag::new(&["--idle-connection-timeout-secs"], One, Kept(Key("timeouts.client_idle", SecondsOrNever))),
    Flag::new(&["--trust-tenant-header"], Nothing, Kept(Part("tenant.by"))),
    Flag::new(&["--tenant-header-name"], One, Kept(Part("tenant.header"))),
    Flag::new(&["--log-json"], Nothing, Kept(Key("log.format", Word("json")))),
    Flag::new(&["--health-check-port"], One, Needless("/healthz and /readyz are on the admin address")),
    Flag::new(&["--load-monitor-interval"], One, Needless("the load of engines is read every second")),
    Flag::new(&["--block-size"], One, Needless("the block size is read from the engine")),
    Flag::new(
        &["--max-buffered-request-bytes"],
        One,
        Needless("every body is kept until its response begins, within limits.bodies"),
    ),
    Flag::new(
        &["--worker-startup-delay"],
        One,
        Needless("Maitre starts at once, and a worker joins when it answers"),
    ),
    Flag::new(
        &["--disable-tokenizer-autoload"],
        Nothing,
        Needless("only the configured tokenizers are loaded, and none is downloaded"),
    ),
    Flag::new(
        &["--api-key"],
        One,
        Changed(
            Part("keys"),
            "clients also need it for /v1/models; the router sends it to workers with every request (worker_key)",
        ),
    ),
    Flag::new(
        &["--tenant-api-key"],
        One,
        Changed(Part("keys"), "it is not passed on: workers get worker_key instead, if it is set"),
    ),
    Flag::new(
        &["--control-plane-api-keys"],
        Several,
        Changed(Part("admin_key"), "one key, for the page and the API on the admin address"),
    ),
    Flag::new(&["--tls-cert-path"], One, Kept(Key("tls.cert", Plain))),
    Flag::new(&["--tls-key-path"], One, Kept(Key("tls.key", Plain))),
    Flag::new(&["--client-cert-path"], One, Kept(Key("worker_tls.cert", Plain))),
    Flag::new(&["--client-key-path"], One, Kept(Key("worker_tls.key", Plain))),
    Flag::new(
        &["--ca-cert-paths"],
        Several,
        Changed(Part("worker_tls.ca"), "one file, which replaces the public authorities"),
    ),
    Flag::new(&["--enable-trace"], Nothing, Changed(Part("traces.endpoint"), OVER_HTTP)),
    Flag::new(&["--otlp-traces-endpoint"], One, Changed(Part("traces.endpoint"), OVER_HTTP)),
    Flag::new(&["--discovery-provider"], One, Kept(Part("discovery.from"))),
];

static SGLANG_LEFT: &[Reason] = &[
    Reason { fate: Essential(ENCODE), flags: [&[&["--epd-disaggregation"]], &[], &[]] },
    Reason {
        fate: Left(ENCODE),
        flags: [&[], &[&["--encode-policy"]], &[&["--encode"], &["--encode-selector"]]],
    },
    Reason { fate: Left(PREFILL_CHOICE), flags: [&[], &[&["--bucket-adjust-interval-secs"]], &[]] },
    Reason {
        fate: Left(ONE_QUEUE),
        flags: [
            &[],
            &[
                &["--pd-admission-wait-secs"],
                &["--prefill-max-inflight-requests-per-worker"],
                &["--prefill-queue-size"],
                &["--prefill-queue-timeout-secs"],
            ],
            &[],
        ],
    },
    Reason {
        fate: Left("Pods say this in maitre.dev/transfer and maitre.dev/engine-id: see docs/discovery.md"),
        flags: [&[], &[&["--kv-connector-annotation"], &["--kv-engine-id-annotation"]], &[]],
    },
    Reason {
        fate: Left("append ?ranks=N to the URL of each such worker"),
        flags: [&[&["--dp-aware"], &["--dp-minimum-tokens-scheduler"]], &[&["--zmq-engine-count"]], &[]],
    },
    Reason {
        fate: Left(
            "a session stays on the worker of its first request, and moves only if that worker is unavailable",
        ),
        flags: [&[], &[&["--max-idle-secs", "--sticky-key-idle-secs"], &["--assignment-mode"]], &[]],
    },
    Reason {
        fate: Left("cache-aware has only its three original thresholds; least-delay prices the rest"),
        flags: [
            &[],
            &[
                &["--balance-token-usage-threshold"],
                &["--overload-token-usage-threshold"],
                &["--selection-policy"],
                &["--selection-accounting-ttl-ms"],
                &["--overlap-decay"],
                &["--selection-temperature"],
                &["--cache-boundaries"],
                &["--cache-index"],
                &["--cache-ttl-secs"],
                &["--kv-index"],
                &["--prefix-hash-balance-abs-threshold"],
                &["--power-of-two-load-metric"],
            ],
            &[],
        ],
    },
    Reason {
        fate: Left("rates are learned from each worker's responses"),
        flags: [
            &[],
            &[
                &["--least-load-kv-pressure-weight"],
                &["--least-load-default-throughput"],
                &["--least-load-mean-prefill-tokens"],
                &["--least-load-max-waiting-requests"],
            ],
            &[],
        ],
    },
    Reason {
        fate: Left(
            "the concurrency limit of a worker is learned; further requests wait in the router: see queue.*",
        ),
        flags: [
            &[
                &["--worker-overload-protection"],
                &["--disable-worker-overload-protection"],
                &["--worker-overload-shed"],
            ],
            &[&["--worker-overload-waiting-requests"], &["--worker-overload-token-usage"]],
            &[],
        ],
    },
    Reason {
        fate: Left(PROBED),
        flags: [
            &[
                &["--disable-health-check"],
                &[
                    "--remove-unhealthy-workers",
                    "--no-remove-unhealthy-workers",
                    "--worker-auto-recovery",
                    "--no-worker-auto-recovery",
                ],
            ],
            &[&["--worker-stall-secs"], &["--worker-wedge-secs"], &["--worker-stale-secs"]],
            &[],
        ],
    },
    Reason {
        fate: Left("the share of a worker that returns grows over health.slow_start"),
        flags: [
            &[],
            &[
                &["--worker-warmup-secs"],
                &["--worker-warmup-share"],
                &["--worker-warmup-blocks"],
                &["--worker-warmup-thin-ratio"],
                &["--worker-warmup-divert-every"],
            ],
            &[],
        ],
    },
    Reason {
        fate: Left("the load of engines is read every second, whatever the strategy"),
        flags: [&[&["--disable-load-monitoring"]], &[], &[]],
    },
    Reason { fate: Left("Maitre uses HTTP/1.1 to workers"), flags: [&[&["--upstream-http2"]], &[], &[]] },
    Reason {
        fate: Left("engines are recognised by their answers; external providers are not supported"),
        flags: [&[], &[&["--backend"]], &[]],
    },
    Reason {
        fate: Left("models keep the names that engines list"),
        flags: [&[], &[&["--model-alias"], &["--model-id-from"]], &[]],
    },
    Reason {
        fate: Left("histogram buckets are fixed: they double from 0.5 ms to 524 s"),
        flags: [&[], &[], &[&["--prometheus-duration-buckets"]]],
    },
    Reason {
        fate: Left(MANIFEST),
        flags: [&[], &[&["--discovery-file"], &["--discovery-check-interval-secs"]], &[]],
    },
    Reason {
        fate: Left("classes and tenants are set in maitre.toml, in another format: see docs/queue.md"),
        flags: [
            &[&["--priority-scheduler-enabled"], &["--tenant-rate-limit-enabled"]],
            &[
                &["--priority-scheduler-default-max-class"],
                &["--priority-scheduler-config"],
                &["--priority-scheduler-tenant-metric-top-n"],
                &["--tenant-rate-limit-config"],
            ],
            &[],
        ],
    },
    Reason {
        fate: Left("no keepalives are added to a silent stream; timeouts.inter_token limits the silence"),
        flags: [&[], &[&["--sse-keepalive-secs"]], &[]],
    },
    Reason {
        fate: Left("timeouts.client_body limits the time for a client's body, from the end of its head"),
        flags: [&[], &[&["--stream-body-stall-timeout-secs"]], &[]],
    },
    Reason {
        fate: Left("the chat template is read from the model's folder, with its tokenizer"),
        flags: [&[], &[&["--chat-template"]], &[]],
    },
    Reason {
        fate: Left("the tokenizer's cache has one layer and a fixed limit"),
        flags: [
            &[&["--tokenizer-cache-enable-l0"], &["--tokenizer-cache-enable-l1"]],
            &[
                &["--tokenizer-cache-l0-max-entries"],
                &["--tokenizer-cache-l0-max-memory"],
                &["--tokenizer-cache-l1-max-memory"],
            ],
            &[],
        ],
    },
    Reason {
        fate: Left("responses are passed on unchanged: let the engine parse reasoning and tool calls"),
        flags: [&[], &[&["--reasoning-parser"], &["--tool-call-parser"], &["--parser"]], &[]],
    },
    Reason { fate: Left("Maitre calls no tools"), flags: [&[], &[&["--mcp-config-path"]], &[]] },
    Reason {
        fate: Left(HISTORY),
        flags: [
            &[&["--oracle-external-auth"]],
            &[
                &["--history-backend"],
                &["--history-memory-max-responses"],
                &["--history-memory-max-items"],
                &["--history-memory-retention-secs"],
                &["--schema-config"],
                &["--storage-hook-wasm-path"],
                &["--max-background-responses"],
                &["--oracle-wallet-path"],
                &["--oracle-tns-alias"],
                &["--oracle-connect-descriptor"],
                &["--oracle-username"],
                &["--oracle-password"],
                &["--oracle-pool-min"],
                &["--oracle-pool-max"],
                &["--oracle-pool-timeout-secs"],
                &["--postgres-db-url"],
                &["--postgres-pool-max"],
                &["--postgres-op-timeout-secs"],
                &["--redis-url"],
                &["--redis-pool-max"],
                &["--redis-retention-days"],
                &["--redis-op-timeout-secs"],
            ],
            &[&["--storage-context-headers"]],
        ],
    },
    Reason {
        fate: Left(IDENTITY),
        flags: [
            &[&["--control-plane-audit-enabled"]],
            &[&["--jwt-issuer"], &["--jwt-audience"], &["--jwt-jwks-uri"]],
            &[&["--jwt-role-mapping"]],
        ],
    },
    Reason {
        fate: Left("Maitre has no such control plane"),
        flags: [
            &[&["--enable-rl"]],
            &[
                &["--rl-control-timeout-secs"],
                &["--rl-fanout-concurrency"],
                &["--job-queue-capacity"],
                &["--job-queue-concurrency"],
            ],
            &[],
        ],
    },
    Reason {
        fate: Left("bodies are passed on unchanged: the engine fetches and prepares media"),
        flags: [
            &[&["--mm-pixel-rdma"], &["--mm-allow-private-media-hosts"], &["--log-mm-timing"]],
            &[
                &["--multimodal-tensor-transport"],
                &["--multimodal-shm-min-bytes"],
                &["--multimodal-max-inflight-bytes"],
                &["--mm-per-request-image-limit"],
                &["--mm-processing"],
                &["--mm-pixel-cache-mb"],
                &["--mm-allowed-media-domains"],
                &["--rdma-listen-ip"],
                &["--rdma-slot-ttl-s"],
            ],
            &[],
        ],
    },
    Reason {
        fate: Left("Maitre has a cluster of its own: see docs/cluster.md"),
        flags: [
            &[&["--enable-mesh"]],
            &[
                &["--mesh-server-name"],
                &["--mesh-host"],
                &["--mesh-advertise-host"],
                &["--mesh-port"],
                &["--mesh-tls-ca-cert"],
                &["--mesh-tls-cert"],
                &["--mesh-tls-key"],
            ],
            &[&["--mesh-peer-urls"], &["--router-selector"]],
        ],
    },
    Reason { fate: Left("plug-ins are not supported"), flags: [&[&["--enable-wasm"]], &[], &[]] },
    Reason { fate: Left("heap profiling is not supported"), flags: [&[], &[&["--jemalloc-prof-dir"]], &[]] },
];

/// All flags of a router, those shared with the other family first.
pub(super) fn flags(old: Old) -> Vec<Flag> {
    let (own, own_left) = match old {
        Old::Sglang => (SGLANG, SGLANG_LEFT),
        Old::VllmRouter => (vllm::FLAGS, vllm::LEFT),
    };
    let left = SHARED_LEFT.iter().chain(own_left).flat_map(flags_of);
    SHARED.iter().chain(own).copied().chain(left).collect()
}

fn flags_of(reason: &Reason) -> impl Iterator<Item = Flag> {
    let takes: [Takes; 3] = [Nothing, One, Several];
    let by_takes = reason.flags.into_iter().zip(takes);
    by_takes
        .flat_map(move |(flags, takes)| flags.iter().map(move |&names| Flag::new(names, takes, reason.fate)))
}
