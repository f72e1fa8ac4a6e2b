//! The driver: accepts jobs from requests and runs the engine's steps in wall time.
//!
//! A token needs no channel. It is a function of the answer's seed and its index, so a request must only learn how
//! many there are: one small cell per request with a waker. A streaming request is woken by every token, any other
//! only by the last.
//!
//! An idle driver sleeps on a notification, not on a timer.

mod loads;
mod progress;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use maitre_base::Instant;
use maitre_index::prefix::PrefixHash;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::HostConfig;
use super::fault::Faults;
use crate::clock::{self, Clock};
use crate::engine::transfer::{FetchOrigin, FetchOutcome, Hold, HoldId, KvFetch, TransferCounters};
use crate::engine::{self, Engine, Job, JobId, KnownPrompt, Reject, TokenOutput, Transfer};
use crate::events::Publisher;
use crate::histogram::Histogram;
use crate::kv::{Change, Root};
use crate::speech;

use loads::StoreLoads;
use progress::Progress;
pub(super) use progress::{AnswerEnd, AnswerProgress};

/// Steps of zero duration that run before connections get a turn. Chosen: enough that a short answer is sent in one
/// write, few enough that a long one can be aborted.
const STEPS_PER_TURN: u32 = 32;

/// How far the engine may catch up with its schedule. Timers fire up to a millisecond late, and without catching up
/// every step would be that much too long. But a suspended process must not race through what it missed.
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
    requests: Vec<Option<JobRequest>>,
    /// With a shared store.
    loads: Option<StoreLoads>,
}

/// The request behind a job.
struct JobRequest {
    job: JobId,
    progress: Arc<Progress>,
    /// Starts the fetch of its KV, if that comes from another engine.
    fetch: Option<oneshot::Sender<KvFetch>>,
    /// Dropped with the request.
    _wanted: Option<oneshot::Sender<()>>,
}

/// A job that sends or receives KV.
#[derive(Default)]
pub(super) struct TransferPlan {
    pub(super) transfer: Transfer,
    /// Reported instead of this engine's own hits.
    pub(super) cached_tokens: Option<u32>,
    /// Announces here that the KV is to be fetched.
    pub(super) fetch: Option<oneshot::Sender<KvFetch>>,
    /// Never sent to: dropped as soon as no request waits for the answer.
    pub(super) wanted: Option<oneshot::Sender<()>>,
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
        let words = speech::token;
        let mut engine = Engine::new(engine::EngineConfig { changes_max, words, ..config.engine });
        let loads = config.store.as_ref().filter(|_| config.caches_prefixes()).map(|it| {
            engine.join_store(it.store.clone());
            StoreLoads::new(it.link, config.engine.profile.block_tokens.max(1))
        });
        let core = Core { engine, requests: Vec::new(), loads };
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

    pub(super) async fn sleep_until(&self, moment: Instant) {
        self.clock.sleep_until(moment).await;
    }

    /// How much faster than the profile this engine runs.
    pub(super) fn speedup(&self) -> f64 {
        self.speedup
    }

    pub(super) fn submit(&self, arrived: Instant, job: Job) -> Result<Ticket, Reject> {
        self.submit_transfer(arrived, job, TransferPlan::default())
    }

    pub(super) fn submit_transfer(
        &self,
        arrived: Instant,
        job: Job,
        plan: TransferPlan,
    ) -> Result<Ticket, Reject> {
        let progress = Arc::new(Progress::new(plan.cached_tokens));
        let mut core = self.core.lock();
        let job = core.engine.submit_transfer(arrived, job, KnownPrompt::default(), plan.transfer)?;
        let slot = job.slot as usize;
        if core.requests.len() <= slot {
            core.requests.resize_with(slot + 1, || None);
        }
        core.requests[slot] = Some(JobRequest {
            job,
            progress: Arc::clone(&progress),
            fetch: plan.fetch,
            _wanted: plan.wanted,
        });
        drop(core);
        self.wake();
        Ok(Ticket { core: Arc::clone(&self.core), changed: Arc::clone(&self.changed), job, progress })
    }

    /// Ends the fetch of a job's KV.
    pub(super) fn finish_fetch(&self, id: JobId, outcome: FetchOutcome) {
        let mut core = self.core.lock();
        core.engine.finish_fetch(id, outcome);
        core.report_fetch(id, outcome);
        drop(core);
        self.wake();
    }

    /// The blocks that another engine may read, until they are released.
    pub(super) fn hold(&self, id: HoldId) -> Option<Hold> {
        self.core.lock().engine.hold(id).cloned()
    }

    pub(super) fn extend_hold(&self, id: HoldId, until: Instant) {
        self.core.lock().engine.extend_hold(id, until);
    }

    /// Frees the blocks held for another engine. Returns whether there were any.
    pub(super) fn release_hold(&self, id: HoldId) -> bool {
        let released = self.core.lock().engine.release_hold(id);
        self.wake();
        released
    }

    /// When the next lease ends.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.core.lock().engine.next_expiry()
    }

    pub(super) fn transfer_counters(&self) -> TransferCounters {
        self.core.lock().engine.transfer_counters()
    }

    /// Runs steps for ever.
    pub(super) async fn run(&self, faults: &Faults) {
        let mut outputs = Vec::new();
        let mut begin = self.clock.now();
        let mut steps = 0u32;
        loop {
            let Some(span) = self.begin_step(faults.link_slowness() / self.speedup) else {
                self.wait_for_work().await;
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

    /// How many of these blocks are cached, up to the first that is not.
    pub(super) fn holds_named(&self, names: &[PrefixHash]) -> u32 {
        self.core.lock().engine.holds_named(names)
    }

    /// As after a crash: no jobs, no cache, no subscribers. The caller drops the waiting requests.
    pub(super) fn restart(&self) {
        let mut core = self.core.lock();
        core.engine.restart();
        core.requests.clear();
        core.loads.iter_mut().for_each(StoreLoads::clear);
        // Under the lock: the first batch after the restart must not be followed by one from before it.
        self.publisher.iter().for_each(|it| it.restart());
        drop(core);
        self.changed.notify_waiters();
    }

    fn wake(&self) {
        self.work.notify_one();
        self.changed.notify_waiters();
    }

    /// Waits for a job, a fetch or a release, or for the end of a lease or a load.
    async fn wait_for_work(&self) {
        let load_ends = self.core.lock().loads.as_ref().and_then(StoreLoads::next_end);
        match self.next_expiry().into_iter().chain(load_ends).min() {
            None => self.work.notified().await,
            Some(moment) => tokio::select! {
                () = self.work.notified() => {}
                () = self.clock.sleep_until(moment) => {}
            },
        }
    }

    /// `slowness` is that of the link to a shared store.
    fn begin_step(&self, slowness: f64) -> Option<Duration> {
        let mut core = self.core.lock();
        core.finish_loads(&self.clock);
        // Without holds, which is usual, it does not read the clock.
        let expired = core.engine.next_expiry().is_some() && core.engine.expire_holds(self.clock.now());
        let span = core.engine.begin_step();
        core.start_fetches();
        core.send_loads(&self.clock, slowness);
        drop(core);
        if expired {
            self.changed.notify_waiters();
        }
        span
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
        let place = &mut self.requests[output.job.slot as usize];
        let Some(request) = place else { return };
        let end = output.finish.map(|_| AnswerEnd::Complete);
        request.progress.report(output.index + 1, output.cached_tokens, end);
        if end.is_some() {
            *place = None;
        }
    }

    /// Announces the fetches of the last step. A request that has ended needs none.
    fn start_fetches(&mut self) {
        for fetch in self.engine.take_fetches() {
            if let (FetchOrigin::Store { tokens }, Some(loads)) = (fetch.origin, &mut self.loads) {
                loads.push(fetch, tokens);
                continue;
            }
            let request = self.requests.get_mut(fetch.job.slot as usize).and_then(Option::as_mut);
            let sender = request.filter(|it| it.job == fetch.job).and_then(|it| it.fetch.take());
            if let Some(sender) = sender {
                // Only a restart drops the receiver.
                let _ = sender.send(fetch);
            }
        }
    }

    /// Ends the loads that are complete. Without any it does not read the clock.
    fn finish_loads(&mut self, clock: &Clock) {
        if let Some(loads) = self.loads.as_mut().filter(|it| it.next_end().is_some()) {
            loads.finish(clock.now(), &mut self.engine);
        }
    }

    fn send_loads(&mut self, clock: &Clock, slowness: f64) {
        if let Some(loads) = self.loads.as_mut().filter(|it| it.has_begun()) {
            loads.send(clock.now(), slowness);
        }
    }

    fn report_fetch(&mut self, id: JobId, outcome: FetchOutcome) {
        let Some(place) = self.requests.get_mut(id.slot as usize) else { return };
        let Some(request) = place.as_ref().filter(|it| it.job == id) else { return };
        match outcome {
            FetchOutcome::Arrived { content, .. } => {
                request.progress.set_content(content);
            }
            FetchOutcome::Failed => {
                request.progress.report(0, 0, Some(AnswerEnd::Failed));
                *place = None;
            }
        }
    }
}

impl Ticket {
    pub(super) fn job(&self) -> JobId {
        self.job
    }

    /// Ready once the answer has more than `tokens` tokens, or has failed.
    pub(super) fn poll_beyond(&self, tokens: u32, context: &mut Context<'_>) -> Poll<AnswerProgress> {
        self.progress.poll_beyond(tokens, context)
    }

    /// Waits for the whole answer, or its failure.
    pub(super) async fn finished(&self) -> AnswerProgress {
        poll_fn(|context| self.progress.poll_end(context)).await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.progress.has_ended() {
            return;
        }
        let mut core = self.core.lock();
        core.engine.abort(self.job);
        core.start_fetches();
        // The step may have ended between the two locks, or the engine restarted; then the slot may belong to another
        // job or to none.
        let place = core.requests.get_mut(self.job.slot as usize);
        if let Some(place) = place
            && place.as_ref().is_some_and(|it| it.job == self.job)
        {
            *place = None;
        }
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
