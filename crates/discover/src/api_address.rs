//! The address of the Kubernetes API: `https://host:port`, or `http://` on this machine only, for tests and
//! `kubectl proxy`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use maitre_net::address::{Address, BadAddress, Scheme};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiAddress(Address);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadApiAddress {
    #[error("{0}")]
    Address(#[from] BadAddress),
    #[error("\"{0}\": everything would be sent in the clear; write \"https://host:port\"")]
    Plain(String),
    #[error("find the Kubernetes API: {0}; outside a cluster, set discovery.kubernetes_api to its address")]
    Unknown(&'static str),
}

impl ApiAddress {
    pub(crate) fn address(&self) -> &Address {
        &self.0
    }

    /// The API of the cluster we run in.
    #[expect(
        clippy::disallowed_methods,
        reason = "the cluster says there where its API is, and nowhere else"
    )]
    pub(crate) fn of_this_cluster() -> Result<ApiAddress, BadApiAddress> {
        ApiAddress::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<ApiAddress, BadApiAddress> {
        let host = variable("KUBERNETES_SERVICE_HOST").filter(|it| !it.is_empty());
        let host = host.ok_or(BadApiAddress::Unknown("KUBERNETES_SERVICE_HOST is not set"))?;
        let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
        let port =
            port.parse().map_err(|_| BadApiAddress::Unknown("KUBERNETES_SERVICE_PORT is not a port"))?;
        Ok(ApiAddress(Address::new(Scheme::Https, &host, port)?))
    }
}

impl FromStr for ApiAddress {
    type Err = BadApiAddress;

    fn from_str(text: &str) -> Result<ApiAddress, BadApiAddress> {
        let address: Address = text.parse()?;
        let is_this_machine = address.host().parse().is_ok_and(|it: IpAddr| it.is_loopback());
        match address.is_tls() || is_this_machine {
            true => Ok(ApiAddress(address)),
            false => Err(BadApiAddress::Plain(text.to_owned())),
        }
    }
}

impl fmt::Display for ApiAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<ApiAddress>(), expected) {
            (Ok(api), Ok(shown)) => assert_eq!(api.to_string(), shown),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (actual, expected) => panic!("{text}: {actual:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn plain_http_is_for_this_machine_only() {
        check("https://10.0.0.1:6443", Ok("https://10.0.0.1:6443"));
        check("https://kubernetes.default.svc", Ok("https://kubernetes.default.svc:443"));
        check("https://[fd00::1]:6443/", Ok("https://[fd00::1]:6443"));
        check("http://127.0.0.1:8001", Ok("http://127.0.0.1:8001"));
        check("http://[::1]:8001", Ok("http://[::1]:8001"));
        check("http://10.0.0.1:8001", Err("in the clear"));
        check("http://localhost:8001", Err("in the clear"));
        check("10.0.0.1:6443", Err("in the clear"));
        check("10.0.0.1", Err("has no scheme"));
        check("https://a/b", Err("has a path"));
        check("https://me@a", Err("has a user name"));
        check("", Err("has no scheme"));
    }

    #[test]
    fn the_cluster_environment_gives_the_api_address() {
        let found = |host: Option<&str>, port: Option<&str>| {
            let variable = |name: &str| match name {
                "KUBERNETES_SERVICE_HOST" => host.map(str::to_owned),
                "KUBERNETES_SERVICE_PORT" => port.map(str::to_owned),
                name => panic!("{name} was read"),
            };
            ApiAddress::from_variables(variable).map(|it| it.to_string()).map_err(|it| it.to_string())
        };
        assert_eq!(found(Some("10.96.0.1"), Some("6443")).as_deref(), Ok("https://10.96.0.1:6443"));
        assert_eq!(found(Some("fd00::1"), None).as_deref(), Ok("https://[fd00::1]:443"));
        let outside = found(None, Some("443")).unwrap_err();
        assert!(outside.contains("KUBERNETES_SERVICE_HOST is not set"), "{outside}");
        assert!(outside.contains("set discovery.kubernetes_api"), "{outside}");
        assert!(found(Some("a"), Some("tcp://a:1")).is_err_and(|it| it.contains("is not a port")));
    }
}
