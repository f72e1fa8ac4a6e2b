//! A worker as a source names it: the URL an operator would write, in one spelling.
//!
//! Two sources may name one worker, and so may one source twice; they are the same worker if they have the
//! same address, which is the URL without its options. The forms are those of `workers` in the configuration,
//! written down again because this crate knows nothing of the one that uses workers.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// Where one worker is, and what cannot be found out by asking it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Found {
    /// Such as `http://10.0.0.7:8000?events=5557&replay=5558&ranks=2`.
    pub url: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadWorker(pub(crate) String);

/// What may stand after the `?` of a worker, checked but kept as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    events: Option<String>,
    replay: Option<String>,
    ranks: Option<String>,
}

/// The port of a worker that names none, as for any `http` URL.
const PORT: u16 = 80;
/// Most ranks of one engine, as in the configuration.
const RANKS_MAX: u32 = 1_024;
/// Of a name in DNS.
const HOST_BYTES_MAX: usize = 253;

impl Found {
    /// The worker at a host, which is a name or an IP address without brackets.
    pub(crate) fn at(host: &str, port: u16, options: &Options) -> Result<Found, BadWorker> {
        if port == 0 {
            return Err(BadWorker(format!("{host}: 0 is not a port")));
        }
        let host = host_in_a_url(host).ok_or_else(|| BadWorker(format!("{host:?} is not a host")))?;
        Ok(Found { url: format!("http://{host}:{port}{options}") })
    }

    /// The URL without its options: by this a worker is known.
    pub fn address(&self) -> &str {
        self.url.split('?').next().unwrap_or_default()
    }
}

/// An address as a URL has it, names in lower case; nothing if it is neither address nor name.
fn host_in_a_url(host: &str) -> Option<String> {
    if let Ok(address) = host.parse::<Ipv6Addr>() {
        return Some(format!("[{address}]"));
    }
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"-._".contains(&it);
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_name = (1..=HOST_BYTES_MAX).contains(&host.len()) && host.bytes().all(is_plain);
    is_name.then(|| host.to_ascii_lowercase())
}

impl FromStr for Found {
    type Err = BadWorker;

    fn from_str(text: &str) -> Result<Found, BadWorker> {
        let bad = |reason: &str| BadWorker(format!("{text:?} {reason}; write \"http://host:port\""));
        let (address, options) = text.split_once('?').unwrap_or((text, ""));
        let Some(place) = address.strip_prefix("http://") else {
            let tls = address.starts_with("https://");
            return Err(bad(if tls {
                "asks for TLS, which workers are not reached by"
            } else {
                "does not begin with http://"
            }));
        };
        let place = place.strip_suffix('/').unwrap_or(place);
        if place.contains('/') {
            return Err(bad("has a path"));
        }
        let (host, port) = match place.strip_prefix('[').map(|it| it.split_once(']')) {
            Some(Some((host, rest))) if host.contains(':') => (host, rest.strip_prefix(':').or(none(rest))),
            Some(_) => return Err(bad("has an IPv6 address that is none")),
            None => match place.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (place, Some("")),
            },
        };
        let port = match port {
            Some("") => PORT,
            port => port.and_then(|it| it.parse().ok()).ok_or_else(|| bad("has no port that is one"))?,
        };
        let options = Options::read(options).map_err(|error| BadWorker(format!("{text:?}: {error}")))?;
        let found = Found::at(host, port, &options);
        found.map_err(|_| bad("has no host that is one, or port 0"))
    }
}

/// What stands after the brackets if no port does.
fn none(rest: &str) -> Option<&str> {
    rest.is_empty().then_some("")
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl Options {
    /// Reads `events=5557&ranks=2`; nothing is no options.
    pub(crate) fn read(text: &str) -> Result<Options, BadWorker> {
        let mut options = Options::default();
        for option in text.split('&').filter(|it| !it.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            if !options.set(key, value)? {
                let known = "events, replay and ranks";
                return Err(BadWorker(format!("no option is called {key:?}; known: {known}")));
            }
        }
        Ok(options)
    }

    /// Sets one by its name; false if there is none of that name.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<bool, BadWorker> {
        let bad = |form: &str| Err(BadWorker(format!("{key} is {value:?}; write {form}")));
        let place = match key {
            "events" if value != "off" && !is_endpoint(value) => {
                return bad("a port, tcp://host:port or off");
            }
            "replay" if !is_endpoint(value) => return bad("a port or tcp://host:port"),
            "ranks" if !value.parse().is_ok_and(|it: u32| (1..=RANKS_MAX).contains(&it)) => {
                return bad("a number from 1 to 1024");
            }
            "events" => &mut self.events,
            "replay" => &mut self.replay,
            "ranks" => &mut self.ranks,
            _ => return Ok(false),
        };
        *place = Some(value.to_owned());
        Ok(true)
    }

    /// Each by its name, in the order in which they are written.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let pairs = [("events", &self.events), ("replay", &self.replay), ("ranks", &self.ranks)];
        pairs.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)))
    }
}

fn is_endpoint(text: &str) -> bool {
    let is_port = |it: &str| it.parse().is_ok_and(|it: u16| it > 0);
    let Some(place) = text.strip_prefix("tcp://") else { return is_port(text) };
    let Some((host, port)) = place.rsplit_once(':') else { return false };
    let host = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
    is_port(port) && host_in_a_url(host).is_some()
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_pairs(f, self.pairs())
    }
}

/// Options as they follow an address.
pub(crate) fn write_pairs<K: fmt::Display, V: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    pairs: impl IntoIterator<Item = (K, V)>,
) -> fmt::Result {
    for (index, (key, value)) in pairs.into_iter().enumerate() {
        write!(f, "{}{key}={value}", if index == 0 { '?' } else { '&' })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<Found>(), expected) {
            (Ok(found), Ok(url)) => {
                assert_eq!(found.url, url);
                assert_eq!(url.parse(), Ok(found), "what is shown can be read again");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (actual, expected) => panic!("{text}: {actual:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn one_worker_has_one_spelling() {
        check("http://10.0.0.7:8000", Ok("http://10.0.0.7:8000"));
        check("http://10.0.0.7:8000/", Ok("http://10.0.0.7:8000"));
        check("http://VLLM-0.Workers", Ok("http://vllm-0.workers:80"));
        check("http://[0:0::1]:9001", Ok("http://[::1]:9001"));
        check("http://[::1]", Ok("http://[::1]:80"));
        check("http://a:1/?ranks=2&events=5557", Ok("http://a:1?events=5557&ranks=2"));
        check("http://a:1?events=off&replay=tcp://b:5", Ok("http://a:1?events=off&replay=tcp://b:5"));
        check("http://a:1?events=tcp://[::1]:5557", Ok("http://a:1?events=tcp://[::1]:5557"));
    }

    #[test]
    fn what_is_wrong_says_what_is_right() {
        check("10.0.0.7:8000", Err("does not begin with http://; write"));
        check("https://a:1", Err("TLS"));
        check("http://a:1/v1", Err("has a path"));
        check("http://me@a:1", Err("no host that is one"));
        check("http://", Err("no host"));
        check("http://a:0", Err("port 0"));
        check("http://a:x", Err("no port that is one"));
        check("http://a:70000", Err("no port that is one"));
        check("http://[::1", Err("IPv6"));
        check("http://[::1]x", Err("no port"));
        check("http://[a]:1", Err("IPv6"));
        check("http://::1:8000", Err("no port that is one"));
        check("http://a b:1", Err("no host"));
        check("http://a:1?rank=3", Err("known: events, replay and ranks"));
        check("http://a:1?ranks=0", Err("from 1 to 1024"));
        check("http://a:1?events=ipc:///x", Err("a port, tcp://host:port or off"));
        check("http://a:1?replay=off", Err("a port or tcp://host:port"));
    }

    #[test]
    fn a_worker_is_known_by_its_address() {
        assert_eq!("http://a:1?ranks=2".parse::<Found>().unwrap().address(), "http://a:1");
    }
}
