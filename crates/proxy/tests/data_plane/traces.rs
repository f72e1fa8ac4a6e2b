//! Spans as a collector gets them, and the trace headers that workers get.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use maitre_proxy::RouterSettings;
use maitre_sim::http::fault::{Fault, Injection};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fixture::{
    ANYWHERE, Fixture, TestResponse, chat, engine_settings, fixture_with, metric, post, settings,
    until_counted, within,
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";
const CANARY: &str = "canary-prompt-91c2";

const DROPPED: &str = "maitre_trace_spans_dropped_total";

/// How a collector responds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mood {
    Takes,
    Says(u16),
    /// Accepts the second try, and asks for a pause of this many seconds.
    Later(u64),
    Hangs,
}

/// A test collector.
pub(crate) struct Collector {
    pub(crate) addr: SocketAddr,
    posts: watch::Receiver<Vec<Post>>,
    _tasks: JoinSet<()>,
}

#[derive(Clone, Debug)]
struct Post {
    path: String,
    key: String,
    kind: String,
    body: Bytes,
    taken: bool,
}

async fn collect(
    request: Request<Incoming>,
    mood: Mood,
    posts: Arc<watch::Sender<Vec<Post>>>,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let header = |name: &str| head.headers.get(name).map_or("", |it| it.to_str().unwrap()).to_owned();
    let body = body.collect().await.unwrap().to_bytes();
    let is_first = posts.borrow().is_empty();
    let (status, wait) = match mood {
        Mood::Later(seconds) if is_first => (429, Some(seconds)),
        Mood::Takes | Mood::Later(_) => (200, None),
        Mood::Says(status) => (status, None),
        Mood::Hangs => (0, None),
    };
    let (path, key, kind) = (head.uri.path().to_owned(), header("x-key"), header("content-type"));
    posts.send_modify(|it| it.push(Post { path, key, kind, body, taken: status == 200 }));
    if status == 0 {
        std::future::pending::<()>().await;
    }
    let mut response = Response::new(Full::new(Bytes::from_static(b"{}")));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    if let Some(seconds) = wait {
        response.headers_mut().insert("retry-after", HeaderValue::from(seconds));
    }
    response
}

impl Collector {
    pub(crate) async fn new(mood: Mood) -> Collector {
        let listener = TcpListener::bind(ANYWHERE).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (tell, posts) = watch::channel(Vec::new());
        let tell = Arc::new(tell);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut served = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let tell = tell.clone();
                let service = service_fn(move |request| {
                    let tell = tell.clone();
                    async move { Ok::<_, Infallible>(collect(request, mood, tell).await) }
                });
                served.spawn(async move {
                    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
                });
            }
        });
        Collector { addr, posts, _tasks: tasks }
    }

    pub(crate) fn settings(&self) -> RouterSettings {
        let mut settings = settings();
        settings.traces.endpoint = Some(format!("http://{}", self.addr).parse().unwrap());
        settings.traces.headers = vec![("x-key".parse().unwrap(), HeaderValue::from_static("sesame"))];
        settings
    }

    /// Waits for this many spans of this name, and returns all spans.
    pub(crate) async fn spans(&mut self, name: &str, count: usize) -> Vec<Span> {
        let enough = |posts: &Vec<Post>| spans(posts).iter().filter(|it| it.name == name).count() >= count;
        let posts = within(self.posts.wait_for(enough)).await.unwrap().clone();
        spans(&posts)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Span {
    name: String,
    trace: String,
    id: String,
    parent: Option<String>,
    kind: u64,
    from: u128,
    to: u128,
    attributes: BTreeMap<String, String>,
    events: Vec<(String, u128)>,
    status: Option<u64>,
}

fn is_hex(text: &str, digits: usize) -> bool {
    let is_digit = |it: u8| it.is_ascii_digit() || (b'a'..=b'f').contains(&it);
    text.len() == digits && text.bytes().all(is_digit) && text.bytes().any(|it| it != b'0')
}

/// Parses a span, and checks it against the specification.
fn span(value: &Value) -> Span {
    let text = |key: &str| value[key].as_str().unwrap_or_else(|| panic!("{key} in {value}")).to_owned();
    let nanos = |value: &Value| value.as_str().expect("nanoseconds are text").parse::<u128>().unwrap();
    let known = [
        "traceId",
        "spanId",
        "parentSpanId",
        "traceState",
        "name",
        "kind",
        "startTimeUnixNano",
        "endTimeUnixNano",
        "attributes",
        "events",
        "status",
    ];
    assert!(value.as_object().unwrap().keys().all(|it| known.contains(&it.as_str())), "{value}");
    let attributes = value["attributes"].as_array().map_or(&[][..], Vec::as_slice).iter().map(|it| {
        let value = &it["value"];
        let text = value["stringValue"].as_str().or_else(|| {
            value["intValue"].as_str().inspect(|it| assert!(it.parse::<i64>().is_ok(), "{value}"))
        });
        (it["key"].as_str().unwrap().to_owned(), text.unwrap_or_else(|| panic!("{it}")).to_owned())
    });
    let events = value["events"].as_array().map_or(&[][..], Vec::as_slice).iter();
    let span = Span {
        name: text("name"),
        trace: text("traceId"),
        id: text("spanId"),
        parent: value["parentSpanId"].as_str().map(str::to_owned),
        kind: value["kind"].as_u64().unwrap(),
        from: nanos(&value["startTimeUnixNano"]),
        to: nanos(&value["endTimeUnixNano"]),
        attributes: attributes.collect(),
        events: events
            .map(|it| (it["name"].as_str().unwrap().to_owned(), nanos(&it["timeUnixNano"])))
            .collect(),
        status: value["status"]["code"].as_u64(),
    };
    assert!(is_hex(&span.trace, 32) && is_hex(&span.id, 16), "{span:?}");
    assert!(span.parent.as_ref().is_none_or(|it| is_hex(it, 16)) && (1..=5).contains(&span.kind), "{span:?}");
    // After 2020, and in order.
    assert!(span.from > 1_577_836_800_000_000_000 && span.from <= span.to, "{span:?}");
    span
}

fn spans(posts: &[Post]) -> Vec<Span> {
    let taken = posts.iter().filter(|it| it.taken);
    let bodies = taken.map(|it| serde_json::from_slice::<Value>(&it.body).unwrap());
    let read = |body: Value| {
        let resource = &body["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["key"], "service.name");
        let scope = &resource["scopeSpans"][0];
        assert_eq!(scope["scope"]["name"], "maitre");
        scope["spans"].as_array().unwrap().iter().map(span).collect::<Vec<_>>()
    };
    bodies.flat_map(read).collect()
}

fn named<'a>(spans: &'a [Span], name: &str) -> Vec<&'a Span> {
    spans.iter().filter(|it| it.name == name).collect()
}

fn traced(body: impl Into<Bytes>, parent: &str) -> Request<Full<Bytes>> {
    let mut request = post("/v1/chat/completions", body);
    request.headers_mut().insert("traceparent", parent.parse().unwrap());
    request
}

async fn ask(fixture: &Fixture, request: Request<Full<Bytes>>) -> TestResponse {
    fixture.client().await.ask(request).await.unwrap()
}

fn recording() -> maitre_sim::http::HostConfig {
    maitre_sim::http::HostConfig { bodies_max: 100, ..engine_settings() }
}

/// The trace header that the engine got last.
fn engine_header(fixture: &Fixture, header: &str) -> Option<String> {
    let last = fixture.engines[0].handle().bodies().pop().unwrap();
    last.headers.get(header).map(|it| it.to_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_request_becomes_connected_spans() {
    let mut collector = Collector::new(Mood::Takes).await;
    let fixture = fixture_with(1, recording(), collector.settings()).await;
    let body =
        chat(9, true).replace("\"max_tokens\"", "\"stream_options\":{\"include_usage\":true},\"max_tokens\"");
    let mut request = traced(body, &format!("00-{TRACE}-{SPAN}-01"));
    request.headers_mut().insert("tracestate", "vendor=1".parse().unwrap());
    assert_eq!(ask(&fixture, request).await.status, 200);
    let spans = collector.spans("receive", 1).await;
    let names: Vec<&str> = spans.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["receive", "decide", "upstream", "stream"]);
    assert!(spans.iter().all(|it| it.trace == TRACE));
    let [receive, decide, upstream, stream] = &spans[..] else { panic!("{spans:?}") };
    let parents = [&receive.parent, &decide.parent, &upstream.parent, &stream.parent];
    let parents: Vec<&str> = parents.iter().map(|it| it.as_deref().unwrap()).collect();
    assert_eq!(parents, [SPAN, &receive.id, &receive.id, &upstream.id]);
    assert_eq!((receive.kind, decide.kind, upstream.kind, stream.kind), (2, 1, 3, 1));
    assert_eq!(upstream.events.len(), 1);
    assert_eq!((upstream.events[0].0.as_str(), upstream.events[0].1), ("first_token", stream.from));
    assert!(receive.from <= decide.from && decide.to <= upstream.from && upstream.to <= receive.to);
    let worker = format!("http://{}", fixture.engines[0].addr());
    let port = fixture.engines[0].addr().port().to_string();
    for (span, key, value) in [
        (receive, "gen_ai.operation.name", "chat"),
        (receive, "gen_ai.request.model", "maitre-sim"),
        (receive, "gen_ai.usage.output_tokens", "9"),
        (receive, "http.request.method", "POST"),
        (receive, "http.response.status_code", "200"),
        (receive, "url.path", "/v1/chat/completions"),
        (receive, "maitre.why", "only"),
        (receive, "maitre.worker", &worker),
        (receive, "maitre.class", "standard"),
        (receive, "maitre.queue_ms", "0"),
        (upstream, "server.address", "127.0.0.1"),
        (upstream, "server.port", &port),
        (upstream, "maitre.attempt", "0"),
    ] {
        assert_eq!(span.attributes.get(key).map(String::as_str), Some(value), "{key} of {span:?}");
    }
    assert!(receive.attributes.contains_key("gen_ai.usage.input_tokens"));
    assert!(spans.iter().all(|it| it.status.is_none() && !it.attributes.contains_key("error.type")));
    // The engine is a child of the attempt.
    assert_eq!(engine_header(&fixture, "traceparent").unwrap(), format!("00-{TRACE}-{}-01", upstream.id));
    assert_eq!(engine_header(&fixture, "tracestate").unwrap(), "vendor=1");
    let post = collector.posts.borrow()[0].clone();
    assert_eq!((&*post.path, &*post.key, &*post.kind), ("/v1/traces", "sesame", "application/json"));
    until_counted(&fixture.router, "maitre_trace_spans_exported_total", 4.0).await;
}

#[tokio::test]
async fn without_a_collector_trace_headers_pass_unchanged() {
    let fixture = fixture_with(1, recording(), settings()).await;
    for parent in [&*format!("00-{TRACE}-{SPAN}-01"), "not one at all"] {
        assert_eq!(ask(&fixture, traced(chat(1, false), parent)).await.status, 200);
        assert_eq!(engine_header(&fixture, "traceparent").as_deref(), Some(parent));
    }
    ask(&fixture, post("/v1/chat/completions", chat(1, false))).await;
    assert_eq!(engine_header(&fixture, "traceparent"), None);
}

#[tokio::test]
async fn the_caller_decides_about_sampling_else_the_ratio_does() {
    let mut collector = Collector::new(Mood::Takes).await;
    let mut settings = collector.settings();
    settings.traces.sample = 0.0;
    let fixture = fixture_with(1, recording(), settings).await;
    // Not sampled by its caller: the header passes unchanged.
    let unsampled = format!("00-{TRACE}-{SPAN}-00");
    ask(&fixture, traced(chat(1, false), &unsampled)).await;
    assert_eq!(engine_header(&fixture, "traceparent"), Some(unsampled));
    // The ratio is zero: the worker's header says so, and a malformed parent counts as none.
    for request in [post("/v1/chat/completions", chat(1, false)), traced(chat(1, false), "00-nonsense")] {
        ask(&fixture, request).await;
        let sent = engine_header(&fixture, "traceparent").unwrap();
        assert!(sent.starts_with("00-") && sent.ends_with("-00") && sent.len() == 55, "{sent}");
    }
    // Sampled by its caller: we sample it, too.
    ask(&fixture, traced(chat(1, false), &format!("00-{TRACE}-{SPAN}-01"))).await;
    let spans = collector.spans("receive", 1).await;
    assert!(spans.iter().all(|it| it.trace == TRACE), "{spans:?}");
    fixture.until_nothing_is_open().await;
    assert_eq!(metric(&fixture.router.metrics(), DROPPED), 0.0);
}

#[tokio::test]
async fn each_attempt_is_a_span_and_refusals_are_traced() {
    let mut collector = Collector::new(Mood::Takes).await;
    let fixture = fixture_with(2, engine_settings(), collector.settings()).await;
    fixture.engines[0].handle().inject(Injection::always(Fault::CloseBeforeHeaders));
    for _ in 0..2 {
        let answer = ask(&fixture, post("/v1/chat/completions", chat(2, false))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let unknown = chat(1, false).replace("maitre-sim", CANARY);
    assert_eq!(ask(&fixture, post("/v1/chat/completions", unknown)).await.status, 404);
    let spans = collector.spans("receive", 3).await;
    let failed = named(&spans, "upstream").into_iter().filter(|it| it.status == Some(2)).collect::<Vec<_>>();
    assert_eq!(failed.len(), 1, "{spans:?}");
    assert_eq!(failed[0].attributes["error.type"], "broke");
    let of_same = |it: &&&Span| it.trace == failed[0].trace;
    let upstreams = named(&spans, "upstream");
    let attempts: Vec<&str> =
        upstreams.iter().filter(of_same).map(|it| &*it.attributes["maitre.attempt"]).collect();
    assert_eq!(attempts, ["0", "1"]);
    let ids: std::collections::BTreeSet<&str> = spans.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids.len(), spans.len(), "every span has a number of its own");
    let receives = named(&spans, "receive");
    let refused = receives.iter().find(|it| it.attributes["maitre.outcome"] == "refused").unwrap();
    assert_eq!(refused.attributes["error.type"], "model_not_found");
    assert_eq!((refused.status, refused.parent.as_ref()), (None, None));
    assert!(
        receives
            .iter()
            .all(|it| it.attributes.get("gen_ai.request.model").is_none_or(|it| it == "maitre-sim"))
    );
}

#[tokio::test]
async fn no_prompt_and_no_key_is_exported() {
    let mut collector = Collector::new(Mood::Takes).await;
    let fixture = fixture_with(1, engine_settings(), collector.settings()).await;
    let mut client = fixture.client().await;
    let whole = chat(9, true).replace("a table for two", CANARY);
    let bodies = [
        whole.clone(),
        whole.replace("\"stream\":true", "\"stream\":false"),
        format!("{{\"model\": \"maitre-sim\", {CANARY}"),
        whole.replace("maitre-sim", CANARY),
        whole.replace("\"max_tokens\":9", "\"max_tokens\":0"),
    ];
    for body in bodies {
        for path in ["/v1/chat/completions".to_owned(), format!("/{CANARY}?a={CANARY}")] {
            let mut request = post(&path, body.clone());
            for name in ["authorization", "x-api-key", "cookie", "x-session-id"] {
                request.headers_mut().insert(name, format!("Bearer {CANARY}").parse().unwrap());
            }
            client.ask(request).await.unwrap();
        }
    }
    assert_eq!(collector.spans("receive", 10).await.len(), 10 + 4 + 4 + 1);
    for post in collector.posts.borrow().iter() {
        assert!(!String::from_utf8_lossy(&post.body).contains(CANARY), "{post:?}");
    }
}

#[tokio::test]
async fn a_failing_collector_affects_no_request() {
    for mood in [Mood::Says(500), Mood::Says(503), Mood::Hangs] {
        let collector = Collector::new(mood).await;
        let fixture = fixture_with(1, engine_settings(), collector.settings()).await;
        let mut client = fixture.client().await;
        let mut posts = collector.posts.clone();
        let load = async {
            loop {
                let answer = client.post("/v1/chat/completions", chat(3, true)).await;
                assert!(answer.status == 200 && !answer.broke, "{answer:?}");
            }
        };
        tokio::select! {
            () = load => {}
            _ = within(posts.wait_for(|it| !it.is_empty())) => {}
        }
        if mood == Mood::Says(500) {
            within(async {
                while metric(&fixture.router.metrics(), DROPPED) == 0.0 {
                    tokio::task::yield_now().await
                }
            })
            .await;
            assert!(metric(&fixture.router.metrics(), "maitre_trace_exports_failed_total") >= 1.0);
        }
        // The stop is not delayed either: it gives up after two seconds.
        drop(client);
        let stopped = tokio::time::timeout(Duration::from_secs(10), fixture.router.stop()).await;
        assert_eq!(stopped.expect("a stop within bounds"), maitre_proxy::Stopped::Drained);
    }
}

#[tokio::test]
async fn an_unreachable_collector_affects_no_request() {
    let collector = Collector::new(Mood::Takes).await;
    let settings = collector.settings();
    drop(collector);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let mut client = fixture.client().await;
    let failed = || metric(&fixture.router.metrics(), "maitre_trace_exports_failed_total");
    let mut load = async || {
        while failed() < 2.0 {
            assert_eq!(client.post("/v1/chat/completions", chat(3, false)).await.status, 200);
        }
    };
    within(load()).await;
}

#[tokio::test]
async fn a_batch_is_sent_again_when_the_collector_says_so() {
    let mut collector = Collector::new(Mood::Later(1)).await;
    let fixture = fixture_with(1, engine_settings(), collector.settings()).await;
    ask(&fixture, post("/v1/chat/completions", chat(1, false))).await;
    assert_eq!(collector.spans("receive", 1).await.len(), 3);
    let posts = collector.posts.borrow().clone();
    assert_eq!((posts.len(), &posts[0].body), (2, &posts[1].body));
    until_counted(&fixture.router, "maitre_trace_spans_exported_total", 3.0).await;
    assert_eq!(metric(&fixture.router.metrics(), DROPPED), 0.0);
}

#[tokio::test]
async fn remaining_spans_are_sent_at_the_stop() {
    let collector = Collector::new(Mood::Takes).await;
    let fixture = fixture_with(1, engine_settings(), collector.settings()).await;
    ask(&fixture, post("/v1/chat/completions", chat(1, false))).await;
    fixture.until_nothing_is_open().await;
    within(fixture.router.stop()).await;
    assert_eq!(named(&spans(&collector.posts.borrow()), "receive").len(), 1);
}

#[tokio::test]
async fn time_in_the_queue_is_a_span_of_its_own() {
    let mut collector = Collector::new(Mood::Takes).await;
    let mut settings = collector.settings();
    settings.brain.queue.sequences_max = 1;
    let mut engine = engine_settings();
    engine.engine.profile = maitre_sim::profile::Profile::named("h200-8b").unwrap();
    let fixture = fixture_with(1, engine, settings).await;
    let mut clients = JoinSet::new();
    for _ in 0..3 {
        let mut client = fixture.client().await;
        clients.spawn(async move { client.post("/v1/chat/completions", chat(30, true)).await.status });
    }
    assert!(within(clients.join_all()).await.iter().all(|it| *it == 200));
    let spans = collector.spans("receive", 3).await;
    let queues = named(&spans, "queue");
    assert_eq!(queues.len(), 2, "{spans:?}");
    for queue in queues {
        let receive =
            named(&spans, "receive").into_iter().find(|it| Some(&it.id) == queue.parent.as_ref()).unwrap();
        let waited: u128 = receive.attributes["maitre.queue_ms"].parse().unwrap();
        assert!(waited.abs_diff((queue.to - queue.from) / 1_000_000) <= 5, "{receive:?} {queue:?}");
    }
}
