//! A validating cursor over JSON text: finds where each value begins and ends without building it.
//!
//! Routing reads a dozen fields of a body that is mostly one long string. Building a tree, or even boxing raw
//! slices, would cost more than the rest of the decision. So one pass checks the grammar and returns slices
//! of the text.
//!
//! Strings are skipped from escape to escape, a run of plain bytes at a time (`wide`).
//!
//! It accepts what serde_json accepts. It also accepts what Python's `json` (and so most engines) accepts and
//! serde_json's `Value` does not: `NaN`, `Infinity`, `-Infinity`, numbers beyond an f64, and lone surrogates
//! (read as U+FFFD). Nesting is bounded by `MAX_DEPTH`, without recursion.

pub(crate) mod edit;
pub(crate) mod ids;
#[cfg(test)]
mod tests;
pub(crate) mod wide;

use std::borrow::Cow;
use std::ops::ControlFlow;

use memchr::memchr;

use wide::run;

/// How many arrays and objects may be open inside one value. Chosen: the bits of the word that records them,
/// about serde_json's own limit, and far below the thousand or so at which Python gives up.
pub(crate) const MAX_DEPTH: u32 = u128::BITS;

/// A string value this long may be an encoded image or sound; shorter ones are not examined.
const MEDIA_BYTES_MIN: usize = 256;

/// Why the text is not JSON, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Expected { what: &'static str, offset: usize },
    TooDeep { offset: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Null,
    Boolean,
    Number,
    String,
    Array,
    Object,
}

impl Shape {
    /// The name of the type in error messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Shape::Null => "null",
            Shape::Boolean => "a boolean",
            Shape::Number => "a number",
            Shape::String => "a string",
            Shape::Array => "an array",
            Shape::Object => "an object",
        }
    }
}

/// The text of one checked value, without the whitespace around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Raw<'a> {
    pub(crate) text: &'a str,
    /// How many of these bytes are encoded images or sounds, and so not prompt text.
    pub(crate) media_bytes: usize,
    longest: LongestString,
}

/// The longest string of a value, where it is read again: most bodies are mostly one string. With 64 KB in it, searching it a
/// second time for its end, and a third time for escapes, took 22,000 instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LongestString {
    /// Where its quotes are in the text of the value; both zero if there is none.
    start: usize,
    end: usize,
    has_escapes: bool,
}

impl LongestString {
    fn or_longer(self, other: LongestString) -> LongestString {
        if other.end - other.start > self.end - self.start { other } else { self }
    }

    /// The same in a text that begins here.
    fn relative_to(self, start: usize) -> LongestString {
        match self.end {
            0 => self,
            end => LongestString { start: self.start - start, end: end - start, ..self },
        }
    }
}

impl<'a> Raw<'a> {
    pub(crate) fn shape(self) -> Shape {
        match self.text.as_bytes().first() {
            Some(b'"') => Shape::String,
            Some(b'[') => Shape::Array,
            Some(b'{') => Shape::Object,
            Some(b't' | b'f') => Shape::Boolean,
            Some(b'n') => Shape::Null,
            _ => Shape::Number,
        }
    }

    /// The text between the quotes, still escaped. `None` unless this is a string.
    pub(crate) fn quoted(self) -> Option<&'a str> {
        self.text.strip_prefix('"')?.strip_suffix('"')
    }

    pub(crate) fn string(self) -> Option<Cow<'a, str>> {
        self.quoted().map(|it| if self.is_plain() { Cow::Borrowed(it) } else { decode(it) })
    }

    /// Whether this is a string that is known to have no escapes.
    pub(crate) fn is_plain(self) -> bool {
        let LongestString { start, end, has_escapes } = self.longest;
        end > 0 && start == 0 && end + 1 == self.text.len() && !has_escapes
    }

    /// Whether this is `null`, or a string, array or object with nothing in it.
    pub(crate) fn is_empty(self) -> bool {
        match self.shape() {
            Shape::Null => true,
            Shape::String => self.text.len() == 2,
            Shape::Array | Shape::Object => self.text[1..self.text.len() - 1].trim_ascii().is_empty(),
            Shape::Boolean | Shape::Number => false,
        }
    }

    /// Visits the members of an object; visits nothing if this is not one.
    pub(crate) fn members(self, visit: impl FnMut(Cow<'a, str>, Raw<'a>)) {
        if self.shape() == Shape::Object {
            let walked = Cursor::checked(self).members(visit);
            debug_assert!(walked.is_ok(), "a raw value was checked when it was cut out: {walked:?}");
        }
    }

    /// Visits the elements of an array, each with what `gather` took from its members if it is an object, until the
    /// visitor stops; visits nothing if this is not an array. The text is walked once for both.
    pub(crate) fn records<T: Default>(
        self,
        gather: impl FnMut(&mut T, Cow<'a, str>, Raw<'a>),
        visit: impl FnMut(Raw<'a>, T) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if self.shape() != Shape::Array {
            return ControlFlow::Continue(());
        }
        let walked = Cursor::checked(self).records(gather, visit);
        debug_assert!(walked.is_ok(), "a raw value was checked when it was cut out: {walked:?}");
        walked.unwrap_or(ControlFlow::Continue(()))
    }
}

pub(crate) struct Cursor<'a> {
    text: &'a str,
    offset: usize,
    media_bytes: usize,
    /// Of a text that was read before.
    known: LongestString,
    /// Of the value that is being read, so far.
    longest: LongestString,
}

impl<'a> Cursor<'a> {
    pub(crate) const fn new(text: &'a str) -> Cursor<'a> {
        let none = LongestString { start: 0, end: 0, has_escapes: false };
        Cursor { text, offset: 0, media_bytes: 0, known: none, longest: none }
    }

    /// Reads a value again that another cursor has cut out.
    const fn checked(raw: Raw<'a>) -> Cursor<'a> {
        Cursor { known: raw.longest, ..Cursor::new(raw.text) }
    }

    /// How far it has read.
    pub(crate) const fn offset(&self) -> usize {
        self.offset
    }

    /// The first byte of the next token, at which the cursor now stands.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.offset) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.offset += 1;
        }
        None
    }

    /// Reads the next value as a slice.
    pub(crate) fn value(&mut self) -> Result<Raw<'a>, Fault> {
        self.peek();
        let begun = self.begin();
        self.skip()?;
        Ok(self.cut_out(begun))
    }

    /// A value begins here: its start, and what was counted before it.
    fn begin(&mut self) -> (usize, usize, LongestString) {
        (self.offset, self.media_bytes, std::mem::take(&mut self.longest))
    }

    /// The value that began there and ends here.
    fn cut_out(&mut self, (start, media_bytes, before): (usize, usize, LongestString)) -> Raw<'a> {
        let longest = self.longest;
        self.longest = before.or_longer(longest);
        let text = &self.text[start..self.offset];
        Raw { text, media_bytes: self.media_bytes - media_bytes, longest: longest.relative_to(start) }
    }

    /// Visits each member of the object that comes next, in the order of the text.
    pub(crate) fn members(&mut self, mut visit: impl FnMut(Cow<'a, str>, Raw<'a>)) -> Result<(), Fault> {
        self.expect(b'{', "`{`")?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            let key = self.key()?;
            let value = self.value()?;
            visit(key.text(), value);
            if self.take(b'}') {
                return Ok(());
            }
            self.expect(b',', "`,` or `}`")?;
        }
    }

    /// Visits each element of the array that comes next, with what was gathered from its members. Stopping early leaves
    /// the rest unchecked.
    fn records<T: Default>(
        &mut self,
        mut gather: impl FnMut(&mut T, Cow<'a, str>, Raw<'a>),
        mut visit: impl FnMut(Raw<'a>, T) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Fault> {
        self.expect(b'[', "`[`")?;
        if self.take(b']') {
            return Ok(ControlFlow::Continue(()));
        }
        loop {
            let mut record = T::default();
            let is_object = self.peek() == Some(b'{');
            let begun = self.begin();
            if is_object {
                self.members(|key, value| gather(&mut record, key, value))?;
            } else {
                self.skip()?;
            }
            if visit(self.cut_out(begun), record).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            if self.take(b']') {
                return Ok(ControlFlow::Continue(()));
            }
            self.expect(b',', "`,` or `]`")?;
        }
    }

    /// Checks that nothing but whitespace is left.
    pub(crate) fn end(&mut self) -> Result<(), Fault> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.expected("the end of the body")),
        }
    }

    /// Skips one value of any depth, and checks all of it.
    fn skip(&mut self) -> Result<(), Fault> {
        let mut open = Stack::default();
        loop {
            match self.peek() {
                Some(b'{') => {
                    self.offset += 1;
                    if !self.take(b'}') {
                        open.push(Shape::Object, self.offset)?;
                        self.key()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    self.offset += 1;
                    if !self.take(b']') {
                        open.push(Shape::Array, self.offset)?;
                        continue;
                    }
                }
                Some(b'"') => self.string_value()?,
                Some(b'-' | b'0'..=b'9') => self.number()?,
                _ => self.literal()?,
            }
            if self.close(&mut open)? {
                return Ok(());
            }
        }
    }

    /// After a value: closes the containers that end here and moves to the next value. True once none is
    /// open.
    fn close(&mut self, open: &mut Stack) -> Result<bool, Fault> {
        while let Some(shape) = open.top() {
            match (self.peek(), shape) {
                (Some(b','), Shape::Object) => {
                    self.offset += 1;
                    self.key()?;
                    return Ok(false);
                }
                (Some(b','), _) => {
                    self.offset += 1;
                    return Ok(false);
                }
                (Some(b'}'), Shape::Object) | (Some(b']'), Shape::Array) => {
                    self.offset += 1;
                    open.pop();
                }
                (_, Shape::Object) => return Err(self.expected("`,` or `}`")),
                _ => return Err(self.expected("`,` or `]`")),
            }
        }
        Ok(true)
    }

    /// A member's name and the colon after it.
    fn key(&mut self) -> Result<Quoted<'a>, Fault> {
        if self.peek() != Some(b'"') {
            return Err(self.expected("a string as the name of a member"));
        }
        let key = self.string()?;
        self.expect(b':', "`:`")?;
        Ok(key)
    }

    fn string_value(&mut self) -> Result<(), Fault> {
        let quote = self.offset;
        let Quoted { escaped, .. } = self.string()?;
        if escaped.len() >= MEDIA_BYTES_MIN && is_media(&self.text[..quote], escaped) {
            self.media_bytes += escaped.len();
        }
        Ok(())
    }

    /// Starts at an opening quote; moves past the closing one.
    fn string(&mut self) -> Result<Quoted<'a>, Fault> {
        let start = self.offset + 1;
        let has_escapes = match self.known {
            LongestString { start: quote, end: end @ 1.., has_escapes } if quote == self.offset => {
                self.offset = end;
                has_escapes
            }
            _ => self.reach_closing_quote()?,
        };
        self.longest =
            self.longest.or_longer(LongestString { start: start - 1, end: self.offset, has_escapes });
        let escaped = &self.text[start..self.offset];
        self.offset += 1;
        Ok(Quoted { escaped, has_escapes })
    }

    /// Moves from an opening quote to the closing one. Returns whether there are escapes between them.
    fn reach_closing_quote(&mut self) -> Result<bool, Fault> {
        let bytes = self.text.as_bytes();
        let start = self.offset + 1;
        let (mut has_escapes, mut has_control) = (false, false);
        self.offset = start;
        loop {
            let run = run(&bytes[self.offset..]);
            self.offset += run.bytes;
            has_control |= run.has_control;
            match bytes.get(self.offset) {
                Some(b'"') => break,
                Some(_) => self.escape()?,
                None => return Err(self.expected("a closing quote")),
            }
            has_escapes = true;
        }
        let controls = || bytes[start..self.offset].iter().position(|&it| is_control(it));
        match has_control.then(controls).flatten() {
            Some(at) => {
                Err(Fault::Expected { what: "an escape in place of a control character", offset: start + at })
            }
            None => Ok(has_escapes),
        }
    }

    fn escape(&mut self) -> Result<(), Fault> {
        let rest = &self.text.as_bytes()[self.offset..];
        self.offset += match rest {
            [_, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => 2,
            [_, b'u', a, b, c, d, ..] if [a, b, c, d].iter().all(|it| it.is_ascii_hexdigit()) => 6,
            _ => return Err(self.expected("a valid escape")),
        };
        Ok(())
    }

    fn number(&mut self) -> Result<(), Fault> {
        if self.take_byte(b'-') && self.text.as_bytes()[self.offset..].starts_with(b"Infinity") {
            self.offset += "Infinity".len();
            return Ok(());
        }
        // No digit may follow a leading zero: `01` is a number and then garbage.
        if !self.take_byte(b'0') {
            self.digits()?;
        }
        if self.take_byte(b'.') {
            self.digits()?;
        }
        if self.take_byte(b'e') || self.take_byte(b'E') {
            let _signed = self.take_byte(b'+') || self.take_byte(b'-');
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Fault> {
        let rest = &self.text.as_bytes()[self.offset..];
        let count = rest.iter().take_while(|it| it.is_ascii_digit()).count();
        self.offset += count;
        if count == 0 { Err(self.expected("a digit")) } else { Ok(()) }
    }

    fn literal(&mut self) -> Result<(), Fault> {
        let rest = &self.text.as_bytes()[self.offset..];
        let word = ["null", "true", "false", "NaN", "Infinity"]
            .into_iter()
            .find(|word| rest.starts_with(word.as_bytes()));
        match word {
            Some(word) => self.offset += word.len(),
            None => return Err(self.expected("a value")),
        }
        Ok(())
    }

    /// Moves past `byte` if it is the next token.
    fn take(&mut self, byte: u8) -> bool {
        self.peek();
        self.take_byte(byte)
    }

    fn take_byte(&mut self, byte: u8) -> bool {
        let found = self.text.as_bytes().get(self.offset) == Some(&byte);
        self.offset += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), Fault> {
        if self.take(byte) { Ok(()) } else { Err(self.expected(what)) }
    }

    fn expected(&self, what: &'static str) -> Fault {
        Fault::Expected { what, offset: self.offset }
    }
}

/// The text between two quotes.
#[derive(Clone, Copy)]
struct Quoted<'a> {
    escaped: &'a str,
    has_escapes: bool,
}

impl<'a> Quoted<'a> {
    /// Borrowed unless it contains escapes. That is known from the search for its end: searching each name again took 100
    /// instructions.
    fn text(self) -> Cow<'a, str> {
        if self.has_escapes { decode(self.escaped) } else { Cow::Borrowed(self.escaped) }
    }
}

/// Which of the open containers are objects, one bit each. This allocates nothing, and the word size bounds
/// the depth.
#[derive(Default)]
struct Stack {
    objects: u128,
    depth: u32,
}

impl Stack {
    fn push(&mut self, shape: Shape, offset: usize) -> Result<(), Fault> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::TooDeep { offset });
        }
        self.depth += 1;
        self.objects = (self.objects << 1) | u128::from(shape == Shape::Object);
        Ok(())
    }

    fn pop(&mut self) {
        self.depth -= 1;
        self.objects >>= 1;
    }

    fn top(&self) -> Option<Shape> {
        match self.depth {
            0 => None,
            _ if self.objects & 1 == 1 => Some(Shape::Object),
            _ => Some(Shape::Array),
        }
    }
}

/// The text of a checked string; borrowed unless it contains escapes.
pub(crate) fn decode(quoted: &str) -> Cow<'_, str> {
    if memchr(b'\\', quoted.as_bytes()).is_none() {
        return Cow::Borrowed(quoted);
    }
    let mut text = String::with_capacity(quoted.len());
    let _all = decode_into(quoted, |piece| {
        text.push_str(piece);
        ControlFlow::Continue(())
    });
    Cow::Owned(text)
}

/// Passes the text of a checked string to `sink`, piece by piece, until `sink` breaks.
pub(crate) fn decode_into(quoted: &str, mut sink: impl FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
    let mut rest = quoted;
    while let Some(at) = memchr(b'\\', rest.as_bytes()) {
        let (plain, escaped) = rest.split_at(at);
        sink(plain)?;
        let (character, length) = escaped_character(escaped);
        sink(character.encode_utf8(&mut [0; 4]))?;
        rest = escaped.get(length..).unwrap_or_default();
    }
    sink(rest)
}

/// The character that an escape represents, and the length of the escape.
fn escaped_character(text: &str) -> (char, usize) {
    let character = match text.as_bytes().get(1) {
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => return escaped_unit(text),
        Some(&byte) => char::from(byte),
        None => char::REPLACEMENT_CHARACTER,
    };
    (character, 2)
}

fn escaped_unit(text: &str) -> (char, usize) {
    let high = unit_at(text, 0);
    let low = unit_at(text, 6);
    // Only a high surrogate followed by a low one is a pair; a lone surrogate is U+FFFD.
    let pair = [high, low].map(Option::unwrap_or_default);
    match char::decode_utf16(pair).next() {
        Some(Ok(character)) => (character, 6 * character.len_utf16()),
        _ => (char::REPLACEMENT_CHARACTER, 6),
    }
}

fn unit_at(text: &str, offset: usize) -> Option<u16> {
    let digits = text.get(offset..offset + 6)?.strip_prefix("\\u")?;
    u16::from_str_radix(digits, 16).ok()
}

/// The line and column, both from 1, of a byte of the text.
pub(crate) fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line_start = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
    let line = 1 + memchr::memchr_iter(b'\n', before).count();
    (line, 1 + String::from_utf8_lossy(&before[line_start..]).chars().count())
}

/// Whether a long string is an encoded image or sound: a `data:` URL, or the value of a member named `data`,
/// as in the OpenAI and Anthropic formats.
fn is_media(before: &str, text: &str) -> bool {
    let named_data = || {
        let name = before.trim_end().strip_suffix(':').map(str::trim_end);
        name.is_some_and(|it| it.ends_with("\"data\""))
    };
    text.starts_with("data:") || named_data()
}

pub(crate) const fn is_control(byte: u8) -> bool {
    byte < 0x20
}
