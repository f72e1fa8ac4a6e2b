//! The sizes of an engine, and how each became known: read from it, given by the operator, measured or assumed.

use std::fmt;

use maitre_base::EngineLoad;
use maitre_dialect::engine::{self, About, EngineKind, ProbeReply};
use maitre_dialect::models::Model;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FactSource {
    Flag,
    /// The engine says so, there.
    Read(&'static str),
    Measured,
    /// Nothing says otherwise.
    Assumed,
}

impl fmt::Display for FactSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FactSource::Flag => "flag",
            FactSource::Read(path) => path,
            FactSource::Measured => "measured",
            FactSource::Assumed => "assumed",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    pub(crate) value: u64,
    pub(crate) source: FactSource,
}

/// What is known before anything is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineFacts {
    pub(crate) block_tokens: Option<Fact>,
    pub(crate) kv_tokens: Option<Fact>,
    pub(crate) batch_tokens_max: Option<Fact>,
    pub(crate) running_max: Option<Fact>,
    pub(crate) context_tokens_max: Option<Fact>,
    pub(crate) version: Option<String>,
    pub(crate) prefix_caching: Option<bool>,
}

const METRICS: &str = "/metrics";
const MODELS: &str = "/v1/models";
const SERVER_INFO: &str = "/server_info";

impl EngineFacts {
    /// Reads what the engine says of itself, from its answers to `engine::PROBES`.
    pub(crate) fn read(model: &Model, answers: &[ProbeReply<'_>]) -> EngineFacts {
        let kind = engine::detect(answers);
        let About { version, prefix_caching, block_tokens, batch_tokens_max, running_max, .. } =
            engine::about(kind, answers);
        let load = load(kind, answers);
        let read = |value: Option<u64>, source| {
            value.filter(|&it| it > 0).map(|value| Fact { value, source: FactSource::Read(source) })
        };
        let metrics_block = read(load.block_size, METRICS);
        EngineFacts {
            block_tokens: metrics_block.or(read(block_tokens, SERVER_INFO)),
            kv_tokens: read(kv_tokens(&load), METRICS),
            batch_tokens_max: read(batch_tokens_max, SERVER_INFO),
            running_max: read(running_max, SERVER_INFO),
            context_tokens_max: read(model.max_model_len, MODELS),
            version: version.map(|it| format!("{} {it}", kind.name())),
            prefix_caching,
        }
    }
}

/// What the operator says goes before what the engine does.
pub(crate) fn given(flag: Option<u64>, read: Option<Fact>) -> Option<Fact> {
    flag.map(|value| Fact { value, source: FactSource::Flag }).or(read)
}

fn kv_tokens(load: &EngineLoad) -> Option<u64> {
    load.kv_tokens.or_else(|| load.blocks?.checked_mul(load.block_size?))
}

fn load(kind: EngineKind, answers: &[ProbeReply<'_>]) -> EngineLoad {
    let page = |path: &&str| answers.iter().find(|it| it.path == *path && (200..300).contains(&it.status));
    let pages = kind.metrics_paths().iter().filter_map(page);
    let mut loads = pages.filter_map(|it| engine::parse_metrics(kind, None, it.body).ok());
    loads.next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply<'a>(path: &'a str, body: &'a str) -> ProbeReply<'a> {
        ProbeReply { path, status: 200, body: body.as_bytes(), server: None }
    }

    fn card(max_model_len: Option<u64>) -> Model {
        Model { id: "m".to_owned(), parent: None, max_model_len }
    }

    fn read(value: u64, path: &'static str) -> Option<Fact> {
        Some(Fact { value, source: FactSource::Read(path) })
    }

    #[test]
    fn vllm_tells_its_cache_and_its_context() {
        let metrics = "vllm:num_requests_running{engine=\"0\"} 0\n\
             vllm:cache_config_info{block_size=\"128\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"257\"} 1\n";
        let models = r#"{"data":[{"id":"m","owned_by":"vllm","max_model_len":8192}]}"#;
        let answers =
            [reply(MODELS, models), reply(METRICS, metrics), reply("/version", r#"{"version":"0.32.0"}"#)];
        let facts = EngineFacts::read(&card(Some(8_192)), &answers);
        assert_eq!((facts.block_tokens, facts.kv_tokens), (read(128, METRICS), read(257 * 128, METRICS)));
        assert_eq!(facts.context_tokens_max, read(8_192, MODELS));
        assert_eq!((facts.batch_tokens_max, facts.running_max), (None, None));
        assert_eq!((facts.version.as_deref(), facts.prefix_caching), (Some("vllm 0.32.0"), Some(true)));
    }

    #[test]
    fn sglang_tells_its_budget_too() {
        let info = r#"{"mem_fraction_static":0.8,"page_size":1,"chunked_prefill_size":4096,"max_running_requests":48}"#;
        let facts = EngineFacts::read(&card(None), &[reply(SERVER_INFO, info)]);
        assert_eq!(
            (facts.batch_tokens_max, facts.running_max),
            (read(4_096, SERVER_INFO), read(48, SERVER_INFO))
        );
        assert_eq!((facts.block_tokens, facts.context_tokens_max), (read(1, SERVER_INFO), None));
    }

    #[test]
    fn a_flag_goes_before_what_the_engine_says() {
        let told = read(16, METRICS);
        assert_eq!(given(None, told), told);
        assert_eq!(given(Some(32), told), Some(Fact { value: 32, source: FactSource::Flag }));
    }
}
