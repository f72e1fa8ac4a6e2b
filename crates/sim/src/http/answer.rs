//! An answer in preparation: everything except the hit count is known when the request arrives.
//!
//! Streaming writes the same JSON around four changing bytes, over and over. Each API therefore renders the
//! surroundings of a token once (`StreamTemplate`), and the loop per token only copies.

use bytes::{BufMut, BytesMut};

use super::api_format::ApiFormat;
use super::brand::Brand;
use super::driver::AnswerProgress;
use super::request::{Delivery, GenerateRequest};
use super::tool::ToolCall;
use crate::engine::transfer::Content;
use crate::engine::{Finish, Reject};
use crate::speech::{self, Speech};
use crate::text;

pub(super) struct PlannedAnswer {
    pub(super) api: ApiFormat,
    /// Without its prefix; JSON-escaped, like the model.
    pub(super) id: String,
    pub(super) model: String,
    pub(super) created: u64,
    pub(super) prompt_tokens: u32,
    pub(super) tokens: u32,
    pub(super) finish: Finish,
    pub(super) words: AnswerText,
    pub(super) delivery: Delivery,
    /// Whether usage reports cached tokens.
    pub(super) reports_cached: bool,
    /// JSON, in an answer that is not streamed.
    pub(super) kv_transfer_params: String,
    /// JSON, if the request asked for token ids.
    pub(super) prompt_ids: Option<String>,
    pub(super) brand: Brand,
}

pub(super) enum AnswerText {
    /// Syllables that follow from the prompt.
    Speech(Speech),
    /// A tool call. Its pieces are not the tokens that the engine generates: a later turn finds the prompt in the
    /// cache, but not the call.
    ToolCall(CallPieces),
}

pub(super) struct CallPieces {
    /// JSON-escaped, as are the pieces.
    pub(super) name: String,
    pieces: Vec<String>,
}

/// What surrounds the tokens of one stream.
pub(super) struct StreamTemplate {
    /// Events sent with the first token.
    pub(super) opening: Vec<String>,
    pub(super) before: String,
    pub(super) after: String,
    pub(super) after_last: String,
    /// Ends the event of the first token, if that event differs.
    pub(super) after_first: Option<String>,
    /// What follows each token.
    pub(super) number: Option<EventNumber>,
}

/// The number at the end of each token's event, and the text that closes the event.
#[derive(Clone, Copy)]
pub(super) enum EventNumber {
    /// Events are numbered from here: the number of the first token's event.
    From(u32),
    /// The token's id.
    TokenId(&'static str),
}

/// The number of tokens, and why it ends there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerLength {
    pub(super) tokens: u32,
    pub(super) finish: Finish,
}

impl AnswerLength {
    /// The answer's natural length within its own limit and the context. A limit beyond the context is rejected even
    /// if the answer would be shorter, as in vLLM.
    pub(super) fn of(
        ask: &GenerateRequest,
        words: &AnswerText,
        context_tokens_max: u32,
    ) -> Result<AnswerLength, Reject> {
        let prompt = ask.prompt.len() as u64;
        let room = u64::from(context_tokens_max).saturating_sub(prompt);
        let limit = ask.max_tokens.map_or(room, u64::from);
        if limit > room || room == 0 {
            let answer = ask.max_tokens.unwrap_or(1);
            return Err(Reject::TooLong { max: context_tokens_max, prompt, answer });
        }
        let wanted = match words {
            AnswerText::ToolCall(call) => call.pieces.len() as u64,
            AnswerText::Speech(_) if ask.ignore_eos => u64::MAX,
            AnswerText::Speech(speech) => speech.tokens_left(u64::from(ask.min_tokens)),
        };
        let finish = if wanted > limit { Finish::Length } else { Finish::Stop };
        Ok(AnswerLength { tokens: wanted.min(limit) as u32, finish })
    }
}

impl AnswerText {
    pub(super) fn new(call: Option<&ToolCall>, speech: Speech) -> AnswerText {
        let Some(call) = call else { return AnswerText::Speech(speech) };
        let characters: Vec<char> = call.arguments.chars().collect();
        let pieces = characters.chunks(text::TOKEN_BYTES).map(|it| escape(&it.iter().collect::<String>()));
        AnswerText::ToolCall(CallPieces { name: escape(&call.name), pieces: pieces.collect() })
    }

    /// The answer if the KV of the prompt was not its own: other syllables, and no JSON in a tool call.
    fn wrong(&self) -> AnswerText {
        match self {
            AnswerText::Speech(speech) => {
                AnswerText::Speech(speech.with_seed(text::wrong_seed(speech.seed_now())))
            }
            AnswerText::ToolCall(call) => {
                let pieces = (0..call.pieces.len() as u32).map(|index| {
                    text::answer_piece(text::wrong_seed(0), index).map(char::from).iter().collect()
                });
                AnswerText::ToolCall(CallPieces { name: call.name.clone(), pieces: pieces.collect() })
            }
        }
    }

    fn put(&self, index: u32, out: &mut BytesMut) {
        match self {
            AnswerText::Speech(speech) => out.put_slice(&speech.piece(index)),
            AnswerText::ToolCall(call) => out.put_slice(call.pieces[index as usize].as_bytes()),
        }
    }
}

impl PlannedAnswer {
    /// Applies what became known with the first token. Call it once.
    pub(super) fn begin(&mut self, progress: AnswerProgress) {
        if progress.content == Content::Wrong {
            self.words = self.words.wrong();
        }
    }

    /// With its prefix.
    pub(super) fn full_id(&self) -> String {
        let prefix = match self.api {
            ApiFormat::Chat => "chatcmpl-",
            ApiFormat::Completion => "cmpl-",
            ApiFormat::Responses => "resp_",
            ApiFormat::Messages => "msg_",
            ApiFormat::Generate => "",
        };
        format!("{prefix}{}", self.id)
    }

    /// The event of one token.
    pub(super) fn put_token(&self, template: &StreamTemplate, index: u32, out: &mut BytesMut) {
        let is_last = index + 1 == self.tokens;
        out.put_slice(template.before.as_bytes());
        self.words.put(index, out);
        let after = match &template.after_first {
            Some(after) if index == 0 => after,
            _ if is_last => &template.after_last,
            _ => &template.after,
        };
        out.put_slice(after.as_bytes());
        match template.number {
            None => {}
            Some(EventNumber::From(first)) => {
                put_number(first + index, out);
                out.put_slice(b"}\n\n");
            }
            Some(EventNumber::TokenId(end)) => {
                put_number(self.token_id(index), out);
                out.put_slice(end.as_bytes());
            }
        }
    }

    /// A tool call is not what the engine has generated: its ids are those of the answer that it replaces.
    fn token_id(&self, index: u32) -> u32 {
        match &self.words {
            AnswerText::Speech(speech) => speech::token(speech.seed_now(), index),
            AnswerText::ToolCall(_) => index,
        }
    }

    /// The ids of the whole answer as JSON, if the request asked for them.
    pub(super) fn token_ids(&self) -> String {
        match self.prompt_ids {
            None => "null".to_owned(),
            Some(_) => json_ids((0..self.tokens).map(|index| self.token_id(index))),
        }
    }

    /// The ids of the prompt.
    pub(super) fn prompt_token_ids(&self) -> &str {
        self.prompt_ids.as_deref().unwrap_or("null")
    }

    /// The complete text, JSON-escaped.
    pub(super) fn text(&self) -> String {
        match &self.words {
            AnswerText::Speech(speech) => speech.text(self.tokens),
            AnswerText::ToolCall(call) => call.pieces[..self.tokens as usize].concat(),
        }
    }

    pub(super) fn usage(&self, progress: AnswerProgress) -> String {
        let details = match self.reports_cached {
            true => format!(r#"{{"cached_tokens":{}}}"#, progress.cached_tokens),
            false => "null".to_owned(),
        };
        format!(
            r#"{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},"prompt_tokens_details":{details}}}"#,
            self.prompt_tokens,
            self.prompt_tokens + self.tokens,
            self.tokens
        )
    }
}

/// A list of token ids as JSON.
pub(super) fn json_ids(ids: impl Iterator<Item = u32>) -> String {
    let ids: Vec<String> = ids.map(|it| it.to_string()).collect();
    format!("[{}]", ids.join(","))
}

/// A string as the inside of a JSON string.
pub(super) fn escape(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn put_number(number: u32, out: &mut BytesMut) {
    let mut digits = [0; 10];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.put_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ask with a prompt of ten tokens in a context of a hundred; the seed wants 16 + 20 tokens.
    #[track_caller]
    fn check(change: impl FnOnce(&mut GenerateRequest), expected: Result<(u32, Finish), Reject>) {
        let mut ask =
            GenerateRequest::parse(ApiFormat::Chat, br#"{"messages":[{"role":"user","content":""}]}"#)
                .unwrap();
        ask.prompt = vec![0; 10];
        change(&mut ask);
        let actual = AnswerLength::of(&ask, &AnswerText::Speech(Speech::new(20)), 100)
            .map(|it| (it.tokens, it.finish));
        assert_eq!(actual, expected);
    }

    #[test]
    fn an_answer_has_its_natural_length_within_its_limits() {
        check(|_| {}, Ok((36, Finish::Stop)));
        check(|ask| ask.max_tokens = Some(36), Ok((36, Finish::Stop)));
        check(|ask| ask.max_tokens = Some(35), Ok((35, Finish::Length)));
        check(|ask| ask.min_tokens = 50, Ok((50, Finish::Stop)));
        check(|ask| ask.ignore_eos = true, Ok((90, Finish::Length)));
        check(|ask| (ask.ignore_eos, ask.max_tokens) = (true, Some(7)), Ok((7, Finish::Length)));
    }

    #[test]
    fn a_limit_beyond_the_context_is_refused() {
        let too_long = |prompt, answer| Err(Reject::TooLong { max: 100, prompt, answer });
        check(|ask| ask.max_tokens = Some(91), too_long(10, 91));
        check(|ask| ask.prompt = vec![0; 100], too_long(100, 1));
    }

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 9, 10, 4_294_967_295] {
            let mut out = BytesMut::new();
            put_number(number, &mut out);
            assert_eq!(out, number.to_string().as_bytes());
        }
    }

    #[test]
    fn escaped_text_is_safe_inside_quotes() {
        assert_eq!(escape("a\"b\\\n"), r#"a\"b\\\n"#);
    }
}
