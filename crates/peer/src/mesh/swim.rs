//! Membership with foca: its messages as bytes, its timers as a list.
//!
//! SWIM probes one member after another, asks others to probe if there is no reply, suspects a silent member, and
//! declares it down unless it refutes the suspicion. Changes are gossiped with these messages. SWIM does not need a
//! full mesh; we have one and use it.
//!
//! A member is identified by its name. Of two identities with one name, the later start wins. A member that was
//! declared down (it was suspended or cut off) returns at once with a later identity.

use std::collections::BTreeMap;
use std::num::{NonZeroU8, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use foca::{
    AccumulatingRuntime, Config, Foca, Header, Incarnation, Member, Message, NoCustomBroadcast,
    OwnedNotification, PeriodicParams, State, Timer,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::time::Instant;

use super::wire::{self, ByteReader, GOSSIP_MAX, ProtocolError};

/// Interval between two probes.
const PERIOD: Duration = Duration::from_secs(1);
/// Reply time before others are asked to probe.
const ROUND_TRIP: Duration = Duration::from_millis(300);
/// Time to refute a suspicion. Together with the period, a stopped router is down after two to three seconds.
const SUSPICION: Duration = Duration::from_millis(1_500);
/// How long a router that is down is remembered and dialled.
pub(super) const MEMORY: Duration = Duration::from_secs(600);
/// How much later than the last a renewed identity is, in milliseconds; doubled each time. A router whose clock was
/// set back by a year is accepted after thirty renewals, one per message.
const LEAP_MS: u64 = 1_000;
const LEAPS_MAX: u32 = 36;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) name: Arc<str>,
    pub(super) address: Arc<str>,
    /// Start time by its own clock, or later.
    pub(super) stamp: u64,
    pub(super) instance: u64,
    renewals: u32,
}

impl Identity {
    pub(super) fn new(name: &str, address: &str, stamp: u64, instance: u64) -> Identity {
        Identity { name: name.into(), address: address.into(), stamp, instance, renewals: 0 }
    }

    fn at(&self, address: &str) -> Identity {
        let stamp = self.stamp.saturating_add(1);
        Identity { address: address.into(), stamp, ..self.clone() }
    }
}

impl foca::Identity for Identity {
    type Addr = Arc<str>;

    fn renew(&self) -> Option<Identity> {
        let stamp = self.stamp.saturating_add(LEAP_MS << self.renewals.min(LEAPS_MAX));
        Some(Identity { stamp, renewals: self.renewals.saturating_add(1), ..self.clone() })
    }

    fn addr(&self) -> Arc<str> {
        self.name.clone()
    }

    fn win_addr_conflict(&self, adversary: &Identity) -> bool {
        (self.stamp, self.instance) > (adversary.stamp, adversary.instance)
    }
}

/// A membership change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MemberChange {
    Up(Identity),
    Down(Identity),
    /// We were declared down and have a new identity. Connected peers must learn it: if both sides renewed at the
    /// same moment, each sends to an identity that no longer exists.
    Renewed,
}

pub(super) struct Swim {
    foca: Foca<Identity, Codec, SmallRng, NoCustomBroadcast>,
    runtime: AccumulatingRuntime<Identity>,
    timers: BTreeMap<(Instant, u64), Timer<Identity>>,
    timers_set: u64,
}

impl Swim {
    pub(super) fn new(identity: Identity, seed: u64) -> Swim {
        Swim {
            foca: Foca::new(identity, config(), SmallRng::seed_from_u64(seed), Codec),
            runtime: AccumulatingRuntime::new(),
            timers: BTreeMap::new(),
            timers_set: 0,
        }
    }

    pub(super) fn identity(&self) -> &Identity {
        self.foca.identity()
    }

    /// Our address differs from what we assumed.
    pub(super) fn move_to(&mut self, address: &str, now: Instant) {
        let identity = self.foca.identity().at(address);
        let moved = self.foca.change_identity(identity, &mut self.runtime);
        self.after(moved, now);
    }

    /// Announces us to a connected peer.
    pub(super) fn announce(&mut self, name: &str, now: Instant) {
        // Only the name is used; the rest is what we are about to learn.
        let announced = self.foca.announce(Identity::new(name, "", 0, 0), &mut self.runtime);
        self.after(announced, now);
    }

    pub(super) fn receive(&mut self, message: &[u8], now: Instant) -> Result<(), ProtocolError> {
        let received = self.foca.handle_data(message, &mut self.runtime);
        match received {
            Err(foca::Error::Decode(_) | foca::Error::MalformedPacket | foca::Error::DataTooBig) => {
                Err(ProtocolError("a malformed membership message"))
            }
            other => {
                self.after(other, now);
                Ok(())
            }
        }
    }

    /// Runs all timers that are due.
    pub(super) fn tick(&mut self, now: Instant) {
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            let ticked = self.foca.handle_timer(entry.remove(), &mut self.runtime);
            self.after(ticked, now);
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.timers.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn leave(&mut self, now: Instant) {
        let left = self.foca.leave_cluster(&mut self.runtime);
        self.after(left, now);
    }

    /// The next message to send, with the receiver's name.
    pub(super) fn take_message(&mut self) -> Option<(Arc<str>, Bytes)> {
        self.runtime.to_send().map(|(to, message)| (to.name, message))
    }

    pub(super) fn take_change(&mut self) -> Option<MemberChange> {
        loop {
            match self.runtime.to_notify()? {
                OwnedNotification::MemberUp(it) => return Some(MemberChange::Up(it)),
                OwnedNotification::MemberDown(it) => return Some(MemberChange::Down(it)),
                // Restarted or moved: its address may have changed, and it is still up. Its next message confirms
                // that.
                OwnedNotification::Rename(_, it) if self.is_up(&it) => return Some(MemberChange::Up(it)),
                OwnedNotification::Rejoin(it) => {
                    tracing::info!(router = %it.name, "peers had declared this router down; it has rejoined");
                    return Some(MemberChange::Renewed);
                }
                _ => (),
            }
        }
    }

    fn is_up(&self, identity: &Identity) -> bool {
        self.foca.iter_members().any(|it| it.id() == identity)
    }

    /// Stores new timers after a call. Errors concern late or duplicate messages.
    fn after(&mut self, done: Result<(), foca::Error>, now: Instant) {
        if let Err(error) = done {
            tracing::debug!(%error, "membership");
        }
        while let Some((after, timer)) = self.runtime.to_schedule() {
            self.timers.insert((now + after, self.timers_set), timer);
            self.timers_set += 1;
        }
    }
}

fn config() -> Config {
    let often = |frequency, members| Some(PeriodicParams { frequency, num_members: at_least_one(members) });
    Config {
        probe_period: PERIOD,
        probe_rtt: ROUND_TRIP,
        num_indirect_probes: at_least_one(3),
        max_transmissions: NonZeroU8::new(10).unwrap_or(NonZeroU8::MIN),
        suspect_to_down_after: SUSPICION,
        remove_down_after: Some(MEMORY),
        max_packet_size: at_least_one(GOSSIP_MAX),
        notify_down_members: true,
        periodic_announce: often(Duration::from_secs(30), 1),
        periodic_announce_to_down_members: often(Duration::from_secs(5), 2),
        periodic_gossip: often(Duration::from_millis(200), 3),
    }
}

fn at_least_one(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN)
}

/// Foca's values as bytes: length-prefixed text and big-endian numbers.
#[derive(Clone, Copy, Debug)]
struct Codec;

impl foca::Codec<Identity> for Codec {
    type Error = ProtocolError;

    fn encode_header(&mut self, header: &Header<Identity>, buf: impl BufMut) -> Result<(), ProtocolError> {
        let mut bytes = Vec::with_capacity(128);
        put_identity(&mut bytes, &header.src);
        bytes.extend(header.src_incarnation.to_be_bytes());
        put_identity(&mut bytes, &header.dst);
        put_message(&mut bytes, &header.message);
        put(&bytes, buf)
    }

    fn decode_header(&mut self, buf: impl Buf) -> Result<Header<Identity>, ProtocolError> {
        decode(buf, |reader| {
            let (src, src_incarnation) = (identity(reader)?, reader.u16()?);
            Ok(Header { src, src_incarnation, dst: identity(reader)?, message: message(reader)? })
        })
    }

    fn encode_member(&mut self, member: &Member<Identity>, buf: impl BufMut) -> Result<(), ProtocolError> {
        let mut bytes = Vec::with_capacity(64);
        put_identity(&mut bytes, member.id());
        bytes.extend(member.incarnation().to_be_bytes());
        bytes.push(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        put(&bytes, buf)
    }

    fn decode_member(&mut self, buf: impl Buf) -> Result<Member<Identity>, ProtocolError> {
        decode(buf, |reader| {
            let (id, incarnation): (Identity, Incarnation) = (identity(reader)?, reader.u16()?);
            let state = match reader.u8()? {
                0 => State::Alive,
                1 => State::Suspect,
                2 => State::Down,
                _ => return Err(ProtocolError("a member with an unknown state")),
            };
            Ok(Member::new(id, incarnation, state))
        })
    }
}

/// All bytes or none.
fn put(bytes: &[u8], mut buf: impl BufMut) -> Result<(), ProtocolError> {
    if buf.remaining_mut() < bytes.len() {
        return Err(ProtocolError("a message that is too long"));
    }
    buf.put_slice(bytes);
    Ok(())
}

/// Foca passes one contiguous buffer and expects us to consume what we read.
fn decode<T>(
    mut buf: impl Buf,
    read: impl FnOnce(&mut ByteReader<'_>) -> Result<T, ProtocolError>,
) -> Result<T, ProtocolError> {
    let mut reader = ByteReader(buf.chunk());
    let all = reader.0.len();
    let value = read(&mut reader)?;
    let done = all - reader.0.len();
    buf.advance(done);
    Ok(value)
}

fn put_identity(bytes: &mut Vec<u8>, identity: &Identity) {
    wire::put_text(bytes, &identity.name);
    wire::put_text(bytes, &identity.address);
    bytes.extend(identity.stamp.to_be_bytes());
    bytes.extend(identity.instance.to_be_bytes());
    bytes.extend(identity.renewals.to_be_bytes());
}

fn identity(reader: &mut ByteReader<'_>) -> Result<Identity, ProtocolError> {
    let (name, address) = (reader.text()?, reader.text()?);
    let (stamp, instance, renewals) = (reader.u64()?, reader.u64()?, reader.u32()?);
    Ok(Identity { name: name.into(), address: address.into(), stamp, instance, renewals })
}

fn put_message(bytes: &mut Vec<u8>, message: &Message<Identity>) {
    let mut put = |kind: u8, probe: Option<u8>, identity: Option<&Identity>| {
        bytes.push(kind);
        bytes.extend(probe);
        if let Some(identity) = identity {
            put_identity(bytes, identity);
        }
    };
    match message {
        Message::Ping(probe) => put(0, Some(*probe), None),
        Message::Ack(probe) => put(1, Some(*probe), None),
        Message::PingReq { target, probe_number } => put(2, Some(*probe_number), Some(target)),
        Message::IndirectPing { origin, probe_number } => put(3, Some(*probe_number), Some(origin)),
        Message::IndirectAck { target, probe_number } => put(4, Some(*probe_number), Some(target)),
        Message::ForwardedAck { origin, probe_number } => put(5, Some(*probe_number), Some(origin)),
        Message::Announce => put(6, None, None),
        Message::Feed => put(7, None, None),
        Message::Gossip => put(8, None, None),
        Message::Broadcast => put(9, None, None),
        Message::TurnUndead => put(10, None, None),
    }
}

fn message(reader: &mut ByteReader<'_>) -> Result<Message<Identity>, ProtocolError> {
    let kind = reader.u8()?;
    Ok(match kind {
        0 => Message::Ping(reader.u8()?),
        1 => Message::Ack(reader.u8()?),
        2..=5 => {
            let (probe_number, other) = (reader.u8()?, identity(reader)?);
            match kind {
                2 => Message::PingReq { target: other, probe_number },
                3 => Message::IndirectPing { origin: other, probe_number },
                4 => Message::IndirectAck { target: other, probe_number },
                _ => Message::ForwardedAck { origin: other, probe_number },
            }
        }
        6 => Message::Announce,
        7 => Message::Feed,
        8 => Message::Gossip,
        9 => Message::Broadcast,
        10 => Message::TurnUndead,
        _ => return Err(ProtocolError("a membership message of unknown kind")),
    })
}

#[cfg(test)]
mod tests;
