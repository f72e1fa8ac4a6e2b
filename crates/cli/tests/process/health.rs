//! Engine processes that hang, die and return.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::client::{CHAT, Client, chat, chat_stream, within};
use crate::program::{Engine, LOOK_AGAIN, Serve};

/// Round robin, so that a worker in rotation cannot be missed by chance.
const IN_TURN: &[&str] = &["--strategy", "round-robin"];

#[tokio::test]
async fn a_stopped_engine_is_out_within_three_seconds_and_back_when_it_resumes() {
    let engines = Engine::start_some(3, &["--profile", "instant"]).await;
    let serve = Serve::start(&engines, IN_TURN).await;
    let (listen, stopped) = (serve.listen, &engines[1]);
    stopped.program.signal("STOP");

    // Traffic continues in the meantime. Requests sent to the stopped engine before it is noticed are moved
    // to another.
    let mut early = JoinSet::new();
    let traffic = async {
        let mut looks = tokio::time::interval(LOOK_AGAIN);
        loop {
            looks.tick().await;
            early.spawn(async move { Client::connect(listen).await.post(CHAT, &chat(1)).await.status });
        }
    };
    let _: Result<(), _> = tokio::time::timeout(Duration::from_secs(3), traffic).await;

    let mut client = serve.client().await;
    for _ in 0..30 {
        let answer = client.post(CHAT, &chat(1)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_ne!(answer.worker(), stopped.url, "sent to a worker that has been stopped for three seconds");
    }

    let early = within(early.join_all()).await;
    assert!(early.iter().all(|it| *it == 200), "{early:?}");

    stopped.program.signal("CONT");
    within(async { while client.post(CHAT, &chat(1)).await.worker() != stopped.url {} }).await;
    serve.until_worker(&stopped.url, "ready").await;
}

#[tokio::test]
async fn after_an_engine_is_killed_the_next_request_succeeds() {
    let mut engines = Engine::start_some(2, &["--profile", "instant"]).await;
    let serve = Serve::start(&engines, IN_TURN).await;
    let mut client = serve.client().await;
    // One round, so that connections to both are open.
    for _ in 0..2 {
        assert_eq!(client.post(CHAT, &chat(1)).await.status, 200);
    }
    let mut killed = engines.remove(0);
    killed.program.signal("KILL");
    killed.program.until_ends().await;
    for _ in 0..10 {
        let answer = client.post(CHAT, &chat(1)).await;
        assert_eq!((answer.status.as_u16(), answer.worker()), (200, &*engines[0].url), "{}", answer.text());
    }
}

#[tokio::test]
async fn the_log_says_why_a_worker_is_unhealthy() {
    let engines = Engine::start_some(2, &["--profile", "instant"]).await;
    let mut serve = Serve::start(&engines, IN_TURN).await;
    let faults = [
        (r#"{"kind": "close_after_chunks", "chunks": 2}"#, "a response broke off in the middle"),
        (r#"{"kind": "status", "status": 500}"#, "/v1/chat/completions 500 Internal Server Error"),
    ];
    for (fault, reason) in faults {
        let fault: serde_json::Value = serde_json::from_str(fault).unwrap();
        for engine in &engines {
            let mut engine = Client::connect(engine.url.trim_start_matches("http://").parse().unwrap()).await;
            assert_eq!(engine.post("/sim/fault", &fault).await.status, 200);
        }
        let mut client = serve.client().await;
        let asks = async {
            loop {
                client.post(CHAT, &chat_stream(9)).await;
            }
        };
        let line = format!("worker unhealthy: {reason}");
        let said = serve.program.until_says(|it| it.contains(&line).then_some(()));
        tokio::select! { () = asks => {}, () = said => {} }
    }
}

#[tokio::test]
async fn the_log_says_that_a_killed_engine_refuses_connections() {
    let engines = Engine::start_some(1, &["--profile", "instant"]).await;
    let mut serve = Serve::start(&engines, IN_TURN).await;
    serve.until_worker(&engines[0].url, "ready").await;
    engines[0].program.signal("KILL");
    let refused = |it: &str| (it.contains("worker unhealthy: ") && it.contains("refused")).then_some(());
    serve.program.until_says(refused).await;
}
