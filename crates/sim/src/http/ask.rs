//! What a client asks for: the JSON of the five generating routes, read once into one value.
//!
//! The routes disagree on where the prompt is and what its limit is called, and on nothing else that an
//! engine without weights cares about. So there is one list of fields, of which each route uses its own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::Refusal;
use super::tool::{self, Call};
use crate::text::{Part, Prompt};

/// The fields we read; all others are the engine's business, and we have none with them.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Fields<'a> {
    pub(super) model: Option<String>,
    #[serde(borrow)]
    messages: Option<Vec<Message<'a>>>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    /// Of `/v1/responses`.
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    instructions: Option<String>,
    /// Of `/v1/messages`.
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    /// Of `/generate`.
    text: Option<String>,
    input_ids: Option<Vec<u32>>,
    #[serde(deserialize_with = "or_default")]
    sampling_params: Sampling,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_choice: Option<&'a RawValue>,
    stream: Option<bool>,
    #[serde(deserialize_with = "or_default")]
    stream_options: StreamOptions,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    max_output_tokens: Option<u32>,
    min_tokens: Option<u32>,
    ignore_eos: Option<bool>,
    cache_salt: Option<String>,
    n: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Sampling {
    max_new_tokens: Option<u32>,
    ignore_eos: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
struct Message<'a> {
    role: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
    /// Of the items `function_call` and `function_call_output` of `/v1/responses`.
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output: Option<&'a RawValue>,
}

/// The wording of a request and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Chat,
    Completion,
    Responses,
    Messages,
    Generate,
}

#[derive(Debug)]
pub(super) struct Ask {
    pub(super) model: Option<String>,
    pub(super) prompt: Vec<u32>,
    pub(super) salt: String,
    pub(super) delivery: Delivery,
    pub(super) max_tokens: Option<u32>,
    pub(super) min_tokens: u32,
    pub(super) ignore_eos: bool,
    /// The tool that must be called, if one must.
    pub(super) call: Option<Call>,
}

/// How an answer is to be sent. A whole one always tells its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Whole,
    Stream { usage: bool },
}

/// vLLM's limit for `/v1/completions` when none is given.
const COMPLETION_TOKENS: u32 = 16;

/// SGLang's limit for `/generate` when none is given.
const GENERATE_TOKENS: u32 = 128;

impl Ask {
    pub(super) fn parse(shape: Shape, body: &[u8]) -> Result<Ask, Refusal> {
        with_fields(body, |fields| Ask::read(shape, fields))
    }

    fn read(shape: Shape, fields: Fields<'_>) -> Result<Ask, Refusal> {
        if fields.n.is_some_and(|n| n != 1) {
            return Err(Refusal::bad_request("n: only one answer for each request is simulated"));
        }
        let max_tokens = fields.max_tokens_of(shape)?;
        if max_tokens == Some(0) {
            return Err(Refusal::bad_request("max_tokens must be at least 1, got 0"));
        }
        let delivery = match fields.stream {
            Some(true) => Delivery::Stream { usage: fields.stream_options.include_usage.unwrap_or(false) },
            _ => Delivery::Whole,
        };
        Ok(Ask {
            prompt: fields.prompt_of(shape)?,
            call: tool::forced(shape, fields.tools, fields.tool_choice)?,
            model: fields.model,
            salt: fields.cache_salt.unwrap_or_default(),
            delivery,
            max_tokens,
            min_tokens: fields.min_tokens.unwrap_or(0),
            ignore_eos: fields.ignore_eos.or(fields.sampling_params.ignore_eos).unwrap_or(false),
        })
    }
}

/// The prompt of `/tokenize`: messages, or text.
pub(super) fn parse_prompt(body: &[u8]) -> Result<Vec<u32>, Refusal> {
    with_fields(body, |fields| {
        let shape = if fields.messages.is_some() { Shape::Chat } else { Shape::Completion };
        fields.prompt_of(shape)
    })
}

/// Engines read JSON as Python does: of a repeated key the last one counts. Serde refuses it, so a body it
/// refuses is read again with every key once.
fn with_fields<T>(body: &[u8], read: impl FnOnce(Fields<'_>) -> Result<T, Refusal>) -> Result<T, Refusal> {
    if let Ok(fields) = serde_json::from_slice(body) {
        return read(fields);
    }
    let last: BTreeMap<String, &RawValue> = serde_json::from_slice(body)?;
    let body = serde_json::to_vec(&last)?;
    read(serde_json::from_slice(&body)?)
}

impl Fields<'_> {
    fn max_tokens_of(&self, shape: Shape) -> Result<Option<u32>, Refusal> {
        Ok(match shape {
            Shape::Chat => self.max_completion_tokens.or(self.max_tokens),
            Shape::Completion => Some(self.max_tokens.unwrap_or(COMPLETION_TOKENS)),
            Shape::Responses => self.max_output_tokens,
            Shape::Messages => {
                Some(self.max_tokens.ok_or_else(|| Refusal::bad_request("max_tokens: field required"))?)
            }
            Shape::Generate => Some(self.sampling_params.max_new_tokens.unwrap_or(GENERATE_TOKENS)),
        })
    }

    fn prompt_of(&self, shape: Shape) -> Result<Vec<u32>, Refusal> {
        let missing = |field: &str| Refusal::bad_request(format!("{field}: field required"));
        match shape {
            Shape::Chat | Shape::Messages => {
                let messages = self.messages.as_deref().ok_or_else(|| missing("messages"))?;
                self.chat(self.system.map(parts).transpose()?, messages)
            }
            Shape::Responses => {
                let input = self.input.ok_or_else(|| missing("input"))?;
                let system = self.instructions.clone().map(|text| vec![Part::Text(text)]);
                match input.get().starts_with('[') {
                    true => self.chat(system, &serde_json::from_str::<Vec<Message<'_>>>(input.get())?),
                    false => self.chat(system, &[Message::user(input)]),
                }
            }
            Shape::Completion => prompt(self.prompt.ok_or_else(|| missing("prompt"))?),
            Shape::Generate => match (&self.text, &self.input_ids) {
                (Some(text), _) => Ok(tokens(text)),
                (None, Some(ids)) => Ok(ids.clone()),
                (None, None) => Err(missing("text")),
            },
        }
    }

    fn chat(&self, system: Option<Vec<Part>>, messages: &[Message<'_>]) -> Result<Vec<u32>, Refusal> {
        if messages.is_empty() {
            return Err(Refusal::bad_request("messages: at least one is required"));
        }
        let mut prompt = Prompt::default();
        if let Some(tools) = self.tools {
            prompt.message("system", &[Part::Text(format!("# Tools\n{}", tools.get()))]);
        }
        if let Some(system) = system {
            prompt.message("system", &system);
        }
        for message in messages {
            let role = message.role.as_deref().or(message.kind.as_deref()).unwrap_or("user");
            prompt.message(role, &message.parts()?);
        }
        prompt.open_answer();
        Ok(prompt.into_tokens())
    }
}

impl<'a> Message<'a> {
    fn user(content: &'a RawValue) -> Message<'a> {
        let content = Some(content);
        Message { role: None, kind: None, content, tool_calls: None, arguments: None, output: None }
    }

    fn parts(&self) -> Result<Vec<Part>, Refusal> {
        let mut all = Vec::new();
        for content in [self.content, self.arguments, self.output].into_iter().flatten() {
            all.extend(parts(content)?);
        }
        all.extend(self.tool_calls.map(|calls| Part::Text(calls.get().to_owned())));
        Ok(all)
    }
}

/// A null is as good as nothing.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

pub(super) fn tokens(text: &str) -> Vec<u32> {
    let mut prompt = Prompt::default();
    prompt.text(text);
    prompt.into_tokens()
}

/// A text, a list of token ids, or a list of one of these.
fn prompt(raw: &RawValue) -> Result<Vec<u32>, Refusal> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        Text(String),
        Tokens(Vec<u32>),
        Texts([String; 1]),
        TokenLists([Vec<u32>; 1]),
    }
    let given = serde_json::from_str(raw.get()).map_err(|_| {
        Refusal::bad_request("prompt: a string, a list of token ids, or a list of one of these is expected")
    })?;
    Ok(match given {
        Given::Text(text) | Given::Texts([text]) => tokens(&text),
        Given::Tokens(ids) | Given::TokenLists([ids]) => ids,
    })
}

/// The content of a message: a string or a list of parts. Neighbouring texts are one, so that both ways to
/// write a plain message are the same prompt.
fn parts(raw: &RawValue) -> Result<Vec<Part>, Refusal> {
    #[derive(Deserialize)]
    struct Fields {
        #[serde(rename = "type", default)]
        kind: String,
        #[serde(default)]
        text: Option<String>,
    }
    let content = raw.get();
    if !content.starts_with('[') {
        let text: Option<String> = serde_json::from_str(content)?;
        return Ok(text.map(Part::Text).into_iter().collect());
    }
    let mut all = Vec::new();
    for raw in serde_json::from_str::<Vec<&RawValue>>(content)? {
        let fields: Fields = serde_json::from_str(raw.get())?;
        let text = match fields.text {
            Some(text) => text,
            None if fields.kind.contains("image") => {
                all.push(Part::Image(raw.get().to_owned()));
                continue;
            }
            // A tool's result, a file: its JSON is as good a text as any.
            None => raw.get().to_owned(),
        };
        match all.last_mut() {
            Some(Part::Text(before)) => before.push_str(&text),
            _ => all.push(Part::Text(text)),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt_of(shape: Shape, body: &str) -> String {
        crate::text::decode(&Ask::parse(shape, body.as_bytes()).unwrap().prompt)
    }

    #[track_caller]
    fn check_refused(shape: Shape, body: &str, expected: &str) {
        let refusal = Ask::parse(shape, body.as_bytes()).unwrap_err().to_json();
        assert!(refusal.contains(expected), "{refusal}");
    }

    const CHAT: &str = "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n";

    #[test]
    fn a_chat_is_rendered_with_its_template() {
        assert_eq!(prompt_of(Shape::Chat, r#"{"messages":[{"role":"user","content":"Hi there"}]}"#), CHAT);
    }

    #[test]
    fn a_list_of_texts_is_the_same_prompt_as_their_sum() {
        let body = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"Hi "},{"type":"text","text":"there"}]}]}"#;
        assert_eq!(prompt_of(Shape::Chat, body), CHAT);
    }

    #[test]
    fn responses_take_a_string_or_messages() {
        assert_eq!(prompt_of(Shape::Responses, r#"{"input":"Hi there"}"#), CHAT);
        let items = r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"Hi there"}]}]}"#;
        assert_eq!(prompt_of(Shape::Responses, items), CHAT);
    }

    #[test]
    fn tools_and_system_come_first() {
        let body = r#"{"max_tokens":1,"system":"Be kind.","tools":[{"name":"f"}],"messages":[{"role":"user","content":"Hi there"}]}"#;
        let rest = format!("<|im_start|>system\nBe kind.<|im_end|>\n{CHAT}");
        let expected = format!("<|im_start|>system\n# Tools\n[{{\"name\":\"f\"}}]<|im_end|>\n{rest}");
        assert_eq!(prompt_of(Shape::Messages, body), expected);
    }

    #[test]
    fn a_completion_takes_text_or_tokens() {
        for body in [r#"{"prompt":"abcd"}"#, r#"{"prompt":["abcd"]}"#, r#"{"prompt":[1684234849]}"#] {
            assert_eq!(prompt_of(Shape::Completion, body), "abcd");
        }
        check_refused(Shape::Completion, r#"{"prompt":["a","b"]}"#, "prompt: ");
    }

    #[test]
    fn what_is_missing_is_named() {
        check_refused(Shape::Chat, "{", "not the JSON");
        check_refused(Shape::Chat, "{}", "messages: field required");
        check_refused(Shape::Chat, r#"{"messages":[]}"#, "at least one");
        check_refused(Shape::Responses, "{}", "input: field required");
        check_refused(Shape::Messages, r#"{"messages":[]}"#, "max_tokens: field required");
        check_refused(Shape::Chat, r#"{"n":2,"messages":[]}"#, "n: ");
        check_refused(Shape::Chat, r#"{"max_tokens":0,"messages":[]}"#, "at least 1");
    }

    #[test]
    fn nulls_are_as_good_as_nothing() {
        let body = r#"{"model":null,"stream":null,"tools":null,"stream_options":null,"tool_choice":null,"max_tokens":null,
            "messages":[{"role":"user","content":"Hi there"},{"role":"assistant","content":null,"tool_calls":null}]}"#;
        assert!(prompt_of(Shape::Chat, body).starts_with("<|im_start|>user"));
    }
}
