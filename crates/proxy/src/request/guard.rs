//! Accompanies a request from its arrival to its last byte, and does the accounting when it ends.
//!
//! A drop guard: however the request ends (answered, refused, broken off, its client gone), dropping the guard reports
//! it to the brain, the metrics, the record, the trace and the log, once. Nothing else does.

mod accounting;
mod carried;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{HeaderMap, HeaderValue};
use http::{Request, StatusCode};
use maitre_base::{ClassId, Instant, RequestId, TenantId, Tokens, WorkerId};
use maitre_dialect::response_id;
use maitre_dialect::route::Route;
use maitre_dialect::usage::Usage;
use maitre_dispatch::{Arrival, Event, Failure, Placement, Refusal, RetryLimit, reports_progress};
use maitre_fleet::estimate::Size;
use maitre_queue::Budgets;
use tokio::time::timeout;

use super::state_name;
use crate::body_memory::ConnectionBodies;
use crate::brain::{Decided, Decision, Waiter};
use crate::client::Busy;
use crate::headers;
use crate::in_flight::AwaitingPlace;
use crate::lane::Lane;
use crate::link::Link;
use crate::metrics::{Hedged, Metrics};
use crate::outcome::RequestOutcome;
use crate::record::RecordEntry;
use crate::refuse;
use crate::settings::RouterSettings;
use crate::traces::{Context, Sampling, Trace};

/// Chunks of a stream that need hold no token: a role, pings, token counts, end marks. So many are left out while the
/// stream flows, because a counter cannot be corrected downward; the end adds what was missed. Counted in the streams of
/// vLLM (four) and of the Anthropic API (six).
const CHUNKS_WITHOUT_TOKENS: u32 = 6;

pub(crate) struct RequestGuard {
    pub(super) lane: Arc<Lane>,
    /// As they were when the request arrived: a reload does not affect it.
    pub(super) settings: Arc<RouterSettings>,
    pub(super) number: RequestId,
    pub(super) id: HeaderValue,
    pub(super) arrived: Instant,
    /// None for paths outside the API, and until the path is known to be one of the API's.
    route: Option<Route>,
    /// Whether the client may learn about single workers.
    pub(super) is_trusted: bool,
    /// None if the request is not traced.
    trace: Option<Box<Trace>>,
    /// None until the brain knows of the request.
    scheduled: Option<Scheduled>,
    /// What is left of its tenant's limits, if it has any.
    budgets: Option<Box<Budgets>>,
    /// None once its first token came.
    awaiting: Option<AwaitingPlace>,
    response: ResponseSoFar,
    /// What its connection's requests have sent of bodies that are not complete.
    pub(super) connection_bodies: Arc<ConnectionBodies>,
    /// The conversation that it is part of, where its worker keeps it.
    pub(super) conversation: Option<u64>,
    /// What came of its second attempt, if it had one.
    pub(super) hedged: Option<Hedged>,
    /// Keeps the watchdog from closing the connection as idle.
    busy: Busy,
}

/// A request that the brain knows of.
struct Scheduled {
    class: ClassId,
    /// As the router counted them; None if it knows only bytes.
    prompt_tokens: Option<u64>,
    /// For the record, if there is one.
    entry: Option<Box<RecordEntry>>,
    /// The brain has not refused it, so it must learn of its end.
    is_open: bool,
    /// Since when it is in the queue; None if it is not.
    queued_since: Option<Instant>,
    /// Time in the queue, in all.
    waited: Duration,
    is_wait_counted: bool,
    /// The last placement. The link is kept, because after the end of the request the worker's number may be reused.
    placed: Option<(Placement, Option<Arc<Link>>)>,
}

impl Scheduled {
    /// Counts the time in the queue, once: at the first token, or at the end of a request without one.
    fn count_wait(&mut self, metrics: &Metrics) {
        if !std::mem::replace(&mut self.is_wait_counted, true) {
            metrics.queue.waited(Some(self.class), self.waited);
        }
    }

    fn leave_queue(&mut self, now: Instant) {
        self.waited += self.queued_since.take().map_or(Duration::ZERO, |since| now.since(since));
    }

    fn placement(&self) -> Option<&Placement> {
        self.placed.as_ref().map(|it| &it.0)
    }

    fn link(&self) -> Option<&Arc<Link>> {
        self.placed.as_ref()?.1.as_ref()
    }
}

/// The response up to now, and how the request counts if it ends here.
struct ResponseSoFar {
    outcome: RequestOutcome,
    usage: Option<Usage>,
    first_chunk: Option<Instant>,
    /// When a chunk last arrived; before the first one, when the request was sent to its worker.
    last_chunk: Instant,
    chunks: u32,
    /// How many of them came from other workers than the present one.
    chunks_before: u32,
    /// How often another worker went on with it, and whether the present one has not begun.
    continuations: u32,
    is_resuming: bool,
    /// It is an answer that comes token by token.
    is_stream: bool,
    /// Tokens of its prompt that were counted at the first token.
    prompt_counted: u64,
}

impl ResponseSoFar {
    /// Tokens of the answer that were counted as they came.
    fn answer_counted(&self) -> u64 {
        if self.is_stream { self.chunks.saturating_sub(CHUNKS_WITHOUT_TOKENS).into() } else { 0 }
    }

    /// Chunks of the present worker.
    fn pieces(&self) -> u32 {
        self.chunks - self.chunks_before
    }
}

impl RequestGuard {
    /// Takes the request's id from its headers, or makes one and adds it to them.
    pub(crate) fn open<B>(
        lane: Arc<Lane>,
        busy: Busy,
        connection_bodies: Arc<ConnectionBodies>,
        request: &mut Request<B>,
    ) -> RequestGuard {
        let ids = &lane.state.request_ids;
        let (number, arrived) = (ids.next(), lane.state.clock.now());
        let id = headers::keep_or_make_id(request.headers_mut(), number, ids.instance_nonce);
        lane.state.metrics.in_flight.inc();
        let awaiting = Some(lane.counts.arrive(arrived));
        RequestGuard {
            settings: lane.state.settings.snapshot(),
            lane,
            number,
            id,
            arrived,
            route: None,
            is_trusted: false,
            trace: None,
            scheduled: None,
            budgets: None,
            awaiting,
            response: ResponseSoFar {
                // Dropped before anything else happens, the client has disconnected.
                outcome: RequestOutcome::Gone,
                usage: None,
                first_chunk: None,
                last_chunk: Instant::ZERO,
                chunks: 0,
                chunks_before: 0,
                continuations: 0,
                is_resuming: false,
                is_stream: false,
                prompt_counted: 0,
            },
            connection_bodies,
            conversation: None,
            hedged: None,
            busy,
        }
    }

    /// The request's second attempt is its attempt from now on; the event ends the other.
    pub(super) fn take_over(
        &mut self,
        (number, placement): (RequestId, Placement),
        end: fn(RequestId, RequestId) -> Event<'static>,
    ) {
        let state = &self.lane.state;
        state.brain.on(end(self.number, number));
        self.number = number;
        let link = state.brain.link(placement.worker);
        if let (Some(trace), Some(link)) = (&mut self.trace, &link) {
            trace.placed(state.clock.now(), placement, link.clone());
        }
        if let Some(scheduled) = &mut self.scheduled {
            scheduled.placed = Some((placement, link));
        }
    }

    /// Where the request is placed.
    pub(super) fn placement(&self) -> Option<Placement> {
        self.scheduled.as_ref()?.placement().copied()
    }

    pub(super) fn route(&self) -> Option<Route> {
        self.route
    }

    /// Whether the client speaks HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        self.busy.is_http2()
    }

    pub(super) fn routed(&mut self, route: Option<Route>) {
        self.route = route;
    }

    /// Begins the trace, if the request is sampled.
    pub(super) fn begin_trace<B>(&mut self, request: &mut Request<B>) {
        let state = &self.lane.state;
        let Some(traces) = &state.traces else { return };
        let instance_nonce = state.request_ids.instance_nonce;
        let sampling = Sampling { instance_nonce, request: self.number, ratio: self.settings.traces.sample };
        self.trace = traces.begin(sampling, request);
    }

    /// The body is complete. Returns the trace that the workers join.
    pub(super) fn received(&mut self) -> Option<Context> {
        let trace = self.trace.as_mut()?;
        trace.received(self.lane.state.clock.now());
        Some(trace.context())
    }

    /// Asks the brain for a placement.
    pub(super) fn schedule(&mut self, arrival: Arrival<'_>, entry: Option<Box<RecordEntry>>) -> Decision {
        self.scheduled = Some(Scheduled {
            class: arrival.class,
            prompt_tokens: match arrival.size {
                Size::Tokens(count) => Some(count),
                Size::Bytes(_) => None,
            },
            entry,
            is_open: true,
            queued_since: None,
            waited: Duration::ZERO,
            is_wait_counted: false,
            placed: None,
        });
        let state = &self.lane.state;
        state.request_ids.keep(self.number, &self.id);
        let decision = state.brain.on(Event::Arrived(arrival));
        if let Some(trace) = &mut self.trace {
            trace.decided(state.clock.now(), arrival.model);
        }
        decision
    }

    /// Reports a failed attempt to the brain, and asks for another placement.
    pub(super) fn attempt_failed(&mut self, failure: Failure) -> Decision {
        self.failed_at(failure, |it| Some(it.worker))
    }

    /// The same for the worker that prefills for the one of the placement.
    pub(super) fn prefill_failed(&mut self, failure: Failure) -> Decision {
        self.failed_at(failure, |it| it.prefill)
    }

    fn failed_at(&mut self, failure: Failure, at: fn(&Placement) -> Option<WorkerId>) -> Decision {
        let state = &self.lane.state;
        state.metrics.failed(failure);
        if let Some(trace) = &mut self.trace {
            trace.failed(state.clock.now(), failure);
        }
        let placed = self.scheduled.as_ref().and_then(|it| it.placed.as_ref());
        let Some(worker) = placed.and_then(|it| at(&it.0)) else { return Decision::Nothing };
        if let Some(link) = state.brain.link(worker) {
            link.tally.failures.fetch_add(1, Ordering::Relaxed);
        }
        state.brain.on(Event::Failed { request: self.number, worker, failure })
    }

    /// Reports to the brain that the worker failed in the middle of its response, of which the client has this many tokens,
    /// and asks for another worker to go on.
    pub(super) fn interrupted(&mut self, delivered: u64) -> Decision {
        let state = &self.lane.state;
        if let Some(trace) = &mut self.trace {
            trace.failed(state.clock.now(), Failure::Broke);
        }
        let placed = self.scheduled.as_ref().and_then(Scheduled::placement);
        let Some(worker) = placed.map(|it| it.worker) else { return Decision::Nothing };
        state.brain.on(Event::Interrupted { request: self.number, worker, delivered: Tokens(delivered) })
    }

    /// Another worker goes on with the response. It got its request at this time.
    pub(super) fn resumed(&mut self, sent: Instant) {
        let response = &mut self.response;
        response.continuations += 1;
        response.is_resuming = true;
        response.chunks_before = response.chunks;
        response.last_chunk = sent;
    }

    /// The placement, or the refusal; waits while the request is queued. Dropped meanwhile, the client has disconnected.
    pub(super) async fn decided(&mut self, decision: Decision) -> Decided {
        let decided = match decision {
            Decision::Placed(placement) => Ok(placement),
            Decision::Refuse(refusal) => Err(refusal),
            Decision::Nothing => Err(self.give_up(Refusal::NoWorker)),
            Decision::Wait(waiter) => self.wait_in_queue(waiter).await,
        };
        match decided {
            Ok(placement) => self.placed(placement),
            Err(refusal) => {
                if let Some(scheduled) = &mut self.scheduled {
                    scheduled.is_open = false;
                    self.lane.state.metrics.queue.refused(Some(scheduled.class), refusal);
                }
            }
        }
        decided
    }

    fn placed(&mut self, placement: Placement) {
        let state = &self.lane.state;
        let Some(scheduled) = &mut self.scheduled else { return };
        state.metrics.picked(placement.why);
        let link = state.brain.link(placement.worker);
        if let Some(link) = &link {
            link.tally.placed.fetch_add(1, Ordering::Relaxed);
        }
        if let (Some(trace), Some(link)) = (&mut self.trace, &link) {
            trace.placed(state.clock.now(), placement, link.clone());
        }
        scheduled.waited = placement.waited;
        scheduled.placed = Some((placement, link));
    }

    async fn wait_in_queue(&mut self, waiter: Waiter) -> Decided {
        let clock = self.lane.state.clock;
        let queued = clock.now();
        if let Some(scheduled) = &mut self.scheduled {
            scheduled.queued_since = Some(queued);
        }
        if let Some(trace) = &mut self.trace {
            trace.queued(queued);
        }
        let left = self.settings.timeouts.total.saturating_sub(queued.since(self.arrived));
        let decided = timeout(left, waiter).await;
        let now = clock.now();
        if let Some(scheduled) = &mut self.scheduled {
            scheduled.leave_queue(now);
        }
        if let Some(trace) = &mut self.trace {
            trace.left_queue(now);
        }
        match decided {
            Ok(Ok(decided)) => decided,
            // The brain forgot the request, which should never happen.
            Ok(Err(_)) => Err(self.give_up(Refusal::NoWorker)),
            Err(_) => {
                let (last, limit) = (Failure::TimedOut, RetryLimit::Failure);
                Err(self.give_up(Refusal::Failed { last, limit }))
            }
        }
    }

    /// The request ends here, although the brain did not decide so.
    fn give_up(&self, refusal: Refusal) -> Refusal {
        self.lane.state.brain.on(Event::GivenUp { request: self.number });
        refusal
    }

    /// The brain has decided: notes what that leaves of the tenant's limits.
    pub(super) fn note_budgets(&mut self, tenant: TenantId) {
        let queue = &self.settings.brain.queue;
        if queue.enabled && queue.terms(tenant).are_limited() {
            let state = &self.lane.state;
            let now = state.clock.now();
            self.budgets = Some(Box::new(state.brain.read(|brain| brain.budgets(now, tenant))));
        }
    }

    /// Adds what is left of the tenant's limits to a response's headers.
    pub(super) fn add_budgets(&self, headers: &mut HeaderMap) {
        if let Some(budgets) = &self.budgets {
            headers::add_budgets(headers, budgets);
        }
    }

    /// Adds the time in the queue to a response's headers; a time of zero only where response headers explain.
    pub(super) fn add_queue_time(&self, headers: &mut HeaderMap) {
        let Some(scheduled) = &self.scheduled else { return };
        if !scheduled.waited.is_zero() {
            // Rounded up: zero means that the request was not queued at all.
            let millis = u64::try_from(scheduled.waited.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
            headers.insert(headers::QUEUED, HeaderValue::from(millis));
        } else if self.settings.explain && self.settings.brain.queue.enabled {
            headers.insert(headers::QUEUED, HeaderValue::from_static("0"));
        }
    }

    /// A response begins, a worker's or ours. What the client got wrong is no load, and is not recorded.
    pub(super) fn responded(&mut self, status: StatusCode) {
        if let Some(trace) = &mut self.trace {
            trace.responded(status);
        }
        if refuse::is_clients_fault(status)
            && let Some(scheduled) = &mut self.scheduled
        {
            scheduled.entry = None;
        }
    }

    /// A chunk of the response arrived. The first one means that the prefill is done, unless it is an error.
    pub(super) fn chunk(&mut self, now: Instant, outcome: RequestOutcome) {
        let (request, response) = (self.number, &mut self.response);
        response.last_chunk = now;
        response.chunks += 1;
        if response.first_chunk.is_none() {
            response.first_chunk = Some(now);
            self.first_chunk(now, outcome);
            return;
        }
        if response.is_stream && response.chunks > CHUNKS_WITHOUT_TOKENS {
            self.lane.counts.add_answer_tokens(1);
        }
        if std::mem::take(&mut response.is_resuming) {
            self.report_first_token(now);
            return;
        }
        let pieces = response.pieces();
        if reports_progress(pieces) {
            self.lane.state.brain.on_at(now, Event::Streamed { request, pieces });
        }
    }

    /// The worker has sent something that is not for the client yet.
    pub(super) fn heard(&mut self, now: Instant) {
        self.response.last_chunk = now;
    }

    fn report_first_token(&self, now: Instant) {
        if let Some(placement) = self.scheduled.as_ref().and_then(Scheduled::placement) {
            let first = Event::FirstToken { request: self.number, worker: placement.worker };
            self.lane.state.brain.on_at(now, first);
        }
    }

    fn first_chunk(&mut self, now: Instant, outcome: RequestOutcome) {
        self.stop_awaiting();
        if matches!(outcome, RequestOutcome::Declined(_)) {
            return;
        }
        let (state, ttft) = (&self.lane.state, now.since(self.arrived));
        state.recent.first_token(now, ttft);
        state.metrics.ttft.observe(ttft.as_secs_f64());
        let Some(scheduled) = &mut self.scheduled else { return };
        scheduled.count_wait(&state.metrics);
        if let Some(count) = scheduled.prompt_tokens {
            self.response.prompt_counted = count;
            self.lane.counts.add_prompt_tokens(count);
        }
        self.report_first_token(now);
    }

    fn stop_awaiting(&mut self) {
        if let Some(place) = self.awaiting.take() {
            self.lane.counts.leave(place);
        }
    }

    /// A response begins: its worker holds the state by which later requests continue it.
    pub(super) fn note_state(&self, link: &Link, beginning: &[u8]) {
        if self.route != Some(Route::Responses) {
            return;
        }
        let response = response_id::find(beginning).map(state_name::of_response);
        for state in response.into_iter().chain(self.conversation) {
            self.lane.state.brain.on(Event::StateHeld { state, worker: link.worker });
        }
    }

    /// The response comes token by token.
    pub(super) fn streams(&mut self) {
        self.response.is_stream = true;
    }

    pub(super) fn has_chunks(&self) -> bool {
        self.response.first_chunk.is_some()
    }

    /// The client gets the head of a response. The brain must not recall the request from now on; it knows that of responses
    /// whose first token was reported.
    pub(super) fn response_begun(&self, outcome: RequestOutcome) {
        let is_reported = self.has_chunks() && !matches!(outcome, RequestOutcome::Declined(_));
        if !is_reported {
            self.lane.state.brain.on(Event::ResponseBegun { request: self.number });
        }
    }

    /// The worker that responds got the request at this time.
    pub(super) fn sent(&mut self, at: Instant) {
        self.response.last_chunk = at;
    }

    /// When a chunk last arrived; before the first one, when the request was sent to its worker. Time in the queue is not
    /// the worker's.
    pub(super) fn last_activity(&self) -> Instant {
        self.response.last_chunk.max(self.arrived)
    }

    /// How the request counts if it ends now.
    pub(super) fn ends_as(&mut self, outcome: RequestOutcome) {
        self.response.outcome = outcome;
    }

    /// The token counts that the response reports.
    pub(super) fn used(&mut self, usage: Option<Usage>) {
        self.response.usage = usage;
    }

    fn class_name(&self) -> Option<&str> {
        let classes = &self.settings.brain.queue.classes;
        classes.get(self.scheduled.as_ref()?.class.index()).map(|it| it.name.as_str())
    }
}
