//! `/v1/chat/completions` as vLLM words it.

use super::answer::{AnswerText, EventNumber, PlannedAnswer, StreamTemplate};
use super::brand::Brand;
use super::driver::AnswerProgress;
use super::request::Delivery;
use crate::engine::Finish;

pub(super) fn template(answer: &PlannedAnswer) -> StreamTemplate {
    let head = head(answer, "chat.completion.chunk");
    let prompt_ids = answer.prompt_token_ids();
    let role = r#""index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null"#;
    let mut opening = vec![match answer.brand {
        Brand::Vllm => {
            format!(r#"data: {head}"choices":[{{{role}}}],"prompt_token_ids":{prompt_ids}}}"#)
        }
        Brand::Sglang => {
            format!(r#"data: {head}"choices":[{{{role},"prompt_token_ids":{prompt_ids}}}]}}"#)
        }
    }];
    let (ids, number) = match answer.prompt_ids {
        None => ("null}]}\n\n", None),
        Some(_) => ("[", Some(EventNumber::TokenId("]}]}\n\n"))),
    };
    let (before, end) = match &answer.words {
        AnswerText::Speech(_) => (r#"{"content":""#, r#""}"#),
        AnswerText::ToolCall(call) => {
            opening.push(format!(
                r#"data: {head}"choices":[{{"index":0,"delta":{{"tool_calls":[{{"id":"{}","type":"function","index":0,"function":{{"name":"{}","arguments":""}}}}]}},"logprobs":null,"finish_reason":null}}]}}"#,
                call_id(answer),
                call.name
            ));
            (r#"{"tool_calls":[{"index":0,"function":{"arguments":""#, r#""}}]}"#)
        }
    };
    for event in &mut opening {
        event.push_str("\n\n");
    }
    StreamTemplate {
        opening,
        before: format!(r#"data: {head}"choices":[{{"index":0,"delta":{before}"#),
        after: format!("{end},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":{ids}"),
        after_last: format!(
            "{end},\"logprobs\":null,\"finish_reason\":\"{}\",\"stop_reason\":null,\"token_ids\":{ids}",
            finish_reason(answer)
        ),
        after_first: None,
        number,
    }
}

pub(super) fn closing(answer: &PlannedAnswer, progress: AnswerProgress) -> Vec<String> {
    usage_and_done(answer, &head(answer, "chat.completion.chunk"), progress)
}

/// The last events of OpenAI's streams: the usage, if it was requested, and the end mark.
pub(super) fn usage_and_done(answer: &PlannedAnswer, head: &str, progress: AnswerProgress) -> Vec<String> {
    let mut events = Vec::new();
    if answer.delivery == (Delivery::EventStream { usage: true }) {
        events.push(format!("data: {head}\"choices\":[],\"usage\":{}}}\n\n", answer.usage(progress)));
    }
    events.push("data: [DONE]\n\n".to_owned());
    events
}

pub(super) fn whole(answer: &PlannedAnswer, progress: AnswerProgress) -> String {
    let (content, tool_calls) = match &answer.words {
        AnswerText::Speech(_) => (format!("\"{}\"", answer.text()), String::new()),
        AnswerText::ToolCall(call) => (
            "null".to_owned(),
            format!(
                r#"{{"id":"{}","type":"function","function":{{"name":"{}","arguments":"{}"}}}}"#,
                call_id(answer),
                call.name,
                answer.text()
            ),
        ),
    };
    format!(
        r#"{}"choices":[{{"index":0,"message":{{"role":"assistant","content":{content},"refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[{tool_calls}],"reasoning":null}},"logprobs":null,"finish_reason":"{}","stop_reason":null,"token_ids":{}}}],"service_tier":null,"system_fingerprint":null,"usage":{},"prompt_logprobs":null,"prompt_token_ids":{},"kv_transfer_params":{}}}"#,
        head(answer, "chat.completion"),
        finish_reason(answer),
        answer.token_ids(),
        answer.usage(progress),
        answer.prompt_token_ids(),
        answer.kv_transfer_params
    )
}

fn head(answer: &PlannedAnswer, object: &str) -> String {
    format!(
        r#"{{"id":"chatcmpl-{}","object":"{object}","created":{},"model":"{}","#,
        answer.id, answer.created, answer.model
    )
}

fn call_id(answer: &PlannedAnswer) -> String {
    format!("chatcmpl-tool-{}", answer.id)
}

pub(super) fn finish_reason(answer: &PlannedAnswer) -> &'static str {
    match (answer.finish, &answer.words) {
        (Finish::Length, _) => "length",
        (Finish::Stop, AnswerText::Speech(_)) => "stop",
        (Finish::Stop, AnswerText::ToolCall(_)) => "tool_calls",
    }
}
