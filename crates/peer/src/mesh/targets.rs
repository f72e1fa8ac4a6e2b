//! Which addresses to dial, and when: configured peers and members, with their resolved addresses.
//!
//! An address is dialled until it leads to a connected router, and again when that connection is lost. It does not
//! matter which side dialled: all addresses of a connected router rest. Backoff doubles up to a limit, which is lower
//! if a router is expected there, and half of it is random.
//!
//! No sockets here: `due` returns jobs, and the caller reports their results.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use maitre_base::Rng;
use tokio::time::Instant;

use super::resolve::PeerAddress;
use super::swim::MEMORY;

const WAIT_MIN: Duration = Duration::from_millis(100);
/// Backoff limit for an expected router: after a partition heals, it is found within a second.
const WAIT_EXPECTED_MAX: Duration = Duration::from_millis(800);
/// Backoff limit for a router that is down and not configured.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// When both sides learn of each other, the higher name lets the other dial first.
const COURTESY: Duration = Duration::from_millis(300);
/// When to retry an address that turned out to be ours: it may be reassigned.
const OURSELVES: Duration = Duration::from_secs(60);
/// Lookup interval for a name that led to a router: new routers there will dial us.
const LOOKUP_CALM: Duration = Duration::from_secs(30);
/// Lookup interval for a name that did not.
const LOOKUP_EAGER: Duration = Duration::from_secs(5);
const LOOKUP_MIN: Duration = Duration::from_millis(500);
/// Maximum members.
const MEMBERS_MAX: usize = 256;

/// A job for the caller, who must report its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DialJob {
    Dial(SocketAddr),
    Lookup(PeerAddress),
}

#[derive(Debug)]
pub(super) struct Targets {
    /// Our own name.
    name: String,
    targets: BTreeMap<PeerAddress, DialTarget>,
    /// Addresses reported by membership.
    members: BTreeMap<String, MemberTarget>,
    addresses: BTreeMap<SocketAddr, DialAddress>,
    rng: Rng,
}

#[derive(Debug)]
struct DialTarget {
    is_configured: bool,
    lookup: Lookup,
    addresses: Vec<SocketAddr>,
    problem: Option<String>,
    failures: u32,
}

#[derive(Debug)]
enum Lookup {
    /// It is an address already.
    Never,
    At(Instant),
    UnderWay,
}

#[derive(Debug)]
struct MemberTarget {
    address: PeerAddress,
    /// When to forget it, if it is down.
    until: Option<Instant>,
}

#[derive(Debug)]
struct DialAddress {
    state: DialState,
    problem: Option<String>,
    failures: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum DialState {
    At(Instant),
    UnderWay,
    /// Leads to a connected router.
    LeadsTo(String),
    Ourselves(Instant),
}

impl Targets {
    pub(super) fn new(name: &str, configured: Vec<PeerAddress>, rng: Rng, now: Instant) -> Targets {
        let (targets, members, addresses) = Default::default();
        let mut targets = Targets { name: name.to_owned(), targets, members, addresses, rng };
        for address in configured {
            targets.add(&address, &DialState::At(now), now);
            if let Some(target) = targets.targets.get_mut(&address) {
                target.is_configured = true;
            }
        }
        targets
    }

    /// Jobs that are due.
    pub(super) fn due(&mut self, now: Instant) -> Vec<DialJob> {
        let forgotten = |it: &MemberTarget| it.until.is_some_and(|until| until <= now);
        let before = self.members.len();
        self.members.retain(|_, it| !forgotten(it));
        if self.members.len() < before {
            self.clear();
        }
        let mut jobs = Vec::new();
        for (address, target) in &mut self.targets {
            if matches!(target.lookup, Lookup::At(at) if at <= now) {
                target.lookup = Lookup::UnderWay;
                jobs.push(DialJob::Lookup(address.clone()));
            }
        }
        for (&at, address) in &mut self.addresses {
            if matches!(address.state, DialState::At(due) | DialState::Ourselves(due) if due <= now) {
                address.state = DialState::UnderWay;
                jobs.push(DialJob::Dial(at));
            }
        }
        jobs
    }

    /// When the next job is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let lookups = self.targets.values().filter_map(|it| match it.lookup {
            Lookup::At(at) => Some(at),
            Lookup::Never | Lookup::UnderWay => None,
        });
        let dials = self.addresses.values().filter_map(|it| match it.state {
            DialState::At(at) | DialState::Ourselves(at) => Some(at),
            DialState::UnderWay | DialState::LeadsTo(_) => None,
        });
        lookups.chain(dials).chain(self.members.values().filter_map(|it| it.until)).min()
    }

    /// Membership reports a router as up. A connected router need not be dialled.
    pub(super) fn up(&mut self, name: &str, address: PeerAddress, is_connected: bool, now: Instant) {
        if self.members.len() >= MEMBERS_MAX && !self.members.contains_key(name) {
            return;
        }
        self.members.insert(name.to_owned(), MemberTarget { address: address.clone(), until: None });
        let state = match is_connected {
            true => DialState::LeadsTo(name.to_owned()),
            false => DialState::At(now + self.courtesy(name)),
        };
        self.add(&address, &state, now);
        self.clear();
    }

    /// Membership reports a router as down: it is dialled for a while, less and less often.
    pub(super) fn down(&mut self, name: &str, now: Instant) {
        if let Some(member) = self.members.get_mut(name) {
            member.until = Some(now + MEMORY);
        }
    }

    fn courtesy(&self, name: &str) -> Duration {
        if self.name.as_str() > name { COURTESY } else { Duration::ZERO }
    }

    fn add(&mut self, address: &PeerAddress, state: &DialState, now: Instant) {
        if !self.targets.contains_key(address) {
            let (lookup, addresses) = match address {
                PeerAddress::Socket(address) => (Lookup::Never, vec![*address]),
                PeerAddress::Name { .. } => (Lookup::At(now), Vec::new()),
            };
            let target = DialTarget { is_configured: false, lookup, addresses, problem: None, failures: 0 };
            self.targets.insert(address.clone(), target);
        }
        for at in self.targets.get(address).map(|it| it.addresses.clone()).unwrap_or_default() {
            self.add_address(at, state);
        }
    }

    /// An address waiting to be dialled rests if it leads to a connected router.
    fn add_address(&mut self, at: SocketAddr, state: &DialState) {
        let fresh = || DialAddress { state: state.clone(), problem: None, failures: 0 };
        let address = self.addresses.entry(at).or_insert_with(fresh);
        if matches!((state, &address.state), (DialState::LeadsTo(_), DialState::At(_))) {
            *address = fresh();
        }
    }

    /// Forgets unreferenced targets and their addresses.
    fn clear(&mut self) {
        let (members, targets) = (&self.members, &mut self.targets);
        targets.retain(|address, it| it.is_configured || members.values().any(|it| it.address == *address));
        let listed = |at: &SocketAddr| self.targets.values().any(|it| it.addresses.contains(at));
        self.addresses.retain(|at, _| listed(at));
    }

    /// Records a lookup's result. Returns whether it failed for a new reason.
    pub(super) fn found(
        &mut self,
        address: &PeerAddress,
        found: Result<Vec<SocketAddr>, String>,
        now: Instant,
    ) -> bool {
        let Some(target) = self.targets.get_mut(address) else { return false };
        let is_new = found.as_ref().err().is_some_and(|it| target.problem.as_ref() != Some(it));
        let wait = match found {
            Ok(addresses) => {
                (target.addresses, target.problem, target.failures) = (addresses, None, 0);
                let leads = |it: &SocketAddr| self.addresses.get(it).is_some_and(DialAddress::is_settled);
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
            self.add_address(at, &DialState::At(now));
        }
        self.clear();
        is_new
    }

    /// Records a failed dial. Returns whether a router was expected there and the reason is new.
    pub(super) fn failed(&mut self, at: SocketAddr, problem: String, now: Instant) -> bool {
        let is_expected = self.is_expected(at);
        let max = if is_expected { WAIT_EXPECTED_MAX } else { WAIT_MAX };
        let Some(address) = self.addresses.get_mut(&at) else { return false };
        address.failures = address.failures.saturating_add(1);
        address.state = DialState::At(now + backoff(WAIT_MIN, max, address.failures, &mut self.rng));
        let is_new = is_expected && address.problem.as_ref() != Some(&problem);
        address.problem = Some(problem);
        is_new
    }

    /// Dials again later, although nothing failed.
    pub(super) fn postpone(&mut self, at: SocketAddr, now: Instant) {
        if let Some(address) = self.addresses.get_mut(&at) {
            address.state = DialState::At(now + backoff(WAIT_MIN, WAIT_MIN, 1, &mut self.rng));
        }
    }

    fn is_expected(&self, at: SocketAddr) -> bool {
        self.expected().any(|(_, target)| target.addresses.contains(&at) && !self.is_spare(target, at))
    }

    /// A name may have addresses of both families while its router listens on one: the other is not missing.
    fn is_spare(&self, target: &DialTarget, at: SocketAddr) -> bool {
        let is_settled = |it: &SocketAddr| self.addresses.get(it).is_some_and(DialAddress::is_settled);
        target.addresses.iter().any(|it| it.is_ipv4() != at.is_ipv4() && is_settled(it))
    }

    /// Targets where a router is expected.
    fn expected(&self) -> impl Iterator<Item = (&PeerAddress, &DialTarget)> {
        let is_up = |address: &PeerAddress| {
            self.members.values().any(|it| it.until.is_none() && it.address == *address)
        };
        self.targets.iter().filter(move |(address, it)| it.is_configured || is_up(address))
    }

    pub(super) fn leads_to(&mut self, at: SocketAddr, name: &str) {
        if let Some(address) = self.addresses.get_mut(&at) {
            *address = DialAddress { state: DialState::LeadsTo(name.to_owned()), problem: None, failures: 0 };
        }
    }

    pub(super) fn is_ourselves(&mut self, at: SocketAddr, now: Instant) {
        if let Some(address) = self.addresses.get_mut(&at) {
            *address =
                DialAddress { state: DialState::Ourselves(now + OURSELVES), problem: None, failures: 0 };
        }
    }

    /// The connection to a router is lost: dial all its addresses again.
    pub(super) fn lost(&mut self, name: &str, now: Instant) {
        let courtesy = self.courtesy(name);
        for address in self.addresses.values_mut() {
            if matches!(&address.state, DialState::LeadsTo(it) if it == name) {
                address.state = DialState::At(now + courtesy + backoff(WAIT_MIN, WAIT_MIN, 1, &mut self.rng));
            }
        }
    }

    /// Describes expected routers that do not answer.
    pub(super) fn trouble(&self, connected: usize) -> Option<String> {
        let (mut all, mut silent) = (BTreeSet::new(), Vec::new());
        for (address, target) in self.expected() {
            if let Some(problem) = &target.problem {
                all.insert(address.to_string());
                silent.push(problem.clone());
            }
            for at in &target.addresses {
                let Some(address) = self.addresses.get(at) else { continue };
                let is_missed =
                    !matches!(address.state, DialState::Ourselves(_)) && !self.is_spare(target, *at);
                if !is_missed || !all.insert(at.to_string()) {
                    continue;
                }
                if let Some(problem) = &address.problem {
                    silent.push(format!("{at}: {problem}"));
                }
            }
        }
        let first = silent.first()?;
        // Some connected routers may be unexpected.
        let all = all.len().max(silent.len() + connected);
        Some(match silent.len() {
            _ if connected == 0 => format!("no peer of {all} answers: {first}"),
            1 => format!("1 of {all} peers does not answer: {first}"),
            silent => format!("{silent} of {all} peers do not answer: {first}"),
        })
    }
}

impl DialAddress {
    fn is_settled(&self) -> bool {
        matches!(self.state, DialState::LeadsTo(_) | DialState::Ourselves(_))
    }
}

/// Exponential backoff with a limit; half of it is random, so that two routers do not retry in lockstep.
fn backoff(least: Duration, most: Duration, failures: u32, rng: &mut Rng) -> Duration {
    let span = least.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(most);
    span.mul_f64(0.5 + rng.unit() / 2.0)
}

#[cfg(test)]
mod tests;
