//! One streamed answer, read as it arrives: when each token came, and what the engine says it counted.
//!
//! An engine under load may send several tokens in one event. Where it counts them in every event, all of them get that
//! event's time; elsewhere an event is taken for one token.

use std::time::Duration;

use serde::Deserialize;

/// The longest line of a stream: far above any event of one token.
const LINE_BYTES_MAX: usize = 1 << 20;
/// No probe asks for more.
const TOKENS_MAX: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct TokenCounts {
    pub(crate) prompt_tokens: u32,
    #[serde(default)]
    completion_tokens: u32,
    prompt_tokens_details: Option<CachedCount>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct CachedCount {
    cached_tokens: Option<u32>,
}

impl TokenCounts {
    pub(crate) fn cached_tokens(&self) -> Option<u32> {
        self.prompt_tokens_details?.cached_tokens
    }
}

#[derive(Deserialize)]
struct StreamEvent {
    #[serde(default)]
    choices: Vec<serde::de::IgnoredAny>,
    usage: Option<TokenCounts>,
    error: Option<serde_json::Value>,
}

/// Fed each chunk of one answer, in order.
#[derive(Debug, Default)]
pub(crate) struct AnswerReader {
    /// A line that has not ended.
    rest: Vec<u8>,
    pub(crate) tokens: Vec<Duration>,
    pub(crate) counts: Option<TokenCounts>,
}

impl AnswerReader {
    /// What arrived at `now`. An error is what the stream said, or got wrong.
    pub(crate) fn feed(&mut self, chunk: &[u8], now: Duration) -> Result<(), String> {
        self.rest.extend_from_slice(chunk);
        let whole = self.rest.iter().rposition(|&it| it == b'\n').map_or(0, |it| it + 1);
        let rest = self.rest.split_off(whole);
        let lines = std::mem::replace(&mut self.rest, rest);
        if self.rest.len() > LINE_BYTES_MAX {
            return Err(format!("a line of the stream is longer than {LINE_BYTES_MAX} bytes"));
        }
        lines.split(|&it| it == b'\n').try_for_each(|line| self.read_line(line, now))
    }

    fn read_line(&mut self, line: &[u8], now: Duration) -> Result<(), String> {
        let Some(data) = line.trim_ascii().strip_prefix(b"data:") else { return Ok(()) };
        let data = data.trim_ascii();
        if data == b"[DONE]" {
            return Ok(());
        }
        let event: StreamEvent = serde_json::from_slice(data)
            .map_err(|it| format!("an event of the stream is no completion: {it}"))?;
        if let Some(error) = event.error.filter(|it| !it.is_null()) {
            return Err(format!("the stream ended with {error}"));
        }
        let counted = event.usage.map(|it| it.completion_tokens as usize);
        self.counts = event.usage.or(self.counts);
        if !event.choices.is_empty() {
            let tokens = counted.unwrap_or(self.tokens.len() + 1).min(TOKENS_MAX);
            self.tokens.resize(tokens.max(self.tokens.len()), now);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn read(stream: &str, bytes: usize) -> Result<AnswerReader, String> {
        let mut reader = AnswerReader::default();
        for (index, piece) in stream.as_bytes().chunks(bytes).enumerate() {
            reader.feed(piece, at(index as u64))?;
        }
        Ok(reader)
    }

    const PLAIN: &str = "data: {\"choices\":[{\"text\":\"ab\"}],\"usage\":null}\n\n\
        : a comment\r\n\
        data: {\"choices\":[{\"text\":\"\"}]}\r\n\r\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n\
        data: [DONE]\n\n";

    #[test]
    fn a_stream_is_the_same_however_it_is_cut() {
        for bytes in 1..PLAIN.len() {
            let reader = read(PLAIN, bytes).unwrap();
            assert_eq!(reader.tokens.len(), 2, "{bytes}");
            let counts = reader.counts.unwrap();
            assert_eq!((counts.prompt_tokens, counts.cached_tokens()), (9, Some(4)));
        }
    }

    #[test]
    fn counts_tell_how_many_tokens_an_event_has() {
        let counted = |tokens| {
            let usage = format!("{{\"prompt_tokens\":9,\"completion_tokens\":{tokens}}}");
            format!("data: {{\"choices\":[{{\"text\":\"a\"}}],\"usage\":{usage}}}\n\n")
        };
        let mut reader = AnswerReader::default();
        reader.feed(counted(1).as_bytes(), at(1)).unwrap();
        reader.feed(counted(4).as_bytes(), at(7)).unwrap();
        assert_eq!(reader.tokens, [at(1), at(7), at(7), at(7)]);
    }

    #[test]
    fn errors_in_the_stream_are_told() {
        let told = read("data: {\"error\":{\"message\":\"out of memory\"}}\n\n", 9).unwrap_err();
        assert!(told.contains("out of memory"), "{told}");
        assert!(read("data: <html>\n", 9).is_err());
        assert!(read(&"x".repeat(LINE_BYTES_MAX + 1), 1 << 16).is_err(), "a line has a limit");
    }
}
