//! Cross-origin requests: off by default; with a list, for the listed origins alone.

use http::{Method, Request};
use http_body_util::Full;
use maitre_proxy::RouterSettings;

use crate::fixture::{TestResponse, chat, engine_settings, fixture_with, settings};
use crate::keys::{key, with_keys};

const CHAT: &str = "/v1/chat/completions";
const PAGE: &str = "https://app.example.com";

async fn ask(settings: RouterSettings, method: Method, headers: &[(&str, &str)]) -> TestResponse {
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let mut request = Request::builder().method(method.clone()).uri(CHAT).header("host", "maitre");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = if method == Method::POST { chat(1, false) } else { String::new() };
    fixture.client().await.ask(request.body(Full::from(body)).unwrap()).await.unwrap()
}

fn preflight(origin: &str) -> [(&str, &str); 3] {
    let names = "authorization,content-type";
    [("origin", origin), ("access-control-request-method", "POST"), ("access-control-request-headers", names)]
}

fn listing(settings: RouterSettings, origins: &[&str]) -> RouterSettings {
    RouterSettings { cors_origins: origins.iter().map(|&it| it.to_owned()).collect(), ..settings }
}

#[tokio::test]
async fn without_a_list_nothing_is_said_about_origins() {
    let answer = ask(settings(), Method::OPTIONS, &preflight(PAGE)).await;
    assert_eq!((answer.status.as_u16(), answer.header("access-control-allow-origin")), (405, ""));
    let answer = ask(settings(), Method::POST, &[("origin", PAGE)]).await;
    assert_eq!((answer.status.as_u16(), answer.header("access-control-allow-origin")), (200, ""));
}

#[tokio::test]
async fn the_router_answers_preflights_without_a_key_and_only_listed_origins_may_go_on() {
    let listed = listing(with_keys(key("acme")), &["http://localhost:3000", PAGE]);
    let answer = ask(listed.clone(), Method::OPTIONS, &preflight(PAGE)).await;
    assert_eq!(answer.status, 204, "{}", answer.text());
    let told =
        ["origin", "methods", "headers"].map(|it| answer.header(&format!("access-control-allow-{it}")));
    assert_eq!(told, [PAGE, "GET, POST", "authorization,content-type"]);
    assert_eq!(answer.header("access-control-max-age"), "600");
    let vary: Vec<_> = answer.headers.get_all("vary").iter().collect();
    assert_eq!(vary, ["access-control-request-headers", "origin"]);
    for origin in ["https://app.example.com.evil.org", "http://app.example.com", "null"] {
        let answer = ask(listed.clone(), Method::OPTIONS, &preflight(origin)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("access-control-allow-origin")),
            (204, ""),
            "{origin}"
        );
        assert_eq!(answer.header("access-control-allow-headers"), "");
    }
    // Options of something else are not a preflight.
    assert_eq!(ask(listed, Method::OPTIONS, &[("origin", PAGE)]).await.status, 401);
}

#[tokio::test]
async fn a_page_of_a_listed_origin_reads_answers_and_refusals() {
    let listed = listing(settings(), &[PAGE]);
    let answer = ask(listed.clone(), Method::POST, &[("origin", PAGE)]).await;
    assert_eq!((answer.status.as_u16(), answer.header("access-control-allow-origin")), (200, PAGE));
    assert_eq!((answer.header("access-control-expose-headers"), answer.header("vary")), ("*", "origin"));
    let refused = ask(listing(with_keys(key("acme")), &[PAGE]), Method::POST, &[("origin", PAGE)]).await;
    assert_eq!((refused.status.as_u16(), refused.header("access-control-allow-origin")), (401, PAGE));
    let other = ask(listed, Method::POST, &[("origin", "https://other.example.com")]).await;
    assert_eq!((other.status.as_u16(), other.header("access-control-allow-origin")), (200, ""));
    let any = ask(listing(settings(), &["*"]), Method::POST, &[("origin", PAGE)]).await;
    assert_eq!((any.header("access-control-allow-origin"), any.header("vary")), ("*", ""));
}

#[tokio::test]
async fn a_page_reads_streams_and_errors_of_every_kind_and_never_with_credentials() {
    let fixture = fixture_with(1, engine_settings(), listing(settings(), &[PAGE])).await;
    let mut client = fixture.client().await;
    let unknown = chat(1, false).replace("maitre-sim", "gpt-5");
    for (path, body, status, kind) in [
        (CHAT, chat(3, true), 200, "text/event-stream"),
        (CHAT, unknown, 404, "application/json"),
        (CHAT, "{".to_owned(), 400, "application/json"),
        ("/v1/nothing", String::new(), 404, "application/json"),
    ] {
        let request = Request::post(path).header("host", "maitre").header("origin", PAGE);
        let answer = client.ask(request.body(Full::from(body)).unwrap()).await.unwrap();
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.header("content-type").starts_with(kind), "{:?}", answer.headers);
        let told = ["allow-origin", "expose-headers", "allow-credentials"];
        let told = told.map(|it| answer.header(&format!("access-control-{it}")));
        // Without credentials, `*` stands for every header: x-maitre-worker, retry-after and x-request-id among them.
        assert_eq!(told, [PAGE, "*", ""], "{path}");
        assert!(!answer.header("x-request-id").is_empty(), "{:?}", answer.headers);
    }
}
