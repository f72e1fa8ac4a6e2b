//! The engine brands: how to recognise which one a worker runs, and how each reports its load.
//!
//! One file per brand converts its format into an `EngineLoad`. A value that a brand does not report is
//! `None`, and the router falls back to its own counts. Routing works without any of this.

mod about;
mod advice;
mod detokenize;
mod llamacpp;
mod priority;
mod ranks;
mod salt;
mod sglang;
pub mod sources;
mod tensorrt;
#[cfg(test)]
mod tests;
mod tokenize;
mod vllm;

use std::time::Duration;

use maitre_base::{EngineLoad, Role};
use memchr::memmem;

pub use about::{About, about, is_below};
pub use advice::Need;
pub use detokenize::{DETOKENIZE, ends_within_character, text_question};
pub use salt::salt_field;
pub use tokenize::{TOKENIZE, answer, identity, question};

use crate::{exposition, models};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    Vllm,
    Sglang,
    TensorRt,
    LlamaCpp,
    /// Serves the API, and nothing else we know.
    Generic,
}

/// The adapters that an engine has work for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    /// Maximum adapters that run at the same time.
    pub max: u32,
    pub running: Vec<String>,
    pub waiting: Vec<String>,
}

/// An engine's part in prefill/decode disaggregation, as it reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disaggregation {
    pub role: Role,
    /// Where decode workers meet this one, if it prefills.
    pub bootstrap_port: Option<u16>,
    pub dp_size: u32,
    /// Whether the room of a request chooses its rank (`legs::sglang`).
    pub follows_room: bool,
    /// Whether prompts that it has served before are faster. SGLang's decode workers cache none by default.
    pub caches_prefixes: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("read the load of {kind}: none of the {samples} samples is a metric of {kind}")]
    NoMetrics { kind: &'static str, samples: usize },
    #[error("read what {kind} says of itself: {source}")]
    Json { kind: &'static str, source: serde_json::Error },
}

/// The answer to one probe.
#[derive(Clone, Copy, Debug)]
pub struct ProbeReply<'a> {
    pub path: &'a str,
    pub status: u16,
    pub body: &'a [u8],
    /// The `server` header.
    pub server: Option<&'a str>,
}

/// Paths to request from a worker to learn its brand, in this order, as `next_probe` says. Any of them may fail.
pub const PROBES: [&str; 5] = [MODELS, METRICS, VERSION, SERVER_INFO, PROPS];

/// The header in which a Maitre router says that it is one, where an engine says that it is healthy. Its value differs from
/// router to router and from run to run.
pub const ROUTER: &str = "x-maitre-router";
/// Where a Maitre router has that header.
pub const HEALTH: &str = "/health";

/// The longest `health_delay`: that of an engine of unknown brand.
pub const HEALTH_DELAY_MAX: Duration = Duration::from_secs(2);

const MODELS: &str = "/v1/models";
const METRICS: &str = "/metrics";
const VERSION: &str = "/version";
pub const SERVER_INFO: &str = "/server_info";
const PROPS: &str = "/props";

impl EngineKind {
    pub const ALL: [EngineKind; 5] = [
        EngineKind::Vllm,
        EngineKind::Sglang,
        EngineKind::TensorRt,
        EngineKind::LlamaCpp,
        EngineKind::Generic,
    ];

    /// The metric label.
    pub const fn name(self) -> &'static str {
        match self {
            EngineKind::Vllm => "vllm",
            EngineKind::Sglang => "sglang",
            EngineKind::TensorRt => "tensorrt",
            EngineKind::LlamaCpp => "llamacpp",
            EngineKind::Generic => "generic",
        }
    }

    /// Where this brand reports its load, best first: use the first that answers.
    pub const fn metrics_paths(self) -> &'static [&'static str] {
        match self {
            EngineKind::Vllm | EngineKind::LlamaCpp | EngineKind::Generic => &[METRICS],
            // The first needs a flag, but it is the only one with the size of the cache.
            EngineKind::Sglang => &[METRICS, "/v1/loads"],
            // The first needs a setting. Every read empties the second.
            EngineKind::TensorRt => &["/prometheus/metrics", METRICS],
        }
    }

    /// How much longer than other engines a healthy one may take to answer a health probe. SGLang generates a token, and
    /// looks once a second whether one has come: after one second if it is idle, after two in a long step.
    pub const fn health_delay(self) -> Duration {
        match self {
            EngineKind::Sglang => HEALTH_DELAY_MAX,
            EngineKind::Vllm | EngineKind::TensorRt | EngineKind::LlamaCpp | EngineKind::Generic => {
                Duration::ZERO
            }
        }
    }

    const fn metric_prefix(self) -> Option<&'static str> {
        match self {
            EngineKind::Vllm => Some("vllm:"),
            EngineKind::Sglang => Some("sglang:"),
            EngineKind::TensorRt => Some("trtllm_"),
            EngineKind::LlamaCpp => Some("llamacpp:"),
            EngineKind::Generic => None,
        }
    }
}

/// The path to request next, in order to recognise a worker and read its settings. None once its answers suffice.
///
/// A worker whose brand is known is not asked for pages that only another brand has. In vLLM 0.32's development mode
/// `/server_info` describes the whole system, and its first answer takes seconds. On a busy machine the router gave up so
/// often that it did not know the engine, nor its KV events, for 34 seconds.
pub fn next_probe(answers: &[ProbeReply<'_>]) -> Option<&'static str> {
    let signed = signed(answers);
    let is_foreign = |path: &str| match path {
        SERVER_INFO => signed.is_some_and(|it| it != EngineKind::Sglang),
        PROPS => signed.is_some_and(|it| it != EngineKind::LlamaCpp),
        _ => false,
    };
    PROBES.into_iter().find(|path| !is_foreign(path) && answers.iter().all(|it| it.path != *path))
}

/// Recognises the brand from the answers to `PROBES`, in any order and number.
///
/// The strongest evidence comes first: the signature on the model cards, which every brand writes and proxies
/// pass on; then the names of its metrics; then a path or header that only one brand has. A bare `/version`
/// comes last: vLLM has it, but so may others.
pub fn detect(answers: &[ProbeReply<'_>]) -> EngineKind {
    let has =
        |path, word: &str| body(answers, path).is_some_and(|it| memmem::find(it, word.as_bytes()).is_some());
    let own = || {
        let llamacpp =
            has(PROPS, "\"total_slots\"") || answers.iter().any(|it| it.server == Some("llama.cpp"));
        match () {
            () if llamacpp => Some(EngineKind::LlamaCpp),
            () if has(SERVER_INFO, "\"mem_fraction_static\"") => Some(EngineKind::Sglang),
            () if has(VERSION, "\"version\"") => Some(EngineKind::Vllm),
            () => None,
        }
    };
    signed(answers).or_else(own).unwrap_or(EngineKind::Generic)
}

/// The brand by the signature on its model cards, or else by the names of its metrics.
fn signed(answers: &[ProbeReply<'_>]) -> Option<EngineKind> {
    let signature = || match &*body(answers, MODELS).and_then(models::owner)? {
        "vllm" => Some(EngineKind::Vllm),
        "sglang" => Some(EngineKind::Sglang),
        "tensorrt_llm" => Some(EngineKind::TensorRt),
        "llamacpp" => Some(EngineKind::LlamaCpp),
        _ => None,
    };
    signature().or_else(|| body(answers, METRICS).and_then(kind_of_metrics))
}

/// The body of a successful answer.
fn body<'a>(answers: &[ProbeReply<'a>], path: &str) -> Option<&'a [u8]> {
    let answer = answers.iter().find(|it| it.path == path && (200..300).contains(&it.status));
    answer.map(|it| it.body)
}

/// Reads the load from the body of one of `metrics_paths`, for the whole engine or for one of its ranks.
pub fn parse_metrics(kind: EngineKind, only: Option<u32>, body: &[u8]) -> Result<EngineLoad, Unreadable> {
    match kind {
        EngineKind::Vllm => vllm::load(only, body),
        EngineKind::Sglang if is_json(body) => sglang::load_of_json(only, body),
        EngineKind::Sglang => sglang::load(only, body),
        EngineKind::TensorRt if is_json(body) => tensorrt::load_of_json(body),
        EngineKind::TensorRt => tensorrt::load(only, body),
        EngineKind::LlamaCpp => llamacpp::load(only, body),
        // An engine may start to answer, or be replaced, after recognition failed.
        EngineKind::Generic => match kind_of_metrics(body) {
            Some(kind) => parse_metrics(kind, only, body),
            None => {
                Err(Unreadable::NoMetrics { kind: kind.name(), samples: exposition::samples(body).count() })
            }
        },
    }
}

/// Reads the part in disaggregation from the body of `/server_info`. None for brands that do not report it: their roles come
/// from settings or labels.
pub fn disaggregation(kind: EngineKind, body: &[u8]) -> Result<Option<Disaggregation>, Unreadable> {
    match kind {
        EngineKind::Sglang => sglang::disaggregation(body).map(Some),
        EngineKind::Vllm | EngineKind::TensorRt | EngineKind::LlamaCpp | EngineKind::Generic => Ok(None),
    }
}

/// The first of the ranks that a body of one of `metrics_paths` is about. Zero, but where the engine's other ranks have
/// addresses of their own.
pub fn first_rank(kind: EngineKind, body: &[u8]) -> u32 {
    match kind {
        EngineKind::Vllm => vllm::first_rank(body),
        EngineKind::Sglang | EngineKind::TensorRt | EngineKind::LlamaCpp | EngineKind::Generic => 0,
    }
}

/// Reads which adapters have work from the body of one of `metrics_paths`, if the engine reports it.
pub fn adapters(kind: EngineKind, body: &[u8]) -> Option<Adapters> {
    match kind {
        EngineKind::Vllm => vllm::adapters(body),
        EngineKind::Sglang | EngineKind::TensorRt | EngineKind::LlamaCpp | EngineKind::Generic => None,
    }
}

fn kind_of_metrics(body: &[u8]) -> Option<EngineKind> {
    EngineKind::ALL.into_iter().find(|kind| {
        // Match only at the start of a line, so that labels and help texts do not count.
        let prefix = kind.metric_prefix().map(str::as_bytes);
        prefix.is_some_and(|prefix| body.split(|&byte| byte == b'\n').any(|line| line.starts_with(prefix)))
    })
}

fn is_json(body: &[u8]) -> bool {
    matches!(body.trim_ascii_start().first(), Some(b'{' | b'['))
}
