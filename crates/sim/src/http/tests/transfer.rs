//! KV between two engines over loopback sockets.

mod bootstrap;
mod nixl;
mod peer;
mod store;

use std::time::Duration;

use super::*;

/// 59 tokens with the template, in four blocks.
const TEXT: &str = "A table for two, near the window, please. It should be quiet: we have not met for years, and there is \
                    much to say; after the soup we would like to hear what the kitchen recommends.";

/// For what must elapse.
const SHORT: Duration = Duration::from_millis(30);

/// For what must not.
const LONG: Duration = Duration::from_secs(3_600);

fn text_of(reply: &RouteReply) -> String {
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

/// What one engine answers to the same prompt, up to 24 tokens.
async fn right_text(text: &str) -> String {
    let alone = host(INSTANT).await;
    text_of(&post(&alone, "/v1/chat/completions", chat(text, json!({"max_tokens": 24}))).await)
}

/// A metric's value, without its labels of engine and model.
async fn metric(host: &Host, name: &str) -> f64 {
    let page = get(host, "/metrics").await.text();
    let plain =
        page.replace(r#"{engine="0",model_name="tiny"}"#, "").replace(r#"engine="0",model_name="tiny","#, "");
    let line = plain.lines().find_map(|it| it.strip_prefix(&format!("vllm:{name} ")));
    line.unwrap_or_else(|| panic!("{name} is not in {page}")).parse().unwrap()
}

async fn check_metrics(host: &Host, expected: &[(&str, f64)]) {
    for (name, value) in expected {
        assert_eq!(metric(host, name).await, *value, "{name}");
    }
}

/// The virtual time that something takes.
async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let begin = tokio::time::sleep(Duration::ZERO).deadline();
    let result = work.await;
    (result, begin.elapsed())
}
