//! A limit on the time of a future that mostly need not wait.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::error::Elapsed;
use tokio::time::timeout;

/// The output of a future, if it is there within the limit. A timer is made only if the future waits: most bodies of
/// requests have arrived with their heads, and so have those of responses. A timer costs 500 instructions and a reading of
/// the clock.
pub(super) async fn within<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    match poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => timeout(limit, future).await,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::sleep;

    use super::*;
    use crate::clock::Clock;

    #[tokio::test(start_paused = true)]
    async fn what_is_ready_or_comes_in_time_is_returned_and_the_rest_is_given_up() {
        let limit = Duration::from_secs(5);
        assert_eq!(within(Duration::ZERO, ready(1)).await.ok(), Some(1));
        assert_eq!(within(limit, async { sleep(limit / 2).await }).await.ok(), Some(()));
        let clock = Clock::start();
        assert!(within(limit, pending::<()>()).await.is_err());
        assert_eq!(clock.now().since(maitre_base::Instant::ZERO).as_secs(), 5);
    }
}
