//! One request's way through the queue of its pool, without taking it: what `explain` asks.
//!
//! The rules are those of a real request, by the same functions. They run on a copy of the pool's flow, which has a fixed
//! size, and on a view of its queue, which is not copied: with 50,000 queued requests a copy stalled every lane.

use std::time::Duration;

use maitre_base::RequestId;
use maitre_queue::{Addition, QueueView, WaitQueue};

use super::pool::{Flow, NotQueued};
use super::{Context, Scheduler, entry, workers_of};
use crate::request::{PendingRequest, PoolId};

pub(crate) struct DryRun {
    pub(crate) flow: Flow,
    queue: DryQueue,
}

struct DryQueue {
    pool: PoolId,
    /// The request, once it has joined the queue.
    joined: Option<Addition>,
    /// In place of the queue of a pool that has had no request yet.
    empty: WaitQueue,
}

impl DryRun {
    pub(super) fn new(scheduler: &Scheduler, context: Context<'_>, pool: PoolId) -> DryRun {
        let flow = match scheduler.pool(pool) {
            Some(pool) => pool.flow,
            None => Flow::new(pool, workers_of(pool, context.fleet)),
        };
        let empty = WaitQueue::new(&context.settings.classes, context.settings.aging);
        DryRun { flow, queue: DryQueue { pool, joined: None, empty } }
    }

    pub(crate) fn must_queue(
        &mut self,
        scheduler: &Scheduler,
        context: Context<'_>,
        request: &PendingRequest,
    ) -> bool {
        self.flow.arrived(context.now, request);
        self.flow.must_queue(context, self.queue.view(scheduler), request)
    }

    pub(crate) fn join(
        &mut self,
        scheduler: &Scheduler,
        context: Context<'_>,
        request: &PendingRequest,
    ) -> Result<(), NotQueued> {
        let (queue, entry) = (self.queue.of(scheduler), entry(context, request));
        self.flow.check_in_time(context, queue, &entry)?;
        let joined = queue.preview(entry).map_err(|_| NotQueued::Full)?;
        self.queue.joined = Some(joined);
        Ok(())
    }

    /// The requests that may go next, in order, of those that `fits` admits.
    pub(crate) fn next(
        &mut self,
        scheduler: &Scheduler,
        context: Context<'_>,
        fits: impl Fn(RequestId) -> bool,
    ) -> Vec<RequestId> {
        let view = self.queue.view(scheduler);
        let mut found = Vec::new();
        view.next_matching(context.now, self.flow.allowed(context, view), fits, &mut found);
        found
    }

    pub(crate) fn retry_after(
        &mut self,
        scheduler: &Scheduler,
        context: Context<'_>,
        request: &PendingRequest,
    ) -> Duration {
        self.flow.retry_after(context, self.queue.view(scheduler), request)
    }
}

impl DryQueue {
    fn of<'a>(&'a self, scheduler: &'a Scheduler) -> &'a WaitQueue {
        scheduler.pool(self.pool).map_or(&self.empty, |it| &it.queue)
    }

    fn view<'a>(&'a self, scheduler: &'a Scheduler) -> QueueView<'a> {
        let queue = self.of(scheduler);
        self.joined.as_ref().map_or_else(|| queue.view(), |it| queue.view_with(it))
    }
}
