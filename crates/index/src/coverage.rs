//! Whether it still matters what an engine stored before we followed its events.
//!
//! A block that was stored before is invisible until a request hits it and stores more: that event names a
//! parent we do not know. So the events themselves tell how much of an engine's present work builds on
//! unknown blocks. Blocks without a known position are *unplaced*. Once at most one stored token in twenty is
//! unplaced over a whole window, a prediction that no event confirms is more likely wrong than unknown, and
//! the events count as complete.
//!
//! The window is the engine's capacity: by then an engine that evicts the least recently used block first has
//! evicted every block that was stored before and not used since. It is never more than `WINDOW_TOKENS_MAX`,
//! or a large cache with little traffic would stay unknown for hours.

/// Chosen: some hundred requests, a minute of a busy engine.
const WINDOW_TOKENS_MAX: u64 = 131_072;

/// One unplaced token in this many is tolerated. Chosen: the blocks of a request that hits unknown ones are
/// unplaced until its first token (`adopt.rs`), so a busy engine always has some.
const UNPLACED_DIVISOR: u64 = 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Of the present window.
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
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Blocks with so many tokens were stored, and of these so many are unplaced.
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
