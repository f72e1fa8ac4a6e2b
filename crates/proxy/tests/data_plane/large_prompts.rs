//! Prompts that are expensive to tokenize: within limits, beside the lanes, and not for requests that are refused.

use std::time::{Duration, Instant};

use maitre_queue::{Tenant, Terms};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::fixture::{Client, Fixture, engine_settings, fixture_with, post};
use crate::keys::{ACME, key, showing, with_keys};
use crate::misbehaviour::router_in_front_of;
use crate::tokenize::{chat, with_tokenizer};

const CHAT: &str = "/v1/chat/completions";

/// A text of this many bytes, no part of which is known.
fn text(bytes: usize) -> String {
    let words = (0..).map(|it: u64| format!("{:x} ", it.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let mut text = String::new();
    words
        .take_while(|it| {
            text.push_str(it);
            text.len() < bytes
        })
        .for_each(drop);
    text
}

/// How many prompts were tokenized in this way.
fn read(fixture: &Fixture, level: &str) -> f64 {
    let line = format!("maitre_prompts_read_total{{model=\"maitre-sim\",level=\"{level}\"}} ");
    let page = fixture.router.metrics();
    page.lines().find_map(|it| it.strip_prefix(&line)?.parse().ok()).unwrap_or(0.0)
}

#[tokio::test]
async fn prompts_over_the_limit_are_split_into_words() {
    let mut settings = with_tokenizer("chatml");
    settings.limits.tokenize_bytes = 100_000;
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let mut client = fixture.client().await;
    for (bytes, exact, words) in [(80_000, 1.0, 0.0), (120_000, 1.0, 1.0), (400_000, 1.0, 2.0)] {
        let answer = client.post(CHAT, chat(&[&text(bytes)])).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!((read(&fixture, "exact"), read(&fixture, "words")), (exact, words), "{bytes} bytes");
    }
}

#[tokio::test]
async fn what_is_tokenized_at_once_is_limited_and_short_prompts_are_not() {
    let mut settings = with_tokenizer("chatml");
    settings.limits.tokenizing_bytes = 50_000;
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let mut client = fixture.client().await;
    for (bytes, exact, words) in [(40_000, 1.0, 0.0), (60_000, 1.0, 1.0), (1_000, 2.0, 1.0)] {
        let answer = client.post(CHAT, chat(&[&text(bytes)])).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!((read(&fixture, "exact"), read(&fixture, "words")), (exact, words), "{bytes} bytes");
    }
}

#[tokio::test]
async fn a_request_that_is_refused_anyway_is_not_tokenized() {
    let mut settings = with_keys(key("acme"));
    let with_tokenizer = with_tokenizer("chatml");
    (settings.tokenizers, settings.brain.strategy) =
        (with_tokenizer.tokenizers, with_tokenizer.brain.strategy);
    let terms = Terms { requests_per_minute: Some(1), ..Terms::default() };
    let tenant = Tenant { name: "acme".to_owned(), terms };
    settings.brain.queue.tenants.insert(tenant.id(), tenant);
    let fixture = fixture_with(1, engine_settings(), settings).await;
    let mut client = fixture.client().await;
    let mut ask = async |body: String| client.ask(showing(post(CHAT, body), ACME)).await.unwrap().status;
    let body = chat(&[&text(50_000)]);
    // No worker serves this model.
    assert_eq!(ask(body.replace("maitre-sim", "other")).await, 404);
    assert_eq!(ask(body.clone()).await, 200);
    assert_eq!(ask(body.clone()).await, 429);
    assert_eq!(ask(body).await, 429);
    let other = "maitre_prompts_read_total{model=\"other\"";
    assert!(!fixture.router.metrics().contains(other), "{}", fixture.router.metrics());
    assert_eq!((read(&fixture, "exact"), read(&fixture, "words")), (1.0, 0.0));
}

#[tokio::test]
async fn large_prompts_delay_no_request_of_their_lane() {
    let reply = |mut stream: TcpStream| async move {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
        let _ = stream.write_all(head).await;
    };
    let router = router_in_front_of(reply, with_tokenizer("chatml")).await;
    let listen = router.listen();
    let large = bytes::Bytes::from(chat(&[&text(12 << 20)]));
    let mut asks = JoinSet::new();
    for _ in 0..2 {
        let large = large.clone();
        asks.spawn(async move { Client::connect(listen).await.post(CHAT, large).await.status });
    }
    let mut client = Client::connect(listen).await;
    let (mut longest, mut answered) = (Duration::ZERO, 0);
    while !asks.is_empty() {
        #[expect(clippy::disallowed_methods, reason = "measures how long a client waits")]
        let sent = Instant::now();
        assert_eq!(client.post(CHAT, chat(&["And now?"])).await.status, 200);
        longest = longest.max(sent.elapsed());
        answered += 1;
        while let Some(large) = asks.try_join_next() {
            assert_eq!(large.unwrap(), 200);
        }
    }
    // Rendered on the lane, one of them alone took a minute without optimisation.
    assert!(longest < Duration::from_secs(5), "{longest:?}, {answered} answered");
    assert!(answered > 3, "{answered} answered meanwhile");
}
