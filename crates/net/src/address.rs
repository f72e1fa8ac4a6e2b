//! Where a server is: `http://host:port`, `https://host:port` or `host:port`, parsed once into one spelling.
//!
//! Two addresses are equal if they name the same server: the host is in lower case, an IPv6 address in its shortest form,
//! the port is always there, a slash at the end is dropped, and without a scheme it is `http`. So a worker named in the settings as `http://A` and by
//! discovery as `http://a:80/` is one worker.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use http::HeaderValue;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// An IPv6 address has its brackets.
    host: String,
    port: u16,
    scheme: Scheme,
    header: HeaderValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    const fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// A text that is no address, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\": {reason}")]
pub struct BadAddress {
    text: String,
    reason: String,
}

const FORM: &str = "write \"http://host:port\" or \"https://host:port\"";

/// Longest name in DNS.
const HOST_BYTES_MAX: usize = 253;

impl Address {
    /// `host` is a name or an IP address without brackets.
    pub fn new(scheme: Scheme, host: &str, port: u16) -> Result<Address, BadAddress> {
        let bad = |reason| BadAddress { text: format!("{host}:{port}"), reason };
        let host = canonical_host(host).ok_or_else(|| bad(not_a_host(host)))?;
        if port == 0 {
            return Err(bad(not_a_port("0")));
        }
        // As browsers do, the default port is left out.
        let authority = if port == scheme.default_port() { host.clone() } else { format!("{host}:{port}") };
        let header = HeaderValue::from_str(&authority).map_err(|_| bad(not_a_host(&host)))?;
        Ok(Address { host, port, scheme, header })
    }

    /// The host as a resolver wants it: an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// `host:port`, always with the port.
    pub fn endpoint(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    pub fn is_tls(&self) -> bool {
        self.scheme == Scheme::Https
    }

    /// The value of the `host` header.
    pub fn header(&self) -> &HeaderValue {
        &self.header
    }
}

/// A host as a URL has it: a name in lower case, or an IP address, in brackets if it is IPv6. None if it is neither.
pub(crate) fn canonical_host(host: &str) -> Option<String> {
    if let Ok(address) = host.parse::<Ipv6Addr>() {
        return Some(format!("[{address}]"));
    }
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"-._".contains(&it);
    let is_name = (1..=HOST_BYTES_MAX).contains(&host.len()) && host.bytes().all(is_plain);
    is_name.then(|| host.to_ascii_lowercase())
}

fn not_a_host(host: &str) -> String {
    format!("{host:?} is not a host name or an IP address; {FORM}")
}

fn not_a_port(port: &str) -> String {
    format!("{port:?} is not a port; write a number from 1 to 65535")
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", self.scheme.name(), self.host, self.port)
    }
}

/// A server without TLS at a socket address.
impl From<SocketAddr> for Address {
    fn from(socket: SocketAddr) -> Address {
        let host = match socket.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let port = socket.port();
        let header = HeaderValue::from_str(&format!("{host}:{port}"));
        // Digits and brackets are always a header value.
        let header = header.unwrap_or_else(|_| HeaderValue::from_static("localhost"));
        Address { host, port, scheme: Scheme::Http, header }
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        let bad = |reason| BadAddress { text: text.to_owned(), reason };
        let (scheme, rest) = text.split_once("://").map_or((None, text), |it| (Some(it.0), it.1));
        let scheme = match scheme.map(str::to_ascii_lowercase).as_deref() {
            Some("http") => Scheme::Http,
            Some("https") => Scheme::Https,
            Some(other) => return Err(bad(format!("scheme {other} is not supported; use http or https"))),
            // With a port it is an address and no word: `localhost:8000`.
            None if split_port(rest).is_some_and(|it| !it.1.trim_end_matches('/').is_empty()) => Scheme::Http,
            None => return Err(bad(format!("it has no scheme and no port; {FORM}"))),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?']) {
            return Err(bad(format!("it has a path; {FORM}")));
        }
        if authority.contains('@') {
            return Err(bad(format!("it has a user name; {FORM}")));
        }
        let (host, port) = split_port(authority).ok_or_else(|| bad(not_a_host(authority)))?;
        if host.is_empty() {
            return Err(bad(format!("it has no host; {FORM}")));
        }
        let port = match port {
            "" => scheme.default_port(),
            port => port.parse().map_err(|_| bad(not_a_port(port)))?,
        };
        Address::new(scheme, host, port).map_err(|error| bad(error.reason))
    }
}

/// The host without brackets, and the port, which may be empty. None if brackets are wrong.
fn split_port(authority: &str) -> Option<(&str, &str)> {
    let Some(rest) = authority.strip_prefix('[') else {
        return Some(authority.split_once(':').unwrap_or((authority, "")));
    };
    let (host, port) = rest.split_once(']')?;
    let is_bracketed = host.contains(':');
    let port = if port.is_empty() { Some("") } else { port.strip_prefix(':') };
    is_bracketed.then_some((host, port?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<Address>(), expected) {
            (Ok(address), Ok(shown)) => {
                assert_eq!(address.to_string(), shown);
                assert_eq!(shown.parse(), Ok(address), "Display can be parsed again");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (actual, expected) => panic!("{text}: {actual:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn one_server_has_one_spelling() {
        check("http://10.0.0.7:8000", Ok("http://10.0.0.7:8000"));
        check("http://10.0.0.7:8000/", Ok("http://10.0.0.7:8000"));
        check("HTTP://VLLM-0.Workers", Ok("http://vllm-0.workers:80"));
        check("http://a:", Ok("http://a:80"));
        check("localhost:8000", Ok("http://localhost:8000"));
        check("LOCALHOST:8000/", Ok("http://localhost:8000"));
        check("[::1]:8000", Ok("http://[::1]:8000"));
        check("http://[0:0::1]:9001", Ok("http://[::1]:9001"));
        check("http://[::1]", Ok("http://[::1]:80"));
        check("https://10.0.0.7", Ok("https://10.0.0.7:443"));
        check("https://vllm-0:8000/", Ok("https://vllm-0:8000"));
        let parse = |text: &str| text.parse::<Address>().unwrap();
        assert_eq!(parse("http://A/"), parse("http://a:80"));
    }

    #[test]
    fn an_error_says_what_is_wrong_and_what_to_write() {
        check("10.0.0.7", Err("it has no scheme and no port; write \"http://host:port\""));
        check("localhost", Err("it has no scheme and no port"));
        check("localhost:", Err("it has no scheme and no port"));
        check("http:/", Err("it has no scheme and no port"));
        check("localhost:x", Err("\"x\" is not a port"));
        check("localhost:8000/v1", Err("has a path"));
        check("", Err("it has no scheme"));
        check("ftp://10.0.0.7", Err("\"ftp://10.0.0.7\": scheme ftp is not supported; use http or https"));
        check("http://10.0.0.7/v1", Err("has a path"));
        check("http://a:1?ranks=2", Err("has a path"));
        check("http://me@host", Err("has a user name"));
        check("http://", Err("has no host"));
        check("http://:80", Err("has no host"));
        check("http://a:0", Err("\"0\" is not a port"));
        check("http://a:x", Err("\"x\" is not a port"));
        check("http://a:70000", Err("\"70000\" is not a port"));
        check("http://a:1#x", Err("\"1#x\" is not a port"));
        check("http://[::1", Err("is not a host name"));
        check("http://[::1]x", Err("is not a host name"));
        check("http://[a]:1", Err("is not a host name"));
        check("http://::1:8000", Err("has no host"));
        check("http://a b:1", Err("is not a host name"));
    }

    #[test]
    fn a_resolver_gets_no_brackets_and_the_host_header_no_default_port() {
        let header = |text: &str| text.parse::<Address>().unwrap().header().to_str().unwrap().to_owned();
        assert_eq!("http://[::1]:9001".parse::<Address>().unwrap().host(), "::1");
        assert_eq!(header("http://[::1]:9001"), "[::1]:9001");
        assert_eq!((header("http://a:80"), header("https://a")), ("a".to_owned(), "a".to_owned()));
        assert_eq!(header("https://a:80"), "a:80");
    }
}
