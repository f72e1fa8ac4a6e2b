//! `/v1/completions` as vLLM words it, and SGLang's `/generate` in its plain form.
//!
//! `/generate` does not stream here: SGLang repeats the whole text in every event, which no test needs.

use super::answer::{PlannedAnswer, StreamTemplate};
use super::chat::{finish_reason, usage_and_done};
use super::driver::AnswerProgress;
use crate::engine::Finish;

pub(super) fn template(answer: &PlannedAnswer) -> StreamTemplate {
    let after = |reason: &str| {
        format!(
            "\",\"logprobs\":null,\"finish_reason\":{reason},\"stop_reason\":null,\"prompt_token_ids\":null,\"token_ids\":null}}],\"usage\":null}}\n\n"
        )
    };
    StreamTemplate {
        opening: Vec::new(),
        before: format!(r#"data: {}"choices":[{{"index":0,"text":""#, head(answer)),
        after: after("null"),
        after_last: after(&format!("\"{}\"", finish_reason(answer))),
        numbered_from: None,
    }
}

pub(super) fn closing(answer: &PlannedAnswer, progress: AnswerProgress) -> Vec<String> {
    usage_and_done(answer, &head(answer), progress)
}

pub(super) fn whole(answer: &PlannedAnswer, progress: AnswerProgress) -> String {
    format!(
        r#"{}"choices":[{{"index":0,"text":"{}","logprobs":null,"finish_reason":"{}","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null}}],"service_tier":null,"system_fingerprint":null,"usage":{},"kv_transfer_params":{}}}"#,
        head(answer),
        answer.text(),
        finish_reason(answer),
        answer.usage(progress),
        answer.kv_transfer_params
    )
}

pub(super) fn generated(answer: &PlannedAnswer, progress: AnswerProgress) -> String {
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
        progress.cached_tokens
    )
}

fn head(answer: &PlannedAnswer) -> String {
    format!(
        r#"{{"id":"cmpl-{}","object":"text_completion","created":{},"model":"{}","#,
        answer.id, answer.created, answer.model
    )
}
