//! Asks an engine for the tokens of a prompt. vLLM and SGLang have the same path, but differ in the fields that they read.

use std::borrow::Cow;

use crate::engine::EngineKind;
use crate::json::ids::leading_ids;
use crate::json::{Cursor, Raw};
use crate::openai::{Part, Request, Template};

/// The path to request.
pub const TOKENIZE: &str = "/tokenize";

/// Fields that make a message more than text. The tokens of such a prompt depend on pixels, which we do not
/// send twice.
const MEDIA: [&str; 6] =
    ["image_url", "input_image", "input_audio", "audio_url", "video_url", "image_embeds"];

impl EngineKind {
    /// Whether the engine renders and tokenizes messages on request. SGLang does since 0.5.12, llama.cpp accepts only text.
    pub const fn tokenizes_chats(self) -> bool {
        matches!(self, EngineKind::Vllm | EngineKind::Sglang)
    }
}

/// The request body for this prompt; none if the answer could not be the prompt's tokens.
pub fn question(kind: EngineKind, request: &Request<'_>) -> Option<String> {
    let mut question = Question::new(request)?;
    match kind {
        EngineKind::Sglang => question.add_as_sglang(request),
        _ => question.add_as_vllm(request),
    }
    Some(question.end())
}

/// All that decides the tokens of this prompt, whichever engine is asked: equal texts have equal tokens.
pub fn identity(request: &Request<'_>) -> Option<String> {
    let mut identity = Question::new(request)?;
    identity.add_as_vllm(request);
    identity.add_json("tool_choice", request.template.tool_choice);
    Some(identity.end())
}

/// A JSON object that is being written.
struct Question(String);

impl Question {
    /// The model and the prompt.
    fn new(request: &Request<'_>) -> Option<Question> {
        if request.template.is_own {
            return None;
        }
        let model = serde_json::to_string(request.model.as_deref()?).ok()?;
        let mut question = Question(String::with_capacity(request.prompt.bytes() + model.len() + 256));
        question.0.push_str("{\"model\":");
        question.0.push_str(&model);
        if let Some(messages) = request.prompt.raw(Part::Messages) {
            if MEDIA.iter().any(|it| memchr::memmem::find(messages.as_bytes(), it.as_bytes()).is_some()) {
                return None;
            }
            question.add_json("messages", Some(messages));
            question.add_json("tools", request.prompt.raw(Part::Tools));
        } else {
            // A list of prompts is a batch, and token ids need no tokenizing.
            let prompt = request.prompt.raw(Part::Prompt).filter(|it| it.starts_with('"'))?;
            question.add_json("prompt", Some(prompt));
        }
        Some(question)
    }

    fn add_as_vllm(&mut self, request: &Request<'_>) {
        let template = &request.template;
        self.add_switch("add_generation_prompt", template.add_generation_prompt);
        self.add_switch("continue_final_message", template.continue_final_message);
        self.add_switch("add_special_tokens", template.add_special_tokens);
        if request.prompt.raw(Part::Messages).is_some() {
            let kwargs = template_kwargs(template, request.prompt.raw(Part::Documents));
            self.add_json("chat_template_kwargs", kwargs.as_deref());
        }
    }

    /// With `add_generation_prompt` it would render the messages in another way than for a chat, whose requests have no such
    /// field.
    fn add_as_sglang(&mut self, request: &Request<'_>) {
        if request.prompt.raw(Part::Messages).is_some() {
            let template = &request.template;
            self.add_json("tool_choice", template.tool_choice);
            self.add_json("reasoning_effort", template.reasoning_effort);
            self.add_switch("continue_final_message", template.continue_final_message);
            self.add_json("chat_template_kwargs", template.kwargs);
        }
    }

    fn add_switch(&mut self, key: &str, value: Option<bool>) {
        self.add_json(key, value.map(|it| if it { "true" } else { "false" }));
    }

    fn add_json(&mut self, key: &str, value: Option<&str>) {
        let Some(value) = value else { return };
        self.0.push_str(",\"");
        self.0.push_str(key);
        self.0.push_str("\":");
        self.0.push_str(value);
    }

    fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

/// What the template gets besides messages and tools. `/tokenize` knows no documents and no reasoning effort: a chat request
/// has them as fields, which vLLM turns into variables of the template as here.
fn template_kwargs<'a>(template: &Template<'a>, documents: Option<&str>) -> Option<Cow<'a, str>> {
    let effort = template.reasoning_effort;
    if documents.is_none() && effort.is_none() {
        return template.kwargs.map(Cow::Borrowed);
    }
    let own = template.kwargs.unwrap_or("{}");
    let (mut members, mut says_thinking) = (0, false);
    let visit = |key: Cow<'_, str>, _: Raw<'_>| {
        members += 1;
        says_thinking |= key == "enable_thinking";
    };
    Cursor::new(own).members(visit).ok()?;
    // Of a name that comes twice, the last value counts.
    let mut kwargs = own.strip_suffix('}')?.to_owned();
    let mut add = |key: &str, value: &str| {
        kwargs.push_str(if members > 0 { ",\"" } else { "\"" });
        kwargs.push_str(key);
        kwargs.push_str("\":");
        kwargs.push_str(value);
        members += 1;
    };
    if let Some(documents) = documents {
        add("documents", documents);
    }
    if let Some(effort) = effort {
        add("reasoning_effort", effort);
        if !says_thinking {
            add("enable_thinking", if effort == "\"none\"" { "false" } else { "true" });
        }
    }
    kwargs.push('}');
    Some(Cow::Owned(kwargs))
}

/// The tokens in an engine's answer: an object with nothing nested in it but lists.
///
/// A quote inside a string is escaped, so these bytes and a colon are a key wherever they stand.
pub fn answer(body: &[u8]) -> Option<Vec<u32>> {
    const KEY: &[u8] = b"\"tokens\"";
    let mut after = memchr::memmem::find_iter(body, KEY).map(|at| body[at + KEY.len()..].trim_ascii_start());
    let value = after.find_map(|it| it.strip_prefix(b":"))?;
    leading_ids(value.trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai;
    use crate::route::Route;

    #[track_caller]
    fn check(route: Route, body: &str, expected: Option<&str>) {
        let request = openai::parse(route, body.as_bytes()).unwrap();
        assert_eq!(question(EngineKind::Vllm, &request).as_deref(), expected);
    }

    #[test]
    fn the_tokenize_request_has_only_fields_that_shape_the_prompt() {
        check(
            Route::Chat,
            r#"{"model":"m","messages":[ {"role":"user","content":"hi"} ],"tools":[],"stream":true,
                "chat_template_kwargs":{"enable_thinking":false},"add_generation_prompt":false}"#,
            Some(
                r#"{"model":"m","messages":[ {"role":"user","content":"hi"} ],"tools":[],"add_generation_prompt":false,"chat_template_kwargs":{"enable_thinking":false}}"#,
            ),
        );
        check(
            Route::Completions,
            r#"{"model":"m","prompt":"a\"b"}"#,
            Some(r#"{"model":"m","prompt":"a\"b"}"#),
        );
    }

    #[test]
    fn what_a_chat_gives_the_template_beside_its_messages_is_asked_for_too() {
        let chat = |fields: &str| format!(r#"{{"model":"m","messages":[{{}}],{fields}}}"#);
        let asked =
            |kwargs: &str| format!(r#"{{"model":"m","messages":[{{}}],"chat_template_kwargs":{kwargs}}}"#);
        for (fields, kwargs) in [
            (r#""reasoning_effort":"low""#, r#"{"reasoning_effort":"low","enable_thinking":true}"#),
            (r#""reasoning_effort":"none""#, r#"{"reasoning_effort":"none","enable_thinking":false}"#),
            (
                r#""reasoning_effort":"low","chat_template_kwargs":{ "enable_thinking":false }"#,
                r#"{ "enable_thinking":false ,"reasoning_effort":"low"}"#,
            ),
            (r#""documents":[{"text":"t"}],"chat_template_kwargs":{ }"#, r#"{ "documents":[{"text":"t"}]}"#),
            (r#""documents":null,"reasoning_effort":null,"chat_template_kwargs":{"a":1}"#, r#"{"a":1}"#),
        ] {
            check(Route::Chat, &chat(fields), Some(&asked(kwargs)));
        }
        // An object is expected there.
        let odd = chat(r#""reasoning_effort":"low","chat_template_kwargs":[1]"#);
        check(Route::Chat, &odd, Some(r#"{"model":"m","messages":[{}]}"#));
    }

    #[test]
    fn sglang_gets_the_fields_of_its_own_chats() {
        let chat = r#"{"model":"m","messages":[{}],"tools":[{}],"tool_choice":"none","reasoning_effort":"low",
            "chat_template_kwargs":{"a":1},"continue_final_message":true,"add_generation_prompt":false,
            "add_special_tokens":true,"documents":[{}]}"#;
        let request = openai::parse(Route::Chat, chat.as_bytes()).unwrap();
        let asked = r#"{"model":"m","messages":[{}],"tools":[{}],"tool_choice":"none","reasoning_effort":"low","continue_final_message":true,"chat_template_kwargs":{"a":1}}"#;
        assert_eq!(question(EngineKind::Sglang, &request).as_deref(), Some(asked));
        let text = br#"{"model":"m","prompt":"p","add_special_tokens":false}"#;
        let request = openai::parse(Route::Completions, text).unwrap();
        let asked = r#"{"model":"m","prompt":"p"}"#;
        assert_eq!(question(EngineKind::Sglang, &request).as_deref(), Some(asked));
    }

    #[test]
    fn prompts_that_any_engine_would_tokenize_differently_have_two_identities() {
        let of = |fields: &str| {
            let chat = format!(r#"{{"model":"m","messages":[{{}}]{fields}}}"#);
            identity(&openai::parse(Route::Chat, chat.as_bytes()).unwrap()).unwrap()
        };
        let fields = [
            "",
            r#","tool_choice":"none""#,
            r#","tools":[{}]"#,
            r#","reasoning_effort":"low""#,
            r#","documents":[{}]"#,
            r#","continue_final_message":true"#,
        ];
        let identities: std::collections::HashSet<String> = fields.into_iter().map(of).collect();
        assert_eq!(identities.len(), fields.len());
        assert_eq!(of(r#","stream":true,"max_tokens":5"#), of(""));
    }

    #[test]
    fn batches_images_and_own_templates_are_not_tokenized_remotely() {
        check(Route::Completions, r#"{"model":"m","prompt":["a","b"]}"#, None);
        let image = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
        check(Route::Chat, image, None);
        check(Route::Chat, r#"{"model":"m","messages":[{}],"chat_template":"x"}"#, None);
    }

    #[test]
    fn answers_are_ids_or_nothing() {
        assert_eq!(answer(br#"{"count":2,"max_model_len":9,"tokens":[1,2]}"#), Some(vec![1, 2]));
        assert_eq!(
            answer(br#"{ "token_strs": ["\"tokens\":", "tokens"], "tokens" : [ 3 ] }"#),
            Some(vec![3])
        );
        assert_eq!(answer(br#"{"tokens":["a"]}"#), None);
        assert_eq!(answer(br#"{"tokens":[1,2"#), None);
        assert_eq!(answer(br#"{"tokens":null}"#), None);
        assert_eq!(answer(b"<html>"), None);
    }
}
