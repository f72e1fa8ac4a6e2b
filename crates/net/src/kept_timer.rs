//! A timer that stays armed from one request to the next.
//!
//! Most requests are answered long before their limit. To make a timer, to enter it among the runtime's and to take it out
//! again costs each of them two locks, a reading of the clock, and all in all 320 instructions more than this. So a connection
//! keeps one: the first request arms it, and when it fires, mostly minutes later, it is set anew for what is left of the
//! request that waits then.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use maitre_base::Instant;
use tokio::time::{Sleep, sleep};

use crate::wake_gate::Gated;

/// A moment to wait for.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub now: Instant,
    pub left: Duration,
}

#[derive(Default)]
pub(crate) struct KeptTimer {
    armed: Option<Armed>,
}

struct Armed {
    sleep: Gated<Sleep>,
    /// When it fires.
    at: Instant,
}

impl KeptTimer {
    /// Ready when the limit is over.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, limit: Limit) -> Poll<()> {
        let due = limit.now + limit.left;
        // One that fires too late is of no use.
        let mut left = limit.left;
        while let Some(armed) = self.armed.as_mut().filter(|it| it.at <= due) {
            ready!(Pin::new(&mut armed.sleep).poll(cx));
            // It may have fired before this wait began.
            left = due.since(armed.at.max(limit.now));
            self.armed = None;
            if left.is_zero() {
                return Poll::Ready(());
            }
        }
        let armed = self.armed.insert(Armed { sleep: Gated::new(sleep(left)), at: due });
        ready!(Pin::new(&mut armed.sleep).poll(cx));
        self.armed = None;
        Poll::Ready(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use proptest::prelude::{prop, prop_assert_eq, proptest};
    use tokio::time;

    use super::*;

    /// When a wait of `left` that begins now ends, in milliseconds from the start; a wait is given up after `patience`.
    async fn wait(timer: &mut KeptTimer, start: time::Instant, (left, patience): (u64, u64)) -> u64 {
        let now = Instant::from_nanos(start.elapsed().as_nanos() as u64);
        let limit = Limit { now, left: Duration::from_millis(left) };
        let ended = poll_fn(|cx| timer.poll(cx, limit));
        let _ = time::timeout(Duration::from_millis(patience), ended).await;
        start.elapsed().as_millis() as u64
    }

    #[expect(clippy::disallowed_methods, reason = "the clock of a paused runtime")]
    fn began() -> time::Instant {
        time::Instant::now()
    }

    proptest! {
        /// A new timer for each wait is the oracle.
        #[test]
        fn every_wait_ends_at_its_own_limit(
            waits in prop::collection::vec((1_u64..1_000, 1_u64..1_500, 0_u64..2_000), 1..20),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let (start, mut kept) = (began(), KeptTimer::default());
                for (left, patience, pause) in waits {
                    time::sleep(Duration::from_millis(pause)).await;
                    let before = start.elapsed().as_millis() as u64;
                    let ended = wait(&mut kept, start, (left, patience)).await;
                    prop_assert_eq!(ended, before + left.min(patience), "{}, {}", left, patience);
                }
                Ok(())
            })?;
        }
    }
}
