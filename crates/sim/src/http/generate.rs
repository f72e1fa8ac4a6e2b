//! The generating routes: from a parsed request to its answer.

use http::header::HeaderValue;

use super::HostState;
use super::answer::{AnswerLength, AnswerText, PlannedAnswer, escape, json_ids};
use super::api_format::ApiFormat;
use super::body::EventStream;
use super::driver::{AnswerEnd, Ticket};
use super::error::ApiError;
use super::misconfiguration::Misconfiguration;
use super::reply::{EVENTS, RouteReply};
use super::request::{Delivery, GenerateRequest};
use super::transfer::Leg;
use crate::clock;
use crate::engine::{self, Job};
use crate::kv::{Names, Root};
use crate::speech::Speech;
use crate::text;

/// A request to one of them.
pub(super) struct PostedRequest<'a> {
    pub(super) path: &'a str,
    pub(super) request_id: Option<&'a HeaderValue>,
    pub(super) body: &'a [u8],
}

pub(super) async fn generate(
    state: &HostState,
    api: ApiFormat,
    posted: PostedRequest<'_>,
) -> Result<RouteReply, ApiError> {
    let arrived = state.driver.now();
    let ask = GenerateRequest::parse(api, posted.body)?;
    if ask.delivery != Delivery::Whole && api == ApiFormat::Generate {
        return Err(ApiError::bad_request("stream: not simulated on this route"));
    }
    let leg = state.leg(&ask.transfer)?;
    if matches!(leg, Leg::Fatal) {
        return die(state, ask.delivery);
    }
    let begun = begin(state, api, posted.request_id, ask, &leg);
    let (answer, job) = begun.inspect_err(|_| state.release_source(leg.clone()))?;
    state.driver.wait_overhead(arrived, state.config.engine.profile.overhead).await;
    let ticket = state.submit_leg(arrived, job, leg.clone()).await;
    let ticket = ticket.inspect_err(|_| state.release_source(leg))?;
    match answer.delivery {
        Delivery::EventStream { .. } => {
            Ok(RouteReply::EventStream(Box::new(EventStream::new(ticket, answer))))
        }
        Delivery::Whole => finish(state, &ticket, answer).await,
    }
}

/// Checks a request and plans its answer.
fn begin(
    state: &HostState,
    api: ApiFormat,
    request_id: Option<&HeaderValue>,
    ask: GenerateRequest,
    leg: &Leg,
) -> Result<(PlannedAnswer, Job), ApiError> {
    let model = state.model(ask.model.as_deref())?;
    let refuses_ids = |it: &Misconfiguration| matches!(it, Misconfiguration::RefusesTokenIds);
    if ask.returns_ids && state.config.misconfigurations.any(refuses_ids) {
        return Err(ApiError::bad_request("return_token_ids: not supported"));
    }
    let root = state.root(model, &state.salt(&ask)?);
    let speech = Speech::after(model, &ask.prompt);
    let words = AnswerText::new(ask.call.as_ref(), speech);
    let mut length = AnswerLength::of(&ask, &words, state.config.engine.profile.context_tokens_max)?;
    if matches!(leg, Leg::Room(_)) {
        // Both legs have the same body; the decode engine continues.
        length = AnswerLength { tokens: 1, finish: engine::Finish::Length };
    }
    let answer = PlannedAnswer {
        api,
        id: state.answer_id(request_id),
        model: escape(model),
        created: clock::unix_seconds(),
        prompt_tokens: ask.prompt.len() as u32,
        tokens: length.tokens,
        finish: length.finish,
        words,
        delivery: ask.delivery,
        reports_cached: state.config.misconfigurations.reports_cached_tokens(),
        kv_transfer_params: "null".to_owned(),
        prompt_ids: ask.returns_ids.then(|| json_ids(ask.prompt.iter().copied())),
        brand: state.config.brand,
    };
    let seed = speech.seed_now();
    let job = Job { root, prompt: ask.prompt, seed, answer_tokens: length.tokens, finish: length.finish };
    Ok((answer, job))
}

/// Waits for an answer in one piece.
async fn finish(
    state: &HostState,
    ticket: &Ticket,
    mut answer: PlannedAnswer,
) -> Result<RouteReply, ApiError> {
    let progress = ticket.finished().await;
    if progress.end == Some(AnswerEnd::Failed) {
        return Err(ApiError::internal());
    }
    answer.begin(progress);
    answer.kv_transfer_params = state.transfer_params(&answer.full_id(), ticket, progress.cached_tokens);
    Ok(RouteReply::text(answer.whole(progress)))
}

/// The engine dies after this response.
fn die(state: &HostState, delivery: Delivery) -> Result<RouteReply, ApiError> {
    state.die();
    let error = ApiError::engine_dead();
    match delivery {
        Delivery::Whole => Err(error),
        Delivery::EventStream { .. } => Ok(RouteReply::Whole {
            content_type: EVENTS,
            content: format!("{}data: [DONE]\n\n", error.to_event()).into(),
        }),
    }
}

impl HostState {
    /// The model or adapter of this name; without a name, the model.
    pub(super) fn model(&self, name: Option<&str>) -> Result<&str, ApiError> {
        let Some(name) = name else { return Ok(&self.config.model) };
        let names = std::iter::once(&self.config.model).chain(&self.config.adapters);
        let known = names.into_iter().find(|it| *it == name);
        known.map(String::as_str).ok_or_else(|| ApiError::unknown_model(name))
    }

    /// The salt for the cache. Without prefix caching, every request gets its own.
    fn salt(&self, ask: &GenerateRequest) -> Result<String, ApiError> {
        let odd = |is: fn(&Misconfiguration) -> bool| self.config.misconfigurations.any(is);
        if !self.config.caches_prefixes() {
            let number = self.requests.total.load(std::sync::atomic::Ordering::Relaxed);
            return Ok(number.to_string());
        }
        if !ask.salt.is_empty() && odd(|it| matches!(it, Misconfiguration::RefusesSalts)) {
            return Err(ApiError::bad_request("cache_salt: extra fields are not permitted"));
        }
        Ok(if odd(|it| matches!(it, Misconfiguration::IgnoresSalts)) {
            String::new()
        } else {
            ask.salt.clone()
        })
    }

    /// The root of the cache for this model or adapter.
    fn root(&self, name: &str, salt: &str) -> Root {
        let model = &self.config.model;
        Root::new(Names { model, adapter: (name != model).then_some(name), salt })
    }

    /// Submits a job that only prefills. It costs one answer token, which is discarded.
    pub(super) fn submit_prefill(&self, model: &str, prompt: Vec<u32>) -> Result<Ticket, ApiError> {
        let job = Job {
            root: self.root(model, ""),
            seed: text::seed(model, &prompt),
            prompt,
            answer_tokens: 1,
            finish: engine::Finish::Stop,
        };
        Ok(self.driver.submit(self.driver.now(), job)?)
    }

    fn answer_id(&self, request_id: Option<&HeaderValue>) -> String {
        match request_id.and_then(|it| it.to_str().ok()) {
            Some(id) => escape(id),
            None => {
                let number = self.requests.total.load(std::sync::atomic::Ordering::Relaxed);
                format!("{:016x}", maitre_base::hash::pair(u64::from(self.addr.port()), number))
            }
        }
    }
}
