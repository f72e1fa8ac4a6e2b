//! A progress bar on the terminal.

use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use maitre_console::clock::Stopwatch;

/// Shorter runs have no bar.
const SHOWN_AFTER: Duration = Duration::from_millis(700);
const FRAME: Duration = Duration::from_millis(100);
const WIDTH: usize = 40;

pub(super) struct Progress {
    all: usize,
    done: AtomicUsize,
    watch: Stopwatch,
    /// When the bar was last drawn; none without a terminal.
    drawn: Option<Mutex<Duration>>,
}

impl Progress {
    pub(super) fn begin(all: usize) -> Progress {
        let drawn = std::io::stderr().is_terminal().then(|| Mutex::new(SHOWN_AFTER));
        Progress { all: all.max(1), done: AtomicUsize::new(0), watch: Stopwatch::start(), drawn }
    }

    pub(super) fn add(&self, count: usize) {
        let done = self.done.fetch_add(count, Ordering::Relaxed) + count;
        let Some(mut drawn) = self.drawn.as_ref().and_then(Mutex::try_lock) else { return };
        let elapsed = self.watch.elapsed();
        if elapsed >= *drawn + FRAME {
            *drawn = elapsed;
            let mut out = std::io::stderr().lock();
            let _ = write!(out, "\r{}", bar(done, self.all, elapsed));
            let _ = out.flush();
        }
    }

    /// Erases the bar.
    pub(super) fn end(&self) {
        if self.drawn.as_ref().is_some_and(|it| *it.lock() > SHOWN_AFTER) {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}

fn bar(done: usize, all: usize, elapsed: Duration) -> String {
    let part = done as f64 / all as f64;
    let full = (part * WIDTH as f64) as usize;
    let left = elapsed.as_secs_f64() * (1.0 - part) / part.max(1e-6);
    format!("[{:<WIDTH$}] {:3.0} %  {left:.0} s left ", "#".repeat(full.min(WIDTH)), part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_grows_from_left_to_right() {
        assert_eq!(bar(0, 10, Duration::ZERO).matches('#').count(), 0);
        let half = bar(5, 10, Duration::from_secs(3));
        assert_eq!(half.matches('#').count(), WIDTH / 2);
        assert!(half.contains(" 50 %  3 s left"), "{half}");
        assert_eq!(bar(10, 10, Duration::ZERO).matches('#').count(), WIDTH);
    }
}
