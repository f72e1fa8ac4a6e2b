//! Token ids in streams, ids as prompts, and connections that end at any byte: what a router needs to continue a stream
//! on another engine.

use serde_json::{Value, json};

use super::{Fault, Host, HostConfig, INSTANT, Injection, LOOPBACK, chat, host, post};
use crate::http::brand::Brand;

fn ids(events: &[Value], path: &str) -> Vec<Value> {
    events.iter().filter_map(|it| it.pointer(path)?.as_array()).flatten().cloned().collect()
}

fn text(events: &[Value], path: &str) -> String {
    events.iter().filter_map(|it| it.pointer(path)?.as_str()).collect()
}

const CONTENT: &str = "/choices/0/delta/content";
const IDS: &str = "/choices/0/token_ids";

#[tokio::test]
async fn a_chat_goes_on_from_its_ids() {
    let host = host(INSTANT).await;
    let asks = json!({"stream": true, "return_token_ids": true});
    let whole = post(&host, "/v1/chat/completions", chat("hello", asks.clone())).await.data();
    let prompt = ids(&whole[..1], "/prompt_token_ids");
    let answer = ids(&whole, IDS);
    assert_eq!(answer.len() * 4, text(&whole, CONTENT).len());
    for said in [1, answer.len() / 2, answer.len() - 1] {
        let given = [&prompt[..], &answer[..said]].concat();
        for field in ["kv_transfer_params", "input_ids"] {
            let mut body = chat("not read", asks.clone());
            body[field] =
                if field == "input_ids" { json!(given) } else { json!({"prompt_token_ids": given}) };
            let rest = post(&host, "/v1/chat/completions", body).await.data();
            assert_eq!(ids(&rest, IDS), answer[said..], "{field}");
            assert_eq!(text(&rest, CONTENT), text(&whole, CONTENT)[4 * said..]);
            assert_eq!(ids(&rest[..1], "/prompt_token_ids"), given);
        }
    }
    let refused = json!({"kv_transfer_params": {"prompt_token_ids": []}});
    assert_eq!(post(&host, "/v1/chat/completions", chat("hello", refused)).await.status, 400);
}

#[tokio::test]
async fn a_completion_goes_on_from_its_ids() {
    let host = host(INSTANT).await;
    let ask = |prompt: Value, max_tokens: usize| json!({"prompt": prompt, "stream": true, "return_token_ids": true, "max_tokens": max_tokens});
    let whole = post(&host, "/v1/completions", ask(json!("once upon a time"), 20)).await.data();
    let (prompt, answer) = (ids(&whole, "/choices/0/prompt_token_ids"), ids(&whole, IDS));
    assert_eq!((prompt.len(), answer.len()), (4, 20));
    let given = [&prompt[..], &answer[..7]].concat();
    let rest = post(&host, "/v1/completions", ask(json!(given), 13)).await.data();
    assert_eq!(ids(&rest, IDS), answer[7..]);
    assert_eq!(text(&rest, "/choices/0/text"), text(&whole, "/choices/0/text")[28..]);
}

#[tokio::test]
async fn ids_come_only_if_asked_for() {
    let host = host(INSTANT).await;
    let plain = post(&host, "/v1/chat/completions", chat("hello", json!({"stream": true}))).await.data();
    assert!(plain.iter().all(|it| it.pointer(IDS).is_none_or(Value::is_null)));
    let whole = post(&host, "/v1/chat/completions", chat("hello", json!({"return_token_ids": true}))).await;
    let whole = whole.json();
    assert!(whole["prompt_token_ids"].is_array() && whole["choices"][0]["token_ids"].is_array());
}

#[tokio::test]
async fn sglang_puts_the_prompts_ids_into_the_choice() {
    let config = HostConfig { brand: Brand::Sglang, ..HostConfig::new(INSTANT) };
    let host = Host::bind(LOOPBACK, config).await.unwrap();
    let mut body = chat("hello", json!({"stream": true, "return_token_ids": true}));
    body["model"] = Value::Null;
    let events = post(&host, "/v1/chat/completions", body).await.data();
    assert!(!ids(&events[..1], "/choices/0/prompt_token_ids").is_empty());
}

#[tokio::test]
async fn a_connection_ends_at_a_given_byte() {
    let host = host(INSTANT).await;
    let body = chat("hello", json!({"stream": true}));
    let whole = post(&host, "/v1/chat/completions", body.clone()).await.text();
    for bytes in [1, 100, whole.len() / 2, whole.len() - 1] {
        host.handle().inject(Injection::times(Fault::CloseAfterBytes { bytes }, 1));
        let cut = post(&host, "/v1/chat/completions", body.clone()).await;
        assert_eq!((cut.text().len(), cut.complete), (bytes, false));
    }
}
