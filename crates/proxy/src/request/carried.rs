//! The life of a request that a gateway carries: admit, read, place. The gateway sends it to the worker, and shows the
//! response as it passes.
//!
//! The stages are those of `serve`, without those that send. What the router cannot do here is to take a request back or to
//! send it again: once the gateway knows the worker, the brain no longer recalls it, and the gateway has the next workers
//! to try by itself.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::{Request, Response, StatusCode};
use maitre_base::WorkerId;
use maitre_dispatch::{Failure, Placement};

use super::admit::admit_carried;
use super::arrive::{Arrived, RequestBody};
use super::exchange::is_stream;
use super::guard::RequestGuard;
use super::place::{Placed, place};
use super::reader::ResponseReader;
use super::{response, serve};
use crate::brain::Decision;
use crate::headers;
use crate::link::Link;
use crate::outcome::RequestOutcome;
use crate::refuse::{Refused, judge};
use crate::traces::TRACEPARENT;

/// A request with a worker, as the gateway should send it.
pub(crate) struct PickedRequest {
    pub(crate) link: Arc<Link>,
    /// Where to send it if that worker fails, best first.
    pub(crate) fallbacks: Vec<Arc<Link>>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The client wants the whole decision in a header.
    pub(crate) explain: bool,
}

/// Admits a request and reads its body. Only the named workers may take it; none: all.
pub(crate) async fn receive_carried(
    guard: &mut RequestGuard,
    mut request: Request<RequestBody<'_>>,
    only: Option<Vec<WorkerId>>,
) -> Result<Arc<Arrived>, Refused> {
    let admitted = admit_carried(guard, &mut request, only)?;
    Arrived::read(guard, admitted, request).await.map(Arc::new)
}

/// Asks the brain for a worker; waits in the queue if it must. Dropped meanwhile, the client has left.
pub(crate) async fn pick(guard: &mut RequestGuard, arrived: &Arc<Arrived>) -> Result<PickedRequest, Refused> {
    let Placed { mut placement, rewrite, .. } = place(guard, arrived).await?;
    while let Some(waiter) = guard.hold_placement() {
        let decided = guard.decided(Decision::Wait(waiter)).await;
        placement = decided.map_err(|refusal| Refused::by_brain(refusal, None, String::new))?;
    }
    let state = &guard.lane.state;
    let most = guard.settings.picker.fallbacks;
    let fallbacks = if most == 0 { Vec::new() } else { state.brain.fallbacks(guard.number, most) };
    let fallbacks = fallbacks.into_iter().filter_map(|it| state.brain.link(it)).collect();
    // The worker may have left the fleet a moment ago.
    let link = state.brain.link(placement.worker).ok_or(Refused::NoWorker)?;
    let (headers, body) = (headers_at(arrived, &link, &placement), rewrite.body(arrived, &link));
    let now = state.clock.now();
    guard.sent(now);
    Ok(PickedRequest { link, fallbacks, headers, body, explain: arrived.explain() })
}

fn headers_at(arrived: &Arrived, link: &Link, placement: &Placement) -> HeaderMap {
    let mut headers = arrived.headers.clone();
    if let Some(rank) = link.rank {
        headers.insert(headers::RANK, HeaderValue::from(rank));
    }
    if let Some(trace) = &arrived.trace {
        headers.insert(TRACEPARENT, trace.toward(placement));
    }
    headers
}

/// The response to a request that is refused. The request ends so.
pub(crate) fn refuse_carried(guard: &mut RequestGuard, refused: &Refused) -> Response<Bytes> {
    let response = refused.answer(guard.route());
    serve::own_response(guard, RequestOutcome::Refused(refused.code()), response)
}

/// A response that the gateway passes on.
pub(crate) struct CarriedResponse {
    reader: ResponseReader,
    link: Arc<Link>,
}

impl CarriedResponse {
    /// The head of the response is here, from the worker that `served` it, if the gateway says which. Returns the headers
    /// to add to it, too. None if the request has no worker that is known.
    pub(crate) fn begin(
        guard: &mut RequestGuard,
        served: Option<WorkerId>,
        (status, headers): (StatusCode, &HeaderMap),
        explain: bool,
    ) -> Option<(CarriedResponse, HeaderMap)> {
        let placed = guard.placement()?;
        if let Some(served) = served.filter(|&it| it != placed.worker) {
            guard.moved(served);
        }
        let (placement, link) = (guard.placement()?, guard.link()?);
        let mut added = HeaderMap::new();
        response::add_headers(guard, (&placement, &link), explain, &mut added);
        let reader = ResponseReader::new(guard, status, is_stream(headers));
        if let Some(failure) = judge(status) {
            // It may also be the gateway that found nobody there.
            link.probe.notify_one();
            if failure == Failure::Failed {
                link.failed(format!("status {status}"));
            }
            guard.passed_failure(failure);
        }
        Some((CarriedResponse { reader, link }, added))
    }

    pub(crate) fn feed(&mut self, guard: &mut RequestGuard, chunk: &Bytes) {
        if !chunk.is_empty() {
            self.reader.feed(guard, &self.link, chunk);
        }
    }

    /// The response is complete.
    pub(crate) fn finish(&mut self, guard: &mut RequestGuard) {
        guard.used(self.reader.take_usage());
        guard.ends_as(self.reader.outcome_at_end());
    }
}
