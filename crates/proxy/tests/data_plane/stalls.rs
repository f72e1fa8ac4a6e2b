//! Clients that do not read their responses: their requests end, and give back their places at workers.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::fixture::{Fixture, chat, engine_settings, fixture_with, settings, until_counted, within};
use crate::misbehaviour::{endless_stream, router_in_front_of};

const CHAT: &str = "/v1/chat/completions";
const STALLED: &str = r#"maitre_requests_total{route="chat",outcome="client_stalled",code=""}"#;

/// An HTTP/2 connection that takes this many bytes of each response before it has read them.
async fn connect(fixture: &Fixture, window: u32) -> (SendRequest<Full<Bytes>>, JoinSet<()>) {
    let stream = TcpStream::connect(fixture.router.listen()).await.unwrap();
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(window);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    (sender, driver)
}

fn ask(tokens: u32) -> http::Request<Full<Bytes>> {
    let body = chat(tokens, true).replace("\"max_tokens\"", "\"ignore_eos\":true,\"max_tokens\"");
    http::Request::post(format!("http://maitre{CHAT}")).body(Full::new(Bytes::from(body))).unwrap()
}

#[tokio::test]
async fn streams_that_get_no_window_are_reset_and_give_their_places_back() {
    let mut settings = settings();
    settings.timeouts.client_stalled = Duration::from_millis(500);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let (mut sender, _driver) = connect(&fixture, 0).await;
    let mut unread = Vec::new();
    for _ in 0..100 {
        unread.push(within(sender.send_request(ask(500))).await.unwrap());
    }
    until_counted(&fixture.router, STALLED, 100.0).await;
    fixture.until_nothing_is_open().await;
    for response in unread {
        assert!(within(response.into_body().collect()).await.is_err(), "reset");
    }
    // Others are served all the while, also on the same connection.
    assert_eq!(within(sender.send_request(ask(1))).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_slow_client_that_reads_gets_everything() {
    let mut settings = settings();
    settings.timeouts.client_stalled = Duration::from_secs(2);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let (mut sender, _driver) = connect(&fixture, 1_000).await;
    let mut body = within(sender.send_request(ask(800))).await.unwrap().into_body();
    let (mut last, mut unpaid, mut pauses) = (Bytes::new(), 0, 0);
    while let Some(frame) = within(body.frame()).await {
        last = frame.unwrap().into_data().unwrap_or(last);
        unpaid += last.len();
        // The pace of the client: far longer than the limit in all, and far shorter for each chunk.
        if unpaid > 1_000 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            (unpaid, pauses) = (0, pauses + 1);
        }
    }
    assert!(last.ends_with(b"\n\n"), "{last:?}");
    assert!(pauses > 100, "{pauses} pauses are no longer than the limit");
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn an_http1_client_that_stops_reading_gives_its_place_back() {
    let mut settings = settings();
    settings.timeouts.client_stalled = Duration::from_secs(1);
    let router = router_in_front_of(endless_stream, settings).await;
    let mut socket = TcpStream::connect(router.listen()).await.unwrap();
    let body = chat(1, true);
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: m\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    within(socket.write_all(head.as_bytes())).await.unwrap();
    until_counted(&router, STALLED, 1.0).await;
    assert_eq!(router.look(|brain| brain.open()), 0);
}
