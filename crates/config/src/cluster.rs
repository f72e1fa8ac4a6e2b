//! Other routers, until all sources are read: how this router finds them, and what they share.
//!
//! The key is kept with the other secrets. The URL of a Redis may hold a password; then it is shown nowhere.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use maitre_peer::redis::url;
use maitre_peer::seal::ClusterKey;
use maitre_proxy::cluster::{self, JOIN_TIMEOUT, MESH_PORT, has_password};

use crate::error::Conflict;
use crate::form::{Custom, Secrecy, Word};
use crate::secrets::{Hidden, SaltBy};
use crate::{Config, collide};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterSettings {
    pub(crate) via: Via,
    pub(crate) peers: Vec<String>,
    pub(crate) listen: SocketAddr,
    pub(crate) advertise: Option<String>,
    pub(crate) name: String,
    pub(crate) group: String,
    pub(crate) join_timeout: Duration,
    /// The key, from the settings or from its file.
    pub(crate) secret: Option<Hidden>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Via {
    #[default]
    Off,
    Mesh,
    Redis(Hidden),
}

pub(crate) const VIA: Custom<Via> = Custom {
    name: "VIA",
    read: read_via,
    show: |via| match via {
        Via::Off => "off".to_owned(),
        Via::Mesh => "mesh".to_owned(),
        Via::Redis(Hidden(url)) => cluster::masked(url),
    },
    secrecy: |via| match via {
        Via::Redis(Hidden(url)) if has_password(url) => Secrecy::Hidden,
        _ => Secrecy::Public,
    },
};

/// A host, by name or address, and a port. A DNS name has at most 253 bytes.
pub(crate) const HOST_PORT: Word = Word {
    name: "HOST:PORT",
    is_valid: |text| text.len() <= 260 && is_host_and_port(text),
    wrong: "is not a host and a port; write \"10.0.0.7:7946\" or \"[::1]:7946\"",
};

/// The name of a router or of a group of them; it may be empty. The cluster protocol carries 128 bytes.
pub(crate) const ROUTER_NAME: Word = Word {
    name: "NAME",
    is_valid: |text| {
        let is_letter = |it: char| it.is_ascii_alphanumeric() || "-_.:".contains(it);
        text.len() <= 128 && text.chars().all(is_letter)
    },
    wrong: "is not a name for routers; write up to 128 letters, digits and -_.: as in \"router-1\"",
};

impl Default for ClusterSettings {
    fn default() -> ClusterSettings {
        ClusterSettings {
            via: Via::Off,
            peers: Vec::new(),
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, MESH_PORT)),
            advertise: None,
            name: String::new(),
            group: "maitre".to_owned(),
            join_timeout: JOIN_TIMEOUT,
            secret: None,
        }
    }
}

/// Puts what was read into the settings. After `secrets::resolve`, which reads the key.
pub(crate) fn resolve(config: &mut Config) -> Vec<Conflict> {
    let own = &config.cluster;
    let has_key = config.secrets.cluster_key.is_some() || config.secrets.cluster_key_file.is_some();
    let mut conflicts = Vec::new();
    let what = match &own.via {
        _ if own.peers.is_empty() => None,
        Via::Mesh => None,
        Via::Off => Some("names other routers, and cluster.via is off; set cluster.via = \"mesh\""),
        Via::Redis(_) => Some(
            "applies to a mesh only; through Redis routers find each other. Leave it out, or set \
             cluster.via = \"mesh\"",
        ),
    };
    conflicts.extend(what.map(|it| Conflict::new(&["cluster.peers"], it)));
    // A key that was set and could not be read is an error already.
    if own.via == Via::Mesh && !has_key {
        let what = "a mesh of routers needs a key that all of them share; set cluster.key or cluster.key_file \
                    (`maitre key` makes one)";
        conflicts.push(Conflict::new(&["cluster.via"], what));
    }
    let via = match own.via.clone() {
        Via::Off => None,
        Via::Redis(Hidden(url)) => Some(cluster::Via::Redis(url)),
        Via::Mesh => Some(cluster::Via::Mesh {
            listen: own.listen,
            advertise: own.advertise.clone(),
            peers: own.peers.clone(),
        }),
    };
    config.settings.cluster = via.map(|via| cluster::ClusterSettings {
        via,
        name: own.name.clone(),
        group: own.group.clone(),
        key: own.secret.as_ref().map(|it| ClusterKey::new(it.0.as_bytes())),
        join_timeout: own.join_timeout,
    });
    let secrets = &config.secrets;
    let is_drawn = secrets.salt_secret.is_none() && secrets.salt_secret_file.is_none();
    if config.settings.cluster.is_some() && secrets.salt_by == SaltBy::Tenant && is_drawn {
        let what = "salt.by: without salt.secret each router has its own salts, and none can use what another has cached";
        config.warnings.push(what.to_owned());
    }
    conflicts
}

pub(crate) fn conflicts(config: &Config) -> Vec<Conflict> {
    let (own, settings) = (&config.cluster, &config.settings);
    let mut conflicts = Vec::new();
    for (key, address) in [("listen", settings.listen), ("admin", settings.admin)] {
        if own.via == Via::Mesh && collide(own.listen, address) {
            let what = format!("cluster.listen {} and {key} {address} collide; use two ports", own.listen);
            conflicts.push(Conflict::new(&["cluster.listen", key, "cluster.via"], what));
        }
    }
    conflicts
}

/// No error repeats a URL: it may hold a password.
fn read_via(text: &str) -> Result<Via, String> {
    match text {
        "off" | "" => Ok(Via::Off),
        "mesh" => Ok(Via::Mesh),
        url if url.contains("://") => match url::check(url) {
            Ok(()) => Ok(Via::Redis(Hidden(url.to_owned()))),
            Err(bad) => Err(format!("is {bad}")),
        },
        _ => Err(format!("{text:?} is unknown; write off, mesh or \"redis://host:6379\"")),
    }
}

fn is_host_and_port(text: &str) -> bool {
    let is_port = |it: &str| it.parse::<u16>().is_ok_and(|it| it > 0);
    let is_letter = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let (is_host, rest) = match text.strip_prefix('[').and_then(|it| it.split_once(']')) {
        Some((host, rest)) => (host.parse::<Ipv6Addr>().is_ok(), rest),
        None => {
            let end = text.find(':').unwrap_or(text.len());
            (end > 0 && text[..end].chars().all(is_letter), &text[end..])
        }
    };
    is_host && rest.strip_prefix(':').is_some_and(is_port)
}

#[cfg(test)]
mod tests;
