//! The data in Redis: key names, stream entries and snapshots.
//!
//! A stream entry has a field `from`, its writer, and a field `frame`; an entry that marks a router's start has a
//! field `join` instead. Any client of the server may write other data there, so every entry is checked.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use redis::Value;
use std::fmt;

/// Maximum length of a router's name.
const NAME_MAX: usize = 256;

pub(super) const FROM: &str = "from";
pub(super) const FRAME: &str = "frame";
pub(super) const JOIN: &str = "join";

/// The keys of one group.
#[derive(Clone, Debug)]
pub(super) struct GroupKeys {
    pub(super) stream: String,
    pub(super) members: String,
    group: String,
}

impl GroupKeys {
    pub(super) fn new(group: &str) -> GroupKeys {
        GroupKeys {
            stream: format!("maitre:{group}:stream"),
            members: format!("maitre:{group}:members"),
            group: group.to_owned(),
        }
    }

    pub(super) fn snapshot(&self, name: &str) -> String {
        format!("maitre:{}:snapshot:{name}", self.group)
    }
}

/// An entry's position in the stream: milliseconds by the server's clock, and a sequence number within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryId {
    pub(super) millis: u64,
    pub(super) sequence: u64,
}

impl EntryId {
    pub(super) fn parse(bytes: &[u8]) -> Option<EntryId> {
        let (millis, sequence) = std::str::from_utf8(bytes).ok()?.split_once('-')?;
        Some(EntryId { millis: millis.parse().ok()?, sequence: sequence.parse().ok()? })
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.sequence)
    }
}

/// The writer of an entry: a random number per process and the router's name. The number distinguishes two routers
/// with the same name.
pub(super) fn from(instance: u64, name: &str) -> String {
    format!("{instance:016x}:{name}")
}

/// The name in `from`, if it is valid.
fn named(from: &[u8]) -> Option<String> {
    let (_, name) = std::str::from_utf8(from).ok()?.split_once(':')?;
    is_name(name).then(|| name.to_owned())
}

pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_MAX && !name.chars().any(char::is_control)
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct StreamEntry {
    pub(super) id: EntryId,
    pub(super) content: EntryContent,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum EntryContent {
    /// Written by this router.
    Own,
    Joined,
    Frame {
        name: String,
        sealed: Bytes,
    },
    Malformed,
}

/// The entries in an XREAD reply for one stream, oldest first; none after a timeout.
///
/// A reply of any other shape has no entries.
pub(super) fn entries(answer: Value, own: &str) -> Vec<StreamEntry> {
    let Value::Array(streams) = answer else { return Vec::new() };
    let Some(Value::Array(stream)) = streams.into_iter().next() else { return Vec::new() };
    let Some(Value::Array(entries)) = stream.into_iter().nth(1) else { return Vec::new() };
    entries.into_iter().filter_map(|it| entry(it, own)).collect()
}

fn entry(value: Value, own: &str) -> Option<StreamEntry> {
    let Value::Array(parts) = value else { return None };
    let mut parts = parts.into_iter();
    let id = match parts.next()? {
        Value::BulkString(id) => EntryId::parse(&id)?,
        _ => return None,
    };
    let content = match parts.next() {
        Some(Value::Array(fields)) => content(fields, own),
        // Redis returns nil for an entry that was deleted in between.
        _ => EntryContent::Malformed,
    };
    Some(StreamEntry { id, content })
}

fn content(fields: Vec<Value>, own: &str) -> EntryContent {
    let mut fields = fields.into_iter();
    let mut next = || match fields.next() {
        Some(Value::BulkString(bytes)) => Some(bytes),
        _ => None,
    };
    let (Some(FROM_BYTES), Some(from)) = (next().as_deref(), next()) else { return EntryContent::Malformed };
    if from == own.as_bytes() {
        return EntryContent::Own;
    }
    let (Some(name), Some(kind), Some(value)) = (named(&from), next(), next()) else {
        return EntryContent::Malformed;
    };
    match kind.as_slice() {
        FRAME_BYTES => EntryContent::Frame { name, sealed: Bytes::from(value) },
        JOIN_BYTES => EntryContent::Joined,
        _ => EntryContent::Malformed,
    }
}

const FROM_BYTES: &[u8] = FROM.as_bytes();
const FRAME_BYTES: &[u8] = FRAME.as_bytes();
const JOIN_BYTES: &[u8] = JOIN.as_bytes();

/// Packs frames into one value, each with a length prefix. Returns the number of frames left out because of
/// `bytes_max`.
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

/// The frames of a snapshot; `Err` where it is truncated.
pub(super) fn unpack(mut value: Bytes) -> impl Iterator<Item = Result<Bytes, TruncatedSnapshot>> {
    std::iter::from_fn(move || {
        if value.is_empty() {
            return None;
        }
        let length = value.try_get_u32_le().map(|it| it as usize).unwrap_or(usize::MAX);
        if length > value.len() {
            value.clear();
            return Some(Err(TruncatedSnapshot));
        }
        Some(Ok(value.split_to(length)))
    })
}

/// A snapshot is truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TruncatedSnapshot;

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
    fn check(fields: &[&str], expected: EntryContent) {
        let own = from(1, "a");
        let expected = StreamEntry { id: EntryId { millis: 17, sequence: 3 }, content: expected };
        assert_eq!(entries(answer(fields), &own), [expected], "{fields:?}");
    }

    #[test]
    fn an_entry_is_our_own_another_routers_or_malformed() {
        let other = from(2, "b:7000");
        let frame = EntryContent::Frame { name: "b:7000".into(), sealed: Bytes::from_static(b"x") };
        check(&["from", &other, "frame", "x"], frame);
        check(&["from", &other, "join", ""], EntryContent::Joined);
        check(&["from", &from(1, "a"), "frame", "x"], EntryContent::Own);
        check(&["from", &other], EntryContent::Malformed);
        check(&["from", &other, "frame"], EntryContent::Malformed);
        check(&["from", &other, "other", "x"], EntryContent::Malformed);
        check(&["frame", "x", "from", &other], EntryContent::Malformed);
        check(&["from", "no colon", "frame", "x"], EntryContent::Malformed);
        check(&["from", "1:line\nbreak", "frame", "x"], EntryContent::Malformed);
        check(&["from", &from(2, &"x".repeat(NAME_MAX + 1)), "frame", "x"], EntryContent::Malformed);
        check(&[], EntryContent::Malformed);
    }

    #[test]
    fn an_entry_of_a_router_with_our_name_is_not_our_own() {
        check(
            &["from", &from(2, "a"), "frame", "x"],
            EntryContent::Frame { name: "a".into(), sealed: Bytes::from_static(b"x") },
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
        let parse = |it: &str| EntryId::parse(it.as_bytes());
        assert!(parse("9-9").unwrap() < parse("10-0").unwrap());
        assert_eq!(parse("10-2").unwrap().to_string(), "10-2");
        for bad in ["", "-", "1", "1-", "x-1", "1-99999999999999999999"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_snapshot_contains_the_frames_that_fit() {
        let frames = [Bytes::from(vec![1; 10]), Bytes::from(vec![2; 100]), Bytes::from(vec![3; 10])];
        let (value, left_out) = pack(&frames, 40);
        assert_eq!(left_out, 1);
        let frames: Vec<_> = unpack(value).collect();
        assert_eq!(frames, [Ok(Bytes::from(vec![1; 10])), Ok(Bytes::from(vec![3; 10]))]);
    }

    proptest! {
        #[test]
        fn packed_frames_are_unpacked_and_truncation_is_detected(frames: Vec<Vec<u8>>, cut: usize) {
            let frames: Vec<Bytes> = frames.into_iter().map(Bytes::from).collect();
            let (value, left_out) = pack(&frames, usize::MAX);
            prop_assert_eq!(left_out, 0);
            let back: Result<Vec<Bytes>, TruncatedSnapshot> = unpack(value.clone()).collect();
            prop_assert_eq!(back, Ok(frames.clone()));
            let cut = cut % (value.len() + 1);
            let some: Vec<Bytes> = unpack(value.slice(..cut)).filter_map(Result::ok).collect();
            prop_assert_eq!(&some[..], &frames[..some.len()]);
        }

        #[test]
        fn unpacking_any_bytes_terminates(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let length = bytes.len();
            let taken: usize = unpack(Bytes::from(bytes)).filter_map(Result::ok).map(|it| it.len() + 4).sum();
            assert!(taken <= length);
        }
    }
}
