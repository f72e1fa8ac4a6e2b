//! The stream as it is followed over a socket: to its end, and back again. A few lines play the router, so that it can
//! end a stream when the test wants it to.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::super::follow::{follow, picture};
use super::super::state::News;
use crate::operator::client::Client;
use crate::operator::target::Target;
use crate::operator::trouble::Trouble;

/// Nothing here may take longer.
const PATIENCE: Duration = Duration::from_secs(60);

const OVERVIEW: &str = r#"{"at_ms": 1, "strategy": "least-delay", "workers": []}"#;
const LIVE: &str = "event: overview\ndata: {\"at_ms\": 1, \"strategy\": \"least-delay\", \"workers\": []}\n\n\
    event: of-tomorrow\ndata: {}\n\nevent: decisions\ndata: {\"skipped\": 0, \"decisions\": []}\n\n";
const KEY: &str = "Bearer the-key";

/// Answers one request and hangs up, which is how its streams end.
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

/// A client of such a router, which lives as long as the tasks do.
async fn client(key: &'static str, tasks: &mut JoinSet<()>) -> Arc<Client> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            answer(stream).await;
        }
    });
    Arc::new(Client::new(&Target { address, key: HeaderValue::from_static(key), dialer: Arc::default() }))
}

/// The next that is heard, as a word.
async fn next(news: &mut mpsc::Receiver<News>) -> String {
    let heard = tokio::time::timeout(PATIENCE, news.recv()).await.expect("nothing is heard").unwrap();
    match heard {
        News::Picture(_) => "picture".to_owned(),
        News::Overview(_) => "overview".to_owned(),
        News::Decisions(_) => "decisions".to_owned(),
        News::Lost(why, pause) => format!("lost for {} ms: {why}", pause.as_millis()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_stream_that_ends_is_told_and_taken_up_again_with_what_was_missed() {
    let mut tasks = JoinSet::new();
    let client = client(KEY, &mut tasks).await;
    let (tell, mut news) = mpsc::channel(1);
    let mut following = JoinSet::new();
    following.spawn(follow(client.clone(), tell));
    let ended = format!("lost for 500 ms: {}: the router ended the stream", client.url);
    // It came back, so the pause stays short.
    for expected in ["overview", "decisions", &ended, "picture", "overview", "decisions", &ended] {
        assert_eq!(next(&mut news).await, expected);
    }
    drop(news);
    let left = tokio::time::timeout(PATIENCE, following.join_next()).await;
    assert!(left.is_ok(), "it ends when nobody listens");
}

#[tokio::test]
async fn one_who_is_not_let_in_tries_less_and_less_often() {
    let mut tasks = JoinSet::new();
    let client = client("Bearer another", &mut tasks).await;
    let refused = picture(&client).await.unwrap_err();
    assert_eq!(refused, Trouble::Key { url: client.url.clone() });
    let (tell, mut news) = mpsc::channel(1);
    tasks.spawn(follow(client, tell));
    for pause in [500, 1_000, 2_000] {
        let expected = format!("lost for {pause} ms: {refused}");
        assert_eq!(next(&mut news).await, expected);
    }
}
