//! How many responses may move to other workers without getting any further, and how often one of them may move at all.
//!
//! A worker that dies leaves all its responses to the others at once, each with a prefill of its prompt and of what was
//! delivered. That must be possible for a whole worker, and must not go on for ever when workers die of it. So the fleet's
//! responses may each move once in five seconds, on average: as many as are in flight at once, and then as time passes.
//! What got further since it last moved does not count here: with one of eight workers killed every second, a budget for
//! all moves ended 1,385 of 2,000 streams. One response alone is held to the same pace, and so forgets its breaks.

use std::time::Duration;

use maitre_base::Instant;

/// In which every response in flight may move once.
const WINDOW: Duration = Duration::from_secs(5);

/// The least that may move at once, so that a quiet fleet's can. Chosen: what one engine serves.
const MOVES_MIN: f64 = 64.0;

/// How many moves there may be at once, and in which time as many are earned back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moves {
    pub(crate) most: f64,
    pub(crate) window: Duration,
}

impl Moves {
    /// Those of a fleet with this many requests in flight.
    pub(crate) fn of_fleet(in_flight: usize) -> Moves {
        Moves { most: (in_flight as f64).max(MOVES_MIN), window: WINDOW }
    }
}

/// What was spent and not earned back.
#[derive(Clone, Debug, Default)]
pub(crate) struct MoveBudget {
    spent: f64,
    at: Instant,
}

impl MoveBudget {
    /// Takes one move, if these allow it.
    pub(crate) fn spend(&mut self, now: Instant, Moves { most, window }: Moves) -> bool {
        let earned = most * now.since(self.at).as_secs_f64() / window.as_secs_f64();
        self.at = self.at.max(now);
        self.spent = (self.spent - earned).max(0.0);
        let affordable = self.spent + 1.0 <= most;
        if affordable {
            self.spent += 1.0;
        }
        affordable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_responses_may_move_at_once_and_then_a_fifth_a_second() {
        let mut budget = MoveBudget::default();
        let mut moved = |at: u64| {
            let now = Instant::from_millis(at);
            (0..5_000).filter(|_| budget.spend(now, Moves::of_fleet(1_000))).count()
        };
        assert_eq!((moved(0), moved(0), moved(1_000), moved(60_000)), (1_000, 0, 200, 1_000));
    }

    #[test]
    fn the_streams_of_a_quiet_fleet_may_move() {
        let mut budget = MoveBudget::default();
        assert_eq!((0..100).filter(|_| budget.spend(Instant::ZERO, Moves::of_fleet(2))).count(), 64);
    }
}
