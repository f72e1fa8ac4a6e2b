//! What a request says about its stream: whether it can be continued, and what the client wants to see.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::continuation::as_chat::as_chat;
use crate::continuation::obstacle::Obstacle;
use crate::continuation::stop::StopStrings;
use crate::json::edit::{replace, set};
use crate::json::{Cursor, Raw, Shape};
use crate::openai::{BadRequest, edited, text};
use crate::route::Route;

/// The field by which vLLM and SGLang add token ids to a response.
pub(super) const RETURN_TOKEN_IDS: &str = "return_token_ids";

/// Bodies longer than this are not covered: the ids of their prompt would not fit. Chosen: about half a million tokens.
const BODY_BYTES_MAX: usize = 2 << 20;

/// The answer's limit on `/v1/completions` if the client sets none, in vLLM and SGLang.
const COMPLETION_TOKENS: u64 = 16;

/// The part of a request that its continuation must respect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamTerms {
    /// Of the request to the worker.
    pub(super) route: Route,
    /// Of the client's. Where that is `/v1/messages`, it gets the events of a chat as that API's.
    client_route: Route,
    /// The client asked for token ids itself.
    pub(super) wants_ids: bool,
    /// The client asked for usage at the end.
    pub(super) wants_usage: bool,
    pub(super) tokens_max: Option<u64>,
    pub(super) tokens_min: Option<u64>,
    /// Those that the router matches in place of the engine.
    pub(super) stop: Option<Arc<StopStrings>>,
}

/// The body, asking for token ids. Its stop strings are the router's.
pub fn with_ids(body: &[u8]) -> Result<Vec<u8>, BadRequest> {
    edited(body, &[set(RETURN_TOKEN_IDS, &"true"), replace("stop", &"null")])
}

/// The fields that decide.
#[derive(Default)]
struct RequestFields<'a> {
    obstacle: Option<Obstacle>,
    tools: Option<Raw<'a>>,
    tool_choice: Option<Raw<'a>>,
    max_tokens: Option<Raw<'a>>,
    max_completion_tokens: Option<Raw<'a>>,
    min_tokens: Option<Raw<'a>>,
    stream_options: Option<Raw<'a>>,
    return_token_ids: Option<Raw<'a>>,
    stop: Option<Raw<'a>>,
    include_stop: Option<Raw<'a>>,
}

impl StreamTerms {
    /// Reads the body of a request for a stream, or says why that stream cannot be continued.
    pub fn read(route: Route, body: &[u8]) -> Result<StreamTerms, Obstacle> {
        if body.len() > BODY_BYTES_MAX {
            return Err(Obstacle::TooLong);
        }
        match route {
            Route::Chat | Route::Completions => {}
            Route::Messages => {
                let terms = StreamTerms::read(Route::Chat, &as_chat(body)?)?;
                return Ok(StreamTerms { client_route: route, ..terms });
            }
            _ => return Err(Obstacle::Engine),
        }
        let mut fields = RequestFields::default();
        let text = text(body).map_err(|_| Obstacle::NoIds)?;
        let walked = Cursor::new(text).members(|key, value| fields.take(&key, value));
        walked.map_err(|_| Obstacle::NoIds)?;
        let calls_tools = fields.tools.is_some_and(|it| !it.is_empty())
            && fields.tool_choice.is_none_or(|it| it.text != "\"none\"");
        match fields.obstacle.or(calls_tools.then_some(Obstacle::Tools)) {
            Some(obstacle) => Err(obstacle),
            None => fields.terms(route),
        }
    }

    /// Whether the router needs the engine's output to be text and nothing else: to match stop strings in place of the engine,
    /// or to write messages.
    pub fn needs_text(&self) -> bool {
        self.stop.is_some() || self.is_messages()
    }

    pub(super) fn is_messages(&self) -> bool {
        self.client_route == Route::Messages
    }
}

impl<'a> RequestFields<'a> {
    fn take(&mut self, key: &str, value: Raw<'a>) {
        let slot = match key {
            "tools" => &mut self.tools,
            "tool_choice" => &mut self.tool_choice,
            "max_tokens" => &mut self.max_tokens,
            "max_completion_tokens" => &mut self.max_completion_tokens,
            "min_tokens" => &mut self.min_tokens,
            "stream_options" => &mut self.stream_options,
            RETURN_TOKEN_IDS => &mut self.return_token_ids,
            "stop" => &mut self.stop,
            "include_stop_str_in_output" => &mut self.include_stop,
            _ => {
                self.obstacle = self.obstacle.or_else(|| obstacle_at(key, value));
                return;
            }
        };
        *slot = Some(value);
    }

    fn terms(&self, route: Route) -> Result<StreamTerms, Obstacle> {
        let count = |it: Option<Raw<'_>>| it.and_then(|it| it.text.parse().ok());
        let tokens_max = match route {
            Route::Completions if self.max_tokens.is_none() => Some(COMPLETION_TOKENS),
            _ => count(self.max_completion_tokens).or(count(self.max_tokens)),
        };
        let mut wants_usage = false;
        if let Some(options) = self.stream_options {
            options.members(|key, value| wants_usage |= key == "include_usage" && value.text == "true");
        }
        let wants_ids = self.return_token_ids.is_some_and(|it| it.text == "true");
        let tokens_min = count(self.min_tokens);
        let stop = self.stop_strings(tokens_min)?;
        Ok(StreamTerms { route, client_route: route, wants_ids, wants_usage, tokens_max, tokens_min, stop })
    }

    fn stop_strings(&self, tokens_min: Option<u64>) -> Result<Option<Arc<StopStrings>>, Obstacle> {
        let Some(stop) = self.stop else { return Ok(None) };
        let includes = self.include_stop.is_some_and(|it| it.text == "true");
        let stop = StopStrings::read(stop, includes).map_err(|_| Obstacle::StopStrings)?;
        // Strings within the first tokens do not count, and events do not say which text is of which token.
        match stop.is_some() && tokens_min.is_some_and(|it| it > 0) {
            true => Err(Obstacle::StopStrings),
            false => Ok(stop),
        }
    }
}

fn obstacle_at(key: &str, value: Raw<'_>) -> Option<Obstacle> {
    let is_given = value.shape() != Shape::Null;
    let (obstacle, stands) = match key {
        "n" | "best_of" => (Obstacle::Several, !matches!(value.text, "null" | "0" | "1")),
        "use_beam_search" => (Obstacle::Several, value.text == "true"),
        "prompt" => (Obstacle::Several, is_batch(value)),
        "response_format" => (Obstacle::Guided, is_given && !is_plain_text(value)),
        "guided_json" | "guided_regex" | "guided_choice" | "guided_grammar" | "structured_outputs"
        | "json_schema" | "regex" | "ebnf" | "structural_tag" => (Obstacle::Guided, is_given),
        "logprobs" => (Obstacle::Logprobs, !matches!(value.text, "null" | "false")),
        "prompt_logprobs" => (Obstacle::Prompt, is_given),
        "echo" => (Obstacle::Prompt, value.text == "true"),
        // SGLang's, of each token that the engine has computed.
        "return_hidden_states" | "return_routed_experts" => {
            (Obstacle::Prompt, !matches!(value.text, "null" | "false"))
        }
        "presence_penalty" | "frequency_penalty" => (Obstacle::Penalties, is_given && !is_number(value, 0.0)),
        "repetition_penalty" => (Obstacle::Penalties, is_given && !is_number(value, 1.0)),
        // Ends an answer whose own tokens repeat themselves.
        "repetition_detection" => (Obstacle::Penalties, is_given),
        // Processors of the operator's own may count tokens in any way.
        "bad_words" | "logits_processors" | "custom_logit_processor" | "custom_params" | "vllm_xargs" => {
            (Obstacle::Penalties, !value.is_empty())
        }
        "stop_sequences" | "stop_regex" => (Obstacle::StopStrings, !value.is_empty()),
        "functions" => (Obstacle::Tools, !value.is_empty()),
        // Hides the token ids as well.
        "include_reasoning" => (Obstacle::Reasoning, value.text == "false"),
        "thinking_token_budget" => (Obstacle::Reasoning, is_given),
        "messages" => (Obstacle::Media, has_media(value)),
        "prompt_embeds" | "input_embeds" => (Obstacle::Media, !value.is_empty()),
        "kv_transfer_params"
        | "input_ids"
        | "bootstrap_room"
        | "session_params"
        | "truncate_prompt_tokens" => (Obstacle::Steering, is_given),
        _ => return None,
    };
    stands.then_some(obstacle)
}

/// More prompts than one. A list of token ids is one prompt.
fn is_batch(prompt: Raw<'_>) -> bool {
    let mut prompts = 0;
    let _all = prompt.records(
        |(): &mut (), _, _| {},
        |element, ()| {
            prompts += u32::from(matches!(element.shape(), Shape::String | Shape::Array));
            if prompts > 1 || element.shape() == Shape::Number {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        },
    );
    prompts > 1
}

fn is_plain_text(format: Raw<'_>) -> bool {
    let mut is_text = false;
    format.members(|key, value| is_text |= key == "type" && value.text == "\"text\"");
    is_text
}

fn is_number(value: Raw<'_>, number: f64) -> bool {
    value.text.parse() == Ok(number)
}

/// Whether a message has a part that is not text. vLLM then ignores the token ids of the prompt.
fn has_media(messages: Raw<'_>) -> bool {
    let walked = messages.records(
        |content: &mut Option<Raw<'_>>, key, value| {
            if key == "content" {
                *content = Some(value);
            }
        },
        |_, content| match content.is_some_and(has_media_part) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        },
    );
    walked.is_break()
}

fn has_media_part(content: Raw<'_>) -> bool {
    let walked = content.records(
        |kind: &mut Option<Raw<'_>>, key, value| {
            if key == "type" {
                *kind = Some(value);
            }
        },
        |_, kind| match kind.map(|it| it.text) {
            Some("\"text\"") => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        },
    );
    walked.is_break()
}
