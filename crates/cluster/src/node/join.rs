//! Joining the cluster: hello, the answers to it, and the end of synchronisation.
//!
//! The hello of an unsynced router asks every peer whose rows it lacks for them, and one peer for the directory. The
//! peers agree on that one without a message: synced routers come first, and a hash of both ids gives each asker its
//! own order. If that peer does not answer, the next hello selects the next one.

use std::time::Duration;

use crate::frame::{Head, Hello, Since, write};
use crate::node::Node;
use crate::row::RouterId;
use maitre_base::{Instant, hash};

/// Interval after which an unanswered hello is repeated.
const HELLO_AGAIN: Duration = Duration::from_secs(1);
/// How long a router listens before it concludes that it is alone.
const ALONE_AFTER: Duration = Duration::from_secs(1);
/// How often hello is repeated while answers are missing.
const HELLOS_MAX: u32 = 5;

#[derive(Debug, Default)]
pub(super) struct Join {
    first: Option<Instant>,
    last: Option<Instant>,
    /// Number of the attempt. Hellos within a second count as one, so that one router answers them.
    attempt: u32,
    attempted_at: Option<Instant>,
    /// How often hello was repeated because answers were missing.
    repeats: u32,
    /// When a part of a directory snapshot last arrived.
    directory_received_at: Option<Instant>,
    has_directory: bool,
    /// Live routers according to the directory snapshot; we expect to hear from each.
    expected_routers: Vec<RouterId>,
    state: JoinState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum JoinState {
    #[default]
    Syncing,
    /// Not synced, and the next flush sends a hello.
    HelloDue,
    Synced,
}

impl Join {
    pub(super) fn is_due(&self) -> bool {
        self.state == JoinState::HelloDue
    }

    pub(super) fn is_synced(&self) -> bool {
        self.state == JoinState::Synced
    }

    /// Until then a peer may still answer our hello and need not be asked for its rows. A synced router asks each
    /// peer for just what it lacks.
    pub(super) fn answers_by(&self) -> Instant {
        self.last.filter(|_| !self.is_synced()).map_or(Instant::ZERO, |it| it + HELLO_AGAIN)
    }

    pub(super) fn receive_directory(&mut self, now: Instant, is_complete: bool, others: &[RouterId]) {
        self.directory_received_at = Some(now);
        self.has_directory |= is_complete;
        if !self.is_synced() && !others.is_empty() {
            others.clone_into(&mut self.expected_routers);
        }
    }

    fn wants_directory(&self, now: Instant) -> bool {
        !self.has_directory && self.directory_received_at.is_none_or(|it| now.since(it) >= HELLO_AGAIN)
    }
}

impl Node {
    /// The first frame to send, and again whenever a transport has connected: asks peers for everything they know.
    pub fn hello(&mut self, now: Instant) -> Vec<u8> {
        let join = &mut self.join;
        match join.attempted_at {
            None => join.attempted_at = Some(now),
            Some(it) if now.since(it) >= HELLO_AGAIN => {
                (join.attempt, join.attempted_at) = (join.attempt.wrapping_add(1), Some(now));
            }
            Some(_) => {}
        }
        join.first.get_or_insert(now);
        join.last = Some(now);
        if join.is_due() {
            join.state = JoinState::Syncing;
        }
        let by = join.answers_by();
        // Only a peer that the hello does not list as complete answers it with its rows.
        let lacking = self.view.live_mut().filter(|it| it.stream.has_gaps());
        lacking.for_each(|it| it.stream.ask_at = it.stream.ask_at.max(by));
        let has = self.view.live().filter(|it| !it.stream.has_gaps());
        let hello = Hello {
            name: &self.name,
            attempt: self.join.attempt,
            wants_directory: self.join.wants_directory(now),
            has: has.map(|it| (it.peer.id, it.peer.incarnation)).collect(),
        };
        write::hello(&self.head(), &hello)
    }

    /// Whether this router has applied every peer's snapshot or is alone. It stays so once it is.
    pub fn is_synced(&self) -> bool {
        self.join.is_synced()
    }

    pub(super) fn receive_hello(&mut self, head: &Head, hello: &Hello<'_>) {
        if !head.is_synced && !hello.has.contains(&(self.id, self.incarnation)) {
            self.note_rows_request(Since { rows: 0, chains: self.seq });
        }
        if hello.wants_directory && self.answers_with_directory(head.router, hello.attempt) {
            self.note_directory_request();
        }
    }

    /// Whether this router is the one that sends its directory to `asker`.
    fn answers_with_directory(&self, asker: RouterId, attempt: u32) -> bool {
        let others = self.view.live().map(|it| (it.peer.id, it.is_synced));
        let all = others.filter(|it| it.0 != asker).chain([(self.id, self.is_synced())]);
        let mut all: Vec<(RouterId, bool)> = all.collect();
        if all.iter().any(|it| it.1) {
            all.retain(|it| it.1);
        }
        all.sort_unstable_by_key(|it| std::cmp::Reverse(hash::pair(it.0.0, asker.0)));
        all[attempt as usize % all.len()].0 == self.id
    }

    /// Becomes synced once nothing is missing. Routers known only by name are given a while to appear: they may be
    /// gone.
    pub(super) fn check_synced(&mut self, now: Instant) {
        let join = &self.join;
        if join.is_synced() {
            return;
        }
        let is_heard = |id: &RouterId| *id == self.id || self.view.live().any(|it| it.peer.id == *id);
        let has_all = join.expected_routers.iter().all(is_heard) || is_over(join.first, ALONE_AFTER, now);
        let mut live = self.view.live().peekable();
        if join.has_directory && has_all && live.peek().is_some() && live.all(|it| !it.stream.has_gaps()) {
            self.join.state = JoinState::Synced;
        }
    }

    /// Repeats hello if answers are missing, or concludes that this router is alone.
    pub(super) fn retry_hello(&mut self, now: Instant) {
        self.check_synced(now);
        let join = &mut self.join;
        if join.is_synced() {
            return;
        }
        let is_alone = self.view.live().next().is_none() && is_over(join.first, ALONE_AFTER, now);
        let is_unanswered = is_over(join.last, HELLO_AGAIN, now);
        if is_alone || is_unanswered && join.repeats >= HELLOS_MAX {
            // No more answers will come. From here on, each peer is asked for the deltas since.
            join.state = JoinState::Synced;
        } else if is_unanswered && !join.is_due() {
            join.repeats += 1;
            join.state = JoinState::HelloDue;
        }
    }
}

fn is_over(since: Option<Instant>, span: Duration, now: Instant) -> bool {
    since.is_some_and(|it| now.since(it) >= span)
}
