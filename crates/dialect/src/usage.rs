//! Finds the token counts in a response as it passes, without parsing or copying the response.
//!
//! Engines write the counts as one small object under one name: `"usage":{…}`, or `"meta_info":{…}` in
//! SGLang's own API. So each chunk is searched for the name (a few nanoseconds), and only what follows it is
//! examined. A chunk may end anywhere, even inside the name; only then are bytes kept, and never more than
//! `OBJECT_BYTES_MAX`.
//!
//! Generated text cannot pass for usage: inside a JSON string its quotes are escaped, so `"usage"` does not
//! occur, and `\"usage"` is recognised by the byte before it. (A tool call that Anthropic's format carries as
//! plain JSON can; the real usage comes after it and wins.)

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use memchr::{memmem, memrchr};

use crate::json::{Cursor, Raw, wide};
use crate::route::Route;

/// Maximum size of the object. Chosen: several times what any API's counts take. SGLang's `meta_info` exceeds
/// it when log-probabilities are requested, and then its counts are ignored.
pub const OBJECT_BYTES_MAX: usize = 2048;

/// The counts in a response. A count that was never reported is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All tokens of the prompt, cached ones included.
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    /// How many of the prompt's tokens the worker already held.
    pub cached_tokens: Option<u64>,
}

type Name = LazyLock<memmem::Finder<'static>>;

static USAGE: Name = LazyLock::new(|| memmem::Finder::new(b"\"usage\""));
static META_INFO: Name = LazyLock::new(|| memmem::Finder::new(b"\"meta_info\""));

/// Takes each chunk of one response, in order.
#[derive(Clone, Debug)]
pub struct Finder {
    name: &'static memmem::Finder<'static>,
    state: ScanState,
    /// The last byte seen, to recognise an escaped quote at the start of the next chunk.
    last: u8,
    /// The beginning of an object whose end has not arrived.
    kept: Vec<u8>,
    found: Option<Usage>,
}

#[derive(Clone, Copy, Debug)]
enum ScanState {
    /// Looking for the name.
    Searching,
    /// The chunk ended after this many bytes of the name.
    Name(usize),
    /// Past the name; a colon must follow.
    Colon,
    /// Past the colon; an object must follow.
    Brace,
    Object(Nesting),
}

/// The parser state inside an object: enough to find its end.
#[derive(Clone, Copy, Debug, Default)]
struct Nesting {
    depth: u32,
    within: Within,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Within {
    #[default]
    Structure,
    String,
    Escape,
}

impl Finder {
    pub fn new(route: Route) -> Finder {
        Finder {
            name: if route == Route::Generate { &META_INFO } else { &USAGE },
            state: ScanState::Searching,
            last: b' ',
            kept: Vec::new(),
            found: None,
        }
    }

    pub fn feed(&mut self, chunk: &[u8]) {
        let mut at = 0;
        while at < chunk.len() {
            at = match self.state {
                ScanState::Searching => self.search(chunk, at),
                ScanState::Name(matched) => self.match_name(chunk, at, matched),
                ScanState::Colon => self.match_byte(chunk, at, b':'),
                ScanState::Brace => self.match_byte(chunk, at, b'{'),
                ScanState::Object(nesting) => self.read_object(chunk, at, nesting),
            };
        }
        self.last = chunk.last().copied().unwrap_or(self.last);
    }

    /// All reports merged: the last value of each count.
    pub fn finish(self) -> Option<Usage> {
        self.found
    }

    /// Each step takes the chunk and a start, moves to the next state, and returns where it stopped.
    fn search(&mut self, chunk: &[u8], at: usize) -> usize {
        let name = self.name.needle();
        if let Some(found) = self.name.find(&chunk[at..]) {
            let start = at + found;
            if self.before(chunk, start) != b'\\' {
                self.state = ScanState::Colon;
                return start + name.len();
            }
            return start + 1;
        }
        // A name cut by the end of the chunk contains exactly one quote, its first byte. Events end with a line break, which
        // is in no name.
        if chunk.ends_with(b"\n") {
            return chunk.len();
        }
        let tail_start = at.max(chunk.len().saturating_sub(name.len() - 1));
        if let Some(quote) = memrchr(b'"', &chunk[tail_start..]) {
            let start = tail_start + quote;
            if name.starts_with(&chunk[start..]) && self.before(chunk, start) != b'\\' {
                self.state = ScanState::Name(chunk.len() - start);
            }
        }
        chunk.len()
    }

    fn before(&self, chunk: &[u8], at: usize) -> u8 {
        match at {
            0 => self.last,
            _ => chunk[at - 1],
        }
    }

    fn match_name(&mut self, chunk: &[u8], at: usize, matched: usize) -> usize {
        let name = self.name.needle();
        let wanted = &name[matched..];
        let same = wanted.iter().zip(&chunk[at..]).take_while(|(a, b)| a == b).count();
        self.state = match same {
            _ if same == wanted.len() => ScanState::Colon,
            _ if at + same == chunk.len() => ScanState::Name(matched + same),
            // Only the first and last bytes of the name are quotes, so no other match began in between.
            _ => ScanState::Searching,
        };
        at + same
    }

    /// Skips whitespace up to the byte that must come next; any other byte means that this is not the object.
    fn match_byte(&mut self, chunk: &[u8], at: usize, wanted: u8) -> usize {
        let blank = chunk[at..].iter().take_while(|it| it.is_ascii_whitespace()).count();
        let at = at + blank;
        match chunk.get(at) {
            None => return at,
            Some(&byte) if byte != wanted => self.state = ScanState::Searching,
            Some(b':') => {
                self.state = ScanState::Brace;
                return at + 1;
            }
            // The object starts at its brace.
            Some(_) => self.state = ScanState::Object(Nesting::default()),
        }
        at
    }

    fn read_object(&mut self, chunk: &[u8], at: usize, mut nesting: Nesting) -> usize {
        let rest = &chunk[at..];
        let room = OBJECT_BYTES_MAX - self.kept.len();
        // Most objects arrive whole. One that does not, or is no JSON, is followed byte by byte to its end.
        if self.kept.is_empty()
            && let Some((usage, length)) = read(&rest[..rest.len().min(room)])
        {
            self.merge(usage);
            self.state = ScanState::Searching;
            return at + length;
        }
        let end = rest.iter().take(room).position(|&byte| nesting.closes(byte));
        match end {
            Some(end) => {
                self.kept.extend_from_slice(&rest[..=end]);
                let usage = read(&self.kept).and_then(|it| it.0);
                self.merge(usage);
            }
            None if rest.len() < room => {
                self.kept.extend_from_slice(rest);
                self.state = ScanState::Object(nesting);
                return chunk.len();
            }
            None => {}
        }
        self.kept.clear();
        self.state = ScanState::Searching;
        at + end.map_or(room, |end| end + 1)
    }

    fn merge(&mut self, usage: Option<Usage>) {
        let Some(usage) = usage else { return };
        let found = self.found.get_or_insert_default();
        found.prompt_tokens = usage.prompt_tokens.or(found.prompt_tokens);
        found.completion_tokens = usage.completion_tokens.or(found.completion_tokens);
        found.cached_tokens = usage.cached_tokens.or(found.cached_tokens);
    }
}

impl Nesting {
    /// Advances by one byte. True if it closes the object.
    fn closes(&mut self, byte: u8) -> bool {
        self.within = match (self.within, byte) {
            (Within::Structure, b'"') => Within::String,
            (Within::String, b'"') => Within::Structure,
            (Within::String, b'\\') => Within::Escape,
            (Within::Escape, _) => Within::String,
            (within, _) => within,
        };
        if self.within == Within::Structure {
            self.depth += u32::from(byte == b'{');
            self.depth -= u32::from(byte == b'}');
        }
        self.depth == 0
    }
}

/// The counts in an object that was cut out whole.
pub(crate) fn of_object(raw: Raw<'_>) -> Option<Usage> {
    read(raw.text.as_bytes()).and_then(|it| it.0)
}

/// The counts in the object at the start of a text, under any of their names, and its length. None if it is not JSON.
fn read(text: &[u8]) -> Option<(Option<Usage>, usize)> {
    let mut cursor = Cursor::new(wide::ascii(text).or_else(|| std::str::from_utf8(text).ok())?);
    let mut usage = Usage::default();
    let mut beside_cached = None;
    let walked = cursor.members(|key, value| match &*key {
        "prompt_tokens" | "input_tokens" => usage.prompt_tokens = count(value),
        "completion_tokens" | "output_tokens" => usage.completion_tokens = count(value),
        "cached_tokens" => usage.cached_tokens = count(value),
        "prompt_tokens_details" | "input_tokens_details" => value.members(|key, value| {
            if key == "cached_tokens" {
                usage.cached_tokens = count(value);
            }
        }),
        "cache_read_input_tokens" => {
            usage.cached_tokens = count(value);
            beside_cached = add(beside_cached, usage.cached_tokens);
        }
        "cache_creation_input_tokens" => beside_cached = add(beside_cached, count(value)),
        _ => {}
    });
    // Anthropic counts tokens read from and written to the cache in addition to `input_tokens`, not as part
    // of them.
    usage.prompt_tokens = usage.prompt_tokens.map(|it| it.saturating_add(beside_cached.unwrap_or(0)));
    walked.ok()?;
    Some(((usage != Usage::default()).then_some(usage), cursor.offset()))
}

fn add(sum: Option<u64>, more: Option<u64>) -> Option<u64> {
    Some(sum.unwrap_or(0).saturating_add(more?))
}

/// A larger number is an engine's mistake, and no count: what is learned from it would hold for every client.
fn count(raw: Raw<'_>) -> Option<u64> {
    raw.text.parse::<u32>().ok().map(u64::from)
}
