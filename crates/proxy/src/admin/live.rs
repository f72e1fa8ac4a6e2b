//! The event stream behind the page: the overview each second, decisions as they are made and as they end.
//!
//! Nothing runs for a page that nobody has open: the stream is driven by its connection alone, and what a slow reader
//! does not take is not made.

use std::fmt::Write as _;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{Out, decisions, is_operator, view};
use crate::house::RouterState;
use crate::secret::Secret;

/// Between two looks at the decisions; the overview comes with every other one.
const EVERY: Duration = Duration::from_millis(500);

pub(crate) struct Live {
    house: Arc<RouterState>,
    /// What was shown for it: a stream lasts for hours, and its key may not.
    key: Secret,
    /// One of the few places for streams.
    _place: OwnedSemaphorePermit,
    ticks: Interval,
    turn: u64,
    /// How far it has told of decisions.
    told: u64,
}

pub(super) fn begin(house: &Arc<RouterState>, key: Secret, place: OwnedSemaphorePermit) -> Response<Out> {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let told = decisions::revision(house);
    let live = Live { house: house.clone(), key, _place: place, ticks, turn: 0, told };
    let mut response = Response::new(Out::Live(Box::new(live)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Live {
    /// The next events; none once the house closes, or the key that was shown is no longer the one.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            ready!(self.ticks.poll_tick(cx));
            if self.house.closing.is_cancelled() || !is_operator(&self.house, &self.key) {
                return Poll::Ready(None);
            }
            let mut events = String::new();
            if self.turn.is_multiple_of(2) {
                event(&mut events, "overview", &view::overview(&self.house));
            }
            if let Some(news) = decisions::news(&self.house, &mut self.told) {
                event(&mut events, "decisions", &news);
            }
            self.turn += 1;
            if !events.is_empty() {
                return Poll::Ready(Some(Bytes::from(events)));
            }
        }
    }
}

fn event(out: &mut String, name: &str, data: &Value) {
    // Writing to a string cannot fail, and JSON has no line breaks.
    let _ = write!(out, "event: {name}\ndata: {data}\n\n");
}
