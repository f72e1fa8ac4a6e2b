//! Clients that disconnect at any moment leave nothing behind.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use maitre_base::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::fixture::{chat, engine_settings, fixture_with, settings, within};

/// How far a client goes before it disconnects.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Connected,
    HalfHead,
    HalfBody,
    Asked,
    After(Duration),
    Begun { bytes: usize },
}

fn moment(rng: &mut Rng) -> Moment {
    match rng.below(8) {
        0 => Moment::Connected,
        1 => Moment::HalfHead,
        2 => Moment::HalfBody,
        3 => Moment::Asked,
        4 | 5 => Moment::After(Duration::from_micros(rng.below(60_000) as u64)),
        _ => Moment::Begun { bytes: 1 + rng.below(3_000) },
    }
}

async fn send_and_leave(addr: std::net::SocketAddr, moment: Moment, stream: bool) -> std::io::Result<()> {
    let mut socket = TcpStream::connect(addr).await?;
    let body = chat(200, stream).replace("\"max_tokens\"", "\"ignore_eos\":true,\"max_tokens\"");
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: m\r\ncontent-length: {}\r\n\r\n", body.len());
    let whole = format!("{head}{body}");
    let sent = match moment {
        Moment::Connected => 0,
        Moment::HalfHead => head.len() / 2,
        Moment::HalfBody => head.len() + body.len() / 2,
        _ => whole.len(),
    };
    socket.write_all(&whole.as_bytes()[..sent]).await?;
    match moment {
        // Not a wait for a condition: it varies the moment of the disconnect.
        Moment::After(pause) => tokio::time::sleep(pause).await,
        Moment::Begun { bytes } => {
            let mut seen = vec![0; bytes];
            socket.read_exact(&mut seen).await?;
        }
        _ => {}
    }
    Ok(())
}

#[tokio::test]
async fn a_thousand_clients_that_disconnect_at_random_leave_nothing_behind() {
    let mut engine = engine_settings();
    engine.engine.profile = maitre_sim::profile::Profile::named("h200-8b").unwrap();
    let fixture = fixture_with(3, engine, settings()).await;
    let addr = fixture.router.listen();
    let mut rng = Rng::new(11);
    let mut clients = JoinSet::new();
    for number in 0..1_000 {
        let moment = moment(&mut rng);
        // Only a stream is long enough to disconnect in the middle.
        let stream = matches!(moment, Moment::Begun { .. }) || rng.below(4) > 0;
        if clients.len() >= 64 {
            within(clients.join_next()).await;
        }
        clients.spawn(async move {
            let left = send_and_leave(addr, moment, stream).await;
            assert!(left.is_ok(), "client {number}, {moment:?}: {left:?}");
        });
    }
    within(clients.join_all()).await;
    fixture.until_nothing_is_open().await;
    for engine in &fixture.engines {
        // Running requests are aborted at the engine's next step.
        let idle = |it: &maitre_sim::http::HostStats| {
            it.requests_open == 0 && it.engine.running + it.engine.waiting == 0
        };
        within(engine.handle().until(idle)).await;
    }
    let engines: Vec<_> = fixture.engines.iter().map(maitre_sim::http::Host::handle).collect();
    assert_eq!(within(fixture.router.stop()).await, maitre_proxy::Stopped::Drained);
    for engine in engines {
        within(engine.until(|it| it.connections_open == 0)).await;
    }
}

#[tokio::test]
async fn the_upstream_is_closed_at_once_when_the_client_disconnects() {
    let mut engine = engine_settings();
    engine.engine.profile = maitre_sim::profile::Profile::named("h200-8b").unwrap();
    let fixture = fixture_with(1, engine, settings()).await;
    let handle = fixture.engines[0].handle();
    for stream in [true, false] {
        let mut socket = TcpStream::connect(fixture.router.listen()).await.unwrap();
        let body = chat(2_000, stream).replace("\"max_tokens\"", "\"ignore_eos\":true,\"max_tokens\"");
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: m\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        within(handle.until(|it| it.engine.running == 1)).await;
        drop(socket);
        let gone = handle.until(|it| it.requests_open == 0 && it.engine.running == 0);
        tokio::time::timeout(Duration::from_millis(500), gone).await.expect("aborted at once");
    }
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn an_http2_reset_ends_only_its_own_request() {
    let mut engine = engine_settings();
    engine.engine.profile = maitre_sim::profile::Profile::named("h200-8b").unwrap();
    let fixture = fixture_with(1, engine, settings()).await;
    let handle = fixture.engines[0].handle();
    let stream = TcpStream::connect(fixture.router.listen()).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(async move { drop(connection.await) });
    let mut ask = async |tokens: u32| {
        let body = chat(tokens, true).replace("\"max_tokens\"", "\"ignore_eos\":true,\"max_tokens\"");
        let request =
            http::Request::post("http://maitre/v1/chat/completions").body(Full::new(Bytes::from(body)));
        within(sender.send_request(request.unwrap())).await.unwrap()
    };
    let (short, long) = (ask(50).await, ask(2_000).await);
    within(handle.until(|it| it.engine.running == 2)).await;
    drop(long);
    within(handle.until(|it| it.engine.running == 1)).await;
    let whole = within(short.into_body().collect()).await.unwrap().to_bytes();
    assert!(whole.ends_with(b"data: [DONE]\n\n"));
    fixture.until_nothing_is_open().await;
}

/// Bytes of a following request are read up to a bound, and the end of the connection is behind them.
#[tokio::test]
async fn a_client_that_sends_ahead_and_disconnects_leaves_nothing_behind() {
    let mut engine = engine_settings();
    engine.engine.profile = maitre_sim::profile::Profile::named("h200-8b").unwrap();
    let fixture = fixture_with(1, engine, settings()).await;
    let handle = fixture.engines[0].handle();
    for stream in [true, false] {
        let body = chat(100_000, stream).replace("\"max_tokens\"", "\"ignore_eos\":true,\"max_tokens\"");
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: m\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let ahead = "x".repeat(5_000);
        let mut socket = TcpStream::connect(fixture.router.listen()).await.unwrap();
        socket.write_all(format!("{head}{body}{ahead}").as_bytes()).await.unwrap();
        within(handle.until(|it| it.requests_open == 1)).await;
        drop(socket);
        fixture.until_nothing_is_open().await;
        within(handle.until(|it| it.requests_open == 0)).await;
    }
}
