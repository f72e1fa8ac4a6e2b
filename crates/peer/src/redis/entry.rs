//! What stands in Redis: the names of keys, the entries of the stream, and snapshots.
//!
//! An entry of the stream has a field `from`, who wrote it, and a field `frame`; one that marks where a router came in
//! has a field `join` in its place. Whoever may write to the server may write anything else there, so that everything
//! is looked at before it is believed.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use redis::Value;
use std::fmt;

/// A name of a router may be so long.
const NAME_MAX: usize = 256;

pub(super) const FROM: &str = "from";
pub(super) const FRAME: &str = "frame";
pub(super) const JOIN: &str = "join";

/// The keys of one group.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    pub(super) stream: String,
    pub(super) members: String,
    group: String,
}

impl Keys {
    pub(super) fn new(group: &str) -> Keys {
        Keys {
            stream: format!("maitre:{group}:stream"),
            members: format!("maitre:{group}:members"),
            group: group.to_owned(),
        }
    }

    pub(super) fn snapshot(&self, name: &str) -> String {
        format!("maitre:{}:snapshot:{name}", self.group)
    }
}

/// Where an entry stands in the stream: milliseconds by the server's clock, and a number within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) millis: u64,
    pub(super) sequence: u64,
}

impl Id {
    pub(super) fn parse(bytes: &[u8]) -> Option<Id> {
        let (millis, sequence) = std::str::from_utf8(bytes).ok()?.split_once('-')?;
        Some(Id { millis: millis.parse().ok()?, sequence: sequence.parse().ok()? })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.sequence)
    }
}

/// Who wrote an entry: a number that each life of a router draws, and its name. The number, so that a router does not
/// take for its own what another says that was given the same name.
pub(super) fn from(instance: u64, name: &str) -> String {
    format!("{instance:016x}:{name}")
}

/// The name in `from`, if it may be one.
fn named(from: &[u8]) -> Option<String> {
    let (_, name) = std::str::from_utf8(from).ok()?.split_once(':')?;
    is_name(name).then(|| name.to_owned())
}

pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.chars().any(char::is_control)
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: Id,
    pub(super) said: Said,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// By ourselves.
    Own,
    Joined,
    Frame {
        name: String,
        sealed: Bytes,
    },
    Nonsense,
}

/// The entries of an answer to XREAD of one stream, the oldest first; none if it waited in vain.
///
/// An answer that has another shape than Redis gives it has no entries: there is nothing in it to be told.
pub(super) fn entries(answer: Value, own: &str) -> Vec<Entry> {
    let Value::Array(streams) = answer else { return Vec::new() };
    let Some(Value::Array(stream)) = streams.into_iter().next() else { return Vec::new() };
    let Some(Value::Array(entries)) = stream.into_iter().nth(1) else { return Vec::new() };
    entries.into_iter().filter_map(|it| entry(it, own)).collect()
}

fn entry(value: Value, own: &str) -> Option<Entry> {
    let Value::Array(parts) = value else { return None };
    let mut parts = parts.into_iter();
    let id = match parts.next()? {
        Value::BulkString(id) => Id::parse(&id)?,
        _ => return None,
    };
    let said = match parts.next() {
        Some(Value::Array(fields)) => said(fields, own),
        // Redis says nil of an entry that was deleted in between.
        _ => Said::Nonsense,
    };
    Some(Entry { id, said })
}

fn said(fields: Vec<Value>, own: &str) -> Said {
    let mut fields = fields.into_iter();
    let mut next = || match fields.next() {
        Some(Value::BulkString(bytes)) => Some(bytes),
        _ => None,
    };
    let (Some(FROM_BYTES), Some(from)) = (next().as_deref(), next()) else { return Said::Nonsense };
    if from == own.as_bytes() {
        return Said::Own;
    }
    let (Some(name), Some(kind), Some(value)) = (named(&from), next(), next()) else { return Said::Nonsense };
    match kind.as_slice() {
        FRAME_BYTES => Said::Frame { name, sealed: Bytes::from(value) },
        JOIN_BYTES => Said::Joined,
        _ => Said::Nonsense,
    }
}

const FROM_BYTES: &[u8] = FROM.as_bytes();
const FRAME_BYTES: &[u8] = FRAME.as_bytes();
const JOIN_BYTES: &[u8] = JOIN.as_bytes();

/// A snapshot as one value: each frame, sealed, after its length. Frames that would make it longer than `bytes_max` are
/// left out, and how many they are is said.
pub(super) fn pack(frames: &[Bytes], bytes_max: usize) -> (Bytes, u64) {
    let mut out = BytesMut::new();
    let mut left_out = 0;
    for frame in frames {
        match u32::try_from(frame.len()) {
            Ok(length) if out.len() + 4 + frame.len() <= bytes_max => {
                out.put_u32_le(length);
                out.put_slice(frame);
            }
            _ => left_out += 1,
        }
    }
    (out.freeze(), left_out)
}

/// The frames of a snapshot, as far as it makes sense; `Err` once it no longer does.
pub(super) fn unpack(mut value: Bytes) -> impl Iterator<Item = Result<Bytes, Torn>> {
    std::iter::from_fn(move || {
        if value.is_empty() {
            return None;
        }
        let length = value.try_get_u32_le().map(|it| it as usize).unwrap_or(usize::MAX);
        if length > value.len() {
            value.clear();
            return Some(Err(Torn));
        }
        Some(Ok(value.split_to(length)))
    })
}

/// A snapshot ends in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Torn;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn answer(fields: &[&str]) -> Value {
        let fields = Value::Array(fields.iter().map(|it| bulk(it)).collect());
        let entry = Value::Array(vec![bulk("17-3"), fields]);
        Value::Array(vec![Value::Array(vec![bulk("maitre:g:stream"), Value::Array(vec![entry])])])
    }

    #[track_caller]
    fn check(fields: &[&str], expected: Said) {
        let own = from(1, "a");
        let expected = Entry { id: Id { millis: 17, sequence: 3 }, said: expected };
        assert_eq!(entries(answer(fields), &own), [expected], "{fields:?}");
    }

    #[test]
    fn an_entry_is_our_own_another_routers_or_nonsense() {
        let other = from(2, "b:7000");
        let frame = Said::Frame { name: "b:7000".into(), sealed: Bytes::from_static(b"x") };
        check(&["from", &other, "frame", "x"], frame);
        check(&["from", &other, "join", ""], Said::Joined);
        check(&["from", &from(1, "a"), "frame", "x"], Said::Own);
        check(&["from", &other], Said::Nonsense);
        check(&["from", &other, "frame"], Said::Nonsense);
        check(&["from", &other, "other", "x"], Said::Nonsense);
        check(&["frame", "x", "from", &other], Said::Nonsense);
        check(&["from", "no colon", "frame", "x"], Said::Nonsense);
        check(&["from", "1:line\nbreak", "frame", "x"], Said::Nonsense);
        check(&["from", &from(2, &"x".repeat(NAME_MAX + 1)), "frame", "x"], Said::Nonsense);
        check(&[], Said::Nonsense);
    }

    #[test]
    fn a_namesake_is_not_ourselves() {
        check(
            &["from", &from(2, "a"), "frame", "x"],
            Said::Frame { name: "a".into(), sealed: Bytes::from_static(b"x") },
        );
    }

    #[test]
    fn answers_of_other_shapes_have_no_entries() {
        for value in
            [Value::Nil, Value::Int(1), Value::Array(vec![]), Value::Array(vec![Value::Nil]), bulk("x")]
        {
            assert_eq!(entries(value, "own"), []);
        }
    }

    #[test]
    fn ids_are_in_order() {
        let parse = |it: &str| Id::parse(it.as_bytes());
        assert!(parse("9-9").unwrap() < parse("10-0").unwrap());
        assert_eq!(parse("10-2").unwrap().to_string(), "10-2");
        for bad in ["", "-", "1", "1-", "x-1", "1-99999999999999999999"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_snapshot_holds_what_fits() {
        let frames = [Bytes::from(vec![1; 10]), Bytes::from(vec![2; 100]), Bytes::from(vec![3; 10])];
        let (value, left_out) = pack(&frames, 40);
        assert_eq!(left_out, 1);
        let frames: Vec<_> = unpack(value).collect();
        assert_eq!(frames, [Ok(Bytes::from(vec![1; 10])), Ok(Bytes::from(vec![3; 10]))]);
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_out_and_a_torn_end_is_told(frames: Vec<Vec<u8>>, cut: usize) {
            let frames: Vec<Bytes> = frames.into_iter().map(Bytes::from).collect();
            let (value, left_out) = pack(&frames, usize::MAX);
            prop_assert_eq!(left_out, 0);
            let back: Result<Vec<Bytes>, Torn> = unpack(value.clone()).collect();
            prop_assert_eq!(back, Ok(frames.clone()));
            let cut = cut % (value.len() + 1);
            let some: Vec<Bytes> = unpack(value.slice(..cut)).filter_map(Result::ok).collect();
            prop_assert_eq!(&some[..], &frames[..some.len()]);
        }

        #[test]
        fn made_up_snapshots_end(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let length = bytes.len();
            let taken: usize = unpack(Bytes::from(bytes)).filter_map(Result::ok).map(|it| it.len() + 4).sum();
            assert!(taken <= length);
        }
    }
}
