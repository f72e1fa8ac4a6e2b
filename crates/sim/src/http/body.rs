//! The bodies we send: a text that is there already, or a stream that follows the engine.
//!
//! A stream yields one frame for each event, and the server turns each frame into one HTTP chunk. Dropping
//! a body, which is what happens when its client leaves, drops the ticket in it and so aborts the job.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};

use super::Open;
use super::answer::{Answer, Script};
use super::driver::{Seen, Ticket};

/// Room taken at once for the events of a stream: about a dozen of them.
const SCRATCH_BYTES: usize = 4096;

/// The connection is to be cut here.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut by an injected fault")]
pub(super) struct Cut;

pub(super) struct Body {
    content: Content,
    limit: Option<Limit>,
    /// The request is open until its body is gone.
    _open: Open,
}

enum Content {
    Whole(Bytes),
    Stream(Box<Stream>),
}

/// A fault in waiting: what happens after so many frames.
pub(super) struct Limit {
    pub(super) frames: u32,
    pub(super) then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Let what is written leave first.
    FlushAndClose,
    Close,
    Stall,
}

pub(super) struct Stream {
    ticket: Ticket,
    answer: Answer,
    script: Option<Script>,
    /// Events that are due, before the next token's.
    due: VecDeque<Bytes>,
    seen: Seen,
    sent_tokens: u32,
    scratch: BytesMut,
}

impl Body {
    pub(super) fn whole(content: impl Into<Bytes>, limit: Option<Limit>, open: Open) -> Body {
        Body { content: Content::Whole(content.into()), limit, _open: open }
    }

    pub(super) fn stream(stream: Box<Stream>, limit: Option<Limit>, open: Open) -> Body {
        Body { content: Content::Stream(stream), limit, _open: open }
    }
}

impl Limit {
    /// What happens instead of the next frame, once enough are sent.
    fn poll(&mut self, context: &mut Context<'_>) -> Option<Poll<Cut>> {
        if self.frames > 0 {
            return None;
        }
        Some(match self.then {
            Then::Stall => Poll::Pending,
            Then::Close => Poll::Ready(Cut),
            Then::FlushAndClose => {
                // The server writes its buffer out only when a body is not ready.
                self.then = Then::Close;
                context.waker().wake_by_ref();
                Poll::Pending
            }
        })
    }
}

impl Stream {
    pub(super) fn new(ticket: Ticket, answer: Answer) -> Stream {
        Stream {
            ticket,
            answer,
            script: None,
            due: VecDeque::new(),
            seen: Seen::default(),
            sent_tokens: 0,
            scratch: BytesMut::new(),
        }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(event) = self.due.pop_front() {
            return Poll::Ready(Some(event));
        }
        if self.sent_tokens == self.answer.tokens {
            return Poll::Ready(None);
        }
        if self.sent_tokens == self.seen.tokens {
            self.seen = ready!(self.ticket.poll_beyond(self.sent_tokens, context));
        }
        let event = match self.script.take() {
            Some(script) => self.next_token(script),
            None => self.open(),
        };
        Poll::Ready(Some(event))
    }

    /// The first event: of the opening, or of the first token where there is none.
    fn open(&mut self) -> Bytes {
        let mut script = self.answer.script(self.seen);
        self.due.extend(script.opening.drain(..).map(Bytes::from));
        match self.due.pop_front() {
            None => self.next_token(script),
            Some(event) => {
                self.script = Some(script);
                event
            }
        }
    }

    fn next_token(&mut self, script: Script) -> Bytes {
        if self.scratch.capacity() < script.before.len() + script.after_last.len() + 64 {
            self.scratch.reserve(SCRATCH_BYTES);
        }
        self.answer.put_token(&script, self.sent_tokens, &mut self.scratch);
        self.script = Some(script);
        self.sent_tokens += 1;
        if self.sent_tokens == self.answer.tokens {
            self.due.extend(self.answer.closing(self.seen).into_iter().map(Bytes::from));
        }
        self.scratch.split().freeze()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if let Some(instead) = self.limit.as_mut().and_then(|it| it.poll(context)) {
            return instead.map(|cut| Some(Err(cut)));
        }
        let event = match &mut self.content {
            Content::Whole(content) if content.is_empty() => None,
            Content::Whole(content) => Some(std::mem::take(content)),
            Content::Stream(stream) => ready!(stream.poll_event(context)),
        };
        if let Some(limit) = &mut self.limit {
            limit.frames -= 1;
        }
        Poll::Ready(event.map(|it| Ok(Frame::data(it))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, Content::Whole(content) if content.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(content) => SizeHint::with_exact(content.len() as u64),
            Content::Stream(_) => SizeHint::default(),
        }
    }
}
