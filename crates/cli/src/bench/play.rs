//! Plays a trace in real time, in an open loop: a request is sent when it is due, whatever happened to
//! others.
//!
//! All times count from when a request was due, not from when it was sent. A generator that waits for a slow
//! endpoint before sending the next request, and starts its watch only then, measures the endpoint at its
//! best; the real clients would not have waited.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderName, HeaderValue, StatusCode};
use maitre_base::Instant;
use maitre_net::client::{HttpRequest, HttpResponse};
use maitre_sim::report::{AnswerMetrics, RequestLabel};
use maitre_sim::trace::{Request, Trace};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::answers::Answers;
use super::body;
use super::clock::Clock;
use super::connections::{Connections, broke_off};
use super::played::Played;
use super::refusal::Refusal;
use super::stream::Listener;
use super::trouble::{Kind, Trouble};
use super::{Api, Plan};

/// Time between two progress updates.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Timeout for the list of models.
const MODELS_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes read of a response that is not a stream.
const WHOLE_BYTES_MAX: usize = 1 << 20;

const AGENT: &str = concat!("maitre-bench/", env!("CARGO_PKG_VERSION"));

/// Plays the trace to the end.
pub async fn play(plan: &Plan, trace: &Trace) -> Played {
    play_until(plan, trace, std::future::pending(), |_, _| {}).await
}

/// Plays until `ended`, when open requests are cut off. From time to time calls `show` with the elapsed time
/// and the results so far.
pub async fn play_until(
    plan: &Plan,
    trace: &Trace,
    ended: impl Future<Output = ()>,
    show: impl Fn(Duration, &Played),
) -> Played {
    let requests = selected(plan, &trace.requests);
    let run = Arc::new(Run::new(plan, requests));
    tokio::select! {
        () = send_all(&run, requests) => {}
        () = watch(&run, show) => {}
        () = ended => {}
    }
    run.take_played()
}

/// Shows the results so far, without end.
pub(super) async fn watch(run: &Run, show: impl Fn(Duration, &Played)) {
    let mut looks = tokio::time::interval(LOOK_AGAIN);
    loop {
        looks.tick().await;
        show(run.clock.now().since(Instant::ZERO), &run.played.lock());
    }
}

/// The requests within the plan's limits.
fn selected<'a>(plan: &Plan, requests: &'a [Request]) -> &'a [Request] {
    let requests = &requests[..requests.len().min(plan.limit)];
    let first = requests.first().map_or(Instant::ZERO, |it| it.at);
    let count = requests.partition_point(|it| due(plan, first, it).since(Instant::ZERO) < plan.span);
    &requests[..count]
}

/// Shifts the trace so that its first request is due at once.
fn due(plan: &Plan, first: Instant, request: &Request) -> Instant {
    Instant::ZERO + request.at.since(first).div_f64(plan.speed)
}

/// State shared by all requests of a run.
pub(super) struct Run {
    pub(super) plan: Plan,
    pub(super) clock: Clock,
    connections: Connections,
    /// The arrival time of the trace's first request.
    first: Instant,
    answers: Mutex<Answers>,
    pub(super) played: Mutex<Played>,
}

/// A request that is ready to be sent.
pub(super) struct Order {
    due: Instant,
    label: RequestLabel,
    session: Option<u64>,
    /// The request in the trace.
    prompt_tokens: u32,
    answer: u64,
    answer_tokens: u32,
    keeps_text: bool,
    body: Bytes,
}

/// A complete answer.
struct Answer {
    listener: Listener,
    done: Instant,
}

async fn send_all(run: &Arc<Run>, requests: &[Request]) {
    let places = Arc::new(Semaphore::new(run.plan.concurrency));
    let mut open = JoinSet::new();
    for request in requests {
        let due = due(&run.plan, run.first, request);
        run.clock.until(due).await;
        let Some(place) = run.take_place(&places).await else { return };
        match run.order(request, due) {
            Ok(order) => drop(open.spawn(run.clone().serve(order, place))),
            Err(trouble) => run.played.lock().lose(&request.label(), &trouble),
        }
        while open.try_join_next().is_some() {}
        // If several are due at once, send each before the next body is built.
        tokio::task::yield_now().await;
    }
    while open.join_next().await.is_some() {}
}

impl Run {
    pub(super) fn new(plan: &Plan, requests: &[Request]) -> Run {
        Run {
            plan: plan.clone(),
            connections: plan.connections(),
            first: requests.first().map_or(Instant::ZERO, |it| it.at),
            answers: Mutex::new(Answers::of(requests)),
            played: Mutex::new(Played {
                planned: requests.len() as u64,
                speed: plan.speed,
                ..Played::default()
            }),
            clock: Clock::start(),
        }
    }

    /// The results, in the order in which requests were due.
    pub(super) fn take_played(&self) -> Played {
        let mut played = std::mem::take(&mut *self.played.lock());
        played.seen.sort_by_key(|it| it.at);
        played
    }

    pub(super) async fn take_place(&self, places: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        match places.clone().try_acquire_owned() {
            Ok(place) => Some(place),
            Err(_) => {
                self.played.lock().late.capped += 1;
                places.clone().acquire_owned().await.ok()
            }
        }
    }

    pub(super) fn order(&self, request: &Request, due: Instant) -> Result<Order, Trouble> {
        let mut answers = self.answers.lock();
        let composed = body::compose(&self.plan, request, &mut answers);
        let mut played = self.played.lock();
        played.left(self.clock.now().since(due));
        let body = composed.map_err(|it| Trouble::new(Kind::BrokeOff, it.to_string()))?;
        played.missing_answers += body.missing;
        Ok(Order {
            due,
            label: request.label(),
            session: request.session.filter(|_| !self.plan.hides_sessions),
            prompt_tokens: u32::try_from(request.prompt_tokens()).unwrap_or(u32::MAX),
            answer: request.answer,
            answer_tokens: request.answer_tokens,
            keeps_text: answers.wants(request.answer),
            body: body.bytes,
        })
    }

    /// Sends the request until there is an answer, or no reason to retry. Returns when the answer was complete.
    pub(super) async fn serve(
        self: Arc<Run>,
        mut order: Order,
        _place: OwnedSemaphorePermit,
    ) -> Option<Instant> {
        let body = std::mem::take(&mut order.body);
        for tries in 1..=self.plan.tries {
            let trouble = match self.ask_in_time(&order, body.clone()).await {
                Ok(answer) => return Some(self.note(&order, answer, tries)),
                Err(trouble) => trouble,
            };
            trouble.refusal.into_iter().for_each(|it| self.played.lock().refusals.add(it));
            // A client that would have to wait longer than its timeout gives up.
            let wait = trouble.refusal.and_then(Refusal::wait).filter(|&it| it <= self.plan.timeout);
            match wait.filter(|_| tries < self.plan.tries) {
                Some(wait) => self.clock.until(self.clock.now() + wait).await,
                None => {
                    self.played.lock().lose(&order.label, &trouble);
                    return None;
                }
            }
        }
        None
    }

    async fn ask_in_time(&self, order: &Order, body: Bytes) -> Result<Answer, Trouble> {
        let timeout = self.plan.timeout;
        let asked = tokio::time::timeout(timeout, self.ask(order, body)).await;
        asked.unwrap_or_else(|_| {
            Err(Trouble::new(Kind::Timeout, format!("no end of the answer after {timeout:?}")))
        })
    }

    async fn ask(&self, order: &Order, body: Bytes) -> Result<Answer, Trouble> {
        let request = HttpRequest::post(self.plan.api.path(), body);
        let request = order.headed(request.header(USER_AGENT, HeaderValue::from_static(AGENT)))?;
        let left = self.clock.now();
        let mut response = self.connections.send(request, left).await?;
        let status = response.status();
        if !status.is_success() {
            let refusal = Refusal::read(status, response.headers(), self.clock.now().since(left));
            let what = read_whole(&mut response).await.unwrap_or_else(|it| it.what);
            self.connections.keep(response, self.clock.now());
            return Err(Trouble { kind: Kind::Status(status.as_u16()), what, refusal });
        }
        let answer = self.listen(&mut response, order.keeps_text).await?;
        self.connections.keep(response, self.clock.now());
        Ok(answer)
    }

    async fn listen(&self, response: &mut HttpResponse, keeps_text: bool) -> Result<Answer, Trouble> {
        let mut listener = Listener::new(keeps_text);
        while let Some(chunk) = response.chunk().await.map_err(|it| broke_off(&it))? {
            let fed = listener.feed(&chunk, self.clock.now());
            fed.map_err(|what| Trouble::new(Kind::BrokeOff, what))?;
        }
        let done = listener
            .done
            .ok_or_else(|| Trouble::new(Kind::BrokeOff, "the stream ended without [DONE]".to_owned()))?;
        Ok(Answer { listener, done })
    }

    fn note(&self, order: &Order, answer: Answer, tries: u32) -> Instant {
        let Answer { mut listener, done } = answer;
        if let Some(text) = listener.take_text() {
            self.answers.lock().keep(order.answer, text, order.answer_tokens);
        }
        let usage = listener.usage;
        let cached_tokens = usage.and_then(|it| it.cached_tokens());
        let mut played = self.played.lock();
        played.refusals.answered(tries);
        played.told_usage += u64::from(usage.is_some());
        played.told_cached += u64::from(cached_tokens.is_some());
        played.seen.push(AnswerMetrics {
            at: order.due,
            first_token: listener.first_token.unwrap_or(done).since(order.due),
            total: done.since(order.due),
            prompt_tokens: usage.map_or(order.prompt_tokens, |it| it.prompt_tokens),
            cached_tokens: cached_tokens.unwrap_or(0),
            answer_tokens: usage.map_or(listener.events, |it| it.completion_tokens),
            label: order.label.clone(),
        });
        done
    }
}

impl Order {
    /// Headers for the tenant, class and deadline in the trace, for a router that uses them.
    fn headed<'a>(&self, mut request: HttpRequest<'a>) -> Result<HttpRequest<'a>, Trouble> {
        let value = |text: &str| {
            let value = HeaderValue::from_str(text);
            value.map_err(|error| Trouble::new(Kind::BrokeOff, error.to_string()))
        };
        let named = HeaderName::from_static;
        if let Some(session) = self.session {
            request = request.header(named("x-session-id"), HeaderValue::from(session));
        }
        if let Some(class) = &self.label.class {
            request = request.header(named("x-maitre-class"), value(class)?);
        }
        if self.label.tenant != 0 {
            request = request.header(named("x-maitre-tenant"), value(&format!("{:x}", self.label.tenant))?);
        }
        if let Some(deadline) = self.label.deadline {
            // A deadline of zero would mean no deadline.
            let deadline_ms = (deadline.as_millis() as u64).max(1);
            request = request.header(named("x-maitre-deadline-ms"), HeaderValue::from(deadline_ms));
        }
        Ok(request)
    }
}

impl Api {
    fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
        }
    }
}

async fn read_whole(response: &mut HttpResponse) -> Result<String, Trouble> {
    let body = response.read_all(WHOLE_BYTES_MAX).await.map_err(|it| broke_off(&it))?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

/// The name of the first model that the endpoint serves.
pub async fn first_model(plan: &Plan) -> anyhow::Result<String> {
    let connections = plan.connections();
    let ask = async {
        let request = HttpRequest::get("/v1/models").header(USER_AGENT, HeaderValue::from_static(AGENT));
        let mut response = connections.send(request, Instant::ZERO).await?;
        let status = response.status();
        let text = read_whole(&mut response).await?;
        if status != StatusCode::OK {
            bail!("{status}: {}", text.trim());
        }
        let models: Models = serde_json::from_str(&text).context("read the list")?;
        models.data.into_iter().next().map(|it| it.id).context("it has none")
    };
    let asked = tokio::time::timeout(MODELS_TIMEOUT, ask).await;
    let asked = asked.unwrap_or_else(|_| bail!("no answer after {MODELS_TIMEOUT:?}"));
    asked.with_context(|| format!("list the models of {} (--model names one instead)", plan.address))
}
