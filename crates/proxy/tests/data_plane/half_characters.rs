//! A stream whose worker fails after an event that ends within a character.

use maitre_proxy::settings::BrokenStreams;
use maitre_proxy::{Router, RouterSettings};
use serde_json::{Value, json};

use crate::fixture::{Client, TestResponse, settings, within};
use crate::styles::{Script, Scripted};

const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":"Smile"}],"stream":true,"max_tokens":9,"stream_options":{"include_usage":true}}"#;

/// The tokens of the prompt, of `Hi`, and of the two halves of a smile.
const PROMPT: [u64; 2] = [1, 2];
const HI: u64 = 10;
const SMILE: [u64; 2] = [11, 12];

fn event(choice: &Value) -> String {
    format!("data: {}\n\n", json!({"id": "c", "created": 1, "model": "m", "choices": [choice]}))
}

fn announcement(prompt: &Value) -> String {
    let choice = json!({"index": 0, "delta": {"role": "assistant", "content": ""}});
    let event =
        json!({"id": "c", "created": 1, "model": "m", "choices": [choice], "prompt_token_ids": prompt});
    format!("data: {event}\n\n")
}

fn text_of(ids: &[Value]) -> String {
    let ids: Vec<u64> = ids.iter().filter_map(Value::as_u64).collect();
    let text = |id: u64| match id {
        HI => "Hi",
        _ if PROMPT.contains(&id) => "<prompt>",
        _ => "",
    };
    let mut text: String = ids.iter().map(|it| text(*it)).collect();
    if ids.ends_with(&SMILE) {
        text += "\u{1F600}";
    } else if ids.ends_with(&SMILE[..1]) {
        text += "\u{FFFD}";
    }
    text
}

/// vLLM 0.32. It breaks off its first answer, and where a prompt ends within a character it decodes all of it once more.
fn vllm(body: &Value) -> (u16, String) {
    if let Some(ids) = body["tokens"].as_array() {
        return (200, json!({"prompt": text_of(ids)}).to_string());
    }
    let Some(prompt) = body.pointer("/kv_transfer_params/prompt_token_ids") else {
        let piece = event(&json!({"index": 0, "delta": {"content": "Hi"}, "token_ids": [HI, SMILE[0]]}));
        return (200, announcement(&json!(PROMPT)) + &piece);
    };
    let before = prompt.as_array().unwrap();
    let (text, ids) = match before.last() == Some(&json!(SMILE[0])) {
        false => ("\u{1F600}".to_owned(), json!(SMILE)),
        true => (text_of(&[&before[..], &[json!(SMILE[1])]].concat()), json!([SMILE[1]])),
    };
    let choice = json!({"index": 0, "delta": {"content": text}, "token_ids": ids, "finish_reason": "stop"});
    let (prompt_tokens, answer) = (before.len(), ids.as_array().unwrap().len());
    let usage = json!({"prompt_tokens": prompt_tokens, "completion_tokens": answer, "total_tokens": prompt_tokens + answer});
    let usage = json!({"id": "c", "created": 1, "model": "m", "choices": [], "usage": usage});
    (200, announcement(prompt) + &event(&choice) + &format!("data: {usage}\n\ndata: [DONE]\n\n"))
}

/// The same without the path that decodes.
fn vllm_behind_a_proxy(body: &Value) -> (u16, String) {
    match body["tokens"].is_array() {
        true => (404, String::new()),
        false => vllm(body),
    }
}

/// Two workers and what a client gets of them.
async fn ask(reply: fn(&Value) -> (u16, String), body: &str) -> (TestResponse, Vec<Scripted>) {
    let script = Script { reply, query: "" };
    let workers = vec![Scripted::start(script).await, Scripted::start(script).await];
    let settings = RouterSettings {
        workers: workers.iter().map(|it| format!("http://{}", it.addr).parse().unwrap()).collect(),
        broken_streams: BrokenStreams::Continue,
        ..settings()
    };
    let router = Router::start(settings).await.unwrap();
    let covered = async {
        loop {
            let answer =
                Client::connect(router.listen()).await.post("/v1/chat/completions", body.to_owned()).await;
            if answer.header("x-maitre-continue") == "on" {
                return answer;
            }
        }
    };
    (within(covered).await, workers)
}

fn data(response: &TestResponse) -> Vec<Value> {
    let text = response.text();
    text.lines().filter_map(|it| serde_json::from_str(it.strip_prefix("data: ")?).ok()).collect()
}

fn content(response: &TestResponse) -> String {
    let events = data(response);
    events.iter().filter_map(|it| it.pointer("/choices/0/delta/content")?.as_str()).collect()
}

/// What the worker got that was to go on.
fn rest(workers: &[Scripted]) -> Value {
    let seen: Vec<Value> = workers.iter().flat_map(|it| it.seen.lock().clone()).map(|it| it.body).collect();
    seen.into_iter().rfind(|it| it.get("kv_transfer_params").is_some()).unwrap()
}

#[tokio::test]
async fn the_character_is_generated_again_by_the_worker_that_goes_on() {
    let (answer, workers) = ask(vllm, BODY).await;
    assert_eq!(content(&answer), "Hi\u{1F600}", "{}", answer.text());
    let usage = data(&answer).into_iter().find_map(|it| it.get("usage").cloned()).unwrap();
    assert_eq!(usage, json!({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}));
    let rest = rest(&workers);
    assert_eq!(rest["kv_transfer_params"]["prompt_token_ids"], json!([1, 2, 10]));
    assert_eq!(rest["max_tokens"], 8);
}

#[tokio::test]
async fn a_client_that_has_the_ids_gets_an_error_and_no_second_prompt() {
    let (answer, _workers) = ask(vllm, &BODY.replacen('{', r#"{"return_token_ids":true,"#, 1)).await;
    assert_eq!(content(&answer), "Hi", "{}", answer.text());
    assert_eq!(data(&answer).last().unwrap()["error"]["code"], "worker_failed");
}

#[tokio::test]
async fn a_worker_that_does_not_decode_goes_on_from_all_ids() {
    let (_answer, workers) = ask(vllm_behind_a_proxy, BODY).await;
    assert_eq!(rest(&workers)["kv_transfer_params"]["prompt_token_ids"], json!([1, 2, 10, 11]));
}
