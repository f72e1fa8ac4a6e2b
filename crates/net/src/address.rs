//! Where a worker is: `http://host:port` or `https://host:port`, checked once.

use std::fmt;
use std::str::FromStr;

use http::{HeaderValue, Uri};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
    scheme: Scheme,
    header: HeaderValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" {reason}; write \"http://host:port\" or \"https://host:port\"")]
pub struct BadAddress {
    text: String,
    reason: &'static str,
}

impl Address {
    /// The host as the resolver wants it: an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether it is reached by TLS.
    pub fn is_tls(&self) -> bool {
        self.scheme == Scheme::Https
    }

    /// The value of the `host` header.
    pub fn header(&self) -> &HeaderValue {
        &self.header
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls() { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Address, BadAddress> {
        let bad = |reason| BadAddress { text: text.to_owned(), reason };
        let uri: Uri = text.parse().map_err(|_| bad("is not a URL"))?;
        let (scheme, usual_port) = match uri.scheme_str() {
            Some("http") => (Scheme::Http, 80),
            Some("https") => (Scheme::Https, 443),
            _ => return Err(bad("has no scheme")),
        };
        if !matches!(uri.path_and_query().map_or("/", |it| it.as_str()), "/" | "") {
            return Err(bad("has a path"));
        }
        let authority = uri.authority().ok_or_else(|| bad("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("has a user name"));
        }
        let (host, port) = (authority.host(), authority.port_u16().unwrap_or(usual_port));
        if host.is_empty() || host == "[]" {
            return Err(bad("has no host"));
        }
        let header = HeaderValue::from_str(authority.as_str()).map_err(|_| bad("has an odd host"))?;
        Ok(Address { host: host.to_owned(), port, scheme, header })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<Address>(), expected) {
            (Ok(address), Ok(shown)) => assert_eq!(address.to_string(), shown),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (actual, expected) => panic!("{text}: {actual:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn addresses_are_hosts_and_ports_and_nothing_else() {
        check("http://10.0.0.7:8000", Ok("http://10.0.0.7:8000"));
        check("http://10.0.0.7:8000/", Ok("http://10.0.0.7:8000"));
        check("http://vllm-0", Ok("http://vllm-0:80"));
        check("http://[::1]:9001", Ok("http://[::1]:9001"));
        check("10.0.0.7:8000", Err("scheme"));
        check("https://10.0.0.7", Ok("https://10.0.0.7:443"));
        check("https://vllm-0:8000/", Ok("https://vllm-0:8000"));
        check("ftp://10.0.0.7", Err("scheme"));
        check("http://10.0.0.7/v1", Err("has a path"));
        check("http://me@host", Err("user name"));
        check("http://", Err("not a URL"));
        check("", Err("not a URL"));
    }

    #[test]
    fn a_resolver_sees_no_brackets() {
        assert_eq!("http://[::1]:9001".parse::<Address>().unwrap().host(), "::1");
    }
}
