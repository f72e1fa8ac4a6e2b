//! The life of a request: admit, read, place, forward, respond.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use maitre_dialect::route::Route;

use super::admit::{Admission, admit};
use super::arrive::Arrived;
use super::count_tokens;
use super::forward::{StartedResponse, forward};
use super::guard::RequestGuard;
use super::place::place;
use super::response::{self, ResponseBody};
use crate::headers;
use crate::outcome::RequestOutcome;
use crate::refuse::Refused;

pub(crate) async fn serve(mut guard: RequestGuard, request: Request<Incoming>) -> Response<ResponseBody> {
    match reply(&mut guard, request).await {
        Ok(ReplyFrom::Worker { started, explain }) => response::stream(guard, *started, explain),
        Ok(ReplyFrom::Router(json)) => own(guard, RequestOutcome::Answered, Response::new(json)),
        Err(refused) => {
            let response = refused.answer(guard.route());
            own(guard, RequestOutcome::Refused(refused.code()), response)
        }
    }
}

enum ReplyFrom {
    Worker {
        started: Box<StartedResponse>,
        /// The client wants the whole decision in a header.
        explain: bool,
    },
    /// What needs no worker, such as the list of models.
    Router(Bytes),
}

async fn reply(guard: &mut RequestGuard, mut request: Request<Incoming>) -> Result<ReplyFrom, Refused> {
    let admitted = match admit(guard, &mut request)? {
        Admission::Own(json) => return Ok(ReplyFrom::Router(json)),
        Admission::Forward(admitted) => admitted,
    };
    let explain = admitted.explain;
    let arrived = Arc::new(Arrived::read(guard, admitted, request).await?);
    let placed = place(guard, &arrived).await?;
    let started = match arrived.route() {
        Some(Route::CountTokens) => count_tokens::forward(guard, &arrived, placed).await?,
        _ => forward(guard, &arrived, placed).await?,
    };
    Ok(ReplyFrom::Worker { started: Box::new(started), explain })
}

/// A response of the router's own, complete.
fn own(
    mut guard: RequestGuard,
    outcome: RequestOutcome,
    mut response: Response<Bytes>,
) -> Response<ResponseBody> {
    guard.ends_as(outcome);
    guard.responded(response.status());
    let headers = response.headers_mut();
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    headers.insert(headers::REQUEST_ID, guard.id.clone());
    guard.add_queue_time(headers);
    guard.add_budgets(headers);
    response.map(ResponseBody::Whole)
}
