//! Workers and clients that do the unusual, within the rules of HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use maitre_fleet::HealthState;
use maitre_proxy::{Router, RouterSettings, Stopped};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::fixture::{ANYWHERE, Client, chat, engine_settings, fixture_with, metric, settings, within};

/// A worker's side of one connection: reads a head, and only a head.
async fn head_of(stream: &mut TcpStream) -> Option<String> {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !seen.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).await.ok()? == 0 {
            return None;
        }
        seen.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&seen).into_owned())
}

/// Replies with an endless stream, as fast as it is read.
pub(crate) async fn endless_stream(mut stream: TcpStream) {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head).await.unwrap();
    while stream.write_all(b"a\r\ndata: {}\n\n\r\n").await.is_ok() {}
}

/// A router in front of one worker that answers GETs with 404, and hands POSTs to `reply` once it has read their heads.
pub(crate) async fn router_in_front_of<F, R>(reply: F, settings: RouterSettings) -> Router
where
    F: Fn(TcpStream) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    router_in_front_of_posts(move |stream, _| reply(stream), settings).await
}

/// The same; `reply` gets the heads, too.
pub(crate) async fn router_in_front_of_posts<F, R>(reply: F, mut settings: RouterSettings) -> Router
where
    F: Fn(TcpStream, String) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let addr: SocketAddr = listener.local_addr().unwrap();
    let mut worker = JoinSet::new();
    worker.spawn(async move {
        let mut served = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let reply = reply.clone();
            served.spawn(async move {
                while let Some(head) = head_of(&mut stream).await {
                    if head.starts_with("POST") {
                        return reply(stream, head).await;
                    }
                    let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
                }
            });
        }
    });
    // The worker runs as long as the test.
    worker.detach_all();
    settings.workers = vec![format!("http://{addr}").parse().unwrap()];
    let router = Router::start(settings).await.unwrap();
    let ready = |it: &maitre_fleet::Worker| it.health.state() == HealthState::Ready;
    within(router.until(|brain| brain.fleet().workers().all(ready))).await;
    router
}

fn large() -> String {
    chat(1, false).replace("a table for two", &"x".repeat(14 << 20))
}

const TOO_LARGE: &[u8] =
    b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 9\r\nconnection: close\r\n\r\ntoo large";

#[tokio::test]
async fn a_response_is_read_while_the_body_is_still_being_sent() {
    let reply = |mut stream: TcpStream| async move {
        stream.write_all(TOO_LARGE).await.unwrap();
        std::future::pending::<()>().await;
    };
    let router = router_in_front_of(reply, settings()).await;
    let answer = Client::connect(router.listen()).await.post("/v1/chat/completions", large()).await;
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (413, "too large"));
}

#[tokio::test]
async fn a_worker_that_answers_before_it_has_read_the_body_gets_the_rest_of_it() {
    let body = large();
    let length = body.len();
    let reply = move |mut stream: TcpStream| async move {
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
        stream.write_all(head).await.unwrap();
        let mut read = vec![0; length];
        if stream.read_exact(&mut read).await.is_ok() {
            stream.write_all(b"data: [DONE]\n\n").await.unwrap();
        }
    };
    let mut settings = settings();
    settings.timeouts.first_token = Duration::from_secs(5);
    let router = router_in_front_of(reply, settings).await;
    let answer = Client::connect(router.listen()).await.post("/v1/chat/completions", body).await;
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, "data: [DONE]\n\n"));
}

#[tokio::test]
async fn a_worker_that_refuses_before_reading_the_body_is_not_broken() {
    let reply = |mut stream: TcpStream| async move { stream.write_all(TOO_LARGE).await.unwrap() };
    let router = router_in_front_of(reply, settings()).await;
    let answer = Client::connect(router.listen()).await.post("/v1/chat/completions", large()).await;
    let state = router.look(|brain| brain.fleet().workers().next().unwrap().health.state());
    assert_eq!((answer.status.as_u16(), state), (413, HealthState::Ready), "{}", answer.text());
}

#[tokio::test]
async fn a_silent_connection_does_not_delay_the_drain() {
    let fixture = fixture_with(1, engine_settings(), settings()).await;
    let _silent = TcpStream::connect(fixture.router.listen()).await.unwrap();
    // Its thread has it once a later connection is answered.
    fixture.client().await.post("/v1/chat/completions", chat(1, false)).await;
    assert_eq!(within(fixture.router.stop()).await, Stopped::Drained);
}

#[tokio::test]
async fn small_bodies_without_a_length_reserve_only_what_they_need() {
    let mut settings = settings();
    settings.limits.body_bytes = 1 << 20;
    settings.limits.bodies_bytes = 4 << 20;
    // Answers no request before all eight have arrived.
    let all = std::sync::Arc::new(tokio::sync::Barrier::new(8));
    let reply = move |mut stream: TcpStream| {
        let all = all.clone();
        async move {
            all.wait().await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
        }
    };
    let router = router_in_front_of(reply, settings).await;
    let listen = router.listen();
    let mut asks = JoinSet::new();
    for _ in 0..8 {
        asks.spawn(async move {
            let mut socket = TcpStream::connect(listen).await.unwrap();
            let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: m\r\ntransfer-encoding: chunked\r\n\r\n";
            let body = chat(1, false);
            let text = format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
            socket.write_all(text.as_bytes()).await.unwrap();
            let mut status = [0; 12];
            socket.read_exact(&mut status).await.unwrap();
            String::from_utf8_lossy(&status).into_owned()
        });
    }
    let answers = within(asks.join_all()).await;
    assert_eq!(answers, ["HTTP/1.1 200"; 8]);
}

#[tokio::test]
async fn a_stream_that_lost_only_its_last_frame_is_complete() {
    let reply = |mut stream: TcpStream| async move {
        let mut body = [0; 4096];
        let _ = stream.read(&mut body).await;
        let head =
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        stream.write_all(head).await.unwrap();
        stream.write_all(b"a\r\ndata: {}\n\n\r\n").await.unwrap();
        stream.write_all(b"e\r\ndata: [DONE]\n\n\r\n").await.unwrap();
    };
    let router = router_in_front_of(reply, settings()).await;
    let answer = Client::connect(router.listen()).await.post("/v1/chat/completions", chat(1, true)).await;
    assert_eq!(answer.text(), "data: {}\n\ndata: [DONE]\n\n");
    let answered = r#"maitre_requests_total{route="chat",outcome="answered",code=""}"#;
    assert_eq!(metric(&router.metrics(), answered), 1.0);
}

#[tokio::test]
async fn the_total_timeout_applies_to_slow_readers_too() {
    let mut settings = settings();
    settings.timeouts.total = Duration::from_millis(300);
    let router = router_in_front_of(endless_stream, settings).await;
    let answer = Client::connect(router.listen()).await.post("/v1/chat/completions", chat(1, true)).await;
    assert!(answer.text().contains("\"timed_out\""), "{} bytes", answer.body.len());
}

#[tokio::test]
async fn a_client_that_opens_no_http2_window_is_cut_off_too() {
    let mut settings = settings();
    settings.timeouts.total = Duration::from_millis(300);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let stream = TcpStream::connect(fixture.router.listen()).await.unwrap();
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(100);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    let request = http::Request::post("http://maitre/v1/chat/completions");
    let request = request.body(Full::new(Bytes::from(chat(500, true)))).unwrap();
    // Held, and never read.
    let _response = within(sender.send_request(request)).await.unwrap();
    fixture.until_nothing_is_open().await;
}

/// Answers each request twice, the second time a moment later, with the number of the request in each.
async fn answer_twice(mut stream: TcpStream) {
    let mut body = vec![0; chat(1, false).len()];
    loop {
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let text = String::from_utf8_lossy(&body);
        let number = text.split("number ").nth(1).map_or("none", |it| &it[..4]).to_owned();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n{number}");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
        let _ = stream.write_all(answer.as_bytes()).await;
        if head_of(&mut stream).await.is_none() {
            return;
        }
    }
}

#[tokio::test]
async fn a_surplus_answer_reaches_nobody() {
    let router = router_in_front_of(answer_twice, settings()).await;
    let mut client = Client::connect(router.listen()).await;
    for number in 1_000..1_100 {
        let text = format!("number {number}");
        let body = chat(1, false).replace("a table for two", &format!("{text:15}"));
        let answer = client.post("/v1/chat/completions", body).await;
        // The worker may be found broken, but its answers are never mixed up.
        if answer.status == 200 {
            assert_eq!(answer.text(), number.to_string());
        }
    }
}

/// Everything arrives at once, so that the body breaks before anything of it was sent.
#[tokio::test]
async fn a_response_that_breaks_off_reaches_the_client_as_far_as_it_goes() {
    let reply = |mut stream: TcpStream| async move {
        let broken = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nokgarbage\r\n0\r\n\r\n";
        stream.write_all(broken).await.unwrap();
    };
    let router = router_in_front_of(reply, settings()).await;
    let mut socket = TcpStream::connect(router.listen()).await.unwrap();
    let body = chat(1, false);
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: m\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.unwrap();
    let mut seen = Vec::new();
    let _ = within(socket.read_to_end(&mut seen)).await;
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.starts_with("HTTP/1.1 200 OK") && seen.ends_with("2\r\nok\r\n"), "{seen}");
}

/// Reads a POST with its body.
async fn post_of(stream: &mut TcpStream, head: Option<String>) -> Option<()> {
    let head = match head {
        Some(head) => head,
        None => head_of(stream).await?,
    };
    let head = head.to_lowercase();
    let length = head.split("content-length: ").nth(1)?.lines().next()?.parse().ok()?;
    stream.read_exact(&mut vec![0; length]).await.ok().map(drop)
}

/// An idle connection that closes as it is used again has not read the request, as far as anyone can tell.
#[tokio::test]
async fn a_request_on_a_reused_connection_is_sent_again_only_if_nothing_came_back() {
    // What the worker sends before it closes, the setting, and then how often it gets the request, and the status.
    for (last_words, failovers_max, expected) in [
        ("", 1, (2, 200)),
        ("HTTP/1.1 100 Continue\r\n\r\n", 1, (1, 502)),
        ("HTTP/1.1 200 OK\r\n", 1, (1, 502)),
        ("HTTP/1.1 200 OK\r\n\r\n", 0, (1, 200)),
        ("", 0, (1, 502)),
    ] {
        let posts = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = posts.clone();
        let reply = move |mut stream: TcpStream, head: String| {
            let count = count.clone();
            async move {
                let mut head = Some(head);
                while post_of(&mut stream, head.take()).await.is_some() {
                    if count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1 {
                        let _ = stream.write_all(last_words.as_bytes()).await;
                        return;
                    }
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
                }
            }
        };
        let mut settings = settings();
        settings.brain.failovers_max = failovers_max;
        let router = router_in_front_of_posts(reply, settings).await;
        let mut client = Client::connect(router.listen()).await;
        assert_eq!(client.post("/v1/chat/completions", chat(1, false)).await.status, 200);
        let status = client.post("/v1/chat/completions", chat(1, false)).await.status.as_u16();
        let again = posts.load(std::sync::atomic::Ordering::Relaxed) - 1;
        assert_eq!((again, status), expected, "{last_words:?}, at most {failovers_max} failovers");
    }
}

/// A response that lacks some of its announced bytes has no room for the event that reports it.
#[tokio::test]
async fn a_stream_with_a_length_that_breaks_off_says_so_in_a_whole_event() {
    let reply = |mut stream: TcpStream| async move {
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 40\r\n\r\ndata: {}\n\n";
        stream.write_all(head.as_bytes()).await.unwrap();
    };
    let router = router_in_front_of(reply, settings()).await;
    let answer = Client::connect(router.listen()).await.post("/v1/chat/completions", chat(1, true)).await;
    let text = answer.text();
    let last = text.strip_prefix("data: {}\n\ndata: ").unwrap_or_else(|| panic!("{text}"));
    let event: serde_json::Value = serde_json::from_str(last.trim_end()).unwrap();
    assert_eq!((event["error"]["code"].as_str(), answer.broke), (Some("worker_failed"), false));
}

#[tokio::test]
async fn comments_do_not_keep_a_stream_alive() {
    let reply = |mut stream: TcpStream| async move {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {}\n\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        while stream.write_all(b": ping\n\n").await.is_ok() {}
    };
    for (total, inter_token, expected) in [(300, 60_000, "timed_out"), (60_000, 300, "worker_stalled")] {
        let mut settings = settings();
        settings.timeouts.total = Duration::from_millis(total);
        settings.timeouts.inter_token = Duration::from_millis(inter_token);
        let router = router_in_front_of(reply, settings).await;
        let mut client = Client::connect(router.listen()).await;
        let answer = within(client.post("/v1/chat/completions", chat(1, true))).await;
        assert!(answer.text().contains(expected), "{expected}: {} bytes", answer.body.len());
    }
}
