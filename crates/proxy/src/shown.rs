//! What a gateway shows of one HTTP exchange: the messages of its stream, in order.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use maitre_grpc::ext_proc::{ProcessingRequest, Shown};
use tokio_stream::Stream as _;
use tonic::Streaming;

pub(crate) struct ShownStream {
    messages: Streaming<ProcessingRequest>,
    /// Came while nothing was expected.
    ahead: Option<ProcessingRequest>,
    /// The request ended with trailers, which want an answer of their own.
    pub(crate) has_trailers: bool,
}

impl ShownStream {
    pub(crate) fn new(messages: Streaming<ProcessingRequest>) -> ShownStream {
        ShownStream { messages, ahead: None, has_trailers: false }
    }

    /// None: the stream has ended, or has broken, which is the same to us: the exchange is over.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<ProcessingRequest>> {
        if let Some(ahead) = self.ahead.take() {
            return Poll::Ready(Some(ahead));
        }
        Pin::new(&mut self.messages).poll_next(cx).map(|it| it?.ok())
    }

    pub(crate) async fn next(&mut self) -> Option<ProcessingRequest> {
        poll_fn(|cx| self.poll_message(cx)).await
    }

    /// Resolves when the gateway has ended the stream, as it does when the client leaves. A message that comes first is
    /// kept, and ends the watch.
    pub(crate) async fn ended(&mut self) {
        poll_fn(|cx| {
            if self.ahead.is_none() {
                match ready!(self.poll_message(cx)) {
                    Some(message) => self.ahead = Some(message),
                    None => return Poll::Ready(()),
                }
            }
            Poll::Pending
        })
        .await;
    }
}

/// The body of the request, piece by piece.
pub(crate) struct ShownBody<'a> {
    stream: &'a mut ShownStream,
    is_ended: bool,
}

/// The stream ended, or went on with something else, before the body was complete.
#[derive(Debug, thiserror::Error)]
#[error("the request body is incomplete")]
pub(crate) struct BodyCut;

impl ShownBody<'_> {
    pub(crate) fn new(stream: &mut ShownStream, is_ended: bool) -> ShownBody<'_> {
        ShownBody { stream, is_ended }
    }
}

impl Body for ShownBody<'_> {
    type Data = Bytes;
    type Error = BodyCut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyCut>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        let message = ready!(self.stream.poll_message(cx));
        Poll::Ready(match message.and_then(|it| it.shown) {
            Some(Shown::RequestBody(piece)) => {
                self.is_ended = piece.end_of_stream;
                Some(Ok(Frame::data(piece.body)))
            }
            Some(Shown::RequestTrailers(_)) => {
                (self.is_ended, self.stream.has_trailers) = (true, true);
                None
            }
            _ => Some(Err(BodyCut)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended
    }

    fn size_hint(&self) -> SizeHint {
        if self.is_ended { SizeHint::with_exact(0) } else { SizeHint::new() }
    }
}
