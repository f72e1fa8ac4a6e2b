//! Every bad request gets a precise error, in the shape of its API.

use std::time::Duration;

use http::{Method, Request};
use http_body_util::Full;

use crate::fixture::{
    Client, TestResponse, chat, engine_settings, fixture, fixture_with, get, post, settings, within,
};
use maitre_proxy::Router;

#[track_caller]
fn check(answer: &TestResponse, status: u16, code: &str, part: &str) {
    let json = answer.json();
    assert_eq!((answer.status.as_u16(), json["error"]["code"].as_str()), (status, Some(code)), "{json}");
    let message = json["error"]["message"].as_str().unwrap();
    assert!(message.contains(part), "{message:?} does not say {part:?}");
}

#[tokio::test]
async fn bad_bodies_get_an_error_that_says_what_is_wrong() {
    let fixture = fixture(1).await;
    let mut client = fixture.client().await;
    let rows = [
        ("{\"model\": \"maitre-sim\",\n \"messages\" [", "invalid_json", "line 2"),
        ("", "invalid_json", "expected"),
        ("[1,2]", "not_an_object", "object"),
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "missing_field", "model"),
        ("{\"model\":\"maitre-sim\"}", "missing_field", "messages"),
        ("{\"model\":\"maitre-sim\",\"messages\":[]}", "empty_field", "messages"),
        ("{\"model\":\"maitre-sim\",\"messages\":\"hi\"}", "wrong_type", "messages"),
        ("{\"model\":7,\"messages\":[{}]}", "wrong_type", "model"),
        ("{\"model\":\"maitre-sim\",\"stream\":\"yes\",\"messages\":[{}]}", "wrong_type", "stream"),
    ];
    for (body, code, part) in rows {
        let answer = client.post("/v1/chat/completions", body).await;
        check(&answer, 400, code, part);
    }
    let answer = client.post("/v1/chat/completions", b"{\"model\":\"\xff\"}".to_vec()).await;
    check(&answer, 400, "invalid_utf8", "UTF-8");
    let deep = format!("{{\"model\":\"m\",\"messages\":{}", "[".repeat(100_000));
    check(&client.post("/v1/chat/completions", deep).await, 400, "nested_too_deep", "levels");
    assert_eq!(fixture.engines[0].handle().stats().engine.running, 0);
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn errors_about_unknown_models_and_paths_list_the_known_ones() {
    let fixture = fixture(2).await;
    let mut client = fixture.client().await;
    let body = chat(1, false).replace("maitre-sim", "gpt-9");
    check(&client.post("/v1/chat/completions", body).await, 404, "model_not_found", "maitre-sim");
    let endless = chat(1, false).replace("maitre-sim", &"m".repeat(1_000_000));
    let answer = client.post("/v1/chat/completions", endless).await;
    check(&answer, 404, "model_not_found", "maitre-sim");
    assert!(answer.body.len() < 1_000, "a long name is not said back in full");
    check(&client.post("/v1/chat/completion", "{}").await, 404, "unknown_path", "/v1/chat/completions");
    let wrong = client.ask(get("/v1/chat/completions")).await.unwrap();
    check(&wrong, 405, "wrong_method", "POST");
    assert_eq!((wrong.header("allow"), wrong.header("x-request-id").len()), ("POST", 16));
    check(&client.ask(get("/metrics")).await.unwrap(), 404, "unknown_path", "not served here");
    check(&client.post("/v1/models", "{}").await, 405, "wrong_method", "GET");
}

#[tokio::test]
async fn a_path_is_forwarded_only_if_the_operator_allows_it() {
    let mut settings = settings();
    settings.passthrough = vec!["/version".to_owned(), "/sim/*".to_owned()];
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let mut client = fixture.client().await;
    let answer = client.ask(get("/version?x=1")).await.unwrap();
    assert_eq!(answer.status, 200);
    assert!(answer.json()["version"].is_string());
    check(&client.ask(get("/load")).await.unwrap(), 404, "unknown_path", "/load");
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_with_and_without_a_length() {
    let mut settings = settings();
    settings.limits.body_bytes = 10_000;
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let large = format!("{{\"model\":\"maitre-sim\",\"prompt\":\"{}\"}}", "x".repeat(20_000));
    let answer = fixture.client().await.post("/v1/completions", large.clone()).await;
    check(&answer, 413, "body_too_large", "10000");

    let mut raw = tokio::net::TcpStream::connect(fixture.router.listen()).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: m\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    raw.write_all(format!("{head}{chunk}").as_bytes()).await.unwrap();
    let mut seen = [0; 12];
    within(raw.read_exact(&mut seen)).await.unwrap();
    assert_eq!(&seen, b"HTTP/1.1 413");
}

#[tokio::test]
async fn bodies_that_exceed_the_memory_together_get_retry_after() {
    let mut settings = settings();
    settings.limits.bodies_bytes = 10_000;
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let large =
        format!("{{\"model\":\"maitre-sim\",\"prompt\":\"{}\",\"max_tokens\":1}}", "x".repeat(20_000));
    let answer = fixture.client().await.post("/v1/completions", large).await;
    check(&answer, 503, "too_busy", "try again");
    assert_eq!(answer.header("retry-after"), "1");
    let answer = fixture.client().await.post("/v1/chat/completions", chat(1, false)).await;
    assert_eq!(answer.status, 200, "room that was refused is not kept");
}

#[tokio::test]
async fn a_body_that_never_arrives_and_a_compressed_one_are_refused() {
    let mut settings = settings();
    settings.timeouts.client_body = Duration::from_millis(100);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let packed = Request::builder().method(Method::POST).uri("/v1/completions").header("host", "m");
    let packed = packed.header("content-encoding", "gzip").body(Full::from("x")).unwrap();
    check(&fixture.client().await.ask(packed).await.unwrap(), 415, "encoded_body", "gzip");

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut raw = tokio::net::TcpStream::connect(fixture.router.listen()).await.unwrap();
    raw.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: m\r\ncontent-length: 10\r\n\r\n{").await.unwrap();
    let mut seen = [0; 12];
    within(raw.read_exact(&mut seen)).await.unwrap();
    assert_eq!(&seen, b"HTTP/1.1 408");
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn no_worker_at_all_is_a_503_with_retry_after() {
    let router = Router::start(settings()).await.unwrap();
    let mut client = Client::connect(router.listen()).await;
    let answer = client.post("/v1/chat/completions", chat(1, false)).await;
    check(&answer, 503, "no_worker", "try again");
    assert_eq!(answer.header("retry-after"), "1");
    let mut admin = Client::connect(router.admin()).await;
    assert_eq!(admin.ask(get("/readyz")).await.unwrap().status, 503);
    assert_eq!(admin.ask(get("/healthz")).await.unwrap().status, 200);
}

#[tokio::test]
async fn anthropic_clients_get_anthropic_errors() {
    let fixture = fixture(1).await;
    let answer = fixture.client().await.post("/v1/messages", "{\"model\":\"maitre-sim\"").await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["type"], "error");
    assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
}

#[tokio::test]
async fn a_head_over_the_limit_is_a_431_and_others_are_served() {
    let mut settings = settings();
    settings.limits.header_bytes = 16 << 10;
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let mut request = post("/v1/chat/completions", chat(1, false));
    request.headers_mut().insert("x-long", "a".repeat(40_000).parse().unwrap());
    let answer = fixture.client().await.ask(request.clone()).await.unwrap();
    check(&answer, 431, "headers_too_large", "limits.headers");
    assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    let mut lines = post("/v1/chat/completions", chat(1, false));
    for number in 0..200 {
        let name: http::HeaderName = format!("x-{number}").parse().unwrap();
        lines.headers_mut().insert(name, "a".parse().unwrap());
    }
    check(&fixture.client().await.ask(lines).await.unwrap(), 431, "headers_too_large", "128");

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut raw = tokio::net::TcpStream::connect(fixture.router.listen()).await.unwrap();
    raw.write_all(b"GET /v1/models HTTP/1.1\r\nhost: m\r\nno colon\r\n\r\n").await.unwrap();
    let mut seen = String::new();
    within(raw.read_to_string(&mut seen)).await.unwrap();
    assert!(seen.starts_with("HTTP/1.1 400 ") && seen.contains(r#""code":"bad_head""#), "{seen}");

    let stream = tokio::net::TcpStream::connect(fixture.router.listen()).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(hyper_util::rt::TokioExecutor::new(), io).await.unwrap();
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    *request.uri_mut() = "http://maitre/v1/chat/completions".parse().unwrap();
    request.headers_mut().remove("host");
    request.headers_mut().insert("x-long", "a".repeat(20_000).parse().unwrap());
    let (head, body) = within(sender.send_request(request)).await.unwrap().into_parts();
    let (body, broke) = crate::fixture::read(body).await;
    let answer = TestResponse { status: head.status, headers: head.headers, body, broke };
    check(&answer, 431, "headers_too_large", "16384");
    let answer = fixture.client().await.post("/v1/chat/completions", chat(1, false)).await;
    assert_eq!(answer.status, 200);
}
