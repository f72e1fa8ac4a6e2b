//! `/v1/chat/completions` as vLLM words it.

use super::answer::{Answer, Script, Words};
use super::ask::Delivery;
use super::driver::Seen;
use crate::engine::Finish;

pub(super) fn script(answer: &Answer) -> Script {
    let head = head(answer, "chat.completion.chunk");
    let mut opening = vec![format!(
        r#"data: {head}"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],"prompt_token_ids":null}}"#
    )];
    let (before, end) = match &answer.words {
        Words::Seeded(_) => (r#"{"content":""#, r#""}"#),
        Words::Call(call) => {
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
    Script {
        opening,
        before: format!(r#"data: {head}"choices":[{{"index":0,"delta":{before}"#),
        after: format!("{end},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}}]}}\n\n"),
        after_last: format!(
            "{end},\"logprobs\":null,\"finish_reason\":\"{}\",\"stop_reason\":null,\"token_ids\":null}}]}}\n\n",
            finish_reason(answer)
        ),
        numbered_from: None,
    }
}

pub(super) fn closing(answer: &Answer, seen: Seen) -> Vec<String> {
    let mut events = Vec::new();
    if answer.delivery == (Delivery::Stream { usage: true }) {
        let head = head(answer, "chat.completion.chunk");
        events.push(format!("data: {head}\"choices\":[],\"usage\":{}}}\n\n", answer.usage(seen)));
    }
    events.push("data: [DONE]\n\n".to_owned());
    events
}

pub(super) fn whole(answer: &Answer, seen: Seen) -> String {
    let (content, tool_calls) = match &answer.words {
        Words::Seeded(_) => (format!("\"{}\"", answer.text()), String::new()),
        Words::Call(call) => (
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
        r#"{}"choices":[{{"index":0,"message":{{"role":"assistant","content":{content},"refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[{tool_calls}],"reasoning":null}},"logprobs":null,"finish_reason":"{}","stop_reason":null,"token_ids":null}}],"service_tier":null,"system_fingerprint":null,"usage":{},"prompt_logprobs":null,"prompt_token_ids":null,"kv_transfer_params":null}}"#,
        head(answer, "chat.completion"),
        finish_reason(answer),
        answer.usage(seen)
    )
}

fn head(answer: &Answer, object: &str) -> String {
    format!(
        r#"{{"id":"chatcmpl-{}","object":"{object}","created":{},"model":"{}","#,
        answer.id, answer.created, answer.model
    )
}

fn call_id(answer: &Answer) -> String {
    format!("chatcmpl-tool-{}", answer.id)
}

fn finish_reason(answer: &Answer) -> &'static str {
    match (answer.finish, &answer.words) {
        (Finish::Length, _) => "length",
        (Finish::Stop, Words::Seeded(_)) => "stop",
        (Finish::Stop, Words::Call(_)) => "tool_calls",
    }
}
