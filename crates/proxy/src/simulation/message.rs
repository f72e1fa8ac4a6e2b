//! HTTP/1.1 by hand, for both kinds of peers of the router.

use std::time::Duration;

use maitre_net::simulated::SimulatedStream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::sleep;

/// A connection, and the bytes that were read from it and not used.
pub(super) struct Peer {
    pub(super) stream: SimulatedStream,
    pub(super) unused: Vec<u8>,
    /// Before each read.
    pub(super) pause: Duration,
}

pub(super) struct MessageHead {
    pub(super) start: String,
    headers: Vec<(String, String)>,
}

/// A body, as far as it came.
pub(super) struct MessageBody {
    pub(super) bytes: Vec<u8>,
    pub(super) is_complete: bool,
}

impl MessageHead {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|it| it.0 == name).map(|it| it.1.as_str())
    }

    /// Of a response.
    pub(super) fn status(&self) -> u16 {
        self.start.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0)
    }
}

impl Peer {
    pub(super) fn new(stream: SimulatedStream) -> Peer {
        Peer { stream, unused: Vec::new(), pause: Duration::ZERO }
    }

    /// Reads more. False at the end, or if the connection broke.
    async fn fill(&mut self) -> bool {
        if !self.pause.is_zero() {
            sleep(self.pause).await;
        }
        let mut bytes = [0; 1_024];
        match self.stream.read(&mut bytes).await {
            Ok(0) | Err(_) => false,
            Ok(length) => {
                self.unused.extend_from_slice(&bytes[..length]);
                true
            }
        }
    }

    /// Takes everything up to and with `end`. None if the connection ends before. Loses nothing if dropped.
    async fn take_until(&mut self, end: &[u8]) -> Option<String> {
        loop {
            if let Some(at) = self.unused.windows(end.len()).position(|it| it == end) {
                let taken: Vec<u8> = self.unused.drain(..at + end.len()).collect();
                return Some(String::from_utf8_lossy(&taken).into_owned());
            }
            if !self.fill().await {
                return None;
            }
        }
    }

    /// Appends `length` bytes to the body. False if the connection ends before.
    async fn take(&mut self, length: usize, body: &mut Vec<u8>) -> bool {
        while self.unused.len() < length {
            if !self.fill().await {
                body.append(&mut self.unused);
                return false;
            }
        }
        body.extend(self.unused.drain(..length));
        true
    }

    /// The next head; None if the connection ends before.
    pub(super) async fn head(&mut self) -> Option<MessageHead> {
        let text = self.take_until(b"\r\n\r\n").await?;
        let mut lines = text.lines();
        let start = lines.next()?.to_owned();
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        Some(MessageHead { start, headers: lines.filter_map(header).collect() })
    }

    /// The body of the head. Without a length and chunks there is none.
    pub(super) async fn body(&mut self, head: &MessageHead) -> MessageBody {
        let mut bytes = Vec::new();
        let is_complete = match head.header("content-length") {
            Some(length) => self.take(length.parse().unwrap(), &mut bytes).await,
            None if head.header("transfer-encoding").is_some() => self.take_chunks(&mut bytes).await,
            None => true,
        };
        MessageBody { bytes, is_complete }
    }

    async fn take_chunks(&mut self, body: &mut Vec<u8>) -> bool {
        loop {
            let Some(line) = self.take_until(b"\r\n").await else { return false };
            let length = usize::from_str_radix(line.trim(), 16).unwrap();
            let is_here = self.take(length, body).await;
            if !is_here || self.take_until(b"\r\n").await.is_none() {
                return false;
            }
            if length == 0 {
                return true;
            }
        }
    }

    /// Whether everything was written.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }
}

/// One chunk of a chunked body.
pub(super) fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

/// The number after the name, as in `"r":17`.
pub(super) fn number_after(text: &str, name: &str) -> Option<u32> {
    let rest = &text[text.find(name)? + name.len()..];
    rest.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
}
