//! The two steps of a shutdown: first the router reports that it is not ready, then it closes connections.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};

#[derive(Default)]
pub(crate) struct Shutdown {
    draining: CancellationToken,
    closing: CancellationToken,
    /// Whether that is cancelled. Asked for each request, and a token would be asked under its lock.
    is_closing: AtomicBool,
}

impl Shutdown {
    /// From now on the router reports that it is not ready. It still serves every request.
    pub(crate) fn drain(&self) {
        self.draining.cancel();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Resolves once the router is not ready because it stops.
    pub(crate) fn draining(&self) -> WaitForCancellationFuture<'_> {
        self.draining.cancelled()
    }

    /// From now on no connection is accepted, and open ones end with the requests that are in flight on them.
    pub(crate) fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
        self.closing.cancel();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// Resolves once connections are to be closed.
    pub(crate) fn closing(&self) -> WaitForCancellationFuture<'_> {
        self.closing.cancelled()
    }
}
