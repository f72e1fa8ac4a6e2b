//! Our own rows: what we have promised, think, pinned and counted, and what of it others have not been told.
//!
//! A row is told as a whole and only if it differs from what was told last; what comes and goes between two flushes is
//! never told. Facts are told when they differ enough to matter.

use std::collections::BTreeSet;

use crate::frame::Record;
use crate::row::{Facts, Fit, Load, Spent};
use maitre_base::Recent;
use maitre_base::hash::{self, NumberMap};

/// Most workers a router tells of, and is heard of.
pub(crate) const WORKERS_MAX: usize = 4_096;
/// Most pins of a router.
pub(crate) const PINS_MAX: usize = 65_536;
/// Most tenants by models of a router.
pub(crate) const SPENT_MAX: usize = 16_384;

/// How far a rate must move to be told again, as a part of what it was.
const MOVED: f32 = 0.1;
/// Differences below these are noise: a tenth of a millisecond, and as much over ten thousand tokens.
const BASE_FLOOR: f32 = 1e-3;
const SLOPE_FLOOR: f32 = 1e-7;

#[derive(Clone, Copy, Debug, Default)]
struct Worker {
    load: Load,
    told_load: Load,
    facts: Facts,
    /// None while others need not know more than that it is fit.
    told_facts: Option<Facts>,
    /// The last delta that told of it.
    told: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    pub(crate) model: u64,
    pub(crate) session: u64,
    pub(crate) worker: u64,
    pub(crate) stamp: u64,
    told: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    model: u64,
    tenant: u64,
    pub(crate) total: Spent,
    /// The delta that told it first; 0 before.
    pub(crate) born: u64,
    told: u64,
}

#[derive(Debug)]
pub(crate) struct Own {
    workers: NumberMap<Worker>,
    changed: BTreeSet<u64>,
    gone: BTreeSet<u64>,
    pins: Recent<Pin>,
    pinned: BTreeSet<u64>,
    accounts: Recent<Account>,
    spent: BTreeSet<u64>,
    dropped: u64,
}

/// The key of a pin by its model and session, and of an account by its model and tenant.
pub(crate) fn key(model: u64, of: u64) -> u64 {
    hash::pair(model, of)
}

impl Own {
    pub(crate) fn new(pins_max: usize, spent_max: usize) -> Own {
        Own {
            workers: NumberMap::default(),
            changed: BTreeSet::new(),
            gone: BTreeSet::new(),
            pins: Recent::new(pins_max),
            pinned: BTreeSet::new(),
            accounts: Recent::new(spent_max),
            spent: BTreeSet::new(),
            dropped: 0,
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.workers.len() + self.pins.len() + self.accounts.len()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped + self.pins.forgotten() + self.accounts.forgotten()
    }

    pub(crate) fn has_pending(&self) -> bool {
        [&self.changed, &self.gone, &self.pinned, &self.spent].iter().any(|it| !it.is_empty())
    }

    pub(crate) fn promise(&mut self, worker: u64, load: Load) {
        self.worker(worker).load = load;
        self.note(worker);
    }

    pub(crate) fn judge(&mut self, worker: u64, facts: Facts) {
        self.worker(worker).facts = Facts { rates: facts.rates.and_then(sane), ..facts };
        self.note(worker);
    }

    pub(crate) fn forget(&mut self, worker: u64) {
        self.changed.remove(&worker);
        if self.workers.remove(&worker).is_some_and(|it| it.told > 0) {
            self.gone.insert(worker);
        }
    }

    pub(crate) fn pin(&self, key: u64) -> Option<Pin> {
        self.pins.peek(key)
    }

    pub(crate) fn keep_pin(&mut self, key: u64) {
        self.pins.get(key);
    }

    pub(crate) fn set_pin(&mut self, model: u64, session: u64, worker: u64, stamp: u64) {
        let key = key(model, session);
        self.pins.put(key, Pin { model, session, worker, stamp, told: 0 });
        self.pinned.insert(key);
        self.dropped += trim(&mut self.pinned, PINS_MAX);
    }

    pub(crate) fn spend(&mut self, model: u64, tenant: u64, more: Spent) {
        if more == Spent::default() {
            return;
        }
        let key = key(model, tenant);
        if self.accounts.get(key).is_none() {
            self.accounts.put(key, Account { model, tenant, total: Spent::default(), born: 0, told: 0 });
        }
        if let Some(account) = self.accounts.get(key) {
            account.total.requests = account.total.requests.saturating_add(more.requests);
            account.total.tokens = account.total.tokens.saturating_add(more.tokens);
        }
        self.spent.insert(key);
        self.dropped += trim(&mut self.spent, SPENT_MAX);
    }

    /// Tells what changed. `push` takes a record, given the number of the delta it goes into.
    pub(crate) fn tell(&mut self, mut push: impl FnMut(&dyn Fn(u64) -> Record<'static>) -> u64) {
        for worker in std::mem::take(&mut self.gone) {
            push(&|_| Record::Gone { worker });
        }
        for worker in std::mem::take(&mut self.changed) {
            let Some(row) = self.workers.get_mut(&worker) else {
                continue;
            };
            let Worker { load, facts, .. } = *row;
            if load != row.told_load {
                row.told = push(&|_| Record::Load { worker, load });
                row.told_load = load;
            }
            if is_worth_telling(row.told_facts, facts) {
                row.told = push(&|_| Record::Facts { worker, facts });
                row.told_facts = Some(facts);
            }
        }
        for key in std::mem::take(&mut self.pinned) {
            if let Some(mut pin) = self.pins.peek(key) {
                pin.told = push(&|_| pin.record());
                self.pins.put(key, pin);
            }
        }
        for key in std::mem::take(&mut self.spent) {
            if let Some(mut account) = self.accounts.peek(key) {
                account.told = push(&|seq| account.record(seq));
                account.born = account.born_by(account.told);
                self.accounts.put(key, account);
            }
        }
    }

    /// All that was told, as it was told; of pins and accounts that which was told after `since`.
    pub(crate) fn recite(&self, since: u64, mut push: impl FnMut(&Record<'_>)) {
        let mut workers: Vec<_> = self.workers.iter().collect();
        workers.sort_unstable_by_key(|it| it.0);
        for (&worker, row) in workers {
            if row.told_load != Load::default() {
                push(&Record::Load { worker, load: row.told_load });
            }
            if let Some(facts) = row.told_facts {
                push(&Record::Facts { worker, facts });
            }
        }
        let mut pins: Vec<&Pin> = self.pins.iter().map(|it| it.1).filter(|it| it.told > since).collect();
        pins.sort_unstable_by_key(|it| it.stamp);
        pins.iter().for_each(|it| push(&it.record()));
        let accounts = self.accounts.iter().map(|it| it.1).filter(|it| it.told > since);
        let mut accounts: Vec<&Account> = accounts.collect();
        accounts.sort_unstable_by_key(|it| (it.told, it.model, it.tenant));
        accounts.iter().for_each(|it| push(&it.record(it.born)));
    }

    /// The row of a worker. If there are too many, the one told of longest ago makes way.
    fn worker(&mut self, worker: u64) -> &mut Worker {
        if self.workers.len() >= WORKERS_MAX && !self.workers.contains_key(&worker) {
            let oldest = self.workers.iter().min_by_key(|it| (it.1.told, *it.0)).map(|it| *it.0);
            oldest.into_iter().for_each(|it| self.forget(it));
            self.dropped += 1;
        }
        self.workers.entry(worker).or_default()
    }

    /// Whether there is something to tell of a worker is known when it changes, so that what changes back is not told.
    fn note(&mut self, worker: u64) {
        let Some(row) = self.workers.get(&worker) else {
            return;
        };
        match row.load != row.told_load || is_worth_telling(row.told_facts, row.facts) {
            true => self.changed.insert(worker),
            false => self.changed.remove(&worker),
        };
    }
}

impl Pin {
    fn record(&self) -> Record<'static> {
        let &Pin { model, session, worker, stamp, .. } = self;
        Record::Pin { model, session, worker, stamp }
    }
}

impl Account {
    fn born_by(&self, seq: u64) -> u64 {
        if self.born == 0 { seq } else { self.born }
    }

    fn record(&self, seq: u64) -> Record<'static> {
        let &Account { model, tenant, total, .. } = self;
        Record::Spent { model, tenant, born: self.born_by(seq), total }
    }
}

fn trim(keys: &mut BTreeSet<u64>, max: usize) -> u64 {
    let is_over = keys.len() > max;
    if is_over {
        keys.pop_first();
    }
    u64::from(is_over)
}

/// Rates as others accept them: none that are no numbers, and none below zero.
fn sane(rates: (Fit, Fit)) -> Option<(Fit, Fit)> {
    let clamp = |fit: Fit| Fit { base: fit.base.max(0.0), slope: fit.slope.max(0.0) };
    let is_finite = |fit: Fit| fit.base.is_finite() && fit.slope.is_finite();
    (is_finite(rates.0) && is_finite(rates.1)).then(|| (clamp(rates.0), clamp(rates.1)))
}

fn is_worth_telling(told: Option<Facts>, facts: Facts) -> bool {
    let told = told.unwrap_or_default();
    let has_moved = match (told.rates, facts.rates) {
        (Some(told), Some(rates)) => moved(told.0, rates.0) || moved(told.1, rates.1),
        (told, rates) => told.is_none() && rates.is_some(),
    };
    told.verdict != facts.verdict || has_moved
}

fn moved(told: Fit, fit: Fit) -> bool {
    (fit.base - told.base).abs() > MOVED * told.base.max(BASE_FLOOR)
        || (fit.slope - told.slope).abs() > MOVED * told.slope.max(SLOPE_FLOOR)
}
