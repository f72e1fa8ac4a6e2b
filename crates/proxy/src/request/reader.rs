//! What is read of a response while it passes: its first chunk, its tokens, its usage, its end.

use bytes::Bytes;
use http::StatusCode;
use maitre_base::Instant;
use maitre_dialect::sse::Tracker;
use maitre_dialect::usage::{Finder, Usage};

use super::guard::RequestGuard;
use crate::link::Link;
use crate::outcome::RequestOutcome;
use crate::refuse;

pub(super) struct ResponseReader {
    /// Only for event streams.
    pub(super) events: Option<Tracker>,
    usage: Option<Finder>,
    /// What the request counts as if the response is complete.
    pub(super) outcome: RequestOutcome,
    /// When the last bytes were read, comments included.
    pub(super) heard: Instant,
}

impl ResponseReader {
    /// A response of a worker begins.
    pub(super) fn new(guard: &mut RequestGuard, status: StatusCode, is_stream: bool) -> ResponseReader {
        guard.responded(status);
        // An error is passed on as it is, whatever its form.
        let has_events = status.is_success() && is_stream;
        let events = guard.route().filter(|_| has_events).map(Tracker::new);
        let usage = guard.route().map(Finder::new);
        let outcome = refuse::outcome(status);
        if events.is_some() && outcome == RequestOutcome::Answered {
            guard.streams();
        }
        ResponseReader { events, usage, outcome, heard: Instant::ZERO }
    }

    /// Counts a chunk that goes to the client.
    pub(super) fn feed(&mut self, guard: &mut RequestGuard, link: &Link, chunk: &Bytes) {
        let now = guard.lane.state.clock.now();
        self.heard = now;
        link.hear(now);
        if let Some(usage) = &mut self.usage {
            usage.feed(chunk);
        }
        // SSE comments keep a connection alive; they are no tokens.
        if self.events.as_mut().is_none_or(|it| it.feed(chunk)) {
            guard.chunk(now, self.outcome);
        }
    }

    pub(super) fn take_usage(&mut self) -> Option<Usage> {
        self.usage.take().and_then(Finder::finish)
    }

    /// How the request ends if the response has ended.
    pub(super) fn outcome_at_end(&self) -> RequestOutcome {
        let is_whole = self.events.as_ref().is_none_or(Tracker::ended);
        if is_whole { self.outcome } else { RequestOutcome::Broke }
    }
}
