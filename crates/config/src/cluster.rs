//! Other routers, until all sources are read: how they are found, and what they share.
//!
//! The key stands where all secrets do. A URL of Redis may hold a password, and so is in no message and on no page once
//! it does.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use maitre_peer::redis::url;
use maitre_peer::seal::ClusterKey;
use maitre_proxy::cluster::{self, MESH_PORT, WAIT, has_password};

use super::secrets::{Hidden, SaltBy};
use super::{Config, collide};

/// What is wrong between values that are right by themselves, and the knobs it can be mended at.
type Wrong = Vec<(Vec<&'static str>, String)>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) via: Via,
    pub(super) peers: Vec<String>,
    pub(super) listen: SocketAddr,
    pub(super) advertise: Option<String>,
    pub(super) name: String,
    pub(super) group: String,
    pub(super) wait: Duration,
    /// The key, wherever it stood.
    pub(super) secret: Option<Hidden>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Via {
    #[default]
    Off,
    Mesh,
    Redis(Hidden),
}

impl Via {
    /// Whether it is not for showing.
    pub(super) fn hides(&self) -> bool {
        matches!(self, Via::Redis(Hidden(url)) if has_password(url))
    }
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted {
            via: Via::Off,
            peers: Vec::new(),
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, MESH_PORT)),
            advertise: None,
            name: String::new(),
            group: "maitre".to_owned(),
            wait: WAIT,
            secret: None,
        }
    }
}

/// What the settings say of other routers. After `secrets::settle`, which reads the key.
pub(super) fn settle(config: &mut Config) -> Wrong {
    let wanted = &config.cluster;
    let has_key = config.secrets.cluster_key.is_some() || config.secrets.cluster_key_file.is_some();
    let mut wrong = Vec::new();
    let told = match &wanted.via {
        _ if wanted.peers.is_empty() => None,
        Via::Mesh => None,
        Via::Off => Some("names other routers, and cluster.via is off; set cluster.via = \"mesh\""),
        Via::Redis(_) => Some(
            "is for a mesh, and through Redis routers find each other; leave it out, or set cluster.via = \"mesh\"",
        ),
    };
    wrong.extend(told.map(|it| (vec!["cluster.peers"], it.to_owned())));
    // One that was set and could not be read has been told already.
    if wanted.via == Via::Mesh && !has_key {
        let what = "a mesh of routers needs a key that all of them share; set cluster.key or cluster.key_file \
                    (`maitre key` makes one)";
        wrong.push((vec!["cluster.via"], what.to_owned()));
    }
    let via = match wanted.via.clone() {
        Via::Off => None,
        Via::Redis(Hidden(url)) => Some(cluster::Via::Redis(url)),
        Via::Mesh => Some(cluster::Via::Mesh {
            listen: wanted.listen,
            advertise: wanted.advertise.clone(),
            peers: wanted.peers.clone(),
        }),
    };
    config.settings.cluster = via.map(|via| cluster::Settings {
        via,
        name: wanted.name.clone(),
        group: wanted.group.clone(),
        key: wanted.secret.as_ref().map(|it| ClusterKey::new(it.0.as_bytes())),
        wait: wanted.wait,
    });
    let salts = &config.secrets;
    let is_rolled = salts.salt_secret.is_none() && salts.salt_secret_file.is_none();
    if config.settings.cluster.is_some() && salts.salt_by == SaltBy::Tenant && is_rolled {
        let what = "salt.by: without salt.secret each router has its own salts, and none can use what another warmed";
        config.warnings.push(what.to_owned());
    }
    wrong
}

pub(super) fn conflicts(config: &Config) -> Wrong {
    let (wanted, settings) = (&config.cluster, &config.settings);
    let mut wrong = Vec::new();
    for (key, address) in [("listen", settings.listen), ("admin", settings.admin)] {
        if wanted.via == Via::Mesh && collide(wanted.listen, address) {
            let what = format!("cluster.listen {} and {key} {address} collide; use two ports", wanted.listen);
            wrong.push((vec!["cluster.listen", key, "cluster.via"], what));
        }
    }
    wrong
}

/// Keys that differ though they are shown alike, since what they hold is not shown.
pub(super) fn changed(old: &Config, new: &Config) -> impl Iterator<Item = &'static str> {
    let via = old.cluster.via != new.cluster.via && new.cluster.via.hides();
    let key = old.cluster.secret != new.cluster.secret;
    let key_knob = if new.secrets.cluster_key_file.is_some() { "cluster.key_file" } else { "cluster.key" };
    [("cluster.via", via), (key_knob, key)].into_iter().filter(|it| it.1).map(|it| it.0)
}

/// All of it stays as it was: routers do not change how they speak while they do.
pub(super) fn keep(old: &Config, new: &mut Config) {
    new.cluster = old.cluster.clone();
    new.secrets.cluster_key.clone_from(&old.secrets.cluster_key);
    new.secrets.cluster_key_file.clone_from(&old.secrets.cluster_key_file);
    new.settings.cluster.clone_from(&old.settings.cluster);
}

/// How routers reach each other. Of a URL that is wrong nothing is repeated: it may hold a password.
pub(super) fn via(text: &str) -> Result<Via, String> {
    match text {
        "off" | "" => Ok(Via::Off),
        "mesh" => Ok(Via::Mesh),
        url if url.contains("://") => match url::check(url) {
            Ok(()) => Ok(Via::Redis(Hidden(url.to_owned()))),
            Err(bad) => Err(format!("is {bad}")),
        },
        _ => Err(format!("{text:?} is no way to other routers; write off, mesh or \"redis://host:6379\"")),
    }
}

pub(super) fn show_via(via: &Via) -> String {
    match via {
        Via::Off => "off".to_owned(),
        Via::Mesh => "mesh".to_owned(),
        Via::Redis(Hidden(url)) => cluster::masked(url),
    }
}

/// A host, by name or address, and a port.
fn is_address(text: &str) -> bool {
    let is_port = |it: &str| it.parse::<u16>().is_ok_and(|it| it > 0);
    let is_letter = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let (is_host, rest) = match text.strip_prefix('[').and_then(|it| it.split_once(']')) {
        Some((host, rest)) => (host.parse::<std::net::Ipv6Addr>().is_ok(), rest),
        None => {
            let end = text.find(':').unwrap_or(text.len());
            (end > 0 && text[..end].chars().all(is_letter), &text[end..])
        }
    };
    is_host && rest.strip_prefix(':').is_some_and(is_port)
}

/// The longest address of a router. Names in the domain system have 253 letters at the most.
const ADDRESS_BYTES_MAX: usize = 260;

pub(super) fn address(text: &str) -> Result<String, String> {
    match text.len() <= ADDRESS_BYTES_MAX && is_address(text) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{text:?} is no host and port; write \"10.0.0.7:{MESH_PORT}\" or \"[::1]:{MESH_PORT}\""
        )),
    }
}

/// None if there is nothing.
pub(super) fn some_address(text: &str) -> Result<Option<String>, String> {
    if text.is_empty() { Ok(None) } else { address(text).map(Some) }
}

/// As long as routers tell each other.
const NAME_BYTES_MAX: usize = 128;

/// A name for a router or for a group of them; it may be empty.
pub(super) fn name(text: &str) -> Result<String, String> {
    let is_letter = |it: char| it.is_ascii_alphanumeric() || "-_.:".contains(it);
    match text.len() <= NAME_BYTES_MAX && text.chars().all(is_letter) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{text:?} is no name for routers; write up to {NAME_BYTES_MAX} letters, digits and -_.: as in \"router-1\""
        )),
    }
}

#[cfg(test)]
mod tests;
