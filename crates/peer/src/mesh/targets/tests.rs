//! Dial decisions in virtual time.

use super::*;
use crate::mesh::clock;

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

fn address(port: u16) -> PeerAddress {
    PeerAddress::Socket(at(port))
}

fn named() -> PeerAddress {
    "routers:1".parse().unwrap()
}

fn targets(targets: &[PeerAddress]) -> (Targets, Instant) {
    let now = clock::now();
    (Targets::new("a", targets.to_vec(), Rng::new(1), now), now)
}

/// Fails every dial for a while and returns the longest wait.
fn fail(targets: &mut Targets, now: &mut Instant, times: usize) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..times {
        let next = targets.next().unwrap();
        longest = longest.max(next.saturating_duration_since(*now));
        *now = next.max(*now);
        for job in targets.due(*now) {
            if let DialJob::Dial(at) = job {
                targets.failed(at, "refused".to_owned(), *now);
            }
        }
    }
    longest
}

#[test]
fn a_configured_address_is_dialled_at_once_and_then_every_second() {
    let (mut targets, mut now) = targets(&[address(1)]);
    assert_eq!(targets.due(now), [DialJob::Dial(at(1))]);
    assert_eq!(targets.due(now), [], "it is being dialled");
    assert!(targets.failed(at(1), "refused".to_owned(), now), "news");
    assert!(!targets.failed(at(1), "refused".to_owned(), now), "no news");
    assert_eq!(targets.trouble(0).unwrap(), "no peer of 1 answers: 10.0.0.1:1: refused");
    let longest = fail(&mut targets, &mut now, 50);
    assert!(longest <= WAIT_EXPECTED_MAX && longest > WAIT_EXPECTED_MAX / 2, "{longest:?}");
}

#[test]
fn an_address_of_a_connected_router_rests_until_the_connection_is_lost() {
    let (mut targets, now) = targets(&[address(1), address(2)]);
    targets.due(now);
    targets.leads_to(at(1), "b");
    targets.failed(at(2), "refused".to_owned(), now);
    assert_eq!(targets.trouble(1).unwrap(), "1 of 2 peers does not answer: 10.0.0.1:2: refused");
    targets.leads_to(at(2), "b");
    assert_eq!((targets.next(), targets.trouble(0)), (None, None));
    targets.lost("c", now);
    assert_eq!(targets.next(), None);
    targets.lost("b", now);
    assert!(targets.next().unwrap() <= now + WAIT_MIN);
    assert_eq!(targets.due(now + WAIT_MIN).len(), 2);
}

#[test]
fn our_own_address_is_not_reported_missing() {
    let (mut targets, now) = targets(&[address(1)]);
    targets.due(now);
    targets.is_ourselves(at(1), now);
    assert_eq!(targets.trouble(0), None);
    assert_eq!(targets.next(), Some(now + OURSELVES));
    assert_eq!(targets.due(now + OURSELVES), [DialJob::Dial(at(1))]);
}

#[test]
fn a_member_that_is_down_is_dialled_less_and_less_often() {
    let (mut targets, mut now) = targets(&[]);
    assert_eq!((targets.next(), targets.trouble(0)), (None, None));
    targets.up("b", address(1), false, now);
    assert!(fail(&mut targets, &mut now, 20) <= WAIT_EXPECTED_MAX);
    assert!(targets.trouble(0).is_some());
    targets.down("b", now);
    assert_eq!(targets.trouble(0), None, "nobody expects it");
    let longest = fail(&mut targets, &mut now, 20);
    assert!(longest > WAIT_MAX / 2 && longest <= WAIT_MAX, "{longest:?}");
    targets.due(now + MEMORY);
    assert_eq!(targets.next(), None, "forgotten");
    assert!(targets.addresses.is_empty() && targets.targets.is_empty());
}

#[test]
fn a_connected_member_is_not_dialled_at_any_address() {
    let (mut targets, now) = targets(&[]);
    targets.up("b", address(1), true, now);
    assert_eq!(targets.due(now), []);
    targets.up("b", address(2), true, now);
    targets.lost("b", now);
    assert_eq!(targets.due(now + WAIT_MIN), [DialJob::Dial(at(2))]);
}

#[test]
fn members_are_bounded() {
    let (mut targets, now) = targets(&[]);
    (0..1_000).for_each(|it| targets.up(&it.to_string(), address(it), false, now));
    assert_eq!(targets.addresses.len(), MEMBERS_MAX);
}

#[test]
fn a_name_is_resolved_repeatedly_and_its_addresses_change() {
    let (mut targets, now) = targets(&[named()]);
    assert_eq!(targets.due(now), [DialJob::Lookup(named())]);
    targets.found(&named(), Err("look routers up: nobody".to_owned()), now);
    assert_eq!(targets.trouble(0).unwrap(), "no peer of 1 answers: look routers up: nobody");
    let now = targets.next().unwrap();
    assert_eq!(targets.due(now), [DialJob::Lookup(named())]);
    targets.found(&named(), Ok(vec![at(1), at(2)]), now);
    assert_eq!(targets.due(now), [DialJob::Dial(at(1)), DialJob::Dial(at(2))]);
    targets.leads_to(at(1), "b");
    targets.is_ourselves(at(2), now);
    let now = now + LOOKUP_EAGER;
    assert_eq!(targets.due(now), [DialJob::Lookup(named())]);
    targets.found(&named(), Ok(vec![at(1), at(2)]), now);
    assert_eq!(targets.next(), Some(now + LOOKUP_CALM));
    let now = now + LOOKUP_CALM;
    targets.due(now);
    targets.found(&named(), Ok(vec![at(3)]), now);
    assert_eq!(targets.due(now), [DialJob::Dial(at(3))]);
    assert_eq!(targets.addresses.len(), 1);
    targets.found(&named(), Err("later".to_owned()), now);
    assert_eq!(targets.addresses.len(), 1, "what is known stays");
}

#[test]
fn the_higher_name_lets_the_other_dial_first() {
    let (mut targets, now) = targets(&[]);
    targets.up("A", address(1), false, now);
    assert_eq!(targets.next(), Some(now + COURTESY));
    targets.up("A", address(1), true, now);
    targets.lost("A", now);
    assert!(targets.next().unwrap() > now + COURTESY);
}

#[test]
fn a_name_with_both_address_families_needs_one() {
    let (mut targets, now) = targets(&[named()]);
    let six = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 1));
    targets.due(now);
    targets.found(&named(), Ok(vec![at(1), six]), now);
    targets.due(now);
    assert!(targets.failed(six, "refused".to_owned(), now));
    assert!(targets.trouble(0).is_some());
    targets.leads_to(at(1), "b");
    assert_eq!(targets.trouble(1), None);
    let mut later = now;
    targets.failed(six, "refused".to_owned(), now);
    assert!(fail(&mut targets, &mut later, 20) > WAIT_EXPECTED_MAX, "it is not in a hurry");
    targets.lost("b", later);
    assert!(targets.trouble(0).is_some());
}
