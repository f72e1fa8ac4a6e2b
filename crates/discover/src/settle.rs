//! What one source says, settled: hiccups of a source are not hiccups of the fleet.
//!
//! To keep a worker that is gone costs a failed probe or two, since the router looks after the health of each
//! itself; to drop one that is there costs its cache, and to drop them all costs the service. So newcomers are
//! believed at once, and absence only after a while:
//!
//! - Who is missing from an answer that names others is missing for `gone_after`, then gone.
//! - If an answer names nobody, or is incomplete and would cost more than half, those it leaves out are held
//!   for `empty_after`.
//! - Who has been deleted or is ending, by the word of a source that knows (`Heard::Census`), is gone at once.
//! - A failure says nothing about workers and changes nothing.
//!
//! Pure: `now` is a parameter, and time passes by `pass`.

use std::collections::BTreeMap;
use std::time::Duration;

use maitre_base::Instant;
use maitre_net::address::Address;
use maitre_net::worker_url::WorkerUrl;

use crate::settings::{Grace, WORKERS_MAX};
use crate::tell::{Answer, Heard};

#[derive(Clone, Debug)]
pub(crate) struct Settle {
    grace: Grace,
    /// By address.
    known: BTreeMap<Address, Known>,
    heard: Option<LastHeard>,
    answered: Option<Instant>,
    note: Option<String>,
}

#[derive(Clone, Debug)]
struct Known {
    url: WorkerUrl,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Here,
    Missing { since: Instant },
    Held { since: Instant },
}

/// What the last answer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastHeard {
    Workers,
    Failure,
}

type ByAddress = BTreeMap<Address, WorkerUrl>;

impl Settle {
    pub(crate) fn new(grace: Grace) -> Settle {
        Settle { grace, known: BTreeMap::new(), heard: None, answered: None, note: None }
    }

    /// Takes an answer in. A list that is too long is a failure: half a list would be a lie.
    pub(crate) fn hear(&mut self, now: Instant, answer: Answer) {
        self.pass(now);
        let Answer { heard, note } = answer;
        let length = match &heard {
            Heard::List(workers) | Heard::Part(workers) => workers.len(),
            Heard::Census { ready, unready } => ready.len() + unready.len(),
            Heard::Failure => 0,
        };
        let (heard, note) = match length > WORKERS_MAX {
            true => (Heard::Failure, Some(format!("has {length} workers; at most {WORKERS_MAX} are taken"))),
            false => (heard, note),
        };
        self.note = note;
        let (list, is_doubtful) = match heard {
            Heard::Failure => {
                self.heard = Some(LastHeard::Failure);
                return;
            }
            Heard::List(workers) => {
                let list = by_address(workers);
                let is_empty = list.is_empty();
                (list, is_empty)
            }
            Heard::Part(workers) => {
                let list = by_address(workers);
                let lost = self.lost(&list);
                (list, lost)
            }
            Heard::Census { ready, unready } => {
                let (ready, unready) = (by_address(ready), by_address(unready));
                self.known.retain(|address, _| ready.contains_key(address) || unready.contains_key(address));
                let is_empty = ready.is_empty();
                (ready, is_empty)
            }
        };
        self.heard = Some(LastHeard::Workers);
        self.answered = Some(now);
        self.take(now, list, is_doubtful);
        self.pass(now);
    }

    /// Whether more than half of those who count as there are not in the list.
    fn lost(&self, list: &ByAddress) -> bool {
        let there = self.known.iter().filter(|it| !matches!(it.1.standing, Standing::Missing { .. }));
        let (all, present) = there.fold((0, 0), |(all, present), (address, _)| {
            (all + 1, present + usize::from(list.contains_key(address)))
        });
        2 * present < all
    }

    fn take(&mut self, now: Instant, list: ByAddress, is_doubtful: bool) {
        for (address, known) in &mut self.known {
            if !list.contains_key(address) {
                known.standing = match (known.standing, is_doubtful) {
                    (Standing::Here, true) => Standing::Held { since: now },
                    (Standing::Here | Standing::Held { .. }, false) => Standing::Missing { since: now },
                    (standing, _) => standing,
                };
            }
        }
        let here = list.into_iter().map(|(address, url)| (address, Known { url, standing: Standing::Here }));
        self.known.extend(here);
    }

    /// Lets go of those whose time is up.
    pub(crate) fn pass(&mut self, now: Instant) {
        let grace = self.grace;
        self.known.retain(|_, known| known.standing.until(grace).is_none_or(|until| now < until));
    }

    /// When `pass` will next let somebody go.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.known.values().filter_map(|it| it.standing.until(self.grace)).min()
    }

    /// In order of their addresses.
    pub(crate) fn workers(&self) -> impl Iterator<Item = &WorkerUrl> {
        self.known.values().map(|it| &it.url)
    }

    pub(crate) fn count(&self) -> usize {
        self.known.len()
    }

    /// How many are held though the last answer left them out.
    pub(crate) fn held(&self) -> usize {
        self.known.values().filter(|it| matches!(it.standing, Standing::Held { .. })).count()
    }

    pub(crate) fn heard(&self) -> Option<LastHeard> {
        self.heard
    }

    /// When it last said anything about workers.
    pub(crate) fn answered(&self) -> Option<Instant> {
        self.answered
    }

    pub(crate) fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

impl Standing {
    /// None: as long as nobody says otherwise.
    fn until(self, grace: Grace) -> Option<Instant> {
        match self {
            Standing::Here => None,
            Standing::Missing { since } => Some(since + grace.gone_after),
            Standing::Held { .. } if grace.empty_after == Duration::ZERO => None,
            Standing::Held { since } => Some(since + grace.empty_after),
        }
    }
}

/// Who is named twice is taken as named first.
fn by_address(workers: Vec<WorkerUrl>) -> ByAddress {
    workers.into_iter().rev().map(|it| (it.address.clone(), it)).collect()
}

#[cfg(test)]
mod tests;
