//! The URL of a worker: its address, and options for what the router cannot learn from the engine.
//!
//! ```text
//! http://10.0.0.7:8000
//! http://10.0.0.7:8000?events=5557&replay=5558
//! http://10.0.0.7:8000?events=tcp://10.0.0.7:5557&ranks=4
//! http://10.0.0.7:8000?events=off
//! https://10.0.0.7:8443
//! http://10.0.0.7:8000?role=prefill
//! http://10.0.0.7:8000?chunks=0.15
//! http://10.0.0.7:8000?role=prefill&transfer=nixl-push&bootstrap=5600&engine-id=prefill-1
//! ```
//!
//! Settings, discovery, the admin API and the commands all read workers with this parser. A worker is known by its
//! address: the same address with other options is the same worker, configured anew.

use std::fmt;
use std::str::FromStr;

use maitre_base::chunk_reuse::{CHUNK_REUSE_FORM, ChunkReuse};
use maitre_base::{HandoffStyle, Role};

use crate::address::{Address, BadAddress, canonical_host};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkerUrl {
    pub address: Address,
    pub options: WorkerOptions,
}

/// What may follow the `?`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkerOptions {
    pub events: EventSource,
    /// Where the router requests events that it missed.
    pub replay: Option<ZmqEndpoint>,
    /// Data-parallel ranks behind the address. Each is a worker of its own.
    pub ranks: u32,
    pub role: Role,
    /// How it hands KV cache over to workers of another role; none: as its engine usually does.
    pub transfer: Option<HandoffStyle>,
    /// Where decode workers meet this one, if it prefills: its bootstrap server, or NIXL's side channel.
    pub bootstrap: Option<ZmqEndpoint>,
    /// What its engine calls itself, where decode workers must know that beforehand.
    pub engine_id: Option<String>,
    /// Over how many devices each layer is split, where decode workers must know that beforehand.
    pub tensor_parallel: u32,
    /// Where other workers pull its KV cache; none if they cannot.
    pub pull: Option<ZmqEndpoint>,
    /// The name of the store of KV cache that it shares with others.
    pub store: Option<String>,
    /// How the engine reuses KV at any position; none if it reuses prefixes only.
    pub chunks: Option<ChunkReuse>,
}

impl WorkerOptions {
    /// The options of a data-parallel rank that has an HTTP port of its own: what counts by rank is this many ports on.
    pub fn at_rank(&self, rank: u16) -> WorkerOptions {
        let at = |it: &ZmqEndpoint| ZmqEndpoint { port: it.port.saturating_add(rank), ..it.clone() };
        let events = match &self.events {
            EventSource::At(endpoint) => EventSource::At(at(endpoint)),
            other => other.clone(),
        };
        let [replay, bootstrap, pull] =
            [&self.replay, &self.bootstrap, &self.pull].map(|it| it.as_ref().map(at));
        WorkerOptions { events, replay, bootstrap, pull, ..self.clone() }
    }
}

/// Where a worker publishes its KV-cache events.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EventSource {
    /// Where the engine says, or at the port configured for all workers.
    Auto,
    At(ZmqEndpoint),
    Off,
}

/// A ZeroMQ address over TCP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ZmqEndpoint {
    /// None: the host of the worker. An IPv6 address has no brackets.
    pub host: Option<String>,
    /// Of rank 0; rank n uses this plus n.
    pub port: u16,
}

/// Longest name of a store or an engine.
const NAME_MAX: usize = 64;

/// Most ranks of one engine. Chosen: more than any engine has GPUs.
pub const RANKS_MAX: u32 = 1_024;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadWorkerUrl {
    #[error("{0}")]
    Address(#[from] BadAddress),
    #[error("{text:?}: {error}")]
    Option { text: String, error: BadWorkerOption },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadWorkerOption {
    #[error("{key} is {value:?}; write {form}")]
    Value { key: &'static str, value: String, form: &'static str },
    #[error("{key} has no effect with {with}; leave it out")]
    Idle { key: &'static str, with: String },
    #[error("transfer=nixl-push needs engine-id=NAME, as in the engine's --kv-transfer-config")]
    NoEngineId,
    #[error(
        "no option is called {0:?}; known: events, replay, ranks, role, transfer, bootstrap, engine-id, tp, pull, store and chunks"
    )]
    Unknown(String),
}

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions {
            events: EventSource::Auto,
            replay: None,
            ranks: 1,
            role: Role::Both,
            transfer: None,
            bootstrap: None,
            engine_id: None,
            tensor_parallel: 1,
            pull: None,
            store: None,
            chunks: None,
        }
    }
}

impl WorkerOptions {
    /// Reads `events=5557&ranks=2`; an empty text is no options.
    fn parse(query: &str) -> Result<WorkerOptions, BadWorkerOption> {
        let mut options = WorkerOptions::default();
        for pair in query.split('&').filter(|it| !it.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            options.set(key, value)?;
        }
        options.check()?;
        Ok(options)
    }

    /// Refuses options of a hand-over that do nothing, or lack another. An engine without a style here may be SGLang, which
    /// tells its role itself.
    pub fn check(&self) -> Result<(), BadWorkerOption> {
        use HandoffStyle::{Mooncake, NixlPush, Sglang};
        let readers: [(&str, bool, &[HandoffStyle]); 3] = [
            ("bootstrap", self.bootstrap.is_some(), &[NixlPush, Mooncake, Sglang]),
            ("engine-id", self.engine_id.is_some(), &[NixlPush, Mooncake]),
            ("tp", self.tensor_parallel > 1, &[NixlPush]),
        ];
        for (key, _, styles) in readers.into_iter().filter(|it| it.1) {
            let with = match self.transfer {
                _ if self.role == Role::Decode => "role=decode".to_owned(),
                Some(style) if !styles.contains(&style) => format!("transfer={style}"),
                None if key != "bootstrap" => "the style of an engine that has no transfer=".to_owned(),
                _ => continue,
            };
            return Err(BadWorkerOption::Idle { key, with });
        }
        let needs_id = self.role == Role::Prefill && self.transfer == Some(NixlPush);
        if needs_id && self.engine_id.is_none() { Err(BadWorkerOption::NoEngineId) } else { Ok(()) }
    }

    /// Sets one option by its name. On an error nothing has changed.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), BadWorkerOption> {
        let bad = |key, form| BadWorkerOption::Value { key, value: value.to_owned(), form };
        match key {
            "events" if value == "off" => self.events = EventSource::Off,
            "events" => {
                let endpoint = value.parse().map_err(|()| bad("events", "a port, tcp://host:port or off"))?;
                self.events = EventSource::At(endpoint);
            }
            "replay" => {
                self.replay = Some(value.parse().map_err(|()| bad("replay", "a port or tcp://host:port"))?);
            }
            "ranks" => {
                let ranks = value.parse().ok().filter(|it| (1..=RANKS_MAX).contains(it));
                self.ranks = ranks.ok_or_else(|| bad("ranks", "a number from 1 to 1024"))?;
            }
            "role" => self.role = value.parse().map_err(|()| bad("role", "both, prefill or decode"))?,
            "transfer" => {
                let form = "nixl, nixl-push, mooncake, sglang, tensorrt-llm or store";
                self.transfer = Some(value.parse().map_err(|_| bad("transfer", form))?);
            }
            "bootstrap" => {
                let endpoint = value.parse().map_err(|()| bad("bootstrap", "a port or tcp://host:port"))?;
                self.bootstrap = Some(endpoint);
            }
            "engine-id" => {
                self.engine_id = Some(name(value).ok_or_else(|| bad("engine-id", NAME_FORM))?);
            }
            "tp" => {
                let size = value.parse().ok().filter(|it| (1..=RANKS_MAX).contains(it));
                self.tensor_parallel = size.ok_or_else(|| bad("tp", "a number from 1 to 1024"))?;
            }
            "pull" => {
                self.pull = Some(value.parse().map_err(|()| bad("pull", "a port or tcp://host:port"))?);
            }
            "store" => {
                self.store = Some(name(value).ok_or_else(|| bad("store", NAME_FORM))?);
            }
            "chunks" => self.chunks = Some(value.parse().map_err(|()| bad("chunks", CHUNK_REUSE_FORM))?),
            key => return Err(BadWorkerOption::Unknown(key.to_owned())),
        }
        Ok(())
    }

    /// Those that are not the default, in the order in which they are written.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static str, String)> {
        let events = match &self.events {
            EventSource::Auto => None,
            EventSource::At(endpoint) => Some(("events", endpoint.to_string())),
            EventSource::Off => Some(("events", "off".to_owned())),
        };
        let replay = self.replay.as_ref().map(|it| ("replay", it.to_string()));
        let ranks = (self.ranks > 1).then(|| ("ranks", self.ranks.to_string()));
        let role = (self.role != Role::Both).then(|| ("role", self.role.to_string()));
        let transfer = self.transfer.map(|it| ("transfer", it.to_string()));
        let bootstrap = self.bootstrap.as_ref().map(|it| ("bootstrap", it.to_string()));
        let engine_id = self.engine_id.clone().map(|it| ("engine-id", it));
        let size = (self.tensor_parallel > 1).then(|| ("tp", self.tensor_parallel.to_string()));
        let pull = self.pull.as_ref().map(|it| ("pull", it.to_string()));
        let store = self.store.clone().map(|it| ("store", it));
        let chunks = self.chunks.map(|it| ("chunks", it.to_string()));
        let first = [events, replay, ranks, role].into_iter().flatten();
        first.chain([transfer, bootstrap, engine_id, size, pull, store, chunks].into_iter().flatten())
    }
}

const NAME_FORM: &str = "a name of letters, digits, dots, dashes and underscores";

fn name(text: &str) -> Option<String> {
    let is_name = (1..=NAME_MAX).contains(&text.len())
        && text.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_.".contains(&it));
    is_name.then(|| text.to_owned())
}

impl FromStr for WorkerUrl {
    type Err = BadWorkerUrl;

    fn from_str(text: &str) -> Result<WorkerUrl, BadWorkerUrl> {
        let (address, query) = text.split_once('?').unwrap_or((text, ""));
        let bad = |error| BadWorkerUrl::Option { text: text.to_owned(), error };
        Ok(WorkerUrl { address: address.parse()?, options: WorkerOptions::parse(query).map_err(bad)? })
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        write_query(f, self.options.pairs())
    }
}

/// Writes pairs as a query, with its `?`; nothing if there are none.
pub fn write_query<K: fmt::Display, V: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    pairs: impl IntoIterator<Item = (K, V)>,
) -> fmt::Result {
    for (index, (key, value)) in pairs.into_iter().enumerate() {
        write!(f, "{}{key}={value}", if index == 0 { '?' } else { '&' })?;
    }
    Ok(())
}

impl FromStr for ZmqEndpoint {
    type Err = ();

    fn from_str(text: &str) -> Result<ZmqEndpoint, ()> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|&it| it > 0).ok_or(());
        let Some(rest) = text.strip_prefix("tcp://") else {
            return Ok(ZmqEndpoint { host: None, port: port(text)? });
        };
        let (host, number) = rest.rsplit_once(':').ok_or(())?;
        let host = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
        let host = canonical_host(host).ok_or(())?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(ZmqEndpoint { host: Some(host), port: port(number)? })
    }
}

impl fmt::Display for ZmqEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            None => write!(f, "{}", self.port),
            Some(host) if host.contains(':') => write!(f, "tcp://[{host}]:{}", self.port),
            Some(host) => write!(f, "tcp://{host}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_worker_url() {
        let seeds: [&[u8]; 3] = [
            b"http://10.0.0.1:8000?events=tcp://10.0.0.1:5557&replay=tcp://10.0.0.1:5558&topic=kv&ranks=2&weight=0.5&pull=5710&store=rack-7&role=prefill&transfer=nixl-push&bootstrap=5600&engine-id=p-1&tp=2",
            b"https://[fe80::1]:443/",
            b"engine-7.example:8000",
        ];
        maitre_testkit::fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "worker-url", &seeds, |input, _| {
            let Ok(text) = std::str::from_utf8(input) else { return };
            if let Ok(worker) = text.parse::<WorkerUrl>() {
                assert_eq!(worker.to_string().parse(), Ok(worker), "Display can be parsed again");
            }
        });
    }

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<WorkerUrl>(), expected) {
            (Ok(worker), Ok(shown)) => {
                assert_eq!(worker.to_string(), shown);
                assert_eq!(shown.parse(), Ok(worker), "Display can be parsed again");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (actual, expected) => panic!("{text}: {actual:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn options_follow_the_address() {
        check("http://a:1", Ok("http://a:1"));
        check("https://A:1/?events=off", Ok("https://a:1?events=off"));
        check("http://a:1?replay=5558&events=5557", Ok("http://a:1?events=5557&replay=5558"));
        check("http://a:1?events=tcp://B:5557&ranks=4", Ok("http://a:1?events=tcp://b:5557&ranks=4"));
        check("http://a:1?events=tcp://[::1]:5557", Ok("http://a:1?events=tcp://[::1]:5557"));
        check("http://a:1?ranks=1", Ok("http://a:1"));
        check("http://a:1?chunks=.15&role=decode", Ok("http://a:1?role=decode&chunks=0.15"));
        check("http://a:1?chunks=0", Ok("http://a:1?chunks=0"));
        check(
            "http://a:1?tp=4&engine-id=p-1&bootstrap=tcp://B:5600&transfer=nixl-push&role=prefill",
            Ok("http://a:1?role=prefill&transfer=nixl-push&bootstrap=tcp://b:5600&engine-id=p-1&tp=4"),
        );
    }

    #[test]
    fn an_invalid_option_names_the_accepted_ones() {
        check("http://a:1?events=ipc:///x", Err("a port, tcp://host:port or off"));
        check("http://a:1?events=tcp://a b:1", Err("a port"));
        check("http://a:1?events=0", Err("a port"));
        check("http://a:1?replay=off", Err("a port or tcp://host:port"));
        check("http://a:1?ranks=0", Err("from 1 to 1024"));
        check(
            "http://a:1?chunks=1",
            Err("chunks is \"1\"; write the part that is computed again, from 0 to 0.99"),
        );
        check("http://a:1?chunks", Err("such as 0.15"));
        check(
            "http://a:1?transfer=rdma",
            Err("write nixl, nixl-push, mooncake, sglang, tensorrt-llm or store"),
        );
        check("http://a:1?engine-id=a b", Err("a name of letters"));
        check("http://a:1?role=prefill&transfer=nixl-push&bootstrap=5600", Err("needs engine-id=NAME"));
        check("http://a:1?role=decode&transfer=nixl-push", Ok("http://a:1?role=decode&transfer=nixl-push"));
        check("http://a:1?role=prefill&bootstrap=8998", Ok("http://a:1?role=prefill&bootstrap=8998"));
        check("http://a:1?bootstrap=8998", Ok("http://a:1?bootstrap=8998"));
        check("http://a:1?role=decode&bootstrap=8998", Err("bootstrap has no effect with role=decode"));
        check("http://a:1?transfer=nixl&bootstrap=1", Err("bootstrap has no effect with transfer=nixl;"));
        check("http://a:1?role=prefill&transfer=sglang&tp=2", Err("tp has no effect with transfer=sglang"));
        check("http://a:1?role=prefill&engine-id=e", Err("that has no transfer="));
        check("http://a:1?rank=3", Err("known: events, replay, ranks, role, transfer, bootstrap"));
        check("ftp://a", Err("use http or https"));
    }
}
