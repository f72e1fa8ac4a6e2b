//! This router's own rows, and which of them have changes to publish.
//!
//! A row is published whole, and only if it differs from its last published value. A change that is undone between
//! two flushes is never published. Facts are published when they differ enough to matter.

use std::collections::BTreeSet;

use crate::frame::Record;
use crate::row::{LinearFit, Spent, WorkerFacts};
use maitre_base::hash::{self, NumberMap};
use maitre_base::{PromisedWork, Recent};

/// Maximum workers that a router publishes, and that are kept per peer.
pub(crate) const WORKERS_MAX: usize = 4_096;
/// Maximum pins per router.
pub(crate) const PINS_MAX: usize = 65_536;
/// Maximum accounts (tenant and model) per router.
pub(crate) const SPENT_MAX: usize = 16_384;

/// Relative change of a rate that makes it worth publishing again.
const MOVED: f32 = 0.1;
/// Smaller differences are noise: a tenth of a millisecond, and as much over ten thousand tokens.
const BASE_FLOOR: f32 = 1e-3;
const SLOPE_FLOOR: f32 = 1e-7;

#[derive(Clone, Copy, Debug, Default)]
struct OwnWorker {
    load: PromisedWork,
    published_load: PromisedWork,
    facts: WorkerFacts,
    /// `None` while the published facts are the default: healthy, without rates.
    published_facts: Option<WorkerFacts>,
    /// The last delta that carried this row.
    published: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnPin {
    pub(crate) model: u64,
    pub(crate) session: u64,
    pub(crate) worker: u64,
    pub(crate) stamp: u64,
    published: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnAccount {
    model: u64,
    tenant: u64,
    pub(crate) total: Spent,
    /// The first delta that carried this row; 0 before that.
    pub(crate) first_delta: u64,
    published: u64,
}

#[derive(Debug)]
pub(crate) struct OwnRows {
    workers: NumberMap<OwnWorker>,
    changed_workers: BTreeSet<u64>,
    removed: BTreeSet<u64>,
    pins: Recent<OwnPin>,
    changed_pins: BTreeSet<u64>,
    accounts: Recent<OwnAccount>,
    changed_accounts: BTreeSet<u64>,
    dropped: u64,
}

/// The key of a pin (model and session) or of an account (model and tenant).
pub(crate) fn row_key(model: u64, of: u64) -> u64 {
    hash::pair(model, of)
}

impl OwnRows {
    pub(crate) fn new(pins_max: usize, spent_max: usize) -> OwnRows {
        OwnRows {
            workers: NumberMap::default(),
            changed_workers: BTreeSet::new(),
            removed: BTreeSet::new(),
            pins: Recent::new(pins_max),
            changed_pins: BTreeSet::new(),
            accounts: Recent::new(spent_max),
            changed_accounts: BTreeSet::new(),
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
        [&self.changed_workers, &self.removed, &self.changed_pins, &self.changed_accounts]
            .iter()
            .any(|it| !it.is_empty())
    }

    pub(crate) fn promise(&mut self, worker: u64, load: PromisedWork) {
        self.worker(worker).load = load;
        self.note(worker);
    }

    pub(crate) fn set_facts(&mut self, worker: u64, facts: WorkerFacts) {
        self.worker(worker).facts = WorkerFacts { rates: facts.rates.and_then(sanitized), ..facts };
        self.note(worker);
    }

    pub(crate) fn forget(&mut self, worker: u64) {
        self.changed_workers.remove(&worker);
        if self.workers.remove(&worker).is_some_and(|it| it.published > 0) {
            self.removed.insert(worker);
        }
    }

    pub(crate) fn pin(&self, key: u64) -> Option<OwnPin> {
        self.pins.peek(key)
    }

    pub(crate) fn keep_pin(&mut self, key: u64) {
        self.pins.get(key);
    }

    pub(crate) fn set_pin(&mut self, model: u64, session: u64, worker: u64, stamp: u64) {
        let key = row_key(model, session);
        self.pins.put(key, OwnPin { model, session, worker, stamp, published: 0 });
        self.changed_pins.insert(key);
        self.dropped += trim(&mut self.changed_pins, PINS_MAX);
    }

    pub(crate) fn spend(&mut self, model: u64, tenant: u64, more: Spent) {
        if more == Spent::default() {
            return;
        }
        let key = row_key(model, tenant);
        if self.accounts.get(key).is_none() {
            self.accounts.put(
                key,
                OwnAccount { model, tenant, total: Spent::default(), first_delta: 0, published: 0 },
            );
        }
        if let Some(account) = self.accounts.get(key) {
            account.total.requests = account.total.requests.saturating_add(more.requests);
            account.total.tokens = account.total.tokens.saturating_add(more.tokens);
        }
        self.changed_accounts.insert(key);
        self.dropped += trim(&mut self.changed_accounts, SPENT_MAX);
    }

    /// Publishes what changed. `push` takes a function from the delta's number to the record and returns that number.
    pub(crate) fn publish(&mut self, mut push: impl FnMut(&dyn Fn(u64) -> Record<'static>) -> u64) {
        for worker in std::mem::take(&mut self.removed) {
            push(&|_| Record::Removed { worker });
        }
        for worker in std::mem::take(&mut self.changed_workers) {
            let Some(row) = self.workers.get_mut(&worker) else {
                continue;
            };
            let OwnWorker { load, facts, .. } = *row;
            if load != row.published_load {
                row.published = push(&|_| Record::Load { worker, load });
                row.published_load = load;
            }
            if is_worth_publishing(row.published_facts, facts) {
                row.published = push(&|_| Record::Facts { worker, facts });
                row.published_facts = Some(facts);
            }
        }
        for key in std::mem::take(&mut self.changed_pins) {
            if let Some(mut pin) = self.pins.peek(key) {
                pin.published = push(&|_| pin.record());
                self.pins.put(key, pin);
            }
        }
        for key in std::mem::take(&mut self.changed_accounts) {
            if let Some(mut account) = self.accounts.peek(key) {
                account.published = push(&|seq| account.record(seq));
                account.first_delta = account.first_delta_by(account.published);
                self.accounts.put(key, account);
            }
        }
    }

    /// Writes every published row with its published value. Pins and accounts are limited to those published after
    /// `since`.
    pub(crate) fn write_snapshot(&self, since: u64, mut push: impl FnMut(&Record<'_>)) {
        let mut workers: Vec<_> = self.workers.iter().collect();
        workers.sort_unstable_by_key(|it| it.0);
        for (&worker, row) in workers {
            if row.published_load != PromisedWork::default() {
                push(&Record::Load { worker, load: row.published_load });
            }
            if let Some(facts) = row.published_facts {
                push(&Record::Facts { worker, facts });
            }
        }
        let mut pins: Vec<&OwnPin> =
            self.pins.iter().map(|it| it.1).filter(|it| it.published > since).collect();
        pins.sort_unstable_by_key(|it| it.stamp);
        pins.iter().for_each(|it| push(&it.record()));
        let accounts = self.accounts.iter().map(|it| it.1).filter(|it| it.published > since);
        let mut accounts: Vec<&OwnAccount> = accounts.collect();
        accounts.sort_unstable_by_key(|it| (it.published, it.model, it.tenant));
        accounts.iter().for_each(|it| push(&it.record(it.first_delta)));
    }

    /// The row of a worker. At the limit, the row published longest ago is evicted.
    fn worker(&mut self, worker: u64) -> &mut OwnWorker {
        if self.workers.len() >= WORKERS_MAX && !self.workers.contains_key(&worker) {
            let oldest = self.workers.iter().min_by_key(|it| (it.1.published, *it.0)).map(|it| *it.0);
            oldest.into_iter().for_each(|it| self.forget(it));
            self.dropped += 1;
        }
        self.workers.entry(worker).or_default()
    }

    /// Marks or unmarks the worker as changed. Checked on every change, so that an undone change is not published.
    fn note(&mut self, worker: u64) {
        let Some(row) = self.workers.get(&worker) else {
            return;
        };
        match row.load != row.published_load || is_worth_publishing(row.published_facts, row.facts) {
            true => self.changed_workers.insert(worker),
            false => self.changed_workers.remove(&worker),
        };
    }
}

impl OwnPin {
    fn record(&self) -> Record<'static> {
        let &OwnPin { model, session, worker, stamp, .. } = self;
        Record::Pin { model, session, worker, stamp }
    }
}

impl OwnAccount {
    fn first_delta_by(&self, seq: u64) -> u64 {
        if self.first_delta == 0 { seq } else { self.first_delta }
    }

    fn record(&self, seq: u64) -> Record<'static> {
        let &OwnAccount { model, tenant, total, .. } = self;
        Record::Spent { model, tenant, first_delta: self.first_delta_by(seq), total }
    }
}

fn trim(keys: &mut BTreeSet<u64>, max: usize) -> u64 {
    let is_over = keys.len() > max;
    if is_over {
        keys.pop_first();
    }
    u64::from(is_over)
}

/// Makes rates acceptable to peers: finite and not negative.
fn sanitized(rates: (LinearFit, LinearFit)) -> Option<(LinearFit, LinearFit)> {
    let clamp = |fit: LinearFit| LinearFit { base: fit.base.max(0.0), slope: fit.slope.max(0.0) };
    let is_finite = |fit: LinearFit| fit.base.is_finite() && fit.slope.is_finite();
    (is_finite(rates.0) && is_finite(rates.1)).then(|| (clamp(rates.0), clamp(rates.1)))
}

fn is_worth_publishing(published: Option<WorkerFacts>, facts: WorkerFacts) -> bool {
    let published = published.unwrap_or_default();
    let has_moved = match (published.rates, facts.rates) {
        (Some(published), Some(rates)) => moved(published.0, rates.0) || moved(published.1, rates.1),
        (published, rates) => published.is_none() && rates.is_some(),
    };
    published.verdict != facts.verdict || has_moved
}

fn moved(published: LinearFit, fit: LinearFit) -> bool {
    (fit.base - published.base).abs() > MOVED * published.base.max(BASE_FLOOR)
        || (fit.slope - published.slope).abs() > MOVED * published.slope.max(SLOPE_FLOOR)
}
