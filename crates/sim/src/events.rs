//! KV events: stored and removed blocks, published as vLLM does.
//!
//! One batch per step that changed something, numbered from zero, sent to every subscriber and kept in a ring for
//! replay. A slow subscriber loses whole batches without notice; the numbers show it. The stream can be disturbed on
//! command, in the ways that a network and a busy engine do.
//!
//! The wire is ZeroMQ's: a PUB socket for the stream and a ROUTER for the replay, in `events/socket.rs`.

mod batch;
pub mod disturbance;
mod msgpack;
pub(crate) mod socket;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use maitre_zmtp::frame;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, watch};

use crate::kv::Change;
use batch::BatchEncoder;
use disturbance::{Disturbance, Disturbances};

/// Batches kept for replay, by vLLM's default.
pub const BUFFER_STEPS: usize = 10_000;

/// Payload kept for replay, whatever the number of batches. Chosen: vLLM has no such limit, and ten
/// thousand batches of a busy engine are about this much.
pub const BUFFER_BYTES_MAX: usize = 64 << 20;

/// Maximum messages queued for one subscriber, vLLM's default.
pub const HIGH_WATER_MESSAGES: usize = 100_000;

/// Topics of one subscriber. Chosen: it needs one.
const TOPICS_MAX: usize = 64;

/// The number that ends a replay.
const END: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub struct PublisherConfig {
    /// Where the stream is published; port 0 picks one.
    pub stream: SocketAddr,
    /// Where it can be replayed.
    pub replay: Option<SocketAddr>,
    pub topic: String,
    /// The engine's data-parallel rank. Other ranks have their own addresses.
    pub rank: u32,
    pub form: Form,
    pub replay_shape: ReplayShape,
    pub buffer_steps: usize,
    pub buffer_bytes_max: usize,
    pub high_water_messages: usize,
}

impl PublisherConfig {
    /// As vLLM does by default: no topic, no replay.
    pub fn new(stream: SocketAddr) -> PublisherConfig {
        PublisherConfig {
            stream,
            replay: None,
            topic: String::new(),
            rank: 0,
            form: Form::Maps,
            replay_shape: ReplayShape::WithTopic,
            buffer_steps: BUFFER_STEPS,
            buffer_bytes_max: BUFFER_BYTES_MAX,
            high_water_messages: HIGH_WATER_MESSAGES,
        }
    }
}

/// How one event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// vLLM since 0.24.
    Maps,
    /// vLLM 0.22 and 0.23.
    Arrays,
}

/// The layout of a replay reply after the empty frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayShape {
    /// Topic, number, payload: vLLM since 0.26.
    WithTopic,
    /// Number, payload: vLLM before, and SGLang.
    WithoutTopic,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublisherStats {
    /// Connections, of either kind.
    pub connections: usize,
    /// Subscribers of the stream.
    pub subscribers: usize,
    /// Batches published since the start: the next batch's number.
    pub batches: u64,
    /// Messages lost to subscribers that read too slowly.
    pub overflowed: u64,
    /// Replays asked for.
    pub replays: u64,
}

/// Where a publisher listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addrs {
    pub stream: SocketAddr,
    pub replay: Option<SocketAddr>,
}

/// What the encoding needs to know about the engine.
#[derive(Clone, Debug)]
pub(crate) struct PublishedModel {
    pub(crate) block_tokens: u32,
    pub(crate) adapters: Vec<String>,
}

pub(crate) struct Publisher {
    config: PublisherConfig,
    addrs: Addrs,
    model: PublishedModel,
    state: Mutex<PublisherState>,
    /// Changes when every connection must be closed.
    closing: watch::Sender<u64>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct PublisherState {
    next_sequence: u64,
    ring: VecDeque<Kept>,
    ring_bytes: usize,
    subscribers: Vec<Subscriber>,
    next_id: u64,
    connections: usize,
    disturbances: Disturbances,
    overflowed: u64,
    replays: u64,
}

#[derive(Clone, Debug)]
struct Kept {
    sequence: u64,
    payload: Bytes,
}

struct Subscriber {
    id: u64,
    topics: Vec<Vec<u8>>,
    queue: mpsc::Sender<Bytes>,
}

impl Publisher {
    pub(crate) fn new(
        config: PublisherConfig,
        addrs: Addrs,
        model: PublishedModel,
        changed: Arc<Notify>,
    ) -> Publisher {
        let (closing, _) = watch::channel(0);
        Publisher { config, addrs, model, state: Mutex::default(), closing, changed }
    }

    pub(crate) fn addrs(&self) -> Addrs {
        self.addrs
    }

    /// Publishes the changes of one step, if any. If `lost` changes are missing, a number is skipped, so that the gap
    /// is visible.
    pub(crate) fn publish(&self, unix_seconds: f64, changes: &[Change], lost: u64) {
        if changes.is_empty() {
            return;
        }
        let (form, rank) = (self.config.form, self.config.rank);
        let batch = BatchEncoder { unix_seconds, changes, form, model: &self.model, rank };
        let payload = Bytes::from(batch.encode());
        let mut state = self.state.lock();
        state.next_sequence += u64::from(lost > 0);
        let sequence = state.next_sequence;
        state.next_sequence += 1;
        state.keep(Kept { sequence, payload: payload.clone() }, &self.config);
        let sent = state.disturbances.strike(payload, |payload| self.stream_message(sequence, payload));
        for message in sent {
            state.send(self.config.topic.as_bytes(), &message);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// As after a crash: numbers start over, the replay is empty, all connections are closed. Disturbances stay.
    pub(crate) fn restart(&self) {
        let mut state = self.state.lock();
        state.next_sequence = 0;
        state.ring.clear();
        state.ring_bytes = 0;
        state.disturbances.forget_held();
        drop(state);
        self.close();
    }

    pub(crate) fn disturb(&self, disturbance: Disturbance) {
        match disturbance {
            Disturbance::CloseConnections => self.close(),
            lasting => self.state.lock().disturbances.add(lasting),
        }
    }

    pub(crate) fn clear_disturbances(&self) {
        let mut state = self.state.lock();
        for message in state.disturbances.clear() {
            state.send(self.config.topic.as_bytes(), &message);
        }
    }

    pub(crate) fn stats(&self) -> PublisherStats {
        let state = self.state.lock();
        let topic = self.config.topic.as_bytes();
        PublisherStats {
            connections: state.connections,
            subscribers: state.subscribers.iter().filter(|it| it.wants(topic)).count(),
            batches: state.next_sequence,
            overflowed: state.overflowed,
            replays: state.replays,
        }
    }

    pub(crate) fn rank(&self) -> u32 {
        self.config.rank
    }

    /// vLLM's reply on `/kv_event_sources` for its one rank. vLLM publishes on all interfaces or not at all, so the
    /// star is always there: the reader already knows the host.
    pub(crate) fn source(&self) -> Value {
        let PublisherConfig { topic, buffer_steps, high_water_messages, .. } = &self.config;
        let replay = self.addrs.replay.map(|it| match it.ip().is_unspecified() {
            true => format!("tcp://*:{}", it.port()),
            false => format!("tcp://{it}"),
        });
        json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": format!("tcp://*:{}", self.addrs.stream.port()),
            "replay_endpoint": replay,
            "buffer_steps": buffer_steps,
            "hwm": high_water_messages,
            "max_queue_size": 100_000,
            "topic": topic,
        })
    }

    fn close(&self) {
        self.state.lock().subscribers.clear();
        self.closing.send_modify(|times| *times += 1);
        self.changed.notify_waiters();
    }

    fn stream_message(&self, sequence: u64, payload: &[u8]) -> Bytes {
        message(&[self.config.topic.as_bytes(), &sequence.to_be_bytes(), payload])
    }

    fn replay_message(&self, kept: &Kept) -> Bytes {
        let sequence = kept.sequence.to_be_bytes();
        let topic = match kept.sequence {
            END => "",
            _ => &self.config.topic,
        };
        match self.config.replay_shape {
            ReplayShape::WithTopic => message(&[b"", topic.as_bytes(), &sequence, &kept.payload]),
            ReplayShape::WithoutTopic => message(&[b"", &sequence, &kept.payload]),
        }
    }

    /// The reply to a request for everything from this number on, including the end mark; `None` for no reply.
    fn answer_replay(&self, from: u64) -> Option<Vec<Kept>> {
        let mut state = self.state.lock();
        state.replays += 1;
        let end = Kept { sequence: END, payload: Bytes::new() };
        let mut answer: Vec<Kept> = state.ring.iter().filter(|it| it.sequence >= from).cloned().collect();
        answer.push(end);
        let answer = state.disturbances.strike_replay(answer);
        drop(state);
        self.changed.notify_waiters();
        answer
    }
}

impl PublisherState {
    fn keep(&mut self, kept: Kept, config: &PublisherConfig) {
        self.ring_bytes += kept.payload.len();
        self.ring.push_back(kept);
        while self.ring.len() > config.buffer_steps || self.ring_bytes > config.buffer_bytes_max {
            let Some(oldest) = self.ring.pop_front() else { return };
            self.ring_bytes -= oldest.payload.len();
        }
    }

    fn send(&mut self, topic: &[u8], message: &Bytes) {
        for subscriber in self.subscribers.iter().filter(|it| it.wants(topic)) {
            if subscriber.queue.try_send(message.clone()).is_err() {
                self.overflowed += 1;
            }
        }
    }
}

impl Subscriber {
    fn wants(&self, topic: &[u8]) -> bool {
        self.topics.iter().any(|it| topic.starts_with(it))
    }
}

fn message(frames: &[&[u8]]) -> Bytes {
    let mut out = Vec::new();
    frame::put_message(frames, &mut out);
    out.into()
}

#[cfg(test)]
mod tests;
