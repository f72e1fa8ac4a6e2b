//! Joining: to say hello, to be told what is known, to be warm.
//!
//! The hello of one who is not warm asks everybody whose rows it lacks for them, and one of the others for the book. All have to agree who that is
//! without talking about it: routers that are warm go before those that are not, and among these a hash of both names
//! puts another one first for each that asks. If it does not answer, the next hello takes the next one.

use std::time::Duration;

use crate::frame::{Head, Hello, Since, write};
use crate::node::Node;
use crate::row::RouterId;
use maitre_base::{Instant, hash};

/// How long after a hello without all answers the next one is due.
const HELLO_AGAIN: Duration = Duration::from_secs(1);
/// How long we listen before we think that we are alone.
const ALONE_AFTER: Duration = Duration::from_secs(1);
/// How often hello is said again while answers are missing.
const HELLOS_MAX: u32 = 5;

#[derive(Debug, Default)]
pub(super) struct Greeting {
    first: Option<Instant>,
    last: Option<Instant>,
    /// Of the hellos; those said within a second are one, so that one router answers them.
    attempt: u32,
    attempted: Option<Instant>,
    /// How often it was said again because answers were missing.
    repeated: u32,
    /// When a part of somebody's book was last heard.
    book_heard: Option<Instant>,
    has_book: bool,
    /// Routers that whoever told us its book can hear, and we should hear too.
    others: Vec<RouterId>,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Cold,
    /// As cold, and the next flush says hello.
    Due,
    Warm,
}

impl Greeting {
    pub(super) fn is_due(&self) -> bool {
        self.state == State::Due
    }

    pub(super) fn is_warm(&self) -> bool {
        self.state == State::Warm
    }

    /// Before this, a router may still answer our hello, and need not be asked for its rows. Who is warm asks each for
    /// just what it lacks.
    pub(super) fn answers_by(&self) -> Instant {
        self.last.filter(|_| !self.is_warm()).map_or(Instant::ZERO, |it| it + HELLO_AGAIN)
    }

    pub(super) fn hear_book(&mut self, now: Instant, is_whole: bool, others: &[RouterId]) {
        self.book_heard = Some(now);
        self.has_book |= is_whole;
        if !self.is_warm() && !others.is_empty() {
            others.clone_into(&mut self.others);
        }
    }

    fn wants_book(&self, now: Instant) -> bool {
        !self.has_book && self.book_heard.is_none_or(|it| now.since(it) >= HELLO_AGAIN)
    }
}

impl Node {
    /// The first thing to send, and whenever a transport has connected: asks the others for all they know.
    pub fn hello(&mut self, now: Instant) -> Vec<u8> {
        let greeting = &mut self.greeting;
        match greeting.attempted {
            None => greeting.attempted = Some(now),
            Some(it) if now.since(it) >= HELLO_AGAIN => {
                (greeting.attempt, greeting.attempted) = (greeting.attempt.wrapping_add(1), Some(now));
            }
            Some(_) => {}
        }
        greeting.first.get_or_insert(now);
        greeting.last = Some(now);
        if greeting.is_due() {
            greeting.state = State::Cold;
        }
        let by = greeting.answers_by();
        self.view.live_mut().for_each(|it| it.stream.ask = it.stream.ask.max(by));
        let has = self.view.live().filter(|it| !it.stream.is_torn());
        let hello = Hello {
            name: &self.name,
            attempt: self.greeting.attempt,
            wants_book: self.greeting.wants_book(now),
            has: has.map(|it| (it.peer.id, it.peer.incarnation)).collect(),
        };
        write::hello(&self.head(), &hello)
    }

    /// Whether we have heard all that those who were there had to say, or there was nobody. Once we are, we stay so.
    pub fn is_warm(&self) -> bool {
        self.greeting.is_warm()
    }

    pub(super) fn hear_hello(&mut self, head: &Head, hello: &Hello<'_>) {
        if !head.is_warm && !hello.has.contains(&(self.id, self.incarnation)) {
            self.asked_for_rows(Since { rows: 0, chains: self.seq });
        }
        if hello.wants_book && self.answers_with_book(head.router, hello.attempt) {
            self.asked_for_book();
        }
    }

    /// Whether it is for us to tell the book to this router.
    fn answers_with_book(&self, asker: RouterId, attempt: u32) -> bool {
        let others = self.view.live().map(|it| (it.peer.id, it.is_warm));
        let all = others.filter(|it| it.0 != asker).chain([(self.id, self.is_warm())]);
        let mut all: Vec<(RouterId, bool)> = all.collect();
        if all.iter().any(|it| it.1) {
            all.retain(|it| it.1);
        }
        all.sort_unstable_by_key(|it| std::cmp::Reverse(hash::pair(it.0.0, asker.0)));
        all[attempt as usize % all.len()].0 == self.id
    }

    /// Becomes warm once nothing is missing of anybody. Those of whom we only know that they are there are waited for a
    /// while: they may be gone.
    pub(super) fn warm_up(&mut self, now: Instant) {
        let greeting = &self.greeting;
        if greeting.is_warm() {
            return;
        }
        let is_heard = |id: &RouterId| *id == self.id || self.view.live().any(|it| it.peer.id == *id);
        let has_all = greeting.others.iter().all(is_heard) || is_over(greeting.first, ALONE_AFTER, now);
        let mut live = self.view.live().peekable();
        if greeting.has_book && has_all && live.peek().is_some() && live.all(|it| !it.stream.is_torn()) {
            self.greeting.state = State::Warm;
        }
    }

    /// Says hello again if answers are missing, or finds that there is nobody.
    pub(super) fn greet_again(&mut self, now: Instant) {
        self.warm_up(now);
        let greeting = &mut self.greeting;
        if greeting.is_warm() {
            return;
        }
        let is_alone = self.view.live().next().is_none() && is_over(greeting.first, ALONE_AFTER, now);
        let is_unanswered = is_over(greeting.last, HELLO_AGAIN, now);
        if is_alone || is_unanswered && greeting.repeated >= HELLOS_MAX {
            // What we have is all that we get; from here on we ask each for what it told since.
            greeting.state = State::Warm;
        } else if is_unanswered && !greeting.is_due() {
            greeting.repeated += 1;
            greeting.state = State::Due;
        }
    }
}

fn is_over(since: Option<Instant>, span: Duration, now: Instant) -> bool {
    since.is_some_and(|it| now.since(it) >= span)
}
