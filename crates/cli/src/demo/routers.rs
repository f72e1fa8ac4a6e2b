//! The demo's routers: one, or several that share state.
//!
//! Several routers form a mesh on loopback, under a new key. Each knows all engines, and the addresses of the
//! routers started before it. They run in one process but share nothing in it.

use std::time::Duration;

use maitre_peer::seal;
use maitre_policy::Name;
use maitre_proxy::cluster::{self, Via};
use maitre_proxy::{Router, RouterSettings, Secret, secret};
use tokio::task::JoinSet;

use crate::demo::engines::Engines;
use crate::demo::router_thread::RouterThread;
use crate::demo::{ANYWHERE, DemoPlan};

/// Maximum routers. Chosen: more than a machine that also runs the engines can keep busy.
pub(crate) const MOST: u32 = 8;

/// Shadow strategies: evaluated, but not followed.
const SHADOWS: [Name; 3] = [Name::RoundRobin, Name::LeastRequest, Name::CacheAware];

/// The key is new, so no other router can join.
const GROUP: &str = "demo";

pub(crate) struct Routers {
    first: RouterThread,
    others: Vec<RouterThread>,
}

impl Routers {
    pub(crate) async fn start(plan: &DemoPlan, strategy: Name, engines: &Engines) -> anyhow::Result<Routers> {
        let mut settings = settings(plan, strategy, engines)?;
        if plan.routers > 1 {
            settings.cluster = Some(cluster::ClusterSettings {
                via: mesh(Vec::new()),
                name: name(0),
                group: GROUP.to_owned(),
                key: Some(seal::ClusterKey::new(secret::fresh()?.as_bytes())),
                join_timeout: cluster::JOIN_TIMEOUT,
            });
        }
        let usual = plan.live.then(|| settings.clone());
        (settings.listen, settings.admin) = (ANYWHERE, ANYWHERE);
        // The default ports, so that a curl from the docs works; other ports if these are taken.
        let tries = usual.into_iter().chain([settings.clone()]).collect();
        let mut routers = Routers { first: RouterThread::start(&name(0), tries).await?, others: Vec::new() };
        for number in 1..plan.routers {
            // With the same seed all routers would make the same mistakes at the same time.
            settings.brain.seed = plan.seed.wrapping_add(number as u64);
            if let Some(cluster) = &mut settings.cluster {
                let peers = routers.all().filter_map(Router::mesh).map(|it| it.to_string());
                (cluster.via, cluster.name) = (mesh(peers.collect()), name(number));
            }
            routers.others.push(RouterThread::start(&name(number), vec![settings.clone()]).await?);
        }
        Ok(routers)
    }

    /// The router whose page and table are shown.
    pub(crate) fn first(&self) -> &Router {
        &self.first.router
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Router> {
        std::iter::once(&self.first).chain(&self.others).map(|it| &it.router)
    }

    /// One line per router, with the URL of its page.
    pub(crate) fn pages(&self, key: &str) -> String {
        let line = |(number, router): (usize, &Router)| {
            let of = if number == 0 { String::new() } else { format!(" of {}", name(number)) };
            format!("page{of} http://{}/#key={key}\n", router.admin())
        };
        self.all().enumerate().map(line).collect()
    }

    pub(crate) async fn until_all_ready(&self) {
        for router in self.all() {
            router.until_all_ready().await;
        }
    }

    /// Stops all at once, so that it takes no longer than one.
    pub(crate) async fn stop(self) {
        let mut stops = JoinSet::new();
        for router in std::iter::once(self.first).chain(self.others) {
            stops.spawn(router.stop());
        }
        stops.join_all().await;
    }
}

fn name(number: usize) -> String {
    format!("router-{}", number + 1)
}

fn mesh(peers: Vec<String>) -> Via {
    Via::Mesh { listen: ANYWHERE, advertise: None, peers }
}

fn settings(plan: &DemoPlan, strategy: Name, engines: &Engines) -> anyhow::Result<RouterSettings> {
    let workers = engines.addresses.iter().map(|it| format!("http://{it}").parse());
    let workers = workers.collect::<Result<_, _>>()?;
    let admin_key = Some(Secret::of(plan.key.as_bytes()));
    let mut settings = RouterSettings { workers, admin_key, threads: 1, ..RouterSettings::default() };
    settings.brain.strategy = strategy;
    // So that the page can show what other strategies would have done.
    settings.brain.shadows = SHADOWS.into_iter().filter(|&it| it != strategy).collect();
    settings.brain.seed = plan.seed;
    settings.timeouts.drain = Duration::from_secs(1);
    Ok(settings)
}
