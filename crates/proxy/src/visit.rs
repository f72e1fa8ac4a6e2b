//! One request from its arrival to its last byte, and what is told of it when it is over.
//!
//! A visit is a drop guard: however the request ends (answered, refused, broken off, its client gone),
//! dropping the visit tells the brain, the metrics and the log, once. Nothing else does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{HeaderMap, HeaderValue};
use http::{Request, StatusCode};
use maitre_base::{ClassId, Instant, RequestId};
use maitre_dialect::route::Route;
use maitre_dialect::usage::Usage;
use maitre_dispatch::{Arrival, Event, Failure, Placement, Refusal, reports_progress};
use maitre_fleet::estimate::Counted;
use tokio::time::timeout;
use tracing::debug;

use crate::client::Busy;
use crate::decision::{Decided, Decision, Waiter};
use crate::headers;
use crate::keys::Caller;
use crate::lane::Lane;
use crate::link::Link;
use crate::metrics::Outcome;
use crate::recent;
use crate::record::{Ended, Note};
use crate::refuse;
use crate::settings::Settings;
use crate::traces::{Context, Dice, Ending, Trace};

pub(crate) struct RequestGuard {
    pub(crate) lane: Arc<Lane>,
    /// As they were when it arrived: a reload changes nothing for it.
    pub(crate) settings: Arc<Settings>,
    pub(crate) request: RequestId,
    pub(crate) id: HeaderValue,
    pub(crate) route: Option<Route>,
    pub(crate) caller: Caller,
    pub(crate) outcome: Outcome,
    pub(crate) usage: Option<Usage>,
    /// For the record, if one is kept.
    pub(crate) note: Option<Box<Note>>,
    /// If it is traced.
    trace: Option<Box<Trace>>,
    pub(crate) arrived: Instant,
    /// Its client wants to know all that was weighed, and may.
    pub(crate) explains: bool,
    placement: Option<Placement>,
    /// Of the worker it is seated at. Kept, for when the brain has heard the end of it the number may be another's.
    link: Option<Arc<Link>>,
    /// The brain was told of it and has not refused it: it must be told of its end, too.
    is_open: bool,
    queued: Queued,
    pace: Pace,
    /// Keeps the watchdog from the connection.
    _busy: Busy,
}

/// How it fared in line.
#[derive(Clone, Copy, Debug, Default)]
struct Queued {
    /// None: it never came that far.
    class: Option<ClassId>,
    /// Since when it stands there.
    since: Option<Instant>,
    /// All the times before, and now.
    waited: Duration,
}

impl Queued {
    fn end(&mut self, now: Instant) {
        self.waited += self.since.take().map_or(Duration::ZERO, |since| now.since(since));
    }
}

/// When the answer came.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    first: Option<Instant>,
    last: Instant,
    pieces: u32,
}

impl RequestGuard {
    pub(crate) fn begin(lane: Arc<Lane>, busy: Busy) -> RequestGuard {
        let (request, arrived) = (lane.house.next_request(), lane.house.now());
        lane.house.metrics.open.inc();
        RequestGuard {
            settings: lane.house.settings.load_full(),
            lane,
            request,
            id: HeaderValue::from_static("-"),
            route: None,
            caller: Caller::Stranger,
            // Until something better happens: dropped now, it means that the client left.
            outcome: Outcome::Gone,
            usage: None,
            note: None,
            trace: None,
            arrived,
            explains: false,
            placement: None,
            link: None,
            is_open: false,
            queued: Queued::default(),
            pace: Pace::default(),
            _busy: busy,
        }
    }

    /// Begins its trace, if it is to have one.
    pub(crate) fn trace<B>(&mut self, request: &mut Request<B>) {
        let house = &self.lane.house;
        let Some(traces) = &house.traces else { return };
        let dice = Dice { salt: house.salt, request: self.request, sample: self.settings.traces.sample };
        self.trace = traces.begin(dice, request);
    }

    /// Its body is here. What its workers are to be told of its trace.
    pub(crate) fn read(&mut self) -> Option<Context> {
        let trace = self.trace.as_mut()?;
        trace.read(self.lane.house.now());
        Some(trace.context())
    }

    /// Asks the brain for a placement.
    pub(crate) fn arrive(&mut self, arrival: Arrival<'_>) -> Decision {
        self.queued.class = Some(arrival.class);
        self.is_open = true;
        self.lane.house.ids.keep(self.request, &self.id);
        let decision = self.lane.house.on(Event::Arrived(arrival));
        if let Some(trace) = &mut self.trace {
            trace.decided(self.lane.house.now(), arrival.model);
        }
        decision
    }

    /// Tells the brain that the attempt failed, and asks for another placement.
    pub(crate) fn failed(&mut self, failure: Failure) -> Decision {
        self.lane.house.metrics.failed(failure);
        if let Some(trace) = &mut self.trace {
            trace.failed(self.lane.house.now(), failure);
        }
        match self.placement {
            Some(Placement { worker, .. }) => {
                if let Some(link) = &self.link {
                    link.tally.failures.fetch_add(1, Ordering::Relaxed);
                }
                self.lane.house.on(Event::Failed { request: self.request, worker, failure })
            }
            None => Decision::Nothing,
        }
    }

    /// Where it goes, or why not; while it stands in line, this waits. Dropped meanwhile, its client has left.
    pub(crate) async fn decided(&mut self, decision: Decision) -> Decided {
        let decided = match decision {
            Decision::Placed(placement) => Ok(placement),
            Decision::Refuse(refusal) => Err(refusal),
            Decision::Nothing => Err(self.give_up(Refusal::NoWorker)),
            Decision::Wait(waiter) => self.stand_in_line(waiter).await,
        };
        let metrics = &self.lane.house.metrics;
        match decided {
            Ok(placement) => {
                metrics.picked(placement.why);
                self.link = self.lane.house.link(placement.worker);
                if let Some(link) = &self.link {
                    link.tally.seated.fetch_add(1, Ordering::Relaxed);
                }
                self.queued.waited = placement.waited;
                self.placement = Some(placement);
                if let (Some(trace), Some(link)) = (&mut self.trace, &self.link) {
                    trace.seated(self.lane.house.now(), placement, link.clone());
                }
            }
            Err(refusal) => {
                self.is_open = false;
                metrics.queue.refused(self.queued.class, refusal);
            }
        }
        decided
    }

    async fn stand_in_line(&mut self, waiter: Waiter) -> Decided {
        let house = self.lane.house.clone();
        let begun = house.now();
        self.queued.since = Some(begun);
        if let Some(trace) = &mut self.trace {
            trace.queued(begun);
        }
        let left = self.settings.timeouts.total.saturating_sub(begun.since(self.arrived));
        let decided = timeout(left, waiter).await;
        let ended = house.now();
        self.queued.end(ended);
        if let Some(trace) = &mut self.trace {
            trace.left_line(ended);
        }
        match decided {
            Ok(Ok(decided)) => decided,
            // The brain forgot it, as it never should.
            Ok(Err(_)) => Err(self.give_up(Refusal::NoWorker)),
            Err(_) => Err(self.give_up(Refusal::Failed { last: Failure::TimedOut })),
        }
    }

    /// It ends here, though the brain has not said so.
    fn give_up(&self, refusal: Refusal) -> Refusal {
        self.lane.house.on(Event::Left { request: self.request });
        refusal
    }

    /// Tells the client how long it stood in line; one that did not is told only where we explain ourselves.
    pub(crate) fn tell_queued(&self, headers: &mut HeaderMap) {
        let waited = self.queued.waited;
        if !waited.is_zero() {
            // Rounded up: a zero means that it did not wait at all.
            let millis = u64::try_from(waited.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
            headers.insert(headers::QUEUED, HeaderValue::from(millis));
        } else if self.queued.class.is_some() && self.tells_all() {
            headers.insert(headers::QUEUED, HeaderValue::from_static("0"));
        }
    }

    /// Whether a request that did not wait is told so.
    fn tells_all(&self) -> bool {
        self.settings.explain && self.settings.brain.queue.enabled
    }

    fn class(&self) -> Option<&str> {
        let classes = &self.settings.brain.queue.classes;
        classes.get(self.queued.class?.index()).map(|it| it.name.as_str())
    }

    /// An answer begins, a worker's or ours. What the client got wrong is not traffic: nobody computes it.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        if let Some(trace) = &mut self.trace {
            trace.answered(status);
        }
        if refuse::is_clients_fault(status) {
            self.note = None;
        }
    }

    /// A piece of the answer arrived. The first one means that the prefill is done, unless it is a no.
    pub(crate) fn piece(&mut self, now: Instant, outcome: Outcome) {
        self.pace.last = now;
        self.pace.pieces += 1;
        if self.pace.first.is_none() {
            self.pace.first = Some(now);
            if matches!(outcome, Outcome::Declined(_)) {
                return;
            }
            if let Some(Placement { worker, .. }) = self.placement {
                self.lane.house.on(Event::FirstToken { request: self.request, worker });
            }
        } else if reports_progress(self.pace.pieces) {
            self.lane.house.on(Event::Streamed { request: self.request, pieces: self.pace.pieces });
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.pace.first.is_some()
    }

    fn worker(&self) -> Option<&str> {
        self.link.as_deref().map(|it| it.url.as_str())
    }

    /// Leaves what is to be told of its trace for the collector.
    fn end_trace(&mut self, now: Instant) {
        let Some(trace) = self.trace.take() else { return };
        let house = &self.lane.house;
        let Some(traces) = &house.traces else { return };
        let ending = Ending {
            id: self.id.clone(),
            route: self.route,
            outcome: self.outcome,
            usage: self.usage,
            class: self.class().map(str::to_owned),
            waited: self.queued.waited,
            arrived: self.arrived,
            ended: now,
            pieces: self.pace.first.map(|first| (first, self.pace.last)),
        };
        traces.take(trace.end(ending), &house.metrics);
    }

    /// When an event was last received, or the request arrived.
    pub(crate) fn last(&self) -> Instant {
        self.pace.last.max(self.arrived)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let house = &self.lane.house;
        let request = self.request;
        let counted = self.usage.map(|it| Counted {
            prompt: it.prompt_tokens,
            cached: it.cached_tokens,
            answer: it.completion_tokens,
        });
        let pieces = self.pace.pieces;
        if self.is_open {
            house.on(match self.outcome {
                Outcome::Answered => Event::Finished { request, counted, pieces },
                Outcome::Declined(_) => Event::Declined { request },
                Outcome::Broke | Outcome::Stalled => Event::BrokeOff { request },
                _ => Event::Left { request },
            });
        }
        if let Some(usage) = self.usage
            && let (Some(prompt), Some(cached)) = (usage.prompt_tokens, usage.cached_tokens)
        {
            house.metrics.caches.counted(prompt, cached, self.placement.and_then(|it| it.held));
            if let Some(link) = &self.link {
                link.tally.prompt_tokens.fetch_add(prompt, Ordering::Relaxed);
                link.tally.cached_tokens.fetch_add(cached, Ordering::Relaxed);
            }
        }
        let now = house.now();
        self.queued.end(now);
        house.metrics.queue.waited(self.queued.class, self.queued.waited);
        let ttft = self.pace.first.map(|first| first.since(self.arrived));
        let total = now.since(self.arrived);
        house.metrics.open.dec();
        let (outcome, usage) = (self.outcome, self.usage);
        house.recent.ended(now, &recent::Ended { outcome, usage, pieces, first: ttft });
        house.metrics.ended(self.route, self.outcome);
        house.metrics.total.observe(total.as_secs_f64());
        if let (Some(first), Some(ttft), Outcome::Answered) = (self.pace.first, ttft, self.outcome) {
            house.metrics.first.observe(ttft.as_secs_f64());
            if self.pace.pieces > 1 {
                let gaps = self.pace.last.since(first).as_secs_f64();
                house.metrics.gap.observe(gaps / f64::from(self.pace.pieces - 1));
            }
        }
        if let (Some(note), Some(recorder)) = (self.note.take(), &house.recorder) {
            recorder.take(note, Ended { arrived: self.arrived, usage: self.usage, pieces });
        }
        if self.trace.is_some() {
            self.end_trace(now);
        }
        debug!(
            id = self.id.to_str().unwrap_or("-"),
            route = self.route.map_or("other", Route::name),
            outcome = self.outcome.name(),
            code = self.outcome.code(),
            worker = self.worker(),
            why = self.placement.map(|it| it.why.name()),
            held_tokens = self.placement.and_then(|it| it.held).map(|it| it.0),
            class = self.class(),
            waited_ms = self.queued.waited.as_millis() as u64,
            attempt = self.placement.map(|it| it.attempt),
            first_ms = ttft.map(|it| it.as_millis() as u64),
            total_ms = total.as_millis() as u64,
            prompt_tokens = self.usage.and_then(|it| it.prompt_tokens),
            cached_tokens = self.usage.and_then(|it| it.cached_tokens),
            answer_tokens = self.usage.and_then(|it| it.completion_tokens),
            "request"
        );
    }
}
