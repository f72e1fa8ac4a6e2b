//! No prompt, answer or key leaves the process except to the worker: not in the log, not in metrics, not in the record.

use http::header::AUTHORIZATION;

use crate::client::{CHAT, chat, chat_stream, post};
use crate::program::{Engine, Serve};

const PROMPT: &str = "canary-prompt-5f1e";
const KEY: &str = "canary-key-77ab";

#[tokio::test]
async fn neither_prompt_nor_key_is_in_the_log_the_metrics_or_the_record() {
    let record = std::env::temp_dir().join(format!("maitre-secrecy-{}.jsonl", std::process::id()));
    let file = record.to_str().unwrap();
    let mut engines = Engine::start_some(1, &["--profile", "instant"]).await;
    let mut serve = Serve::start(&engines, &["--log-level", "trace", "--record", file]).await;
    let mut client = serve.client().await;
    let mut answers = Vec::new();
    let whole = with_canary(chat(20));
    // One that is not JSON is refused by us, one with a bad field by the engine; neither may be quoted.
    let bodies = [
        whole.to_string(),
        with_canary(chat_stream(20)).to_string(),
        format!("{{\"model\": \"maitre-sim\", {PROMPT}"),
        format!("{{\"model\": \"maitre-sim\", \"messages\": \"{PROMPT}\"}}"),
        whole.to_string().replace("\"max_tokens\":20", "\"max_tokens\":0"),
    ];
    for body in bodies {
        let mut request = post(CHAT, &serde_json::Value::Null);
        *request.body_mut() = body.into_bytes().into();
        request.headers_mut().insert(AUTHORIZATION, format!("Bearer {KEY}").parse().unwrap());
        let answer = client.begin(request).await.rest().await;
        answers.push(answer.status.as_u16());
    }
    assert_eq!(answers, [200, 200, 400, 400, 400]);
    // And once where no worker answers.
    let mut gone = engines.remove(0);
    gone.program.signal("KILL");
    gone.program.until_ends().await;
    assert_eq!(client.post(CHAT, &whole).await.status, 502);

    let page = serve.metrics().await;
    assert!(page.contains("maitre_requests_total"), "{page}");
    serve.program.signal("TERM");
    serve.program.until_ends().await;
    let log = serve.program.said();
    assert_eq!(log.matches("DEBUG").count().min(6), 6, "at least a line for each request: {log}");
    let record =
        std::fs::read_to_string(&record).inspect(|_| std::fs::remove_file(&record).unwrap()).unwrap();
    assert_eq!(record.lines().count(), 3, "the answered and the failed, not the mistaken: {record}");
    for canary in [PROMPT, KEY] {
        assert!(!record.contains(canary), "{canary} in the record:\n{record}");
        assert!(!log.contains(canary), "{canary} in the log:\n{log}");
        assert!(!page.contains(canary), "{canary} in the metrics:\n{page}");
    }
}

fn with_canary(mut body: serde_json::Value) -> serde_json::Value {
    body["messages"][0]["content"] = PROMPT.into();
    body["user"] = PROMPT.into();
    body
}
