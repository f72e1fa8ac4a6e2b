//! The brands of engine: how to tell which one a worker is, and how each reports its load.
//!
//! One file a brand, each turning its own words into a `EngineLoad`. What a brand does not report is `None`, and
//! the router falls back on its own counts; nothing here is needed for routing to work.

mod about;
mod advice;
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

use maitre_base::EngineLoad;
use memchr::memmem;

pub use about::{About, about, is_below};
pub use advice::Need;
pub use salt::salt_field;
pub use tokenize::{TOKENIZE, answer, question};

use crate::{exposition, models};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Vllm,
    Sglang,
    TensorRt,
    LlamaCpp,
    /// Speaks the API, and nothing else we know of.
    Generic,
}

/// The adapters an engine has work for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    /// How many may run side by side.
    pub max: u32,
    pub running: Vec<String>,
    pub waiting: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("read the load of {kind}: none of the {samples} samples is of its own")]
    NoMetrics { kind: &'static str, samples: usize },
    #[error("read what {kind} says of itself: {source}")]
    Json { kind: &'static str, source: serde_json::Error },
}

/// The answer to one probe.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    pub path: &'a str,
    pub status: u16,
    pub body: &'a [u8],
    /// The `server` header.
    pub server: Option<&'a str>,
}

/// What to ask a worker to learn its brand. Any of them may fail; all are cheap.
pub const PROBES: [&str; 5] = [MODELS, METRICS, VERSION, SERVER_INFO, PROPS];

const MODELS: &str = "/v1/models";
const METRICS: &str = "/metrics";
const VERSION: &str = "/version";
const SERVER_INFO: &str = "/server_info";
const PROPS: &str = "/props";

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Vllm, Kind::Sglang, Kind::TensorRt, Kind::LlamaCpp, Kind::Generic];

    /// The metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Vllm => "vllm",
            Kind::Sglang => "sglang",
            Kind::TensorRt => "tensorrt",
            Kind::LlamaCpp => "llamacpp",
            Kind::Generic => "generic",
        }
    }

    /// Where this brand reports its load, the best place first: take the first that answers.
    pub const fn metrics_paths(self) -> &'static [&'static str] {
        match self {
            Kind::Vllm | Kind::LlamaCpp | Kind::Generic => &[METRICS],
            // The first needs a flag, but it alone tells the size of the cache.
            Kind::Sglang => &[METRICS, "/v1/loads"],
            // The first needs a setting. The second is emptied by whoever reads it.
            Kind::TensorRt => &["/prometheus/metrics", METRICS],
        }
    }

    const fn metric_prefix(self) -> Option<&'static str> {
        match self {
            Kind::Vllm => Some("vllm:"),
            Kind::Sglang => Some("sglang:"),
            Kind::TensorRt => Some("trtllm_"),
            Kind::LlamaCpp => Some("llamacpp:"),
            Kind::Generic => None,
        }
    }
}

/// Tells the brand from the answers to `PROBES`, in any order and number.
///
/// The strongest evidence first: the signature on the model cards, for every brand signs and proxies pass
/// it on; then the names of its metrics; then an address or header only one brand has. A bare `/version`
/// comes last: vLLM has it, but so may others.
pub fn detect(answers: &[Answer<'_>]) -> Kind {
    let body = |path: &str| {
        let answer = answers.iter().find(|it| it.path == path && (200..300).contains(&it.status));
        answer.map(|it| it.body)
    };
    let signature = || match &*body(MODELS).and_then(models::owner)? {
        "vllm" => Some(Kind::Vllm),
        "sglang" => Some(Kind::Sglang),
        "tensorrt_llm" => Some(Kind::TensorRt),
        "llamacpp" => Some(Kind::LlamaCpp),
        _ => None,
    };
    let metrics = || body(METRICS).and_then(kind_of_metrics);
    let has = |path, word: &str| body(path).is_some_and(|it| memmem::find(it, word.as_bytes()).is_some());
    let own = || {
        let llamacpp =
            has(PROPS, "\"total_slots\"") || answers.iter().any(|it| it.server == Some("llama.cpp"));
        match () {
            () if llamacpp => Some(Kind::LlamaCpp),
            () if has(SERVER_INFO, "\"mem_fraction_static\"") => Some(Kind::Sglang),
            () if has(VERSION, "\"version\"") => Some(Kind::Vllm),
            () => None,
        }
    };
    signature().or_else(metrics).or_else(own).unwrap_or(Kind::Generic)
}

/// Reads a load from the body of one of `metrics_paths`: of the whole engine, or of one of its ranks.
pub fn parse_metrics(kind: Kind, only: Option<u32>, body: &[u8]) -> Result<EngineLoad, Unreadable> {
    match kind {
        Kind::Vllm => vllm::load(only, body),
        Kind::Sglang if is_json(body) => sglang::load_of_json(only, body),
        Kind::Sglang => sglang::load(only, body),
        Kind::TensorRt if is_json(body) => tensorrt::load_of_json(body),
        Kind::TensorRt => tensorrt::load(only, body),
        Kind::LlamaCpp => llamacpp::load(only, body),
        // An engine may begin to answer, or be replaced, after we failed to name it.
        Kind::Generic => match kind_of_metrics(body) {
            Some(kind) => parse_metrics(kind, only, body),
            None => {
                Err(Unreadable::NoMetrics { kind: kind.name(), samples: exposition::samples(body).count() })
            }
        },
    }
}

/// Reads from the same body which adapters have work, if the engine tells.
pub fn adapters(kind: Kind, body: &[u8]) -> Option<Adapters> {
    match kind {
        Kind::Vllm => vllm::adapters(body),
        Kind::Sglang | Kind::TensorRt | Kind::LlamaCpp | Kind::Generic => None,
    }
}

fn kind_of_metrics(body: &[u8]) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| {
        // At the start of a line, so that a label or a help text does not count.
        let prefix = kind.metric_prefix().map(str::as_bytes);
        prefix.is_some_and(|prefix| body.split(|&byte| byte == b'\n').any(|line| line.starts_with(prefix)))
    })
}

fn is_json(body: &[u8]) -> bool {
    matches!(body.trim_ascii_start().first(), Some(b'{' | b'['))
}
