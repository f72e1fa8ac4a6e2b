//! The URL of a worker: its address, and options for what the router cannot learn from the engine.
//!
//! ```text
//! http://10.0.0.7:8000
//! http://10.0.0.7:8000?events=5557&replay=5558
//! http://10.0.0.7:8000?events=tcp://10.0.0.7:5557&ranks=4
//! http://10.0.0.7:8000?events=off
//! https://10.0.0.7:8443
//! ```

use std::fmt;
use std::str::FromStr;

use crate::address::Address;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerUrl {
    pub address: Address,
    pub events: EventSource,
    /// Where the router requests events that it missed.
    pub replay: Option<ZmqEndpoint>,
    /// Data-parallel ranks behind the address. Each is a worker of its own.
    pub ranks: u32,
}

/// Where a worker publishes its KV-cache events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// Where the engine says, or at the port configured for all workers.
    Auto,
    At(ZmqEndpoint),
    Off,
}

/// A ZeroMQ address over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZmqEndpoint {
    /// None: the host of the worker.
    pub host: Option<String>,
    /// Of rank 0; rank n uses this plus n.
    pub port: u16,
}

/// Most ranks of one engine. Chosen: more than any engine has GPUs.
pub const RANKS_MAX: u32 = 1_024;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadWorkerUrl(String);

impl WorkerUrl {
    /// Without options.
    pub fn at(address: Address) -> WorkerUrl {
        WorkerUrl { address, events: EventSource::Auto, replay: None, ranks: 1 }
    }
}

impl FromStr for WorkerUrl {
    type Err = BadWorkerUrl;

    fn from_str(text: &str) -> Result<WorkerUrl, BadWorkerUrl> {
        let (address, options) = text.split_once('?').unwrap_or((text, ""));
        let address =
            address.parse().map_err(|error: crate::address::BadAddress| BadWorkerUrl(error.to_string()))?;
        let mut url = WorkerUrl::at(address);
        for option in options.split('&').filter(|it| !it.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            let bad = |form: &str| BadWorkerUrl(format!("\"{text}\": {key} is {value:?}; write {form}"));
            let endpoint = || value.parse().map_err(|()| bad("a port or tcp://host:port"));
            match key {
                "events" if value == "off" => url.events = EventSource::Off,
                "events" => url.events = EventSource::At(endpoint()?),
                "replay" => url.replay = Some(endpoint()?),
                "ranks" => {
                    let ranks = value.parse().ok().filter(|it| (1..=RANKS_MAX).contains(it));
                    url.ranks = ranks.ok_or_else(|| bad("a number from 1 to 1024"))?;
                }
                _ => {
                    let known = "events, replay and ranks";
                    return Err(BadWorkerUrl(format!(
                        "\"{text}\": no option is called {key:?}; known: {known}"
                    )));
                }
            }
        }
        Ok(url)
    }
}

impl fmt::Display for WorkerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = match &self.events {
            EventSource::Auto => None,
            EventSource::At(endpoint) => Some(format!("events={endpoint}")),
            EventSource::Off => Some("events=off".to_owned()),
        };
        let replay = self.replay.as_ref().map(|it| format!("replay={it}"));
        let ranks = (self.ranks > 1).then(|| format!("ranks={}", self.ranks));
        let options: Vec<String> = [events, replay, ranks].into_iter().flatten().collect();
        let mark = if options.is_empty() { "" } else { "?" };
        write!(f, "{}{mark}{}", self.address, options.join("&"))
    }
}

impl FromStr for ZmqEndpoint {
    type Err = ();

    fn from_str(text: &str) -> Result<ZmqEndpoint, ()> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|&it| it > 0).ok_or(());
        let Some(rest) = text.strip_prefix("tcp://") else {
            return Ok(ZmqEndpoint { host: None, port: port(text)? });
        };
        let (host, number) = rest.rsplit_once(':').ok_or(())?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(());
        }
        Ok(ZmqEndpoint { host: Some(host.to_owned()), port: port(number)? })
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
        check("http://a:1/?events=off", Ok("http://a:1?events=off"));
        check("http://a:1?replay=5558&events=5557", Ok("http://a:1?events=5557&replay=5558"));
        check("http://a:1?events=tcp://b:5557&ranks=4", Ok("http://a:1?events=tcp://b:5557&ranks=4"));
        check("http://a:1?events=tcp://[::1]:5557", Ok("http://a:1?events=tcp://[::1]:5557"));
    }

    #[test]
    fn a_wrong_option_says_what_is_right() {
        check("http://a:1?events=ipc:///x", Err("a port or tcp://host:port"));
        check("http://a:1?events=0", Err("a port"));
        check("http://a:1?ranks=0", Err("from 1 to 1024"));
        check("http://a:1?rank=3", Err("known: events, replay and ranks"));
        check("ftp://a", Err("https://host:port"));
    }
}
