//! The publisher's sockets: a PUB for the stream, a ROUTER for the replay, over TCP.
//!
//! Every connection is a task that ends with the listener that owns it. A subscriber has a queue of messages in front
//! of its socket. When that is full, messages for it are lost whole, as behind libzmq's high-water mark. A replay
//! waits for its reader instead: libzmq would lose the rest of it, which `Disturbance::CutReplay` simulates.

use std::io;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use maitre_zmtp::subscription::Subscription;
use maitre_zmtp::{Next, Role, ZmtpLimits, ZmtpPeer, greeting};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::{Publisher, Subscriber, TOPICS_MAX};
use crate::accept::accept;

/// What routers send is small: topics and numbers.
const LIMITS: ZmtpLimits = ZmtpLimits { message_bytes_max: 4096, frames_max: 8 };

const READ_BYTES: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Stream,
    Replay,
}

/// Serves one of the two sockets for ever.
pub(crate) async fn listen(listener: TcpListener, service: Service, publisher: Arc<Publisher>) {
    accept(listener, move |it| connection(it, service, Arc::clone(&publisher))).await;
}

async fn connection(mut stream: TcpStream, service: Service, publisher: Arc<Publisher>) {
    let _counted = ConnectionCount::new(Arc::clone(&publisher));
    let mut closing = publisher.closing.subscribe();
    let _ = stream.set_nodelay(true);
    let (reader, writer) = stream.split();
    // A disconnect or malformed data ends the connection; nothing is reported.
    tokio::select! {
        biased;
        _ = closing.changed() => {}
        _ = async {
            match service {
                Service::Stream => serve_stream(reader, writer, &publisher).await,
                Service::Replay => serve_replay(reader, writer, &publisher).await,
            }
        } => {}
    }
}

async fn serve_stream(
    reader: ReadHalf<'_>,
    mut writer: WriteHalf<'_>,
    publisher: &Arc<Publisher>,
) -> io::Result<()> {
    // At least our half of the handshake has to fit.
    let (queue, mut queued) = mpsc::channel(publisher.config.high_water_messages.max(1));
    let registration = Registration::new(Arc::clone(publisher), queue);
    writer.write_all(&greeting::OPENING).await?;
    let mut ear = Ear::new(reader, Role::Pub);
    let hear = async {
        loop {
            match ear.next().await? {
                Heard::Message(frames) => frames.iter().for_each(|it| registration.hear(it)),
                Heard::Reply(reply) => registration.reply(reply),
            }
        }
    };
    let send = async {
        while let Some(message) = queued.recv().await {
            writer.write_all(&message).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = hear => ended,
        ended = send => ended,
    }
}

async fn serve_replay(
    reader: ReadHalf<'_>,
    mut writer: WriteHalf<'_>,
    publisher: &Arc<Publisher>,
) -> io::Result<()> {
    writer.write_all(&greeting::OPENING).await?;
    let mut ear = Ear::new(reader, Role::Router);
    loop {
        let frames = match ear.next().await? {
            Heard::Message(frames) => frames,
            Heard::Reply(reply) => {
                writer.write_all(&reply).await?;
                continue;
            }
        };
        // Anything else is ignored, as by vLLM.
        let Some(from) = replay_request(&frames) else { continue };
        for kept in publisher.answer_replay(from).unwrap_or_default() {
            writer.write_all(&publisher.replay_message(&kept)).await?;
        }
    }
}

/// An empty frame, and the number to begin with. vLLM reads numbers of any width.
fn replay_request(frames: &[Bytes]) -> Option<u64> {
    let [_, number] = frames else { return None };
    let mut padded = [0; 8];
    let start = padded.len().checked_sub(number.len())?;
    padded[start..].copy_from_slice(number);
    Some(u64::from_be_bytes(padded))
}

/// The reading half of a connection.
struct Ear<'a> {
    reader: ReadHalf<'a>,
    peer: ZmtpPeer,
    buffer: BytesMut,
    frames: Vec<Bytes>,
}

enum Heard {
    Message(Vec<Bytes>),
    /// A request, and the reply to it.
    Reply(Vec<u8>),
}

impl<'a> Ear<'a> {
    fn new(reader: ReadHalf<'a>, ours: Role) -> Ear<'a> {
        Ear { reader, peer: ZmtpPeer::new(ours, LIMITS), buffer: BytesMut::new(), frames: Vec::new() }
    }

    async fn next(&mut self) -> io::Result<Heard> {
        loop {
            match self.peer.next(&self.buffer).map_err(io::Error::other)? {
                Next::Wait { .. } => {
                    self.buffer.reserve(READ_BYTES);
                    if self.reader.read_buf(&mut self.buffer).await? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Next::Handled { bytes, reply } => {
                    self.buffer.advance(bytes);
                    if !reply.is_empty() {
                        return Ok(Heard::Reply(reply));
                    }
                }
                Next::Frame { head_bytes, body_bytes, is_last } => {
                    self.buffer.advance(head_bytes);
                    self.frames.push(self.buffer.split_to(body_bytes).freeze());
                    if is_last {
                        return Ok(Heard::Message(std::mem::take(&mut self.frames)));
                    }
                }
            }
        }
    }
}

/// A connection counts as open until this is dropped.
struct ConnectionCount(Arc<Publisher>);

impl ConnectionCount {
    fn new(publisher: Arc<Publisher>) -> ConnectionCount {
        publisher.state.lock().connections += 1;
        publisher.changed.notify_waiters();
        ConnectionCount(publisher)
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.state.lock().connections -= 1;
        self.0.changed.notify_waiters();
    }
}

/// A subscriber's registration, removed when this is dropped.
struct Registration {
    publisher: Arc<Publisher>,
    id: u64,
}

impl Registration {
    fn new(publisher: Arc<Publisher>, queue: mpsc::Sender<Bytes>) -> Registration {
        let mut state = publisher.state.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.subscribers.push(Subscriber { id, topics: Vec::new(), queue });
        drop(state);
        Registration { publisher, id }
    }

    fn hear(&self, frame: &[u8]) {
        self.with_subscriber(|subscriber| match Subscription::parse(frame) {
            Some(Subscription::Add(topic)) if subscriber.topics.len() < TOPICS_MAX => {
                subscriber.topics.push(topic.to_vec());
            }
            Some(Subscription::Remove(topic)) => {
                let place = subscriber.topics.iter().position(|it| it == topic);
                place.map(|it| subscriber.topics.swap_remove(it));
            }
            Some(Subscription::Add(_)) | None => {}
        });
        self.publisher.changed.notify_waiters();
    }

    /// Queues a reply to the peer; dropped if the peer does not read.
    fn reply(&self, reply: Vec<u8>) {
        self.with_subscriber(|subscriber| {
            let _ = subscriber.queue.try_send(reply.into());
        });
    }

    fn with_subscriber(&self, change: impl FnOnce(&mut Subscriber)) {
        let mut state = self.publisher.state.lock();
        state.subscribers.iter_mut().find(|it| it.id == self.id).map(change);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.publisher.state.lock().subscribers.retain(|it| it.id != self.id);
        self.publisher.changed.notify_waiters();
    }
}
