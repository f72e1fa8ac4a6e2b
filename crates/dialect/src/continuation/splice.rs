//! An event with a few of its values exchanged; everything else stays byte for byte.

use std::fmt::Write as _;
use std::ops::Range;

use crate::json::Raw;

/// More than one event ever needs: three of its head, three of its choice, three of its usage.
const SPLICES_MAX: usize = 12;

/// The changes of one event, in the order of its text.
pub(super) struct Splices<'a> {
    event: &'a str,
    all: [Option<Splice<'a>>; SPLICES_MAX],
    count: usize,
}

#[derive(Clone, Copy)]
struct Splice<'a> {
    start: usize,
    end: usize,
    to: Value<'a>,
}

/// What takes the place of a value.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Null,
    Number(u64),
    /// JSON.
    Text(&'a str),
}

impl<'a> Splices<'a> {
    pub(super) fn new(event: &'a str) -> Splices<'a> {
        Splices { event, all: [None; SPLICES_MAX], count: 0 }
    }

    /// Exchanges a value that was cut out of the event.
    pub(super) fn replace(&mut self, value: Raw<'a>, to: Value<'a>) {
        let start = value.text.as_ptr().addr() - self.event.as_ptr().addr();
        self.put(start..start + value.text.len(), to);
    }

    fn put(&mut self, Range { start, end }: Range<usize>, to: Value<'a>) {
        debug_assert!(self.count < SPLICES_MAX, "room for every change of an event");
        if self.count == SPLICES_MAX {
            return;
        }
        let mut at = self.count;
        while at > 0 && self.all[at - 1].is_some_and(|it| it.start > start) {
            self.all[at] = self.all[at - 1];
            at -= 1;
        }
        self.all[at] = Some(Splice { start, end, to });
        self.count += 1;
    }

    /// Appends the changed event.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut at = 0;
        for &Splice { start, end, to } in self.all.iter().flatten() {
            out.extend_from_slice(&self.event.as_bytes()[at..start]);
            match to {
                Value::Null => out.extend_from_slice(b"null"),
                Value::Text(text) => out.extend_from_slice(text.as_bytes()),
                Value::Number(number) => {
                    let mut digits = String::new();
                    let _never_fails = write!(digits, "{number}");
                    out.extend_from_slice(digits.as_bytes());
                }
            }
            at = end;
        }
        out.extend_from_slice(&self.event.as_bytes()[at..]);
    }
}
