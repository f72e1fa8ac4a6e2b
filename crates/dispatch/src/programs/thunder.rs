//! `ThunderAgent`'s rule (arXiv 2602.13692), as published: a program reasons while a call runs and acts while its tool does,
//! and it is active or paused. Every five seconds, where the tokens of the active programs of a worker exceed 0.95 of its
//! cache, acting programs are paused, the smallest first, down to 0.80; paused ones resume, the smallest first, where 0.85
//! leaves room for them, and in any case after half an hour.

use std::time::Duration;

use maitre_base::{Instant, WorkerId};
use maitre_fleet::{Fleet, Wanted};

use super::held::HeldCall;
use super::memory::IdleProgram;
use super::room::Room;
use super::{Program, ProgramId, Programs};

const EVERY: Duration = Duration::from_secs(5);
const PAUSE_ABOVE: f64 = 0.95;
const PAUSE_TO: f64 = 0.80;
const RESUME_BELOW: f64 = 0.85;
/// The published rule learns when a program ends; here one that has been idle so long counts as ended.
const ENDED: Duration = Duration::from_mins(2);

impl Programs {
    /// Whether a call goes at once. A program that is new begins where 0.95 leaves room for it.
    pub(super) fn is_active(&mut self, id: ProgramId, fleet: &Fleet) -> bool {
        let Some(program) = self.programs.get(&id.0).copied() else { return true };
        match self.active_room(&program, fleet) {
            Some(Room::At(worker)) => self.activate(id, worker),
            Some(Room::AsItIs) => {}
            None => return false,
        }
        true
    }

    /// Where a call of this program goes at once.
    pub(super) fn active_room(&self, program: &Program, fleet: &Fleet) -> Option<Room> {
        if program.in_flight > 0 || program.worker.is_some() {
            return Some(Room::AsItIs);
        }
        let may_begin = !program.is_paused;
        may_begin.then(|| self.room_below(program, PAUSE_ABOVE, fleet)).flatten()
    }

    /// The worker with the most room, if one has it.
    fn room_below(&self, program: &Program, below: f64, fleet: &Fleet) -> Option<Room> {
        let mut best: Option<(i64, WorkerId)> = None;
        for worker in fleet.workers().filter(|it| it.is_fit() && it.serves(program.wanted)) {
            let Some(capacity) = worker.capacity() else { return Some(Room::AsItIs) };
            let used = self.memory.used(worker.id);
            let free = (capacity.0 as f64 * below) as i64 - used as i64;
            let fits = free >= program.tokens as i64 || used == 0;
            if fits && best.is_none_or(|it| it.0 < free) {
                best = Some((free, worker.id));
            }
        }
        best.map(|it| Room::At(it.1))
    }

    /// Makes a program active at the worker with the most room, if one has it.
    fn resume(&mut self, id: ProgramId, below: f64, fleet: &Fleet) -> bool {
        let Some(program) = self.programs.get(&id.0) else { return false };
        match self.room_below(program, below, fleet) {
            Some(Room::At(worker)) => self.activate(id, worker),
            Some(Room::AsItIs) => {}
            None => return false,
        }
        true
    }

    fn activate(&mut self, id: ProgramId, worker: WorkerId) {
        self.unsettle(id);
        if let Some(program) = self.programs.get_mut(&id.0) {
            (program.worker, program.is_paused) = (Some(worker), false);
            self.memory.resize(program.tenant, worker, (0, program.tokens));
        }
    }

    /// Programs that have been idle for long have no memory.
    fn forget_ended(&mut self, now: Instant) {
        let is_ended = |it: &&IdleProgram| now.since(it.since) >= ENDED;
        let ended: Vec<ProgramId> = self
            .memory
            .workers()
            .flat_map(|it| it.idle.iter().take_while(is_ended))
            .map(|it| it.id)
            .collect();
        ended.into_iter().for_each(|it| self.unsettle(it));
    }

    /// Pauses and resumes, if it is time.
    pub(super) fn sweep(&mut self, now: Instant, fleet: &Fleet) {
        if now.since(self.swept) < EVERY {
            return;
        }
        self.swept = now;
        self.forget_ended(now);
        for (worker, capacity) in fleet.workers().filter_map(|it| Some((it.id, it.capacity()?.0 as f64))) {
            let used = |it: &Programs| it.memory.used(worker) as f64;
            if used(self) <= PAUSE_ABOVE * capacity {
                continue;
            }
            let memory = self.memory.at(worker);
            let smallest_first: Vec<ProgramId> = memory.sizes.iter().map(|it| it.1).collect();
            for id in smallest_first {
                if used(self) <= PAUSE_TO * capacity {
                    break;
                }
                self.unsettle(id);
                if let Some(program) = self.programs.get_mut(&id.0) {
                    program.is_paused = true;
                }
            }
        }
        self.resume_held(fleet);
    }
    /// Held programs resume, the smallest first; one that does not fit ends the turn of its model.
    fn resume_held(&mut self, fleet: &Fleet) {
        let size = |it: &HeldCall| Some((self.programs.get(&it.program.0)?.tokens, it.program, it.wanted));
        let mut paused: Vec<(u64, ProgramId, Wanted)> = self.held.iter().filter_map(size).collect();
        paused.sort_unstable_by_key(|it| (it.0, it.1));
        let mut full: Vec<Wanted> = Vec::new();
        for (_, id, wanted) in paused {
            if !full.contains(&wanted) && !self.resume(id, RESUME_BELOW, fleet) {
                full.push(wanted);
            }
        }
    }
}
