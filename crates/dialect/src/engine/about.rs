//! How an engine was started, as it reports itself: its version, its data types, whether it caches prefixes.
//!
//! Routing does not need this. `doctor` uses it to compare engines that should be alike. A value that a brand
//! does not report is `None`, never a guess.

use serde::Deserialize;

use crate::engine::{EngineKind, METRICS, PROPS, ProbeReply, SERVER_INFO, VERSION, vllm};
use crate::exposition;

/// Maximum length of a reported value, because values are printed on a terminal.
const WORD_BYTES_MAX: usize = 128;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    pub version: Option<String>,
    /// Data type of weights and activations.
    pub dtype: Option<String>,
    /// Data type of the KV cache.
    pub kv_dtype: Option<String>,
    pub prefix_caching: Option<bool>,
    /// Tokens in a block.
    pub block_tokens: Option<u64>,
    /// Tokens of a step, and requests in one, at most.
    pub batch_tokens_max: Option<u64>,
    pub running_max: Option<u64>,
}

/// Reads the values from the answers to `PROBES`, in any order and number.
pub fn about(kind: EngineKind, answers: &[ProbeReply<'_>]) -> About {
    let body = |path: &str| {
        let answer = answers.iter().find(|it| it.path == path && (200..300).contains(&it.status));
        answer.map_or(&b""[..], |it| it.body)
    };
    match kind {
        EngineKind::Vllm => About { version: version(body(VERSION)), ..of_cache_config(body(METRICS)) },
        EngineKind::Sglang => of_server_info(body(SERVER_INFO)),
        EngineKind::LlamaCpp => About { version: build(body(PROPS)), ..About::default() },
        EngineKind::TensorRt | EngineKind::Generic => {
            About { version: version(body(VERSION)), ..About::default() }
        }
    }
}

/// Whether one version number is below another: `0.5.4.post1` is below `0.5.6`. None if either is not a
/// version number.
pub fn is_below(version: &str, least: &str) -> Option<bool> {
    let numbers = |text: &str| -> Option<Vec<u64>> {
        let plain = text.trim_start_matches('v').split(['+', '-', 'r']).next()?;
        let parts = plain.split('.').map_while(|it| it.parse().ok());
        let parts: Vec<u64> = parts.take(3).collect();
        (!parts.is_empty()).then_some(parts)
    };
    Some(numbers(version)? < numbers(least)?)
}

fn word(text: String) -> Option<String> {
    let is_word = (1..=WORD_BYTES_MAX).contains(&text.len()) && !text.contains(char::is_control);
    is_word.then_some(text)
}

fn version(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct VersionPage {
        version: String,
    }
    serde_json::from_slice::<VersionPage>(body).ok().and_then(|it| word(it.version))
}

fn build(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct PropsPage {
        build_info: String,
    }
    serde_json::from_slice::<PropsPage>(body).ok().and_then(|it| word(it.build_info))
}

fn of_cache_config(scrape: &[u8]) -> About {
    let Some(config) = exposition::samples(scrape).find(|it| it.name == vllm::CONFIG) else {
        return About::default();
    };
    let label = |name| config.label(name).map(std::borrow::Cow::into_owned);
    About {
        kv_dtype: label("cache_dtype").and_then(word),
        prefix_caching: label("enable_prefix_caching").and_then(|it| match it.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        }),
        block_tokens: vllm::block_tokens(&config),
        ..About::default()
    }
}

fn of_server_info(body: &[u8]) -> About {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ServerInfoPage {
        version: Option<String>,
        dtype: Option<String>,
        kv_cache_dtype: Option<String>,
        disable_radix_cache: Option<bool>,
        page_size: Option<u64>,
        // Minus one where prompts are not cut.
        chunked_prefill_size: Option<i64>,
        max_running_requests: Option<u64>,
    }
    let page: ServerInfoPage = serde_json::from_slice(body).unwrap_or_default();
    About {
        version: page.version.and_then(word),
        dtype: page.dtype.and_then(word),
        kv_dtype: page.kv_cache_dtype.and_then(word),
        prefix_caching: page.disable_radix_cache.map(|it| !it),
        block_tokens: page.page_size,
        batch_tokens_max: page.chunked_prefill_size.and_then(|it| u64::try_from(it).ok()),
        running_max: page.max_running_requests,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: EngineKind, pages: &[(&str, &str)], expected: About) {
        let answers: Vec<ProbeReply<'_>> = pages
            .iter()
            .map(|(path, body)| ProbeReply { path, status: 200, body: body.as_bytes(), server: None })
            .collect();
        assert_eq!(about(kind, &answers), expected);
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn each_brand_is_read_from_its_own_answers() {
        let config = "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"fp8\",enable_prefix_caching=\"False\"} 1.0";
        let expected = About {
            version: some("0.32.0"),
            kv_dtype: some("fp8"),
            prefix_caching: Some(false),
            block_tokens: Some(16),
            ..About::default()
        };
        check(EngineKind::Vllm, &[(VERSION, r#"{"version":"0.32.0"}"#), (METRICS, config)], expected);
        let info = r#"{"version":"0.5.18","dtype":"bfloat16","kv_cache_dtype":"auto","disable_radix_cache":true,"page_size":64,"chunked_prefill_size":8192,"max_running_requests":48}"#;
        let expected = About {
            version: some("0.5.18"),
            dtype: some("bfloat16"),
            kv_dtype: some("auto"),
            prefix_caching: Some(false),
            block_tokens: Some(64),
            batch_tokens_max: Some(8_192),
            running_max: Some(48),
        };
        check(EngineKind::Sglang, &[(SERVER_INFO, info)], expected);
        let expected = About { version: some("b6000-abc"), ..About::default() };
        check(EngineKind::LlamaCpp, &[(PROPS, r#"{"total_slots":4,"build_info":"b6000-abc"}"#)], expected);
    }

    #[test]
    fn unreported_values_are_none() {
        for kind in EngineKind::ALL {
            check(kind, &[], About::default());
            check(kind, &[(VERSION, "<html>"), (METRICS, "up 1"), (SERVER_INFO, "[]")], About::default());
        }
        check(EngineKind::Vllm, &[(VERSION, r#"{"version":"a\nb"}"#)], About::default());
    }

    #[test]
    fn versions_are_compared_by_number() {
        for (version, below) in [
            ("0.5.5", Some(true)),
            ("0.5.5.post3", Some(true)),
            ("0.5.6", Some(false)),
            ("v0.5.10", Some(false)),
            ("0.5.6rc1", Some(false)),
            ("1.0", Some(false)),
            ("main", None),
        ] {
            assert_eq!(is_below(version, "0.5.6"), below, "{version}");
        }
    }
}
