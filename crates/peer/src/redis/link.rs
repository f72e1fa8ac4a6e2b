//! The life of a connection: come in, hear what routers left for joiners, then write and read side by side.
//!
//! To come in is to write an entry of our own. Its place is where we read on from, and a server that takes no writes (a
//! replica, a full memory, a disk that fails) shows itself there, before anybody is told that we are connected.

use super::clock::{self, Instant};
use super::entry::{self, FRAME, FROM, Id, JOIN, Keys, Said};
use super::failure::Failure;
use super::refusal::Cause;
use super::shared::Shared;
use super::wire::{ANSWER, Allowance, SHORT, Wire};
use crate::Incoming;
use crate::seal::SEAL_LEN;
use bytes::Bytes;
use redis::{Pipeline, Value};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

/// Entries in the stream, about: at 50 flushes a second, what ten routers say in 20 s. A reader who is behind by more
/// asks for what it missed.
const ENTRIES_MAX: usize = 10_000;
/// With long frames fewer are kept, so that the stream takes about this much of the server's memory; but these always.
const STREAM_BYTES: usize = 64 << 20;
const ENTRIES_MIN: usize = 1_000;

/// Entries in one answer, and what they may come to.
const READ_MAX: usize = 64;
const READ_BYTES_MAX: u64 = (READ_MAX * (super::FRAME_MAX + SEAL_LEN + 1_024)) as u64;
/// The server answers when there is something, or after this time.
const BLOCK: Duration = Duration::from_secs(5);

/// A connection that was away for less goes on where it was; after more, snapshots tell sooner what is.
const RESUME_MILLIS_MAX: u64 = 5_000;

/// Keys vanish so long after they were last renewed, and are renewed so often.
const KEEP: Duration = Duration::from_secs(600);
const RENEW: Duration = Duration::from_secs(60);

/// Names in the set of members, and how many of their snapshots are read: the newest.
const MEMBERS_MAX: usize = 1_024;
const SNAPSHOTS_MAX: usize = 64;
/// Of one router, and of all.
const SNAPSHOT_BYTES_MAX: usize = 8 << 20;
const SNAPSHOTS_BYTES_MAX: usize = 128 << 20;
const SNAPSHOT_WAIT: Duration = Duration::from_secs(5);

/// A router that said nothing for so long is not there, as far as we know; they say something every half second.
const SILENCE: Duration = Duration::from_secs(3);
const PEERS_MAX: usize = 64;

/// Until the connection is lost, or there is nothing more to write and never will be.
pub(super) async fn run(shared: &Shared) -> Result<(), Failure> {
    let label = format!("maitre:{}", shared.name);
    let mut writer = Wire::dial(&shared.server, &label).await?;
    let mut reader = Wire::dial(&shared.server, &label).await?;
    let joined = join(shared, &mut writer).await?;
    let start = start(shared.place(), joined);
    if let Start::Anew(_) = start {
        // Until all that others left is heard: a connection that is lost before begins anew again.
        shared.set_place(None);
    }
    shared.forget();
    tokio::select! {
        written = write(shared, &mut writer) => written,
        read = read(shared, &mut reader, start) => read.map(|never| match never {}),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// With what others left, then from here.
    Anew(Id),
    /// Nothing was missed, or so little that the stream still has it.
    On(Id),
}

/// A last entry that is later than our coming in is of another stream: it was emptied, or the server is another.
fn start(place: Option<Id>, joined: Id) -> Start {
    match place {
        Some(last) if last <= joined && joined.millis - last.millis <= RESUME_MILLIS_MAX => Start::On(last),
        _ => Start::Anew(joined),
    }
}

async fn join(shared: &Shared, wire: &mut Wire) -> Result<Id, Failure> {
    let now = time(shared, wire).await?;
    let mut question = redis::pipe();
    add(&mut question, &shared.keys, ENTRIES_MAX).arg(FROM).arg(&shared.from).arg(JOIN).arg("");
    renew(&mut question, &shared.keys.stream);
    enlist(&mut question, shared, now);
    let answers: Vec<Value> = shared.ask(wire, &question, Allowance::LITTLE).await?;
    match answers.first() {
        Some(Value::BulkString(id)) => Id::parse(id).ok_or(Failure::Stranger),
        _ => Err(Failure::Stranger),
    }
}

/// Seconds, by the server's clock: the only one that all routers share.
async fn time(shared: &Shared, wire: &mut Wire) -> Result<u64, Failure> {
    let mut question = redis::pipe();
    question.cmd("TIME");
    let answers: Vec<Vec<u64>> = shared.ask(wire, &question, Allowance::LITTLE).await?;
    answers.first().and_then(|it| it.first()).copied().ok_or(Failure::Stranger)
}

fn add<'a>(question: &'a mut Pipeline, keys: &Keys, entries_max: usize) -> &'a mut Pipeline {
    question.cmd("XADD").arg(&keys.stream).arg("MAXLEN").arg("~").arg(entries_max).arg("*")
}

fn renew(question: &mut Pipeline, key: &str) {
    question.cmd("EXPIRE").arg(key).arg(KEEP.as_secs());
}

/// Our name among the members, and out with those whose snapshots are gone.
fn enlist(question: &mut Pipeline, shared: &Shared, now: u64) {
    let members = &shared.keys.members;
    question.cmd("ZADD").arg(members).arg(now).arg(&shared.name);
    let gone = now.saturating_sub(KEEP.as_secs());
    question.cmd("ZREMRANGEBYSCORE").arg(members).arg("-inf").arg(format!("({gone}"));
    question.cmd("ZREMRANGEBYRANK").arg(members).arg(0).arg(-(MEMBERS_MAX as i64) - 1);
    renew(question, members);
}

async fn write(shared: &Shared, wire: &mut Wire) -> Result<(), Failure> {
    let mut renewed = clock::now();
    while let Some(batch) = shared.next().await {
        let frames: Vec<Bytes> = batch.frames.iter().filter_map(|it| shared.seal(it)).collect();
        if !frames.is_empty() {
            write_frames(shared, wire, &frames, &mut renewed).await?;
        }
        if let Some(snapshot) = batch.snapshot {
            write_snapshot(shared, wire, &snapshot).await?;
        }
    }
    Ok(())
}

async fn write_frames(
    shared: &Shared,
    wire: &mut Wire,
    frames: &[Bytes],
    renewed: &mut Instant,
) -> Result<(), Failure> {
    let entries_max = entries_max(frames);
    let mut question = Pipeline::with_capacity(frames.len() + 1);
    for frame in frames {
        add(&mut question, &shared.keys, entries_max).arg(FROM).arg(&shared.from).arg(FRAME).arg(&frame[..]);
    }
    let now = clock::now();
    if now.duration_since(*renewed) >= RENEW {
        *renewed = now;
        renew(&mut question, &shared.keys.stream);
    }
    let before = shared.place();
    let answers: Vec<Value> = match shared.ask(wire, &question, Allowance::LITTLE).await {
        Ok(answers) => answers,
        // Some may be there. They are not sent again: what is heard twice or late is worse than what is asked for again.
        Err(failure) => {
            shared.drop_frames(frames.len() as u64);
            return Err(failure);
        }
    };
    shared.sent(frames.len() as u64);
    match answers.first() {
        // Whoever waits for what comes after the place it knows would wait for ever.
        Some(Value::BulkString(id)) if Id::parse(id) < before => Err(Failure::Emptied),
        _ => Ok(()),
    }
}

/// How many entries the stream may keep, if all were as long as these.
fn entries_max(frames: &[Bytes]) -> usize {
    let mean = frames.iter().map(Bytes::len).sum::<usize>() / frames.len().max(1);
    (STREAM_BYTES / mean.max(1)).clamp(ENTRIES_MIN, ENTRIES_MAX)
}

async fn write_snapshot(shared: &Shared, wire: &mut Wire, frames: &[Bytes]) -> Result<(), Failure> {
    let frames: Vec<Bytes> = frames.iter().filter_map(|it| shared.seal(it)).collect();
    let (value, left_out) = entry::pack(&frames, SNAPSHOT_BYTES_MAX);
    if left_out > 0 {
        shared.refuse(Cause::OwnSnapshot, None);
    }
    let now = time(shared, wire).await?;
    let mut question = redis::pipe();
    let key = shared.keys.snapshot(&shared.name);
    question.cmd("SET").arg(key).arg(&value[..]).arg("EX").arg(KEEP.as_secs());
    enlist(&mut question, shared, now);
    shared.ask::<Value>(wire, &question, Allowance { bytes: SHORT, wait: SNAPSHOT_WAIT }).await?;
    Ok(())
}

async fn read(shared: &Shared, wire: &mut Wire, start: Start) -> Result<Infallible, Failure> {
    let mut at = match start {
        Start::On(id) => id,
        Start::Anew(id) => {
            read_snapshots(shared, wire).await?;
            id
        }
    };
    shared.set_place(Some(at));
    shared.link();
    shared.give(Incoming::Connected).await;
    let mut heard = Heard::default();
    loop {
        let answer = read_on(shared, wire, at).await?;
        for entry in entry::entries(answer, &shared.from) {
            at = entry.id;
            shared.set_place(Some(at));
            match entry.said {
                Said::Own | Said::Joined => {}
                Said::Nonsense => shared.refuse(Cause::Nonsense, None),
                Said::Frame { name, sealed } => {
                    if shared.hear(&name, sealed, Incoming::Frame).await {
                        heard.note(name, clock::now());
                    }
                }
            }
        }
        shared.update(heard.there(clock::now()));
    }
}

async fn read_on(shared: &Shared, wire: &mut Wire, at: Id) -> Result<Value, Failure> {
    let mut question = redis::pipe();
    question.cmd("XREAD").arg("COUNT").arg(READ_MAX).arg("BLOCK").arg(BLOCK.as_millis() as u64);
    question.arg("STREAMS").arg(&shared.keys.stream).arg(at.to_string());
    let allowance = Allowance { bytes: READ_BYTES_MAX, wait: BLOCK + ANSWER };
    let answers: Vec<Value> = shared.ask(wire, &question, allowance).await?;
    Ok(answers.into_iter().next().unwrap_or(Value::Nil))
}

/// What routers left for those who join, we ourselves in an earlier life among them. One that makes no sense is passed over.
async fn read_snapshots(shared: &Shared, wire: &mut Wire) -> Result<(), Failure> {
    let mut question = redis::pipe();
    question.cmd("ZREVRANGE").arg(&shared.keys.members).arg(0).arg(SNAPSHOTS_MAX as i64 - 1);
    let members: Vec<Vec<Vec<u8>>> = shared.ask(wire, &question, Allowance::LITTLE).await?;
    let names = members.into_iter().flatten().filter_map(|it| String::from_utf8(it).ok());
    let mut left = SNAPSHOTS_BYTES_MAX;
    for name in names.filter(|it| entry::is_name(it)) {
        let snapshot = match read_snapshot(shared, wire, &name).await {
            Err(failure) if failure.is_of_type() => {
                shared.refuse(Cause::Type, Some(&name));
                continue;
            }
            snapshot => snapshot?,
        };
        if snapshot.len() > SNAPSHOT_BYTES_MAX.min(left) {
            shared.refuse(Cause::Snapshot, Some(&name));
            continue;
        }
        left -= snapshot.len();
        for frame in entry::unpack(snapshot) {
            match frame {
                Ok(sealed) => drop(shared.hear(&name, sealed, Incoming::Kept).await),
                Err(entry::Torn) => shared.refuse(Cause::Snapshot, Some(&name)),
            }
        }
    }
    Ok(())
}

async fn read_snapshot(shared: &Shared, wire: &mut Wire, name: &str) -> Result<Bytes, Failure> {
    let mut question = redis::pipe();
    // One byte more than there may be shows that there is more.
    question.cmd("GETRANGE").arg(shared.keys.snapshot(name)).arg(0).arg(SNAPSHOT_BYTES_MAX);
    let allowance = Allowance { bytes: SHORT + SNAPSHOT_BYTES_MAX as u64, wait: SNAPSHOT_WAIT };
    let answers: Vec<Value> = shared.ask(wire, &question, allowance).await?;
    match answers.into_iter().next() {
        Some(Value::BulkString(value)) => Ok(Bytes::from(value)),
        _ => Err(Failure::Stranger),
    }
}

/// Who said something of late.
#[derive(Debug, Default)]
struct Heard {
    since: BTreeMap<String, Instant>,
}

impl Heard {
    fn note(&mut self, name: String, now: Instant) {
        if self.since.len() < PEERS_MAX || self.since.contains_key(&name) {
            self.since.insert(name, now);
        }
    }

    fn there(&mut self, now: Instant) -> Vec<String> {
        self.since.retain(|_, since| now.duration_since(*since) < SILENCE);
        self.since.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(last: Option<(u64, u64)>, expected: Start) {
        let last = last.map(|(millis, sequence)| Id { millis, sequence });
        assert_eq!(start(last, JOINED), expected, "{last:?}");
    }

    const JOINED: Id = Id { millis: 100_000, sequence: 0 };

    #[test]
    fn a_short_absence_goes_on_where_it_was_and_all_else_begins_anew() {
        check(None, Start::Anew(JOINED));
        check(Some((99_000, 7)), Start::On(Id { millis: 99_000, sequence: 7 }));
        check(Some((90_000, 7)), Start::Anew(JOINED));
        check(Some((100_000, 1)), Start::Anew(JOINED));
        check(Some((200_000, 0)), Start::Anew(JOINED));
    }

    #[test]
    fn long_frames_leave_room_for_fewer() {
        let frames = |bytes: usize| [Bytes::from(vec![0; bytes])];
        assert_eq!(entries_max(&frames(200)), ENTRIES_MAX);
        assert_eq!(entries_max(&frames(16 << 10)), 4_096);
        assert_eq!(entries_max(&frames(256 << 10)), ENTRIES_MIN);
    }

    #[test]
    fn the_silent_are_not_there() {
        let (now, mut heard) = (clock::now(), Heard::default());
        heard.note("a".into(), now);
        heard.note("b".into(), now + SILENCE / 2);
        assert_eq!(heard.there(now + SILENCE / 2), ["a", "b"]);
        assert_eq!(heard.there(now + SILENCE), ["b"]);
        for number in 0..1_000 {
            heard.note(number.to_string(), now + SILENCE);
        }
        assert_eq!(heard.there(now + SILENCE).len(), PEERS_MAX);
    }
}
