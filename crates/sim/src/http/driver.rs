//! The driver: where requests hand in jobs and the engine's steps are played in wall time.
//!
//! A token needs no channel. It is a function of the answer's seed and its index, so all a request must
//! learn is how many there are by now: one small cell per request, bounded by nature, with a waker in it.
//! A streaming request is woken by every token, any other only by the last.
//!
//! When nothing is to do the driver sleeps on a notification, not on a timer.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use maitre_base::Instant;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Settings;
use super::fault::Faults;
use crate::clock::{self, Clock};
use crate::engine::{self, Engine, Job, JobId, Output, Reject};
use crate::events::Publisher;
use crate::histogram::Histogram;
use crate::kv::{Change, Root};

/// Steps of no duration that are played before connections get a turn. Chosen: enough that the tokens of a
/// short answer leave in one write, few enough that a long one can be abandoned.
const STEPS_PER_TURN: u32 = 32;

/// How far behind its own schedule the engine may catch up. Timers fire up to a millisecond late, and
/// without catching up every step would be that much too long; a stopped process should not race through
/// what it missed, though.
const LAG_MAX: Duration = Duration::from_millis(100);

/// Changes of the cache between two steps, for the publisher. A step makes at most two for each block it
/// computes: tens of thousands, with the largest budgets in use.
const STEP_CHANGES_MAX: usize = 1 << 20;

pub(super) struct EngineDriver {
    core: Arc<Mutex<Core>>,
    clock: Clock,
    speedup: f64,
    work: Notify,
    /// Gets the changes of every step, if anybody does.
    publisher: Option<Arc<Publisher>>,
    changed: Arc<Notify>,
}

struct Core {
    engine: Engine,
    /// By slot of the job.
    progress: Vec<Option<Arc<Progress>>>,
}

/// How far one answer is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) tokens: u32,
    pub(super) cached_tokens: u32,
    pub(super) done: bool,
}

#[derive(Debug, Default)]
struct Progress {
    cell: Mutex<Cell>,
}

#[derive(Debug, Default)]
struct Cell {
    seen: Seen,
    /// Wakes on any token, or only on the last.
    waits_for_all: bool,
    waker: Option<Waker>,
}

/// A job handed in. Dropped before the answer is complete, it takes the job back.
pub(super) struct Ticket {
    core: Arc<Mutex<Core>>,
    changed: Arc<Notify>,
    job: JobId,
    progress: Arc<Progress>,
}

impl EngineDriver {
    pub(super) fn new(
        settings: &Settings,
        publisher: Option<Arc<Publisher>>,
        changed: Arc<Notify>,
    ) -> EngineDriver {
        let changes_max = match publisher {
            Some(_) => settings.engine.changes_max.max(STEP_CHANGES_MAX),
            None => settings.engine.changes_max,
        };
        let engine = Engine::new(engine::Settings { changes_max, ..settings.engine });
        let core = Core { engine, progress: Vec::new() };
        EngineDriver {
            core: Arc::new(Mutex::new(core)),
            clock: Clock::start(),
            speedup: settings.speedup,
            work: Notify::new(),
            publisher,
            changed,
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Waits for what a request pays outside the steps.
    pub(super) async fn pay_overhead(&self, arrived: Instant, overhead: Duration) {
        if !overhead.is_zero() {
            self.clock.sleep_until(arrived + scale(overhead, 1.0 / self.speedup)).await;
        }
    }

    pub(super) fn submit(&self, arrived: Instant, job: Job) -> Result<Ticket, Reject> {
        let progress = Arc::new(Progress::default());
        let mut core = self.core.lock();
        let job = core.engine.submit(arrived, job)?;
        let slot = job.slot as usize;
        if core.progress.len() <= slot {
            core.progress.resize(slot + 1, None);
        }
        core.progress[slot] = Some(Arc::clone(&progress));
        drop(core);
        self.work.notify_one();
        self.changed.notify_waiters();
        Ok(Ticket { core: Arc::clone(&self.core), changed: Arc::clone(&self.changed), job, progress })
    }

    /// Plays steps for ever.
    pub(super) async fn run(&self, faults: &Faults) {
        let mut outputs = Vec::new();
        let mut begin = self.clock.now();
        let mut steps = 0u32;
        loop {
            let Some(span) = self.begin_step() else {
                self.work.notified().await;
                begin = self.clock.now();
                continue;
            };
            let end = begin + scale(span, faults.slow_factor() / self.speedup);
            steps = steps.wrapping_add(1);
            match span.is_zero() {
                false => self.clock.sleep_until(end).await,
                true if steps.is_multiple_of(STEPS_PER_TURN) => tokio::task::yield_now().await,
                true => {}
            }
            let now = self.clock.now();
            self.finish_step(now, &mut outputs);
            begin = if now.since(end) > LAG_MAX { now } else { end };
        }
    }

    pub(super) fn stats(&self) -> engine::Stats {
        self.core.lock().engine.stats()
    }

    /// First-token and inter-token times.
    pub(super) fn histograms(&self) -> (Histogram, Histogram) {
        let core = self.core.lock();
        (core.engine.first_token().clone(), core.engine.inter_token().clone())
    }

    pub(super) fn take_changes(&self) -> (Vec<Change>, u64) {
        self.core.lock().engine.take_changes()
    }

    /// Forgets the cache, if nobody uses it; whether it did. As in vLLM, subscribers hear of it with the next
    /// step.
    pub(super) fn clear_cache(&self) -> bool {
        self.core.lock().engine.clear_cache()
    }

    pub(super) fn resident(&self) -> BTreeMap<u64, u32> {
        self.core.lock().engine.resident()
    }

    pub(super) fn holds(&self, tokens: &[u32], root: &Root) -> usize {
        self.core.lock().engine.holds(tokens, root)
    }

    /// As after a crash: no jobs, no cache, no subscribers. Those who wait for an answer are for the caller
    /// to get rid of.
    pub(super) fn restart(&self) {
        let mut core = self.core.lock();
        core.engine.restart();
        core.progress.clear();
        // Under the lock: no batch of the old life may follow the beginning of the new one.
        self.publisher.iter().for_each(|it| it.restart());
        drop(core);
        self.changed.notify_waiters();
    }

    fn begin_step(&self) -> Option<Duration> {
        self.core.lock().engine.begin_step()
    }

    fn finish_step(&self, now: Instant, outputs: &mut Vec<Output>) {
        let mut core = self.core.lock();
        if !core.engine.is_stepping() {
            // Restarted in the middle of it.
            return;
        }
        core.engine.finish_step(now, outputs);
        if let Some(publisher) = &self.publisher {
            let (changes, lost) = core.engine.take_changes();
            publisher.publish(clock::since_1970().as_secs_f64(), &changes, lost);
        }
        for output in outputs.drain(..) {
            core.deliver(&output);
        }
        drop(core);
        self.changed.notify_waiters();
    }
}

/// A span times a factor. Factors come from outside: one that makes no sense (negative, not a number,
/// beyond all time) changes nothing.
fn scale(span: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(span.as_secs_f64() * factor).unwrap_or(span)
}

impl Core {
    fn deliver(&mut self, output: &Output) {
        let place = &mut self.progress[output.job.slot as usize];
        let Some(progress) = place else { return };
        progress.report(Seen {
            tokens: output.index + 1,
            cached_tokens: output.cached_tokens,
            done: output.finish.is_some(),
        });
        if output.finish.is_some() {
            *place = None;
        }
    }
}

impl Progress {
    fn report(&self, seen: Seen) {
        let mut cell = self.cell.lock();
        cell.seen = seen;
        let waker = if seen.done || !cell.waits_for_all { cell.waker.take() } else { None };
        drop(cell);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Ticket {
    /// Ready once the answer has more than `tokens` tokens.
    pub(super) fn poll_beyond(&self, tokens: u32, context: &mut Context<'_>) -> Poll<Seen> {
        let mut cell = self.progress.cell.lock();
        if cell.seen.tokens > tokens {
            return Poll::Ready(cell.seen);
        }
        cell.waits_for_all = false;
        cell.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Waits for the whole answer.
    pub(super) async fn finished(&self) -> Seen {
        poll_fn(|context| {
            let mut cell = self.progress.cell.lock();
            if cell.seen.done {
                return Poll::Ready(cell.seen);
            }
            cell.waits_for_all = true;
            cell.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.progress.cell.lock().seen.done {
            return;
        }
        let mut core = self.core.lock();
        // The step may have ended between the two locks, or the engine restarted; then the slot may be
        // another's by now, or nobody's.
        let place = core.progress.get_mut(self.job.slot as usize);
        if let Some(place) = place
            && place.as_ref().is_some_and(|it| Arc::ptr_eq(it, &self.progress))
        {
            *place = None;
        }
        core.engine.abort(self.job);
        drop(core);
        self.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_senseless_factor_changes_nothing() {
        let span = Duration::from_millis(8);
        assert_eq!(scale(span, 0.5), Duration::from_millis(4));
        assert_eq!(scale(span, 0.0), Duration::ZERO);
        for factor in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(scale(span, factor), span, "{factor}");
        }
    }
}
