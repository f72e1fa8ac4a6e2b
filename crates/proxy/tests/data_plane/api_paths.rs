//! What clients of engines expect beside the API: probes, the version, one model, and the rarer routes.

use http::{Method, Request};
use http_body_util::Full;
use maitre_proxy::{Router, RouterSettings};
use maitre_sim::http::fault::{Fault, Injection};

use crate::fixture::{
    Client, TestResponse, engine_settings, fixture, fixture_with, get, metric, settings, within,
};
use crate::keys::{ACME, key, showing, with_keys};

const COUNT: &str = "/v1/messages/count_tokens";
const MESSAGES: &str = r#"{"model":"maitre-sim","messages":[{"role":"user","content":"a table for two"}]}"#;

async fn ask(client: &mut Client, method: Method, path: &str) -> TestResponse {
    let request = Request::builder().method(method).uri(path).header("host", "maitre");
    client.ask(request.body(Full::default()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn probes_are_true_to_readiness_and_need_no_key() {
    let empty = Router::start(with_keys(key("acme"))).await.unwrap();
    let mut client = Client::connect(empty.listen()).await;
    let ready = fixture_with(1, engine_settings(), with_keys(key("acme"))).await;
    let mut client_of_ready = ready.client().await;
    for (method, path) in [
        (Method::GET, "/health"),
        (Method::HEAD, "/health"),
        (Method::GET, "/ping"),
        (Method::POST, "/ping"),
        (Method::GET, "/health?x=1"),
    ] {
        let not_yet = ask(&mut client, method.clone(), path).await;
        assert_eq!(not_yet.status, 503, "{method} {path}");
        assert_eq!(ask(&mut client_of_ready, method.clone(), path).await.status, 200, "{method} {path}");
        if method != Method::HEAD {
            assert_eq!(not_yet.text(), "no worker is ready\n");
        }
    }
    let page = ready.router.metrics();
    assert_eq!(metric(&page, "maitre_request_seconds_count"), 0.0, "a probe is no request");
    let wrong = client_of_ready.ask(showing(crate::fixture::post("/health", ""), ACME)).await.unwrap();
    assert_eq!((wrong.status.as_u16(), wrong.header("allow")), (405, "GET"));
}

#[tokio::test]
async fn a_router_that_drains_is_not_healthy() {
    let fixture = fixture(1).await;
    let mut settings = settings();
    settings.timeouts.drain_grace = std::time::Duration::from_secs(30);
    settings.workers = vec![format!("http://{}", fixture.engines[0].addr()).parse().unwrap()];
    let router = Router::start(settings).await.unwrap();
    within(router.until_all_ready()).await;
    let mut client = Client::connect(router.listen()).await;
    assert_eq!(client.ask(get("/health")).await.unwrap().status, 200);
    let mut stop = std::pin::pin!(router.stop());
    within(async {
        loop {
            tokio::select! {
                _ = &mut stop => panic!("it stopped before its grace was over"),
                answer = client.ask(get("/health")) => {
                    let answer = answer.unwrap();
                    if answer.status == 503 {
                        return assert_eq!(answer.text(), "draining\n");
                    }
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn the_paths_of_other_routers_are_there_if_the_operator_wants_them() {
    const PATHS: [&str; 4] = ["/liveness", "/readiness", "/health_generate", "/metrics"];
    let without = fixture(1).await;
    for path in PATHS {
        assert_eq!(without.client().await.ask(get(path)).await.unwrap().status, 404, "{path}");
    }
    let wanted = |settings: RouterSettings| RouterSettings { compat_paths: true, ..settings };
    let with = fixture_with(1, engine_settings(), wanted(settings())).await;
    let mut client = with.client().await;
    for path in PATHS {
        assert_eq!(client.ask(get(path)).await.unwrap().status, 200, "{path}");
    }
    let page = client.ask(get("/metrics")).await.unwrap();
    assert_eq!(page.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(metric(&page.text(), "maitre_request_seconds_count"), 0.0, "neither is a request");
    let empty = Router::start(wanted(settings())).await.unwrap();
    let mut client = Client::connect(empty.listen()).await;
    for (path, status) in [("/liveness", 200), ("/readiness", 503), ("/health_generate", 503)] {
        assert_eq!(client.ask(get(path)).await.unwrap().status, status, "{path}");
    }
    // Metrics name the workers: not for a tenant.
    let mut trusted = key("acme");
    trusted.trusted = true;
    let guarded = fixture_with(1, engine_settings(), wanted(with_keys(trusted))).await;
    let mut client = guarded.client().await;
    assert_eq!(client.ask(get("/metrics")).await.unwrap().status, 401);
    assert_eq!(client.ask(showing(get("/metrics"), crate::keys::UMBRA)).await.unwrap().status, 404);
    assert_eq!(client.ask(showing(get("/metrics"), ACME)).await.unwrap().status, 200);
    assert_eq!(client.ask(get("/liveness")).await.unwrap().status, 200);
}

#[tokio::test]
async fn the_version_needs_a_key_where_requests_do() {
    let open = fixture(1).await;
    let answer = open.client().await.ask(get("/version")).await.unwrap();
    assert_eq!((answer.status.as_u16(), &answer.json()["version"]), (200, &env!("CARGO_PKG_VERSION").into()));
    let guarded = fixture_with(1, engine_settings(), with_keys(key("acme"))).await;
    let mut client = guarded.client().await;
    assert_eq!(client.ask(get("/version")).await.unwrap().status, 401);
    assert_eq!(client.ask(showing(get("/version"), ACME)).await.unwrap().status, 200);
}

#[tokio::test]
async fn one_model_is_found_by_its_id_whatever_slashes_it_has() {
    let mut engine = engine_settings();
    engine.model = "org/maitre-sim".to_owned();
    let mut acme = key("acme");
    acme.models = vec!["other".to_owned()];
    let fixture = fixture_with(1, engine, with_keys(acme)).await;
    let mut client = fixture.client().await;
    let umbra = |path: &str| showing(get(path), crate::keys::UMBRA);
    for path in ["/v1/models/org/maitre-sim", "/v1/models/org%2Fmaitre-sim", "/v1/models/org%2fmaitre-sim"] {
        let answer = client.ask(umbra(path)).await.unwrap();
        assert_eq!((answer.status.as_u16(), &answer.json()["id"]), (200, &"org/maitre-sim".into()), "{path}");
        assert_eq!(answer.json()["object"], "model");
    }
    let unknown = client.ask(umbra("/v1/models/gpt-9")).await.unwrap();
    assert_eq!((unknown.status.as_u16(), &unknown.json()["error"]["code"]), (404, &"model_not_found".into()));
    // For a key of other models it does not exist.
    let foreign = client.ask(showing(get("/v1/models/org/maitre-sim"), ACME)).await.unwrap();
    assert_eq!((foreign.status.as_u16(), foreign.text().contains("serves: org")), (404, false));
}

#[tokio::test]
async fn every_spelling_of_a_route_reaches_a_worker() {
    let fixture = fixture(1).await;
    let mut client = fixture.client().await;
    let score = r#"{"model":"maitre-sim","text_1":"a","text_2":["b"]}"#;
    let rerank = r#"{"model":"maitre-sim","query":"a","documents":["b"]}"#;
    for (path, body) in [("/score", score), ("/v1/score", score), ("/rerank", rerank), ("/v1/rerank", rerank)]
    {
        assert_eq!(client.post(path, body).await.status, 200, "{path}");
    }
    // The simulated engine does not have these, and says so itself.
    for path in ["/v2/rerank", "/v1/classify", "/v1/tokenize", "/v1/detokenize"] {
        let answer = client.post(path, rerank).await;
        assert_eq!((answer.status.as_u16(), answer.header("x-maitre-worker").is_empty()), (404, false));
    }
}

#[tokio::test]
async fn tokens_are_counted_by_a_worker_that_can() {
    let fixture = fixture(3).await;
    let mut client = fixture.client().await;
    let counted = client.post(COUNT, MESSAGES).await;
    assert!(counted.json()["input_tokens"].as_u64().unwrap() > 3, "{}", counted.text());
    for engine in &fixture.engines[..2] {
        engine.handle().inject(Injection::always(Fault::Status { status: 404 }));
    }
    for closes in [false, false, false, true, true, true] {
        if closes {
            // The idle connection closes as it is used again.
            fixture.engines[2].handle().inject(Injection::times(Fault::CloseBeforeHeaders, 1));
        }
        let answer = client.post(COUNT, MESSAGES).await;
        assert_eq!(answer.json(), counted.json());
        assert_eq!(answer.header("x-maitre-worker"), format!("http://{}", fixture.engines[2].addr()));
    }
    fixture.engines[2].handle().inject(Injection::always(Fault::Status { status: 405 }));
    let answer = client.post(COUNT, MESSAGES).await;
    let error = &answer.json()["error"];
    assert_eq!((answer.status.as_u16(), &error["type"]), (404, &"not_found_error".into()), "{error}");
    assert!(error["message"].as_str().unwrap().contains(COUNT), "{error}");
    fixture.until_nothing_is_open().await;
    // A bad request has Anthropic's shape, too.
    let bad = client.post(COUNT, r#"{"model":"maitre-sim"}"#).await;
    assert_eq!((bad.status.as_u16(), &bad.json()["type"]), (400, &"error".into()));
}
