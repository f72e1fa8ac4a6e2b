//! The address of an OpenTelemetry collector: a base URL, as in OpenTelemetry's own `OTEL_EXPORTER_OTLP_ENDPOINT`.

use std::fmt;
use std::str::FromStr;

use http::uri::PathAndQuery;
use maitre_net::address::Address;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    pub(crate) address: Address,
    /// The path before `/v1/traces`, without a slash at its end; mostly empty.
    base: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not the address of a collector; write \"http://host:4318\" or \"https://host:4318\"")]
pub struct BadCollector {
    text: String,
}

impl Collector {
    pub(crate) fn path(&self) -> PathAndQuery {
        // The base was checked to be a path, so this parses.
        format!("{}/v1/traces", self.base).parse().unwrap_or_else(|_| PathAndQuery::from_static("/v1/traces"))
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address, self.base)
    }
}

impl FromStr for Collector {
    type Err = BadCollector;

    fn from_str(text: &str) -> Result<Collector, BadCollector> {
        let bad = || BadCollector { text: text.to_owned() };
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        let slash = rest.find('/').unwrap_or(rest.len());
        let (host, base) = (&rest[..slash], rest[slash..].trim_end_matches('/'));
        let is_path = base.is_empty() || base.parse::<PathAndQuery>().is_ok_and(|it| it.query().is_none());
        let address = format!("{scheme}://{host}").parse().map_err(|_| bad())?;
        if is_path && !base.contains('#') {
            Ok(Collector { address, base: base.to_owned() })
        } else {
            Err(bad())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<(&str, &str)>) {
        let parsed = text.parse::<Collector>().ok();
        let actual = parsed.map(|it| (it.to_string(), it.path().to_string()));
        assert_eq!(actual, expected.map(|it| (it.0.to_owned(), it.1.to_owned())), "{text}");
    }

    #[test]
    fn a_collector_may_have_a_base_path() {
        check("http://127.0.0.1:4318", Some(("http://127.0.0.1:4318", "/v1/traces")));
        check("https://otel.internal/", Some(("https://otel.internal:443", "/v1/traces")));
        check("https://a:1/otlp/", Some(("https://a:1/otlp", "/otlp/v1/traces")));
        for bad in ["", "a:4318", "grpc://a:4317", "http://a:1/b?c=d", "http://a:1/b#c", "http://me@a:1"] {
            check(bad, None);
        }
    }
}
