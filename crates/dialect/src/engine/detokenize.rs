//! Asks an engine whether token ids end within a character, in the format that vLLM and SGLang share.

use std::borrow::Cow;

use crate::json::Cursor;

/// The path to request.
pub const DETOKENIZE: &str = "/detokenize";

/// The request body for the text of these ids, which are JSON numbers.
pub fn text_question(ids: &[&str]) -> String {
    format!("{{\"tokens\":[{}]}}", ids.join(","))
}

/// Whether the text in an engine's answer ends in the middle of a character; none if there is no text. Half a character is
/// decoded as U+FFFD.
pub fn ends_within_character(body: &[u8]) -> Option<bool> {
    let mut text: Option<Cow<'_, str>> = None;
    Cursor::new(std::str::from_utf8(body).ok()?)
        .members(|key, value| {
            if matches!(&*key, "prompt" | "text") {
                text = value.string();
            }
        })
        .ok()?;
    Some(text?.ends_with('\u{FFFD}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_has_the_ids_alone() {
        assert_eq!(text_question(&["1", "22"]), r#"{"tokens":[1,22]}"#);
    }

    #[test]
    fn half_a_character_at_the_end_is_seen_in_both_formats() {
        for (body, expected) in [
            (r#"{"prompt":"Hi"}"#, Some(false)),
            (r#"{"prompt":""}"#, Some(false)),
            ("{\"prompt\":\"Hi \u{FFFD}\"}", Some(true)),
            (r#"{"text":"Hi \ufffd"}"#, Some(true)),
            ("{\"text\":\"\u{FFFD} Hi\"}", Some(false)),
            (r#"{"text":["Hi"]}"#, None),
            (r#"{"error":{"message":"no"}}"#, None),
            ("<html>", None),
        ] {
            assert_eq!(ends_within_character(body.as_bytes()), expected, "{body}");
        }
    }
}
