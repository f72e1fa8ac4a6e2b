//! Where an engine publishes its KV events, read from its own HTTP answers.
//!
//! Each data-parallel rank has one publisher, on a port of its own. An engine knows the ports, but seldom a
//! host name under which others reach it: it binds to all interfaces, and the worker's own host applies.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::engine::{EngineKind, Unreadable};

/// Maximum ranks followed per engine. Chosen: more than any deployment has behind one port.
pub const SOURCES_MAX: usize = 256;

/// Maximum length of a topic or host.
pub const TEXT_BYTES_MAX: usize = 512;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Sorted by rank. Empty if the engine publishes nothing, or not over TCP.
    pub sources: Vec<EventSource>,
    /// Tokens per block, if reported here.
    pub block_tokens: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSource {
    pub rank: u32,
    pub events: Address,
    pub replay: Option<Address>,
    /// The topic to subscribe to; empty for all.
    pub topic: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// None for a wildcard: use the worker's own host.
    pub host: Option<String>,
    pub port: u16,
}

impl EngineKind {
    /// Where this brand reports its publishers, if it does.
    pub const fn sources_path(self) -> Option<&'static str> {
        match self {
            EngineKind::Vllm => Some("/kv_event_sources"),
            EngineKind::Sglang => Some("/server_info"),
            EngineKind::TensorRt | EngineKind::LlamaCpp | EngineKind::Generic => None,
        }
    }
}

/// Reads the body of `sources_path`. Brands without one publish nothing.
pub fn parse(kind: EngineKind, body: &[u8]) -> Result<Sources, Unreadable> {
    let parsed = match kind {
        EngineKind::Vllm => of_vllm(body),
        EngineKind::Sglang => of_sglang(body),
        EngineKind::TensorRt | EngineKind::LlamaCpp | EngineKind::Generic => Ok(Sources::default()),
    };
    parsed.map_err(|source| Unreadable::Json { kind: kind.name(), source })
}

/// The endpoint, if the engine dials it instead of listening there. Nothing can subscribe to such an engine.
///
/// Both brands listen only if the endpoint contains a wildcard. With a concrete address they connect to it
/// instead; for vLLM 0.0.0.0 counts as a concrete address too.
pub fn dialled(kind: EngineKind, body: &[u8]) -> Option<String> {
    let endpoint: Option<Cow<'_, str>> = match kind {
        EngineKind::Vllm => {
            let ranks: BTreeMap<Cow<'_, str>, Config<'_>> = serde_json::from_slice(body).ok()?;
            ranks.into_values().find_map(|it| it.endpoint.filter(|_| it.publisher.as_deref() == Some("zmq")))
        }
        EngineKind::Sglang => {
            let info: ServerInfo<'_> = serde_json::from_slice(body).ok()?;
            let config = info.kv_events_config.as_ref().and_then(Value::as_str)?;
            let config = serde_json::from_str::<Config<'_>>(config).ok()?;
            config
                .endpoint
                .filter(|_| config.publisher.as_deref() == Some("zmq"))
                .map(|it| it.into_owned().into())
        }
        EngineKind::TensorRt | EngineKind::LlamaCpp | EngineKind::Generic => None,
    };
    let endpoint = endpoint?;
    let host = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?.0;
    let listens =
        host.contains('*') || host.contains("::") || (kind == EngineKind::Sglang && host == "0.0.0.0");
    (!listens && endpoint.len() <= TEXT_BYTES_MAX).then(|| endpoint.into_owned())
}

/// The event configuration of both engines.
#[derive(Deserialize)]
struct Config<'a> {
    #[serde(borrow)]
    publisher: Option<Cow<'a, str>>,
    #[serde(borrow)]
    endpoint: Option<Cow<'a, str>>,
    #[serde(borrow)]
    replay_endpoint: Option<Cow<'a, str>>,
    #[serde(borrow)]
    topic: Option<Cow<'a, str>>,
}

impl Config<'_> {
    fn source(&self, rank: u32) -> Option<EventSource> {
        let is_published = self.publisher.as_deref() == Some("zmq");
        let events = self.endpoint.as_deref().and_then(Address::of_endpoint).filter(|_| is_published)?;
        let replay = self.replay_endpoint.as_deref().and_then(Address::of_endpoint);
        let topic = self.topic.as_deref().unwrap_or_default();
        (topic.len() <= TEXT_BYTES_MAX).then(|| EventSource { rank, events, replay, topic: topic.into() })
    }
}

/// A map from the rank to its configuration, with the rank's own ports.
fn of_vllm(body: &[u8]) -> Result<Sources, serde_json::Error> {
    let ranks: BTreeMap<Cow<'_, str>, Config<'_>> = serde_json::from_slice(body)?;
    let sources = ranks.iter().filter_map(|(rank, config)| config.source(rank.parse().ok()?));
    let mut sources: Vec<EventSource> = sources.take(SOURCES_MAX).collect();
    // Sort by number: as text, "10" comes before "2".
    sources.sort_by_key(|it| it.rank);
    Ok(Sources { sources, block_tokens: None })
}

/// Everything SGLang was started with. Since 0.5.13 there is also a summary of what it publishes, without the
/// replay; earlier versions have only the configuration.
#[derive(Deserialize)]
struct ServerInfo<'a> {
    #[serde(borrow)]
    kv_events: Option<Summary<'a>>,
    /// JSON in a string.
    kv_events_config: Option<Value>,
    page_size: Option<u32>,
    dp_size: Option<u32>,
}

#[derive(Deserialize)]
struct Summary<'a> {
    #[serde(borrow)]
    publisher: Option<Cow<'a, str>>,
    #[serde(borrow)]
    endpoint_host: Option<Cow<'a, str>>,
    endpoint_port_base: Option<u16>,
    #[serde(borrow)]
    topic: Option<Cow<'a, str>>,
    block_size: Option<u32>,
    dp_size: Option<u32>,
}

fn of_sglang(body: &[u8]) -> Result<Sources, serde_json::Error> {
    let info: ServerInfo<'_> = serde_json::from_slice(body)?;
    let config = info.kv_events_config.as_ref().and_then(Value::as_str);
    let config = config.and_then(|it| serde_json::from_str::<Config<'_>>(it).ok());
    let configured = config.and_then(|it| it.source(0));
    let replay = configured.as_ref().and_then(|it| it.replay.clone());
    let (first, block_tokens, ranks) = match info.kv_events {
        Some(summary) => (summary.source(replay), summary.block_size, summary.dp_size),
        None => (configured, info.page_size, info.dp_size),
    };
    let ranks = ranks.unwrap_or(1).min(SOURCES_MAX as u32);
    let sources = first.iter().flat_map(|first| (0..ranks).filter_map(|rank| first.of_rank(rank)));
    Ok(Sources { sources: sources.collect(), block_tokens: block_tokens.filter(|it| *it > 0) })
}

impl Summary<'_> {
    fn source(&self, replay: Option<Address>) -> Option<EventSource> {
        let topic = self.topic.as_deref().unwrap_or_default();
        let host = self.endpoint_host.as_deref().unwrap_or("*");
        let is_published = self.publisher.as_deref() == Some("zmq") && topic.len() <= TEXT_BYTES_MAX;
        let events = Address::new(host, self.endpoint_port_base?).filter(|_| is_published)?;
        Some(EventSource { rank: 0, events, replay, topic: topic.into() })
    }
}

impl EventSource {
    /// The port of another rank: SGLang counts ports up from the first.
    fn of_rank(&self, rank: u32) -> Option<EventSource> {
        let offset = u16::try_from(rank).ok()?;
        let moved = |address: &Address| {
            let port = address.port.checked_add(offset)?;
            Some(Address { port, ..address.clone() })
        };
        let replay = self.replay.as_ref().and_then(moved);
        Some(EventSource { rank, events: moved(&self.events)?, replay, topic: self.topic.clone() })
    }
}

impl Address {
    /// Host and port of `tcp://host:port`; other transports cannot be reached from here.
    fn of_endpoint(endpoint: &str) -> Option<Address> {
        let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
        Address::new(host, port.parse().ok()?)
    }

    fn new(host: &str, port: u16) -> Option<Address> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = match host {
            "" | "*" | "0.0.0.0" | "::" => None,
            host => Some(host.to_owned()),
        };
        let is_usable = port != 0 && host.as_ref().is_none_or(|it| it.len() <= TEXT_BYTES_MAX);
        is_usable.then_some(Address { host, port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rank, host and port of each source, and the port of its replay.
    #[track_caller]
    fn check(kind: EngineKind, body: &str, expected: &[(u32, Option<&str>, u16, Option<u16>)]) -> Sources {
        let sources = parse(kind, body.as_bytes()).unwrap();
        let actual: Vec<_> = sources
            .sources
            .iter()
            .map(|it| {
                (it.rank, it.events.host.as_deref(), it.events.port, it.replay.as_ref().map(|it| it.port))
            })
            .collect();
        assert_eq!(actual, expected, "{body}");
        sources
    }

    #[test]
    fn an_engine_listens_only_at_a_wildcard() {
        let told = |kind: EngineKind, endpoint: &str| {
            let config = format!(r#"{{"publisher":"zmq","endpoint":"{endpoint}"}}"#);
            let page = match kind {
                EngineKind::Vllm => format!(r#"{{"0":{config}}}"#),
                _ => serde_json::json!({ "kv_events_config": config }).to_string(),
            };
            dialled(kind, page.as_bytes())
        };
        for kind in [EngineKind::Vllm, EngineKind::Sglang] {
            assert_eq!(told(kind, "tcp://*:5557"), None);
            assert_eq!(told(kind, "tcp://[::]:5557"), None);
            assert_eq!(told(kind, "tcp://127.0.0.1:5557").as_deref(), Some("tcp://127.0.0.1:5557"));
        }
        assert_eq!(told(EngineKind::Vllm, "tcp://0.0.0.0:5557").as_deref(), Some("tcp://0.0.0.0:5557"));
        assert_eq!(told(EngineKind::Sglang, "tcp://0.0.0.0:5557"), None);
        assert_eq!(dialled(EngineKind::Vllm, b"{}"), None);
    }

    #[test]
    fn the_publishers_of_vllm_are_found() {
        // As vLLM 0.32 answers.
        let one = r#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:18201","replay_endpoint":"tcp://127.0.0.1:19201","buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv-events"}}"#;
        let sources = check(EngineKind::Vllm, one, &[(0, None, 18201, Some(19201))]);
        let source = &sources.sources[0];
        let replay = Address { host: Some("127.0.0.1".into()), port: 19201 };
        assert_eq!((&*source.topic, source.replay.clone()), ("kv-events", Some(replay)));
        let many = r#"{"10":{"publisher":"zmq","endpoint":"tcp://[fd00::1]:5567","replay_endpoint":null,"topic":""},"2":{"publisher":"zmq","endpoint":"tcp://[::]:5559"}}"#;
        check(EngineKind::Vllm, many, &[(2, None, 5559, None), (10, Some("fd00::1"), 5567, None)]);
    }

    #[test]
    fn unpublished_or_unreachable_endpoints_are_left_out() {
        check(EngineKind::Vllm, "{}", &[]);
        for config in [
            r#"{"publisher":"null","endpoint":"tcp://*:5557"}"#,
            r#"{"publisher":"zmq","endpoint":"ipc:///tmp/kv"}"#,
            r#"{"publisher":"zmq","endpoint":"tcp://*:0"}"#,
            r#"{"publisher":"zmq","endpoint":"tcp://*:65536"}"#,
            r#"{"publisher":"zmq"}"#,
        ] {
            check(EngineKind::Vllm, &format!(r#"{{"0":{config}}}"#), &[]);
            check(EngineKind::Sglang, &format!(r#"{{"kv_events_config":{}}}"#, Value::from(config)), &[]);
        }
        check(EngineKind::Vllm, r#"{"x":{"publisher":"zmq","endpoint":"tcp://*:5557"}}"#, &[]);
        check(EngineKind::LlamaCpp, "not even json", &[]);
        assert!(
            parse(EngineKind::Vllm, b"[]")
                .unwrap_err()
                .to_string()
                .starts_with("read what vllm says of itself: ")
        );
    }

    #[test]
    fn the_publishers_of_sglang_are_found() {
        let summary = r#""kv_events":{"publisher":"zmq","endpoint_host":"*","endpoint_port_base":5557,"topic":"t","block_size":64,"dp_size":2}"#;
        let sources = check(
            EngineKind::Sglang,
            &format!(r#"{{"page_size":1,"internal_states":[{{}}],{summary}}}"#),
            &[(0, None, 5557, None), (1, None, 5558, None)],
        );
        assert_eq!((sources.block_tokens, &*sources.sources[1].topic), (Some(64), "t"));
        let config =
            Value::from(r#"{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}"#);
        check(
            EngineKind::Sglang,
            &format!(r#"{{{summary},"kv_events_config":{config}}}"#),
            &[(0, None, 5557, Some(5657)), (1, None, 5558, Some(5658))],
        );
        // Before 0.5.13, from the configuration alone.
        let sources = check(
            EngineKind::Sglang,
            &format!(r#"{{"kv_events_config":{config},"page_size":16,"dp_size":1}}"#),
            &[(0, None, 5557, Some(5657))],
        );
        assert_eq!(sources.block_tokens, Some(16));
        check(EngineKind::Sglang, r#"{"kv_events":null,"kv_events_config":null,"page_size":1}"#, &[]);
        check(EngineKind::Sglang, "{}", &[]);
    }

    #[test]
    fn ranks_are_bounded_and_ports_end() {
        let body = |port: u16| {
            format!(
                r#"{{"kv_events":{{"publisher":"zmq","endpoint_port_base":{port},"dp_size":4000000000}}}}"#
            )
        };
        assert_eq!(parse(EngineKind::Sglang, body(5557).as_bytes()).unwrap().sources.len(), SOURCES_MAX);
        assert_eq!(parse(EngineKind::Sglang, body(65_530).as_bytes()).unwrap().sources.len(), 6);
    }

    proptest! {
        #[test]
        fn arbitrary_endpoints_never_panic(endpoint in r#"(tcp://)?[\[\]*:0-9a-z.é]{0,20}"#) {
            let config = format!(r#"{{"publisher":"zmq","endpoint":"{endpoint}"}}"#);
            let body = format!(r#"{{"0":{config},"kv_events_config":{}}}"#, Value::from(&*config));
            for kind in EngineKind::ALL {
                let _ = parse(kind, config.as_bytes());
                let _ = parse(kind, body.as_bytes());
            }
        }
    }
}
