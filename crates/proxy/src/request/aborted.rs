//! Whether a worker gave up the answer that has just begun. The client has nothing of it, so another worker can give one.
//!
//! An answer in one piece is complete when it begins, and says so at its end. A stream says it in its first bytes, if the worker
//! was shutting down when the request came; one that is given up later is `continuation`'s.

use std::time::Duration;

use bytes::BytesMut;
use maitre_dialect::abort::is_aborted;
use maitre_dialect::route::Route;
use tokio::time::timeout;

use super::exchange::StartedResponse;

/// The longest answer that is read to its end first. Chosen: sixty thousand tokens.
const ANSWER_BYTES_MAX: u64 = 256 << 10;

/// How long the rest of it may take: it has been sent already.
const REST_TIME: Duration = Duration::from_secs(1);

/// Reads an answer in one piece to its end, if it is not too long, and looks for the reason of it.
pub(super) async fn was_aborted(started: &mut StartedResponse) -> bool {
    let decodes = started.form.route.is_some_and(Route::decodes) && started.head.status.is_success();
    if !decodes {
        return false;
    }
    if !started.is_stream
        && started.upstream.bytes_left().is_some_and(|it| (1..=ANSWER_BYTES_MAX).contains(&it))
    {
        read_rest(started).await;
    }
    started.first.as_deref().is_some_and(is_aborted)
}

/// What does not come, or breaks off, is left for the response to find out.
async fn read_rest(started: &mut StartedResponse) {
    let mut body = BytesMut::from(started.first.take().unwrap_or_default());
    let read = async {
        while let Some(Ok(chunk)) = started.upstream.chunk().await {
            body.extend_from_slice(&chunk);
        }
    };
    let _ = timeout(REST_TIME, read).await;
    started.first = Some(body.freeze());
}
