//! A generation request: the JSON of the five generating routes, parsed into one value.
//!
//! The routes differ only in where the prompt is and what its limit is called; nothing else matters to this engine.
//! There is one list of fields, of which each route uses its own.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::api_format::ApiFormat;
use super::error::ApiError;
use super::tool::{self, ToolCall};
use crate::text::{MessagePart, Prompt};

/// The fields that matter here; all others are ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RequestFields<'a> {
    pub(super) model: Option<String>,
    #[serde(borrow)]
    messages: Option<Vec<RequestMessage<'a>>>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    /// For `/v1/responses`.
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    instructions: Option<String>,
    /// For `/v1/messages`.
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    /// For `/generate`.
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
    return_token_ids: Option<bool>,
    #[serde(borrow)]
    kv_transfer_params: Option<&'a RawValue>,
    #[serde(borrow)]
    bootstrap_host: Option<&'a RawValue>,
    #[serde(borrow)]
    bootstrap_port: Option<&'a RawValue>,
    #[serde(borrow)]
    bootstrap_room: Option<&'a RawValue>,
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
struct RequestMessage<'a> {
    role: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
    /// For the items `function_call` and `function_call_output` of `/v1/responses`.
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default)]
    output: Option<&'a RawValue>,
}

#[derive(Debug)]
pub(super) struct GenerateRequest {
    pub(super) model: Option<String>,
    pub(super) prompt: Vec<u32>,
    pub(super) salt: String,
    pub(super) delivery: Delivery,
    pub(super) max_tokens: Option<u32>,
    pub(super) min_tokens: u32,
    pub(super) ignore_eos: bool,
    /// The tool that must be called, if one must.
    pub(super) call: Option<ToolCall>,
    /// Whether the answer includes token ids.
    pub(super) returns_ids: bool,
    pub(super) transfer: TransferFields,
}

/// The connector's fields, as JSON. Without a connector they are ignored, with any content.
#[derive(Debug, Default)]
pub(super) struct TransferFields {
    pub(super) kv_transfer_params: Option<String>,
    /// SGLang's fields.
    pub(super) bootstrap_host: Option<String>,
    pub(super) bootstrap_port: Option<String>,
    pub(super) bootstrap_room: Option<String>,
}

/// How an answer is sent. A complete one always includes its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Whole,
    EventStream { usage: bool },
}

/// vLLM's limit for `/v1/completions` when none is given.
const COMPLETION_TOKENS: u32 = 16;

/// SGLang's limit for `/generate` when none is given.
const GENERATE_TOKENS: u32 = 128;

impl GenerateRequest {
    pub(super) fn parse(api: ApiFormat, body: &[u8]) -> Result<GenerateRequest, ApiError> {
        with_fields(body, |fields| GenerateRequest::read(api, fields))
    }

    fn read(api: ApiFormat, fields: RequestFields<'_>) -> Result<GenerateRequest, ApiError> {
        if fields.n.is_some_and(|n| n != 1) {
            return Err(ApiError::bad_request("n: only one answer for each request is simulated"));
        }
        let text = |raw: Option<&RawValue>| raw.map(|it| it.get().to_owned());
        let max_tokens = fields.max_tokens_of(api)?;
        if max_tokens == Some(0) {
            return Err(ApiError::bad_request("max_tokens must be at least 1, got 0"));
        }
        let delivery = match fields.stream {
            Some(true) => {
                Delivery::EventStream { usage: fields.stream_options.include_usage.unwrap_or(false) }
            }
            _ => Delivery::Whole,
        };
        Ok(GenerateRequest {
            prompt: fields.prompt_of(api)?,
            call: tool::forced(api, fields.tools, fields.tool_choice)?,
            model: fields.model,
            returns_ids: fields.return_token_ids.unwrap_or(false),
            transfer: TransferFields {
                kv_transfer_params: text(fields.kv_transfer_params),
                bootstrap_host: text(fields.bootstrap_host),
                bootstrap_port: text(fields.bootstrap_port),
                bootstrap_room: text(fields.bootstrap_room),
            },
            salt: fields.cache_salt.unwrap_or_default(),
            delivery,
            max_tokens,
            min_tokens: fields.min_tokens.unwrap_or(0),
            ignore_eos: fields.ignore_eos.or(fields.sampling_params.ignore_eos).unwrap_or(false),
        })
    }
}

/// The prompt of `/tokenize`: messages, or text.
pub(super) fn parse_prompt(body: &[u8]) -> Result<Vec<u32>, ApiError> {
    with_fields(body, |fields| {
        let api = if fields.messages.is_some() { ApiFormat::Chat } else { ApiFormat::Completion };
        fields.prompt_of(api)
    })
}

/// Engines parse JSON as Python does: of a repeated key the last one counts. Serde rejects it, so such a body is
/// parsed again with every key once.
fn with_fields<T>(
    body: &[u8],
    read: impl FnOnce(RequestFields<'_>) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    if let Ok(fields) = serde_json::from_slice(body) {
        return read(fields);
    }
    let last: BTreeMap<String, &RawValue> = serde_json::from_slice(body)?;
    let body = serde_json::to_vec(&last)?;
    read(serde_json::from_slice(&body)?)
}

impl RequestFields<'_> {
    fn max_tokens_of(&self, api: ApiFormat) -> Result<Option<u32>, ApiError> {
        Ok(match api {
            ApiFormat::Chat => self.max_completion_tokens.or(self.max_tokens),
            ApiFormat::Completion => Some(self.max_tokens.unwrap_or(COMPLETION_TOKENS)),
            ApiFormat::Responses => self.max_output_tokens,
            ApiFormat::Messages => {
                Some(self.max_tokens.ok_or_else(|| ApiError::bad_request("max_tokens: field required"))?)
            }
            ApiFormat::Generate => Some(self.sampling_params.max_new_tokens.unwrap_or(GENERATE_TOKENS)),
        })
    }

    fn prompt_of(&self, api: ApiFormat) -> Result<Vec<u32>, ApiError> {
        let missing = |field: &str| ApiError::bad_request(format!("{field}: field required"));
        match api {
            ApiFormat::Chat if self.given_ids()?.is_some() => Ok(self.given_ids()?.unwrap_or_default()),
            ApiFormat::Chat | ApiFormat::Messages => {
                let messages = self.messages.as_deref().ok_or_else(|| missing("messages"))?;
                self.chat(self.system.map(parts).transpose()?, messages)
            }
            ApiFormat::Responses => {
                let input = self.input.ok_or_else(|| missing("input"))?;
                let system = self.instructions.clone().map(|text| vec![MessagePart::Text(text)]);
                match input.get().starts_with('[') {
                    true => self.chat(system, &serde_json::from_str::<Vec<RequestMessage<'_>>>(input.get())?),
                    false => self.chat(system, &[RequestMessage::user(input)]),
                }
            }
            ApiFormat::Completion => prompt(self.prompt.ok_or_else(|| missing("prompt"))?),
            ApiFormat::Generate => match (&self.text, &self.input_ids) {
                (Some(text), _) => Ok(tokens(text)),
                (None, Some(ids)) => Ok(ids.clone()),
                (None, None) => Err(missing("text")),
            },
        }
    }

    /// Token ids in place of the messages: vLLM's parameter, or SGLang's field.
    fn given_ids(&self) -> Result<Option<Vec<u32>>, ApiError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct ParamFields<'a> {
            #[serde(borrow)]
            prompt_token_ids: Option<&'a RawValue>,
        }
        let params: Option<ParamFields<'_>> =
            self.kv_transfer_params.and_then(|it| serde_json::from_str(it.get()).ok());
        let Some(ids) = params.and_then(|it| it.prompt_token_ids) else { return Ok(self.input_ids.clone()) };
        let ids = serde_json::from_str::<Vec<u32>>(ids.get()).ok().filter(|it| !it.is_empty());
        ids.map(Some).ok_or_else(|| {
            let wanted = "must be a non-empty list of non-negative integers";
            ApiError::bad_request(format!("`kv_transfer_params['prompt_token_ids']` {wanted}"))
        })
    }

    fn chat(
        &self,
        system: Option<Vec<MessagePart>>,
        messages: &[RequestMessage<'_>],
    ) -> Result<Vec<u32>, ApiError> {
        if messages.is_empty() {
            return Err(ApiError::bad_request("messages: at least one is required"));
        }
        let mut prompt = Prompt::default();
        if let Some(tools) = self.tools {
            prompt.message("system", &[MessagePart::Text(format!("# Tools\n{}", tools.get()))]);
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

impl<'a> RequestMessage<'a> {
    fn user(content: &'a RawValue) -> RequestMessage<'a> {
        let content = Some(content);
        RequestMessage { role: None, kind: None, content, tool_calls: None, arguments: None, output: None }
    }

    fn parts(&self) -> Result<Vec<MessagePart>, ApiError> {
        let mut all = Vec::new();
        for content in [self.content, self.arguments, self.output].into_iter().flatten() {
            all.extend(parts(content)?);
        }
        all.extend(self.tool_calls.map(|calls| MessagePart::Text(calls.get().to_owned())));
        Ok(all)
    }
}

/// Null is the same as absent.
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
fn prompt(raw: &RawValue) -> Result<Vec<u32>, ApiError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum PromptForm {
        Text(String),
        Tokens(Vec<u32>),
        Texts([String; 1]),
        TokenLists([Vec<u32>; 1]),
    }
    let given = serde_json::from_str(raw.get()).map_err(|_| {
        ApiError::bad_request("prompt: a string, a list of token ids, or a list of one of these is expected")
    })?;
    Ok(match given {
        PromptForm::Text(text) | PromptForm::Texts([text]) => tokens(&text),
        PromptForm::Tokens(ids) | PromptForm::TokenLists([ids]) => ids,
    })
}

/// The content of a message: a string or a list of parts. Adjacent texts are merged, so that both forms of a plain
/// message are the same prompt.
fn parts(raw: &RawValue) -> Result<Vec<MessagePart>, ApiError> {
    #[derive(Deserialize)]
    struct PartFields {
        #[serde(rename = "type", default)]
        kind: String,
        #[serde(default)]
        text: Option<String>,
    }
    let content = raw.get();
    if !content.starts_with('[') {
        let text: Option<String> = serde_json::from_str(content)?;
        return Ok(text.map(MessagePart::Text).into_iter().collect());
    }
    let mut all = Vec::new();
    for raw in serde_json::from_str::<Vec<&RawValue>>(content)? {
        let fields: PartFields = serde_json::from_str(raw.get())?;
        let text = match fields.text {
            Some(text) => text,
            None if fields.kind.contains("image") => {
                all.push(MessagePart::Image(raw.get().to_owned()));
                continue;
            }
            // A tool's result or a file: its JSON is used as text.
            None => raw.get().to_owned(),
        };
        match all.last_mut() {
            Some(MessagePart::Text(before)) => before.push_str(&text),
            _ => all.push(MessagePart::Text(text)),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt_of(api: ApiFormat, body: &str) -> String {
        crate::text::decode(&GenerateRequest::parse(api, body.as_bytes()).unwrap().prompt)
    }

    #[track_caller]
    fn check_refused(api: ApiFormat, body: &str, expected: &str) {
        let refusal = GenerateRequest::parse(api, body.as_bytes()).unwrap_err().to_json();
        assert!(refusal.contains(expected), "{refusal}");
    }

    const CHAT: &str = "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n";

    #[test]
    fn a_chat_is_rendered_with_its_template() {
        assert_eq!(
            prompt_of(ApiFormat::Chat, r#"{"messages":[{"role":"user","content":"Hi there"}]}"#),
            CHAT
        );
    }

    #[test]
    fn a_list_of_texts_is_the_same_prompt_as_their_sum() {
        let body = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"Hi "},{"type":"text","text":"there"}]}]}"#;
        assert_eq!(prompt_of(ApiFormat::Chat, body), CHAT);
    }

    #[test]
    fn responses_take_a_string_or_messages() {
        assert_eq!(prompt_of(ApiFormat::Responses, r#"{"input":"Hi there"}"#), CHAT);
        let items = r#"{"input":[{"role":"user","content":[{"type":"input_text","text":"Hi there"}]}]}"#;
        assert_eq!(prompt_of(ApiFormat::Responses, items), CHAT);
    }

    #[test]
    fn tools_and_system_come_first() {
        let body = r#"{"max_tokens":1,"system":"Be kind.","tools":[{"name":"f"}],"messages":[{"role":"user","content":"Hi there"}]}"#;
        let rest = format!("<|im_start|>system\nBe kind.<|im_end|>\n{CHAT}");
        let expected = format!("<|im_start|>system\n# Tools\n[{{\"name\":\"f\"}}]<|im_end|>\n{rest}");
        assert_eq!(prompt_of(ApiFormat::Messages, body), expected);
    }

    #[test]
    fn a_completion_takes_text_or_tokens() {
        for body in [r#"{"prompt":"abcd"}"#, r#"{"prompt":["abcd"]}"#, r#"{"prompt":[1684234849]}"#] {
            assert_eq!(prompt_of(ApiFormat::Completion, body), "abcd");
        }
        check_refused(ApiFormat::Completion, r#"{"prompt":["a","b"]}"#, "prompt: ");
    }

    #[test]
    fn missing_fields_are_named() {
        check_refused(ApiFormat::Chat, "{", "not the JSON");
        check_refused(ApiFormat::Chat, "{}", "messages: field required");
        check_refused(ApiFormat::Chat, r#"{"messages":[]}"#, "at least one");
        check_refused(ApiFormat::Responses, "{}", "input: field required");
        check_refused(ApiFormat::Messages, r#"{"messages":[]}"#, "max_tokens: field required");
        check_refused(ApiFormat::Chat, r#"{"n":2,"messages":[]}"#, "n: ");
        check_refused(ApiFormat::Chat, r#"{"max_tokens":0,"messages":[]}"#, "at least 1");
    }

    #[test]
    fn null_is_the_same_as_absent() {
        let body = r#"{"model":null,"stream":null,"tools":null,"stream_options":null,"tool_choice":null,"max_tokens":null,
            "messages":[{"role":"user","content":"Hi there"},{"role":"assistant","content":null,"tool_calls":null}]}"#;
        assert!(prompt_of(ApiFormat::Chat, body).starts_with("<|im_start|>user"));
    }
}
