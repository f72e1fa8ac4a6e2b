//! One router among others: told what happens here, it says what to send; told what came, it says what that means.
//!
//! Deltas say what changed, numbered without a gap; a hearer that misses one asks, and is told all rows again as of some
//! delta. Beats say how far the deltas go, so that a loss is noticed though nothing follows it. Whoever starts says
//! hello, hears everybody's rows and one router's book, and is warm then. All frames go to all others, so an answer
//! serves whoever else lacks the same.
//!
//! Left out: clocks and sockets. `flush`, `beat` and `tick` are called in time by whoever has them.

mod answer;
mod greet;
mod hear;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use crate::directory::{CLAIMS_MAX, CacheDirectory, PAGES_MAX};
use crate::frame::write::{self, Sheet};
use crate::frame::{Beat, Echo, Head, NAME_MAX, ROUTERS_MAX, Record, Since};
use crate::node::greet::Greeting;
use crate::own::{self, Own, PINS_MAX, SPENT_MAX};
use crate::row::{Chain, Facts, Incarnation, Load, PeerUpdate, RouterId, Spent};
use crate::view::{Ranked, View};
use maitre_base::Instant;

/// How often what changed is told, at most. Chosen: well below the time to any first token.
pub const FLUSH: Duration = Duration::from_millis(40);
/// How often a router gives a sign of life.
pub const BEAT: Duration = Duration::from_millis(500);
/// How long a router may usually be silent: six beats. Chosen: one that pauses for a second or two is not given up, and one
/// that died keeps others from its workers no longer than a dead worker is tried.
pub const SILENCE_MAX: Duration = Duration::from_secs(3);

/// How many beats back an echo is understood.
const BEATS_KEPT: usize = 16;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Unique among the routers.
    pub name: String,
    pub incarnation: Incarnation,
    /// How long a router may be silent before its rows are no part of the view.
    pub silence_max: Duration,
}

/// What came of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It was new, or known already.
    Taken,
    /// Our own, or of a life that is over.
    Ignored,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unheard {
    #[error("not a frame of a cluster of routers")]
    Foreign,
    #[error("speaks version {theirs} of the language of routers, and this router version {ours}")]
    Version { theirs: u8, ours: u8 },
    #[error("a frame that makes no sense: {0}")]
    Malformed(&'static str),
    #[error("another router has our name, \"{0}\"; give each its own (cluster.name)")]
    Namesake(String),
    #[error(
        "there are more than {ROUTERS_MAX} routers, and this one does not count what those beyond do; run fewer, or give \
         each part of the fleet routers of its own"
    )]
    Crowded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    Live,
    /// Not heard for too long.
    Lost,
}

/// Another router, for people.
#[derive(Clone, Debug)]
pub struct Peer {
    pub id: RouterId,
    /// Its number until it has told its name.
    pub name: String,
    pub incarnation: Incarnation,
    pub standing: PeerState,
    /// How long what it tells is under way; none before it was measured.
    pub lag: Option<Duration>,
    /// When it was last heard.
    pub heard: Instant,
    /// Requests it has taken since it started, and those open now.
    pub served: u64,
    pub open: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Rows and chains that could not be told or heard for want of room or of a page, since the start.
    pub dropped: u64,
    /// Times that rows had to be asked for again.
    pub repairs: u64,
    pub pages: usize,
    pub rows: usize,
}

#[derive(Debug)]
pub struct Node {
    id: RouterId,
    name: String,
    incarnation: Incarnation,
    silence_max: Duration,
    /// The last delta.
    seq: u64,
    /// Lamport's clock: later than anything heard.
    stamp: u64,
    own: Own,
    view: View,
    directory: CacheDirectory,
    greeting: Greeting,
    pulse: Pulse,
    asked: Asked,
    sheet: Sheet,
    repairs: u64,
}

/// Our signs of life.
#[derive(Debug, Default)]
struct Pulse {
    number: u64,
    sent: VecDeque<(u64, Instant)>,
    served: u64,
    open: u32,
}

/// What others want of us.
#[derive(Debug, Default)]
struct Asked {
    rows: Option<Since>,
    rows_told: Option<Instant>,
    wants_book: bool,
    book_told: Option<Instant>,
    /// Frames of the book that are still to be sent.
    book: VecDeque<Vec<u8>>,
    /// Pages, with the block of their chains.
    pages: Vec<(u32, u64)>,
    edition: u64,
}

impl Node {
    pub fn new(settings: Settings) -> Node {
        let Settings { name, incarnation, silence_max } = settings;
        Node {
            id: RouterId::named(&name),
            name: presentable(&name),
            incarnation,
            silence_max,
            seq: 0,
            stamp: 0,
            own: Own::new(PINS_MAX, SPENT_MAX),
            view: View::default(),
            directory: CacheDirectory::new(PAGES_MAX, CLAIMS_MAX),
            greeting: Greeting::default(),
            pulse: Pulse::default(),
            asked: Asked::default(),
            sheet: Sheet::default(),
            repairs: 0,
        }
    }

    /// All we have promised to this worker.
    pub fn promise(&mut self, worker: u64, load: Load) {
        self.own.promise(worker, load);
    }

    /// What we think of it. Told if it is news: a verdict that changed, rates that moved by a tenth.
    pub fn judge(&mut self, worker: u64, facts: Facts) {
        self.own.judge(worker, facts);
    }

    /// This router no longer knows the worker.
    pub fn forget(&mut self, worker: u64) {
        self.own.forget(worker);
        self.directory.forget(worker);
    }

    /// A session sits there now. Saying so again costs nothing.
    pub fn pin(&mut self, model: u64, session: u64, worker: u64) {
        let key = own::key(model, session);
        let ours = self.our_pin(key);
        let is_known = ours.is_some_and(|it| it.2 == worker)
            && self.view.pin(key, ours).is_some_and(|it| it.2 == worker);
        if is_known {
            self.own.keep_pin(key);
            return;
        }
        self.stamp = self.stamp.saturating_add(1);
        self.own.set_pin(model, session, worker, self.stamp);
    }

    /// So much more.
    pub fn spend(&mut self, model: u64, tenant: u64, more: Spent) {
        self.own.spend(model, tenant, more);
    }

    /// A prompt went to this worker. Links are never 0; a chain without links, or with too many, is not told.
    pub fn seat(&mut self, worker: u64, chain: Chain<'_>) {
        self.directory.seat(worker, chain, self.seq + 1);
    }

    /// What is shown of us to others.
    pub fn serve(&mut self, served: u64, open: u32) {
        (self.pulse.served, self.pulse.open) = (served, open);
    }

    /// Frames of what changed since the last flush, and what others asked for; nothing if nothing did.
    pub fn flush(&mut self, now: Instant, frames: &mut Vec<Vec<u8>>) {
        self.tell(frames);
        self.ask(now, frames);
        if self.greeting.is_due() {
            frames.push(self.hello(now));
        }
        self.answer(now, frames);
    }

    /// Whether a flush would send something now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.own.has_pending()
            || self.directory.has_pending()
            || self.greeting.is_due()
            || self.asks(now)
            || self.answers(now)
    }

    /// A sign of life, due every `BEAT`.
    pub fn beat(&mut self, now: Instant) -> Vec<u8> {
        self.pulse.number += 1;
        self.pulse.sent.push_back((self.pulse.number, now));
        if self.pulse.sent.len() > BEATS_KEPT {
            self.pulse.sent.pop_front();
        }
        let echo = |router: RouterId, (number, heard): (u64, Instant)| Echo {
            router,
            number,
            held_us: u64::try_from(now.since(heard).as_micros()).unwrap_or(u64::MAX),
        };
        let beat = Beat {
            name: &self.name,
            number: self.pulse.number,
            served: self.pulse.served,
            open: self.pulse.open,
            echoes: self.view.live().filter_map(|it| Some(echo(it.peer.id, it.beat?))).collect(),
        };
        write::beat(&self.head(), &beat)
    }

    /// The last: our rows are no longer ours.
    pub fn bye(&self) -> Vec<u8> {
        write::bye(&self.head())
    }

    /// Lets rows of the silent go. Call it with each beat.
    pub fn tick(&mut self, now: Instant, news: &mut Vec<PeerUpdate>) {
        self.view.tick(now, self.silence_max);
        self.view.tell(news);
        self.greet_again(now);
    }

    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.view.routers().map(|it| &it.peer)
    }

    /// For metrics.
    pub fn numbers(&self) -> Numbers {
        Numbers {
            dropped: self.own.dropped() + self.view.dropped() + self.directory.dropped(),
            repairs: self.repairs,
            pages: self.directory.pages(),
            rows: self.own.rows() + self.view.rows(),
        }
    }

    fn head(&self) -> Head {
        Head {
            router: self.id,
            incarnation: self.incarnation,
            seq: self.seq,
            stamp: self.stamp,
            is_warm: self.is_warm(),
        }
    }

    fn our_pin(&self, key: u64) -> Option<Ranked> {
        self.own.pin(key).map(|it| (it.stamp, self.id, it.worker))
    }

    /// Deltas of what changed.
    fn tell(&mut self, frames: &mut Vec<Vec<u8>>) {
        let mut deltas = Deltas { head: self.head(), sheet: &mut self.sheet, frames };
        self.own.tell(|make| deltas.push(make));
        self.directory.tell(|record| deltas.push(&|_| *record));
        deltas.close();
        self.seq = deltas.head.seq;
    }
}

/// Deltas in the making.
struct Deltas<'a> {
    /// Of the last one that is finished.
    head: Head,
    sheet: &'a mut Sheet,
    frames: &'a mut Vec<Vec<u8>>,
}

impl Deltas<'_> {
    /// Writes a record. Returns the number of the delta that it is in.
    fn push<'r>(&mut self, make: &dyn Fn(u64) -> Record<'r>) -> u64 {
        if !self.sheet.takes(&make(self.head.seq + 1)) {
            self.close();
            self.sheet.takes(&make(self.head.seq + 1));
        }
        self.head.seq + 1
    }

    fn close(&mut self) {
        if !self.sheet.is_empty() {
            self.head.seq += 1;
            self.frames.push(write::delta(&self.head, self.sheet));
        }
    }
}

/// A name as it may travel: short, and without what would break a line.
fn presentable(name: &str) -> String {
    let mut name: String = name.chars().filter(|it| !it.is_control()).collect();
    name.truncate(name.floor_char_boundary(NAME_MAX));
    name
}
