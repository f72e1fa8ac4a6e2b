//! State shared by the parts of this transport: backlog, status and logged problems.
//!
//! All parts run in one task, so no lock is ever contended.

use super::backlog::{Backlog, WriteBatch};
use super::clock::{self, Instant};
use super::entry::{self, EntryId, GroupKeys};
use super::failure::RedisFailure;
use super::refusal::{RefusalCause, RefusalLog};
use super::url::Server;
use super::wire::{RedisConnection, ReplyLimits};
use super::{FRAME_MAX, RedisConfig};
use crate::seal::{SEAL_LEN, Sealer};
use crate::{Incoming, TransportStatus};
use bytes::Bytes;
use maitre_base::hash;
use parking_lot::Mutex;
use redis::{FromRedisValue, Pipeline};
use ring::rand::{SecureRandom, SystemRandom};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tracing::{info, warn};

/// Maximum distinct reasons logged per outage.
const REASONS_MAX: usize = 8;

/// Maximum age of queued frames that are sent after a reconnect.
const RESEND_MAX: Duration = Duration::from_secs(1);

pub(super) struct LinkState {
    pub(super) server: Server,
    pub(super) keys: GroupKeys,
    /// The writer of our entries.
    pub(super) from: String,
    pub(super) name: String,
    group: String,
    instance: u64,
    sealer: Sealer,
    backlog: Mutex<Backlog>,
    wake: Notify,
    incoming: mpsc::Sender<Incoming>,
    status: watch::Sender<TransportStatus>,
    refusal_log: Mutex<RefusalLog>,
    /// The last entry read, kept across connections.
    position: Mutex<Option<EntryId>>,
    connection: Mutex<ConnectionState>,
}

/// Whether there is a connection, since when, and what was logged about its loss.
enum ConnectionState {
    New,
    Linked(Instant),
    Lost { since: Option<Instant>, said: Vec<RedisFailure> },
}

impl LinkState {
    pub(super) fn new(
        config: RedisConfig,
        server: Server,
        incoming: mpsc::Sender<Incoming>,
        status: watch::Sender<TransportStatus>,
    ) -> LinkState {
        let instance = draw(&config.name);
        // The group is part of the key's purpose, so frames cannot be replayed into another group with the same key.
        let sealer = Sealer::new(config.key.as_ref(), &format!("redis {}", config.group));
        LinkState {
            server,
            keys: GroupKeys::new(&config.group),
            from: entry::from(instance, &config.name),
            name: config.name,
            group: config.group,
            instance,
            sealer,
            backlog: Mutex::default(),
            wake: Notify::new(),
            incoming,
            status,
            refusal_log: Mutex::default(),
            position: Mutex::default(),
            connection: Mutex::new(ConnectionState::New),
        }
    }

    /// A random number of this process.
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

    /// Waits for the next batch; `None` once everything is written and the backlog is closed.
    pub(super) async fn next(&self) -> Option<WriteBatch> {
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

    pub(super) fn position(&self) -> Option<EntryId> {
        *self.position.lock()
    }

    pub(super) fn set_position(&self, position: Option<EntryId>) {
        *self.position.lock() = position;
    }

    /// After a reconnect, drops frames that waited too long.
    pub(super) fn forget(&self) {
        let dropped = self.backlog.lock().forget(clock::now(), RESEND_MAX);
        self.drop_frames(dropped);
    }

    /// Counts frames that were not sent, or may not have been.
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

    /// Decrypts a peer's frame and delivers it. Returns whether it was valid. `wrap` selects the kind of delivery.
    pub(super) async fn receive(&self, name: &str, sealed: Bytes, wrap: fn(Bytes) -> Incoming) -> bool {
        if sealed.len() > FRAME_MAX + SEAL_LEN {
            self.refuse(RefusalCause::TooLong, Some(name));
            return false;
        }
        match self.sealer.open(sealed) {
            Ok(frame) => {
                self.status.send_modify(|it| it.frames_in += 1);
                self.deliver(wrap(frame)).await;
                true
            }
            Err(unsealed) => {
                self.refuse(unsealed.into(), Some(name));
                false
            }
        }
    }

    /// Waits while the router is busy, and for ever once it is gone: its last frames may still be unsent.
    pub(super) async fn deliver(&self, incoming: Incoming) {
        if self.incoming.send(incoming).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Sends commands and counts the bytes.
    pub(super) async fn query<T: FromRedisValue>(
        &self,
        wire: &mut RedisConnection,
        commands: &Pipeline,
        limits: ReplyLimits,
    ) -> Result<T, RedisFailure> {
        let answer = wire.query(commands, limits).await;
        let (received, sent) = wire.passed();
        self.status.send_modify(|it| {
            it.bytes_in += received;
            it.bytes_out += sent;
        });
        answer
    }

    /// Counts a refusal; the first of its cause within a minute is logged and set as trouble.
    pub(super) fn refuse(&self, cause: RefusalCause, of: Option<&str>) {
        let text = match of {
            Some(name) => format!("{}: refused a frame of router \"{name}\": {cause}", self.server),
            None => format!("{}: refused a frame: {cause}", self.server),
        };
        let is_logged = self.refusal_log.lock().should_log(cause, clock::now());
        if is_logged {
            warn!("{text}");
        }
        self.status.send_modify(|it| {
            it.refused += 1;
            if is_logged && it.connected {
                it.trouble = Some(text);
            }
        });
    }

    /// Updates the list of live peers, and clears trouble after a minute without refusals.
    pub(super) fn update(&self, peers: Vec<String>) {
        let is_over = self.refusal_log.lock().is_over(clock::now());
        self.status.send_if_modified(|it| {
            let changed = it.peers != peers || is_over;
            it.peers = peers;
            if is_over && it.connected {
                it.trouble = None;
            }
            changed
        });
    }

    /// Marks the connection as established.
    pub(super) fn link(&self) {
        let now = clock::now();
        let before = std::mem::replace(&mut *self.connection.lock(), ConnectionState::Linked(now));
        let LinkState { server, group, name, .. } = self;
        match before {
            ConnectionState::Lost { since: Some(since), .. } => {
                info!("{server}: connected again after {:.1?}", now.duration_since(since));
            }
            _ => info!("{server}: connected, as router \"{name}\" of group \"{group}\""),
        }
        self.status.send_modify(|it| {
            it.connected = true;
            it.trouble = None;
        });
    }

    /// Marks the connection as lost. Returns how long it lasted.
    pub(super) fn lose(&self, failure: &RedisFailure) -> Duration {
        let now = clock::now();
        let mut connection = self.connection.lock();
        let (mut lasted, server) = (Duration::ZERO, &self.server);
        match &mut *connection {
            ConnectionState::Lost { said, .. } if said.contains(failure) || said.len() >= REASONS_MAX => {}
            ConnectionState::Lost { said, .. } => {
                said.push(failure.clone());
                warn!("{server}: {failure}; still trying");
            }
            before => {
                let since = match before {
                    ConnectionState::Linked(since) => Some(*since),
                    _ => None,
                };
                lasted = since.map_or(Duration::ZERO, |since| now.duration_since(since));
                *before = ConnectionState::Lost { since: since.map(|_| now), said: vec![failure.clone()] };
                warn!("{server}: {failure}; this router works alone and keeps trying");
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

/// Random, or derived from the name if the system has no randomness.
fn draw(name: &str) -> u64 {
    let mut bytes = [0; 8];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => hash::bytes(0, name.as_bytes()),
    }
}
