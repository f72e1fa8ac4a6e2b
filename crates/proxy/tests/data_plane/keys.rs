//! API keys: which requests they admit, what each permits, and what the worker sees.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request};
use http_body_util::Full;
use maitre_base::ClassId;
use maitre_proxy::{ApiKey, ApiKeys, Router, RouterSettings, Secret};
use maitre_queue::{Tenant, Terms};
use maitre_sim::http::fault::{Fault, Injection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{
    Client, Fixture, TestResponse, chat, engine_settings, fixture_with, get, post, settings, within,
};
use crate::misbehaviour::router_in_front_of;
use crate::tokenize::listener;

const CHAT: &str = "/v1/chat/completions";
pub(crate) const ACME: &str = "key-of-acme-0123456789";
pub(crate) const UMBRA: &str = "key-of-umbra-0123456789";

pub(crate) fn key(tenant: &str) -> ApiKey {
    ApiKey { tenant: tenant.to_owned(), best: ClassId(0), models: Vec::new(), trusted: false }
}

/// Settings with a key for each of two tenants, the first as given.
pub(crate) fn with_keys(acme: ApiKey) -> RouterSettings {
    let rows = [(ACME, acme), (UMBRA, key("umbra"))];
    let keys = ApiKeys::new(rows.map(|(text, key)| (Secret::of(text.as_bytes()), key)));
    RouterSettings { keys, ..settings() }
}

pub(crate) fn showing(mut request: Request<Full<Bytes>>, key: &str) -> Request<Full<Bytes>> {
    let value = HeaderValue::from_str(&format!("Bearer {key}")).unwrap();
    request.headers_mut().insert("authorization", value);
    request
}

#[track_caller]
fn check(answer: &TestResponse, status: u16, code: &str) {
    let json = answer.json();
    assert_eq!((answer.status.as_u16(), json["error"]["code"].as_str()), (status, Some(code)), "{json}");
}

async fn fixture(settings: RouterSettings) -> Fixture {
    let engine = maitre_sim::http::HostConfig { bodies_max: 100, ..engine_settings() };
    let fixture = fixture_with(1, engine, settings).await;
    // Once its metrics are read, the engine is detected.
    within(fixture.router.until(|brain| brain.fleet().workers().all(|it| it.report.is_some()))).await;
    fixture
}

#[tokio::test]
async fn only_trusted_keys_learn_the_address_of_a_worker() {
    let trusted = ApiKey { trusted: true, ..key("acme") };
    let fixture = fixture(with_keys(trusted)).await;
    let worker = fixture.engines[0].addr().to_string();
    let mut client = fixture.client().await;
    let mut ask = async |key: &str| {
        let mut request = showing(post(CHAT, chat(1, false)), key);
        request.headers_mut().insert("x-maitre-explain", HeaderValue::from_static("1"));
        client.ask(request).await.unwrap()
    };
    let told = ask(ACME).await;
    assert_eq!(told.header("x-maitre-worker"), format!("http://{worker}"));
    assert!(told.header("x-maitre-explain").contains(&worker));
    let answer = ask(UMBRA).await;
    assert_eq!((answer.status.as_u16(), answer.header("x-maitre-why")), (200, "only"));
    assert!(!format!("{:?}{}", answer.headers, answer.text()).contains(&worker), "{:?}", answer.headers);
    // Nor by an error: the worker is gone.
    fixture.engines[0].handle().inject(Injection::always(Fault::CloseBeforeHeaders));
    let answer = ask(UMBRA).await;
    assert!(answer.status.is_server_error());
    assert!(!format!("{:?}{}", answer.headers, answer.text()).contains(&worker), "{}", answer.text());
}

/// A router is a worker like any other, and tells what it knows of its own workers.
#[tokio::test]
async fn what_a_worker_says_in_headers_of_ours_reaches_no_client() {
    let reply = |mut stream: TcpStream| async move {
        let head = b"HTTP/1.1 200 OK\r\nx-maitre-worker: http://inner:1\r\nx-maitre-explain: inner\r\n\
            x-maitre-why: inner\r\nx-maitre-pull-worker: http://inner:2\r\nx-other: kept\r\n\
            content-length: 2\r\nconnection: close\r\n\r\n{}";
        let _ = stream.write_all(head).await;
    };
    let router = router_in_front_of(reply, with_keys(key("acme"))).await;
    let request = showing(post(CHAT, chat(1, false)), ACME);
    let answer = Client::connect(router.listen()).await.ask(request).await.unwrap();
    assert_eq!((answer.header("x-other"), answer.header("x-maitre-why")), ("kept", "only"));
    assert!(!format!("{:?}", answer.headers).contains("inner"), "{:?}", answer.headers);
}

#[tokio::test]
async fn every_path_needs_a_key() {
    let mut settings = with_keys(key("acme"));
    settings.passthrough = vec!["/version".to_owned()];
    let fixture = fixture(settings).await;
    let mut client = fixture.client().await;
    let ask = [
        get("/v1/models"),
        get("/version"),
        get("/nowhere"),
        post(CHAT, chat(1, false)),
        post("/v1/models", ""),
    ];
    for request in ask {
        let (path, again) = (request.uri().path().to_owned(), request.clone());
        let answer = client.ask(request.clone()).await.unwrap();
        check(&answer, 401, "unauthorized");
        assert_eq!(answer.json()["error"]["type"], "authentication_error", "{path}");
        assert_eq!(answer.header("www-authenticate"), "Bearer", "{path}");
        let answer = client.ask(showing(request, "unknown-key-0123456789")).await.unwrap();
        check(&answer, 401, "invalid_api_key");
        let answer = client.ask(showing(again, ACME)).await.unwrap();
        assert_ne!(answer.status, 401, "{path}: {}", answer.text());
    }
    let answer = client.post("/v1/messages", "{}").await;
    let json = answer.json();
    assert_eq!(
        (answer.status.as_u16(), &json["type"], &json["error"]["type"]),
        (401, &"error".into(), &"authentication_error".into())
    );
    assert_eq!(fixture.engines[0].handle().bodies().len(), 1, "only the one with a key");
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn a_request_without_a_key_is_refused_before_its_body_is_read() {
    let fixture = fixture(with_keys(key("acme"))).await;
    let mut raw = TcpStream::connect(fixture.router.listen()).await.unwrap();
    raw.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: m\r\ncontent-length: 16000000\r\n\r\n")
        .await
        .unwrap();
    let mut seen = [0; 12];
    within(raw.read_exact(&mut seen)).await.unwrap();
    assert_eq!(&seen, b"HTTP/1.1 401");
    // The rest of its body is not read.
    let mut rest = Vec::new();
    within(raw.read_to_end(&mut rest)).await.unwrap();
    assert!(String::from_utf8_lossy(&rest).contains("unauthorized"));
}

#[tokio::test]
async fn the_worker_sees_its_own_key_and_not_the_clients() {
    let (addr, mut received, _alive) = listener().await;
    for (worker_key, has_keys) in [(None, true), (Some("sk-worker"), true), (Some("sk-worker"), false)] {
        let mut settings = if has_keys { with_keys(key("acme")) } else { settings() };
        settings.workers = vec![format!("http://{addr}").parse().unwrap()];
        settings.worker_key = worker_key.map(|it| it.parse().unwrap());
        let router = Router::start(settings).await.unwrap();
        within(router.until_all_ready()).await;
        let mut client = Client::connect(router.listen()).await;
        for name in ["authorization", "x-api-key", "api-key"] {
            let mut request = post(CHAT, chat(1, false).replace("maitre-sim", "m"));
            let value = if name == "authorization" { format!("Bearer {ACME}") } else { ACME.to_owned() };
            request.headers_mut().insert(HeaderName::from_static(name), value.parse().unwrap());
            assert_eq!(client.ask(request).await.unwrap().status, 200, "{name}");
            let request = loop {
                let head = within(received.recv()).await.unwrap();
                if head.starts_with("POST") {
                    break head;
                }
                // The router's own requests carry the workers' key.
                let shown =
                    worker_key.is_some_and(|it| head.contains(&format!("authorization: Bearer {it}\r\n")));
                assert_eq!(shown, worker_key.is_some(), "{head}");
            };
            let ours = worker_key.map(|it| format!("\r\nauthorization: Bearer {it}\r\n"));
            let shows_ours = ours.is_some_and(|it| request.contains(&it));
            match has_keys {
                true => assert_eq!(
                    (request.contains(ACME), shows_ours),
                    (false, worker_key.is_some()),
                    "{request}"
                ),
                // The client's key goes to the worker unchanged.
                false => assert_eq!((request.contains(ACME), shows_ours), (true, false), "{request}"),
            }
        }
        within(router.stop()).await;
        // Forgets the requests of this router.
        while received.try_recv().is_ok() {}
    }
}

#[tokio::test]
async fn only_trusted_callers_may_send_an_engines_routing_headers() {
    const ROUTING: [&str; 4] =
        ["x-data-parallel-rank", "x-smg-routing-key", "x-prefiller-host-port", "x-kv-cache-source-host-port"];
    let (addr, mut received, _alive) = listener().await;
    // Without keys a client may choose its priority, as in the body, and no rank.
    for (trusted, routes, prioritises) in
        [(Some(false), false, false), (Some(true), true, true), (None, false, true)]
    {
        let mut settings = match trusted {
            Some(trusted) => with_keys(ApiKey { trusted, ..key("acme") }),
            None => settings(),
        };
        settings.workers = vec![format!("http://{addr}").parse().unwrap()];
        let router = Router::start(settings).await.unwrap();
        within(router.until_all_ready()).await;
        let mut request = showing(post(CHAT, chat(1, false).replace("maitre-sim", "m")), ACME);
        for name in ROUTING.into_iter().chain(["x-vllm-priority", "x-other"]) {
            request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static("7"));
        }
        assert_eq!(Client::connect(router.listen()).await.ask(request).await.unwrap().status, 200);
        let request = loop {
            let head = within(received.recv()).await.unwrap();
            if head.starts_with("POST") {
                break head;
            }
        };
        assert!(request.contains("x-other: 7\r\n"), "{request}");
        assert_eq!(request.contains("x-vllm-priority"), prioritises, "{request}");
        for name in ROUTING {
            assert_eq!(request.contains(name), routes, "{request}");
        }
        within(router.stop()).await;
    }
}

#[tokio::test]
async fn only_trusted_callers_may_steer_engines_in_the_body() {
    const STEERING: [(&str, &str); 9] = [
        ("kv_transfer_params", r#"{"do_remote_prefill":true}"#),
        ("ec_transfer_params", "{}"),
        ("vllm_xargs", r#"{"kv_cache_report_mode":"full"}"#),
        ("bootstrap_host", r#""10.0.0.1""#),
        ("bootstrap_room", "1"),
        ("routed_dp_rank", "0"),
        ("rid", r#""an id of another request""#),
        ("disaggregated_params", "{}"),
        ("input_ids", "[1,2]"),
    ];
    for trusted in [Some(false), Some(true), None] {
        let fixture = fixture(match trusted {
            Some(trusted) => with_keys(ApiKey { trusted, ..key("acme") }),
            None => settings(),
        })
        .await;
        let mut client = fixture.client().await;
        for (field, value) in STEERING {
            let with = |value: &str| chat(1, false).replacen('{', &format!("{{ \"{field}\" : {value} , "), 1);
            let answer = client.ask(showing(post(CHAT, with(value)), ACME)).await.unwrap();
            if trusted == Some(true) {
                assert_eq!(answer.status, 200, "{field}: {}", answer.text());
                assert_eq!(fixture.engines[0].handle().bodies().last().unwrap().body, with(value));
                continue;
            }
            check(&answer, 400, "engine_field");
            assert_eq!(answer.json()["error"]["param"], field);
            // Clients write `null` for a field that they do not use.
            let answer = client.ask(showing(post(CHAT, with("null")), ACME)).await.unwrap();
            assert_eq!(answer.status, 200, "{field}: {}", answer.text());
        }
        let sent = fixture.engines[0].handle().bodies();
        assert_eq!(sent.len(), STEERING.len(), "no refused body reaches an engine");
        fixture.until_nothing_is_open().await;
    }
}

#[tokio::test]
async fn a_body_that_engines_could_read_in_two_ways_reaches_none() {
    let fixture = fixture(with_keys(ApiKey { models: vec!["maitre-sim".to_owned()], ..key("acme") })).await;
    let mut client = fixture.client().await;
    for (extra, code) in [
        (r#""model":"secret","#, "repeated_field"),
        (r#""priority":1,"priority":-7,"#, "repeated_field"),
        (r#""lora_path":"maitre-sim","lora_path":"secret","#, "repeated_field"),
        (r#""lora_path":"maitre-sim","lora_name":"secret","#, "conflicting_fields"),
        (r#""priority":true,"#, "wrong_type"),
        (r#""priority":"-7","#, "wrong_type"),
        (r#""priority":[-7],"#, "wrong_type"),
    ] {
        let body = chat(1, false).replacen('{', &format!("{{{extra}"), 1);
        check(&client.ask(showing(post(CHAT, body), ACME)).await.unwrap(), 400, code);
    }
    let adapters = chat(1, false).replacen('{', r#"{"lora":[{"id":0,"scale":1}],"#, 1);
    check(&client.ask(showing(post(CHAT, adapters), ACME)).await.unwrap(), 404, "model_not_found");
    assert!(fixture.engines[0].handle().bodies().is_empty());
}

#[tokio::test]
async fn an_engine_whose_priorities_are_unknown_gets_a_neutral_one() {
    // vLLM has no such field on this route, and the engine may be of any other brand.
    let fixture = fixture(with_keys(key("acme"))).await;
    let body = chat(1, false).replacen('{', "{ \"priority\" : -7 , ", 1);
    let answer = fixture.client().await.ask(showing(post("/v1/messages", body.clone()), ACME)).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let bodies = fixture.engines[0].handle().bodies();
    assert_eq!(bodies.last().unwrap().body, body.replace(" -7 ", " 0 "));
}

#[tokio::test]
async fn a_priority_in_the_body_reaches_the_engine_up_to_the_callers_own() {
    for (trusted, sent, expected) in [(false, "-7", "1"), (false, "\"batch\"", "2"), (true, "-7", "-7")] {
        let fixture = fixture(with_keys(ApiKey { trusted, best: ClassId(1), ..key("acme") })).await;
        let body = chat(1, false).replacen('{', &format!("{{ \"priority\" : {sent} , "), 1);
        let answer = fixture.client().await.ask(showing(post(CHAT, body.clone()), ACME)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let bodies = fixture.engines[0].handle().bodies();
        let received = String::from_utf8(bodies.last().unwrap().body.to_vec()).unwrap();
        assert_eq!(received, body.replace(&format!(" {sent} "), &format!(" {expected} ")));
    }
}

#[tokio::test]
async fn a_body_without_a_priority_is_unchanged() {
    let fixture = fixture(with_keys(key("acme"))).await;
    let body = chat(1, false).replacen('{', "{ \"odd\" : 1.0e0 ,\n", 1);
    assert_eq!(
        fixture.client().await.ask(showing(post(CHAT, body.clone()), ACME)).await.unwrap().status,
        200
    );
    assert_eq!(fixture.engines[0].handle().bodies().last().unwrap().body, body);
}

#[tokio::test]
async fn a_model_that_a_key_may_not_use_does_not_exist_for_it() {
    let models = vec!["other".to_owned(), "maitre-sim".to_owned(), "maitre-sim:fr*".to_owned()];
    let none = vec!["other".to_owned()];
    for (models, is_allowed) in [(models, true), (none, false)] {
        let mut settings = with_keys(ApiKey { models, ..key("acme") });
        settings.passthrough = vec!["/version".to_owned()];
        let fixture = fixture(settings).await;
        let mut client = fixture.client().await;
        let mut ask = async |request, key| client.ask(showing(request, key)).await.unwrap();
        let answer = ask(post(CHAT, chat(1, false)), ACME).await;
        let listed = ask(get("/v1/models"), ACME).await.json()["data"].as_array().unwrap().len();
        if is_allowed {
            assert_eq!((answer.status.as_u16(), listed), (200, 1));
            // Adapters count as models, in every field.
            for extra in [r#""lora_path":"fr-2","#, r#""lora_path":"other","#] {
                let answer =
                    ask(post(CHAT, chat(1, false).replacen('{', &format!("{{{extra}"), 1)), ACME).await;
                assert_eq!(answer.status, 200, "{extra}");
            }
            for extra in [r#""lora_path":"secret","#, r#""lora_path":["other"],"#] {
                let answer =
                    ask(post(CHAT, chat(1, false).replacen('{', &format!("{{{extra}"), 1)), ACME).await;
                check(&answer, 404, "model_not_found");
            }
            // Where the fleet would choose the model, the request must name it.
            check(&ask(post("/tokenize", r#"{"prompt":"x"}"#), ACME).await, 400, "model_required");
        } else {
            check(&answer, 404, "model_not_found");
            assert_eq!(listed, 0);
            // The same message as for a model that no worker serves.
            let unknown = ask(post(CHAT, chat(1, false).replace("maitre-sim", "unknown")), ACME).await;
            assert_eq!(unknown.text().replace("unknown", "maitre-sim"), answer.text());
            assert!(
                answer.text().contains("this fleet serves: none that this key may use"),
                "{}",
                answer.text()
            );
        }
        check(&ask(get("/version"), ACME).await, 404, "unknown_path");
        // The message names no other tenant's models.
        assert_eq!(ask(post(CHAT, chat(1, false)), UMBRA).await.status, 200);
        assert_eq!(ask(get("/version"), UMBRA).await.status, 200);
        assert_eq!(ask(get("/v1/models"), UMBRA).await.json()["data"].as_array().unwrap().len(), 1);
        fixture.until_nothing_is_open().await;
    }
}

#[tokio::test]
async fn limits_count_for_the_tenant_of_the_key() {
    let mut settings = with_keys(key("acme"));
    let terms =
        Terms { requests_per_minute: Some(1), tokens_per_minute: Some(1_000_000), ..Terms::default() };
    let tenant = Tenant { name: "acme".to_owned(), terms };
    settings.brain.queue.tenants.insert(tenant.id(), tenant);
    let fixture = fixture(settings).await;
    let mut client = fixture.client().await;
    let mut ask = async |key| client.ask(showing(post(CHAT, chat(1, false)), key)).await.unwrap();
    let first = ask(ACME).await;
    assert_eq!(first.status, 200);
    assert_eq!(first.header("x-ratelimit-remaining-requests"), "0", "also on what is admitted");
    let over = ask(ACME).await;
    check(&over, 429, "rate_limit_exceeded");
    let json = over.json();
    assert_eq!(json["error"]["type"], "rate_limit_error");
    assert!(json["error"]["message"].as_str().unwrap().contains("1 request per minute"), "{json}");
    let requests = ["limit", "remaining"].map(|it| over.header(&format!("x-ratelimit-{it}-requests")));
    assert_eq!((requests, over.header("x-ratelimit-limit-tokens")), (["1", "0"], "1000000"));
    let left: u64 = over.header("x-ratelimit-remaining-tokens").parse().unwrap();
    assert!((999_000..=1_000_000).contains(&left), "{left}");
    let reset = over.header("x-ratelimit-reset-requests");
    assert!(reset == "1m0s" || reset.ends_with('s'), "{reset}");
    assert!(over.header("retry-after").parse::<u64>().unwrap() <= 60);
    for _ in 0..3 {
        let answer = ask(UMBRA).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-ratelimit-limit-requests")), (200, ""));
    }
    let message = r#"{"model":"maitre-sim","max_tokens":1,"messages":[{"role":"user","content":"x"}]}"#;
    let over = client.ask(showing(post("/v1/messages", message), ACME)).await.unwrap();
    let json = over.json();
    assert_eq!((over.status.as_u16(), &json["type"]), (429, &"error".into()), "{json}");
    assert_eq!(json["error"]["type"], "rate_limit_error");
}

/// The head of the response to a raw request.
async fn raw(fixture: &Fixture, request: &str) -> String {
    let mut stream = TcpStream::connect(fixture.router.listen()).await.unwrap();
    let request = format!("{request}\r\nhost: m\r\nx-api-key: {ACME}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    within(stream.read_to_end(&mut seen)).await.unwrap();
    String::from_utf8_lossy(&seen).into_owned()
}

#[tokio::test]
async fn no_spelling_of_a_path_slips_past_the_list() {
    let mut settings = with_keys(key("acme"));
    settings.passthrough = vec!["/version".to_owned(), "/sim/*".to_owned()];
    let fixture = fixture(settings).await;
    for target in ["/version", "/version?a=/../b", "http://elsewhere/version"] {
        let answer = raw(&fixture, &format!("GET {target} HTTP/1.1")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{target}: {answer}");
    }
    for target in [
        "/metrics",
        "/sim/../metrics",
        "/sim/%2e%2e/metrics",
        "/sim/..%2fmetrics",
        "/sim//metrics",
        "//metrics",
        "/sim/%252e%252e/metrics",
        "/sim/.",
        "/version/",
        "/version/..",
        "/Version",
        "/%76ersion",
        "/v1/../metrics",
        "http://elsewhere/metrics",
        "http://elsewhere/sim/../metrics",
        "http://elsewhere",
        "/v1/chat/completions/../../../metrics",
    ] {
        let answer = raw(&fixture, &format!("GET {target} HTTP/1.1")).await;
        assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("unknown_path"), "{target}: {answer}");
    }
    // Neither of these is a path.
    for start in ["OPTIONS * HTTP/1.1", "CONNECT elsewhere:443 HTTP/1.1"] {
        let answer = raw(&fixture, start).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{start}: {answer}");
    }
}

#[tokio::test]
async fn the_admin_listener_requires_its_own_key() {
    let settings =
        RouterSettings { admin_key: Some(Secret::of(b"key-of-the-operator")), ..with_keys(key("acme")) };
    let fixture = fixture(settings).await;
    let mut admin = Client::connect(fixture.router.admin()).await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(admin.ask(get(path)).await.unwrap().status, 200, "{path}");
    }
    for path in ["/admin/v1/overview", "/admin/nowhere"] {
        check(&admin.ask(get(path)).await.unwrap(), 401, "unauthorized");
        // A client's key is not valid there.
        check(&admin.ask(showing(get(path), ACME)).await.unwrap(), 401, "unauthorized");
        assert_ne!(admin.ask(showing(get(path), "key-of-the-operator")).await.unwrap().status, 401, "{path}");
    }
    // The operator's key is not valid for clients.
    let answer = fixture.client().await.ask(showing(get("/v1/models"), "key-of-the-operator")).await.unwrap();
    check(&answer, 401, "invalid_api_key");
}

#[tokio::test]
async fn without_keys_none_is_required() {
    let fixture = fixture(settings()).await;
    let mut client = fixture.client().await;
    let request =
        Request::builder().method(Method::POST).uri(CHAT).header("authorization", "Basic Zm9vOmJhcg==");
    let request = request.header("host", "m").body(Full::from(chat(1, false))).unwrap();
    assert_eq!(client.ask(request).await.unwrap().status, 200);
    assert_eq!(client.post(CHAT, chat(1, false)).await.status, 200);
}
