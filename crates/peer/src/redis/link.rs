//! One connection's lifetime: join, read stored snapshots, then write and read concurrently.
//!
//! Joining writes an entry of our own. Its position is where reading starts. A server that rejects writes (a replica,
//! full memory, a failing disk) is detected there, before the router is considered connected.

use super::clock::{self, Instant};
use super::entry::{self, EntryContent, EntryId, FRAME, FROM, GroupKeys, JOIN};
use super::failure::RedisFailure;
use super::refusal::RefusalCause;
use super::state::LinkState;
use super::wire::{REPLY_MAX, RedisConnection, ReplyLimits, SHORT_REPLY_BYTES};
use crate::Incoming;
use crate::seal::SEAL_LEN;
use bytes::Bytes;
use redis::{Pipeline, Value};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

/// Approximate maximum of stream entries: at 50 flushes per second, 20 s of ten routers. A reader further behind asks
/// for what it missed.
const ENTRIES_MAX: usize = 10_000;
/// With long frames fewer entries are kept, so that the stream uses about this much memory; but never fewer than the
/// minimum.
const STREAM_BYTES: usize = 64 << 20;
const ENTRIES_MIN: usize = 1_000;

/// Maximum entries and bytes per reply.
const READ_MAX: usize = 64;
const READ_BYTES_MAX: u64 = (READ_MAX * (super::FRAME_MAX + SEAL_LEN + 1_024)) as u64;
/// How long the server blocks before an empty reply.
const BLOCK_MAX: Duration = Duration::from_secs(5);

/// A shorter interruption resumes where it was; after a longer one, snapshots are faster.
const RESUME_MILLIS_MAX: u64 = 5_000;

/// Expiry of keys, and the renewal interval.
const KEY_EXPIRY: Duration = Duration::from_secs(600);
const RENEW_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum names in the member set, and maximum snapshots read: the newest.
const MEMBERS_MAX: usize = 1_024;
const SNAPSHOTS_MAX: usize = 64;
/// Per router, and in total.
const SNAPSHOT_BYTES_MAX: usize = 8 << 20;
const SNAPSHOTS_BYTES_MAX: usize = 128 << 20;
const SNAPSHOT_WAIT: Duration = Duration::from_secs(5);

/// A router silent for this long counts as gone; each sends something every half second.
const SILENCE: Duration = Duration::from_secs(3);
const PEERS_MAX: usize = 64;

/// Runs until the connection is lost, or everything is written and the transport is closed.
pub(super) async fn run(state: &LinkState) -> Result<(), RedisFailure> {
    let label = format!("maitre:{}", state.name);
    let mut writer = RedisConnection::dial(&state.server, &label).await?;
    let mut reader = RedisConnection::dial(&state.server, &label).await?;
    let joined = join(state, &mut writer).await?;
    let start = start(state.position(), joined);
    if let ReadStart::Fresh(_) = start {
        // Set again once all snapshots are read: a connection lost before that starts afresh.
        state.set_position(None);
    }
    state.forget();
    tokio::select! {
        written = write(state, &mut writer) => written,
        read = read(state, &mut reader, start) => read.map(|never| match never {}),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadStart {
    /// Read the snapshots, then the stream from here.
    Fresh(EntryId),
    /// Resume: nothing was missed that the stream does not still have.
    Resume(EntryId),
}

/// A last position later than our join entry belongs to another stream: it was emptied, or the server was replaced.
fn start(position: Option<EntryId>, joined: EntryId) -> ReadStart {
    match position {
        Some(last) if last <= joined && joined.millis - last.millis <= RESUME_MILLIS_MAX => {
            ReadStart::Resume(last)
        }
        _ => ReadStart::Fresh(joined),
    }
}

async fn join(state: &LinkState, wire: &mut RedisConnection) -> Result<EntryId, RedisFailure> {
    let now = time(state, wire).await.map_err(RedisFailure::on_login)?;
    let mut commands = redis::pipe();
    add(&mut commands, &state.keys, ENTRIES_MAX).arg(FROM).arg(&state.from).arg(JOIN).arg("");
    renew(&mut commands, &state.keys.stream);
    register(&mut commands, state, now);
    let answers: Vec<Value> = state.query(wire, &commands, ReplyLimits::SHORT).await?;
    match answers.first() {
        Some(Value::BulkString(id)) => EntryId::parse(id).ok_or(RedisFailure::NotRedis),
        _ => Err(RedisFailure::NotRedis),
    }
}

/// Seconds by the server's clock, the only one that all routers share.
async fn time(state: &LinkState, wire: &mut RedisConnection) -> Result<u64, RedisFailure> {
    let mut commands = redis::pipe();
    commands.cmd("TIME");
    let answers: Vec<Vec<u64>> = state.query(wire, &commands, ReplyLimits::SHORT).await?;
    answers.first().and_then(|it| it.first()).copied().ok_or(RedisFailure::NotRedis)
}

fn add<'a>(commands: &'a mut Pipeline, keys: &GroupKeys, entries_max: usize) -> &'a mut Pipeline {
    commands.cmd("XADD").arg(&keys.stream).arg("MAXLEN").arg("~").arg(entries_max).arg("*")
}

fn renew(commands: &mut Pipeline, key: &str) {
    commands.cmd("EXPIRE").arg(key).arg(KEY_EXPIRY.as_secs());
}

/// Adds our name to the members and removes members whose snapshots have expired.
fn register(commands: &mut Pipeline, state: &LinkState, now: u64) {
    let members = &state.keys.members;
    commands.cmd("ZADD").arg(members).arg(now).arg(&state.name);
    let gone = now.saturating_sub(KEY_EXPIRY.as_secs());
    commands.cmd("ZREMRANGEBYSCORE").arg(members).arg("-inf").arg(format!("({gone}"));
    commands.cmd("ZREMRANGEBYRANK").arg(members).arg(0).arg(-(MEMBERS_MAX as i64) - 1);
    renew(commands, members);
}

async fn write(state: &LinkState, wire: &mut RedisConnection) -> Result<(), RedisFailure> {
    let mut renewed = clock::now();
    while let Some(batch) = state.next().await {
        let frames: Vec<Bytes> = batch.frames.iter().filter_map(|it| state.seal(it)).collect();
        if !frames.is_empty() {
            write_frames(state, wire, &frames, &mut renewed).await?;
        }
        if let Some(snapshot) = batch.snapshot {
            write_snapshot(state, wire, &snapshot).await?;
        }
    }
    Ok(())
}

async fn write_frames(
    state: &LinkState,
    wire: &mut RedisConnection,
    frames: &[Bytes],
    renewed: &mut Instant,
) -> Result<(), RedisFailure> {
    let entries_max = entries_max(frames);
    let mut commands = Pipeline::with_capacity(frames.len() + 1);
    for frame in frames {
        add(&mut commands, &state.keys, entries_max).arg(FROM).arg(&state.from).arg(FRAME).arg(&frame[..]);
    }
    let now = clock::now();
    if now.duration_since(*renewed) >= RENEW_INTERVAL {
        *renewed = now;
        renew(&mut commands, &state.keys.stream);
    }
    let before = state.position();
    let answers: Vec<Value> = match state.query(wire, &commands, ReplyLimits::SHORT).await {
        Ok(answers) => answers,
        // Some may have arrived. They are not sent again: asking again is cheaper than duplicated or late frames.
        Err(failure) => {
            state.drop_frames(frames.len() as u64);
            return Err(failure);
        }
    };
    state.sent(frames.len() as u64);
    match answers.first() {
        // A read after the old position would block for ever.
        Some(Value::BulkString(id)) if EntryId::parse(id) < before => Err(RedisFailure::Emptied),
        _ => Ok(()),
    }
}

/// How many entries the stream may keep if all have the mean length of these.
fn entries_max(frames: &[Bytes]) -> usize {
    let mean = frames.iter().map(Bytes::len).sum::<usize>() / frames.len().max(1);
    (STREAM_BYTES / mean.max(1)).clamp(ENTRIES_MIN, ENTRIES_MAX)
}

async fn write_snapshot(
    state: &LinkState,
    wire: &mut RedisConnection,
    frames: &[Bytes],
) -> Result<(), RedisFailure> {
    let frames: Vec<Bytes> = frames.iter().filter_map(|it| state.seal(it)).collect();
    let (value, left_out) = entry::pack(&frames, SNAPSHOT_BYTES_MAX);
    if left_out > 0 {
        state.refuse(RefusalCause::OwnSnapshot, None);
    }
    let now = time(state, wire).await?;
    let mut commands = redis::pipe();
    let key = state.keys.snapshot(&state.name);
    commands.cmd("SET").arg(key).arg(&value[..]).arg("EX").arg(KEY_EXPIRY.as_secs());
    register(&mut commands, state, now);
    state
        .query::<Value>(wire, &commands, ReplyLimits { bytes: SHORT_REPLY_BYTES, wait: SNAPSHOT_WAIT })
        .await?;
    Ok(())
}

async fn read(
    state: &LinkState,
    wire: &mut RedisConnection,
    start: ReadStart,
) -> Result<Infallible, RedisFailure> {
    let mut at = match start {
        ReadStart::Resume(id) => id,
        ReadStart::Fresh(id) => {
            read_snapshots(state, wire).await?;
            id
        }
    };
    state.set_position(Some(at));
    state.link();
    state.deliver(Incoming::Connected).await;
    let mut recent = RecentPeers::default();
    loop {
        let answer = read_on(state, wire, at).await?;
        for entry in entry::entries(answer, &state.from) {
            at = entry.id;
            state.set_position(Some(at));
            match entry.content {
                EntryContent::Own | EntryContent::Joined => {}
                EntryContent::Malformed => state.refuse(RefusalCause::Malformed, None),
                EntryContent::Frame { name, sealed } => {
                    if state.receive(&name, sealed, Incoming::Frame).await {
                        recent.note(name, clock::now());
                    }
                }
            }
        }
        state.update(recent.names(clock::now()));
    }
}

async fn read_on(state: &LinkState, wire: &mut RedisConnection, at: EntryId) -> Result<Value, RedisFailure> {
    let mut commands = redis::pipe();
    commands.cmd("XREAD").arg("COUNT").arg(READ_MAX).arg("BLOCK").arg(BLOCK_MAX.as_millis() as u64);
    commands.arg("STREAMS").arg(&state.keys.stream).arg(at.to_string());
    let limits = ReplyLimits { bytes: READ_BYTES_MAX, wait: BLOCK_MAX + REPLY_MAX };
    let answers: Vec<Value> = state.query(wire, &commands, limits).await?;
    Ok(answers.into_iter().next().unwrap_or(Value::Nil))
}

/// Reads the snapshots that routers stored, including our own from an earlier start. Malformed ones are skipped.
async fn read_snapshots(state: &LinkState, wire: &mut RedisConnection) -> Result<(), RedisFailure> {
    let mut commands = redis::pipe();
    commands.cmd("ZREVRANGE").arg(&state.keys.members).arg(0).arg(SNAPSHOTS_MAX as i64 - 1);
    let members: Vec<Vec<Vec<u8>>> = state.query(wire, &commands, ReplyLimits::SHORT).await?;
    let names = members.into_iter().flatten().filter_map(|it| String::from_utf8(it).ok());
    let mut left = SNAPSHOTS_BYTES_MAX;
    for name in names.filter(|it| entry::is_name(it)) {
        let snapshot = match read_snapshot(state, wire, &name).await {
            Err(failure) if failure.is_wrong_type() => {
                state.refuse(RefusalCause::Type, Some(&name));
                continue;
            }
            snapshot => snapshot?,
        };
        if snapshot.len() > SNAPSHOT_BYTES_MAX.min(left) {
            state.refuse(RefusalCause::Snapshot, Some(&name));
            continue;
        }
        left -= snapshot.len();
        for frame in entry::unpack(snapshot) {
            match frame {
                Ok(sealed) => drop(state.receive(&name, sealed, Incoming::Stored).await),
                Err(entry::TruncatedSnapshot) => state.refuse(RefusalCause::Snapshot, Some(&name)),
            }
        }
    }
    Ok(())
}

async fn read_snapshot(
    state: &LinkState,
    wire: &mut RedisConnection,
    name: &str,
) -> Result<Bytes, RedisFailure> {
    let mut commands = redis::pipe();
    // One byte more than the limit shows that the value is too long.
    commands.cmd("GETRANGE").arg(state.keys.snapshot(name)).arg(0).arg(SNAPSHOT_BYTES_MAX);
    let limits = ReplyLimits { bytes: SHORT_REPLY_BYTES + SNAPSHOT_BYTES_MAX as u64, wait: SNAPSHOT_WAIT };
    let answers: Vec<Value> = state.query(wire, &commands, limits).await?;
    match answers.into_iter().next() {
        Some(Value::BulkString(value)) => Ok(Bytes::from(value)),
        _ => Err(RedisFailure::NotRedis),
    }
}

/// Peers that sent something recently.
#[derive(Debug, Default)]
struct RecentPeers {
    since: BTreeMap<String, Instant>,
}

impl RecentPeers {
    fn note(&mut self, name: String, now: Instant) {
        if self.since.len() < PEERS_MAX || self.since.contains_key(&name) {
            self.since.insert(name, now);
        }
    }

    fn names(&mut self, now: Instant) -> Vec<String> {
        self.since.retain(|_, since| now.duration_since(*since) < SILENCE);
        self.since.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(last: Option<(u64, u64)>, expected: ReadStart) {
        let last = last.map(|(millis, sequence)| EntryId { millis, sequence });
        assert_eq!(start(last, JOINED), expected, "{last:?}");
    }

    const JOINED: EntryId = EntryId { millis: 100_000, sequence: 0 };

    #[test]
    fn a_short_interruption_resumes_and_a_long_one_starts_afresh() {
        check(None, ReadStart::Fresh(JOINED));
        check(Some((99_000, 7)), ReadStart::Resume(EntryId { millis: 99_000, sequence: 7 }));
        check(Some((90_000, 7)), ReadStart::Fresh(JOINED));
        check(Some((100_000, 1)), ReadStart::Fresh(JOINED));
        check(Some((200_000, 0)), ReadStart::Fresh(JOINED));
    }

    #[test]
    fn long_frames_leave_room_for_fewer() {
        let frames = |bytes: usize| [Bytes::from(vec![0; bytes])];
        assert_eq!(entries_max(&frames(200)), ENTRIES_MAX);
        assert_eq!(entries_max(&frames(16 << 10)), 4_096);
        assert_eq!(entries_max(&frames(256 << 10)), ENTRIES_MIN);
    }

    #[test]
    fn silent_peers_are_not_listed() {
        let (now, mut recent) = (clock::now(), RecentPeers::default());
        recent.note("a".into(), now);
        recent.note("b".into(), now + SILENCE / 2);
        assert_eq!(recent.names(now + SILENCE / 2), ["a", "b"]);
        assert_eq!(recent.names(now + SILENCE), ["b"]);
        for number in 0..1_000 {
            recent.note(number.to_string(), now + SILENCE);
        }
        assert_eq!(recent.names(now + SILENCE).len(), PEERS_MAX);
    }
}
