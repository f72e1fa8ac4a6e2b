//! Whom to dial, and when: places that an operator named or membership told of, and the addresses they stand for.
//!
//! An address is dialled until it leads to a router we are connected with, and again when that connection is lost. It
//! does not matter who dialled: once we are connected with a router, all addresses that lead to it rest. Waits double
//! up to a bound, less if the router is expected to be there, and half of each is by dice.
//!
//! No sockets here: `due` says what to do, and what came of it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use maitre_base::Rng;
use tokio::time::Instant;

use super::resolve::Place;
use super::swim::MEMORY;

const WAIT_MIN: Duration = Duration::from_millis(100);
/// For one that should be there: when a partition heals, it is found within a second.
const WAIT_EXPECTED_MAX: Duration = Duration::from_millis(800);
/// For one that is down and that nobody configured.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// If both learn of each other, the one with the higher name lets the other dial first.
const COURTESY: Duration = Duration::from_millis(300);
/// Until an address at which we found ourselves is tried again: it may be given to another.
const OURSELVES: Duration = Duration::from_secs(60);
/// Between two questions for a name that has led to somebody: whoever is new there will dial us.
const LOOKUP_CALM: Duration = Duration::from_secs(30);
/// And for one that has not.
const LOOKUP_EAGER: Duration = Duration::from_secs(5);
const LOOKUP_MIN: Duration = Duration::from_millis(500);
/// Told of by membership.
const MEMBERS_MAX: usize = 256;

/// Something to do; what came of it must be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Dial(SocketAddr),
    Lookup(Place),
}

#[derive(Debug)]
pub(super) struct Targets {
    /// Ours.
    name: String,
    places: BTreeMap<Place, Target>,
    /// Where membership says that a router is.
    members: BTreeMap<String, Member>,
    addresses: BTreeMap<SocketAddr, Address>,
    rng: Rng,
}

#[derive(Debug)]
struct Target {
    is_configured: bool,
    lookup: Lookup,
    addresses: Vec<SocketAddr>,
    problem: Option<String>,
    failures: u32,
}

#[derive(Debug)]
enum Lookup {
    /// It is an address.
    Never,
    At(Instant),
    UnderWay,
}

#[derive(Debug)]
struct Member {
    place: Place,
    /// Down, and forgotten then.
    until: Option<Instant>,
}

#[derive(Debug)]
struct Address {
    state: State,
    problem: Option<String>,
    failures: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    At(Instant),
    UnderWay,
    /// To a router with which we are connected.
    LeadsTo(String),
    Ourselves(Instant),
}

impl Targets {
    pub(super) fn new(name: &str, configured: Vec<Place>, rng: Rng, now: Instant) -> Targets {
        let (places, members, addresses) = Default::default();
        let mut targets = Targets { name: name.to_owned(), places, members, addresses, rng };
        for place in configured {
            targets.add(&place, &State::At(now), now);
            if let Some(target) = targets.places.get_mut(&place) {
                target.is_configured = true;
            }
        }
        targets
    }

    /// What is due by now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Job> {
        let forgotten = |it: &Member| it.until.is_some_and(|until| until <= now);
        let before = self.members.len();
        self.members.retain(|_, it| !forgotten(it));
        if self.members.len() < before {
            self.clear();
        }
        let mut jobs = Vec::new();
        for (place, target) in &mut self.places {
            if matches!(target.lookup, Lookup::At(at) if at <= now) {
                target.lookup = Lookup::UnderWay;
                jobs.push(Job::Lookup(place.clone()));
            }
        }
        for (&at, address) in &mut self.addresses {
            if matches!(address.state, State::At(due) | State::Ourselves(due) if due <= now) {
                address.state = State::UnderWay;
                jobs.push(Job::Dial(at));
            }
        }
        jobs
    }

    /// When something will be.
    pub(super) fn next(&self) -> Option<Instant> {
        let lookups = self.places.values().filter_map(|it| match it.lookup {
            Lookup::At(at) => Some(at),
            Lookup::Never | Lookup::UnderWay => None,
        });
        let dials = self.addresses.values().filter_map(|it| match it.state {
            State::At(at) | State::Ourselves(at) => Some(at),
            State::UnderWay | State::LeadsTo(_) => None,
        });
        lookups.chain(dials).chain(self.members.values().filter_map(|it| it.until)).min()
    }

    /// Membership says that a router is up, and where. If we are connected with it there is nothing to dial.
    pub(super) fn up(&mut self, name: &str, place: Place, is_connected: bool, now: Instant) {
        if self.members.len() >= MEMBERS_MAX && !self.members.contains_key(name) {
            return;
        }
        self.members.insert(name.to_owned(), Member { place: place.clone(), until: None });
        let state = match is_connected {
            true => State::LeadsTo(name.to_owned()),
            false => State::At(now + self.courtesy(name)),
        };
        self.add(&place, &state, now);
        self.clear();
    }

    /// Membership says that it is down: it is tried for a while, ever less often.
    pub(super) fn down(&mut self, name: &str, now: Instant) {
        if let Some(member) = self.members.get_mut(name) {
            member.until = Some(now + MEMORY);
        }
    }

    fn courtesy(&self, name: &str) -> Duration {
        if self.name.as_str() > name { COURTESY } else { Duration::ZERO }
    }

    fn add(&mut self, place: &Place, state: &State, now: Instant) {
        if !self.places.contains_key(place) {
            let (lookup, addresses) = match place {
                Place::Address(address) => (Lookup::Never, vec![*address]),
                Place::Name { .. } => (Lookup::At(now), Vec::new()),
            };
            let target = Target { is_configured: false, lookup, addresses, problem: None, failures: 0 };
            self.places.insert(place.clone(), target);
        }
        for at in self.places.get(place).map(|it| it.addresses.clone()).unwrap_or_default() {
            self.add_address(at, state);
        }
    }

    /// An address that waits to be dialled need not be if it leads to one we know.
    fn add_address(&mut self, at: SocketAddr, state: &State) {
        let fresh = || Address { state: state.clone(), problem: None, failures: 0 };
        let address = self.addresses.entry(at).or_insert_with(fresh);
        if matches!((state, &address.state), (State::LeadsTo(_), State::At(_))) {
            *address = fresh();
        }
    }

    /// Forgets places that nobody names, and addresses that no place stands for.
    fn clear(&mut self) {
        let (members, places) = (&self.members, &mut self.places);
        places.retain(|place, it| it.is_configured || members.values().any(|it| it.place == *place));
        let listed = |at: &SocketAddr| self.places.values().any(|it| it.addresses.contains(at));
        self.addresses.retain(|at, _| listed(at));
    }

    /// Whether it is news: a name that cannot be looked up, for another reason than before.
    pub(super) fn found(
        &mut self,
        place: &Place,
        found: Result<Vec<SocketAddr>, String>,
        now: Instant,
    ) -> bool {
        let Some(target) = self.places.get_mut(place) else { return false };
        let is_news = found.as_ref().err().is_some_and(|it| target.problem.as_ref() != Some(it));
        let wait = match found {
            Ok(addresses) => {
                (target.addresses, target.problem, target.failures) = (addresses, None, 0);
                let leads = |it: &SocketAddr| self.addresses.get(it).is_some_and(Address::is_settled);
                if target.addresses.iter().all(leads) { LOOKUP_CALM } else { LOOKUP_EAGER }
            }
            Err(problem) => {
                target.problem = Some(problem);
                target.failures = target.failures.saturating_add(1);
                backoff(LOOKUP_MIN, WAIT_MAX, target.failures, &mut self.rng)
            }
        };
        target.lookup = Lookup::At(now + wait);
        for at in target.addresses.clone() {
            self.add_address(at, &State::At(now));
        }
        self.clear();
        is_news
    }

    /// Nobody there, or nobody for us. Whether that is news: somebody should be, and what went wrong before was
    /// something else.
    pub(super) fn failed(&mut self, at: SocketAddr, problem: String, now: Instant) -> bool {
        let is_expected = self.is_expected(at);
        let max = if is_expected { WAIT_EXPECTED_MAX } else { WAIT_MAX };
        let Some(address) = self.addresses.get_mut(&at) else { return false };
        address.failures = address.failures.saturating_add(1);
        address.state = State::At(now + backoff(WAIT_MIN, max, address.failures, &mut self.rng));
        let is_news = is_expected && address.problem.as_ref() != Some(&problem);
        address.problem = Some(problem);
        is_news
    }

    /// Not now, though nothing is wrong.
    pub(super) fn postpone(&mut self, at: SocketAddr, now: Instant) {
        if let Some(address) = self.addresses.get_mut(&at) {
            address.state = State::At(now + backoff(WAIT_MIN, WAIT_MIN, 1, &mut self.rng));
        }
    }

    fn is_expected(&self, at: SocketAddr) -> bool {
        self.expected().any(|(_, target)| target.addresses.contains(&at) && !self.is_spare(target, at))
    }

    /// A name may have addresses of both families, of which its router hears one: then the other is not missed.
    fn is_spare(&self, target: &Target, at: SocketAddr) -> bool {
        let is_settled = |it: &SocketAddr| self.addresses.get(it).is_some_and(Address::is_settled);
        target.addresses.iter().any(|it| it.is_ipv4() != at.is_ipv4() && is_settled(it))
    }

    /// Places at which somebody should be.
    fn expected(&self) -> impl Iterator<Item = (&Place, &Target)> {
        let is_up = |place: &Place| self.members.values().any(|it| it.until.is_none() && it.place == *place);
        self.places.iter().filter(move |(place, it)| it.is_configured || is_up(place))
    }

    pub(super) fn leads_to(&mut self, at: SocketAddr, name: &str) {
        if let Some(address) = self.addresses.get_mut(&at) {
            *address = Address { state: State::LeadsTo(name.to_owned()), problem: None, failures: 0 };
        }
    }

    pub(super) fn is_ourselves(&mut self, at: SocketAddr, now: Instant) {
        if let Some(address) = self.addresses.get_mut(&at) {
            *address = Address { state: State::Ourselves(now + OURSELVES), problem: None, failures: 0 };
        }
    }

    /// The connection with a router is gone: all addresses that led to it are dialled again, and where membership says
    /// that it is.
    pub(super) fn lost(&mut self, name: &str, now: Instant) {
        let courtesy = self.courtesy(name);
        for address in self.addresses.values_mut() {
            if matches!(&address.state, State::LeadsTo(it) if it == name) {
                address.state = State::At(now + courtesy + backoff(WAIT_MIN, WAIT_MIN, 1, &mut self.rng));
            }
        }
    }

    /// What is wrong, in words: who should be there and is not, while so many are.
    pub(super) fn trouble(&self, connected: usize) -> Option<String> {
        let (mut all, mut silent) = (BTreeSet::new(), Vec::new());
        for (place, target) in self.expected() {
            if let Some(problem) = &target.problem {
                all.insert(place.to_string());
                silent.push(problem.clone());
            }
            for at in &target.addresses {
                let Some(address) = self.addresses.get(at) else { continue };
                let is_missed = !matches!(address.state, State::Ourselves(_)) && !self.is_spare(target, *at);
                if !is_missed || !all.insert(at.to_string()) {
                    continue;
                }
                if let Some(problem) = &address.problem {
                    silent.push(format!("{at}: {problem}"));
                }
            }
        }
        let first = silent.first()?;
        // We may be connected with some that nobody expected.
        let all = all.len().max(silent.len() + connected);
        Some(match silent.len() {
            _ if connected == 0 => format!("no peer of {all} answers: {first}"),
            1 => format!("1 of {all} peers does not answer: {first}"),
            silent => format!("{silent} of {all} peers do not answer: {first}"),
        })
    }
}

impl Address {
    fn is_settled(&self) -> bool {
        matches!(self.state, State::LeadsTo(_) | State::Ourselves(_))
    }
}

/// Twice as long each time, up to a limit; half of it by dice, so that two who lost each other do not meet in step.
fn backoff(least: Duration, most: Duration, failures: u32, rng: &mut Rng) -> Duration {
    let span = least.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(most);
    span.mul_f64(0.5 + rng.unit() / 2.0)
}

#[cfg(test)]
mod tests;
