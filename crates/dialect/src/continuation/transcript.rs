//! What the client has of a stream, and so what another worker must begin with.

use std::fmt;

use crate::continuation::chunk::StreamChunk;
use crate::continuation::id_list::{IdList, IdMark};
use crate::continuation::terms::{RETURN_TOKEN_IDS, StreamTerms};
use crate::engine::EngineKind;
use crate::json::Raw;
use crate::json::edit::{Quoted, replace, set};
use crate::openai::{BadRequest, edited};
use crate::route::Route;

#[derive(Clone, Debug, Default)]
pub(super) struct Transcript {
    head: Option<StreamHead>,
    /// Those of the prompt, then those of the answer.
    pub(super) ids: IdList,
    pub(super) prompt_tokens: Option<u64>,
    /// How far the client has them.
    delivered: IdMark,
    /// How many of them came with the last event that had any.
    last_event: u64,
    /// Tokens of the answer, of all events. Counted also where ids are not kept.
    pub(super) answer_tokens: u64,
    pub(super) is_finished: bool,
    pub(super) has_usage: bool,
}

/// What all chunks of a stream have in common, as JSON.
#[derive(Clone, Debug)]
pub(super) struct StreamHead {
    pub(super) id: String,
    pub(super) created: String,
    pub(super) model: String,
}

impl Transcript {
    pub(super) fn head(&self) -> Option<&StreamHead> {
        self.head.as_ref()
    }

    pub(super) fn note_head(&mut self, chunk: &StreamChunk<'_>) {
        let text = |it: Option<Raw<'_>>| it.map_or("null", |it| it.text).to_owned();
        self.head.get_or_insert_with(|| StreamHead {
            id: text(chunk.id),
            created: text(chunk.created),
            model: text(chunk.model),
        });
    }

    /// Everything up to here is at the client.
    pub(super) fn deliver(&mut self) {
        let before = self.delivered.count;
        self.delivered = self.ids.mark();
        if self.delivered.count > before {
            self.last_event = self.delivered.count - before;
        }
    }

    /// How many ids came with the last event that the client has.
    pub(super) fn last_event(&self) -> u64 {
        self.last_event
    }

    /// The next worker generates the last delivered token again.
    pub(super) fn take_back(&mut self) {
        self.ids.pop();
        self.delivered = self.ids.mark();
        self.answer_tokens = self.tokens();
    }

    /// Forgets what the client does not have.
    pub(super) fn rewind(&mut self) {
        self.ids.rewind(self.delivered);
        self.answer_tokens = self.tokens();
    }

    /// The next worker names the prompt's ids again.
    pub(super) fn forget_prompt(&mut self) {
        self.ids = IdList::default();
        self.prompt_tokens = None;
        self.delivered = IdMark::default();
    }

    /// Tokens of the answer that the client has.
    pub(super) fn tokens(&self) -> u64 {
        self.delivered.count.saturating_sub(self.prompt_tokens.unwrap_or(0))
    }

    /// How many tokens may still come; none if there is no limit.
    pub(super) fn tokens_left(&self, terms: &StreamTerms) -> Option<u64> {
        terms.tokens_max.map(|it| it.saturating_sub(self.tokens()))
    }

    /// The request for the rest, made of the body of the first one.
    pub(super) fn request(
        &self,
        terms: &StreamTerms,
        kind: EngineKind,
        body: &[u8],
    ) -> Result<Vec<u8>, BadRequest> {
        let ids = fmt::from_fn(|out| write!(out, "[{}]", self.ids.text()));
        let params = fmt::from_fn(|out| write!(out, r#"{{"prompt_token_ids":[{}]}}"#, self.ids.text()));
        let prompt = match (terms.route, kind) {
            (Route::Completions, _) => set("prompt", &ids),
            (_, EngineKind::Sglang) => set("input_ids", &ids),
            _ => set("kv_transfer_params", &params),
        };
        let left = self.tokens_left(terms).unwrap_or(0);
        let least = terms.tokens_min.unwrap_or(0).saturating_sub(self.tokens());
        let mut changes = vec![
            prompt,
            set(RETURN_TOKEN_IDS, &"true"),
            replace("stop", &"null"),
            replace("min_tokens", &least),
        ];
        if terms.tokens_max.is_some() {
            changes.push(replace("max_completion_tokens", &left));
            changes.push(match terms.route {
                Route::Completions => set("max_tokens", &left),
                _ => replace("max_tokens", &left),
            });
        }
        edited(body, &changes)
    }

    /// The end of a stream that lacks nothing else but this text.
    pub(super) fn ending(&self, terms: &StreamTerms, text: &str) -> String {
        let mut events = String::new();
        if !self.is_finished {
            events += &self.text_event(terms, text, r#""length""#);
        }
        if terms.wants_usage && !self.has_usage {
            let (prompt, answer) = (self.prompt_tokens.unwrap_or(0), self.answer_tokens.max(self.tokens()));
            let total = prompt + answer;
            events += &self.event(terms, format_args!(
                r#""choices":[],"usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{answer}}}"#
            ));
        }
        events + "data: [DONE]\n\n"
    }

    /// An event with this text, whose finish reason is this JSON.
    pub(super) fn text_event(&self, terms: &StreamTerms, text: &str, finish_reason: &str) -> String {
        let text = Quoted(text);
        match terms.route {
            Route::Completions => self.event(terms, format_args!(
                r#""choices":[{{"index":0,"text":{text},"logprobs":null,"finish_reason":{finish_reason}}}]"#
            )),
            _ => self.event(terms, format_args!(
                r#""choices":[{{"index":0,"delta":{{"content":{text}}},"logprobs":null,"finish_reason":{finish_reason}}}]"#
            )),
        }
    }

    fn event(&self, terms: &StreamTerms, rest: fmt::Arguments<'_>) -> String {
        let Some(StreamHead { id, created, model }) = &self.head else { return String::new() };
        let object = match terms.route {
            Route::Completions => "text_completion",
            _ => "chat.completion.chunk",
        };
        format!(
            "data: {{\"id\":{id},\"object\":\"{object}\",\"created\":{created},\"model\":{model},{rest}}}\n\n"
        )
    }
}
