//! Follows the KV events of one worker: in order, each exactly once, and none from an earlier process.
//!
//! An engine numbers its messages from zero, and silently drops them for a slow reader. Most can be replayed:
//! on request the engine sends everything it still remembers from a given number on. But numbers alone cannot
//! distinguish a gap from a restart, because a new process may have counted past the old one before we
//! reconnect. So a replay starts at the last message we applied and must return the same bytes, which include
//! a time stamp. Any other bytes mean that everything we hold comes from a process that is gone.
//!
//! The feed clears what an earlier process held: a wrong block costs a prefill for every request that it attracts.
//! After a gap in the messages of one process, most of what it held is still there. The feed then doubts it: the
//! index keeps it as a prediction, and decides when later messages count again. Clearing it cost far more: with one
//! message in a hundred lost, agents had their first token after 9.9 s instead of 0.9. After either, the feed
//! continues with partial knowledge.
//!
//! This is pure: `on` takes what happened, `next_action` returns what to do. It returns one action at a time,
//! so that an unreadable payload can still change the next action. The owner has the sockets and decodes
//! payloads.

use std::collections::VecDeque;
use std::time::Duration;

use maitre_base::{Instant, hash};

#[cfg(test)]
mod tests;
mod trust;

pub use trust::Trust;

/// Maximum messages held while a replay runs. Chosen: ten seconds of an engine's steps. The feed drops further
/// messages, which later show as a gap.
pub const HELD_MAX: usize = 1024;

/// The same limit in bytes, because a payload may be large. Chosen: engine steps publish about 10 kB each.
pub const HELD_BYTES_MAX: usize = 16 << 20;

/// How many messages back a duplicate is recognised. More than `HELD_MAX`, because a replay may duplicate all
/// held messages and some were dropped in between. An unrecognised duplicate looks like a restart.
const SEEN_MAX: usize = 4 * HELD_MAX;

/// Maximum replays requested before a live message fits. Chosen: one to find a restart, one to start again,
/// and two spare.
pub const ASKS_MAX: u32 = 4;

/// Timeout of a replay. Chosen: ten thousand messages at vLLM's pace, plus some margin.
pub const REPLAY_WAIT: Duration = Duration::from_secs(5);

/// The pause after a failed replay, multiplied by the number of failures. An engine opens its replay socket
/// after the event socket, and polls it ten times a second.
pub const RETRY_AFTER: Duration = Duration::from_millis(200);

/// Whether the engine has a replay socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    Offered,
    Absent,
}

/// One live or replayed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered<T> {
    pub seq: u64,
    pub payload: T,
    digest: u64,
}

/// What happened to the subscription.
#[derive(Debug)]
pub enum Input<T> {
    /// The engine has accepted our subscription, for the first time or again.
    Connected,
    Disconnected,
    /// The process that we were connected to is gone.
    Gone,
    Batch(Numbered<T>),
    /// A complete replay.
    Replayed {
        id: u64,
        batches: Vec<Numbered<T>>,
    },
    /// A failed replay.
    ReplayFailed {
        id: u64,
    },
    /// The message just returned by `next_action` could not be decoded or belongs to another rank; nothing of
    /// it was applied.
    Undecodable {
        seq: u64,
    },
    /// The deadline returned by `deadline` has passed.
    Tick,
    /// What the engine stored before the first message we applied no longer matters, or it holds nothing of it.
    Complete,
    /// No message for a while. A lost message shows only when the next one arrives, so check for one now.
    Quiet,
}

/// The owner's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<T> {
    Apply(Numbered<T>),
    /// Forget everything this worker holds, and what is known of its engine's process.
    Clear,
    /// Something of the same process is missing for good: what this worker reported may be outdated. The messages
    /// that follow start from nothing.
    Doubt,
    /// Request all messages from this number on, drop any running replay, and report the result under this
    /// id.
    AskReplay {
        id: u64,
        from: u64,
    },
}

/// Totals since the feed was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages returned for applying, live or replayed.
    pub batches: u64,
    pub duplicates: u64,
    pub gaps: u64,
    /// Requested replays.
    pub replays: u64,
    pub failed_replays: u64,
    pub restarts: u64,
    pub undecodable: u64,
    /// Messages dropped because the hold was full.
    pub dropped: u64,
    pub clears: u64,
}

/// One subscription: a worker, or one rank of it.
#[derive(Debug)]
pub struct Feed<T> {
    replay: Replay,
    link: Link,
    position: Position,
    /// Everything that matters has been applied: everything since the process began, unless `Input::Complete` says
    /// that less is enough.
    complete: bool,
    /// A message of this connection has been applied.
    is_same_process: bool,
    /// Commands not yet returned; they come before any message.
    commands: VecDeque<Command>,
    /// Verified messages of a replay, to be applied before the held ones.
    replayed: VecDeque<Numbered<T>>,
    /// Live messages, in order of arrival.
    held: VecDeque<Numbered<T>>,
    held_bytes: usize,
    /// The last messages applied, without gaps.
    seen: VecDeque<Mark>,
    latest: Option<Latest>,
    poison: Poison,
    asks: Asks,
    counts: Counts,
}

/// Identifies a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    seq: u64,
    digest: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Down,
    Live,
    Asked {
        id: u64,
        deadline: Instant,
    },
    /// Waiting until the next attempt.
    Waiting {
        until: Instant,
    },
}

/// Which message may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Any message: nothing is known of this process.
    Nowhere,
    /// The first message of the process.
    Start,
    /// The message after this one, which was applied last.
    After(Mark),
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Clear,
    Doubt,
    AskReplay { id: u64, from: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Live,
    Replay,
}

/// The last message returned, and the state to restore if it cannot be decoded.
#[derive(Clone, Copy, Debug)]
struct Latest {
    mark: Mark,
    source: Origin,
    before: Position,
    was_complete: bool,
}

/// What is known of undecodable messages. A replay returns the same bytes, so it is tried once per
/// connection. Otherwise every message of a newer engine version would cost a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poison {
    Unknown,
    /// This message could not be decoded when it arrived live.
    Suspected(Mark),
    Known,
}

#[derive(Clone, Copy, Debug, Default)]
struct Asks {
    next_id: u64,
    /// Replays requested since a live message last fitted.
    count: u32,
    is_failing: bool,
    /// The replay is only a check: no message is known to be missing.
    is_check: bool,
}

enum Verdict {
    Next,
    Duplicate,
    Gap,
    Restart,
}

impl<T: AsRef<[u8]>> Numbered<T> {
    pub fn new(seq: u64, payload: T) -> Numbered<T> {
        let digest = hash::bytes(seq, payload.as_ref());
        Numbered { seq, payload, digest }
    }

    fn mark(&self) -> Mark {
        Mark { seq: self.seq, digest: self.digest }
    }
}

impl<T: AsRef<[u8]>> Feed<T> {
    pub fn new(replay: Replay) -> Feed<T> {
        Feed {
            replay,
            link: Link::Down,
            position: Position::Nowhere,
            complete: false,
            is_same_process: false,
            commands: VecDeque::new(),
            replayed: VecDeque::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            seen: VecDeque::new(),
            latest: None,
            poison: Poison::Unknown,
            asks: Asks::default(),
            counts: Counts::default(),
        }
    }

    pub fn on(&mut self, now: Instant, input: Input<T>) {
        match input {
            Input::Connected => self.connect(now),
            Input::Disconnected => self.disconnect(),
            Input::Gone => self.forget(),
            Input::Batch(batch) => self.hold(batch),
            Input::Replayed { id, batches } if self.is_asked(id) => self.take_replay(now, batches),
            Input::ReplayFailed { id } if self.is_asked(id) => self.fail_replay(now),
            // From an earlier connection, or too late.
            Input::Replayed { .. } | Input::ReplayFailed { .. } => {}
            Input::Undecodable { seq } => self.take_back(now, seq),
            Input::Tick => self.tick(now),
            Input::Complete => self.complete |= matches!(self.position, Position::After(_)),
            Input::Quiet if self.link == Link::Live && self.replay == Replay::Offered => self.check(now),
            Input::Quiet => {}
        }
    }

    /// The next action. After every `on`, call this until it returns none.
    pub fn next_action(&mut self, now: Instant) -> Option<Action<T>> {
        loop {
            match self.commands.pop_front() {
                Some(Command::Clear) => return Some(Action::Clear),
                Some(Command::Doubt) => return Some(Action::Doubt),
                Some(Command::AskReplay { id, from }) => return Some(Action::AskReplay { id, from }),
                None if self.link != Link::Live => return None,
                None => {}
            }
            let (batch, source) = match self.replayed.pop_front() {
                Some(batch) => (batch, Origin::Replay),
                None => (self.release()?, Origin::Live),
            };
            if self.poison == Poison::Suspected(batch.mark()) {
                self.pass_over(batch.mark());
                continue;
            }
            match self.judge(batch.mark(), source) {
                Verdict::Next => return Some(self.apply(batch, source)),
                Verdict::Duplicate => {
                    self.counts.duplicates += 1;
                    self.catch_up();
                }
                Verdict::Gap => {
                    self.counts.gaps += 1;
                    self.put_back(batch);
                    self.ask(now);
                }
                Verdict::Restart => {
                    // A replay returns this message again.
                    if self.replay == Replay::Absent {
                        self.put_back(batch);
                    }
                    self.restart(now);
                }
            }
        }
    }

    /// When to send a `Tick`; `None` for never.
    pub fn deadline(&self) -> Option<Instant> {
        match self.link {
            Link::Asked { deadline, .. } => Some(deadline),
            Link::Waiting { until } => Some(until),
            Link::Down | Link::Live => None,
        }
    }

    pub fn trust(&self) -> Trust {
        match (self.link, self.position) {
            (Link::Asked { .. }, _) if self.asks.is_check && self.complete => Trust::Fresh,
            (Link::Asked { .. }, _) if self.asks.is_check => Trust::Cold,
            (Link::Live, _) if self.complete => Trust::Fresh,
            (Link::Live, _) => Trust::Cold,
            (_, Position::After(_)) => Trust::Suspect,
            (_, Position::Nowhere | Position::Start) => Trust::None,
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn connect(&mut self, now: Instant) {
        self.disconnect();
        self.poison = Poison::Unknown;
        (self.asks.count, self.asks.is_failing) = (0, false);
        let is_known = matches!(self.position, Position::After(_));
        if is_known && (self.replay == Replay::Absent || !self.complete) {
            // The process may be a new one; or, if our view is incomplete, a full replay may complete it.
            self.clear();
        }
        match self.replay {
            Replay::Offered => self.ask(now),
            Replay::Absent => self.link = Link::Live,
        }
    }

    fn disconnect(&mut self) {
        self.link = Link::Down;
        self.latest = None;
        self.replayed.clear();
        self.held.clear();
        self.held_bytes = 0;
        self.commands.retain(|it| !matches!(it, Command::AskReplay { .. }));
        self.is_same_process = false;
    }

    fn forget(&mut self) {
        self.disconnect();
        if matches!(self.position, Position::After(_)) {
            self.clear();
        }
    }

    fn hold(&mut self, batch: Numbered<T>) {
        let bytes = self.held_bytes + batch.payload.as_ref().len();
        match self.link {
            Link::Down => {}
            _ if self.held.len() == HELD_MAX || bytes > HELD_BYTES_MAX => self.counts.dropped += 1,
            _ => {
                self.held_bytes = bytes;
                self.held.push_back(batch);
            }
        }
    }

    fn release(&mut self) -> Option<Numbered<T>> {
        let batch = self.held.pop_front()?;
        self.held_bytes -= batch.payload.as_ref().len();
        Some(batch)
    }

    fn put_back(&mut self, batch: Numbered<T>) {
        self.held_bytes += batch.payload.as_ref().len();
        self.held.push_front(batch);
    }

    fn is_asked(&self, id: u64) -> bool {
        matches!(self.link, Link::Asked { id: asked, .. } if asked == id)
    }

    fn take_replay(&mut self, now: Instant, batches: Vec<Numbered<T>>) {
        let is_contiguous = batches.windows(2).all(|it| it[0].seq.checked_add(1) == Some(it[1].seq));
        if !is_contiguous {
            return self.fail_replay(now);
        }
        self.asks.is_failing = false;
        let mut batches = VecDeque::from(batches);
        let first = batches.front().map(Numbered::mark);
        match (self.position, first) {
            (Position::After(last), Some(first)) if first == last => {
                batches.pop_front();
            }
            // The engine no longer remembers our position, and cannot replay what we missed.
            (Position::After(last), Some(first)) if first.seq > last.seq => self.doubt(),
            (Position::After(_), _) => return self.restart(now),
            (Position::Nowhere | Position::Start, Some(_)) => self.position = Position::Nowhere,
            (Position::Nowhere | Position::Start, None) => {
                self.position = Position::Start;
                self.complete = true;
            }
        }
        self.replayed = batches;
        self.link = Link::Live;
    }

    fn fail_replay(&mut self, now: Instant) {
        self.counts.failed_replays += 1;
        if self.asks.is_check {
            // A failed check proves nothing.
            self.link = Link::Live;
            return;
        }
        self.asks.is_failing = true;
        match self.asks.count {
            ASKS_MAX.. => self.give_up(),
            asks => self.link = Link::Waiting { until: now + RETRY_AFTER * asks },
        }
    }

    fn tick(&mut self, now: Instant) {
        match self.link {
            Link::Asked { deadline, .. } if now >= deadline => self.fail_replay(now),
            Link::Waiting { until } if now >= until => self.ask(now),
            _ => {}
        }
    }

    /// Requests a replay from our position, or continues without one.
    fn ask(&mut self, now: Instant) {
        if self.replay == Replay::Absent || self.asks.count >= ASKS_MAX {
            return self.give_up();
        }
        let from = match self.position {
            Position::After(mark) => mark.seq,
            Position::Nowhere | Position::Start => 0,
        };
        let id = self.asks.next_id;
        self.asks.next_id += 1;
        self.asks.count += 1;
        self.asks.is_check = false;
        self.counts.replays += 1;
        self.link = Link::Asked { id, deadline: now + REPLAY_WAIT };
        self.commands.push_back(Command::AskReplay { id, from });
    }

    /// Requests a replay to check whether anything is missing. Does not count as an attempt.
    fn check(&mut self, now: Instant) {
        let count = std::mem::take(&mut self.asks.count);
        self.ask(now);
        self.asks.count = count;
        self.asks.is_check = true;
    }

    fn give_up(&mut self) {
        self.doubt();
        self.link = Link::Live;
    }

    fn restart(&mut self, now: Instant) {
        self.counts.restarts += 1;
        self.clear();
        match self.replay {
            Replay::Offered => self.ask(now),
            Replay::Absent => self.link = Link::Live,
        }
    }

    fn clear(&mut self) {
        self.start_over(Command::Clear);
    }

    /// Something is missing for good. The process is still the same if a message of this connection was applied.
    fn doubt(&mut self) {
        let is_same = self.is_same_process;
        self.start_over(if is_same { Command::Doubt } else { Command::Clear });
    }

    fn start_over(&mut self, command: Command) {
        self.counts.clears += 1;
        self.commands.push_back(command);
        self.position = Position::Nowhere;
        self.complete = false;
        self.seen.clear();
        self.latest = None;
    }

    fn judge(&self, mark: Mark, source: Origin) -> Verdict {
        match self.position {
            // Its continuity was checked when the replay arrived.
            _ if source == Origin::Replay => Verdict::Next,
            Position::Nowhere => Verdict::Next,
            Position::Start if mark.seq == 0 => Verdict::Next,
            Position::Start => Verdict::Gap,
            Position::After(last) => match mark.seq.checked_sub(last.seq) {
                Some(1) => Verdict::Next,
                Some(2..) => Verdict::Gap,
                Some(0) | None if self.has_seen(mark) => Verdict::Duplicate,
                Some(0) | None => Verdict::Restart,
            },
        }
    }

    fn has_seen(&self, mark: Mark) -> bool {
        // `seen` has no gaps, so the position follows from the number.
        let back = self.seen.back().and_then(|last| last.seq.checked_sub(mark.seq));
        let back = back.and_then(|it| usize::try_from(it).ok());
        back.is_some_and(|it| self.seen.iter().rev().nth(it) == Some(&mark))
    }

    fn apply(&mut self, batch: Numbered<T>, source: Origin) -> Action<T> {
        let mark = batch.mark();
        self.latest = Some(Latest { mark, source, before: self.position, was_complete: self.complete });
        if self.position == Position::Nowhere {
            self.complete = mark.seq == 0;
        }
        self.advance(mark);
        self.is_same_process = true;
        self.counts.batches += 1;
        if source == Origin::Live {
            self.catch_up();
        }
        Action::Apply(batch)
    }

    /// Records that a live message fitted. While replays fail, the next gap gets only one attempt.
    fn catch_up(&mut self) {
        self.asks.count = if self.asks.is_failing { ASKS_MAX - 1 } else { 0 };
    }

    fn advance(&mut self, mark: Mark) {
        self.position = Position::After(mark);
        if self.seen.len() == SEEN_MAX {
            self.seen.pop_front();
        }
        self.seen.push_back(mark);
    }

    /// Takes back the last message, which could not be decoded. This counts as a gap if it arrived live for
    /// the first time; otherwise the feed skips it.
    fn take_back(&mut self, now: Instant, seq: u64) {
        let Some(latest) = self.latest.take_if(|it| it.mark.seq == seq) else { return };
        self.counts.undecodable += 1;
        let may_be_replayed = latest.source == Origin::Live && self.poison == Poison::Unknown;
        if may_be_replayed && self.replay == Replay::Offered {
            self.position = latest.before;
            self.complete = latest.was_complete;
            self.seen.pop_back();
            self.poison = Poison::Suspected(latest.mark);
            self.ask(now);
        } else {
            self.pass_over(latest.mark);
        }
    }

    /// Continues after an undecodable message. It may have removed any block, so everything is cleared.
    fn pass_over(&mut self, mark: Mark) {
        self.doubt();
        self.poison = Poison::Known;
        self.advance(mark);
    }
}
