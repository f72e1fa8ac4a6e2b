//! `/v1/responses`: named and numbered events around one message of text.
//!
//! Nothing is stored: a response cannot be fetched or continued by its id afterwards.

use super::answer::{EventNumber, PlannedAnswer, StreamTemplate};
use super::driver::AnswerProgress;
use crate::engine::Finish;

/// Events before the first token: the response twice, its message, the message's text.
const OPENING_EVENTS: u32 = 4;

pub(super) fn template(answer: &PlannedAnswer) -> StreamTemplate {
    let empty = response(answer, "in_progress", "", "null");
    let item = item_id(answer);
    let message = message(answer, "in_progress", "");
    let part = format!(r#""item_id":"{item}","output_index":0,"content_index":0"#);
    let after = "\",\"logprobs\":[],\"sequence_number\":".to_owned();
    StreamTemplate {
        opening: vec![
            event("response.created", 0, &format!(r#""response":{empty}"#)),
            event("response.in_progress", 1, &format!(r#""response":{empty}"#)),
            event("response.output_item.added", 2, &format!(r#""output_index":0,"item":{message}"#)),
            event("response.content_part.added", 3, &format!(r#"{part},"part":{}"#, text_part(""))),
        ],
        before: format!(
            "event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",{part},\"delta\":\""
        ),
        after_last: after.clone(),
        after,
        after_first: None,
        number: Some(EventNumber::From(OPENING_EVENTS)),
    }
}

pub(super) fn closing(answer: &PlannedAnswer, progress: AnswerProgress) -> Vec<String> {
    let item = item_id(answer);
    let text = answer.text();
    let message = message(answer, "completed", &text_part(&text));
    let part = format!(r#""item_id":"{item}","output_index":0,"content_index":0"#);
    let number = OPENING_EVENTS + answer.tokens;
    let last = match answer.finish {
        Finish::Stop => "response.completed",
        Finish::Length => "response.incomplete",
    };
    vec![
        event("response.output_text.done", number, &format!(r#"{part},"text":"{text}","logprobs":[]"#)),
        event("response.content_part.done", number + 1, &format!(r#"{part},"part":{}"#, text_part(&text))),
        event("response.output_item.done", number + 2, &format!(r#""output_index":0,"item":{message}"#)),
        event(last, number + 3, &format!(r#""response":{}"#, whole(answer, progress))),
    ]
}

pub(super) fn whole(answer: &PlannedAnswer, progress: AnswerProgress) -> String {
    let message = message(answer, "completed", &text_part(&answer.text()));
    let usage = format!(
        r#"{{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{}}},"output_tokens":{},"output_tokens_details":{{"reasoning_tokens":0}},"total_tokens":{}}}"#,
        answer.prompt_tokens,
        progress.cached_tokens,
        answer.tokens,
        answer.prompt_tokens + answer.tokens
    );
    let status = match answer.finish {
        Finish::Stop => "completed",
        Finish::Length => "incomplete",
    };
    response(answer, status, &message, &usage)
}

fn response(answer: &PlannedAnswer, status: &str, output: &str, usage: &str) -> String {
    let details = match status {
        "incomplete" => r#"{"reason":"max_output_tokens"}"#,
        _ => "null",
    };
    format!(
        r#"{{"id":"resp_{}","object":"response","created_at":{},"status":"{status}","error":null,"incomplete_details":{details},"instructions":null,"metadata":null,"model":"{}","output":[{output}],"parallel_tool_calls":true,"temperature":1.0,"tool_choice":"auto","tools":[],"top_p":1.0,"usage":{usage}}}"#,
        answer.id, answer.created, answer.model
    )
}

fn message(answer: &PlannedAnswer, status: &str, content: &str) -> String {
    format!(
        r#"{{"id":"{}","type":"message","role":"assistant","status":"{status}","content":[{content}]}}"#,
        item_id(answer)
    )
}

fn text_part(text: &str) -> String {
    format!(r#"{{"type":"output_text","text":"{text}","annotations":[],"logprobs":null}}"#)
}

fn event(name: &str, number: u32, fields: &str) -> String {
    format!("event: {name}\ndata: {{\"type\":\"{name}\",{fields},\"sequence_number\":{number}}}\n\n")
}

fn item_id(answer: &PlannedAnswer) -> String {
    format!("msg_{}", answer.id)
}
