//! The policies of other routers, and the closest strategy for each.

use super::flag::Old;

pub(super) const STICKY: &str = "sticky-session";

/// Their name, ours, and the difference if there is one.
type PolicyRow = (&'static str, &'static str, Option<&'static str>);

const SHARED: [PolicyRow; 4] = [
    ("cache_aware", "cache-aware", None),
    ("round_robin", "round-robin", None),
    ("random", "random", None),
    ("power_of_two", "power-of-two", Some("the load of the two is compared in promised tokens")),
];

const SGLANG: [PolicyRow; 5] = [
    ("manual", STICKY, Some("a request without a session goes to the least loaded worker")),
    (
        "consistent_hashing",
        STICKY,
        Some("a session stays on its first worker, instead of being hashed to one"),
    ),
    ("prefix_hash", "prefix-hash", None),
    ("least_load", "least-delay", Some("prices delay with learned rates, and includes caches")),
    ("passthrough", "round-robin", Some("with one worker all strategies are equal")),
];

const VLLM: [PolicyRow; 1] = [(
    "consistent_hash",
    STICKY,
    Some("a session stays on its first worker, instead of being hashed to one"),
)];

pub(super) fn rows(old: Old) -> impl Iterator<Item = PolicyRow> {
    let own: &[PolicyRow] = match old {
        Old::Sglang => &SGLANG,
        Old::VllmRouter => &VLLM,
    };
    SHARED.iter().chain(own).copied()
}

/// The strategy for a policy, with notes.
pub(super) fn strategy(old: Old, policy: &str) -> Result<(&'static str, Option<&'static str>), String> {
    // Dashes are accepted too.
    let name = policy.replace('-', "_");
    let found = rows(old).find(|it| it.0 == name).map(|it| (it.1, it.2));
    found.ok_or_else(|| {
        let known: Vec<&str> = rows(old).map(|it| it.0).collect();
        format!("{policy:?} is not a policy; known: {}", known.join(", "))
    })
}
