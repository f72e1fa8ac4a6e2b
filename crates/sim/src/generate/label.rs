//! Classes, tenants and deadlines, which apply to every workload after it is generated.
//!
//! They use their own random numbers, one stream per key: the same seed gives the same prompts at the same times with
//! or without them.

use std::time::Duration;

use maitre_base::hash;

use super::dice::Dice;
use super::key::{Deadline, ValueType, Values, WeightedName, WorkloadKey, key};
use crate::trace::Request;

/// The keys that all workloads have beside their own.
pub static COMMON: [WorkloadKey; 3] = [
    key("classes", "", ValueType::CLASSES, "NAME:SHARE;… of requests that have no class by another key"),
    key("tenants", "", ValueType::TENANTS, "NAME:SHARE;… of requests"),
    key(
        "deadline",
        "",
        ValueType::Deadlines,
        "seconds to the first token: S for all, LEAST-MOST to draw it, CLASS:S;… for some",
    ),
];

/// A stream number per key, so that keys draw independently.
#[derive(Clone, Copy)]
enum Rolled {
    Class = 1,
    Tenant,
    Deadline,
}

/// Labels requests, in order, as the keys say.
pub(super) fn label(requests: &mut [Request], values: &Values, seed: u64) {
    let classes = values.shares("classes");
    each(requests, (seed, Rolled::Class), |request, dice| {
        let drawn = draw(classes, dice).map(|it| it.name.clone());
        request.class = request.class.take().or(drawn);
    });
    let tenants = values.shares("tenants");
    each(requests, (seed, Rolled::Tenant), |request, dice| {
        request.tenant = draw(tenants, dice).map_or(0, |it| tenant(&it.name));
    });
    let deadlines = values.deadlines();
    each(requests, (seed, Rolled::Deadline), |request, dice| {
        let class = request.class.as_deref();
        let suits = |it: &&Deadline| it.class.is_none() || it.class.as_deref() == class;
        request.deadline = deadlines.iter().find(suits).map(|it| patience(it, dice));
    });
}

/// As in a trace, and in the router.
pub(super) fn tenant(name: &str) -> u64 {
    hash::bytes(0, name.as_bytes())
}

/// All turns of a conversation have one class, one tenant and one deadline.
fn each(requests: &mut [Request], (seed, rolled): (u64, Rolled), set: impl Fn(&mut Request, &mut Dice)) {
    let seed = hash::pair(hash::pair(seed, 0x6C61_6265_6C73), rolled as u64);
    let mut dice = Dice::new(seed);
    for request in requests {
        match request.session {
            Some(session) => set(request, &mut Dice::new(hash::pair(seed, session))),
            None => set(request, &mut dice),
        }
    }
}

fn draw<'a>(shares: &'a [WeightedName], dice: &mut Dice) -> Option<&'a WeightedName> {
    let mut left = dice.unit() * shares.iter().map(|it| it.weight).sum::<f64>();
    let hit = shares.iter().find(|it| {
        left -= it.weight;
        left < 0.0
    });
    // The rounding remainder goes to the last.
    hit.or(shares.last())
}

/// To the millisecond, which is what a client can say.
fn patience(deadline: &Deadline, dice: &mut Dice) -> Duration {
    let seconds = deadline.least + dice.unit() * (deadline.most - deadline.least);
    Duration::from_millis((seconds * 1e3).round().max(1.0) as u64)
}
