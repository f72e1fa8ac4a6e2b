//! Whether it still matters what an engine stored before we followed its events.
//!
//! A block that was stored before is invisible until a request hits it and stores more: that event names a parent we
//! do not know. So the events themselves show how much of an engine's present work builds on unknown blocks. Blocks
//! without a known position are *unplaced*. The events count as complete once at most one stored token in twenty is
//! unplaced over a whole window. From then on, a prediction that no event confirms is more likely wrong than unknown.
//!
//! The window is the engine's capacity: by then an engine that evicts the least recently used block first has
//! evicted every block that was stored before and not used since. It is never more than `WINDOW_TOKENS_MAX`,
//! or a large cache with little traffic would stay unknown for hours.
//!
//! After a gap in the events, some removals and some parents are unknown for good. With frequent gaps that is true of
//! every prefix. The index then sets reports aside, and treats the worker as one without events, until the engine has
//! stored several times its capacity without another gap. When reports counted from the gap on, beside predictions
//! that nothing removed, one batch lost in fifty made the mean TTFT 1.6 times that of a router without events
//! (conversation trace, 1.2×).

use std::ops::RangeInclusive;

/// Chosen: some hundred requests, a minute of a busy engine.
const WINDOW_TOKENS_MAX: u64 = 131_072;

/// One unplaced token in this many is tolerated. Chosen: the blocks of a request that hits unknown ones are
/// unplaced until its first token (`adopt.rs`), so a busy engine always has some.
const UNPLACED_DIVISOR: u64 = 20;

/// How many times an engine must fill its cache without a gap before its reports count again, and the range of cache
/// sizes for that. Chosen: the smallest is more than a hundred steps of prefill, so that one batch lost in fifty
/// leaves hardly any such stretch. The largest is minutes of a busy engine, whose cache may be larger.
const CALM_CACHES: u64 = 8;
const CALM_TOKENS: RangeInclusive<u64> = 131_072..=1_048_576;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Tokens stored since the last gap, while reports are set aside for it.
    since_gap: Option<u64>,
    /// The present window.
    now: Window,
    last: Option<Window>,
    is_complete: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Window {
    tokens: u64,
    unplaced_tokens: u64,
}

impl Coverage {
    pub(crate) fn after_gap() -> Coverage {
        Coverage { since_gap: Some(0), ..Coverage::default() }
    }

    /// Whether reports do not count, because some were lost lately.
    pub(crate) fn is_left_aside(&self) -> bool {
        self.since_gap.is_some()
    }

    /// Blocks with this many tokens were stored while reports are set aside. Returns whether the next reports count.
    pub(crate) fn calmed(&mut self, tokens: u64, capacity_tokens: u64) -> bool {
        let calm = CALM_CACHES * capacity_tokens.clamp(*CALM_TOKENS.start(), *CALM_TOKENS.end());
        let since_gap = self.since_gap.unwrap_or(0) + tokens;
        let is_calm = since_gap >= calm;
        *self = if is_calm { Coverage::default() } else { Coverage { since_gap: Some(since_gap), ..*self } };
        is_calm
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Blocks with this many tokens were stored, of which `unplaced_tokens` are unplaced.
    pub(crate) fn stored(&mut self, tokens: u64, unplaced_tokens: u64, capacity_tokens: u64) {
        self.now.tokens += tokens;
        self.now.unplaced_tokens += unplaced_tokens;
        if self.now.tokens >= capacity_tokens.clamp(1, WINDOW_TOKENS_MAX) {
            self.is_complete |= self.now.unplaced_tokens * UNPLACED_DIVISOR <= self.now.tokens;
            self.last = Some(std::mem::take(&mut self.now));
        }
    }

    /// The position of unplaced blocks has become known.
    pub(crate) fn found(&mut self, tokens: u64) {
        self.now.unplaced_tokens = self.now.unplaced_tokens.saturating_sub(tokens);
    }

    /// Unplaced tokens among those stored in the last window, in thousandths.
    pub(crate) fn unplaced_permille(&self) -> u32 {
        let window = self.last.unwrap_or(self.now);
        (window.unplaced_tokens * 1_000 / window.tokens.max(1)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row is `(stored, of these unplaced, found before that)`; the cache has room for 1,000 tokens.
    #[track_caller]
    fn check(rows: &[(u64, u64, u64)], is_complete: bool, permille: u32) {
        let mut coverage = Coverage::default();
        for &(tokens, unplaced, found) in rows {
            coverage.found(found);
            coverage.stored(tokens, unplaced, 1_000);
        }
        assert_eq!(
            (coverage.is_complete(), coverage.unplaced_permille()),
            (is_complete, permille),
            "{rows:?}"
        );
    }

    #[test]
    fn complete_once_a_window_has_few_unplaced_tokens() {
        check(&[], false, 0);
        check(&[(999, 0, 0)], false, 0);
        check(&[(999, 0, 0), (1, 0, 0)], true, 0);
        check(&[(1_000, 50, 0)], true, 50);
        check(&[(1_000, 51, 0)], false, 51);
        check(&[(400, 400, 0), (600, 0, 0)], false, 400);
        check(&[(400, 400, 0), (600, 0, 0), (1_000, 0, 0)], true, 0);
        check(&[(400, 200, 0)], false, 500);
    }

    #[test]
    fn blocks_that_are_placed_later_do_not_count_as_unplaced() {
        check(&[(400, 400, 0), (600, 0, 400)], true, 0);
        check(&[(500, 0, 700), (500, 0, 0)], true, 0);
    }

    #[test]
    fn a_complete_cache_stays_so() {
        check(&[(1_000, 0, 0), (1_000, 1_000, 0)], true, 1_000);
    }

    #[test]
    fn reports_are_left_aside_until_several_caches_are_stored_without_a_gap() {
        for (capacity, calm) in [(1_000, 1_048_576), (200_000, 1_600_000), (u64::MAX, 8_388_608)] {
            let mut coverage = Coverage::after_gap();
            assert!(coverage.is_left_aside() && !coverage.is_complete());
            assert!(!coverage.calmed(calm - 1, capacity) && coverage.is_left_aside(), "{capacity}");
            assert!(coverage.calmed(1, capacity), "{capacity}");
            assert_eq!(coverage, Coverage::default());
        }
    }

    #[test]
    fn large_and_unknown_capacities_are_bounded() {
        let mut coverage = Coverage::default();
        coverage.stored(WINDOW_TOKENS_MAX - 1, 0, u64::MAX);
        assert!(!coverage.is_complete());
        coverage.stored(1, 0, u64::MAX);
        assert!(coverage.is_complete());
        let mut coverage = Coverage::default();
        coverage.stored(0, 0, 0);
        assert!(!coverage.is_complete(), "nothing was stored");
    }
}
