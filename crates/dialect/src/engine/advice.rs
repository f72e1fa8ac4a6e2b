//! Advice for operators: the flags that make an engine report what a router can use.
//!
//! Each brand has different flags, and only this crate knows brands; a brand without such flags gets general
//! advice.

use crate::engine::{EngineKind, is_below};

/// What the operator wants from an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// KV events, and a replay of missed ones.
    Events,
    /// A replay of missed events, where events are already published.
    Replay,
    /// A replay that reaches further back.
    LongReplay,
    /// Cached tokens in usage.
    CachedTokens,
    PrefixCaching,
    Metrics,
    /// The same block size as the other engines.
    BlockTokens,
    /// The same context length as the other engines.
    Context,
    Dtype,
    KvDtype,
    /// No API key required.
    NoKey,
}

impl Need {
    pub const ALL: [Need; 11] = [
        Need::Events,
        Need::Replay,
        Need::LongReplay,
        Need::CachedTokens,
        Need::PrefixCaching,
        Need::Metrics,
        Need::BlockTokens,
        Need::Context,
        Need::Dtype,
        Need::KvDtype,
        Need::NoKey,
    ];
}

impl EngineKind {
    /// What to change, as the end of a sentence that begins with "start it".
    pub const fn advice(self, need: Need) -> &'static str {
        match self {
            EngineKind::Vllm => vllm(need),
            EngineKind::Sglang => sglang(need),
            EngineKind::TensorRt => tensorrt(need),
            EngineKind::LlamaCpp => llamacpp(need),
            EngineKind::Generic => generic(need),
        }
    }

    /// Whether the brand can publish its KV events.
    pub const fn publishes(self) -> bool {
        matches!(self, EngineKind::Vllm | EngineKind::Sglang)
    }

    /// Whether requests may carry a `cache_salt` that separates their blocks from others.
    pub const fn salts(self) -> bool {
        matches!(self, EngineKind::Vllm | EngineKind::Sglang)
    }

    /// Whether the events of this version name the adapter of a block.
    pub fn names_adapters(self, version: Option<&str>) -> bool {
        match self {
            EngineKind::Vllm => true,
            EngineKind::Sglang => version.is_some_and(|it| is_below(it, "0.5.22") == Some(false)),
            EngineKind::TensorRt | EngineKind::LlamaCpp | EngineKind::Generic => false,
        }
    }

    /// The first version whose events can be distinguished by position; `None` if all can.
    pub const fn events_since(self) -> Option<&'static str> {
        match self {
            EngineKind::Sglang => Some("0.5.6"),
            _ => None,
        }
    }
}

/// Four times the default of vLLM and SGLang. Chosen: more would not fit the most bytes that the router takes of a replay.
const LONG_REPLAY: &str = r#"with "buffer_steps":40000 in its --kv-events-config"#;

const fn vllm(need: Need) -> &'static str {
    match need {
        Need::Events => {
            r#"with --kv-events-config '{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'"#
        }
        Need::Replay => r#"with "replay_endpoint":"tcp://*:5558" in its --kv-events-config"#,
        Need::LongReplay => LONG_REPLAY,
        Need::CachedTokens => "with --enable-prompt-tokens-details",
        Need::PrefixCaching => "with --enable-prefix-caching, and without --no-enable-prefix-caching",
        Need::Metrics => {
            "without --disable-log-stats, and make /metrics reachable through any proxy in front of it"
        }
        Need::BlockTokens => "with the same --block-size as the others",
        Need::Context => "with the same --max-model-len as the others",
        Need::Dtype => "with the same --dtype as the others",
        Need::KvDtype => "with the same --kv-cache-dtype as the others",
        Need::NoKey => "without --api-key and VLLM_API_KEY",
    }
}

const fn sglang(need: Need) -> &'static str {
    match need {
        Need::Events => {
            r#"with --kv-events-config '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}'"#
        }
        Need::Replay => r#"with "replay_endpoint":"tcp://*:5558" in its --kv-events-config"#,
        Need::LongReplay => LONG_REPLAY,
        Need::CachedTokens => "with --enable-cache-report",
        Need::PrefixCaching => "without --disable-radix-cache",
        Need::Metrics => "with --enable-metrics",
        Need::BlockTokens => "with the same --page-size as the others",
        Need::Context => "with the same --context-length as the others",
        Need::Dtype => "with the same --dtype as the others",
        Need::KvDtype => "with the same --kv-cache-dtype as the others",
        Need::NoKey => "without --api-key",
    }
}

const fn tensorrt(need: Need) -> &'static str {
    match need {
        Need::PrefixCaching => "with enable_block_reuse: true in its kv_cache_config",
        Need::Metrics => "with return_perf_metrics: true",
        Need::BlockTokens => "with the same tokens_per_block in its kv_cache_config as the others",
        Need::Context => "with the same --max_seq_len as the others",
        other => generic(other),
    }
}

const fn llamacpp(need: Need) -> &'static str {
    match need {
        Need::Metrics => "with --metrics",
        Need::Context => "with the same --ctx-size and --parallel as the others",
        Need::NoKey => "without --api-key",
        other => generic(other),
    }
}

const fn generic(need: Need) -> &'static str {
    match need {
        Need::Events | Need::Replay | Need::LongReplay => {
            "so that it publishes KV events over ZeroMQ, if it can"
        }
        Need::CachedTokens => "so that usage reports prompt_tokens_details.cached_tokens, if it can",
        Need::PrefixCaching => "with its prefix cache on, if it has one",
        Need::Metrics => "with its metrics on, if it has any",
        Need::BlockTokens => "with as many tokens in a block as the others",
        Need::Context => "with as long a context as the others",
        Need::Dtype | Need::KvDtype => "with the same types as the others",
        Need::NoKey => "without a key",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_ends_a_sentence_that_begins_with_start_it() {
        for kind in EngineKind::ALL {
            for need in Need::ALL {
                let advice = kind.advice(need);
                let begins = ["with ", "without ", "so that "].iter().any(|it| advice.starts_with(it));
                assert!(begins && !advice.ends_with('.'), "{kind:?} {need:?}: {advice}");
            }
        }
    }

    #[test]
    fn the_advised_event_settings_can_be_read_back() {
        for kind in [EngineKind::Vllm, EngineKind::Sglang] {
            let config = kind.advice(Need::Events).split('\'').nth(1).unwrap();
            let page = match kind {
                EngineKind::Vllm => format!(r#"{{"0":{config}}}"#),
                _ => serde_json::json!({ "kv_events_config": config }).to_string(),
            };
            let sources = crate::engine::sources::parse(kind, page.as_bytes()).unwrap().sources;
            assert_eq!((sources.len(), sources[0].events.port), (1, 5557), "{kind:?}");
            assert!(sources[0].replay.is_some(), "{kind:?}");
        }
    }
}
