//! Answers that an engine gives up, with status 200.
//!
//! vLLM and SGLang end the answers that they are writing when they shut down or an operator aborts them; vLLM 0.32 also those
//! of requests that come while it shuts down. No client asks for that: one that left reads no answer.

use std::sync::LazyLock;

use memchr::memmem;

/// The reason that engines give. Every answer is searched for it, and to build the search takes 2,000 instructions. The name of the
/// field would be the wrong thing to look for: its quote and colon are at every name, and each of them is looked at.
static REASON: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(b"abort"));

/// What is before it in chats and completions, of both engines; and in SGLang's own API. They write JSON without spaces. Within
/// a string, a quote has a backslash before it, so none of these can be text of the answer.
const FIELDS: [&[u8]; 2] = [br#""finish_reason":""#, br#""finish_reason":{"type":""#];

/// Whether this is, or contains, the end of an answer that its engine gave up.
pub fn is_aborted(answer: &[u8]) -> bool {
    REASON.find_iter(answer).any(|at| {
        let (before, reason) = answer.split_at(at);
        reason[REASON.needle().len()..].starts_with(b"\"") && FIELDS.iter().any(|it| before.ends_with(it))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_reason_counts_and_not_what_an_answer_says_of_it() {
        let answer = |content: &str, reason: &str| {
            let choice = serde_json::json!({"message": {"content": content}, "finish_reason": reason});
            serde_json::json!({"choices": [choice]}).to_string()
        };
        assert!(is_aborted(answer("", "abort").as_bytes()));
        assert!(!is_aborted(answer(r#"{"finish_reason":"abort"}"#, "stop").as_bytes()));
        assert!(!is_aborted(answer("abort", "length").as_bytes()));
        assert!(!is_aborted(answer("", "aborted").as_bytes()));
        assert!(is_aborted(
            br#"{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"Abort"}}}"#
        ));
        assert!(!is_aborted(br#"{"text":"","meta_info":{"finish_reason":{"type":"stop"}}}"#));
        assert!(
            is_aborted(br#"[{"finish_reason":"stop"},{"finish_reason":"abort"}]"#),
            "of several answers, one"
        );
    }
}
