//! What can be done of a choice before the brain's lock is taken: nearly all of it.
//!
//! A thread keeps a mirror of the workers. When a request arrives it looks at them there and prices them, beside other threads
//! that do the same. Under the lock only the workers that have changed since are looked at again, and the strategy picks. If
//! anything else has changed, the choice is made as if nothing had been prepared, so both ways give the same pick.
//!
//! Left out: strategies other than `least-delay`, fleets where KV cache moves between workers, programs, and requests while
//! others wait for a worker. Their choices depend on more than the workers.

use std::sync::Arc;

use maitre_base::{Instant, Tokens, WorkerId};
use maitre_fleet::fleet::mirror::{FleetChange, FleetMirror, Moment};
use maitre_fleet::pulls::PullWatch;
use maitre_fleet::{Barred, Fleet, Wanted};
use maitre_policy::{Ask, Name, least_delay};

use super::survey::{Beliefs, PreparedFor, Survey};
use super::{Query, World};
use crate::cache::{Cache, CacheIndex, CacheQuery, Found, WorkerCaches};
use crate::event::Arrival;
use crate::reservations::Reservations;

/// A thread's own copy of what a choice looks at.
#[derive(Debug)]
pub(crate) struct Mirror {
    /// Which brain it is of: a thread may drive several.
    index: Arc<CacheIndex>,
    fleet: FleetMirror,
    caches: WorkerCaches,
    /// Whether it is worth anything to prepare a choice.
    is_used: bool,
}

impl Mirror {
    pub(crate) fn new(fleet: &Fleet, cache: &Cache) -> Mirror {
        let (index, caches) = (cache.index().clone(), WorkerCaches::default());
        Mirror { index, fleet: FleetMirror::new(fleet), caches, is_used: false }
    }

    /// Copies what has changed. Under the brain's lock.
    pub(crate) fn follow(&mut self, fleet: &Fleet, cache: &Cache, strategy: Name) {
        if !self.is_of(cache) {
            *self = Mirror::new(fleet, cache);
        }
        self.is_used = strategy == Name::LeastDelay && !fleet.moves_kv() && !cache.has_stores();
        if !self.is_used {
            return;
        }
        self.fleet.follow(fleet);
        if !self.caches.is(cache.known()) {
            self.caches = cache.known().clone();
        }
    }

    /// Whether it is of this brain.
    pub(crate) fn is_of(&self, cache: &Cache) -> bool {
        Arc::ptr_eq(&self.index, cache.index())
    }

    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// The moment of the fleet that it shows.
    pub(crate) fn moment(&self) -> Moment {
        self.fleet.moment()
    }

    /// Whether it knows the same caches as the brain.
    pub(crate) fn knows_caches(&self, cache: &Cache) -> bool {
        self.caches.is(cache.known())
    }

    /// Looks at the workers for this request, whatever they hold of its prompt. Returns the model and the work; none if it is
    /// not worth to prepare.
    pub(crate) fn survey(&self, now: Instant, arrival: &Arrival<'_>, survey: &mut Survey) -> Option<Begun> {
        survey.prepared = None;
        let is_usual = self.is_used && arrival.only.is_none() && arrival.state.is_none();
        let model = arrival.model.filter(|_| is_usual && arrival.prompt.is_some())?;
        let model = self.fleet.model(model).filter(|&it| !self.fleet.is_adapter(it))?;
        let work = self.fleet.estimate(Some(model)).work(arrival.size, arrival.answer_max, arrival.answers);
        let wanted = Wanted::Model(model);
        let is_fit = self.fleet.fit_snapshots(now, wanted, &mut survey.snapshots);
        (is_fit && survey.snapshots.len() >= 2).then_some(Begun { wanted, work: (work.prompt, work.answer) })
    }

    /// Prices the workers that were looked at, with what was found of the prompt.
    pub(crate) fn price(
        &self,
        (now, arrival): (Instant, &Arrival<'_>),
        Begun { wanted, work }: Begun,
        found: &Found,
        survey: &mut Survey,
    ) {
        let Some(prompt) = arrival.prompt else { return };
        let ask = Ask { prefill: work.0, decode: work.1, ..Ask::default() };
        let query = Query {
            wanted,
            ask: &ask,
            class: arrival.class,
            prompt: Some(prompt),
            barred: Barred::default(),
            deadline: arrival.deadline,
            may_split: false,
            watch: PullWatch::Nothing,
            reservation: None,
            program: None,
        };
        survey.begin(self.fleet.mean_prefill(wanted));
        let question = CacheQuery { prompt, tokens: ask.prefill, snapshots: &survey.snapshots };
        self.caches.show(question, found, &mut survey.held);
        let none = Reservations::default();
        survey.price_all(&query, Beliefs { caches: &self.caches, reservations: &none, in_use: None });
        let (deadline, moment) = (query.deadline, self.fleet.moment());
        survey.prepared = Some(PreparedFor { now, wanted, deadline, work, moment });
    }
}

/// A survey of the workers for one request, without prices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    wanted: Wanted,
    /// Tokens to prefill and to decode.
    work: (Tokens, Tokens),
}

impl Survey {
    /// Shows all workers of the snapshots, with their prices.
    fn price_all(&mut self, query: &Query<'_>, beliefs: Beliefs<'_>) {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        candidates.extend((0..self.snapshots.len()).map(|it| self.candidate(query, beliefs, it)));
        self.prices.clear();
        self.prices.extend(candidates.iter().map(|it| least_delay::price(query.ask, it)));
        self.candidates = candidates;
    }

    /// Uses what was prepared for this request: looks again at the workers that have changed. Returns false if nothing was,
    /// or too much has changed.
    pub(super) fn use_prepared(&mut self, world: &mut World<'_>, query: &Query<'_>) -> bool {
        let prepared = self.prepared.take().filter(|it| it.is_for(world.now, query));
        let (Some(prepared), Some(prompt)) = (prepared, query.prompt) else { return false };
        let Some(changes) = world.fleet.changes_since(prepared.moment) else { return false };
        if !world.reservations.is_empty() {
            return false;
        }
        let mut last = None;
        for change in changes {
            if last.replace(change) != Some(change)
                && let FleetChange::Worker(worker) = change
                && !self.look_again(world, query, worker)
            {
                return false;
            }
        }
        // Only now: a choice that is made without what was prepared uses what was found with it.
        self.is_priced = world.cache.take_found(prompt);
        self.is_priced
    }

    /// Returns false if the worker is no longer one of those that could take the request, or has become one.
    fn look_again(&mut self, world: &World<'_>, query: &Query<'_>, worker: WorkerId) -> bool {
        let place = self.snapshots.binary_search_by_key(&worker, |it| it.worker);
        match (place, world.fleet.fit_snapshot(world.now, query.wanted, worker)) {
            (Ok(place), Some(snapshot)) => {
                self.snapshots[place] = snapshot;
                let beliefs =
                    Beliefs { caches: world.cache.known(), reservations: world.reservations, in_use: None };
                self.candidates[place] = self.candidate(query, beliefs, place);
                self.prices[place] = least_delay::price(query.ask, &self.candidates[place]);
                true
            }
            (Err(_), None) => true,
            _ => false,
        }
    }
}
