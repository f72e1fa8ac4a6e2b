//! An answer before it is given: all but the hit count is known when the request arrives.
//!
//! Streaming one means writing the same JSON around another four bytes, over and over. So each shape
//! renders what surrounds a token once (`Script`), and the loop per token only copies.

use bytes::{BufMut, BytesMut};

use super::ask::{Ask, Delivery, Shape};
use super::driver::Seen;
use super::tool::Call;
use super::{chat, completion, messages, responses};
use crate::engine::{Finish, Reject};
use crate::text;

/// Lengths of an answer that nothing limits: chosen, a line to a page.
const NATURAL_TOKENS: std::ops::RangeInclusive<u64> = 16..=256;

pub(super) struct Answer {
    pub(super) shape: Shape,
    /// Without its prefix; JSON-escaped, as is the model.
    pub(super) id: String,
    pub(super) model: String,
    pub(super) created: u64,
    pub(super) prompt_tokens: u32,
    pub(super) tokens: u32,
    pub(super) finish: Finish,
    pub(super) words: Words,
    pub(super) delivery: Delivery,
    /// Whether usage says how much was cached.
    pub(super) tells_cached: bool,
}

pub(super) enum Words {
    /// Syllables, from this seed.
    Seeded(u64),
    /// A call of a tool. Its pieces are not the tokens the engine generates: a later turn finds the prompt
    /// in the cache, but not the call.
    Call(CallWords),
}

pub(super) struct CallWords {
    /// JSON-escaped, as are the pieces.
    pub(super) name: String,
    pieces: Vec<String>,
}

/// What surrounds the tokens of one stream.
pub(super) struct Script {
    /// Events sent with the first token.
    pub(super) opening: Vec<String>,
    pub(super) before: String,
    pub(super) after: String,
    pub(super) after_last: String,
    /// Set where events are numbered: the number of the first token's.
    pub(super) numbered_from: Option<u32>,
}

/// How many tokens, and why no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Length {
    pub(super) tokens: u32,
    pub(super) finish: Finish,
}

impl Length {
    /// The length an ask gets: as long as it likes, within what it allows and what the context has room for.
    /// A limit beyond the context is refused even if the answer would have been shorter, as vLLM does.
    pub(super) fn of(ask: &Ask, words: &Words, context_tokens_max: u32) -> Result<Length, Reject> {
        let prompt = ask.prompt.len() as u64;
        let room = u64::from(context_tokens_max).saturating_sub(prompt);
        let limit = ask.max_tokens.map_or(room, u64::from);
        if limit > room || room == 0 {
            let answer = ask.max_tokens.unwrap_or(1);
            return Err(Reject::TooLong { max: context_tokens_max, prompt, answer });
        }
        let wanted = match words {
            Words::Call(call) => call.pieces.len() as u64,
            Words::Seeded(_) if ask.ignore_eos => u64::MAX,
            Words::Seeded(seed) => natural_tokens(*seed).max(u64::from(ask.min_tokens)),
        };
        let finish = if wanted > limit { Finish::Length } else { Finish::Stop };
        Ok(Length { tokens: wanted.min(limit) as u32, finish })
    }
}

fn natural_tokens(seed: u64) -> u64 {
    let span = NATURAL_TOKENS.end() - NATURAL_TOKENS.start() + 1;
    NATURAL_TOKENS.start() + seed % span
}

impl Words {
    pub(super) fn new(call: Option<&Call>, seed: u64) -> Words {
        let Some(call) = call else { return Words::Seeded(seed) };
        let characters: Vec<char> = call.arguments.chars().collect();
        let pieces = characters.chunks(text::TOKEN_BYTES).map(|it| escape(&it.iter().collect::<String>()));
        Words::Call(CallWords { name: escape(&call.name), pieces: pieces.collect() })
    }

    fn put(&self, index: u32, out: &mut BytesMut) {
        match self {
            Words::Seeded(seed) => out.put_slice(&text::answer_piece(*seed, index)),
            Words::Call(call) => out.put_slice(call.pieces[index as usize].as_bytes()),
        }
    }
}

impl Answer {
    pub(super) fn script(&self, seen: Seen) -> Script {
        match self.shape {
            Shape::Chat => chat::script(self),
            Shape::Completion | Shape::Generate => completion::script(self),
            Shape::Responses => responses::script(self),
            Shape::Messages => messages::script(self, seen),
        }
    }

    /// The events after the last token.
    pub(super) fn closing(&self, seen: Seen) -> Vec<String> {
        match self.shape {
            Shape::Chat => chat::closing(self, seen),
            Shape::Completion | Shape::Generate => completion::closing(self, seen),
            Shape::Responses => responses::closing(self, seen),
            Shape::Messages => messages::closing(self, seen),
        }
    }

    /// The answer in one piece.
    pub(super) fn whole(&self, seen: Seen) -> String {
        match self.shape {
            Shape::Chat => chat::whole(self, seen),
            Shape::Completion => completion::whole(self, seen),
            Shape::Generate => completion::generated(self, seen),
            Shape::Responses => responses::whole(self, seen),
            Shape::Messages => messages::whole(self, seen),
        }
    }

    /// The event of one token.
    pub(super) fn put_token(&self, script: &Script, index: u32, out: &mut BytesMut) {
        let is_last = index + 1 == self.tokens;
        out.put_slice(script.before.as_bytes());
        self.words.put(index, out);
        out.put_slice(if is_last { script.after_last.as_bytes() } else { script.after.as_bytes() });
        if let Some(first) = script.numbered_from {
            put_number(first + index, out);
            out.put_slice(b"}\n\n");
        }
    }

    /// All the words, JSON-escaped.
    pub(super) fn text(&self) -> String {
        match &self.words {
            Words::Seeded(seed) => text::answer_text(*seed, self.tokens),
            Words::Call(call) => call.pieces[..self.tokens as usize].concat(),
        }
    }

    pub(super) fn usage(&self, seen: Seen) -> String {
        let details = match self.tells_cached {
            true => format!(r#"{{"cached_tokens":{}}}"#, seen.cached_tokens),
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
    fn check(change: impl FnOnce(&mut Ask), expected: Result<(u32, Finish), Reject>) {
        let mut ask = Ask::parse(Shape::Chat, br#"{"messages":[{"role":"user","content":""}]}"#).unwrap();
        ask.prompt = vec![0; 10];
        change(&mut ask);
        let actual = Length::of(&ask, &Words::Seeded(20), 100).map(|it| (it.tokens, it.finish));
        assert_eq!(actual, expected);
    }

    #[test]
    fn an_answer_is_as_long_as_it_likes_within_its_limits() {
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
