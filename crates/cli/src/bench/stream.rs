//! Reads one streamed answer as it arrives: the time of the first token, the text, the usage.
//!
//! The first token is the first event that carries text, including reasoning; an event that only names the
//! role or is empty does not count. Reads the streams of chats and completions.

use maitre_base::Instant;
use serde::Deserialize;

/// Maximum line length of a stream. Chosen: far above any event, and a bound on what a wrong endpoint can
/// cost.
const LINE_BYTES_MAX: usize = 4 << 20;
/// Maximum length of an answer whose text is kept.
const TEXT_BYTES_MAX: usize = 8 << 20;

/// The usage in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u32,
    #[serde(default)]
    pub(super) completion_tokens: u32,
    prompt_tokens_details: Option<Details>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

impl Usage {
    pub(super) fn cached_tokens(&self) -> Option<u32> {
        self.prompt_tokens_details?.cached_tokens
    }
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Choice {
    /// In a completion.
    text: Option<String>,
    /// In a chat.
    delta: Option<Delta>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    /// Reasoning, under the current and the former name in vLLM and SGLang.
    reasoning: Option<String>,
    reasoning_content: Option<String>,
}

/// Takes each chunk of one answer, in order.
#[derive(Debug, Default)]
pub(super) struct Listener {
    /// An incomplete line.
    rest: Vec<u8>,
    text: Option<String>,
    pub(super) first_token: Option<Instant>,
    /// When the stream sent its end mark.
    pub(super) done: Option<Instant>,
    pub(super) usage: Option<Usage>,
    /// Events that carried text.
    pub(super) events: u32,
}

impl Listener {
    pub(super) fn new(keeps_text: bool) -> Listener {
        Listener { text: keeps_text.then(String::new), ..Listener::default() }
    }

    /// Takes what arrived at `now`. An error is one that the stream reported, or a malformed stream.
    pub(super) fn feed(&mut self, chunk: &[u8], now: Instant) -> Result<(), String> {
        let Some(end) = chunk.iter().rposition(|&it| it == b'\n') else {
            self.rest.extend_from_slice(chunk);
            return match self.rest.len() > LINE_BYTES_MAX {
                true => Err(format!("a line of the stream is longer than {LINE_BYTES_MAX} bytes")),
                false => Ok(()),
            };
        };
        let mut whole = std::mem::take(&mut self.rest);
        whole.extend_from_slice(&chunk[..end]);
        self.rest.extend_from_slice(&chunk[end + 1..]);
        whole.split(|&it| it == b'\n').try_for_each(|line| self.read_line(line, now))
    }

    /// The whole text, if it was to be kept and was not too long.
    pub(super) fn take_text(&mut self) -> Option<String> {
        self.text.take()
    }

    fn read_line(&mut self, line: &[u8], now: Instant) -> Result<(), String> {
        let Some(data) = line.trim_ascii().strip_prefix(b"data:") else { return Ok(()) };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            self.done = Some(now);
            return Ok(());
        }
        let chunk: Chunk =
            serde_json::from_slice(data).map_err(|it| format!("an event is not ours: {it}"))?;
        if let Some(error) = chunk.error.filter(|it| !it.is_null()) {
            return Err(error.to_string());
        }
        self.usage = chunk.usage.or(self.usage);
        chunk.choices.into_iter().for_each(|it| self.hear(it, now));
        Ok(())
    }

    fn hear(&mut self, choice: Choice, now: Instant) {
        let (content, thoughts) = match choice.delta {
            Some(delta) => (delta.content, delta.reasoning.or(delta.reasoning_content)),
            None => (choice.text, None),
        };
        let (content, thoughts) = (content.unwrap_or_default(), thoughts.unwrap_or_default());
        if content.is_empty() && thoughts.is_empty() {
            return;
        }
        self.first_token.get_or_insert(now);
        self.events += 1;
        match &mut self.text {
            Some(text) if text.len() + content.len() <= TEXT_BYTES_MAX => text.push_str(&content),
            text => *text = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n\
        : a comment\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"ab\"}}],\"usage\":null}\n\n\
        data:{\"choices\":[{\"delta\":{\"content\":\"cd\"}}],\"error\":null}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n\
        data: [DONE]\n\n";

    /// Feeds chunks of this many bytes, one per millisecond.
    fn listen(stream: &str, bytes: usize) -> Result<Listener, String> {
        let mut listener = Listener::new(true);
        for (index, piece) in stream.as_bytes().chunks(bytes).enumerate() {
            listener.feed(piece, Instant::from_millis(index as u64))?;
        }
        Ok(listener)
    }

    #[test]
    fn chunk_boundaries_make_no_difference() {
        for bytes in 1..CHAT.len() {
            let mut listener = listen(CHAT, bytes).unwrap();
            assert_eq!(listener.take_text().as_deref(), Some("abcd"));
            assert_eq!((listener.events, listener.done.is_some()), (2, true));
            let usage = listener.usage.unwrap();
            assert_eq!(
                (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens()),
                (9, 2, Some(4))
            );
        }
    }

    #[test]
    fn an_event_without_text_is_not_a_token() {
        let first_line = CHAT.find('\n').unwrap() + 1;
        let listener = listen(CHAT, first_line).unwrap();
        assert!(listener.first_token > Some(Instant::ZERO), "{:?}", listener.first_token);
        assert_eq!(listen(&CHAT[..first_line], 10).unwrap().first_token, None);
    }

    #[test]
    fn completions_and_reasoning_count_as_text() {
        let stream = "data: {\"choices\":[{\"text\":\"ab\"}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n";
        let mut listener = listen(stream, 1_000).unwrap();
        assert_eq!((listener.events, listener.take_text().as_deref()), (2, Some("ab")));
        assert!(listener.done.is_none());
    }

    #[test]
    fn an_error_in_the_stream_is_reported() {
        let told = listen("data: {\"error\":{\"message\":\"the worker died\"}}\n\n", 7).unwrap_err();
        assert!(told.contains("the worker died"), "{told}");
        assert!(listen("data: <html>\n", 7).is_err());
        assert!(listen(&"x".repeat(LINE_BYTES_MAX + 1), 1 << 20).is_err(), "a line has a limit");
    }
}
