//! How prompts are tokenized, as seen from outside; and which rank of an engine a request is for.

use std::net::SocketAddr;
use std::path::Path;

use maitre_policy::Name;
use maitre_proxy::{Router, RouterSettings};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::fixture::{Client, engine_settings, fixture_with, metric, settings, within};

pub(crate) fn with_tokenizer(family: &str) -> RouterSettings {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tokens/tests/fixtures");
    let mut settings = settings();
    settings.brain.strategy = Name::LeastDelay;
    settings.tokenizers.insert("maitre-sim".to_owned(), fixtures.join(family));
    settings
}

pub(crate) fn chat(turns: &[&str]) -> String {
    let messages: Vec<serde_json::Value> = turns
        .iter()
        .enumerate()
        .map(|(number, text)| json!({"role": if number % 2 == 0 { "user" } else { "assistant" }, "content": text}))
        .collect();
    json!({"model": "maitre-sim", "messages": messages, "max_tokens": 4}).to_string()
}

#[tokio::test]
async fn a_model_with_a_local_tokenizer_is_tokenized_exactly() {
    let fixture = fixture_with(2, engine_settings(), with_tokenizer("chatml")).await;
    let mut client = fixture.client().await;
    let question = "Where did the ship go after the storm? ".repeat(30);
    let held = |answer: &crate::fixture::TestResponse| {
        answer.header("x-maitre-cached-tokens").parse::<u64>().unwrap()
    };
    let first = client.post("/v1/chat/completions", chat(&[&question])).await;
    assert_eq!((held(&first), first.header("x-maitre-why")), (0, "least-delay"));
    let second = client.post("/v1/chat/completions", chat(&[&question, "South.", "And then?"])).await;
    assert!(held(&second) > 100, "{:?}", second.headers);
    assert_eq!(second.header("x-maitre-why"), "cached");
    assert_eq!(second.header("x-maitre-worker"), first.header("x-maitre-worker"));
    let read = "maitre_prompts_read_total{model=\"maitre-sim\",level=\"exact\"}";
    assert_eq!(metric(&fixture.router.metrics(), read), 2.0);
}

#[tokio::test]
async fn a_long_prompt_and_one_that_cannot_be_rendered_are_answered() {
    let fixture = fixture_with(1, engine_settings(), with_tokenizer("chatml")).await;
    let mut client = fixture.client().await;
    let long = "A sentence like any other, and none twice: ".to_owned() + &"0123456789 ".repeat(20_000);
    let odd =
        r#"{"model":"maitre-sim","messages":[{"role":7,"content":{"a":[]}}],"max_tokens":1}"#.to_owned();
    let answer = client.post("/v1/chat/completions", chat(&[&long])).await;
    assert!(answer.status.is_success(), "{}", answer.text());
    // A prompt that no template can render is left to the engine.
    let answer = client.post("/v1/chat/completions", odd).await;
    assert_ne!(answer.header("x-maitre-worker"), "", "{}", answer.text());
}

#[tokio::test]
async fn a_missing_tokenizer_folder_is_an_error_at_the_start() {
    let error = Router::start(with_tokenizer("missing")).await.err().expect("no such folder").to_string();
    assert!(error.contains("maitre-sim") && error.contains("missing"), "{error}");
    assert_eq!(error.matches("no such file").count(), 1, "{error}");
}

/// An engine that reports the requests it got, and gives every request the same response.
pub(crate) async fn listener() -> (SocketAddr, mpsc::UnboundedReceiver<String>, JoinSet<()>) {
    let listener = TcpListener::bind(crate::fixture::ANYWHERE).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (sender, received) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let sender = sender.clone();
            connections.spawn(async move {
                let mut head = vec![0; 65_536];
                while let Ok(count @ 1..) = stream.read(&mut head).await {
                    drop(sender.send(String::from_utf8_lossy(&head[..count]).into_owned()));
                    let body = r#"{"data":[{"id":"m","object":"model"}]}"#;
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                    if stream.write_all(head.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (addr, received, tasks)
}

#[tokio::test]
async fn each_rank_is_a_worker_and_requests_name_the_rank() {
    let (addr, mut received, _alive) = listener().await;
    let mut settings = settings();
    settings.workers = vec![format!("http://{addr}?ranks=3").parse().unwrap()];
    let router = Router::start(settings).await.unwrap();
    within(router.until_all_ready()).await;
    let mut client = Client::connect(router.listen()).await;
    let mut ranks = Vec::new();
    for _ in 0..3 {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;
        let answer = client.post("/v1/chat/completions", body).await;
        let (_, rank) = answer.header("x-maitre-worker").rsplit_once('#').unwrap();
        ranks.push(rank.to_owned());
        let request = loop {
            let head = within(received.recv()).await.unwrap();
            if head.starts_with("POST /v1/chat") {
                break head;
            }
        };
        assert!(request.contains(&format!("x-data-parallel-rank: {rank}\r\n")), "{request}");
    }
    ranks.sort();
    assert_eq!(ranks, ["0", "1", "2"]);
}
