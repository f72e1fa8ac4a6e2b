//! How sources are followed, and how long a missing worker is kept.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::api_address::ApiAddress;

/// Maximum workers of one source; a longer list is an error. Chosen: more than the brain is measured with.
pub const WORKERS_MAX: usize = 4_096;
/// Maximum sources.
pub const SOURCES_MAX: usize = 64;

#[derive(Clone, Debug)]
pub struct DiscoverySettings {
    pub grace: Grace,
    /// How often a file is read even without a notification: some file systems send none.
    pub reread: Duration,
    pub dns: DnsSettings,
    pub kubernetes: KubernetesSettings,
    /// The seed of the jitter that keeps routers from querying in step.
    pub seed: u64,
}

/// How long a worker is kept after its source stops naming it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    /// If the source still names others.
    pub gone_after: Duration,
    /// If the source suddenly names none, or a partial answer lost most of them. Zero: for ever.
    pub empty_after: Duration,
}

#[derive(Clone, Debug)]
pub struct DnsSettings {
    /// Empty: the system's servers, with its search list.
    pub servers: Vec<SocketAddr>,
    /// Minimum and maximum time between two queries, whatever the records say.
    pub ttl_min: Duration,
    pub ttl_max: Duration,
    /// For one attempt at one server; there are two attempts.
    pub timeout: Duration,
}

#[derive(Clone, Debug)]
pub struct KubernetesSettings {
    /// None: the cluster we run in, according to its environment.
    pub api: Option<ApiAddress>,
    /// The folder with `token`, `ca.crt` and `namespace`.
    pub account: PathBuf,
    /// To connect, and for each response that is not a watch.
    pub timeout: Duration,
    /// Duration of one watch. A watch that has not ended by then plus `timeout` has hung.
    pub watch: Duration,
    /// The first and the longest delay after failures.
    pub retry_min: Duration,
    pub retry_max: Duration,
}

impl Default for DiscoverySettings {
    fn default() -> DiscoverySettings {
        DiscoverySettings {
            grace: Grace::default(),
            reread: Duration::from_secs(30),
            dns: DnsSettings::default(),
            kubernetes: KubernetesSettings::default(),
            seed: 0,
        }
    }
}

impl Default for Grace {
    fn default() -> Grace {
        Grace { gone_after: Duration::from_secs(5), empty_after: Duration::from_secs(300) }
    }
}

impl Default for DnsSettings {
    fn default() -> DnsSettings {
        DnsSettings {
            servers: Vec::new(),
            // Kubernetes' own records live for 5 s, others often for minutes, which is long for a fleet.
            ttl_min: Duration::from_secs(1),
            ttl_max: Duration::from_secs(30),
            timeout: Duration::from_secs(2),
        }
    }
}

impl Default for KubernetesSettings {
    fn default() -> KubernetesSettings {
        KubernetesSettings {
            api: None,
            account: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount"),
            timeout: Duration::from_secs(10),
            // Other clients watch for five minutes; with one minute a silently dead watch is noticed sooner,
            // for one small request a minute.
            watch: Duration::from_secs(60),
            retry_min: Duration::from_millis(200),
            retry_max: Duration::from_secs(30),
        }
    }
}
