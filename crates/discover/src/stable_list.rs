//! The workers of one source, smoothed: a short fault of a source must not become a fault of the fleet.
//!
//! Keeping a worker that is gone costs a failed probe or two, because the router checks the health of each
//! itself. Dropping one that is there costs its cache; dropping all costs the service. So a new worker is
//! accepted at once and a missing one is dropped after a delay:
//!
//! - A worker missing from a report that names others is gone after `gone_after`.
//! - If a report is empty, or is partial and would lose more than half, the workers it leaves out are held for
//!   `empty_after`.
//! - A worker that a source knows to be deleted or terminating (`ReportedWorkers::Census`) is gone at once.
//! - A failure changes nothing.
//!
//! Pure: `now` is a parameter, and time passes by `expire`.

use std::collections::BTreeMap;
use std::time::Duration;

use maitre_base::Instant;
use maitre_net::address::Address;
use maitre_net::worker_url::WorkerUrl;

use crate::report::{ReportedWorkers, SourceReport};
use crate::settings::{Grace, WORKERS_MAX};

#[derive(Clone, Debug)]
pub(crate) struct StableList {
    grace: Grace,
    /// By address.
    known: BTreeMap<Address, KnownWorker>,
    last_report: Option<LastReport>,
    answered: Option<Instant>,
    note: Option<String>,
}

#[derive(Clone, Debug)]
struct KnownWorker {
    url: WorkerUrl,
    presence: Presence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Present,
    Missing { since: Instant },
    Held { since: Instant },
}

/// What the last report was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastReport {
    Workers,
    Failure,
}

type ByAddress = BTreeMap<Address, WorkerUrl>;

impl StableList {
    pub(crate) fn new(grace: Grace) -> StableList {
        StableList { grace, known: BTreeMap::new(), last_report: None, answered: None, note: None }
    }

    /// Applies a report. A list over the limit is a failure: half a list would be wrong.
    pub(crate) fn apply(&mut self, now: Instant, report: SourceReport) {
        self.expire(now);
        let SourceReport { workers: reported, note } = report;
        let length = match &reported {
            ReportedWorkers::List(workers) | ReportedWorkers::Partial(workers) => workers.len(),
            ReportedWorkers::Census { ready, unready } => ready.len() + unready.len(),
            ReportedWorkers::Failure => 0,
        };
        let (reported, note) = match length > WORKERS_MAX {
            true => (
                ReportedWorkers::Failure,
                Some(format!("has {length} workers; at most {WORKERS_MAX} are taken")),
            ),
            false => (reported, note),
        };
        self.note = note;
        let (list, is_doubtful) = match reported {
            ReportedWorkers::Failure => {
                self.last_report = Some(LastReport::Failure);
                return;
            }
            ReportedWorkers::List(workers) => {
                let list = by_address(workers);
                let is_empty = list.is_empty();
                (list, is_empty)
            }
            ReportedWorkers::Partial(workers) => {
                let list = by_address(workers);
                let lost = self.lost(&list);
                (list, lost)
            }
            ReportedWorkers::Census { ready, unready } => {
                let (ready, unready) = (by_address(ready), by_address(unready));
                self.known.retain(|address, _| ready.contains_key(address) || unready.contains_key(address));
                let is_empty = ready.is_empty();
                (ready, is_empty)
            }
        };
        self.last_report = Some(LastReport::Workers);
        self.answered = Some(now);
        self.take(now, list, is_doubtful);
        self.expire(now);
    }

    /// Whether the list lacks more than half of the workers that are not yet missing.
    fn lost(&self, list: &ByAddress) -> bool {
        let there = self.known.iter().filter(|it| !matches!(it.1.presence, Presence::Missing { .. }));
        let (all, present) = there.fold((0, 0), |(all, present), (address, _)| {
            (all + 1, present + usize::from(list.contains_key(address)))
        });
        2 * present < all
    }

    fn take(&mut self, now: Instant, list: ByAddress, is_doubtful: bool) {
        for (address, known) in &mut self.known {
            if !list.contains_key(address) {
                known.presence = match (known.presence, is_doubtful) {
                    (Presence::Present, true) => Presence::Held { since: now },
                    (Presence::Present | Presence::Held { .. }, false) => Presence::Missing { since: now },
                    (presence, _) => presence,
                };
            }
        }
        let here = list
            .into_iter()
            .map(|(address, url)| (address, KnownWorker { url, presence: Presence::Present }));
        self.known.extend(here);
    }

    /// Drops the workers whose delay has passed.
    pub(crate) fn expire(&mut self, now: Instant) {
        let grace = self.grace;
        self.known.retain(|_, known| known.presence.until(grace).is_none_or(|until| now < until));
    }

    /// When `expire` will next drop a worker.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.known.values().filter_map(|it| it.presence.until(self.grace)).min()
    }

    /// Sorted by address.
    pub(crate) fn workers(&self) -> impl Iterator<Item = &WorkerUrl> {
        self.known.values().map(|it| &it.url)
    }

    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// How many workers are held although the last report left them out.
    pub(crate) fn held(&self) -> usize {
        self.known.values().filter(|it| matches!(it.presence, Presence::Held { .. })).count()
    }

    pub(crate) fn last_report(&self) -> Option<LastReport> {
        self.last_report
    }

    /// When the source last reported workers.
    pub(crate) fn answered(&self) -> Option<Instant> {
        self.answered
    }

    pub(crate) fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

impl Presence {
    /// When it is dropped; none: never.
    fn until(self, grace: Grace) -> Option<Instant> {
        match self {
            Presence::Present => None,
            Presence::Missing { since } => Some(since + grace.gone_after),
            Presence::Held { .. } if grace.empty_after == Duration::ZERO => None,
            Presence::Held { since } => Some(since + grace.empty_after),
        }
    }
}

/// If a worker is named twice, the first counts.
fn by_address(workers: Vec<WorkerUrl>) -> ByAddress {
    workers.into_iter().rev().map(|it| (it.address.clone(), it)).collect()
}

#[cfg(test)]
mod tests;
