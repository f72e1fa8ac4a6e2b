//! HTTP heads as gateways send them, and what they are to change.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use maitre_grpc::ext_proc::{
    self, CommonResponse, HeaderMutation, HttpStatus, ImmediateResponse, Instruction, ProcessingResponse,
};

use super::endpoints;
use crate::headers;
use crate::request::PickedRequest;

/// Some gateways accept at most 64 KiB at a time.
const PIECE_BYTES_MAX: usize = 62_000;

/// The request that these headers begin. None if they do not begin one.
pub(super) fn request(shown: &[ext_proc::HeaderValue]) -> Option<Request<()>> {
    let request = Request::builder().method(pseudo(shown, ":method")?).uri(pseudo(shown, ":path")?);
    let mut request = request.body(()).ok()?;
    *request.headers_mut() = headers(shown);
    Some(request)
}

pub(super) fn status(shown: &[ext_proc::HeaderValue]) -> Option<StatusCode> {
    StatusCode::from_bytes(pseudo(shown, ":status")?).ok()
}

fn pseudo<'a>(shown: &'a [ext_proc::HeaderValue], name: &str) -> Option<&'a [u8]> {
    shown.iter().find(|it| it.key == name).map(ext_proc::HeaderValue::bytes)
}

/// Without those that are no headers, and those that a gateway should not have let through.
pub(super) fn headers(shown: &[ext_proc::HeaderValue]) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(shown.len());
    for header in shown {
        let name = HeaderName::from_bytes(header.key.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(header.bytes())) {
            map.append(name, value);
        }
    }
    map
}

/// The answer to a request's head: where to send it, and with which headers.
pub(super) fn picked(picked: &PickedRequest, shown: &[ext_proc::HeaderValue]) -> ProcessingResponse {
    let destinations = endpoints::destinations(&picked.link, &picked.fallbacks);
    let dynamic_metadata = Some(endpoints::metadata(&destinations));
    let mut mutation = changes(shown, &picked.headers);
    mutation.set(endpoints::DESTINATION, Bytes::from(destinations));
    let header_mutation = Some(mutation);
    let common = CommonResponse { header_mutation, clear_route_cache: true, ..CommonResponse::default() };
    ProcessingResponse { answer: Some(Instruction::RequestHeaders(common.into())), dynamic_metadata }
}

/// What makes `shown` into `wanted`. Headers of the connection are the gateway's own affair.
fn changes(shown: &[ext_proc::HeaderValue], wanted: &HeaderMap) -> HeaderMutation {
    let mut mutation = HeaderMutation::default();
    let is_gone = |name: &str| !wanted.contains_key(name) && !headers::is_of_connection(name);
    for header in shown {
        if !header.key.starts_with(':') && is_gone(&header.key) {
            mutation.remove_headers.push(header.key.clone());
        }
    }
    for (name, value) in wanted {
        if !shown.iter().any(|it| it.key == name.as_str() && it.bytes() == value.as_bytes()) {
            mutation.set(name.as_str(), Bytes::copy_from_slice(value.as_bytes()));
        }
    }
    mutation
}

/// A body in pieces, the last of which ends the stream if nothing follows it.
pub(super) fn pieces(mut body: Bytes, has_trailers: bool) -> impl Iterator<Item = (Bytes, bool)> {
    let mut is_first = true;
    std::iter::from_fn(move || {
        if body.is_empty() && !std::mem::take(&mut is_first) {
            return None;
        }
        is_first = false;
        let piece = body.split_to(body.len().min(PIECE_BYTES_MAX));
        Some((piece, body.is_empty() && !has_trailers))
    })
}

/// The answer to a response's head: what to add to it, and what a worker said in our name, which is not for the client.
pub(super) fn response_head(shown: &[ext_proc::HeaderValue], added: &HeaderMap) -> ProcessingResponse {
    let mut mutation = HeaderMutation::default();
    for header in shown {
        if headers::is_ours(&header.key) && !added.contains_key(&header.key) {
            mutation.remove_headers.push(header.key.clone());
        }
    }
    for (name, value) in added {
        mutation.set(name.as_str(), Bytes::copy_from_slice(value.as_bytes()));
    }
    let common = CommonResponse { header_mutation: Some(mutation), ..CommonResponse::default() };
    Instruction::ResponseHeaders(common.into()).into()
}

/// A refusal. `code` is for the gateway's log.
pub(super) fn refusal(response: Response<Bytes>, code: &str) -> ProcessingResponse {
    let (parts, body) = response.into_parts();
    let mut mutation = HeaderMutation::default();
    for (name, value) in parts.headers.iter().filter(|it| *it.0 != CONTENT_LENGTH) {
        mutation.set(name.as_str(), Bytes::copy_from_slice(value.as_bytes()));
    }
    if let Some(reason) = dropped_reason(code) {
        mutation.set("x-llm-d-request-dropped-reason", Bytes::from_static(reason.as_bytes()));
    }
    let status = Some(HttpStatus { code: i32::from(parts.status.as_u16()) });
    let details = format!("maitre: {code}");
    Instruction::Immediate(ImmediateResponse { status, headers: Some(mutation), body, details }).into()
}

/// The same in llm-d's words, where it has one.
fn dropped_reason(code: &str) -> Option<&'static str> {
    match code {
        "queue_full" | "rate_limit_exceeded" | "too_busy" => Some("rejected-saturated"),
        "no_worker" => Some("rejected-no-endpoints"),
        "deadline" => Some("rejected-ttl-expired"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(rows: &[(&str, &str)]) -> Vec<ext_proc::HeaderValue> {
        let row = |&(key, value): &(&str, &str)| ext_proc::HeaderValue {
            key: key.to_owned(),
            value: String::new(),
            raw_value: Bytes::copy_from_slice(value.as_bytes()),
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn only_what_differs_is_changed_and_nothing_of_the_connection() {
        let before = shown(&[
            (":method", "POST"),
            ("host", "a"),
            ("connection", "close"),
            ("authorization", "Bearer client"),
            ("x-api-key", "client"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
        ]);
        let mut after = headers(&before);
        headers::toward_worker(&mut after);
        after.remove("x-api-key");
        after.insert("authorization", HeaderValue::from_static("Bearer worker"));
        let mutation = changes(&before, &after);
        assert_eq!(mutation.remove_headers, ["x-api-key"]);
        let set: Vec<_> = mutation.set_headers.iter().map(|it| it.header.as_ref().unwrap()).collect();
        assert_eq!(set.len(), 1);
        assert_eq!((set[0].key.as_str(), set[0].bytes()), ("authorization", &b"Bearer worker"[..]));
    }

    #[test]
    fn what_a_worker_says_in_our_name_is_removed_or_replaced() {
        let said = shown(&[
            (":status", "200"),
            ("x-maitre-worker", "inner"),
            ("x-maitre-why", "inner"),
            ("x-other", ""),
        ]);
        let added = HeaderMap::from_iter([(headers::WHY, HeaderValue::from_static("only"))]);
        let answer = response_head(&said, &added).answer;
        let Some(Instruction::ResponseHeaders(head)) = answer else { panic!("{answer:?}") };
        let mutation = head.response.and_then(|it| it.header_mutation).unwrap();
        assert_eq!(mutation.remove_headers, ["x-maitre-worker"]);
        assert_eq!(mutation.set_headers.len(), 1);
    }

    #[test]
    fn pieces_are_small_enough_and_together_the_body() {
        for length in [0, 1, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 5 * PIECE_BYTES_MAX] {
            let body = Bytes::from(vec![b'x'; length]);
            let cut: Vec<_> = pieces(body.clone(), false).collect();
            assert_eq!(cut.iter().map(|it| it.0.as_ref()).collect::<Vec<_>>().concat(), body);
            assert!(cut.iter().all(|it| it.0.len() <= PIECE_BYTES_MAX), "{length}");
            let ends: Vec<bool> = cut.iter().map(|it| it.1).collect();
            assert_eq!(ends.iter().filter(|it| **it).count(), 1, "{length}");
            assert_eq!(ends.last(), Some(&true), "{length}");
            assert!(pieces(body, true).all(|it| !it.1), "{length}: the trailers end it");
        }
    }
}
