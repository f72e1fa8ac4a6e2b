//! The life of a request: in, parse, look up, admit and pick, forward, account, out.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use maitre_dialect::route::Route;
use maitre_dispatch::Placement;

use crate::account::{self, Out};
use crate::arrive::{Arrived, Asked, asked};
use crate::forward::{Begun, forward};
use crate::headers;
use crate::metrics::Outcome;
use crate::models;
use crate::reading;
use crate::record::Note;
use crate::refuse::Refused;
use crate::visit::RequestGuard;

pub(crate) async fn serve(mut visit: RequestGuard, request: Request<Incoming>) -> Response<Out> {
    match answer(&mut visit, request).await {
        Ok(Answer::Workers(begun)) => account::answer(visit, *begun),
        Ok(Answer::Ours(body)) => ours(&mut visit, Outcome::Answered, Response::new(body)),
        Err(refused) => {
            let response = refused.answer(visit.route);
            ours(&mut visit, Outcome::Refused(refused.code()), response)
        }
    }
}

enum Answer {
    Workers(Box<Begun>),
    Ours(Bytes),
}

async fn answer(visit: &mut RequestGuard, mut request: Request<Incoming>) -> Result<Answer, Refused> {
    let house = visit.lane.house.clone();
    visit.id = headers::keep_or_make_id(request.headers_mut(), visit.request, house.salt);
    admit(visit, &request)?;
    visit.trace(&mut request);
    visit.route = match asked(&visit.settings, &visit.caller, request.method(), request.uri().path())? {
        Asked::Models => return Ok(Answer::Ours(models::list(&house, &visit.caller))),
        Asked::Route(route) => Some(route),
        Asked::Passed => None,
    };
    visit.explains = headers::asks_to_explain(request.headers_mut()) && visit.caller.is_trusted();
    let mut arrived = Arrived::read(visit, request).await?;
    arrived.trace = visit.read();
    let placement = placement(visit, &arrived).await?;
    let begun = forward(&arrived, visit, placement).await?;
    Ok(Answer::Workers(Box::new(begun)))
}

/// Lets nobody further in who needs a key and has none: before a byte of the body is read.
fn admit(visit: &mut RequestGuard, request: &Request<Incoming>) -> Result<(), Refused> {
    let caller = visit.settings.keys.caller(request.headers());
    // Told in the shape of the API it meant to use.
    visit.caller = caller.inspect_err(|_| visit.route = Route::of(request.uri().path()))?;
    Ok(())
}

/// Parses the body, once, reads its prompt, and asks the brain for a placement; waits in line for it, if need be.
async fn placement(visit: &mut RequestGuard, arrived: &Arrived) -> Result<Placement, Refused> {
    let read = match arrived.parse(&visit.settings, &visit.caller)? {
        Some(parsed) => {
            models::check(&visit.lane.house, &visit.caller, &parsed)?;
            Some((reading::read(&visit.lane, visit.route, &parsed).await, parsed))
        }
        None => None,
    };
    let read = read.as_ref().map(|(reading, parsed)| (parsed, reading));
    let arrival = arrived.arrival(&visit.settings, &visit.caller, visit.request, read)?;
    visit.note = read.and_then(|(_, reading)| Note::new(reading, &arrival));
    let decision = visit.arrive(arrival);
    let placement = visit.decided(decision).await;
    let known = || models::names(&visit.lane.house, &visit.caller);
    placement.map_err(|refusal| Refused::by_brain(refusal, arrival.model, known))
}

fn ours(visit: &mut RequestGuard, outcome: Outcome, mut response: Response<Bytes>) -> Response<Out> {
    visit.outcome = outcome;
    visit.answered(response.status());
    let headers = response.headers_mut();
    headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
    headers.insert(headers::REQUEST_ID, visit.id.clone());
    visit.tell_queued(headers);
    response.map(Out::Whole)
}
