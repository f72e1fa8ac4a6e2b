//! `/v1/completions` as vLLM words it, and SGLang's `/generate` in its plain form.
//!
//! `/generate` does not stream here: SGLang repeats the whole text in every event, which no test needs.

use super::answer::{EventNumber, PlannedAnswer, StreamTemplate};
use super::chat::{finish_reason, usage_and_done};
use super::driver::AnswerProgress;
use crate::engine::Finish;

pub(super) fn template(answer: &PlannedAnswer) -> StreamTemplate {
    let (ids, number) = match answer.prompt_ids {
        None => ("null}],\"usage\":null}\n\n", None),
        Some(_) => ("[", Some(EventNumber::TokenId("]}],\"usage\":null}\n\n"))),
    };
    let after = |reason: &str, prompt_ids: &str| {
        format!(
            "\",\"logprobs\":null,\"finish_reason\":{reason},\"stop_reason\":null,\"prompt_token_ids\":{prompt_ids},\"token_ids\":{ids}"
        )
    };
    let last = format!("\"{}\"", finish_reason(answer));
    let first = if answer.tokens == 1 { &last } else { "null" };
    StreamTemplate {
        opening: Vec::new(),
        before: format!(r#"data: {}"choices":[{{"index":0,"text":""#, head(answer)),
        after: after("null", "null"),
        after_first: answer.prompt_ids.as_deref().map(|it| after(first, it)),
        after_last: after(&last, "null"),
        number,
    }
}

pub(super) fn closing(answer: &PlannedAnswer, progress: AnswerProgress) -> Vec<String> {
    usage_and_done(answer, &head(answer), progress)
}

pub(super) fn whole(answer: &PlannedAnswer, progress: AnswerProgress) -> String {
    format!(
        r#"{}"choices":[{{"index":0,"text":"{}","logprobs":null,"finish_reason":"{}","stop_reason":null,"token_ids":{},"prompt_logprobs":null,"prompt_token_ids":{}}}],"service_tier":null,"system_fingerprint":null,"usage":{},"kv_transfer_params":{}}}"#,
        head(answer),
        answer.text(),
        finish_reason(answer),
        answer.token_ids(),
        answer.prompt_token_ids(),
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
