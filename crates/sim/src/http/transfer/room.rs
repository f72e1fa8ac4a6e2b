//! The rooms of a prefill engine: where the two legs of a request meet.
//!
//! A room is used once. As in SGLang, a late message of its first request reaches the second one. So a room that is
//! in use or was used before is poisoned: neither leg waits there, and the decode engine gets KV that is not its own.
//! If a room's prefill leg ended early, its decode leg gets nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Rooms that are remembered as used, the latest ones.
const USED_MAX: usize = 4_096;

#[derive(Clone, Default)]
pub(super) struct Rooms(Arc<Mutex<RoomTable>>);

#[derive(Default)]
struct RoomTable {
    open: BTreeMap<u64, watch::Sender<Room>>,
    used: VecDeque<(u64, Spoiled)>,
}

/// Why a room cannot be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoiled {
    /// It is in use, or has been.
    Poisoned,
    /// Its prefill leg ended before its KV had been read.
    Abandoned,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    prefill: PrefillLeg,
    decode: DecodeLeg,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum PrefillLeg {
    #[default]
    Absent,
    Present,
    /// The KV of the prompt with this seed can be read.
    Ready {
        seed: u64,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DecodeLeg {
    #[default]
    Absent,
    Present,
    Done,
    Gone,
}

/// A prefill leg in its room. Dropping it closes the room; a decode leg that waits there is not notified.
pub(super) struct PrefillSeat {
    rooms: Rooms,
    number: u64,
    room: watch::Receiver<Room>,
}

/// A decode leg in its room, until it is dropped.
pub(super) struct DecodeSeat {
    rooms: Rooms,
    number: u64,
    room: watch::Receiver<Room>,
}

impl Rooms {
    /// Enters as the prefill leg.
    pub(super) fn enter_prefill(&self, number: u64) -> Result<PrefillSeat, Spoiled> {
        let is_free = |it: &Room| it.prefill == PrefillLeg::Absent;
        let room = self.enter(number, is_free, |it| it.prefill = PrefillLeg::Present)?;
        Ok(PrefillSeat { rooms: self.clone(), number, room })
    }

    /// Enters as the decode leg.
    pub(super) fn enter_decode(&self, number: u64) -> Result<DecodeSeat, Spoiled> {
        let is_free = |it: &Room| it.decode == DecodeLeg::Absent;
        let room = self.enter(number, is_free, |it| it.decode = DecodeLeg::Present)?;
        Ok(DecodeSeat { rooms: self.clone(), number, room })
    }

    fn enter(
        &self,
        number: u64,
        is_free: impl FnOnce(&Room) -> bool,
        take: impl FnOnce(&mut Room),
    ) -> Result<watch::Receiver<Room>, Spoiled> {
        let mut table = self.0.lock();
        if let Some(&(_, spoiled)) = table.used.iter().find(|it| it.0 == number) {
            return Err(spoiled);
        }
        let room = table.open.entry(number).or_default();
        if !is_free(&room.borrow()) {
            return Err(Spoiled::Poisoned);
        }
        room.send_modify(take);
        Ok(room.subscribe())
    }

    fn change(&self, number: u64, change: impl FnOnce(&mut Room)) {
        if let Some(room) = self.0.lock().open.get(&number) {
            room.send_modify(change);
        }
    }

    fn close(&self, number: u64) {
        let mut table = self.0.lock();
        let Some(room) = table.open.remove(&number) else { return };
        let is_served = room.borrow().decode == DecodeLeg::Done;
        if table.used.len() == USED_MAX {
            table.used.pop_front();
        }
        table.used.push_back((number, if is_served { Spoiled::Poisoned } else { Spoiled::Abandoned }));
    }
}

impl PrefillSeat {
    /// Returns once the decode leg has joined.
    pub(super) async fn decode_joined(&mut self) {
        // Its sender lives as long as the seat.
        let _ = self.room.wait_for(|it| it.decode != DecodeLeg::Absent).await;
    }

    /// The KV can be read.
    pub(super) fn ready(&self, seed: u64) {
        self.rooms.change(self.number, |it| it.prefill = PrefillLeg::Ready { seed });
    }

    /// Returns once the decode leg has everything, or has disconnected. Returns whether it has everything.
    pub(super) async fn decode_done(&mut self) -> bool {
        let ended = self.room.wait_for(|it| matches!(it.decode, DecodeLeg::Done | DecodeLeg::Gone)).await;
        ended.is_ok_and(|it| it.decode == DecodeLeg::Done)
    }
}

impl Drop for PrefillSeat {
    fn drop(&mut self) {
        self.rooms.close(self.number);
    }
}

impl DecodeSeat {
    /// Returns the seed of the prompt once its KV can be read. Never returns if the prefill leg ends before.
    pub(super) async fn prefill_ready(&mut self) -> u64 {
        let is_ready = |it: &Room| matches!(it.prefill, PrefillLeg::Ready { .. });
        let room = self.room.wait_for(is_ready).await.map(|it| *it);
        match room {
            Ok(Room { prefill: PrefillLeg::Ready { seed }, .. }) => seed,
            _ => std::future::pending().await,
        }
    }

    pub(super) fn done(&self) {
        self.rooms.change(self.number, |it| it.decode = DecodeLeg::Done);
    }
}

impl Drop for DecodeSeat {
    fn drop(&mut self) {
        let mut table = self.rooms.0.lock();
        let Some(room) = table.open.get(&self.number) else { return };
        let is_alone = room.borrow().prefill == PrefillLeg::Absent;
        // It left before the other leg came, which then waits for another one.
        if is_alone {
            table.open.remove(&self.number);
        } else {
            room.send_modify(|it| {
                if it.decode == DecodeLeg::Present {
                    it.decode = DecodeLeg::Gone;
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a future is ready at once.
    async fn now<T>(work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            result = work => Some(result),
            () = std::future::ready(()) => None,
        }
    }

    #[tokio::test]
    async fn the_legs_wait_for_each_other() {
        let rooms = Rooms::default();
        let mut prefill = rooms.enter_prefill(7).unwrap();
        assert_eq!(now(prefill.decode_joined()).await, None);
        let mut decode = rooms.enter_decode(7).unwrap();
        assert_eq!(now(prefill.decode_joined()).await, Some(()));
        assert_eq!(now(decode.prefill_ready()).await, None);
        prefill.ready(5);
        assert_eq!(now(decode.prefill_ready()).await, Some(5));
        assert_eq!(now(prefill.decode_done()).await, None);
        decode.done();
        drop(decode);
        assert_eq!(now(prefill.decode_done()).await, Some(true));
    }

    #[tokio::test]
    async fn the_decode_leg_may_come_first_and_leave_again() {
        let rooms = Rooms::default();
        drop(rooms.enter_decode(7).unwrap());
        let mut prefill = rooms.enter_prefill(7).unwrap();
        assert_eq!(now(prefill.decode_joined()).await, None, "it has gone");
        let decode = rooms.enter_decode(7).unwrap();
        assert_eq!(now(prefill.decode_joined()).await, Some(()));
        drop(decode);
        assert_eq!(now(prefill.decode_done()).await, Some(false));
    }

    #[tokio::test]
    async fn a_decode_leg_does_not_learn_that_the_other_has_gone() {
        let rooms = Rooms::default();
        let prefill = rooms.enter_prefill(7).unwrap();
        let mut decode = rooms.enter_decode(7).unwrap();
        drop(prefill);
        assert_eq!(now(decode.prefill_ready()).await, None);
    }

    #[test]
    fn a_room_is_used_once() {
        let rooms = Rooms::default();
        let prefill = rooms.enter_prefill(7).unwrap();
        let decode = rooms.enter_decode(7).unwrap();
        let entered = || (rooms.enter_prefill(7).err(), rooms.enter_decode(7).err());
        assert_eq!(entered(), (Some(Spoiled::Poisoned), Some(Spoiled::Poisoned)), "in use");
        decode.done();
        drop((prefill, decode));
        assert_eq!(entered(), (Some(Spoiled::Poisoned), Some(Spoiled::Poisoned)), "used before");
        drop(rooms.enter_prefill(8).unwrap());
        assert_eq!(rooms.enter_decode(8).err(), Some(Spoiled::Abandoned));
    }

    #[test]
    fn only_the_latest_rooms_are_remembered() {
        let rooms = Rooms::default();
        for number in 0..USED_MAX as u64 + 1 {
            drop(rooms.enter_prefill(number).unwrap());
        }
        assert!(rooms.enter_prefill(1).is_err() && rooms.enter_prefill(0).is_ok());
        assert!(rooms.0.lock().open.is_empty());
    }
}
