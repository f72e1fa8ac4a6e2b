//! Watches a stream of server-sent events: whether it has begun, and whether it ended properly.
//!
//! Only the first bytes of each line are examined; one memchr finds the next line. A stream that stops
//! without its proper end was cut. The client must learn that in the stream itself, because its status line
//! was sent long ago. Payloads are never parsed.
//!
//! Lines end with LF or CRLF. The standard also allows a lone CR, which no engine sends.

#[cfg(test)]
mod tests;

use memchr::memchr;

use crate::failure::{self, Failure};
use crate::route::{End, Route};

/// How much of a line is kept when a chunk ends inside it: more than the longest prefix we match.
const LINE_HEAD_BYTES: usize = 48;

/// Takes each chunk of one stream, in order.
#[derive(Clone, Debug)]
pub struct Tracker {
    route: Route,
    progress: Progress,
    failed: bool,
    /// Whether an event has begun and its blank line has not come yet.
    inside_event: bool,
    line: Head,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Silent,
    Begun,
    /// The last event's name has been seen; its data is still to come.
    Closing,
    Ended,
}

/// The beginning of a line that no chunk has ended yet.
#[derive(Clone, Copy, Debug)]
struct Head {
    bytes: [u8; LINE_HEAD_BYTES],
    length: usize,
}

impl Tracker {
    pub const fn new(route: Route) -> Tracker {
        let line = Head { bytes: [0; LINE_HEAD_BYTES], length: 0 };
        Tracker { route, progress: Progress::Silent, failed: false, inside_event: false, line }
    }

    /// Whether this chunk contained part of an event, not only comments and blank lines.
    pub fn feed(&mut self, chunk: &[u8]) -> bool {
        let mut carried = false;
        let mut rest = chunk;
        while let Some(end) = line_end(rest) {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            carried |= self.end_line(line);
            rest = after;
        }
        if !rest.is_empty() {
            self.line.extend(rest);
            carried |= !is_comment_or_blank(self.line.bytes());
        }
        if carried && self.progress == Progress::Silent {
            self.progress = Progress::Begun;
        }
        carried
    }

    /// Whether any event has begun.
    pub fn begun(&self) -> bool {
        self.progress != Progress::Silent
    }

    /// Whether the stream ended as its route requires. A last line that lacks only its line feed counts.
    pub fn ended(&self) -> bool {
        self.progress == Progress::Ended || (self.awaits_done() && is_done(self.line.bytes()))
    }

    /// Whether the worker reported an error within the stream.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// Whether text may be appended here without splitting an event.
    pub fn between_events(&self) -> bool {
        !self.inside_event && self.line.length == 0
    }

    /// What to append to a stream whose worker died here. An incomplete event is ended first: its data is
    /// lost, but ours must not become part of it.
    pub fn failure_event(&self, failure: &Failure<'_>) -> String {
        let event = failure::event(self.route, failure);
        if self.between_events() { event } else { format!("\n\n{event}") }
    }

    /// Takes the rest of a line; returns whether the line belongs to an event.
    fn end_line(&mut self, rest: &[u8]) -> bool {
        if self.line.length == 0 {
            return self.read_line(rest);
        }
        self.line.extend(rest);
        let line = self.line;
        self.line.length = 0;
        self.read_line(line.bytes())
    }

    fn read_line(&mut self, line: &[u8]) -> bool {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match line {
            [] => self.inside_event = false,
            [b':', ..] => {}
            _ => {
                self.inside_event = true;
                self.read_field(line);
                return true;
            }
        }
        false
    }

    fn read_field(&mut self, line: &[u8]) {
        if let Some(kind) = field(line, b"event:") {
            self.failed |= kind == b"error" || kind == b"response.failed";
            if self.is_last_event(kind) && self.progress != Progress::Ended {
                self.progress = Progress::Closing;
            }
        } else if let Some(data) = field(line, b"data:") {
            self.read_data(data);
        }
    }

    fn read_data(&mut self, data: &[u8]) {
        self.failed |= data.starts_with(b"{\"error\"") || data.starts_with(b"{\"object\":\"error\"");
        let closes = match self.route.end() {
            End::Done => data == b"[DONE]",
            // Some servers write no event lines; then the data starts with the type.
            End::Event(_) => self.progress == Progress::Closing || self.is_last_event(type_of(data)),
        };
        if closes {
            self.progress = Progress::Ended;
        }
    }

    fn is_last_event(&self, kind: &[u8]) -> bool {
        match self.route.end() {
            End::Done => false,
            End::Event(kinds) => kinds.iter().any(|it| it.as_bytes() == kind),
        }
    }

    fn awaits_done(&self) -> bool {
        self.route.end() == End::Done
    }
}

impl Head {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Keeps as much as fits. A line that overflows cannot match later, because every complete match is
    /// shorter than the buffer.
    fn extend(&mut self, more: &[u8]) {
        let taken = more.len().min(LINE_HEAD_BYTES - self.length);
        self.bytes[self.length..self.length + taken].copy_from_slice(&more[..taken]);
        self.length += taken;
    }
}

/// Where the first line ends. Every second line is blank, for which no search is needed.
fn line_end(text: &[u8]) -> Option<usize> {
    match text {
        [] => None,
        [b'\n', ..] => Some(0),
        _ => memchr(b'\n', text),
    }
}

/// The value of a line's field; one space after the colon is not part of it.
pub(crate) fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = line.strip_prefix(name)?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

fn is_done(line: &[u8]) -> bool {
    field(line, b"data:") == Some(b"[DONE]")
}

/// The type that a payload names, if it is the first field.
fn type_of(data: &[u8]) -> &[u8] {
    let named = data.strip_prefix(b"{\"type\":").map(<[u8]>::trim_ascii_start);
    let quoted = named.and_then(|it| it.strip_prefix(b"\"")).unwrap_or_default();
    let end = memchr(b'"', quoted).unwrap_or(0);
    &quoted[..end]
}

fn is_comment_or_blank(line: &[u8]) -> bool {
    matches!(line, [] | [b':', ..] | b"\r")
}
