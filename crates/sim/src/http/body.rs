//! Response bodies: a complete text, or a stream that follows the engine.
//!
//! A stream yields one frame for each event, and the server turns each frame into one HTTP chunk. When a client
//! disconnects, its body is dropped, and with it the ticket, which aborts the job.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};

use super::OpenGuard;
use super::answer::{PlannedAnswer, StreamTemplate};
use super::driver::{AnswerEnd, AnswerProgress, Ticket};

/// Buffer allocated at once for the events of a stream: about a dozen.
const SCRATCH_BYTES: usize = 4096;

/// The connection must be closed here.
#[derive(Debug, thiserror::Error)]
#[error("the connection is cut by an injected fault")]
pub(super) struct ConnectionCut;

pub(super) struct Body {
    content: BodyContent,
    limit: Option<BodyLimit>,
    /// The request counts as open until its body is dropped.
    _open: OpenGuard,
}

enum BodyContent {
    Whole(Bytes),
    EventStream(Box<EventStream>),
}

/// A pending fault: what happens after this much of a body.
pub(super) struct BodyLimit {
    pub(super) left: BodyPart,
    pub(super) then: AfterLimit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyPart {
    Frames(u32),
    Bytes(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterLimit {
    /// Flush first, then close.
    FlushAndClose,
    Close,
    Stall,
}

pub(super) struct EventStream {
    ticket: Ticket,
    answer: PlannedAnswer,
    template: Option<StreamTemplate>,
    /// Events to send before the next token's.
    due: VecDeque<Bytes>,
    progress: AnswerProgress,
    sent_tokens: u32,
    scratch: BytesMut,
}

impl Body {
    pub(super) fn whole(content: impl Into<Bytes>, limit: Option<BodyLimit>, open: OpenGuard) -> Body {
        Body { content: BodyContent::Whole(content.into()), limit, _open: open }
    }

    pub(super) fn stream(stream: Box<EventStream>, limit: Option<BodyLimit>, open: OpenGuard) -> Body {
        Body { content: BodyContent::EventStream(stream), limit, _open: open }
    }
}

impl BodyLimit {
    /// What happens instead of the next frame once the limit is reached.
    fn poll(&mut self, context: &mut Context<'_>) -> Option<Poll<ConnectionCut>> {
        if !matches!(self.left, BodyPart::Frames(0) | BodyPart::Bytes(0)) {
            return None;
        }
        Some(match self.then {
            AfterLimit::Stall => Poll::Pending,
            AfterLimit::Close => Poll::Ready(ConnectionCut),
            AfterLimit::FlushAndClose => {
                // The server flushes its buffer only when a body is pending.
                self.then = AfterLimit::Close;
                context.waker().wake_by_ref();
                Poll::Pending
            }
        })
    }
}

impl BodyLimit {
    /// The part of a frame that still goes out.
    fn take(&mut self, mut frame: Bytes) -> Bytes {
        match &mut self.left {
            BodyPart::Frames(left) => *left -= 1,
            BodyPart::Bytes(left) => {
                frame.truncate(*left);
                *left -= frame.len();
            }
        }
        frame
    }
}

impl EventStream {
    pub(super) fn new(ticket: Ticket, answer: PlannedAnswer) -> EventStream {
        EventStream {
            ticket,
            answer,
            template: None,
            due: VecDeque::new(),
            progress: AnswerProgress::default(),
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
        if self.sent_tokens == self.progress.tokens {
            self.progress = ready!(self.ticket.poll_beyond(self.sent_tokens, context));
        }
        if self.progress.end == Some(AnswerEnd::Failed) {
            self.sent_tokens = self.answer.tokens;
            self.due.extend(self.answer.failure(self.progress).into_iter().map(Bytes::from));
            return Poll::Ready(self.due.pop_front());
        }
        let event = match self.template.take() {
            Some(template) => self.next_token(template),
            None => self.open(),
        };
        Poll::Ready(Some(event))
    }

    /// The first event: that of the opening, or that of the first token if there is no opening.
    fn open(&mut self) -> Bytes {
        self.answer.begin(self.progress);
        let mut template = self.answer.template(self.progress);
        self.due.extend(template.opening.drain(..).map(Bytes::from));
        match self.due.pop_front() {
            None => self.next_token(template),
            Some(event) => {
                self.template = Some(template);
                event
            }
        }
    }

    fn next_token(&mut self, template: StreamTemplate) -> Bytes {
        if self.scratch.capacity() < template.before.len() + template.after_last.len() + 64 {
            self.scratch.reserve(SCRATCH_BYTES);
        }
        self.answer.put_token(&template, self.sent_tokens, &mut self.scratch);
        self.template = Some(template);
        self.sent_tokens += 1;
        if self.sent_tokens == self.answer.tokens {
            self.due.extend(self.answer.closing(self.progress).into_iter().map(Bytes::from));
        }
        self.scratch.split().freeze()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = ConnectionCut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionCut>>> {
        if let Some(instead) = self.limit.as_mut().and_then(|it| it.poll(context)) {
            return instead.map(|cut| Some(Err(cut)));
        }
        let event = match &mut self.content {
            BodyContent::Whole(content) if content.is_empty() => None,
            BodyContent::Whole(content) => Some(std::mem::take(content)),
            BodyContent::EventStream(stream) => ready!(stream.poll_event(context)),
        };
        let event = match &mut self.limit {
            Some(limit) => event.map(|it| limit.take(it)),
            None => event,
        };
        Poll::Ready(event.map(|it| Ok(Frame::data(it))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(&self.content, BodyContent::Whole(content) if content.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            BodyContent::Whole(content) => SizeHint::with_exact(content.len() as u64),
            BodyContent::EventStream(_) => SizeHint::default(),
        }
    }
}
