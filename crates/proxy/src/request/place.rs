//! The third stage: the brain has chosen a worker.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::header::HeaderValue;
use http::uri::PathAndQuery;
use maitre_dialect::continuation::{self, ContinuableStream, Obstacle};
use maitre_dialect::legs::peer::PeerSource;
use maitre_dialect::legs::{Answer, BadAnswer};
use maitre_dialect::openai::BadRequest;
use maitre_dialect::route::Route;
use maitre_dialect::{engine, openai};
use maitre_dispatch::{Arrival, Placement};
use maitre_net::upstream::UpstreamRequest;

use super::arrive::{Arrived, Urgency};
use super::coverage::Coverage;
use super::describe::describe;
use super::guard::RequestGuard;
use super::handoff::HandoffPlan;
use super::models;
use crate::headers;
use crate::link::{Link, TokenIdReply};
use crate::record::RecordEntry;
use crate::refuse::Refused;
use crate::traces::TRACEPARENT;

/// A request with a worker.
pub(super) struct Placed {
    pub(super) placement: Placement,
    pub(super) rewrite: BodyRewrite,
    pub(super) coverage: Coverage,
}

/// The fields of the body that the worker gets from the router: its engine's priority and the tenant's salt, where the
/// operator wants them.
#[derive(Clone)]
pub(super) struct BodyRewrite {
    urgency: Option<Urgency>,
    salt: Option<String>,
    /// The worker is asked for token ids, so that another can continue the stream.
    asks_ids: bool,
    /// That needs an engine whose text is all that it generates.
    needs_text: bool,
}

/// Which part of a request a worker gets.
#[derive(Clone, Copy)]
pub(super) enum Leg<'a> {
    Whole,
    /// All of it, with where to pull KV cache from.
    Pull(PeerSource<'a>),
    /// The prompt, for another worker.
    Prefill(&'a HandoffPlan),
    /// The answer, with what the prefill worker has answered, unless both are asked at once.
    Decode(&'a HandoffPlan, Option<&'a Bytes>),
    /// The rest of an answer that another worker began.
    Rest(&'a ContinuableStream),
}

impl Leg<'_> {
    /// The request id that the worker gets in place of the client's.
    pub(super) fn request_id(&self) -> Option<HeaderValue> {
        match self {
            Leg::Prefill(plan) | Leg::Decode(plan, _) => plan.request_id(),
            Leg::Whole | Leg::Pull(_) | Leg::Rest(_) => None,
        }
    }
}

/// Asks the brain for a worker; waits in the queue if it must.
pub(super) async fn place(guard: &mut RequestGuard, arrived: &Arc<Arrived>) -> Result<Placed, Refused> {
    guard.conversation = arrived.conversation();
    let mut described = describe(&guard.lane, &guard.settings, guard.number, arrived).await?;
    let recorded = described.take_recorded();
    let arrival = Arrival { only: arrived.only(), ..described.arrival() };
    let entry = recorded.map(|it| Box::new(RecordEntry::new(it, &arrival)));
    let decision = guard.schedule(arrival, entry);
    let decided = guard.decided(decision).await;
    guard.note_budgets(arrival.tenant);
    let placement = decided.map_err(|refusal| {
        let known = || models::names(&guard.lane.state.brain, arrived.caller());
        Refused::by_brain(refusal, arrival.model, known)
    })?;
    let coverage = described.coverage;
    let (asks_ids, needs_text) = match &coverage {
        Coverage::Covered(terms) => (true, terms.needs_text()),
        Coverage::Off | Coverage::Uncovered(_) => (false, false),
    };
    let rewrite = BodyRewrite { urgency: described.urgency, salt: described.salt, asks_ids, needs_text };
    Ok(Placed { placement, rewrite, coverage })
}

/// An engine's priority for a request that has none. Replaces a number that its client may not choose, at an engine or
/// on a route of which the router does not know what the number means.
const NEUTRAL_PRIORITY: i64 = 0;

/// A request to a worker, and the API that it is in.
pub(super) struct LegRequest {
    pub(super) request: UpstreamRequest,
    pub(super) form: LegForm,
}

/// What a worker is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct LegForm {
    /// The API, which is not the client's where a chat is made of a message.
    pub(super) route: Option<Route>,
    /// With the token ids of the stream.
    pub(super) asks_ids: bool,
}

/// Where a request to `/v1/messages` goes that is made a chat.
static CHAT: PathAndQuery = PathAndQuery::from_static("/v1/chat/completions");

impl BodyRewrite {
    /// The request as this worker gets it: the client's own bytes, except for what is rewritten.
    pub(super) fn request(
        &self,
        arrived: &Arrived,
        link: &Link,
        placement: &Placement,
        leg: Leg<'_>,
    ) -> Result<LegRequest, BadLeg> {
        let Arrived { method, headers, trace, .. } = arrived;
        let host = link.address.header();
        let (body, form) = self.leg_body(arrived, link, leg)?;
        let target = if form.route == arrived.route() { &arrived.target } else { &CHAT };
        let id = leg.request_id();
        if link.rank.is_none() && trace.is_none() && id.is_none() {
            let request = UpstreamRequest::new(method, target, host, headers, body);
            return Ok(LegRequest { request, form });
        }
        let mut headers = headers.clone();
        if let Some(rank) = link.rank {
            // The placement is on one rank, whatever the client asked for.
            headers.insert(headers::RANK, HeaderValue::from(rank));
        }
        if let Some(id) = id {
            headers.insert(headers::REQUEST_ID, id);
        }
        if let Some(trace) = trace {
            headers.insert(TRACEPARENT, trace.toward(placement));
        }
        Ok(LegRequest { request: UpstreamRequest::new(method, target, host, &headers, body), form })
    }

    /// The body of one leg, and what it asks for.
    fn leg_body(&self, arrived: &Arrived, link: &Link, leg: Leg<'_>) -> Result<(Bytes, LegForm), BadLeg> {
        let body = body_of(leg, arrived, self.body(arrived, link))?;
        let is_messages = arrived.route() == Some(Route::Messages);
        let asks_ids = match leg {
            Leg::Rest(_) => true,
            Leg::Whole | Leg::Pull(_) => self.asks_ids(arrived, link),
            // Both legs of a message go as they are.
            Leg::Decode(..) => !is_messages && self.asks_ids(arrived, link),
            Leg::Prefill(_) => false,
        };
        if !asks_ids {
            return Ok((body, LegForm { route: arrived.route(), asks_ids }));
        }
        let (body, route) = match is_messages {
            true => (Bytes::from(continuation::as_chat(&body).map_err(BadLeg::NoChat)?), Some(Route::Chat)),
            false => (body, arrived.route()),
        };
        let body = match leg {
            Leg::Rest(stream) => stream.request(link.expected_kind().ok_or(BadLeg::UnknownEngine)?, &body)?,
            _ => continuation::with_ids(&body)?,
        };
        Ok((Bytes::from(body), LegForm { route, asks_ids }))
    }

    /// Whether this worker is asked for the token ids of its stream.
    pub(super) fn asks_ids(&self, arrived: &Arrived, link: &Link) -> bool {
        if !self.asks_ids || self.needs_text && link.has_reasoned() {
            return false;
        }
        let known = arrived.route().zip(link.expected_kind());
        let serves = |(route, kind): (Route, engine::EngineKind)| continuation::serves(kind, route);
        let has_refused = |route| link.has_replied(route, TokenIdReply::Refused);
        known.is_some_and(|it| serves(it) && !has_refused(it.0))
    }

    /// The same without asking for token ids.
    pub(super) fn without_ids(&self) -> BodyRewrite {
        BodyRewrite { asks_ids: false, ..self.clone() }
    }

    /// The client's body, with the priority and the salt.
    pub(super) fn body(&self, arrived: &Arrived, link: &Link) -> Bytes {
        let priority = || {
            let Urgency { place, classes, is_claimed } = self.urgency?;
            let known = link
                .kind()
                .zip(arrived.route())
                .and_then(|(kind, route)| kind.priority(route, place, classes));
            known.or(is_claimed.then_some(NEUTRAL_PRIORITY))
        };
        let body = match priority() {
            Some(priority) => rewritten(&arrived.body, openai::with_priority(&arrived.body, priority)),
            None => arrived.body.clone(),
        };
        let salt = || {
            let salt = self.salt.as_ref()?;
            Some((engine::salt_field(link.kind(), arrived.route()?)?, salt))
        };
        match salt() {
            Some((field, salt)) => rewritten(&body, openai::with_salt(&body, field, salt)),
            None => body,
        }
    }
}

/// Why a leg has no body.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadLeg {
    #[error("{0}")]
    Body(#[from] BadRequest),
    #[error("{0}")]
    Answer(#[from] BadAnswer),
    #[error("no chat can be made of the message: {0}")]
    NoChat(Obstacle),
    #[error("the worker's engine is not known")]
    UnknownEngine,
}

/// The body that one leg of the request needs.
fn body_of(leg: Leg<'_>, arrived: &Arrived, body: Bytes) -> Result<Bytes, BadLeg> {
    let Some(route) = arrived.route() else { return Ok(body) };
    Ok(match leg {
        Leg::Whole | Leg::Rest(_) => body,
        Leg::Pull(source) => Bytes::from(source.pull(&body)?),
        Leg::Prefill(plan) => Bytes::from(plan.transfer().prefill(route, &body)?),
        Leg::Decode(plan, None) => rewritten(&body, plan.transfer().decode(route, &body)?),
        Leg::Decode(plan, Some(answer)) => {
            rewritten(&body, Answer::read(plan.style, answer)?.decode(route, &body)?)
        }
    })
}

/// A body after a rewrite; not copied if the rewrite changed nothing.
fn rewritten(body: &Bytes, rewritten: Cow<'_, [u8]>) -> Bytes {
    match rewritten {
        Cow::Owned(rewritten) => Bytes::from(rewritten),
        Cow::Borrowed(_) => body.clone(),
    }
}
