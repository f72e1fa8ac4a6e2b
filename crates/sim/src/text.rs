//! A tokenizer that needs no vocabulary: four bytes of UTF-8 are one token.
//!
//! What a router learns from an engine depends on tokens only through their number and their equality, so the
//! plainest reversible code is enough. A segment whose length is no multiple of four is padded with 0xFF, a byte that
//! UTF-8 never uses. A chat is cut into segments at every border that the template draws. An answer consists of whole
//! tokens. So when it returns as an assistant message it has the same tokens that the engine generated, and the next
//! turn finds them in the cache.

use maitre_base::hash;

use crate::kv;

/// Bytes in a token.
pub const TOKEN_BYTES: usize = 4;

/// Tokens that stand for an image. Chosen: small enough for tests, large enough to fill blocks.
pub const IMAGE_TOKENS: u32 = 64;

const PADDING: u8 = 0xFF;

/// The separator between documents, so that an engine can reuse their KV at any position: LMCache's
/// `blend_special_str`.
pub const SEPARATOR: &str = " # # ";

/// Its tokens.
pub fn separator() -> Vec<u32> {
    let mut prompt = Prompt::default();
    prompt.piece(SEPARATOR);
    prompt.into_tokens()
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessagePart {
    Text(String),
    /// Identified by its URL or its data; only equality matters here, not the pixels.
    Image(String),
}

/// The tokens of a prompt under construction.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    tokens: Vec<u32>,
}

impl Prompt {
    /// Adds one segment, which separators cut further: a text has the same tokens after any of them.
    pub fn text(&mut self, text: &str) {
        let mut pieces = text.split(SEPARATOR);
        pieces.next().into_iter().for_each(|it| self.piece(it));
        for piece in pieces {
            self.piece(SEPARATOR);
            self.piece(piece);
        }
    }

    fn piece(&mut self, text: &str) {
        let (whole, rest) = text.as_bytes().as_chunks::<TOKEN_BYTES>();
        self.tokens.extend(whole.iter().map(|bytes| u32::from_le_bytes(*bytes)));
        if !rest.is_empty() {
            let mut last = [PADDING; TOKEN_BYTES];
            last[..rest.len()].copy_from_slice(rest);
            self.tokens.push(u32::from_le_bytes(last));
        }
    }

    /// Adds one message of a chat.
    pub fn message(&mut self, role: &str, parts: &[MessagePart]) {
        self.open(role);
        for part in parts {
            match part {
                MessagePart::Text(text) => self.text(text),
                MessagePart::Image(name) => self.image(name),
            }
        }
        self.text("<|im_end|>\n");
    }

    /// Leaves the chat where the assistant is to speak.
    pub fn open_answer(&mut self) {
        self.open("assistant");
    }

    pub fn into_tokens(self) -> Vec<u32> {
        self.tokens
    }

    fn open(&mut self, role: &str) {
        self.text(&format!("<|im_start|>{role}\n"));
    }

    fn image(&mut self, name: &str) {
        let seed = hash::bytes(0, name.as_bytes());
        self.tokens.extend((0..IMAGE_TOKENS).map(|index| hash::pair(seed, u64::from(index)) as u32));
    }
}

/// The text behind tokens. What is not UTF-8 (an image, a made-up id) becomes replacement characters.
pub fn decode(tokens: &[u32]) -> String {
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes()).filter(|&byte| byte != PADDING);
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// Identifies the answer to a prompt as one number: every engine gives the same prompt the same answer.
pub fn seed(model: &str, tokens: &[u32]) -> u64 {
    kv::chain(hash::bytes(0, model.as_bytes()), tokens)
}

/// The answer if the KV of the prompt is not its own.
pub fn wrong_seed(seed: u64) -> u64 {
    hash::pair(seed, hash::bytes(3, b"wrong KV"))
}

/// The text of token `index` of an answer: two syllables, or one and a space. ASCII letters only, so it
/// needs no escaping in JSON.
pub fn answer_piece(seed: u64, index: u32) -> [u8; TOKEN_BYTES] {
    const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
    const VOWELS: &[u8; 4] = b"aeio";
    let dice = hash::pair(seed, u64::from(index));
    let consonant = |shift: u32| CONSONANTS[(dice >> shift & 15) as usize];
    let vowel = |shift: u32| VOWELS[(dice >> shift & 3) as usize];
    let ends_word = dice >> 20 & 1 == 1;
    match ends_word {
        true => [consonant(0), vowel(4), consonant(8), b' '],
        false => [consonant(0), vowel(4), consonant(8), vowel(12)],
    }
}

pub fn answer_token(seed: u64, index: u32) -> u32 {
    u32::from_le_bytes(answer_piece(seed, index))
}

/// The first `tokens` tokens of an answer.
pub fn answer_text(seed: u64, tokens: u32) -> String {
    (0..tokens).flat_map(|index| answer_piece(seed, index)).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn encode(text: &str) -> Vec<u32> {
        let mut prompt = Prompt::default();
        prompt.text(text);
        prompt.into_tokens()
    }

    fn chat(turns: &[(&str, &str)]) -> Vec<u32> {
        let mut prompt = Prompt::default();
        for (role, text) in turns {
            prompt.message(role, &[MessagePart::Text((*text).to_owned())]);
        }
        prompt.open_answer();
        prompt.into_tokens()
    }

    #[test]
    fn four_bytes_are_a_token_and_the_rest_is_padded() {
        assert_eq!(encode("abcd"), [u32::from_le_bytes(*b"abcd")]);
        assert_eq!(encode("abcde").len(), 2);
        assert!(encode("").is_empty());
    }

    #[test]
    fn a_turn_begins_with_the_turn_before_it_and_its_answer() {
        let first = chat(&[("system", "Be brief."), ("user", "Why?")]);
        let seed = seed("m", &first);
        let answer = answer_text(seed, 21);
        let second =
            chat(&[("system", "Be brief."), ("user", "Why?"), ("assistant", &answer), ("user", "And now?")]);
        let generated: Vec<u32> = (0..21).map(|index| answer_token(seed, index)).collect();
        assert!(second.starts_with(&[first, generated].concat()));
    }

    #[test]
    fn equal_images_are_equal_tokens() {
        let picture = |name: &str| {
            let mut prompt = Prompt::default();
            prompt.message("user", &[MessagePart::Image(name.to_owned())]);
            prompt.into_tokens()
        };
        assert_eq!(picture("a"), picture("a"));
        assert_ne!(picture("a"), picture("b"));
    }

    proptest! {
        #[test]
        fn decoding_gives_the_text_back(text in ".*") {
            prop_assert_eq!(decode(&encode(&text)), text);
        }

        #[test]
        fn answers_are_letters_and_spaces(seed: u64, index: u32) {
            prop_assert!(answer_piece(seed, index).iter().all(|it| it.is_ascii_lowercase() || *it == b' '));
        }
    }
}
