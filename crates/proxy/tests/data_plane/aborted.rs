//! Answers that a worker ends with `abort`, as vLLM and SGLang do when they shut down.

use maitre_proxy::{Router, RouterSettings};
use serde_json::{Value, json};

use crate::fixture::{Client, TestResponse, metric, settings, within};
use crate::styles::{Script, Scripted};

/// Engines write the reason behind the text.
fn whole(text: &str, reason: &str) -> String {
    format!(
        r#"{{"id":"c","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"{reason}"}}],"usage":{{"prompt_tokens":5,"completion_tokens":1}}}}"#
    )
}

fn stream(text: &str, reason: &str) -> String {
    let delta = json!({"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": reason});
    format!("data: {}\n\ndata: [DONE]\n\n", json!({"id": "c", "choices": [delta]}))
}

fn answer(body: &Value, text: &str, reason: &str) -> (u16, String) {
    (200, if body["stream"] == true { stream(text, reason) } else { whole(text, reason) })
}

type Reply = fn(&Value) -> (u16, String);

/// More than one read brings.
const LONG: usize = 100_000;

fn aborts(body: &Value) -> (u16, String) {
    answer(body, &"a".repeat(LONG), "abort")
}

fn answers(body: &Value) -> (u16, String) {
    answer(body, &"b".repeat(LONG), "stop")
}

/// The first answer of a router over these workers, asked until the first of them had a request.
async fn ask(replies: [Reply; 2], body: &'static str) -> (Vec<TestResponse>, String) {
    let mut workers = Vec::new();
    for reply in replies {
        workers.push(Scripted::start(Script { reply, query: "" }).await);
    }
    let settings = RouterSettings {
        workers: workers.iter().map(|it| format!("http://{}", it.addr).parse().unwrap()).collect(),
        ..settings()
    };
    let router = Router::start(settings).await.unwrap();
    within(router.until_all_ready()).await;
    let mut responses = Vec::new();
    let asked = async {
        while workers[0].seen.lock().is_empty() {
            responses.push(Client::connect(router.listen()).await.post("/v1/chat/completions", body).await);
        }
    };
    within(asked).await;
    (responses, router.metrics())
}

const WHOLE: &str = r#"{"model":"m","messages":[{"role":"user","content":"Hi"}]}"#;
const STREAM: &str = r#"{"model":"m","messages":[{"role":"user","content":"Hi"}],"stream":true}"#;
const ABANDONED: &str = r#"maitre_attempts_failed_total{failure="abandoned"}"#;

#[tokio::test]
async fn another_worker_answers_where_the_client_has_nothing_yet() {
    for (body, expected) in
        [(WHOLE, whole(&"b".repeat(LONG), "stop")), (STREAM, stream(&"b".repeat(LONG), "stop"))]
    {
        let short = |body: &Value| answer(body, "", "abort");
        let first: Reply = if body == STREAM { short } else { aborts };
        let (responses, metrics) = ask([first, answers], body).await;
        for response in responses {
            assert_eq!((response.status.as_u16(), response.text()), (200, expected.clone()));
        }
        assert_eq!(metric(&metrics, ABANDONED), 1.0, "{metrics}");
    }
}

#[tokio::test]
async fn what_all_workers_give_up_the_client_gets() {
    let (responses, _) = ask([aborts, aborts], WHOLE).await;
    assert_eq!(responses[0].text(), whole(&"a".repeat(LONG), "abort"));
}
