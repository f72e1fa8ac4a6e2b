//! Workers whose engines reuse documents at any position. The engines cut at separators, the router by content.

use maitre_policy::Name;
use maitre_proxy::{Router, RouterSettings};
use maitre_sim::http::{Host, HostConfig};
use maitre_sim::text::{self, SEPARATOR};
use serde_json::{Value, json};

use crate::fixture::{ANYWHERE, Client, Fixture, TestResponse, engine_settings, settings, within};

/// Three engines that reuse documents, and a router that knows it or not.
async fn reusing(options: &str) -> Fixture {
    let mut config: HostConfig = engine_settings();
    config.engine.chunks = "0.15".parse().ok();
    let mut engines = Vec::new();
    for _ in 0..3 {
        engines.push(Host::bind(ANYWHERE, config.clone()).await.unwrap());
    }
    let mut settings: RouterSettings = settings();
    settings.brain.strategy = Name::LeastDelay;
    let url = |it: &Host| format!("http://{}{options}", it.addr()).parse().unwrap();
    settings.workers = engines.iter().map(url).collect();
    let router = Router::start(settings).await.unwrap();
    within(router.until_all_ready()).await;
    Fixture { router, engines }
}

/// A question about documents of 1,000 tokens each, after an opening of its own.
fn question(opening: u64, documents: &[u64]) -> String {
    let texts = documents.iter().map(|&it| text::answer_text(it, 1_000));
    let parts = [text::answer_text(opening, 33)].into_iter().chain(texts);
    let content = parts.collect::<Vec<String>>().join(SEPARATOR) + SEPARATOR + &format!("Why {opening}?");
    let messages = json!([{"role": "user", "content": content}]);
    json!({"model": "maitre-sim", "messages": messages, "max_tokens": 2}).to_string()
}

async fn ask(client: &mut Client, opening: u64, documents: &[u64]) -> TestResponse {
    let answer = client.post("/v1/chat/completions", question(opening, documents)).await;
    assert!(answer.status.is_success(), "{}", answer.text());
    answer
}

/// What the router expected to be cached, and what the engine says was.
fn cached(answer: &TestResponse) -> (f64, f64) {
    let expected = answer.header("x-maitre-cached-tokens").parse().unwrap();
    let usage: Value = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    (expected, usage.as_f64().unwrap())
}

#[tokio::test]
async fn documents_in_another_order_go_to_their_holder() {
    let fixture = reusing("?chunks=0.15").await;
    let mut client = fixture.client().await;
    let home = ask(&mut client, 100, &[1, 2, 3, 4]).await;
    ask(&mut client, 101, &[5, 6, 7, 8]).await;
    let next = ask(&mut client, 102, &[4, 1, 3, 2]).await;
    assert_eq!(next.header("x-maitre-why"), "cached");
    assert_eq!(next.header("x-maitre-worker"), home.header("x-maitre-worker"));
    let (expected, found) = cached(&next);
    assert_eq!(found, 4_000.0);
    // The router estimates the tokens of a text.
    assert!((3_000.0..=4_400.0).contains(&expected), "{expected}");
}

#[tokio::test]
async fn a_router_that_does_not_know_it_finds_nothing() {
    let fixture = reusing("").await;
    let mut client = fixture.client().await;
    ask(&mut client, 100, &[1, 2, 3, 4]).await;
    let next = ask(&mut client, 102, &[4, 1, 3, 2]).await;
    assert_eq!(cached(&next).0, 0.0);
}
