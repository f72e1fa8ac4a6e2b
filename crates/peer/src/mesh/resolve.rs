//! Resolves `host:port`: addresses as they are, names through the system's name servers.
//!
//! Uses its own resolver, because the system call blocks a thread, and the end of the process, for as long as a name
//! server is silent.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use hickory_resolver::net::{DnsError, NetError};
use tokio::time::timeout;

/// Time limit for one lookup.
const QUESTION_MAX: Duration = Duration::from_secs(10);
/// Maximum addresses per name: more than a cluster has routers.
const ADDRESSES_MAX: usize = 64;

/// A peer's location as the operator wrote it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PeerAddress {
    Socket(SocketAddr),
    Name { host: String, port: u16 },
}

impl FromStr for PeerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<PeerAddress, String> {
        let bad = |reason| format!("{text:?} {reason}; write host:port, or [address]:port for IPv6");
        let (host, port) = text.rsplit_once(':').ok_or_else(|| bad("has no port"))?;
        let port =
            port.parse().ok().filter(|&it| it > 0).ok_or_else(|| bad("has no port between 1 and 65535"))?;
        if let Some(inner) = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            let address: IpAddr = inner.parse().map_err(|_| bad("has no address in its brackets"))?;
            return Ok(PeerAddress::Socket(SocketAddr::new(address, port)));
        }
        if let Ok(address) = host.parse::<IpAddr>() {
            return match address.is_ipv6() {
                true => Err(bad("has an IPv6 address without brackets")),
                false => Ok(PeerAddress::Socket(SocketAddr::new(address, port))),
            };
        }
        let is_name = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_' | '.');
        match !host.is_empty() && host.len() <= 253 && host.chars().all(is_name) {
            true => Ok(PeerAddress::Name { host: host.to_owned(), port }),
            false => Err(bad("has no host name")),
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerAddress::Socket(address) => address.fmt(f),
            PeerAddress::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl PeerAddress {
    /// All its addresses; an empty result is an error.
    pub(super) async fn resolve(&self) -> Result<Vec<SocketAddr>, String> {
        match self {
            PeerAddress::Socket(address) => Ok(vec![*address]),
            PeerAddress::Name { host, port } => resolve(host, *port).await,
        }
    }
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let failed = |reason: &dyn fmt::Display| format!("resolve {host}: {reason}");
    let mut builder = TokioResolver::builder_tokio().map_err(|error| failed(&error))?;
    let options = builder.options_mut();
    options.cache_size = 0;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    let resolver = builder.build().map_err(|error| failed(&error))?;
    let found = timeout(QUESTION_MAX, resolver.lookup_ip(host)).await;
    let found = found.map_err(|_| failed(&format!("no answer within {QUESTION_MAX:?}")))?;
    let found = found.map_err(|error| match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) => {
            failed(&format!("{} and no addresses", none.response_code))
        }
        other => failed(&other),
    })?;
    let found: BTreeSet<SocketAddr> = found.iter().map(|it| SocketAddr::new(it, port)).collect();
    match found.is_empty() {
        true => Err(failed(&"it has no addresses")),
        false => Ok(found.into_iter().take(ADDRESSES_MAX).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<PeerAddress>(), expected) {
            (Ok(address), Ok(expected)) => assert_eq!(address.to_string(), expected),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (actual, expected) => panic!("{text}: {actual:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn peer_addresses_are_hosts_with_ports() {
        check("10.0.0.2:7946", Ok("10.0.0.2:7946"));
        check("[::1]:7946", Ok("[::1]:7946"));
        check("maitre-peers.prod.svc:7946", Ok("maitre-peers.prod.svc:7946"));
        check("router-b", Err("has no port; write host:port"));
        check("router-b:", Err("no port between 1 and 65535"));
        check("router-b:0", Err("no port between"));
        check("router-b:http", Err("no port between"));
        check("::1:7946", Err("without brackets"));
        check("[router]:7946", Err("no address in its brackets"));
        check(":7946", Err("has no host name"));
        check("http://router-b:7946", Err("has no host name"));
    }

    #[tokio::test]
    async fn an_unresolvable_name_is_part_of_the_error() {
        let error = resolve("nobody.invalid.", 1).await.unwrap_err();
        assert_eq!(error, "resolve nobody.invalid.: Non-Existent Domain and no addresses");
    }
}
