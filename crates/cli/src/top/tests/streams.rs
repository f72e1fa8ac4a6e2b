//! The event stream over a socket: its end, and the reconnect. A minimal router ends its streams at once.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::super::follow::{follow, snapshot};
use super::super::model::Update;
use crate::operator::client::Client;
use crate::operator::target::Target;
use crate::operator::trouble::Trouble;

/// The limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

const OVERVIEW: &str = r#"{"at_ms": 1, "strategy": "least-delay", "workers": []}"#;
const LIVE: &str = "event: overview\ndata: {\"at_ms\": 1, \"strategy\": \"least-delay\", \"workers\": []}\n\n\
    event: of-tomorrow\ndata: {}\n\nevent: decisions\ndata: {\"skipped\": 0, \"decisions\": []}\n\n";
const KEY: &str = "Bearer the-key";

/// Answers one request and closes the connection, which ends its streams.
async fn answer(mut stream: TcpStream) {
    let (mut head, mut piece) = (Vec::new(), [0; 1_024]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(count) => head.extend_from_slice(&piece[..count]),
        }
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap();
    let (status, body) = match path {
        _ if !head.contains(KEY) => ("401 no", r#"{"error": {"code": "unauthorized", "message": "no"}}"#),
        "/admin/v1/live" => ("200 OK", LIVE),
        "/admin/v1/overview" => ("200 OK", OVERVIEW),
        "/admin/v1/history" => ("200 OK", r#"{"at_ms": [], "ttft_p50_ms": [], "requests_per_s": []}"#),
        it if it.starts_with("/admin/v1/decisions?") => ("200 OK", r#"{"decisions": []}"#),
        _ => ("404 no", "<html>"),
    };
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all((head + body).as_bytes()).await;
}

/// A client of such a router, which runs as one of the tasks.
async fn client(key: &'static str, tasks: &mut JoinSet<()>) -> Arc<Client> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            answer(stream).await;
        }
    });
    Arc::new(Client::new(&Target {
        address,
        key: Some(HeaderValue::from_static(key)),
        dialer: Arc::default(),
    }))
}

/// The next update, as a word.
async fn next(updates: &mut mpsc::Receiver<Update>) -> String {
    let update = tokio::time::timeout(PATIENCE, updates.recv()).await.expect("no update").unwrap();
    match update {
        Update::Snapshot(_) => "snapshot".to_owned(),
        Update::Overview(_) => "overview".to_owned(),
        Update::Decisions(_) => "decisions".to_owned(),
        Update::Lost(why, pause) => format!("lost for {} ms: {why}", pause.as_millis()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_stream_that_ends_is_reported_and_resumed_with_a_new_snapshot() {
    let mut tasks = JoinSet::new();
    let client = client(KEY, &mut tasks).await;
    let (sender, mut updates) = mpsc::channel(1);
    let mut following = JoinSet::new();
    following.spawn(follow(client.clone(), sender));
    let ended = format!("lost for 500 ms: {}: the router ended the stream", client.url);
    // Each reconnect succeeds, so the pause stays short.
    for expected in ["overview", "decisions", &ended, "snapshot", "overview", "decisions", &ended] {
        assert_eq!(next(&mut updates).await, expected);
    }
    drop(updates);
    let left = tokio::time::timeout(PATIENCE, following.join_next()).await;
    assert!(left.is_ok(), "it ends when the receiver is dropped");
}

#[tokio::test]
async fn a_refused_key_is_tried_less_and_less_often() {
    let mut tasks = JoinSet::new();
    let client = client("Bearer another", &mut tasks).await;
    let refused = snapshot(&client).await.unwrap_err();
    let port = client.url.rsplit(':').next().unwrap();
    let command = format!("maitre key --admin --port {port}");
    assert_eq!(refused, Trouble::Key { url: client.url.clone(), command });
    let (sender, mut updates) = mpsc::channel(1);
    tasks.spawn(follow(client, sender));
    for pause in [500, 1_000, 2_000] {
        let expected = format!("lost for {pause} ms: {refused}");
        assert_eq!(next(&mut updates).await, expected);
    }
}
