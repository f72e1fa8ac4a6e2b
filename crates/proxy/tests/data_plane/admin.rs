//! The admin API over real sockets: its key, its views, and what it changes.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use maitre_base::WorkerId;
use maitre_fleet::HealthState;
use maitre_policy::Name;
use maitre_proxy::{RouterSettings, Secret};
use maitre_sim::http::fault::{Fault, Injection, Scope};
use serde_json::{Value, json};
use tokio::net::TcpSocket;

use crate::fixture::{
    Client, Fixture, TestResponse, chat, engine_settings, fixture_with, get, metric, post, settings, within,
};

pub(crate) const KEY: &str = "the-key-of-the-operator";

fn with_key() -> RouterSettings {
    let mut settings = RouterSettings { admin_key: Some(Secret::of(KEY.as_bytes())), ..settings() };
    settings.brain.strategy = Name::LeastDelay;
    settings.brain.shadows = vec![Name::RoundRobin];
    settings
}

async fn fixture(count: usize) -> Fixture {
    fixture_with(count, engine_settings(), with_key()).await
}

/// An operator's client.
pub(crate) struct Operator(Client);

impl Operator {
    pub(crate) async fn at(fixture: &Fixture) -> Operator {
        Operator(Client::connect(fixture.router.admin()).await)
    }

    pub(crate) async fn ask(&mut self, method: &str, path: &str, body: &Value) -> TestResponse {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder().method(method).uri(path).header("host", "maitre");
        let request = request.header("authorization", format!("Bearer {KEY}"));
        self.0.ask(request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap()
    }

    /// The body of a GET.
    pub(crate) async fn see(&mut self, path: &str) -> Value {
        let answer = self.ask("GET", path, &Value::Null).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
        answer.json()
    }

    #[track_caller]
    fn check(answer: &TestResponse, status: u16, code: &str) {
        assert_eq!((answer.status.as_u16(), answer.json()["error"]["code"].as_str()), (status, Some(code)));
    }
}

async fn chats(fixture: &Fixture, count: usize) -> Vec<TestResponse> {
    let mut client = fixture.client().await;
    let mut answers = Vec::new();
    for _ in 0..count {
        answers.push(client.post("/v1/chat/completions", chat(4, true)).await);
    }
    fixture.until_nothing_is_open().await;
    answers
}

#[tokio::test]
async fn the_admin_api_requires_its_key() {
    let fixture = fixture(1).await;
    let mut operator = Operator::at(&fixture).await;
    let document = operator.see("/admin/v1/openapi.json").await;
    let paths = document["paths"].as_object().unwrap();
    let mut rows: Vec<(String, String)> = Vec::new();
    for (path, methods) in paths {
        let path = path.replace("{worker}", "0").replace("{decision}", "1");
        rows.extend(methods.as_object().unwrap().keys().map(|it| (it.to_uppercase(), path.clone())));
    }
    assert!(rows.len() > 20, "{rows:?}");
    rows.extend([("GET".to_owned(), "/admin/nothing".to_owned()), ("GET".to_owned(), "/admin".to_owned())]);
    let wrong = ["", "Bearer", "Bearer ", "Bearer the-key-of-somebody-else", "Basic dGhlOmtleQ==", KEY];
    for (method, path) in &rows {
        for key in wrong {
            let mut request = Request::builder().method(method.as_str()).uri(path).header("host", "maitre");
            if !key.is_empty() {
                request = request.header("authorization", key);
            }
            let answer = operator.0.ask(request.body(Full::default()).unwrap()).await.unwrap();
            Operator::check(&answer, 401, "unauthorized");
            assert_eq!(answer.header("www-authenticate"), "Bearer");
        }
        // With the key, all of them respond; the stream does not end by itself.
        if path != "/admin/v1/live" && !path.ends_with("nothing") && path != "/admin" {
            let answer = operator.ask(method, path, &Value::Null).await;
            assert_ne!(answer.status, StatusCode::UNAUTHORIZED, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn without_an_admin_key_every_key_is_wrong() {
    let fixture = fixture_with(1, engine_settings(), settings()).await;
    let mut operator = Operator::at(&fixture).await;
    let answer = operator.ask("GET", "/admin/v1/overview", &Value::Null).await;
    Operator::check(&answer, 401, "unauthorized");
    // Paths that need no key respond.
    for path in ["/healthz", "/readyz", "/metrics", "/"] {
        assert_eq!(operator.0.ask(get(path)).await.unwrap().status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn the_overview_equals_the_metrics() {
    let fixture = fixture(2).await;
    chats(&fixture, 12).await;
    let mut operator = Operator::at(&fixture).await;
    let overview = operator.see("/admin/v1/overview").await;
    let page = fixture.router.metrics();
    let answered = metric(&page, r#"maitre_requests_total{route="chat",outcome="answered",code=""}"#);
    assert_eq!(overview["totals"]["answered"].as_f64(), Some(answered));
    assert_eq!(
        overview["totals"]["prompt_tokens"].as_f64(),
        Some(metric(&page, "maitre_prompt_tokens_total"))
    );
    assert_eq!(
        overview["totals"]["cached_tokens"].as_f64(),
        Some(metric(&page, "maitre_cached_tokens_total"))
    );
    assert_eq!(overview["totals"]["in_flight"], 0);
    assert_eq!(overview["totals"]["requests"].as_f64(), Some(metric(&page, "maitre_requests_arrived_total")));
    assert_eq!(
        overview["totals"]["answer_tokens"].as_f64(),
        Some(metric(&page, "maitre_answer_tokens_total"))
    );
    assert_eq!((&overview["ready"], &overview["strategy"]), (&json!(true), &json!("least-delay")));
    let workers = overview["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2);
    let placed: u64 = workers.iter().map(|it| it["requests_total"].as_u64().unwrap()).sum();
    assert_eq!(placed, 12);
    for worker in workers {
        assert_eq!((&worker["state"], &worker["requests"]), (&json!("ready"), &json!(0)));
        assert_eq!(worker["models"], json!(["maitre-sim"]));
    }
    let shadow = &overview["shadows"][0];
    assert_eq!((&shadow["strategy"], &shadow["decisions"]), (&json!("round-robin"), &json!(12)));
}

#[tokio::test]
async fn the_number_of_workers_is_the_same_in_json_and_metrics() {
    let fixture = fixture(2).await;
    let mut operator = Operator::at(&fixture).await;
    let scaling = within(async {
        loop {
            let scaling = operator.see("/admin/v1/scaling").await;
            // The brain computes it at its ticks.
            if scaling["models"][0]["workers"] == 2 {
                break scaling;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let model = &scaling["models"][0];
    assert_eq!((&model["desired_workers"], &model["reason"]), (&json!(1), &json!("least")));
    let page = fixture.router.metrics();
    let name = model["model"].as_str().unwrap();
    assert_eq!(metric(&page, &format!("maitre_desired_workers{{model=\"{name}\"}}")), 1.0);
    assert_eq!(
        metric(&page, &format!("maitre_desired_workers_reason{{model=\"{name}\",reason=\"least\"}}")),
        1.0
    );
}

#[tokio::test]
async fn a_decision_lists_the_cost_of_every_candidate() {
    let fixture = fixture(3).await;
    let answers = chats(&fixture, 5).await;
    let mut operator = Operator::at(&fixture).await;
    let list = operator.see("/admin/v1/decisions?limit=3").await;
    let numbers: Vec<u64> =
        list["decisions"].as_array().unwrap().iter().map(|it| it["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [5, 4, 3], "newest first");
    let id = answers[4].header("x-request-id");
    for path in [format!("/admin/v1/decisions/{id}"), "/admin/decisions/5".to_owned()] {
        let decision = operator.see(&path).await;
        assert_eq!((&decision["number"], &decision["id"]), (&json!(5), &json!(id)));
        assert_eq!(decision["outcome"], "answered");
        assert_eq!(decision["url"].as_str(), Some(answers[4].header("x-maitre-worker")));
        assert_eq!(decision["why"].as_str(), Some(answers[4].header("x-maitre-why")));
        assert!(decision["actual_ttft_ms"].as_f64().unwrap() > 0.0);
        let candidates = decision["candidates"].as_array().unwrap();
        assert_eq!(candidates.len(), 3);
        assert_eq!(candidates.iter().filter(|it| it["chosen"] == json!(true)).count(), 1);
        for candidate in candidates {
            let terms = candidate["terms_ms"].as_object().unwrap();
            let sum: f64 = terms.values().map(|it| it.as_f64().unwrap()).sum();
            let price = candidate["price_ms"].as_f64().unwrap() * candidate["share"].as_f64().unwrap();
            assert!((sum - price).abs() < 0.02, "{sum} {price}");
        }
        assert_eq!(decision["shadows"][0]["strategy"], "round-robin");
    }
    let answer = operator.ask("GET", "/admin/v1/decisions/99999", &Value::Null).await;
    Operator::check(&answer, 404, "not_found");
    for query in ["limit=many", "why=bogus", "why=only,bogus", "outcome=bogus"] {
        let answer = operator.ask("GET", &format!("/admin/v1/decisions?{query}"), &Value::Null).await;
        Operator::check(&answer, 400, "bad_request");
    }
}

#[tokio::test]
async fn failed_and_slow_decisions_are_found() {
    let fixture = fixture(2).await;
    chats(&fixture, 3).await;
    let broken = Injection::times(Fault::CloseAfterChunks { chunks: 1 }, 1);
    fixture.engines.iter().for_each(|it| it.handle().inject(broken));
    fixture.client().await.post("/v1/chat/completions", chat(9, true)).await;
    fixture.until_nothing_is_open().await;
    fixture.engines.iter().for_each(|it| it.handle().inject(Injection::always(Fault::Stall)));
    let mut stuck = tokio::task::JoinSet::new();
    let mut client = fixture.client().await;
    stuck.spawn(async move { client.send(post("/v1/chat/completions", chat(9, true))).await });
    within(fixture.router.until(|brain| brain.open() == 1)).await;
    let mut operator = Operator::at(&fixture).await;
    let mut found = async |query: &str| {
        let list = operator.see(&format!("/admin/v1/decisions?{query}")).await;
        let decisions = list["decisions"].as_array().unwrap().iter();
        decisions.map(|it| it["outcome"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found("outcome=failed,broke-off,declined").await, ["broke-off"]);
    assert_eq!(found("outcome=in-flight").await, ["in-flight"]);
    let reasons = maitre_policy::Why::ALL.map(maitre_policy::Why::name).join(",");
    assert_eq!(found(&format!("why={reasons}")).await.len(), 5);
    assert_eq!(found("why=dice,session").await, [""; 0]);
    assert_eq!(found("outcome=answered").await.len(), 3);
    assert_eq!(found("slower_than_ms=3600000").await, [""; 0]);
    // The request in flight has no first token; sooner or later it is the slowest.
    within(async { while found("outcome=in-flight&slower_than_ms=100").await.is_empty() {} }).await;
    assert_eq!(found("slower_than_ms=0").await.len(), 5);
}

#[tokio::test]
async fn a_client_can_ask_for_the_decision() {
    let fixture = fixture(2).await;
    let mut client = fixture.client().await;
    let mut request = post("/v1/chat/completions", chat(2, false));
    request.headers_mut().insert("x-maitre-explain", "1".parse().unwrap());
    let answer = client.ask(request).await.unwrap();
    let explained = answer.header("x-maitre-explain");
    assert!(explained.starts_with("decision=1 strategy=least-delay"), "{explained}");
    assert!(explained.contains(&format!("; *{} price_ms=", answer.header("x-maitre-worker"))), "{explained}");
    assert_eq!(explained.matches("price_ms=").count(), 2);
    let answer = client.post("/v1/chat/completions", chat(2, false)).await;
    assert_eq!(answer.header("x-maitre-explain"), "");
}

#[tokio::test]
async fn explaining_a_request_sends_nothing() {
    let fixture = fixture(2).await;
    chats(&fixture, 2).await;
    let mut operator = Operator::at(&fixture).await;
    let before = operator.see("/admin/v1/overview").await;
    let body: Value = serde_json::from_str(&chat(4, true)).unwrap();
    let answer = operator.ask("POST", "/admin/v1/explain", &body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let decision = answer.json();
    assert_eq!((&decision["outcome"], &decision["number"]), (&json!("asked"), &Value::Null));
    assert_eq!(decision["candidates"].as_array().unwrap().len(), 2);
    let after = operator.see("/admin/v1/overview").await;
    assert_eq!(before["totals"], after["totals"]);
    assert_eq!(before["workers"][0]["requests_total"], after["workers"][0]["requests_total"]);
    for (path, body, status, part) in [
        ("/admin/v1/explain?path=/v1/nothing", body.clone(), 400, "not an API"),
        (
            "/admin/v1/explain",
            json!({"model": "nobody", "messages": [{"role": "user", "content": "x"}]}),
            409,
            "not served here",
        ),
        ("/admin/v1/explain", json!([]), 400, ""),
    ] {
        let answer = operator.ask("POST", path, &body).await;
        assert_eq!(answer.status.as_u16(), status, "{}", answer.text());
        assert!(answer.text().contains(part), "{}", answer.text());
    }
}

#[tokio::test]
async fn a_drained_worker_gets_no_requests_until_it_is_resumed() {
    let fixture = fixture(2).await;
    let mut operator = Operator::at(&fixture).await;
    let drained = operator.ask("POST", "/admin/v1/workers/0/drain", &Value::Null).await;
    assert_eq!((drained.status, &drained.json()["draining"]), (StatusCode::OK, &json!(true)));
    let first = operator.see("/admin/v1/workers/0").await["url"].as_str().unwrap().to_owned();
    let answers = chats(&fixture, 6).await;
    assert!(answers.iter().all(|it| it.header("x-maitre-worker") != first));
    operator.ask("POST", "/admin/v1/workers/1/drain", &Value::Null).await;
    operator.ask("POST", "/admin/v1/workers/0/resume", &Value::Null).await;
    let answers = chats(&fixture, 3).await;
    assert!(answers.iter().all(|it| it.header("x-maitre-worker") == first));
    let answer = operator.ask("POST", "/admin/v1/workers/7/drain", &Value::Null).await;
    Operator::check(&answer, 404, "not_found");
}

#[tokio::test]
async fn readyz_and_the_overview_agree() {
    async fn check(operator: &mut Operator, ready: bool, reason: &Value) {
        let answer = operator.0.ask(get("/readyz")).await.unwrap();
        let overview = operator.see("/admin/v1/overview").await;
        let is_ready = answer.status == StatusCode::OK;
        assert_eq!((is_ready, &overview["ready"], &overview["not_ready"]), (ready, &json!(ready), reason));
        let said = if ready { "ready" } else { reason.as_str().unwrap() };
        assert_eq!(answer.text(), format!("{said}\n"));
    }
    let fixture = fixture(1).await;
    let mut operator = Operator::at(&fixture).await;
    let no_worker = json!("no worker is ready");
    check(&mut operator, true, &Value::Null).await;
    operator.ask("POST", "/admin/v1/workers/0/drain", &Value::Null).await;
    check(&mut operator, false, &no_worker).await;
    operator.ask("POST", "/admin/v1/workers/0/resume", &Value::Null).await;
    check(&mut operator, true, &Value::Null).await;
    // The last worker is not ejected: it stays suspect, and gets requests for want of another.
    let hung = Injection { fault: Fault::Stall, times: None, scope: Scope::All };
    fixture.engines[0].handle().inject(hung);
    let is_suspect = |it: &maitre_fleet::Worker| matches!(it.health.state(), HealthState::Suspect { .. });
    within(fixture.router.until(|brain| brain.fleet().workers().all(is_suspect))).await;
    check(&mut operator, false, &no_worker).await;
}

#[tokio::test]
async fn a_worker_that_has_never_answered_says_why() {
    let closed = std::net::TcpListener::bind(crate::fixture::ANYWHERE).unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let fixture = fixture(1).await;
    fixture.router.discovered(&[url.parse().unwrap()], Vec::new());
    let mut operator = Operator::at(&fixture).await;
    let worker = within(async {
        loop {
            let workers = operator.see("/admin/v1/overview").await["workers"].take();
            let found = workers.as_array().unwrap().iter().find(|it| it["url"] == url);
            if let Some(worker) = found.filter(|it| !it["unhealthy"].is_null()) {
                break worker.clone();
            }
        }
    })
    .await;
    let why = worker["unhealthy"].as_str().unwrap();
    assert!(worker["state"] == "probing" && why.contains("refused"), "{worker}");
}

#[tokio::test]
async fn an_idle_router_has_no_hit_ratio() {
    let fixture = fixture(1).await;
    // An answer that does not stream has usage.
    fixture.client().await.post("/v1/chat/completions", chat(4, false)).await;
    fixture.until_nothing_is_open().await;
    let mut operator = Operator::at(&fixture).await;
    within(async {
        loop {
            let overview = operator.see("/admin/v1/overview").await;
            assert_ne!(overview["totals"]["prompt_tokens"], 0);
            // A sample may hold the request for ten seconds.
            if overview["now"]["hit_ratio"].is_null() {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_weight_is_a_number_within_its_limits() {
    let fixture = fixture(1).await;
    let mut operator = Operator::at(&fixture).await;
    let weighed = operator.ask("PUT", "/admin/v1/workers/0/weight", &json!({"weight": 0.5})).await;
    assert_eq!((weighed.status, &weighed.json()["weight"]), (StatusCode::OK, &json!(0.5)));
    for body in [json!({"weight": 0}), json!({"weight": "much"}), json!({"wait": 1}), json!(3), Value::Null] {
        let answer = operator.ask("PUT", "/admin/v1/workers/0/weight", &body).await;
        Operator::check(&answer, 400, "bad_request");
    }
}

#[tokio::test]
async fn an_operator_can_add_and_remove_workers() {
    let mut settings = with_key();
    settings.admin_workers = vec!["http://127.0.0.1:*".to_owned()];
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let engine = maitre_sim::http::Host::bind(crate::fixture::ANYWHERE, engine_settings()).await.unwrap();
    let mut operator = Operator::at(&fixture).await;
    let url = format!("http://{}", engine.addr());
    let added = operator.ask("POST", "/admin/v1/workers", &json!({ "url": url })).await;
    assert_eq!(added.status, StatusCode::CREATED, "{}", added.text());
    within(fixture.router.until_all_ready()).await;
    let again = operator.ask("POST", "/admin/v1/workers", &json!({ "url": url })).await;
    Operator::check(&again, 409, "conflict");
    let far = operator.ask("POST", "/admin/v1/workers", &json!({"url": "http://10.9.9.9:1"})).await;
    Operator::check(&far, 403, "forbidden");
    // Nor may its events be elsewhere.
    for option in ["events", "replay"] {
        let far = format!("http://127.0.0.1:1?{option}=tcp://10.9.9.9:1");
        let far = operator.ask("POST", "/admin/v1/workers", &json!({ "url": far })).await;
        Operator::check(&far, 403, "forbidden");
    }
    let odd = operator.ask("POST", "/admin/v1/workers", &json!({"url": "ftp://a"})).await;
    Operator::check(&odd, 400, "bad_request");
    // The first worker is removed while it has a request, which finishes.
    let mut client = fixture.client().await;
    operator.ask("POST", "/admin/v1/workers/1/drain", &Value::Null).await;
    let begun = client.send(post("/v1/chat/completions", chat(50, true))).await.unwrap();
    operator.ask("POST", "/admin/v1/workers/1/resume", &Value::Null).await;
    let removed = operator.ask("DELETE", "/admin/v1/workers/0", &Value::Null).await;
    assert_eq!(removed.status, StatusCode::OK, "{}", removed.text());
    let (_, broke) = within(crate::fixture::read(begun.into_body())).await;
    assert!(!broke);
    within(fixture.router.until(|brain| brain.fleet().worker(WorkerId(0)).is_none())).await;
    let answers = chats(&fixture, 3).await;
    assert!(answers.iter().all(|it| it.header("x-maitre-worker") == url));
}

#[tokio::test]
async fn a_worker_being_removed_cannot_be_resumed() {
    let fixture = fixture(2).await;
    let mut operator = Operator::at(&fixture).await;
    operator.ask("POST", "/admin/v1/workers/1/drain", &Value::Null).await;
    let injection = Injection::always(Fault::StallAfterChunks { chunks: 2 });
    fixture.engines[0].handle().inject(injection);
    let mut client = fixture.client().await;
    let begun = client.send(post("/v1/chat/completions", chat(9, true))).await.unwrap();
    let removed = operator.ask("DELETE", "/admin/v1/workers/0", &Value::Null).await;
    assert_eq!(removed.status, StatusCode::OK, "{}", removed.text());
    let resumed = operator.ask("POST", "/admin/v1/workers/0/resume", &Value::Null).await;
    Operator::check(&resumed, 409, "conflict");
    let resumed = operator.ask("POST", "/admin/v1/workers/1/resume", &Value::Null).await;
    assert_eq!(resumed.status, StatusCode::OK, "{}", resumed.text());
    drop(begun);
}

#[tokio::test]
async fn a_reload_changes_workers_and_strategy_and_keeps_requests_in_flight() {
    let fixture = fixture(2).await;
    let mut client = fixture.client().await;
    let begun = client.send(post("/v1/chat/completions", chat(50, true))).await.unwrap();
    let mut settings = with_key();
    settings.brain.strategy = Name::RoundRobin;
    settings.workers = vec![format!("http://{}", fixture.engines[1].addr()).parse().unwrap()];
    let difference = fixture.router.reload(settings.clone()).unwrap();
    assert_eq!((difference.added.len(), difference.removed.len()), (0, 1));
    let (_, broke) = within(crate::fixture::read(begun.into_body())).await;
    assert!(!broke);
    within(fixture.router.until(|brain| brain.fleet().workers().count() == 1)).await;
    let answers = chats(&fixture, 2).await;
    assert!(answers.iter().all(|it| it.status == StatusCode::OK && it.header("x-maitre-why") == "only"));
    // The same settings change nothing; an invalid change is an error, and nothing else changes with it.
    assert_eq!(fixture.router.reload(settings.clone()).unwrap(), maitre_proxy::Difference::default());
    settings.brain.seed += 1;
    settings.brain.strategy = Name::Random;
    assert!(fixture.router.reload(settings).unwrap_err().contains("seed"));
    let mut operator = Operator::at(&fixture).await;
    assert_eq!(operator.see("/admin/v1/strategies").await["strategy"], "round-robin");
    let set = operator.ask("PUT", "/admin/v1/strategies", &json!({"strategy": "lmetric"})).await;
    assert_eq!(set.json()["strategy"], "lmetric", "{}", set.text());
    let set = operator.ask("PUT", "/admin/v1/strategies", &json!({"strategy": "best"})).await;
    Operator::check(&set, 400, "bad_request");
}

#[tokio::test]
async fn the_event_stream_has_the_overview_and_decisions() {
    let fixture = fixture(1).await;
    let mut operator = Operator::at(&fixture).await;
    let request = Request::builder().uri("/admin/v1/live").header("host", "maitre");
    let request = request.header("authorization", format!("Bearer {KEY}"));
    let response = operator.0.send(request.body(Full::default()).unwrap()).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    chats(&fixture, 3).await;
    let mut events = String::new();
    // On a slow machine they come in several events.
    let has_decision = |events: &str, number: u32| events.contains(&format!("\"number\":{number},"));
    while !((1..=3).all(|it| has_decision(&events, it)) && events.matches("event: overview").count() >= 2) {
        let frame = within(body.frame()).await.unwrap().unwrap();
        events.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
    }
    for event in events.split_terminator("\n\n") {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        match name {
            "event: overview" => assert!(data["workers"].is_array()),
            "event: decisions" => assert!(data["decisions"][0]["number"].is_u64(), "{data}"),
            other => panic!("{other}"),
        }
    }
    let methods = operator.ask_anew(&fixture, Method::POST, "/admin/v1/live").await;
    Operator::check(&methods, 405, "wrong_method");
}

#[tokio::test]
async fn an_event_stream_ends_when_its_key_is_replaced() {
    let fixture = fixture(1).await;
    let mut operator = Operator::at(&fixture).await;
    let request = Request::builder().uri("/admin/v1/live").header("host", "maitre");
    let request = request.header("authorization", format!("Bearer {KEY}"));
    let mut body = operator.0.send(request.body(Full::default()).unwrap()).await.unwrap().into_body();
    assert!(within(body.frame()).await.unwrap().is_ok());
    let mut settings =
        RouterSettings { admin_key: Some(Secret::of(b"the-next-key-of-the-operator")), ..with_key() };
    let engines = fixture.engines.iter();
    settings.workers = engines.map(|it| format!("http://{}", it.addr()).parse().unwrap()).collect();
    fixture.router.reload(settings).unwrap();
    within(async { while body.frame().await.is_some() {} }).await;
}

/// As many as the listener accepts.
const PLACES: usize = 128;

#[tokio::test]
async fn clients_that_do_not_read_do_not_block_the_admin_listener() {
    let mut settings = with_key();
    settings.timeouts.client_stalled = Duration::from_millis(1);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let mut strangers = Vec::new();
    let asks = "GET /metrics HTTP/1.1\r\nhost: maitre\r\n\r\n".repeat(2_000);
    for _ in 0..PLACES {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let stream = socket.connect(fixture.router.admin()).await.unwrap();
        stream.writable().await.unwrap();
        stream.try_write(asks.as_bytes()).unwrap();
        strangers.push(stream);
    }
    let mut prober = Client::connect(fixture.router.admin()).await;
    let answer = within(prober.ask(get("/healthz"))).await.unwrap();
    assert_eq!((answer.status, strangers.len()), (StatusCode::OK, PLACES));
}

#[tokio::test]
async fn settings_and_discovery_may_spell_one_worker_differently() {
    let fixture = fixture(1).await;
    let port = fixture.engines[0].addr().port();
    let settings = |host: &str| {
        let mut settings = with_key();
        settings.workers = vec![format!("http://{host}:{port}").parse().unwrap()];
        settings
    };
    fixture.router.reload(settings("LocalHost")).unwrap();
    let found = [format!("http://localhost:{port}/").parse().unwrap()];
    assert_eq!(fixture.router.discovered(&found, Vec::new()), maitre_proxy::Difference::default());
}

#[tokio::test]
async fn a_worker_listed_twice_stays_when_one_list_changes_and_drops_it() {
    let fixture = fixture(1).await;
    let url = format!("http://{}", fixture.engines[0].addr());
    let found = [url.parse().unwrap()];
    assert_eq!(fixture.router.discovered(&found, Vec::new()), maitre_proxy::Difference::default());
    let mut settings = with_key();
    settings.workers = vec![format!("{url}?events=off").parse().unwrap()];
    let difference = fixture.router.reload(settings.clone()).unwrap();
    assert_eq!((difference.added.len(), difference.removed.len()), (1, 1), "it begins anew");
    settings.workers.clear();
    let difference = fixture.router.reload(settings).unwrap();
    assert_eq!(difference, maitre_proxy::Difference::default(), "discovery still names it");
}

impl Operator {
    /// On a new connection, because a stream occupies the other one.
    async fn ask_anew(&self, fixture: &Fixture, method: Method, path: &str) -> TestResponse {
        Operator::at(fixture).await.ask(method.as_str(), path, &Value::Null).await
    }
}

#[tokio::test]
async fn open_event_streams_do_not_block_other_requests() {
    let fixture = fixture(1).await;
    let mut followers = Vec::new();
    let mut refused = 0;
    for _ in 0..40 {
        let mut operator = Operator::at(&fixture).await;
        let request = Request::builder().uri("/admin/v1/live").header("host", "maitre");
        let request = request.header("authorization", format!("Bearer {KEY}"));
        let response = operator.0.send(request.body(Full::default()).unwrap()).await.unwrap();
        refused += usize::from(response.status() == StatusCode::CONFLICT);
        followers.push((operator, response));
    }
    assert_eq!(refused, 8);
    assert_eq!(Operator::at(&fixture).await.0.ask(get("/healthz")).await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn a_router_without_a_config_file_cannot_reload() {
    let fixture = fixture(1).await;
    let mut operator = Operator::at(&fixture).await;
    let answer = operator.ask("POST", "/admin/v1/reload", &Value::Null).await;
    Operator::check(&answer, 409, "conflict");
    let fit = |state| matches!(state, HealthState::Ready | HealthState::Warming { .. });
    assert!(fixture.router.look(|brain| brain.fleet().workers().all(|it| fit(it.health.state()))));
}
