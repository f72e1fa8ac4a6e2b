//! Limits the log lines that one publisher can cause, so that a broken or hostile one does not fill the disk. One that sent
//! garbage as fast as it could wrote 1.4 MB within seconds.

use std::time::Duration;

use maitre_base::Instant;

/// Chosen: a restart takes five lines.
const LINES_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct LogBudget {
    /// When the first line of this period was written.
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl LogBudget {
    /// Whether a line may be written now. If so, returns how many were left out since the last one, if any.
    pub(super) fn spend(&mut self, now: Instant) -> Option<Option<u64>> {
        if self.since.is_none_or(|it| now.since(it) >= PERIOD) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines == LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(Some(std::mem::take(&mut self.left_out)).filter(|&it| it > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_many_were_left_out() {
        let mut budget = LogBudget::default();
        let start = Instant::ZERO;
        let written = (0..100_000).filter(|_| budget.spend(start).is_some()).count();
        assert_eq!(written, LINES_MAX as usize);
        assert_eq!(budget.spend(start + PERIOD / 2), None);
        assert_eq!(budget.spend(start + PERIOD), Some(Some(99_991)));
        assert_eq!(budget.spend(start + PERIOD), Some(None));
    }
}
