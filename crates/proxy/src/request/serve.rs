//! The life of a request: admit, read, place, forward, respond.
//!
//! In two steps: while a body is read, the client's connection belongs to the request; afterwards it is watched for the
//! client's end.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use maitre_dialect::route::Route;

use super::admit::{Admission, admit};
use super::arrive::{Arrived, RequestBody};
use super::count_tokens;
use super::exchange::StartedResponse;
use super::forward::forward;
use super::guard::RequestGuard;
use super::place::place;
use super::response::{self, Cover, ResponseBody};
use crate::headers;
use crate::outcome::RequestOutcome;
use crate::refuse::Refused;

/// An admitted request whose body is here.
pub(crate) enum Received {
    /// It needs no worker: the answer, such as the list of models.
    Own(Bytes),
    Forward {
        arrived: Arc<Arrived>,
        /// The client wants the whole decision in a header.
        explain: bool,
    },
}

/// Admits a request and reads its body.
pub(crate) async fn receive(
    guard: &mut RequestGuard,
    mut request: Request<RequestBody<'_>>,
) -> Result<Received, Refused> {
    let admitted = match admit(guard, &mut request)? {
        Admission::Own(json) => return Ok(Received::Own(json)),
        Admission::Forward(admitted) => admitted,
    };
    let explain = admitted.explain;
    let arrived = Arc::new(Arrived::read(guard, admitted, request).await?);
    Ok(Received::Forward { arrived, explain })
}

/// The response, which has begun: of a worker, or of the router itself.
pub(crate) async fn respond(
    mut guard: Box<RequestGuard>,
    received: Result<Received, Refused>,
) -> Response<ResponseBody> {
    let refused = match received {
        Ok(Received::Own(json)) => return own(guard, RequestOutcome::Answered, Response::new(json)),
        Ok(Received::Forward { arrived, explain }) => match started(&mut guard, &arrived).await {
            Ok((started, cover)) => return response::stream(guard, started, cover, explain),
            Err(refused) => refused,
        },
        Err(refused) => refused,
    };
    let response = refused.answer(guard.route());
    own(guard, RequestOutcome::Refused(refused.code()), response)
}

async fn started(
    guard: &mut RequestGuard,
    arrived: &Arc<Arrived>,
) -> Result<(Box<StartedResponse>, Cover), Refused> {
    let placed = place(guard, arrived).await?;
    let cover = Cover::of(&placed, arrived);
    let started = match arrived.route() {
        Some(Route::CountTokens) => count_tokens::forward(guard, arrived, placed).await?,
        _ => forward(guard, arrived, placed).await?,
    };
    Ok((started, cover))
}

fn own(
    mut guard: Box<RequestGuard>,
    outcome: RequestOutcome,
    response: Response<Bytes>,
) -> Response<ResponseBody> {
    own_response(&mut guard, outcome, response).map(ResponseBody::Whole)
}

/// A response of the router's own, complete.
pub(super) fn own_response(
    guard: &mut RequestGuard,
    outcome: RequestOutcome,
    mut response: Response<Bytes>,
) -> Response<Bytes> {
    guard.ends_as(outcome);
    guard.responded(response.status());
    let headers = response.headers_mut();
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    headers.insert(headers::REQUEST_ID, guard.id.clone());
    guard.add_queue_time(headers);
    guard.add_budgets(headers);
    response
}
