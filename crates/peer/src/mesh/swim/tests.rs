//! Membership without sockets, in virtual time, and its encoding.

use std::collections::BTreeSet;

use foca::{Codec as _, Identity as _};
use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, any};
use proptest::{prop_assert_eq, prop_oneof, proptest};

use super::*;
use crate::mesh::clock;

/// Several members, and which routers each considers up.
struct World {
    now: Instant,
    members: Vec<(Swim, BTreeSet<String>)>,
    /// Neither reachable nor running.
    stopped: BTreeSet<usize>,
}

impl World {
    fn new(stamps: &[u64]) -> World {
        let member =
            |(idx, &stamp): (usize, &u64)| (Swim::new(identity(idx, stamp), idx as u64), BTreeSet::new());
        let members = stamps.iter().enumerate().map(member).collect();
        World { now: clock::now(), members, stopped: BTreeSet::new() }
    }

    /// Delivers messages until there are none.
    fn settle(&mut self) {
        loop {
            let (mut messages, mut renewed) = (Vec::new(), Vec::new());
            for idx in (0..self.members.len()).filter(|it| !self.stopped.contains(it)) {
                let (swim, up) = &mut self.members[idx];
                messages.extend(std::iter::from_fn(|| swim.take_message()));
                while let Some(change) = swim.take_change() {
                    match change {
                        MemberChange::Up(it) => up.insert(it.name.to_string()),
                        MemberChange::Down(it) => up.remove(&*it.name),
                        MemberChange::Renewed => {
                            renewed.push(idx);
                            false
                        }
                    };
                }
            }
            for idx in renewed {
                let others = (0..self.members.len()).filter(|it| *it != idx).map(name);
                others.for_each(|it| self.members[idx].0.announce(&it, self.now));
                messages.extend(std::iter::from_fn(|| self.members[idx].0.take_message()));
            }
            if messages.is_empty() {
                return;
            }
            for (name, message) in messages {
                let idx = usize::from(name.as_bytes()[0] - b'a');
                if !self.stopped.contains(&idx) {
                    self.members[idx].0.receive(&message, self.now).unwrap();
                }
            }
        }
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.now += Duration::from_millis(50);
            for idx in (0..self.members.len()).filter(|it| !self.stopped.contains(it)) {
                self.members[idx].0.tick(self.now);
            }
            self.settle();
        }
    }

    fn announce(&mut self, from: usize, to: usize) {
        self.members[from].0.announce(&name(to), self.now);
        self.settle();
    }

    #[track_caller]
    fn check(&self, idx: usize, up: &[usize]) {
        let expected: BTreeSet<String> = up.iter().map(|&it| name(it)).collect();
        assert_eq!(self.members[idx].1, expected, "as {} sees it", name(idx));
    }
}

fn name(idx: usize) -> String {
    char::from(b'a' + idx as u8).to_string()
}

fn identity(idx: usize, stamp: u64) -> Identity {
    Identity::new(&name(idx), "127.0.0.1:1", stamp, idx as u64)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_router_that_knows_one_peer_learns_of_all() {
    let mut world = World::new(&[1, 1, 1, 1]);
    (1..4).for_each(|it| world.announce(it, 0));
    world.run(2 * SECOND);
    world.check(0, &[1, 2, 3]);
    world.check(3, &[0, 1, 2]);
}

#[test]
fn a_stopped_router_is_down_within_seconds_and_back_at_once() {
    let mut world = World::new(&[1, 1, 1]);
    (1..3).for_each(|it| world.announce(it, 0));
    world.run(5 * SECOND);
    world.stopped.insert(2);
    world.run(2 * SECOND);
    world.check(0, &[1, 2]);
    world.run(3 * SECOND);
    world.check(0, &[1]);
    world.check(1, &[0]);
    world.stopped.clear();
    world.announce(0, 2);
    world.run(SECOND);
    for (idx, up) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
        world.check(idx, &up);
    }
}

#[test]
fn two_halves_find_each_other_again() {
    let mut world = World::new(&[1, 1]);
    world.announce(1, 0);
    world.stopped.extend([1]);
    world.run(5 * SECOND);
    world.stopped = [0].into();
    world.run(5 * SECOND);
    world.check(0, &[]);
    world.check(1, &[]);
    world.stopped.clear();
    // Both at the same moment, so that both learn at once that they were declared down.
    world.members[0].0.announce("b", world.now);
    world.announce(1, 0);
    world.check(0, &[1]);
    world.check(1, &[0]);
    world.run(5 * SECOND);
    world.check(0, &[1]);
}

#[test]
fn a_restart_replaces_the_former_identity_even_with_a_clock_set_back() {
    for stamp in [2_000_000_000_000, 3, 1_000_000_000_000] {
        let mut world = World::new(&[1, 1_700_000_000_000, 1]);
        (1..3).for_each(|it| world.announce(it, 0));
        world.run(SECOND);
        world.members[1] = (Swim::new(identity(1, stamp), 9), BTreeSet::new());
        world.announce(1, 0);
        world.run(2 * SECOND);
        for (idx, up) in [(0, [1, 2]), (1, [0, 2]), (2, [0, 1])] {
            world.check(idx, &up);
        }
        let renewed = world.members[1].0.identity();
        assert!(renewed.stamp > 1_700_000_000_000, "{renewed:?}");
        assert!(renewed.renewals < 40, "{renewed:?}");
    }
}

#[test]
fn a_leaving_router_is_down_at_once() {
    let mut world = World::new(&[1, 1, 1]);
    (1..3).for_each(|it| world.announce(it, 0));
    world.run(SECOND);
    world.members[1].0.leave(world.now);
    world.settle();
    world.check(0, &[2]);
    world.check(2, &[0]);
}

#[test]
fn a_router_that_moves_stays_up() {
    let mut world = World::new(&[1, 1]);
    world.announce(1, 0);
    let mut changes = Vec::new();
    world.members[1].0.move_to("10.0.0.1:7946", world.now);
    while let Some((_, message)) = world.members[1].0.take_message() {
        world.members[0].0.receive(&message, world.now).unwrap();
    }
    changes.extend(std::iter::from_fn(|| world.members[0].0.take_change()));
    let is_up = |it: &MemberChange| matches!(it, MemberChange::Up(it) if &*it.address == "10.0.0.1:7946");
    assert!(!changes.is_empty() && changes.iter().all(is_up), "{changes:?}");
    world.run(5 * SECOND);
    world.check(0, &[1]);
    world.check(1, &[0]);
}

#[test]
fn a_renewed_identity_wins() {
    let mut identity = identity(0, 5);
    for _ in 0..100 {
        let renewed = identity.renew().unwrap();
        assert!(renewed.win_addr_conflict(&identity) && !identity.win_addr_conflict(&renewed));
        identity = renewed;
    }
    assert!(identity.stamp < u64::MAX / 2);
}

fn identities() -> impl Strategy<Value = Identity> {
    ("[a-z:0-9]{0,40}", "[a-z:.0-9]{0,40}", any::<(u64, u64, u32)>()).prop_map(|(name, address, numbers)| {
        let (stamp, instance, renewals) = numbers;
        Identity { name: name.into(), address: address.into(), stamp, instance, renewals }
    })
}

fn messages() -> impl Strategy<Value = Message<Identity>> {
    prop_oneof![
        any::<u8>().prop_map(Message::Ping),
        any::<u8>().prop_map(Message::Ack),
        (identities(), any::<u8>())
            .prop_map(|(target, probe_number)| Message::PingReq { target, probe_number }),
        (identities(), any::<u8>())
            .prop_map(|(origin, probe_number)| Message::IndirectPing { origin, probe_number }),
        (identities(), any::<u8>())
            .prop_map(|(target, probe_number)| Message::IndirectAck { target, probe_number }),
        (identities(), any::<u8>())
            .prop_map(|(origin, probe_number)| Message::ForwardedAck { origin, probe_number }),
        Just(Message::Announce),
        Just(Message::Feed),
        Just(Message::Gossip),
        Just(Message::Broadcast),
        Just(Message::TurnUndead),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn headers_survive(src in identities(), dst in identities(), src_incarnation in any::<u16>(), message in messages()) {
        let header = Header { src, src_incarnation, dst, message };
        let mut bytes = Vec::new();
        Codec.encode_header(&header, &mut bytes).unwrap();
        bytes.push(7);
        let mut rest = &bytes[..];
        prop_assert_eq!(Codec.decode_header(&mut rest), Ok(header));
        prop_assert_eq!(rest, &[7]);
    }

    #[test]
    fn members_survive(id in identities(), incarnation in any::<u16>(), state in 0..3_usize) {
        let member = Member::new(id, incarnation, [State::Alive, State::Suspect, State::Down][state]);
        let mut bytes = Vec::new();
        Codec.encode_member(&member, &mut bytes).unwrap();
        let mut rest = &bytes[..];
        prop_assert_eq!(Codec.decode_member(&mut rest), Ok(member));
        prop_assert_eq!(rest, &[] as &[u8]);
        let mut small = [0; 8];
        prop_assert_eq!(Codec.encode_member(&Member::alive(identity(0, 0)), &mut small[..]).is_err(), true);
        prop_assert_eq!(small, [0; 8]);
    }

    #[test]
    fn any_bytes_are_decoded_or_rejected(bytes in vec(any::<u8>(), 0..300)) {
        let mut swim = Swim::new(identity(0, 1), 1);
        let _ = swim.receive(&bytes, clock::now());
    }
}
