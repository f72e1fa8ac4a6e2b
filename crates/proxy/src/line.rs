//! One connection to a worker, driven by whoever uses it.
//!
//! hyper splits a client connection into a handle and a future that moves the bytes, and expects the
//! future to run as a task of its own. Here the request that holds the line polls both: a chunk wakes
//! one task instead of two, and a request that is dropped takes its connection with it, which is what
//! tells the engine to stop.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use maitre_base::Instant;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::address::Address;

/// Largest head of a worker's answer.
const HEAD_BYTES_MAX: usize = 64 << 10;

pub(crate) struct Line {
    sender: SendRequest<Full<Bytes>>,
    /// Boxed, because it is more than a kilobyte and a line changes hands five times a request: moving it
    /// was a tenth of all instructions.
    connection: Box<Connection<TokioIo<TcpStream>, Full<Bytes>>>,
    over: bool,
    /// It has carried an exchange before: the worker may close it at the moment we use it again.
    pub(crate) reused: bool,
    pub(crate) idle_since: Instant,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Unopened {
    #[error("connection refused: {0}")]
    Refused(io::Error),
    #[error("no connection after {0:?}")]
    TimedOut(Duration),
}

impl Line {
    pub(crate) async fn open(address: &Address, patience: Duration) -> Result<Line, Unopened> {
        let connecting = TcpStream::connect((address.host(), address.port()));
        let stream = timeout(patience, connecting).await.map_err(|_| Unopened::TimedOut(patience))?;
        let stream = stream.map_err(Unopened::Refused)?;
        // A lost option costs latency, not correctness.
        let _ = stream.set_nodelay(true);
        let shaken =
            http1::Builder::new().max_header_size(HEAD_BYTES_MAX).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|it| Unopened::Refused(io::Error::other(it)))?;
        let connection = Box::new(connection);
        Ok(Line { sender, connection, over: false, reused: false, idle_since: Instant::ZERO })
    }

    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        let mut answer = pin!(self.sender.send_request(request));
        poll_fn(|cx| {
            drive(&mut self.connection, &mut self.over, cx);
            answer.as_mut().poll(cx)
        })
        .await
    }

    /// The next piece of the answer's body.
    pub(crate) fn poll_body(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        // Only the connection can fill the body, and only we drive the connection: the socket's waker is
        // the one that matters, the body's would wake us a second time for the same bytes.
        let deaf = &mut Context::from_waker(Waker::noop());
        if let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(deaf) {
            return Poll::Ready(frame);
        }
        drive(&mut self.connection, &mut self.over, cx);
        Pin::new(body).poll_frame(if self.over { cx } else { deaf })
    }

    /// The body as hyper's tools want it, driven by this line.
    pub(crate) fn body<'a>(&'a mut self, body: &'a mut Incoming) -> Driven<'a> {
        Driven { line: self, body }
    }

    /// Whether another request may be sent: the last answer was read to its end and the worker keeps
    /// the connection open.
    pub(crate) fn settle(&mut self) -> bool {
        drive(&mut self.connection, &mut self.over, &mut Context::from_waker(Waker::noop()));
        self.reused = true;
        !self.over && self.sender.is_ready()
    }
}

/// An answer's body together with the line that brings it.
pub(crate) struct Driven<'a> {
    line: &'a mut Line,
    body: &'a mut Incoming,
}

impl Body for Driven<'_> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        this.line.poll_body(this.body, cx)
    }
}

fn drive(
    connection: &mut Connection<TokioIo<TcpStream>, Full<Bytes>>,
    over: &mut bool,
    cx: &mut Context<'_>,
) {
    // An error reaches whoever waits for the answer or its body; here it only ends the line.
    if !*over && Pin::new(connection).poll(cx).is_ready() {
        *over = true;
    }
}
