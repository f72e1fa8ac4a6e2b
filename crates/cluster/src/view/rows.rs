//! The rows of one other router, each with the version it was heard in.
//!
//! A row gives way to one of the same or a later version only, so order and repetition make no difference. That a row
//! is gone is kept as long as an older delta might still come; then it is forgotten too.

use crate::own::{PINS_MAX, SPENT_MAX, WORKERS_MAX};
use crate::row::{Facts, Load, Spent};
use maitre_base::Recent;
use maitre_base::hash::NumberMap;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Held<T> {
    version: u64,
    value: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    pub(crate) stamp: u64,
    pub(crate) worker: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) born: u64,
    pub(crate) total: Spent,
}

#[derive(Debug)]
pub(crate) struct Rows {
    /// All zero is gone.
    loads: NumberMap<Held<Load>>,
    facts: NumberMap<Held<Option<Facts>>>,
    pins: Recent<Pin>,
    accounts: Recent<Account>,
    has_gone: bool,
    /// Rows of workers that made way.
    dropped: u64,
}

impl Rows {
    pub(crate) fn new() -> Rows {
        Rows {
            loads: NumberMap::default(),
            facts: NumberMap::default(),
            pins: Recent::new(PINS_MAX),
            accounts: Recent::new(SPENT_MAX),
            has_gone: false,
            dropped: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.loads.len() + self.facts.len() + self.pins.len() + self.accounts.len()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped + self.pins.forgotten() + self.accounts.forgotten()
    }

    /// Workers with a load, in no order.
    pub(crate) fn loaded(&self) -> impl Iterator<Item = u64> {
        self.loads.keys().copied()
    }

    pub(crate) fn load(&self, worker: u64) -> Load {
        self.loads.get(&worker).map_or(Load::default(), |it| it.value)
    }

    /// Returns the worker that made way, if one had to.
    pub(crate) fn set_load(&mut self, version: u64, worker: u64, load: Load) -> Option<u64> {
        self.has_gone |= load == Load::default();
        let evicted = set(&mut self.loads, version, worker, load);
        self.dropped += u64::from(evicted.is_some());
        evicted
    }

    /// Whether that is new.
    pub(crate) fn set_facts(&mut self, version: u64, worker: u64, facts: Option<Facts>) -> bool {
        self.has_gone |= facts.is_none();
        let before = self.facts.get(&worker).and_then(|it| it.value);
        self.dropped += u64::from(set(&mut self.facts, version, worker, facts).is_some());
        before != self.facts.get(&worker).and_then(|it| it.value)
    }

    /// Forgets what is gone: no older delta can come any more.
    pub(crate) fn forget_gone(&mut self) {
        if std::mem::take(&mut self.has_gone) {
            self.loads.retain(|_, it| it.value != Load::default());
            self.facts.retain(|_, it| it.value.is_some());
        }
    }

    /// Drops rows of workers that are older: a snapshot of this version did not name them. Lists those with a load.
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

    pub(crate) fn pin(&self, key: u64) -> Option<Pin> {
        self.pins.peek(key)
    }

    pub(crate) fn set_pin(&mut self, key: u64, pin: Pin) {
        if self.pins.peek(key).is_none_or(|it| it.stamp < pin.stamp) {
            self.pins.put(key, pin);
        }
    }

    /// Joins an account with what is known of it. Returns what was spent more, or none if it was not known before.
    pub(crate) fn set_account(&mut self, key: u64, heard: Account) -> Option<Spent> {
        let Some(held) = self.accounts.get(key) else {
            self.accounts.put(key, heard);
            return None;
        };
        let mut more = Spent::default();
        if heard.born > held.born {
            (*held, more) = (heard, heard.total);
        } else if heard.born == held.born {
            more.requests = heard.total.requests.saturating_sub(held.total.requests);
            more.tokens = heard.total.tokens.saturating_sub(held.total.tokens);
            held.total.requests = held.total.requests.max(heard.total.requests);
            held.total.tokens = held.total.tokens.max(heard.total.tokens);
        }
        Some(more)
    }

    /// How many accounts have made way.
    pub(crate) fn accounts_forgotten(&self) -> u64 {
        self.accounts.forgotten()
    }
}

/// Sets a row, unless a later one is held. If there are too many, the oldest makes way.
fn set<T: Copy>(rows: &mut NumberMap<Held<T>>, version: u64, worker: u64, value: T) -> Option<u64> {
    if let Some(held) = rows.get_mut(&worker) {
        if held.version <= version {
            *held = Held { version, value };
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
    rows.insert(worker, Held { version, value });
    evicted
}

#[cfg(test)]
impl Rows {
    /// Everything, in an order of its own.
    pub(crate) fn dump(&self) -> Vec<String> {
        let loads = self.loads.iter().filter(|it| it.1.value != Load::default());
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
