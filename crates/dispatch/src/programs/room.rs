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

/// What one worker has for a program.
#[derive(Clone, Copy, Debug)]
struct Opening {
    worker: WorkerId,
    /// Tokens that no program has; below zero while programs have too many.
    free: i64,
    fits: bool,
}

impl Programs {
    /// Where a call of this program finds memory.
    pub(super) fn room(&self, now: Instant, program: &Program, fleet: &Fleet) -> Option<Room> {
        let is_able = |it: &Worker| it.is_fit() && it.serves(program.wanted);
        let is_resident = program.worker.and_then(|it| fleet.worker(it)).is_some_and(is_able);
        if program.in_flight > 0 || is_resident {
            return Some(Room::AsItIs);
        }
        let mut able = fleet.workers().filter(|it| is_able(it)).peekable();
        // Nothing to wait for: the call is refused, or waits for the first worker, like any other.
        if able.peek().is_none() {
            return Some(Room::AsItIs);
        }
        let mut best: Option<Opening> = None;
        for worker in able {
            // A worker that has not said how much it holds takes what comes.
            let Some(capacity) = worker.capacity() else { return Some(Room::AsItIs) };
            let opening = self.opening(now, program, worker, capacity);
            if opening.fits && best.is_none_or(|it| it.free < opening.free) {
                best = Some(opening);
            }
        }
        best.map(|it| Room::At(it.worker))
    }

    fn opening(&self, now: Instant, program: &Program, worker: &Worker, capacity: Tokens) -> Opening {
        let keep = self.keep(program.tokens as f64 * worker.rates.prefill.slope);
        let memory = self.memory.get(worker.id);
        let resident = memory.map_or(0, |it| it.tokens);
        let free = self.admitted(capacity) as i64 - resident as i64;
        let idle = memory.into_iter().flat_map(|it| &it.idle).take_while(|it| now.since(it.since) >= keep);
        let mut gives_way = idle.map(|it| it.tokens);
        let mut yielded = 0;
        while free + (yielded as i64) < program.tokens as i64 {
            let Some(tokens) = gives_way.next() else { break };
            yielded += tokens;
        }
        // A program that is larger than what programs may fill goes where nothing else is resident.
        let fits = free + yielded as i64 >= program.tokens as i64 || resident == yielded;
        Opening { worker: worker.id, free, fits }
    }

    /// How long an idle program keeps its memory, if computing its context takes so many seconds.
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
