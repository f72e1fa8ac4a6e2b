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
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(super) enum Reply {
    Yes,
    /// Not this engine, or not this request.
    No,
}

impl Reply {
    pub(super) fn content(&self) -> Content {
        if *self == Reply::Yes { Content::Right } else { Content::Wrong }
    }
}

/// Answers every message until the other end leaves.
pub(super) async fn serve(stream: TcpStream, mut answer: impl FnMut(Message) -> Reply) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    stream.get_ref().set_nodelay(true)?;
    while let Some(line) = read_line(&mut stream).await? {
        let reply = answer(serde_json::from_slice(&line)?);
        write_line(&mut stream, &reply).await?;
    }
    Ok(())
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
