//! The driver: accepts jobs from requests and runs the engine's steps in wall time.
//!
//! A token needs no channel. It is a function of the answer's seed and its index, so a request must only learn how
//! many there are: one small cell per request with a waker. A streaming request is woken by every token, any other
//! only by the last.
//!
//! An idle driver sleeps on a notification, not on a timer.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use maitre_base::Instant;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::HostConfig;
use super::fault::Faults;
use crate::clock::{self, Clock};
use crate::engine::{self, Engine, Job, JobId, Reject, TokenOutput};
use crate::events::Publisher;
use crate::histogram::Histogram;
use crate::kv::{Change, Root};

/// Steps of zero duration that run before connections get a turn. Chosen: enough that a short answer is sent in one
/// write, few enough that a long one can be aborted.
const STEPS_PER_TURN: u32 = 32;

/// How far the engine may catch up with its schedule. Timers fire up to a millisecond late, and without catching up
/// every step would be that much too long. A suspended process must not race through what it missed, though.
const LAG_MAX: Duration = Duration::from_millis(100);

/// Changes of the cache between two steps, for the publisher. A step makes at most two for each block it
/// computes: tens of thousands, with the largest budgets in use.
const STEP_CHANGES_MAX: usize = 1 << 20;

pub(super) struct EngineDriver {
    core: Arc<Mutex<Core>>,
    clock: Clock,
    speedup: f64,
    work: Notify,
    /// Receives the changes of every step, if set.
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
pub(super) struct AnswerProgress {
    pub(super) tokens: u32,
    pub(super) cached_tokens: u32,
    pub(super) done: bool,
}

#[derive(Debug, Default)]
struct Progress {
    cell: Mutex<ProgressCell>,
}

#[derive(Debug, Default)]
struct ProgressCell {
    progress: AnswerProgress,
    /// Wakes on any token, or only on the last.
    waits_for_all: bool,
    waker: Option<Waker>,
}

/// A submitted job. Dropping it before the answer is complete aborts the job.
pub(super) struct Ticket {
    core: Arc<Mutex<Core>>,
    changed: Arc<Notify>,
    job: JobId,
    progress: Arc<Progress>,
}

impl EngineDriver {
    pub(super) fn new(
        config: &HostConfig,
        publisher: Option<Arc<Publisher>>,
        changed: Arc<Notify>,
    ) -> EngineDriver {
        let changes_max = match publisher {
            Some(_) => config.engine.changes_max.max(STEP_CHANGES_MAX),
            None => config.engine.changes_max,
        };
        let engine = Engine::new(engine::EngineConfig { changes_max, ..config.engine });
        let core = Core { engine, progress: Vec::new() };
        EngineDriver {
            core: Arc::new(Mutex::new(core)),
            clock: Clock::start(),
            speedup: config.speedup,
            work: Notify::new(),
            publisher,
            changed,
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Waits for the per-request overhead outside the steps.
    pub(super) async fn wait_overhead(&self, arrived: Instant, overhead: Duration) {
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

    /// Runs steps for ever.
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

    pub(super) fn stats(&self) -> engine::EngineStats {
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

    /// Clears the cache, if it is unused. Returns whether it did. As in vLLM, subscribers are notified with the next
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

    /// As after a crash: no jobs, no cache, no subscribers. The caller drops the waiting requests.
    pub(super) fn restart(&self) {
        let mut core = self.core.lock();
        core.engine.restart();
        core.progress.clear();
        // Under the lock: no batch from before the restart may follow the first one after it.
        self.publisher.iter().for_each(|it| it.restart());
        drop(core);
        self.changed.notify_waiters();
    }

    fn begin_step(&self) -> Option<Duration> {
        self.core.lock().engine.begin_step()
    }

    fn finish_step(&self, now: Instant, outputs: &mut Vec<TokenOutput>) {
        let mut core = self.core.lock();
        if !core.engine.is_stepping() {
            // Restarted during the step.
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

/// A duration times a factor. Factors are input: an invalid one (negative, NaN, too large) changes nothing.
fn scale(span: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(span.as_secs_f64() * factor).unwrap_or(span)
}

impl Core {
    fn deliver(&mut self, output: &TokenOutput) {
        let place = &mut self.progress[output.job.slot as usize];
        let Some(progress) = place else { return };
        progress.report(AnswerProgress {
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
    fn report(&self, progress: AnswerProgress) {
        let mut cell = self.cell.lock();
        cell.progress = progress;
        let waker = if progress.done || !cell.waits_for_all { cell.waker.take() } else { None };
        drop(cell);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Ticket {
    /// Ready once the answer has more than `tokens` tokens.
    pub(super) fn poll_beyond(&self, tokens: u32, context: &mut Context<'_>) -> Poll<AnswerProgress> {
        let mut cell = self.progress.cell.lock();
        if cell.progress.tokens > tokens {
            return Poll::Ready(cell.progress);
        }
        cell.waits_for_all = false;
        cell.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Waits for the whole answer.
    pub(super) async fn finished(&self) -> AnswerProgress {
        poll_fn(|context| {
            let mut cell = self.progress.cell.lock();
            if cell.progress.done {
                return Poll::Ready(cell.progress);
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
        if self.progress.cell.lock().progress.done {
            return;
        }
        let mut core = self.core.lock();
        // The step may have ended between the two locks, or the engine restarted; then the slot may belong to another
        // job or to none.
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
    fn an_invalid_factor_changes_nothing() {
        let span = Duration::from_millis(8);
        assert_eq!(scale(span, 0.5), Duration::from_millis(4));
        assert_eq!(scale(span, 0.0), Duration::ZERO);
        for factor in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(scale(span, factor), span, "{factor}");
        }
    }
}
