//! The side channel's messages: one JSON object a line, a question and its answer.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::engine::transfer::Content;

/// A list of the block names of a prompt of three million tokens.
const LINE_BYTES_MAX: u64 = 4 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(super) enum Message {
    /// Are you this engine?
    Handshake { engine_id: String },
    /// I read the blocks of this request, which should be those of the prompt with this seed.
    Read { request_id: String, seed: u64 },
    /// I still need them.
    Heartbeat { request_id: String },
    /// I need them no more.
    Done { request_id: String },
    /// How many of these blocks do you have, up to the first that you have not?
    Lookup { names: Vec<u64> },
    /// I wait in this room for the KV of the prompt with this seed.
    Join { room: u64, seed: u64 },
    /// I have it all.
    Leave,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(super) enum Reply {
    Yes,
    /// Not this engine, or not this request.
    No,
    Found {
        blocks: u32,
    },
}

impl Reply {
    pub(super) fn content(&self) -> Content {
        if *self == Reply::Yes { Content::Right } else { Content::Wrong }
    }
}

/// A connection from another engine.
pub(super) struct ServerChannel {
    stream: BufReader<TcpStream>,
}

impl ServerChannel {
    pub(super) fn new(stream: TcpStream) -> io::Result<ServerChannel> {
        stream.set_nodelay(true)?;
        Ok(ServerChannel { stream: BufReader::new(stream) })
    }

    /// The next message, or none once the other end has gone.
    pub(super) async fn next(&mut self) -> io::Result<Option<Message>> {
        let line = read_line(&mut self.stream).await?;
        Ok(line.map(|it| serde_json::from_slice(&it)).transpose()?)
    }

    pub(super) async fn reply(&mut self, reply: &Reply) -> io::Result<()> {
        write_line(&mut self.stream, reply).await
    }

    /// Returns when the other end has gone: it says nothing before it has its reply.
    pub(super) async fn closed(&mut self) {
        let _ = self.stream.fill_buf().await;
    }
}

/// A connection to another engine's side channel.
pub(super) struct SideChannel {
    stream: BufReader<TcpStream>,
    /// The longest that one answer may take.
    patience: Duration,
}

impl SideChannel {
    pub(super) async fn open(host: &str, port: u16, patience: Duration) -> io::Result<SideChannel> {
        let stream = tokio::time::timeout(patience, TcpStream::connect((host, port))).await??;
        stream.set_nodelay(true)?;
        Ok(SideChannel { stream: BufReader::new(stream), patience })
    }

    pub(super) async fn ask(&mut self, message: &Message) -> io::Result<Reply> {
        let exchange = async {
            write_line(&mut self.stream, message).await?;
            let line = read_line(&mut self.stream).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok(serde_json::from_slice(&line)?)
        };
        tokio::time::timeout(self.patience, exchange).await?
    }

    /// Returns when the other end has gone: it says nothing unasked.
    pub(super) async fn closed(&mut self) {
        let _ = self.stream.fill_buf().await;
    }
}

async fn read_line(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    stream.take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

async fn write_line(stream: &mut BufReader<TcpStream>, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    stream.get_mut().write_all(&line).await
}
