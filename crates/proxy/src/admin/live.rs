//! The event stream: the overview each second, decisions as they are made and as they end.
//!
//! The connection drives the stream: without a reader nothing is computed, and a slow reader gets fewer events.

use std::fmt::Write as _;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{AdminBody, decisions, is_operator, view};
use crate::secret::Secret;
use crate::state::RouterState;

/// Between two looks at the decisions; the overview comes with every other one.
const EVERY: Duration = Duration::from_millis(500);

pub(crate) struct Live {
    router: Arc<RouterState>,
    /// The key it was opened with: a stream can outlast its key.
    key: Secret,
    /// One of `STREAMS_MAX`.
    _permit: OwnedSemaphorePermit,
    ticks: Interval,
    turn: u64,
    /// Of the last decision that was sent.
    revision: u64,
}

pub(super) fn begin(
    router: &Arc<RouterState>,
    key: Secret,
    permit: OwnedSemaphorePermit,
) -> Response<AdminBody> {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let revision = decisions::revision(router);
    let live = Live { router: router.clone(), key, _permit: permit, ticks, turn: 0, revision };
    let mut response = Response::new(AdminBody::Live(Box::new(live)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Live {
    /// The next events; none once the router stops, or the key is no longer valid.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            ready!(self.ticks.poll_tick(cx));
            if self.router.shutdown.is_closing() || !is_operator(&self.router, &self.key) {
                return Poll::Ready(None);
            }
            let mut events = String::new();
            if self.turn.is_multiple_of(2) {
                event(&mut events, "overview", &view::overview(&self.router));
            }
            if let Some(changes) = decisions::changes(&self.router, &mut self.revision) {
                event(&mut events, "decisions", &changes);
            }
            self.turn += 1;
            if !events.is_empty() {
                return Poll::Ready(Some(Bytes::from(events)));
            }
        }
    }
}

/// `name` is a field of `LiveEvents`.
fn event(out: &mut String, name: &str, data: &impl Serialize) {
    // Views always serialize, without line breaks; writing to a string cannot fail.
    let data = serde_json::to_string(data).unwrap_or_default();
    let _ = write!(out, "event: {name}\ndata: {data}\n\n");
}
