//! How routers in front of the same workers find each other, as an operator sets it.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use maitre_peer::seal::ClusterKey;

/// The default port of the mesh.
pub const MESH_PORT: u16 = 7_946;

/// How long a start waits for the snapshots of other routers. Chosen: a cache directory of the largest size takes less
/// than one second on a local network.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct ClusterSettings {
    pub via: Via,
    /// Unique among the routers. If empty: the host name and the port that clients connect to.
    pub name: String,
    /// Keeps routers of different fleets apart that use the same Redis.
    pub group: String,
    /// Shared by all routers. A mesh requires it; with Redis it encrypts every message.
    pub key: Option<ClusterKey>,
    /// How long a starting router waits for the other routers' snapshots before it reports that it is ready.
    pub join_timeout: Duration,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Via {
    /// By its URL, which may hold a password.
    Redis(String),
    Mesh {
        listen: SocketAddr,
        /// The address that other routers connect to, if it differs from `listen`.
        advertise: Option<String>,
        /// `host:port` of some other routers. A host name may resolve to several.
        peers: Vec<String>,
    },
}

impl Via {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Via::Redis(_) => "redis",
            Via::Mesh { .. } => "mesh",
        }
    }
}

/// Without the password.
impl fmt::Debug for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Via::Redis(url) => f.debug_tuple("Redis").field(&masked(url)).finish(),
            Via::Mesh { listen, advertise, peers } => f
                .debug_struct("Mesh")
                .field("listen", listen)
                .field("advertise", advertise)
                .field("peers", peers)
                .finish(),
        }
    }
}

/// A URL without its password.
pub fn masked(url: &str) -> String {
    match parts(url) {
        Some((scheme, user, Some(_), rest)) => format!("{scheme}://{user}:…@{rest}"),
        _ => url.to_owned(),
    }
}

pub fn has_password(url: &str) -> bool {
    matches!(parts(url), Some((_, _, Some(_), _)))
}

/// Scheme, user, password and what follows the `@`; None if the URL has no user.
fn parts(url: &str) -> Option<(&str, &str, Option<&str>, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    // A password may contain an `@` that is not escaped as `%40`.
    let (credentials, _) = authority.rsplit_once('@')?;
    let (user, password) = match credentials.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (credentials, None),
    };
    Some((scheme, user, password, &rest[credentials.len() + 1..]))
}

/// The name that is set; else the host name and the port.
pub(crate) fn name(settings: &ClusterSettings, listen: SocketAddr) -> String {
    if !settings.name.is_empty() {
        return settings.name.clone();
    }
    // Only Linux has this file. Elsewhere, two routers on one machine still differ by their ports.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "maitre" } else { host.trim() };
    format!("{host}:{}", listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, shown: &str) {
        assert_eq!(masked(url), shown);
        assert_eq!(has_password(url), url != shown, "{url}");
        assert_eq!(format!("{:?}", Via::Redis(url.to_owned())), format!("Redis({shown:?})"));
    }

    #[test]
    fn a_password_is_in_no_text() {
        check("redis://:sesame@h:6379/0", "redis://:…@h:6379/0");
        check("rediss://ann:sesame@h/1?x=@", "rediss://ann:…@h/1?x=@");
        check("redis://ann:se@sa:me@h", "redis://ann:…@h");
        check("redis://ann@h:6379", "redis://ann@h:6379");
        check("redis://h:6379/0", "redis://h:6379/0");
        check("nonsense", "nonsense");
    }

    #[test]
    fn a_router_without_a_name_goes_by_its_host_and_port() {
        let via = Via::Redis(String::new());
        let mut settings = ClusterSettings {
            via,
            name: String::new(),
            group: String::new(),
            key: None,
            join_timeout: Duration::ZERO,
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 8_080));
        let made = name(&settings, address);
        assert!(made.ends_with(":8080") && made.len() > 5, "{made}");
        settings.name = "left".to_owned();
        assert_eq!(name(&settings, address), "left");
    }
}
