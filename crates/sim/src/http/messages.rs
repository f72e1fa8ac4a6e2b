//! `/v1/messages`, Anthropic's shape: every event has a name, and there is no `[DONE]`.

use super::answer::{AnswerText, PlannedAnswer, StreamTemplate};
use super::driver::AnswerProgress;
use crate::engine::Finish;

pub(super) fn template(answer: &PlannedAnswer, progress: AnswerProgress) -> StreamTemplate {
    let start = message(answer, "", "null", &usage(answer, progress, 0));
    let (block, before) = match &answer.words {
        AnswerText::Speech(_) => {
            (r#"{"type":"text","text":""}"#.to_owned(), r#"{"type":"text_delta","text":""#)
        }
        AnswerText::ToolCall(call) => (
            format!(
                r#"{{"type":"tool_use","id":"{}","name":"{}","input":{{}}}}"#,
                call_id(answer),
                call.name
            ),
            r#"{"type":"input_json_delta","partial_json":""#,
        ),
    };
    StreamTemplate {
        opening: vec![
            event("message_start", &format!(r#""message":{start}"#)),
            event("content_block_start", &format!(r#""index":0,"content_block":{block}"#)),
        ],
        before: format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{before}"
        ),
        after: "\"}}\n\n".to_owned(),
        after_last: "\"}}\n\n".to_owned(),
        after_first: None,
        number: None,
    }
}

pub(super) fn closing(answer: &PlannedAnswer, progress: AnswerProgress) -> Vec<String> {
    let delta = format!(
        r#""delta":{{"stop_reason":"{}","stop_sequence":null}},"usage":{}"#,
        stop_reason(answer),
        usage(answer, progress, answer.tokens)
    );
    vec![
        event("content_block_stop", r#""index":0"#),
        event("message_delta", &delta),
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n".to_owned(),
    ]
}

/// The event of a stream that fails.
pub(super) fn failure() -> String {
    let error = r#""error":{"type":"InternalServerError","message":"Internal server error"}"#;
    event("error", error)
}

pub(super) fn whole(answer: &PlannedAnswer, progress: AnswerProgress) -> String {
    let content = match &answer.words {
        AnswerText::Speech(_) => format!(r#"{{"type":"text","text":"{}"}}"#, answer.text()),
        AnswerText::ToolCall(call) => format!(
            r#"{{"type":"tool_use","id":"{}","name":"{}","input":{}}}"#,
            call_id(answer),
            call.name,
            input(answer)
        ),
    };
    let stop_reason = format!("\"{}\"", stop_reason(answer));
    message(answer, &content, &stop_reason, &usage(answer, progress, answer.tokens))
}

fn message(answer: &PlannedAnswer, content: &str, stop_reason: &str, usage: &str) -> String {
    format!(
        r#"{{"id":"msg_{}","type":"message","role":"assistant","content":[{content}],"model":"{}","stop_reason":{stop_reason},"stop_sequence":null,"usage":{usage}}}"#,
        answer.id, answer.model
    )
}

fn event(name: &str, fields: &str) -> String {
    format!("event: {name}\ndata: {{\"type\":\"{name}\",{fields}}}\n\n")
}

/// Anthropic counts cached tokens separately from the others.
fn usage(answer: &PlannedAnswer, progress: AnswerProgress, output_tokens: u32) -> String {
    format!(
        r#"{{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},"output_tokens":{output_tokens}}}"#,
        answer.prompt_tokens - progress.cached_tokens,
        progress.cached_tokens
    )
}

/// The arguments as an object; a stream sends them as text. If a limit cut them short, an empty object.
fn input(answer: &PlannedAnswer) -> String {
    let text: Option<String> = serde_json::from_str(&format!("\"{}\"", answer.text())).ok();
    let object = text.and_then(|it| serde_json::from_str::<serde_json::Value>(&it).ok());
    object.map_or_else(|| "{}".to_owned(), |it| it.to_string())
}

fn call_id(answer: &PlannedAnswer) -> String {
    format!("toolu_{}", answer.id)
}

fn stop_reason(answer: &PlannedAnswer) -> &'static str {
    match (answer.finish, &answer.words) {
        (Finish::Length, _) => "max_tokens",
        (Finish::Stop, AnswerText::Speech(_)) => "end_turn",
        (Finish::Stop, AnswerText::ToolCall(_)) => "tool_use",
    }
}
