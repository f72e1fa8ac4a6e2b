//! The router as an endpoint picker: gRPC over real sockets, with a gateway that does what the test wants.

pub(crate) mod gateway;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use maitre_base::WorkerId;
use maitre_grpc::ext_proc::{BodySendMode, ImmediateResponse, Instruction};
use maitre_grpc::health::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use maitre_policy::Name;
use maitre_proxy::RouterSettings;
use maitre_proxy::settings::Serves;
use prost::Message;
use tokio::net::TcpStream;

use crate::fixture::{Fixture, chat, engine_settings, fixture_with, metric, settings, within};
use gateway::{Gateway, Stream, frame, set_header};

fn for_gateways() -> RouterSettings {
    RouterSettings { serves: Serves::Gateways, ..settings() }
}

async fn picker(count: usize) -> Fixture {
    fixture_with(count, engine_settings(), for_gateways()).await
}

fn endpoint(fixture: &Fixture, worker: usize) -> String {
    fixture.engines[worker].addr().to_string()
}

fn requests_at(fixture: &Fixture, worker: u32) -> u32 {
    fixture.router.look(|it| it.fleet().worker(WorkerId(worker)).unwrap().promised.work.requests)
}

/// Shows a chat and reads where it should go.
async fn picked(stream: &mut Stream, body: &str) -> Vec<String> {
    stream.head("POST", "/v1/chat/completions", &[], false).await;
    stream.body(body.as_bytes(), true).await;
    let destinations = stream.destinations().await;
    assert_eq!(stream.echoed_request().await, body.as_bytes());
    destinations
}

#[tokio::test]
async fn a_get_is_answered_with_its_head_alone() {
    let fixture = picker(1).await;
    let gateway = Gateway::connect(fixture.router.listen()).await;
    let mut stream = gateway.open().await;
    stream.head("GET", "/v1/models", &[], true).await;
    assert_eq!(stream.destinations().await, [endpoint(&fixture, 0)]);
    stream.response("200", "application/json", &[]).await;
    assert!(stream.response_body(b"{}", true).await.is_some());
    assert!(stream.ended().await);
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn the_head_is_answered_when_the_body_is_here_and_the_body_comes_back_unchanged() {
    let fixture = picker(2).await;
    let gateway = Gateway::connect(fixture.router.listen()).await;
    let mut stream = gateway.open().await;
    let body = chat(5, true);
    let (first, rest) = body.as_bytes().split_at(20);
    stream.head("POST", "/v1/chat/completions", &[], false).await;
    stream.body(first, false).await;
    stream.body(rest, true).await;
    let destinations = stream.destinations().await;
    assert_eq!(destinations, [endpoint(&fixture, 0), endpoint(&fixture, 1)], "the rest, best first");
    assert_eq!(stream.echoed_request().await, body.as_bytes());
    assert_eq!(requests_at(&fixture, 0), 1);

    let added = stream.response("200", "text/event-stream", &[]).await;
    assert_eq!(set_header(&added, "x-maitre-worker"), format!("http://{}", endpoint(&fixture, 0)));
    for event in ["data: {\"choices\":[]}\n\n", "data: [DONE]\n\n"] {
        assert_eq!(stream.response_body(event.as_bytes(), false).await.unwrap(), event.as_bytes());
    }
    assert_eq!(stream.response_body(b"", true).await.unwrap(), b"");
    assert!(stream.ended().await);
    fixture.until_nothing_is_open().await;
    assert_eq!(metric(&fixture.router.metrics(), "maitre_first_token_seconds_count"), 1.0);
}

#[tokio::test]
async fn usage_in_the_response_is_learned_from() {
    let fixture = picker(1).await;
    let gateway = Gateway::connect(fixture.router.listen()).await;
    let mut stream = gateway.open().await;
    picked(&mut stream, &chat(5, false)).await;
    stream.response("200", "application/json", &[]).await;
    let usage = br#"{"usage":{"prompt_tokens":40,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":16}}}"#;
    stream.response_body(usage, true).await;
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    assert_eq!(metric(&page, "maitre_prompt_tokens_total"), 40.0);
    assert_eq!(metric(&page, "maitre_cached_tokens_total"), 16.0);
}

#[tokio::test]
async fn the_promise_moves_to_the_worker_that_served() {
    let fixture = picker(3).await;
    let gateway = Gateway::connect(fixture.router.listen()).await;
    let mut stream = gateway.open().await;
    assert_eq!(picked(&mut stream, &chat(5, true)).await[0], endpoint(&fixture, 0));
    let added = stream.response("200", "text/event-stream", &[("served", &endpoint(&fixture, 2))]).await;
    assert_eq!(set_header(&added, "x-maitre-worker"), format!("http://{}", endpoint(&fixture, 2)));
    assert_eq!([0, 1, 2].map(|it| requests_at(&fixture, it)), [0, 0, 1]);
    // A response that ends with the stream was not complete, as far as we know: its client left.
    drop(stream);
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    assert_eq!(metric(&page, "maitre_attempts_failed_total{failure=\"broke\"}"), 1.0);
}

#[tokio::test]
async fn only_workers_of_the_subset_are_picked() {
    let fixture = picker(3).await;
    let gateway = Gateway::connect(fixture.router.listen()).await;
    let mut stream = gateway.open().await;
    let allowed = endpoint(&fixture, 1);
    stream.head("POST", "/v1/chat/completions", &[("subset", &allowed)], false).await;
    stream.body(chat(5, true).as_bytes(), true).await;
    assert_eq!(stream.destinations().await, [allowed]);
    drop(stream);
    let mut stream = gateway.open().await;
    stream.head("POST", "/v1/chat/completions", &[("subset", "10.0.0.1:1")], false).await;
    stream.body(chat(5, true).as_bytes(), true).await;
    assert_eq!(refusal(&mut stream).await, (503, "no_worker".to_owned()));
    fixture.until_nothing_is_open().await;
}

/// Status and code.
async fn refusal(stream: &mut Stream) -> (i32, String) {
    let answer = stream.answer().await.and_then(|it| it.answer);
    let Some(Instruction::Immediate(ImmediateResponse { status, body, headers, .. })) = answer else {
        panic!("no refusal: {answer:?}")
    };
    assert!(headers.unwrap().set_headers.iter().any(|it| it.header.as_ref().unwrap().key == "content-type"));
    assert!(stream.ended().await);
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    (status.unwrap().code, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_while_it_arrives() {
    let mut settings = for_gateways();
    settings.limits.body_bytes = 1_000;
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let gateway = Gateway::connect(fixture.router.listen()).await;
    let mut stream = gateway.open().await;
    stream.head("POST", "/v1/chat/completions", &[], false).await;
    stream.body(&[b' '; 600], false).await;
    stream.body(&[b' '; 600], false).await;
    assert_eq!(refusal(&mut stream).await, (413, "body_too_large".to_owned()));
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn a_stream_that_ends_anywhere_leaves_nothing_behind() {
    let fixture = picker(2).await;
    for stage in 0..5 {
        let gateway = Gateway::connect(fixture.router.listen()).await;
        let mut stream = gateway.open().await;
        if stage > 0 {
            stream.head("POST", "/v1/chat/completions", &[], false).await;
        }
        if stage > 1 {
            stream.body(&chat(5, true).as_bytes()[..10], false).await;
        }
        if stage > 2 {
            stream.body(&chat(5, true).as_bytes()[10..], true).await;
            stream.destinations().await;
        }
        if stage > 3 {
            stream.echoed_request().await;
            stream.response("200", "text/event-stream", &[]).await;
            stream.response_body(b"data: {}\n\n", false).await;
        }
        drop(stream);
        fixture.until_nothing_is_open().await;
    }
}

#[tokio::test]
async fn a_queued_request_holds_its_stream_and_leaves_the_queue_with_it() {
    let mut settings = for_gateways();
    settings.brain.queue.sequences_max = 1;
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let gateway = Gateway::connect(fixture.router.listen()).await;
    let mut first = gateway.open().await;
    picked(&mut first, &chat(5, true)).await;
    let waiting = [gateway.open().await, gateway.open().await];
    let mut waiting = waiting.map(Some);
    for stream in waiting.iter_mut().flatten() {
        stream.head("POST", "/v1/chat/completions", &[], false).await;
        stream.body(chat(5, true).as_bytes(), true).await;
    }
    let class = fixture.router.look(|it| it.settings().queue.standard);
    within(fixture.router.until(|it| it.waiting(class).requests == 2)).await;
    waiting[0] = None;
    within(fixture.router.until(|it| it.waiting(class).requests == 1)).await;
    drop(first);
    let stream = waiting[1].as_mut().unwrap();
    assert_eq!(stream.destinations().await, [endpoint(&fixture, 0)]);
    drop(waiting);
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn a_failure_that_the_gateway_passes_on_counts_against_the_worker() {
    let mut settings = for_gateways();
    settings.brain.strategy = Name::RoundRobin;
    let fixture = fixture_with(2, engine_settings(), settings).await;
    let gateway = Gateway::connect(fixture.router.listen()).await;
    let mut stream = gateway.open().await;
    picked(&mut stream, &chat(5, false)).await;
    stream.response("500", "application/json", &[]).await;
    assert_eq!(requests_at(&fixture, 0), 0, "nothing is promised to it any more");
    stream.response_body(b"{}", true).await;
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    assert_eq!(metric(&page, "maitre_attempts_failed_total{failure=\"failed\"}"), 1.0);
}

#[tokio::test]
async fn a_call_whose_first_message_does_not_arrive_ends_in_time() {
    let mut settings = for_gateways();
    settings.timeouts.client_header = std::time::Duration::from_millis(200);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let gateway = Gateway::connect(fixture.router.listen()).await;
    let status = gateway.open().await.failure().await;
    assert!(status.starts_with('4') && status.contains("client_header"), "{status}");
}

#[tokio::test]
async fn modes_in_which_a_request_would_hang_are_refused_by_name() {
    let fixture = picker(1).await;
    let gateway = Gateway::connect(fixture.router.listen()).await;
    let full = BodySendMode::FullDuplexStreamed;
    for (request, response, named) in [
        (BodySendMode::None, full, "request_body_mode"),
        (BodySendMode::Buffered, full, "request_body_mode"),
        (full, BodySendMode::Buffered, "response_body_mode"),
    ] {
        let mut stream = gateway.open_in(request, response).await;
        stream.head("GET", "/v1/models", &[], true).await;
        let status = stream.failure().await;
        assert!(status.starts_with('3') && status.contains(named), "{status}");
    }
    let mut stream = gateway.open_in(full, BodySendMode::None).await;
    stream.head("GET", "/v1/models", &[], true).await;
    stream.destinations().await;
    stream.response("200", "application/json", &[]).await;
    drop(stream);
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    let line = "maitre_requests_total{route=\"other\",outcome=\"answered\",code=\"\"}";
    assert_eq!(metric(&page, line), 1.0);
}

#[tokio::test]
async fn health_is_asked_by_the_names_that_gateways_use() {
    let fixture = picker(1).await;
    let tcp = TcpStream::connect(fixture.router.listen()).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(tcp)).await.unwrap();
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    for (service, expected) in [
        ("", Some(ServingStatus::Serving)),
        ("liveness", Some(ServingStatus::Serving)),
        ("readiness", Some(ServingStatus::Serving)),
        ("envoy.service.ext_proc.v3.ExternalProcessor", Some(ServingStatus::Serving)),
        ("other", None),
    ] {
        let body = frame(&HealthCheckRequest { service: service.to_owned() });
        let request = Request::post("http://picker/grpc.health.v1.Health/Check");
        let request = request.header("content-type", "application/grpc").body(Full::new(body)).unwrap();
        let answer = within(sender.send_request(request)).await.unwrap();
        let body: Bytes = answer.into_body().collect().await.unwrap().to_bytes();
        let status = body.get(5..).map(|it| HealthCheckResponse::decode(it).unwrap().status());
        assert_eq!(status.filter(|_| !body.is_empty()), expected, "{service}");
    }
}
