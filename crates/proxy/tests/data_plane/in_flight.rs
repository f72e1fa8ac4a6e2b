//! Requests are counted as they arrive, first tokens as they come and answers as they flow: a router whose requests do not
//! end shows its load all the same.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use maitre_sim::http::fault::{Fault, Injection};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::fixture::{Client, chat, fixture, metric, post, settings, until_counted, within};
use crate::misbehaviour::router_in_front_of;

const ARRIVED: &str = "maitre_requests_arrived_total";
const AWAITING: &str = "maitre_requests_awaiting_first_token";
const LONGEST: &str = "maitre_first_token_longest_wait_seconds";
const FIRST_TOKENS: &str = "maitre_first_token_seconds_count";
const ANSWER_TOKENS: &str = "maitre_answer_tokens_total";

#[tokio::test]
async fn a_request_that_waits_for_its_first_token_is_counted() {
    let fixture = fixture(1).await;
    fixture.engines[0].handle().inject(Injection::always(Fault::Stall));
    let mut clients = JoinSet::new();
    for _ in 0..3 {
        let mut client = fixture.client().await;
        clients.spawn(async move { client.send(post("/v1/chat/completions", chat(100, true))).await });
    }
    until_counted(&fixture.router, ARRIVED, 3.0).await;
    let page = fixture.router.metrics();
    assert_eq!((metric(&page, AWAITING), metric(&page, "maitre_requests_in_flight")), (3.0, 3.0));
    assert_eq!(metric(&page, FIRST_TOKENS), 0.0);
    let longer = metric(&fixture.router.metrics(), LONGEST);
    assert!(metric(&page, LONGEST) > 0.0 && longer > metric(&page, LONGEST), "{longer}\n{page}");
    clients.shutdown().await;
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    assert_eq!((metric(&page, ARRIVED), metric(&page, AWAITING), metric(&page, LONGEST)), (3.0, 0.0, 0.0));
}

#[tokio::test]
async fn a_first_token_and_the_tokens_after_it_are_counted_before_the_end() {
    let asked = Arc::new(Semaphore::new(0));
    let wanted = asked.clone();
    // Sends an event for each permit, and never ends.
    let reply = move |mut stream: TcpStream| {
        let wanted = wanted.clone();
        async move {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            while let Ok(permit) = wanted.acquire().await {
                permit.forget();
                let event = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n";
                stream.write_all(event.as_bytes()).await.unwrap();
            }
        }
    };
    let router = router_in_front_of(reply, settings()).await;
    let mut client = Client::connect(router.listen()).await;
    asked.add_permits(1);
    let mut body = client.send(post("/v1/chat/completions", chat(100, true))).await.unwrap().into_body();
    for _ in 0..30 {
        within(body.frame()).await.unwrap().unwrap();
        asked.add_permits(1);
    }
    let page = router.metrics();
    assert_eq!((metric(&page, FIRST_TOKENS), metric(&page, AWAITING)), (1.0, 0.0));
    assert_eq!(metric(&page, "maitre_requests_in_flight"), 1.0);
    // Thirty or thirty-one events have passed, six of which may hold no token.
    let tokens = metric(&page, ANSWER_TOKENS);
    assert!((24.0..=25.0).contains(&tokens), "{tokens}");
    drop((body, client));
    until_counted(&router, "maitre_requests_total{route=\"chat\",outcome=\"gone\",code=\"\"}", 1.0).await;
    let page = router.metrics();
    assert_eq!(metric(&page, FIRST_TOKENS), 1.0, "a first token is counted once");
    assert!((30.0..=31.0).contains(&metric(&page, ANSWER_TOKENS)), "{page}");
}

#[tokio::test]
async fn when_all_have_ended_the_count_of_tokens_is_the_engines() {
    let fixture = fixture(1).await;
    let mut client = fixture.client().await;
    let mut reported = 0;
    for tokens in [1, 2, 7, 40] {
        let answer = client.post("/v1/chat/completions", chat(tokens, false)).await;
        reported += answer.json()["usage"]["completion_tokens"].as_u64().unwrap();
        let with_usage = "\"stream_options\":{\"include_usage\":true},\"stream\"";
        let stream = chat(tokens, true).replace("\"stream\"", with_usage);
        let stream = client.post("/v1/chat/completions", stream).await.text();
        let events = stream.lines().filter_map(|it| it.strip_prefix("data: "));
        let events = events.filter_map(|it| serde_json::from_str::<Value>(it).ok());
        reported += events.filter_map(|it| it["usage"]["completion_tokens"].as_u64()).next_back().unwrap();
    }
    fixture.until_nothing_is_open().await;
    let page = fixture.router.metrics();
    assert_eq!((metric(&page, ANSWER_TOKENS), metric(&page, ARRIVED)), (reported as f64, 8.0));
}
