//! The rows of one peer, each with the version it arrived in.
//!
//! A row is replaced only by the same or a later version, so order and repetition make no difference. A removed row
//! leaves a tombstone for as long as an older delta might still arrive.

use crate::own_rows::{PINS_MAX, SPENT_MAX, WORKERS_MAX};
use crate::row::{Spent, WorkerFacts};
use maitre_base::hash::NumberMap;
use maitre_base::{PromisedWork, Recent};

#[derive(Clone, Copy, Debug, PartialEq)]
struct Versioned<T> {
    version: u64,
    value: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerPin {
    pub(crate) stamp: u64,
    pub(crate) worker: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerAccount {
    pub(crate) first_delta: u64,
    pub(crate) total: Spent,
}

#[derive(Debug)]
pub(crate) struct PeerRows {
    /// Zero is a tombstone.
    loads: NumberMap<Versioned<PromisedWork>>,
    facts: NumberMap<Versioned<Option<WorkerFacts>>>,
    pins: Recent<PeerPin>,
    accounts: Recent<PeerAccount>,
    has_tombstones: bool,
    /// Worker rows that were evicted.
    dropped: u64,
}

impl PeerRows {
    pub(crate) fn new() -> PeerRows {
        PeerRows {
            loads: NumberMap::default(),
            facts: NumberMap::default(),
            pins: Recent::new(PINS_MAX),
            accounts: Recent::new(SPENT_MAX),
            has_tombstones: false,
            dropped: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.loads.len() + self.facts.len() + self.pins.len() + self.accounts.len()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped + self.pins.forgotten() + self.accounts.forgotten()
    }

    /// Workers with a load, in no particular order.
    pub(crate) fn workers_with_load(&self) -> impl Iterator<Item = u64> {
        self.loads.keys().copied()
    }

    pub(crate) fn load(&self, worker: u64) -> PromisedWork {
        self.loads.get(&worker).map_or(PromisedWork::default(), |it| it.value)
    }

    /// Returns the worker that was evicted, if any.
    pub(crate) fn set_load(&mut self, version: u64, worker: u64, load: PromisedWork) -> Option<u64> {
        self.has_tombstones |= load == PromisedWork::default();
        let evicted = set(&mut self.loads, version, worker, load);
        self.dropped += u64::from(evicted.is_some());
        evicted
    }

    /// Returns whether the facts changed.
    pub(crate) fn set_facts(&mut self, version: u64, worker: u64, facts: Option<WorkerFacts>) -> bool {
        self.has_tombstones |= facts.is_none();
        let before = self.facts.get(&worker).and_then(|it| it.value);
        self.dropped += u64::from(set(&mut self.facts, version, worker, facts).is_some());
        before != self.facts.get(&worker).and_then(|it| it.value)
    }

    /// Drops tombstones: no older delta can arrive any more.
    pub(crate) fn drop_tombstones(&mut self) {
        if std::mem::take(&mut self.has_tombstones) {
            self.loads.retain(|_, it| it.value != PromisedWork::default());
            self.facts.retain(|_, it| it.value.is_some());
        }
    }

    /// Drops worker rows older than this version, because a snapshot of it did not name them. Appends those with a
    /// load to `workers`.
    pub(crate) fn drop_before(&mut self, version: u64, workers: &mut Vec<u64>) {
        self.loads.retain(|&worker, it| {
            let stays = it.version >= version;
            if !stays {
                workers.push(worker);
            }
            stays
        });
        self.facts.retain(|_, it| it.version >= version);
    }

    pub(crate) fn pin(&self, key: u64) -> Option<PeerPin> {
        self.pins.peek(key)
    }

    pub(crate) fn set_pin(&mut self, key: u64, pin: PeerPin) {
        if self.pins.peek(key).is_none_or(|it| it.stamp < pin.stamp) {
            self.pins.put(key, pin);
        }
    }

    /// Joins an account with the known one. Returns the additional usage, or `None` if the account was unknown.
    pub(crate) fn set_account(&mut self, key: u64, received: PeerAccount) -> Option<Spent> {
        let Some(held) = self.accounts.get(key) else {
            self.accounts.put(key, received);
            return None;
        };
        let mut more = Spent::default();
        if received.first_delta > held.first_delta {
            (*held, more) = (received, received.total);
        } else if received.first_delta == held.first_delta {
            more.requests = received.total.requests.saturating_sub(held.total.requests);
            more.tokens = received.total.tokens.saturating_sub(held.total.tokens);
            held.total.requests = held.total.requests.max(received.total.requests);
            held.total.tokens = held.total.tokens.max(received.total.tokens);
        }
        Some(more)
    }

    /// How many accounts were evicted.
    pub(crate) fn accounts_forgotten(&self) -> u64 {
        self.accounts.forgotten()
    }
}

/// Sets a row unless a later version is held. At the limit, evicts the oldest row and returns its worker.
fn set<T: Copy>(rows: &mut NumberMap<Versioned<T>>, version: u64, worker: u64, value: T) -> Option<u64> {
    if let Some(held) = rows.get_mut(&worker) {
        if held.version <= version {
            *held = Versioned { version, value };
        }
        return None;
    }
    let evicted = match rows.len() >= WORKERS_MAX {
        true => rows.iter().min_by_key(|it| (it.1.version, *it.0)).map(|it| *it.0),
        false => None,
    };
    if let Some(evicted) = evicted {
        rows.remove(&evicted);
    }
    rows.insert(worker, Versioned { version, value });
    evicted
}

#[cfg(test)]
impl PeerRows {
    /// Everything, in a fixed order.
    pub(crate) fn dump(&self) -> Vec<String> {
        let loads = self.loads.iter().filter(|it| it.1.value != PromisedWork::default());
        let loads = loads.map(|(worker, it)| format!("load {worker} {:?}", it.value));
        let facts = self.facts.iter().filter_map(|(worker, it)| Some((worker, it.value?)));
        let facts = facts.map(|(worker, it)| format!("facts {worker} {it:?}"));
        let pins = self.pins.iter().map(|(key, it)| format!("pin {key} {it:?}"));
        let accounts = self.accounts.iter().map(|(key, it)| format!("account {key} {it:?}"));
        let mut dump: Vec<String> = loads.chain(facts).chain(pins).chain(accounts).collect();
        dump.sort();
        dump
    }
}
