//! Who is to be in the fleet, and by whose word: the settings', the operator's at the admin API, or what was discovered.
//!
//! Each of them names workers without regard to the others, and a worker stays for as long as anybody names it. One that
//! nobody names any more is drained before it goes, so that what is under way there is finished.

use std::collections::BTreeMap;
use std::sync::Arc;

use maitre_base::WorkerId;
use maitre_dispatch::{Brain, Event};
use maitre_net::worker_url::WorkerUrl;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tracing::info;

use crate::house::RouterState;
use crate::link::Link;
use crate::watch;

/// Who names a worker.
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
    house: Arc<RouterState>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By address: one address is one engine, whatever else is said of it.
    members: BTreeMap<String, Member>,
    /// Those who watch, and those who see others off.
    tasks: JoinSet<()>,
}

struct Member {
    worker: WorkerUrl,
    by: Vec<By>,
    /// One, or one a rank.
    links: Vec<Arc<Link>>,
}

/// A place where workers are found, and how it fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// As an operator writes it.
    pub name: String,
    pub state: &'static str,
    pub workers: usize,
    /// Why it fails, or what of it was left out.
    pub note: Option<String>,
}

/// What a list changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub added: Vec<String>,
    pub removed: Vec<String>,
}

impl Roster {
    pub(crate) fn new(house: Arc<RouterState>) -> Roster {
        Roster { house, state: Mutex::new(State::default()) }
    }

    /// All that `by` names from now on.
    pub(crate) fn set(&self, by: By, wanted: &[WorkerUrl]) -> Difference {
        let mut difference = Difference::default();
        let mut state = self.state.lock();
        let named: Vec<String> = wanted.iter().map(|it| it.address.to_string()).collect();
        let unnamed: Vec<String> = state
            .members
            .iter()
            .filter(|(address, member)| member.by.contains(&by) && !named.contains(address))
            .map(|(address, _)| address.clone())
            .collect();
        for address in unnamed {
            difference.removed.extend(self.unname(&mut state, &address, by));
        }
        for worker in wanted {
            let Some(change) = self.name(&mut state, worker, by) else { continue };
            difference.removed.extend(change.replaced);
            difference.added.push(change.added);
        }
        difference
    }

    /// One more worker that `by` names; none if it was there already.
    pub(crate) fn add(&self, by: By, worker: &WorkerUrl) -> Option<Vec<WorkerId>> {
        let mut state = self.state.lock();
        let address = worker.address.to_string();
        if state.members.contains_key(&address) {
            return None;
        }
        self.name(&mut state, worker, by)?;
        let member = state.members.get(&address)?;
        Some(member.links.iter().map(|it| it.worker).collect())
    }

    /// The worker of this number, and the ranks beside it, are no longer wanted by anybody; its address.
    pub(crate) fn remove(&self, id: WorkerId) -> Option<String> {
        let mut state = self.state.lock();
        let has = |member: &Member| member.links.iter().any(|it| it.worker == id);
        let address = state.members.iter().find(|(_, member)| has(member))?.0.clone();
        By::ALL.into_iter().find_map(|by| self.unname(&mut state, &address, by))
    }

    /// Whether somebody wants the worker of this number: it is not on its way out.
    pub(crate) fn has(&self, id: WorkerId) -> bool {
        let state = self.state.lock();
        state.members.values().any(|it| it.links.iter().any(|link| link.worker == id))
    }

    /// Ends all watching; the workers stay what they are.
    pub(crate) fn stop(&self) {
        self.state.lock().tasks.abort_all();
    }

    fn name(&self, state: &mut State, worker: &WorkerUrl, by: By) -> Option<Named> {
        let address = worker.address.to_string();
        let (mut replaced, mut named_by) = (None, vec![by]);
        if let Some(member) = state.members.get_mut(&address) {
            if !member.by.contains(&by) {
                member.by.push(by);
            }
            // What discovery says of a worker counts no more than what an operator wrote.
            let first = member.by.iter().min().copied();
            if member.worker == *worker || first != Some(by) {
                return None;
            }
            // Other ports or ranks than before: it begins anew, and whoever else names it still does.
            replaced = state.members.remove(&address).map(|it| {
                named_by = it.by;
                self.see_off(state, it.links);
                address.clone()
            });
        }
        let ranks: Vec<Option<u32>> = match worker.ranks {
            0 | 1 => vec![None],
            ranks => (0..ranks).map(Some).collect(),
        };
        let links: Vec<Arc<Link>> =
            ranks.into_iter().filter_map(|rank| self.house.join(worker, rank)).collect();
        for link in &links {
            state.run(watch::watch(self.house.clone(), link.clone()));
        }
        state.members.insert(address.clone(), Member { worker: worker.clone(), by: named_by, links });
        Some(Named { added: address, replaced })
    }

    /// `by` names this one no more; its address, if it goes.
    fn unname(&self, state: &mut State, address: &str, by: By) -> Option<String> {
        let member = state.members.get_mut(address)?;
        member.by.retain(|&it| it != by);
        if !member.by.is_empty() {
            return None;
        }
        let member = state.members.remove(address)?;
        self.see_off(state, member.links);
        Some(address.to_owned())
    }

    fn see_off(&self, state: &mut State, links: Vec<Arc<Link>>) {
        for link in links {
            self.house.on(Event::WorkerDrained { worker: link.worker, draining: true });
            state.run(see_off(self.house.clone(), link));
        }
    }
}

struct Named {
    added: String,
    /// The same address, with other options.
    replaced: Option<String>,
}

impl State {
    fn run(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        // Those that are over are let go here: nobody else asks for them.
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(task);
    }
}

/// Waits for what is under way at a worker, as long as a drain may take, and takes it out.
async fn see_off(house: Arc<RouterState>, link: Arc<Link>) {
    let patience = house.settings().timeouts.drain;
    let is_idle =
        |brain: &Brain| brain.fleet().worker(link.worker).is_none_or(|it| it.promised.work.requests == 0);
    let drained = tokio::time::timeout(patience, house.until(is_idle)).await.is_ok();
    info!(worker = link.url, drained, "worker leaves");
    house.leave(&link);
}
