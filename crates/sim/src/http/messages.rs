//! `/v1/messages`, Anthropic's shape: every event has a name, and there is no `[DONE]`.

use super::answer::{Answer, Script, Words};
use super::driver::Seen;
use crate::engine::Finish;

pub(super) fn script(answer: &Answer, seen: Seen) -> Script {
    let start = message(answer, "", "null", &usage(answer, seen, 0));
    let (block, before) = match &answer.words {
        Words::Seeded(_) => (r#"{"type":"text","text":""}"#.to_owned(), r#"{"type":"text_delta","text":""#),
        Words::Call(call) => (
            format!(
                r#"{{"type":"tool_use","id":"{}","name":"{}","input":{{}}}}"#,
                call_id(answer),
                call.name
            ),
            r#"{"type":"input_json_delta","partial_json":""#,
        ),
    };
    Script {
        opening: vec![
            event("message_start", &format!(r#""message":{start}"#)),
            event("content_block_start", &format!(r#""index":0,"content_block":{block}"#)),
        ],
        before: format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{before}"
        ),
        after: "\"}}\n\n".to_owned(),
        after_last: "\"}}\n\n".to_owned(),
        numbered_from: None,
    }
}

pub(super) fn closing(answer: &Answer, seen: Seen) -> Vec<String> {
    let delta = format!(
        r#""delta":{{"stop_reason":"{}","stop_sequence":null}},"usage":{}"#,
        stop_reason(answer),
        usage(answer, seen, answer.tokens)
    );
    vec![
        event("content_block_stop", r#""index":0"#),
        event("message_delta", &delta),
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n".to_owned(),
    ]
}

pub(super) fn whole(answer: &Answer, seen: Seen) -> String {
    let content = match &answer.words {
        Words::Seeded(_) => format!(r#"{{"type":"text","text":"{}"}}"#, answer.text()),
        Words::Call(call) => format!(
            r#"{{"type":"tool_use","id":"{}","name":"{}","input":{}}}"#,
            call_id(answer),
            call.name,
            input(answer)
        ),
    };
    let stop_reason = format!("\"{}\"", stop_reason(answer));
    message(answer, &content, &stop_reason, &usage(answer, seen, answer.tokens))
}

fn message(answer: &Answer, content: &str, stop_reason: &str, usage: &str) -> String {
    format!(
        r#"{{"id":"msg_{}","type":"message","role":"assistant","content":[{content}],"model":"{}","stop_reason":{stop_reason},"stop_sequence":null,"usage":{usage}}}"#,
        answer.id, answer.model
    )
}

fn event(name: &str, fields: &str) -> String {
    format!("event: {name}\ndata: {{\"type\":\"{name}\",{fields}}}\n\n")
}

/// Anthropic counts cached tokens apart from the others.
fn usage(answer: &Answer, seen: Seen, output_tokens: u32) -> String {
    format!(
        r#"{{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},"output_tokens":{output_tokens}}}"#,
        answer.prompt_tokens - seen.cached_tokens,
        seen.cached_tokens
    )
}

/// The arguments as an object, where a stream sends them as text. Cut short by a limit they are none.
fn input(answer: &Answer) -> String {
    let text: Option<String> = serde_json::from_str(&format!("\"{}\"", answer.text())).ok();
    let object = text.and_then(|it| serde_json::from_str::<serde_json::Value>(&it).ok());
    object.map_or_else(|| "{}".to_owned(), |it| it.to_string())
}

fn call_id(answer: &Answer) -> String {
    format!("toolu_{}", answer.id)
}

fn stop_reason(answer: &Answer) -> &'static str {
    match (answer.finish, &answer.words) {
        (Finish::Length, _) => "max_tokens",
        (Finish::Stop, Words::Seeded(_)) => "end_turn",
        (Finish::Stop, Words::Call(_)) => "tool_use",
    }
}
