//! SIGTERM: open requests are finished, and a second signal ends the process at once.

use crate::client::{Begun, CHAT, Client, chat, chat_stream, post, within};
use crate::program::{Engine, LOOK_AGAIN, Serve};

/// A started stream of about this many times 5 ms, and its connection.
async fn begun_stream(serve: &Serve, tokens: u32) -> (Client, Begun) {
    let mut client = serve.client().await;
    let mut stream = client.begin(post(CHAT, &chat_stream(tokens))).await;
    assert_eq!(stream.status, 200);
    stream.piece().await.expect("a first piece");
    (client, stream)
}

async fn until_draining(serve: &Serve) {
    let mut admin = Client::connect(serve.admin).await;
    let mut looks = tokio::time::interval(LOOK_AGAIN);
    within(async {
        while admin.get("/readyz").await.status != 503 {
            looks.tick().await;
        }
    })
    .await;
    assert_eq!(admin.get("/readyz").await.text(), "draining\n");
    assert_eq!(admin.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn sigterm_ends_readiness_at_once_and_the_process_after_its_last_stream() {
    let engines = Engine::start_some(1, &[]).await;
    let mut serve = Serve::start(&engines, &[]).await;
    let (_client, stream) = begun_stream(&serve, 300).await;
    serve.program.signal("TERM");
    until_draining(&serve).await;
    let answer = stream.rest().await;
    assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    let status = serve.program.until_ends().await;
    assert_eq!(status.code(), Some(0), "{}", serve.program.said());
}

#[tokio::test]
async fn a_second_sigterm_ends_the_process_at_once() {
    let engines = Engine::start_some(1, &["--speedup", "0.01"]).await;
    let mut serve = Serve::start(&engines, &["--timeouts-drain", "1h"]).await;
    // Hours long.
    let (_client, _stream) = begun_stream(&serve, 100_000).await;
    serve.program.signal("TERM");
    until_draining(&serve).await;
    serve.program.signal("TERM");
    let status = serve.program.until_ends().await;
    assert!(status.code().is_some_and(|it| it != 0), "{status}: {}", serve.program.said());
}

#[tokio::test]
async fn a_stream_that_outlasts_the_drain_is_cut_and_the_exit_code_says_so() {
    let engines = Engine::start_some(1, &["--speedup", "0.01"]).await;
    let mut serve = Serve::start(&engines, &["--timeouts-drain", "100ms"]).await;
    let (_client, _stream) = begun_stream(&serve, 100_000).await;
    serve.program.signal("TERM");
    let status = serve.program.until_ends().await;
    assert_eq!(status.code(), Some(1), "{}", serve.program.said());
    assert!(serve.program.said().contains("with requests open"), "{}", serve.program.said());
}

#[tokio::test]
async fn new_requests_are_served_during_the_readiness_delay() {
    let engines = Engine::start_some(1, &["--profile", "instant"]).await;
    let serve = Serve::start(&engines, &["--timeouts-drain-grace", "1h"]).await;
    serve.program.signal("TERM");
    until_draining(&serve).await;
    let answer = serve.client().await.post(CHAT, &chat(1)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}
