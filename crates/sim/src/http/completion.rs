//! `/v1/completions` as vLLM words it, and SGLang's `/generate` in its plain form.
//!
//! `/generate` does not stream here: SGLang repeats the whole text in every event, and nothing we test
//! wants that.

use super::answer::{Answer, Script};
use super::ask::Delivery;
use super::driver::Seen;
use crate::engine::Finish;

pub(super) fn script(answer: &Answer) -> Script {
    let after = |reason: &str| {
        format!(
            "\",\"logprobs\":null,\"finish_reason\":{reason},\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}}],\"usage\":null}}\n\n"
        )
    };
    Script {
        opening: Vec::new(),
        before: format!(r#"data: {}"choices":[{{"index":0,"text":""#, head(answer)),
        after: after("null"),
        after_last: after(&format!("\"{}\"", finish_reason(answer))),
        numbered_from: None,
    }
}

pub(super) fn closing(answer: &Answer, seen: Seen) -> Vec<String> {
    let mut events = Vec::new();
    if answer.delivery == (Delivery::Stream { usage: true }) {
        events.push(format!("data: {}\"choices\":[],\"usage\":{}}}\n\n", head(answer), answer.usage(seen)));
    }
    events.push("data: [DONE]\n\n".to_owned());
    events
}

pub(super) fn whole(answer: &Answer, seen: Seen) -> String {
    format!(
        r#"{}"choices":[{{"index":0,"text":"{}","logprobs":null,"finish_reason":"{}","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null}}],"service_tier":null,"system_fingerprint":null,"usage":{},"kv_transfer_params":null}}"#,
        head(answer),
        answer.text(),
        finish_reason(answer),
        answer.usage(seen)
    )
}

pub(super) fn generated(answer: &Answer, seen: Seen) -> String {
    let finish = match answer.finish {
        Finish::Stop => r#"{"type":"stop","matched":0}"#.to_owned(),
        Finish::Length => format!(r#"{{"type":"length","length":{}}}"#, answer.tokens),
    };
    format!(
        r#"{{"text":"{}","meta_info":{{"id":"{}","finish_reason":{finish},"prompt_tokens":{},"completion_tokens":{},"cached_tokens":{}}}}}"#,
        answer.text(),
        answer.id,
        answer.prompt_tokens,
        answer.tokens,
        seen.cached_tokens
    )
}

fn head(answer: &Answer) -> String {
    format!(
        r#"{{"id":"cmpl-{}","object":"text_completion","created":{},"model":"{}","#,
        answer.id, answer.created, answer.model
    )
}

fn finish_reason(answer: &Answer) -> &'static str {
    match answer.finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}
