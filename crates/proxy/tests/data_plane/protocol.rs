//! What a proxy must do to messages, and what it must not.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::fixture::{
    Client, chat, engine_settings, fixture, fixture_with, get, metric, post, settings, within,
};
use crate::misbehaviour::router_in_front_of_posts;

#[tokio::test]
async fn responses_name_their_worker_and_why_unless_configured_otherwise() {
    let fixture = fixture(2).await;
    let answer = fixture.client().await.post("/v1/chat/completions", chat(2, false)).await;
    let workers: Vec<String> = fixture.engines.iter().map(|it| format!("http://{}", it.addr())).collect();
    assert!(workers.contains(&answer.header("x-maitre-worker").to_owned()), "{answer:?}");
    assert_eq!(answer.header("x-maitre-why"), "turn");
    assert_eq!(answer.header("x-request-id").len(), 16);

    let mut quiet = settings();
    quiet.explain = false;
    let quiet = fixture_with(1, engine_settings(), quiet).await;
    let answer = quiet.client().await.post("/v1/chat/completions", chat(2, false)).await;
    assert_eq!((answer.header("x-maitre-worker"), answer.header("x-maitre-why")), ("", ""));
}

#[tokio::test]
async fn a_request_id_travels_to_the_engine_and_back() {
    let fixture = fixture(1).await;
    let mut request = post("/v1/chat/completions", chat(2, false));
    request.headers_mut().insert("x-request-id", "abc-123".parse().unwrap());
    let answer = fixture.client().await.ask(request).await.unwrap();
    assert_eq!(answer.header("x-request-id"), "abc-123");
    assert_eq!(answer.json()["id"], "chatcmpl-abc-123");
}

#[tokio::test]
async fn every_route_of_the_family_is_answered() {
    let fixture = fixture(2).await;
    let mut client = fixture.client().await;
    let rows = [
        ("/v1/chat/completions", chat(2, false)),
        ("/v1/completions", r#"{"model":"maitre-sim","prompt":"x","max_tokens":2}"#.to_owned()),
        ("/v1/responses", r#"{"model":"maitre-sim","input":"x","max_output_tokens":2}"#.to_owned()),
        (
            "/v1/messages",
            r#"{"model":"maitre-sim","max_tokens":2,"messages":[{"role":"user","content":"x"}]}"#.to_owned(),
        ),
        ("/v1/embeddings", r#"{"model":"maitre-sim","input":"x"}"#.to_owned()),
        ("/v1/rerank", r#"{"model":"maitre-sim","query":"x","documents":["y","z"]}"#.to_owned()),
        ("/rerank", r#"{"query":"x","documents":["y","z"]}"#.to_owned()),
        ("/score", r#"{"model":"maitre-sim","text_1":"x","text_2":"y"}"#.to_owned()),
        ("/classify", r#"{"model":"maitre-sim","input":"x"}"#.to_owned()),
        ("/tokenize", r#"{"prompt":"x"}"#.to_owned()),
        ("/detokenize", r#"{"tokens":[97]}"#.to_owned()),
        ("/generate", r#"{"text":"x","sampling_params":{"max_new_tokens":2}}"#.to_owned()),
    ];
    for (path, body) in rows {
        let answer = client.post(path, body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    let models = client.ask(get("/v1/models")).await.unwrap().json();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"].as_array().unwrap().len(), 1, "{models}");
    assert_eq!(models["data"][0]["id"], "maitre-sim");
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn streams_of_each_api_pass_whole() {
    let fixture = fixture(1).await;
    let mut client = fixture.client().await;
    let rows = [
        ("/v1/chat/completions", chat(5, true), "data: [DONE]\n\n"),
        ("/v1/completions", r#"{"model":"maitre-sim","prompt":"x","max_tokens":5,"stream":true}"#.to_owned(), "data: [DONE]\n\n"),
        ("/v1/responses", r#"{"model":"maitre-sim","input":"x","max_output_tokens":5,"stream":true}"#.to_owned(), "event: response.incomplete"),
        ("/v1/messages", r#"{"model":"maitre-sim","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"x"}]}"#.to_owned(), "message_stop"),
    ];
    for (path, body, end) in rows {
        let answer = client.post(path, body).await;
        let text = answer.text();
        assert!(!answer.broke && text.contains(end) && !text.contains("worker_failed"), "{path}: {text}");
    }
    let page = fixture.router.metrics();
    let answered = r#"maitre_requests_total{route="responses",outcome="answered",code=""}"#;
    assert_eq!(metric(&page, answered), 1.0);
}

#[tokio::test]
async fn http2_without_tls_carries_many_requests_on_one_connection() {
    let fixture = fixture(2).await;
    let stream = TcpStream::connect(fixture.router.listen()).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { drop(connection.await) });
    let mut answers = tokio::task::JoinSet::new();
    for number in 0..50 {
        let mut sender = sender.clone();
        answers.spawn(async move {
            let request = Request::post("http://maitre/v1/chat/completions");
            let request = request.body(Full::new(Bytes::from(chat(8, number % 2 == 0)))).unwrap();
            let (head, body) = sender.send_request(request).await.unwrap().into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            (head.status.as_u16(), body.len())
        });
    }
    for (status, length) in within(answers.join_all()).await {
        assert_eq!(status, 200);
        assert!(length > 100);
    }
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn a_response_to_head_has_no_body_in_http2_either() {
    let fixture = fixture(1).await;
    let stream = TcpStream::connect(fixture.router.listen()).await.unwrap();
    let (mut sender, connection) =
        http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { drop(connection.await) });
    for (path, status) in [("/health", 200), ("/v1/models", 405), ("/nothing", 404)] {
        let request = Request::head(format!("http://maitre{path}")).body(Full::default()).unwrap();
        let (head, body) = within(sender.send_request(request)).await.unwrap().into_parts();
        let body = within(body.collect()).await.unwrap().to_bytes();
        assert_eq!((head.status.as_u16(), body.len()), (status, 0), "{path}");
        assert_ne!(head.headers["content-length"], "0", "{path}: as long as with GET");
    }
}

/// HTTP/2 sends each cookie as a header of its own, and engines read the first.
#[tokio::test]
async fn the_worker_gets_all_cookies_in_one_header() {
    let reply = |mut stream: TcpStream, head: String| async move {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}", head.len());
        stream.write_all(answer.as_bytes()).await.unwrap();
    };
    let router = router_in_front_of_posts(reply, settings()).await;
    let stream = TcpStream::connect(router.listen()).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { drop(connection.await) });
    let request = Request::post("http://maitre/v1/chat/completions");
    let request = request.header("cookie", "a=1").header("x-a", "b").header("cookie", "c=2");
    let request = request.body(Full::new(Bytes::from(chat(1, false)))).unwrap();
    let body = within(sender.send_request(request)).await.unwrap().into_body();
    let head = within(body.collect()).await.unwrap().to_bytes();
    let head = String::from_utf8_lossy(&head);
    assert!(head.contains("\r\ncookie: a=1; c=2\r\n") && head.matches("cookie").count() == 1, "{head}");
}

#[tokio::test]
async fn connections_to_workers_are_kept_and_used_again() {
    let fixture = fixture(1).await;
    let mut client = fixture.client().await;
    for number in 0..200 {
        let answer = client.post("/v1/chat/completions", chat(3, number % 2 == 0)).await;
        assert_eq!(answer.status, 200);
    }
    // One for the requests, one for the probes.
    let open = fixture.engines[0].handle().stats().connections_open;
    assert!(open <= 2, "{open} connections for one request at a time");
}

#[tokio::test]
async fn the_admin_listener_serves_health_and_metrics() {
    let fixture = fixture(2).await;
    fixture.client().await.post("/v1/chat/completions", chat(4, true)).await;
    fixture.until_nothing_is_open().await;
    let mut admin = Client::connect(fixture.router.admin()).await;
    assert_eq!(admin.ask(get("/readyz")).await.unwrap().text(), "ready\n");
    assert_eq!(admin.ask(get("/nothing")).await.unwrap().status, 404);
    let page = admin.ask(get("/metrics")).await.unwrap().text();
    assert_eq!(metric(&page, r#"maitre_picks_total{why="turn"}"#), 1.0);
    assert_eq!(metric(&page, "maitre_first_token_seconds_count"), 1.0);
    let worker = format!("http://{}", fixture.engines[0].addr());
    assert_eq!(metric(&page, &format!(r#"maitre_worker_state{{worker="{worker}",state="ready"}}"#)), 1.0);
    assert_eq!(metric(&page, &format!(r#"maitre_worker_requests{{worker="{worker}"}}"#)), 0.0);
}

#[tokio::test]
async fn engine_metrics_are_scraped() {
    let fixture = fixture(1).await;
    let reported = |it: &maitre_fleet::Worker| {
        it.report.is_some_and(|it| {
            it.load.running == Some(0) && it.load.blocks.is_some() && it.load.block_size == Some(16)
        })
    };
    within(fixture.router.until(|brain| brain.fleet().workers().all(reported))).await;
}

#[tokio::test]
async fn bytes_per_token_are_learned_from_usage() {
    let fixture = fixture(1).await;
    let mut client = fixture.client().await;
    let learned = || fixture.router.look(|brain| brain.fleet().estimate(brain.fleet().model("maitre-sim")));
    let before = learned();
    for _ in 0..20 {
        client.post("/v1/chat/completions", chat(3, false)).await;
    }
    fixture.until_nothing_is_open().await;
    let after = learned();
    assert!(after.answer_tokens < before.answer_tokens, "answers of 3 tokens teach: {after:?}");
    assert_ne!(after.bytes_per_token, before.bytes_per_token);
}

#[tokio::test]
async fn on_stop_streams_finish_and_new_connections_are_refused() {
    let mut slow = engine_settings();
    slow.engine.profile = maitre_sim::profile::Profile::named("h200-8b").unwrap();
    let fixture = fixture_with(1, slow, settings()).await;
    let mut client = fixture.client().await;
    let body = r#"{"model":"maitre-sim","prompt":"x","max_tokens":60,"ignore_eos":true,"stream":true}"#;
    let response = client.send(post("/v1/completions", body)).await.unwrap();
    let listen = fixture.router.listen();
    let (stopped, (body, broke)) =
        within(async { tokio::join!(fixture.router.stop(), crate::fixture::read(response.into_body())) })
            .await;
    assert_eq!(stopped, maitre_proxy::Stopped::Drained);
    assert!(!broke && body.ends_with(b"data: [DONE]\n\n"), "{}", String::from_utf8_lossy(&body));
    assert!(TcpStream::connect(listen).await.is_err(), "the listener is closed");
}

/// Such a client would have to answer a ping first.
#[tokio::test]
async fn on_stop_an_http2_client_that_has_disappeared_is_not_waited_for() {
    let fixture = fixture(1).await;
    let mut socket = TcpStream::connect(fixture.router.listen()).await.unwrap();
    let no_settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let preface = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &no_settings].concat();
    within(socket.write_all(&preface)).await.unwrap();
    within(socket.read_exact(&mut [0; 9])).await.unwrap();
    assert_eq!(within(fixture.router.stop()).await, maitre_proxy::Stopped::Drained);
}
