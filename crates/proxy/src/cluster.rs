//! Other routers in front of the same fleet: what they know goes into our brain, and what ours does goes to them.
//!
//! Three parts that know nothing of each other meet here. The brain says what it did and takes what others say; the
//! node (`maitre_cluster`) turns that into rows and frames and back; the line (`maitre_peer`) carries frames. The driver
//! is one task that moves things between them, and decides nothing: were it to stop, each router would go on by itself.

mod batch;
mod driver;
mod refusals;
mod seen;
mod shares;

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use maitre_peer::seal::ClusterKey;
use maitre_peer::{Transport, mesh, redis};
use tokio::task::{AbortHandle, JoinHandle};
use tracing::info;

use crate::house::RouterState;
use driver::Driver;

pub(crate) use refusals::Cause;
pub(crate) use seen::{Router, Seen, Shown};

/// Where the mesh listens unless somebody says otherwise.
pub const MESH_PORT: u16 = 7_946;

/// How long a start waits for what others know. Chosen: a book of prefixes as large as it may be takes less than one
/// second on a local network.
pub const WAIT: Duration = Duration::from_secs(3);

/// How long a stop waits until the others know. Chosen: they find out by themselves a little later.
const BYE_PATIENCE: Duration = Duration::from_secs(1);

/// How routers of one fleet find each other.
#[derive(Clone, Debug)]
pub struct Settings {
    pub via: Via,
    /// Unlike that of any other router; if empty, the host's name and the port that clients connect to.
    pub name: String,
    /// Routers of other fleets may use the same Redis under another name.
    pub group: String,
    /// What all of them share. A mesh has none without it; what goes through Redis is sealed with it.
    pub key: Option<ClusterKey>,
    /// How long a start is not ready while others tell what they know.
    pub wait: Duration,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Via {
    /// By its URL, which may hold a password.
    Redis(String),
    Mesh {
        listen: SocketAddr,
        /// What others reach us at, if it is not where we listen.
        advertise: Option<String>,
        /// `host:port` of some others; a host may stand for several.
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

/// A URL with its password, if it has one, left out.
pub fn masked(url: &str) -> String {
    match parts(url) {
        Some((scheme, user, Some(_), rest)) => format!("{scheme}://{user}:…@{rest}"),
        _ => url.to_owned(),
    }
}

pub fn has_password(url: &str) -> bool {
    matches!(parts(url), Some((_, _, Some(_), _)))
}

/// Scheme, user, password and what follows the `@`; none if nobody is named.
fn parts(url: &str) -> Option<(&str, &str, Option<&str>, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    // A password may hold an `@` that nobody wrote as `%40`.
    let (who, _) = authority.rsplit_once('@')?;
    let (user, password) = match who.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (who, None),
    };
    Some((scheme, user, password, &rest[who.len() + 1..]))
}

/// The name of a router that was given none.
pub(crate) fn name(settings: &Settings, listen: SocketAddr) -> String {
    if !settings.name.is_empty() {
        return settings.name.clone();
    }
    // Linux's own word for it; elsewhere, two on one machine still differ by their ports.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "maitre" } else { host.trim() };
    format!("{host}:{}", listen.port())
}

#[derive(Debug, thiserror::Error)]
pub enum NotJoined {
    /// Says itself what was done, and at which address.
    #[error("{0}")]
    Mesh(io::Error),
    #[error("a mesh of routers needs a key that all of them share; set cluster.key (`maitre key` makes one)")]
    NoKey,
}

/// Our part among the others, as a running router has it.
pub(crate) struct Member {
    /// Where others reach us, in a mesh.
    pub(crate) address: Option<SocketAddr>,
    seen: Arc<Seen>,
    driver: JoinHandle<()>,
    transport: AbortHandle,
}

impl Member {
    /// Begins to tell and to hear. The house was made with the same settings.
    pub(crate) async fn join(
        house: &Arc<RouterState>,
        seen: Arc<Seen>,
        settings: Settings,
    ) -> Result<Member, NotJoined> {
        match settings.via {
            Via::Redis(url) => {
                let (group, name, key) = (settings.group, seen.name.clone(), settings.key);
                info!(name, group, via = "redis", "joining the other routers");
                let (line, transport) = redis::connect(redis::RedisConfig { url, group, name, key });
                let driver = Driver::new(house.clone(), seen.clone(), line, settings.wait);
                Ok(Member::run(seen, None, driver, transport))
            }
            Via::Mesh { listen, advertise, peers } => {
                let (name, key) = (seen.name.clone(), settings.key.ok_or(NotJoined::NoKey)?);
                let mesh = mesh::MeshConfig { listen, advertise, peers, name, key };
                let (line, address, transport): (Transport, _, _) =
                    mesh::join(mesh).await.map_err(NotJoined::Mesh)?;
                info!(name = seen.name, listen = %address, via = "mesh", "joining the other routers");
                let driver = Driver::new(house.clone(), seen.clone(), line, settings.wait);
                Ok(Member::run(seen, Some(address), driver, transport))
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the router's own tasks, ended when it stops")]
    fn run(
        seen: Arc<Seen>,
        address: Option<SocketAddr>,
        driver: Driver,
        transport: impl Future<Output = ()> + Send + 'static,
    ) -> Member {
        let transport = tokio::spawn(transport);
        let abort = transport.abort_handle();
        let driver = tokio::spawn(async move {
            driver.run().await;
            // The driver's end of the line is gone: what was given to the transport goes out, and it ends.
            let _ = transport.await;
        });
        Member { address, seen, driver, transport: abort }
    }

    /// Tells the others that we go, if they can be told.
    pub(crate) async fn leave(mut self) {
        self.seen.leave();
        if tokio::time::timeout(BYE_PATIENCE, &mut self.driver).await.is_err() {
            self.driver.abort();
        }
        self.transport.abort();
    }
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
        let mut settings =
            Settings { via, name: String::new(), group: String::new(), key: None, wait: Duration::ZERO };
        let address = SocketAddr::from(([127, 0, 0, 1], 8_080));
        let made = name(&settings, address);
        assert!(made.ends_with(":8080") && made.len() > 5, "{made}");
        settings.name = "left".to_owned();
        assert_eq!(name(&settings, address), "left");
    }
}
