//! When a second attempt is worth its cost, and how many the fleet can stand.
//!
//! A hedge helps against one worker that does not answer, and makes it worse if all are slow. So it comes late: when the
//! first token is overdue, and what is left until the deadline is little more than another worker needs. And it is paid
//! from a budget: a share of the prefill work of all requests.

use std::time::Duration;

use maitre_base::{Instant, Tokens};

/// What is left until the deadline when a request is hedged, in expected times of a first token: one for the other worker,
/// and as much again for what is not known of it.
const HEADROOM: u32 = 2;

/// A first token is overdue after so many times as long as expected, and this much at least. Chosen: expectations of first
/// tokens are off by a fifth in the median.
const OVERDUE: u32 = 2;
const OVERDUE_MIN: Duration = Duration::from_millis(50);

/// The most that is saved up, in tokens of prefill. Chosen: one long prompt or some dozens of short ones.
const BALANCE_MAX: f64 = 65_536.0;

/// When to hedge a request that is placed now and due then, with its first token expected after so long; none if another
/// worker could not answer in time.
pub(crate) fn moment(now: Instant, due: Instant, expected: Duration) -> Option<Instant> {
    let overdue = now + (expected * OVERDUE).max(expected + OVERDUE_MIN);
    let little_headroom = now + due.since(now).saturating_sub(expected * HEADROOM);
    let at = overdue.max(little_headroom);
    (at + expected <= due).then_some(at)
}

/// Tokens of prefill that second attempts may cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct HedgeBudget {
    /// Of all placements, less what was spent as a multiple of the share.
    placed: f64,
    spent: f64,
}

impl HedgeBudget {
    /// A first attempt was placed.
    pub(crate) fn earn(&mut self, tokens: Tokens) {
        self.placed += tokens.0 as f64;
    }

    /// Takes the cost of a second attempt, if this share of all work allows it.
    pub(crate) fn spend(&mut self, share: f64, tokens: Tokens) -> bool {
        let cost = tokens.0 as f64;
        // What was not spent is not saved up for ever.
        self.spent = self.spent.max(self.placed * share - BALANCE_MAX);
        let affordable = self.spent + cost <= self.placed * share;
        if affordable {
            self.spent += cost;
        }
        affordable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[track_caller]
    fn check(due: u64, expected: u64, hedged: Option<u64>) {
        let now = Instant::from_millis(1_000);
        let at = moment(now, now + millis(due), millis(expected));
        assert_eq!(at.map(|it| it.since(now)), hedged.map(millis));
    }

    #[test]
    fn a_request_is_hedged_when_its_headroom_is_little_and_its_token_overdue() {
        check(1_000, 100, Some(800));
        check(30_000, 100, Some(29_800));
        check(1_000, 300, Some(600));
        check(150, 10, Some(130));
        check(300, 100, Some(200));
        // No other worker could answer in time.
        check(250, 100, None);
        check(50, 100, None);
    }

    #[test]
    fn hedges_cost_at_most_a_share_of_all_work() {
        let mut budget = HedgeBudget::default();
        assert!(!budget.spend(0.05, Tokens(1)), "nothing was placed");
        budget.earn(Tokens(10_000));
        assert!(budget.spend(0.05, Tokens(400)) && !budget.spend(0.05, Tokens(101)));
        assert!(budget.spend(0.05, Tokens(100)) && !budget.spend(0.05, Tokens(1)));
    }

    #[test]
    fn a_quiet_day_does_not_pay_for_a_storm() {
        let mut budget = HedgeBudget::default();
        budget.earn(Tokens(1_000_000_000));
        let hedges = (0..1_000).filter(|_| budget.spend(0.05, Tokens(1_024))).count();
        assert_eq!(hedges, 64);
    }
}
