//! What the parts of one transport have in common: what waits to be sent, how it fares, and what was said about it.
//!
//! One task runs them all, so that no lock here is ever waited for.

use super::backlog::{Backlog, Batch};
use super::clock::{self, Instant};
use super::entry::{self, Id, Keys};
use super::failure::Failure;
use super::refusal::{Cause, Told};
use super::url::Server;
use super::wire::{Allowance, Wire};
use super::{FRAME_MAX, Settings};
use crate::seal::{SEAL_LEN, Sealer};
use crate::{Incoming, Status};
use bytes::Bytes;
use maitre_base::hash;
use parking_lot::Mutex;
use redis::{FromRedisValue, Pipeline};
use ring::rand::{SecureRandom, SystemRandom};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tracing::{info, warn};

/// Of one outage, so many different reasons are told.
const REASONS_MAX: usize = 8;

/// What a router says is worthless soon: of what waited for a server, so much goes out once there is one.
const WORTH: Duration = Duration::from_secs(1);

pub(super) struct Shared {
    pub(super) server: Server,
    pub(super) keys: Keys,
    /// Who writes our entries.
    pub(super) from: String,
    pub(super) name: String,
    group: String,
    instance: u64,
    sealer: Sealer,
    backlog: Mutex<Backlog>,
    wake: Notify,
    incoming: mpsc::Sender<Incoming>,
    status: watch::Sender<Status>,
    told: Mutex<Told>,
    /// The last entry that was heard, from one connection to the next.
    place: Mutex<Option<Id>>,
    standing: Mutex<Standing>,
}

/// Whether there is a connection, since when, and what was said about its absence.
enum Standing {
    New,
    Linked(Instant),
    Lost { since: Option<Instant>, said: Vec<Failure> },
}

impl Shared {
    pub(super) fn new(
        settings: Settings,
        server: Server,
        incoming: mpsc::Sender<Incoming>,
        status: watch::Sender<Status>,
    ) -> Shared {
        let instance = draw(&settings.name);
        // What was said in one group cannot be shown to another, though both have one key.
        let sealer = Sealer::new(settings.key.as_ref(), &format!("redis {}", settings.group));
        Shared {
            server,
            keys: Keys::new(&settings.group),
            from: entry::from(instance, &settings.name),
            name: settings.name,
            group: settings.group,
            instance,
            sealer,
            backlog: Mutex::default(),
            wake: Notify::new(),
            incoming,
            status,
            told: Mutex::default(),
            place: Mutex::default(),
            standing: Mutex::new(Standing::New),
        }
    }

    /// A number of this life of this router.
    pub(super) fn instance(&self) -> u64 {
        self.instance
    }

    pub(super) fn push(&self, frame: Bytes) {
        let dropped = self.backlog.lock().push(clock::now(), frame);
        self.drop_frames(dropped);
        self.wake.notify_one();
    }

    pub(super) fn put(&self, snapshot: Vec<Bytes>) {
        self.backlog.lock().put(snapshot);
        self.wake.notify_one();
    }

    pub(super) fn close(&self) {
        self.backlog.lock().close();
        self.wake.notify_one();
    }

    /// What is to be written next, once there is something; none once all is written and no more will come.
    pub(super) async fn next(&self) -> Option<Batch> {
        loop {
            {
                let mut backlog = self.backlog.lock();
                let batch = backlog.take();
                if batch.is_some() || backlog.is_closed() {
                    return batch;
                }
            }
            self.wake.notified().await;
        }
    }

    pub(super) fn place(&self) -> Option<Id> {
        *self.place.lock()
    }

    pub(super) fn set_place(&self, place: Option<Id>) {
        *self.place.lock() = place;
    }

    /// There is a server again: what waited too long for it is not for its ears.
    pub(super) fn forget(&self) {
        let dropped = self.backlog.lock().forget(clock::now(), WORTH);
        self.drop_frames(dropped);
    }

    /// They were not sent, or may not have been.
    pub(super) fn drop_frames(&self, count: u64) {
        if count > 0 {
            self.status.send_modify(|it| it.dropped += count);
        }
    }

    pub(super) fn sent(&self, count: u64) {
        self.status.send_modify(|it| it.frames_out += count);
    }

    pub(super) fn seal(&self, frame: &Bytes) -> Option<Bytes> {
        let sealed = self.sealer.seal(frame);
        if sealed.is_none() {
            self.drop_frames(1);
        }
        sealed
    }

    /// Hands a frame of another router on, if it is one, and says whether it was. `wrap` says how it came.
    pub(super) async fn hear(&self, name: &str, sealed: Bytes, wrap: fn(Bytes) -> Incoming) -> bool {
        if sealed.len() > FRAME_MAX + SEAL_LEN {
            self.refuse(Cause::TooLong, Some(name));
            return false;
        }
        match self.sealer.open(sealed) {
            Ok(frame) => {
                self.status.send_modify(|it| it.frames_in += 1);
                self.give(wrap(frame)).await;
                true
            }
            Err(unsealed) => {
                self.refuse(unsealed.into(), Some(name));
                false
            }
        }
    }

    /// Waits if the driver does not keep up, and for ever if it listens no more: it may still have last words.
    pub(super) async fn give(&self, incoming: Incoming) {
        if self.incoming.send(incoming).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Asks, and counts what passed.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        wire: &mut Wire,
        question: &Pipeline,
        allowance: Allowance,
    ) -> Result<T, Failure> {
        let answer = wire.ask(question, allowance).await;
        let (came, went) = wire.passed();
        self.status.send_modify(|it| {
            it.bytes_in += came;
            it.bytes_out += went;
        });
        answer
    }

    /// Counts it; the first of its kind in a minute is told, and is trouble.
    pub(super) fn refuse(&self, cause: Cause, of: Option<&str>) {
        let text = match of {
            Some(name) => format!("{}: a frame of router \"{name}\" was refused: {cause}", self.server),
            None => format!("{}: a frame was refused: {cause}", self.server),
        };
        let tell = self.told.lock().tell(cause, clock::now());
        if tell {
            warn!("{text}");
        }
        self.status.send_modify(|it| {
            it.refused += 1;
            if tell && it.connected {
                it.trouble = Some(text);
            }
        });
    }

    /// Who can be heard; and if nothing was refused for a while, that is over.
    pub(super) fn update(&self, peers: Vec<String>) {
        let is_over = self.told.lock().is_over(clock::now());
        self.status.send_if_modified(|it| {
            let changed = it.peers != peers || is_over;
            it.peers = peers;
            if is_over && it.connected {
                it.trouble = None;
            }
            changed
        });
    }

    /// There is a connection.
    pub(super) fn link(&self) {
        let now = clock::now();
        let before = std::mem::replace(&mut *self.standing.lock(), Standing::Linked(now));
        let Shared { server, group, name, .. } = self;
        match before {
            Standing::Lost { since: Some(since), .. } => {
                info!("{server}: connected again after {:.1?}", now.duration_since(since));
            }
            _ => info!("{server}: connected, as router \"{name}\" of group \"{group}\""),
        }
        self.status.send_modify(|it| {
            it.connected = true;
            it.trouble = None;
        });
    }

    /// There is none, or none any more. Says how long there was one.
    pub(super) fn lose(&self, failure: &Failure) -> Duration {
        let now = clock::now();
        let mut standing = self.standing.lock();
        let (mut lasted, server) = (Duration::ZERO, &self.server);
        match &mut *standing {
            Standing::Lost { said, .. } if said.contains(failure) || said.len() >= REASONS_MAX => {}
            Standing::Lost { said, .. } => {
                said.push(failure.clone());
                warn!("{server}: {failure}; still trying");
            }
            before => {
                let since = match before {
                    Standing::Linked(since) => Some(*since),
                    _ => None,
                };
                lasted = since.map_or(Duration::ZERO, |since| now.duration_since(since));
                *before = Standing::Lost { since: since.map(|_| now), said: vec![failure.clone()] };
                warn!("{server}: {failure}; this router carries on alone, and keeps trying");
            }
        }
        self.status.send_modify(|it| {
            it.connected = false;
            it.peers.clear();
            it.trouble = Some(format!("{server}: {failure}"));
        });
        lasted
    }
}

/// By dice; by the name if the system has none.
fn draw(name: &str) -> u64 {
    let mut bytes = [0; 8];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => hash::bytes(0, name.as_bytes()),
    }
}
