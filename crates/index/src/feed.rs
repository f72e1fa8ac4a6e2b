//! Keeps what we are told of one worker's cache in step with what its engine said: in order, once, and
//! nothing of a process that is gone.
//!
//! An engine numbers its messages from zero, and drops them for a slow reader without a word. Most can be
//! had again: asked for a replay, it sends all it still remembers from a number on. But numbers alone do
//! not tell a gap from a restart, for a new process may have counted past the old one before we are back.
//! So a replay begins with the last message we applied, and must return the very same bytes (they hold a
//! time stamp): the same process. Anything else, and all we hold is of a process that is gone.
//!
//! What cannot be made whole is cleared, never kept: a block too few costs a prefill, a block too many
//! costs it again for every request that is lured there. After that the feed goes on, knowing a part.
//!
//! This is pure: `on` takes what happened, `next_action` hands out what to do, one thing at a time, so that
//! a payload that turns out to be unreadable can still change what comes after it. The sockets, and the
//! reading of payloads, are its owner's.

use std::collections::VecDeque;
use std::time::Duration;

use maitre_base::{Instant, hash};

#[cfg(test)]
mod tests;

/// How many messages are kept while a replay runs. Chosen: ten seconds of an engine's steps. One more is
/// dropped, which the next look finds to be a gap.
pub const HELD_MAX: usize = 1024;

/// The same in bytes, for a payload may be large. Chosen: steps publish some 10 kB.
pub const HELD_BYTES_MAX: usize = 16 << 20;

/// How many messages back a double is known for one. More than are held, for a replay may double them all,
/// and some were dropped in between; one that is not known passes for a restart.
const SEEN_MAX: usize = 4 * HELD_MAX;

/// How often a replay is asked for until a live message fits. Chosen: one to find a restart, one to begin
/// anew, and two for bad luck.
pub const ASKS_MAX: u32 = 4;

/// How long a replay may take. Chosen: ten thousand messages at vLLM's pace, and then some.
pub const REPLAY_WAIT: Duration = Duration::from_secs(5);

/// The pause after a failed replay, once for the first and twice for the second. An engine opens its
/// replay socket after the other, and looks at it ten times a second.
pub const RETRY_AFTER: Duration = Duration::from_millis(200);

/// What is known of the worker's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Nothing.
    None,
    /// What is held is right as far as it goes, but was not heard from the beginning.
    Cold,
    /// What is held was right once; it is being checked, or there is nobody to ask.
    Suspect,
    /// Everything.
    Fresh,
}

/// Whether the engine has a replay socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    Offered,
    Absent,
}

/// One message, or one of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbered<T> {
    pub seq: u64,
    pub payload: T,
    digest: u64,
}

/// What happened.
#[derive(Debug)]
pub enum Input<T> {
    /// The engine has taken our subscription, for the first time or again.
    Connected,
    Disconnected,
    /// The process that we were connected to is gone for good.
    Gone,
    Batch(Numbered<T>),
    /// A replay that came to its end mark, in full.
    Replayed {
        id: u64,
        batches: Vec<Numbered<T>>,
    },
    /// One that did not.
    ReplayFailed {
        id: u64,
    },
    /// The message just handed out to be applied could not be read, and nothing of it was applied.
    Undecodable {
        seq: u64,
    },
    /// The time of `deadline` has come.
    Tick,
    /// It has been quiet for a while. Of a message that was lost nobody hears before the next one comes, so
    /// somebody should ask.
    Quiet,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<T> {
    Apply(Numbered<T>),
    /// Forget all this worker holds, and what is known of its engine's process.
    Clear,
    /// Ask for all messages from this number on, drop any replay still under way, and report under this id.
    AskReplay {
        id: u64,
        from: u64,
    },
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages handed out to be applied, live or replayed.
    pub batches: u64,
    pub duplicates: u64,
    pub gaps: u64,
    /// Asked for.
    pub replays: u64,
    pub failed_replays: u64,
    pub restarts: u64,
    pub undecodable: u64,
    /// Messages there was no room to hold.
    pub dropped: u64,
    pub clears: u64,
}

/// One subscription: one worker, or one rank of it.
#[derive(Debug)]
pub struct Feed<T> {
    replay: Replay,
    link: Link,
    position: Position,
    /// All since the process began has been applied.
    complete: bool,
    /// Commands given and not yet handed out; these go before any message.
    commands: VecDeque<Command>,
    /// Checked, to be applied before those held.
    replayed: VecDeque<Numbered<T>>,
    /// Live ones, as they came.
    held: VecDeque<Numbered<T>>,
    held_bytes: usize,
    /// The last ones applied, without a hole.
    seen: VecDeque<Mark>,
    latest: Option<Latest>,
    poison: Poison,
    asks: Asks,
    counts: Counts,
}

/// Tells a message from all others.
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
    /// Until the next try.
    Waiting {
        until: Instant,
    },
}

/// Which message may come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Any: nothing is known of this process.
    Nowhere,
    /// The first of the process.
    Start,
    /// The one after this, which was the last applied.
    After(Mark),
}

#[derive(Clone, Copy, Debug)]
enum Command {
    Clear,
    AskReplay { id: u64, from: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Live,
    Replay,
}

/// The message last handed out, and how to take it back.
#[derive(Clone, Copy, Debug)]
struct Latest {
    mark: Mark,
    source: Origin,
    before: Position,
    was_complete: bool,
}

/// What is known of messages nobody can read. A replay brings the same bytes again, so it is tried once in
/// the life of a connection and never more: or every message of a newer engine would cost a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poison {
    Unknown,
    /// Could not be read when it came live.
    Suspected(Mark),
    Known,
}

#[derive(Clone, Copy, Debug, Default)]
struct Asks {
    next_id: u64,
    /// Since a live message last fitted.
    count: u32,
    is_failing: bool,
    /// Nothing is known to be missing; it is only asked whether anything is.
    is_check: bool,
}

enum Verdict {
    Next,
    Duplicate,
    Gap,
    Restart,
}

impl Trust {
    pub const ALL: [Trust; 4] = [Trust::None, Trust::Cold, Trust::Suspect, Trust::Fresh];

    /// The metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Trust::None => "none",
            Trust::Cold => "cold",
            Trust::Suspect => "suspect",
            Trust::Fresh => "fresh",
        }
    }
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
            // Of an earlier connection, or too late.
            Input::Replayed { .. } | Input::ReplayFailed { .. } => {}
            Input::Undecodable { seq } => self.take_back(now, seq),
            Input::Tick => self.tick(now),
            Input::Quiet if self.link == Link::Live && self.replay == Replay::Offered => self.check(now),
            Input::Quiet => {}
        }
    }

    /// What to do next. Call until there is nothing, after every `on`.
    pub fn next_action(&mut self, now: Instant) -> Option<Action<T>> {
        loop {
            match self.commands.pop_front() {
                Some(Command::Clear) => return Some(Action::Clear),
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
                    // A replay brings it again.
                    if self.replay == Replay::Absent {
                        self.put_back(batch);
                    }
                    self.restart(now);
                }
            }
        }
    }

    /// When to send a `Tick`, if at all.
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
            // Nobody can say whether this is the same process; or it is worth the chance to hear it all.
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
        self.commands.retain(|it| matches!(it, Command::Clear));
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
            // The engine no longer remembers where we were, and cannot tell what we missed.
            (Position::After(last), Some(first)) if first.seq > last.seq => self.clear(),
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
            // No news is no bad news.
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

    /// Asks for a replay from where we are, or goes on without.
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

    /// Asks whether anything is missing, which counts as no try.
    fn check(&mut self, now: Instant) {
        let count = std::mem::take(&mut self.asks.count);
        self.ask(now);
        self.asks.count = count;
        self.asks.is_check = true;
    }

    fn give_up(&mut self) {
        self.clear();
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
        self.counts.clears += 1;
        self.commands.push_back(Command::Clear);
        self.position = Position::Nowhere;
        self.complete = false;
        self.seen.clear();
        self.latest = None;
    }

    fn judge(&self, mark: Mark, source: Origin) -> Verdict {
        match self.position {
            // Checked when it came.
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
        // Without a hole, so its place is known.
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
        self.counts.batches += 1;
        if source == Origin::Live {
            self.catch_up();
        }
        Action::Apply(batch)
    }

    /// A live message fits what we have. While replays fail, the next gap gets one try and no more.
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

    /// The latest message could not be read: a gap, the first time it comes live; else nothing can be done.
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

    /// Goes on after a message nobody can read. What it removed is not known, so nothing is kept.
    fn pass_over(&mut self, mark: Mark) {
        self.clear();
        self.poison = Poison::Known;
        self.advance(mark);
    }
}
