//! Changes members of an object in place: everything that is not named stays byte for byte.
//!
//! A tree would lose what the client wrote: the order of keys, the digits of a number, escapes. So the text is walked
//! once to find the members, and then copied with their values exchanged. The length is counted before, so that the
//! result is one allocation.

use std::fmt::{self, Display, Write};
use std::ops::Range;

use crate::json::{Cursor, Fault, Raw, is_control};

/// One change of a member at the top level of an object. Where the member is there several times, the first is changed
/// and the others are removed: parsers differ in which of them counts.
#[derive(Clone, Copy)]
pub(crate) struct MemberEdit<'a> {
    name: &'a str,
    to: To<'a>,
}

/// Values are written as JSON by their `Display`.
#[derive(Clone, Copy)]
enum To<'a> {
    Set(&'a dyn Display),
    Replace(&'a dyn Display),
    Remove,
}

/// Sets the member; inserts it before all others if it is not there.
pub(crate) const fn set<'a>(name: &'a str, value: &'a dyn Display) -> MemberEdit<'a> {
    MemberEdit { name, to: To::Set(value) }
}

/// Sets the member if it is there.
pub(crate) const fn replace<'a>(name: &'a str, value: &'a dyn Display) -> MemberEdit<'a> {
    MemberEdit { name, to: To::Replace(value) }
}

pub(crate) const fn remove(name: &str) -> MemberEdit<'_> {
    MemberEdit { name, to: To::Remove }
}

/// The text of an object with these changes, each of another member. Fails if the text is not one object.
pub(crate) fn edit(text: &str, changes: &[MemberEdit<'_>]) -> Result<String, Fault> {
    debug_assert!(changes.len() <= u32::BITS as usize, "a bit for each change");
    let mut cursor = Cursor::new(text);
    cursor.peek();
    // Just after the brace.
    let start = cursor.offset() + 1;
    let mut walk = Walk {
        text,
        changes,
        seen: 0,
        start,
        end: start,
        removed_to: start,
        has_kept: false,
        splices: Splices::new(),
    };
    cursor.members(|key, value| walk.take(&key, value))?;
    cursor.end()?;
    Ok(walk.write())
}

/// The same for an object that was read before, and so is one.
pub(crate) fn edit_checked(text: &str, changes: &[MemberEdit<'_>]) -> String {
    let edited = edit(text, changes);
    debug_assert!(edited.is_ok(), "an object was checked when it was read: {edited:?}");
    edited.unwrap_or_else(|_| text.to_owned())
}

/// A string as JSON.
#[derive(Clone, Copy)]
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "\"{}\"", Escaped(self.0))
    }
}

/// The part of a JSON string between its quotes.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needs_escape = |it: char| matches!(it, '"' | '\\') || u8::try_from(it).is_ok_and(is_control);
        let mut rest = self.0;
        while let Some(at) = rest.find(needs_escape) {
            let byte = rest.as_bytes()[at];
            out.write_str(&rest[..at])?;
            match byte {
                b'"' | b'\\' => write!(out, "\\{}", char::from(byte))?,
                _ => write!(out, "\\u{byte:04x}")?,
            }
            rest = &rest[at + 1..];
        }
        out.write_str(rest)
    }
}

/// What was found so far.
struct Walk<'a> {
    text: &'a str,
    changes: &'a [MemberEdit<'a>],
    /// A bit for each change whose member was there.
    seen: u32,
    start: usize,
    /// The end of the last member.
    end: usize,
    /// The end of the members that were removed before the first one kept.
    removed_to: usize,
    has_kept: bool,
    splices: Splices,
}

impl Walk<'_> {
    fn take(&mut self, key: &str, value: Raw<'_>) {
        // A value is a slice of the text, so its offset from the beginning is its position.
        let at = value.text.as_ptr().addr() - self.text.as_ptr().addr();
        let place = at..at + value.text.len();
        let end = place.end;
        match self.changes.iter().position(|it| it.name == key) {
            None => self.keep(),
            Some(change) => {
                let is_first = self.seen >> change & 1 == 0;
                self.seen |= 1 << change;
                match self.changes[change].to {
                    To::Set(_) | To::Replace(_) if is_first => {
                        self.keep();
                        self.splices.push(Splice { place, change: Some(change) });
                    }
                    _ => self.remove(end),
                }
            }
        }
        self.end = end;
    }

    fn keep(&mut self) {
        if !self.has_kept && self.removed_to > self.start {
            // The comma after the removed members goes with them. Only whitespace can precede it.
            let comma = self.text[self.removed_to..].find(',').map_or(0, |it| it + 1);
            self.splices.push(Splice { place: self.start..self.removed_to + comma, change: None });
        }
        self.has_kept = true;
    }

    /// With the comma before it; the first members of all wait for the next one kept.
    fn remove(&mut self, end: usize) {
        if self.has_kept {
            self.splices.push(Splice { place: self.end..end, change: None });
        } else {
            self.removed_to = end;
        }
    }

    fn write(mut self) -> String {
        if !self.has_kept && self.removed_to > self.start {
            self.splices.push(Splice { place: self.start..self.removed_to, change: None });
        }
        let mut length = Length(0);
        let mut changed = String::new();
        let written = self.write_to(&mut length).and_then(|()| {
            changed.reserve_exact(length.0);
            self.write_to(&mut changed)
        });
        debug_assert!(written.is_ok(), "a string takes everything");
        changed
    }

    /// Neither sink fails.
    fn write_to(&self, out: &mut impl Write) -> fmt::Result {
        out.write_str(&self.text[..self.start])?;
        let mut inserts = self.missing().peekable();
        while let Some((name, value)) = inserts.next() {
            let has_next = self.has_kept || inserts.peek().is_some();
            for piece in ["\"", name, "\":"] {
                out.write_str(piece)?;
            }
            write!(out, "{value}")?;
            out.write_str(if has_next { "," } else { "" })?;
        }
        let mut at = self.start;
        for Splice { place, change } in self.splices.iter() {
            out.write_str(&self.text[at..place.start])?;
            if let Some(To::Set(value) | To::Replace(value)) = change.map(|it| self.changes[it].to) {
                write!(out, "{value}")?;
            }
            at = place.end;
        }
        out.write_str(&self.text[at..])
    }

    fn missing(&self) -> impl Iterator<Item = (&str, &dyn Display)> {
        self.changes.iter().enumerate().filter_map(|(index, change)| match change.to {
            To::Set(value) if self.seen >> index & 1 == 0 => Some((change.name, value)),
            _ => None,
        })
    }
}

/// A part of the text that is left out, and the change whose value takes its place.
#[derive(Clone, Debug, Default)]
struct Splice {
    place: Range<usize>,
    change: Option<usize>,
}

/// In the order of the text. Only a body that repeats a member has more than fit in place.
struct Splices {
    first: [Splice; 12],
    count: usize,
    others: Vec<Splice>,
}

impl Splices {
    fn new() -> Splices {
        Splices { first: Default::default(), count: 0, others: Vec::new() }
    }

    fn push(&mut self, splice: Splice) {
        match self.first.get_mut(self.count) {
            Some(place) => *place = splice,
            None => self.others.push(splice),
        }
        self.count += 1;
    }

    fn iter(&self) -> impl Iterator<Item = &Splice> {
        self.first.iter().take(self.count).chain(&self.others)
    }
}

/// Counts what would be written.
struct Length(usize);

impl Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Sets `set`, replaces `replace`, removes `gone`.
    #[track_caller]
    fn check(text: &str, expected: &str) {
        let changes = [set("set", &1), replace("replace", &"[2]"), remove("gone"), remove("gone too")];
        let actual = edit(text, &changes).unwrap();
        assert_eq!(actual, expected, "text: {text}");
        assert_eq!(actual.capacity(), actual.len(), "grown or too large: {text}");
    }

    #[test]
    fn a_missing_member_is_inserted_before_all_others() {
        check("{}", r#"{"set":1}"#);
        check(" {\n } ", " {\"set\":1\n } ");
        check(r#"{ "a" : 1.0e0 }"#, r#"{"set":1, "a" : 1.0e0 }"#);
        let two = edit("{}", &[set("a", &1), set("b", &Quoted("\"\n"))]).unwrap();
        assert_eq!(two, r#"{"a":1,"b":"\"\u000a"}"#);
    }

    #[test]
    fn a_value_is_exchanged_in_its_place() {
        check(r#"{"a":0, "set" : {"b":[3]} ,"c":4}"#, r#"{"a":0, "set" : 1 ,"c":4}"#);
        check(r#"{"set":null,"replace":null}"#, r#"{"set":1,"replace":[2]}"#);
        check(r#"{"s\u0065t":7}"#, r#"{"s\u0065t":1}"#);
        check(r#"{"a":{"set":0,"gone":1}}"#, r#"{"set":1,"a":{"set":0,"gone":1}}"#);
    }

    #[test]
    fn a_removed_member_takes_one_comma_with_it() {
        check(r#"{"gone":0}"#, r#"{"set":1}"#);
        check(r#"{ "gone" : 0 }"#, r#"{"set":1 }"#);
        check(r#"{"gone":0,"a":1}"#, r#"{"set":1,"a":1}"#);
        check(r#"{"gone":0 , "gone too":[] , "a":1}"#, r#"{"set":1, "a":1}"#);
        check(r#"{"set":0,"gone":1,"a":2}"#, r#"{"set":1,"a":2}"#);
        check(r#"{"set":0, "gone":1 }"#, r#"{"set":1 }"#);
        check(r#"{"gone":0,"set":0,"gone too":1,"a":2,"gone":3}"#, r#"{"set":1,"a":2}"#);
    }

    #[test]
    fn of_a_repeated_member_one_remains() {
        check(r#"{"set":0,"a":2,"set":[3]}"#, r#"{"set":1,"a":2}"#);
        check(r#"{"replace":0,"replace":0,"set":0,"set":0}"#, r#"{"replace":[2],"set":1}"#);
        let many = format!(r#"{{"a":0{},"b":0}}"#, r#","gone":1,"set":2"#.repeat(40));
        check(&many, r#"{"a":0,"set":1,"b":0}"#);
    }

    #[test]
    fn a_text_that_is_not_one_object_is_a_fault() {
        for text in ["", " ", "[1]", "7", "\"set\"", "{", "{\"a\":}", "{} {}", "{\"a\":1}x"] {
            assert!(edit(text, &[set("set", &1)]).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_string_is_quoted_as_json(text in ".{0,12}|[\\x00-\\x7f]{0,12}") {
            prop_assert_eq!(serde_json::from_str::<Value>(&Quoted(&text).to_string()).unwrap(), Value::from(text));
        }
    }
}
