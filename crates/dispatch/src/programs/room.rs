//! Where a call of a program finds memory: at which worker, and who gives way for it.

use std::time::Duration;

use maitre_base::{Instant, Tokens, WorkerId};
use maitre_fleet::{Fleet, Worker};

use super::{ADMITTED, FILL, Program, ProgramRule, Programs};

/// Where a call finds memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Where its program has it, or wherever it is placed.
    AsItIs,
    /// At this worker.
    At(WorkerId),
}

/// A worker that has memory for a program.
#[derive(Clone, Copy, Debug)]
struct Opening {
    worker: WorkerId,
    /// Tokens that no program has; below zero while programs have too many.
    free: i64,
}

impl Programs {
    /// Where a call of this program finds memory.
    pub(super) fn room(&self, now: Instant, program: &Program, fleet: &Fleet) -> Option<Room> {
        let is_able = |it: &Worker| it.is_fit() && it.serves(program.wanted);
        let is_resident = program.worker.and_then(|it| fleet.worker(it)).is_some_and(is_able);
        if program.in_flight > 0 || is_resident {
            return Some(Room::AsItIs);
        }
        let mut is_any_able = false;
        let mut best: Option<Opening> = None;
        for worker in fleet.workers().filter(|it| is_able(it)) {
            is_any_able = true;
            // A worker that has not said how much it holds takes what comes.
            let Some(capacity) = worker.capacity() else { return Some(Room::AsItIs) };
            let resident = self.memory.used(worker.id);
            let free = self.admitted(capacity) as i64 - resident as i64;
            // Who gives way is asked last: it costs the most.
            if best.is_none_or(|it| it.free < free) && self.fits(now, program, worker, (free, resident)) {
                best = Some(Opening { worker: worker.id, free });
            }
        }
        // Nothing to wait for: the call is refused, or waits for the first worker, like any other.
        if !is_any_able {
            return Some(Room::AsItIs);
        }
        best.map(|it| Room::At(it.worker))
    }

    /// Whether this worker, with so many tokens that are free and resident, has memory for the program once those gave way that do.
    fn fits(&self, now: Instant, program: &Program, worker: &Worker, (free, resident): (i64, u64)) -> bool {
        let missing = (program.tokens as i64 - free).max(0) as u64;
        let mut yielded = 0;
        if let Some(memory) = self.memory.get(worker.id).filter(|_| missing > 0) {
            let keep = self.keep(program.tokens as f64 * worker.rates.prefill.slope);
            for idle in memory.idle.iter().take_while(|it| now.since(it.since) >= keep) {
                if yielded >= missing {
                    break;
                }
                yielded += idle.tokens;
            }
        }
        // A program that is larger than what programs may fill goes where nothing else is resident.
        yielded >= missing || resident == yielded
    }

    /// How long an idle program keeps its memory, if computing its context takes so many seconds.
    #[inline]
    pub(super) fn keep(&self, reload_seconds: f64) -> Duration {
        match self.settings.rule {
            ProgramRule::CacheTtl => self.think.time_to_live(reload_seconds + self.hold_seconds),
            _ => self.think.hold(reload_seconds),
        }
    }

    /// The tokens up to which a worker takes programs that have no memory.
    fn admitted(&self, capacity: Tokens) -> u64 {
        let part = if self.settings.rule == ProgramRule::CacheTtl { FILL } else { ADMITTED };
        (capacity.0 as f64 * part) as u64
    }
}
