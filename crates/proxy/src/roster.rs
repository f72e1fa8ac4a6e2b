//! Which workers are in the fleet, and which sources list them: the settings, operators through the admin API, or
//! discovery.
//!
//! Each source lists workers independently of the others. A worker stays as long as any source lists it. After that it
//! is drained and then removed, so that requests in flight there finish.

use std::collections::BTreeMap;
use std::sync::Arc;

use maitre_base::WorkerId;
use maitre_dispatch::{Brain, Event};
use maitre_net::worker_url::WorkerUrl;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tracing::info;

use crate::brain::SharedBrain;
use crate::link::Link;
use crate::settings::SharedSettings;
use crate::watch::Watcher;

/// A source of workers. Where two list the same address, the options of the first one here count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    Settings,
    Operator,
    Discovery,
}

impl By {
    pub(crate) const ALL: [By; 3] = [By::Settings, By::Operator, By::Discovery];
}

pub(crate) struct Roster {
    watcher: Watcher,
    members: Mutex<Members>,
}

#[derive(Default)]
struct Members {
    /// By address: one address is one engine, whatever its options.
    by_address: BTreeMap<String, Member>,
    /// Tasks that watch workers, and tasks that drain them.
    tasks: JoinSet<()>,
}

struct Member {
    worker: WorkerUrl,
    by: Vec<By>,
    /// One, or one for each rank.
    links: Vec<Arc<Link>>,
}

/// A source of discovery, and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryStatus {
    /// As an operator writes it.
    pub name: String,
    pub state: &'static str,
    pub workers: usize,
    /// Why it fails, or what was left out.
    pub note: Option<String>,
}

/// The workers that a new list added and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub added: Vec<String>,
    pub removed: Vec<String>,
}

impl Roster {
    pub(crate) fn new(watcher: Watcher) -> Roster {
        Roster { watcher, members: Mutex::default() }
    }

    /// Sets all workers that `by` lists.
    pub(crate) fn set(&self, by: By, wanted: &[WorkerUrl]) -> Difference {
        let mut difference = Difference::default();
        let mut members = self.members.lock();
        let listed: Vec<String> = wanted.iter().map(|it| it.address.to_string()).collect();
        let unlisted: Vec<String> = members
            .by_address
            .iter()
            .filter(|(address, member)| member.by.contains(&by) && !listed.contains(address))
            .map(|(address, _)| address.clone())
            .collect();
        for address in unlisted {
            difference.removed.extend(self.unlist(&mut members, &address, by));
        }
        for worker in wanted {
            let Some(change) = self.list(&mut members, worker, by) else { continue };
            difference.removed.extend(change.replaced);
            difference.added.push(change.added);
        }
        difference
    }

    /// Adds one worker to those that `by` lists; None if it is in the fleet already.
    pub(crate) fn add(&self, by: By, worker: &WorkerUrl) -> Option<Vec<WorkerId>> {
        let mut members = self.members.lock();
        let address = worker.address.to_string();
        if members.by_address.contains_key(&address) {
            return None;
        }
        self.list(&mut members, worker, by)?;
        let member = members.by_address.get(&address)?;
        Some(member.links.iter().map(|it| it.worker).collect())
    }

    /// Removes the worker of this number, and the other ranks at its address, from every list. Returns the address.
    pub(crate) fn remove(&self, id: WorkerId) -> Option<String> {
        let mut members = self.members.lock();
        let has = |member: &Member| member.links.iter().any(|it| it.worker == id);
        let address = members.by_address.iter().find(|(_, member)| has(member))?.0.clone();
        By::ALL.into_iter().find_map(|by| self.unlist(&mut members, &address, by))
    }

    /// Whether any source lists the worker of this number; if not, it is being drained.
    pub(crate) fn has(&self, id: WorkerId) -> bool {
        let members = self.members.lock();
        members.by_address.values().any(|it| it.links.iter().any(|link| link.worker == id))
    }

    /// Ends all tasks; the workers keep their state.
    pub(crate) fn stop(&self) {
        self.members.lock().tasks.abort_all();
    }

    fn list(&self, members: &mut Members, worker: &WorkerUrl, by: By) -> Option<Listed> {
        let address = worker.address.to_string();
        let (mut replaced, mut listed_by) = (None, vec![by]);
        if let Some(member) = members.by_address.get_mut(&address) {
            if !member.by.contains(&by) {
                member.by.push(by);
            }
            // What an operator wrote counts more than what discovery found.
            let first = member.by.iter().min().copied();
            if member.worker == *worker || first != Some(by) {
                return None;
            }
            // Other ports or ranks than before: the worker is replaced, and stays on every list.
            replaced = members.by_address.remove(&address).map(|it| {
                listed_by = it.by;
                self.drain(members, it.links);
                address.clone()
            });
        }
        let ranks: Vec<Option<u32>> = match worker.options.ranks {
            0 | 1 => vec![None],
            ranks => (0..ranks).map(Some).collect(),
        };
        let links: Vec<Arc<Link>> =
            ranks.into_iter().filter_map(|rank| self.watcher.brain.join(worker, rank)).collect();
        for link in &links {
            members.run(self.watcher.clone().watch(link.clone()));
        }
        members.by_address.insert(address.clone(), Member { worker: worker.clone(), by: listed_by, links });
        Some(Listed { added: address, replaced })
    }

    /// `by` no longer lists this worker. Returns its address if it leaves.
    fn unlist(&self, members: &mut Members, address: &str, by: By) -> Option<String> {
        let member = members.by_address.get_mut(address)?;
        member.by.retain(|&it| it != by);
        if !member.by.is_empty() {
            return None;
        }
        let member = members.by_address.remove(address)?;
        self.drain(members, member.links);
        Some(address.to_owned())
    }

    fn drain(&self, members: &mut Members, links: Vec<Arc<Link>>) {
        for link in links {
            self.watcher.brain.on(Event::WorkerDrained { worker: link.worker, draining: true });
            members.run(drain(self.watcher.brain.clone(), self.watcher.settings.clone(), link));
        }
    }
}

struct Listed {
    added: String,
    /// The same address, with other options.
    replaced: Option<String>,
}

impl Members {
    fn run(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        // Ended tasks are collected here, because nothing else joins them.
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task);
    }
}

/// Waits until a worker has no requests, for the drain timeout at most, and removes it.
async fn drain(brain: Arc<SharedBrain>, settings: Arc<SharedSettings>, link: Arc<Link>) {
    let timeout = settings.load().timeouts.drain;
    let is_idle =
        |brain: &Brain| brain.fleet().worker(link.worker).is_none_or(|it| it.promised.work.requests == 0);
    let drained = tokio::time::timeout(timeout, brain.until(is_idle)).await.is_ok();
    info!(worker = link.url, drained, "worker removed");
    brain.leave(&link);
}
