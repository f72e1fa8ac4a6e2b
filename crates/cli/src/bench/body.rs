//! The body of a request: the trace's prompt in the format of the API.
//!
//! A completion has the whole prompt as one text. A chat has it as one user message, unless pieces in the
//! middle are answers to earlier requests. Those become assistant messages, so that the template produces the
//! same tokens as when they were generated and the engine's cache hits.

use bytes::Bytes;
use maitre_sim::text;
use maitre_sim::trace::Request;
use serde::Serialize;

use super::answers::{Answers, Source};
use super::{Api, Plan};

/// A body, and how many answers are missing from it.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) bytes: Bytes,
    pub(super) missing: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Message {
    role: Role,
    content: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
    Assistant,
}

#[derive(Serialize)]
struct Fields<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<Vec<Message>>,
    max_tokens: u32,
    temperature: u32,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    exact: Option<Exact>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

/// Fields that vLLM and SGLang accept and OpenAI refuses: an answer of exactly the trace's length.
#[derive(Serialize)]
struct Exact {
    ignore_eos: bool,
    min_tokens: u32,
}

/// The body of a request that is sent now.
pub(super) fn compose(
    plan: &Plan,
    request: &Request,
    answers: &mut Answers,
) -> Result<Body, serde_json::Error> {
    let (messages, missing) = converse(request, answers);
    let (prompt, messages) = match plan.api {
        Api::Chat => (None, Some(messages)),
        Api::Completions => (Some(messages.into_iter().map(|it| it.content).collect()), None),
    };
    let tokens = request.answer_tokens.max(1);
    let fields = Fields {
        model: &plan.model,
        prompt,
        messages,
        max_tokens: tokens,
        temperature: 0,
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        exact: (!plan.plain).then_some(Exact { ignore_eos: true, min_tokens: tokens }),
    };
    Ok(Body { bytes: serde_json::to_vec(&fields)?.into(), missing })
}

/// The prompt as messages, and how many answers are missing from it.
fn converse(request: &Request, answers: &mut Answers) -> (Vec<Message>, u64) {
    let mut messages: Vec<Message> = Vec::new();
    let mut missing = 0;
    let last = request.prompt.len().saturating_sub(1);
    for (index, &piece) in request.prompt.iter().enumerate() {
        let source = answers.take(piece);
        // Templates require that the first and the last message are the user's.
        let role = match source != Source::Trace && index > 0 && index < last {
            true => Role::Assistant,
            false => Role::User,
        };
        missing += u64::from(source == Source::Missing);
        let content = match source {
            Source::Answer(text) => text,
            Source::Trace | Source::Missing => text::answer_text(piece.text, piece.tokens),
        };
        match messages.last_mut() {
            Some(message) if message.role == role => message.content.push_str(&content),
            _ => messages.push(Message { role, content }),
        }
    }
    (messages, missing)
}

#[cfg(test)]
mod tests {
    use maitre_base::Instant;
    use maitre_sim::trace::Piece;
    use serde_json::{Value, json};

    use super::*;

    fn request(answer: u64, texts: &[u64]) -> Request {
        Request {
            at: Instant::ZERO,
            prompt: texts.iter().map(|&text| Piece { text, tokens: 2 }).collect(),
            answer_tokens: 5,
            answer,
            ..Request::default()
        }
    }

    /// The second of two requests, after the first was answered with "words".
    fn second(plan: &Plan, texts: &[u64]) -> (Value, u64) {
        let requests = [request(7, &[1]), request(8, texts)];
        let mut answers = Answers::of(&requests);
        compose(plan, &requests[0], &mut answers).unwrap();
        answers.keep(7, "words".to_owned(), 2);
        let body = compose(plan, &requests[1], &mut answers).unwrap();
        (serde_json::from_slice(&body.bytes).unwrap(), body.missing)
    }

    fn plan(api: Api) -> Plan {
        Plan { api, ..Plan::new("http://127.0.0.1:1".parse().unwrap(), "m") }
    }

    #[test]
    fn an_earlier_answer_becomes_an_assistant_message() {
        let [one, two] = [1, 2].map(|it| text::answer_text(it, 2));
        let (body, missing) = second(&plan(Api::Chat), &[1, 7, 2]);
        let expected = json!([
            {"role": "user", "content": one},
            {"role": "assistant", "content": "words"},
            {"role": "user", "content": two},
        ]);
        assert_eq!((&body["messages"], missing), (&expected, 0));
        let (body, _) = second(&plan(Api::Chat), &[1, 7]);
        assert_eq!(body["messages"], json!([{"role": "user", "content": format!("{one}words")}]));
        let (body, _) = second(&plan(Api::Completions), &[1, 7, 2]);
        assert_eq!(body["prompt"], format!("{one}words{two}"));
    }

    #[test]
    fn a_plain_request_has_only_openai_fields() {
        let (body, _) = second(&plan(Api::Completions), &[1]);
        assert_eq!((&body["ignore_eos"], &body["min_tokens"]), (&json!(true), &json!(5)));
        let (body, _) = second(&Plan { plain: true, ..plan(Api::Completions) }, &[1]);
        let keys: Vec<&String> = body.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["max_tokens", "model", "prompt", "stream", "stream_options", "temperature"]);
    }
}
