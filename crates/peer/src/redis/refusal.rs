//! Refused entries and frames: counted each time, logged once a minute per cause.

use super::clock::Instant;
use crate::seal::SealError;
use std::time::Duration;

/// Interval between two log lines of one cause.
pub(super) const LOG_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RefusalCause {
    #[error("{0}")]
    SealError(#[from] SealError),
    #[error("it exceeds the frame size limit")]
    TooLong,
    #[error("it is not an entry of a router; another program writes to this stream")]
    Malformed,
    #[error("its snapshot is truncated or too long")]
    Snapshot,
    #[error("the key of its snapshot has the wrong type; another program uses the same names")]
    Type,
    #[error("this router's own frame exceeds the size limit; please report it")]
    OwnTooLong,
    #[error("this router's snapshot exceeds the size limit and was shortened")]
    OwnSnapshot,
}

/// When each cause was last logged; at most one entry per cause.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    causes: Vec<(RefusalCause, Instant)>,
    last: Option<Instant>,
}

impl RefusalLog {
    /// Whether to log this cause now.
    pub(super) fn should_log(&mut self, cause: RefusalCause, now: Instant) -> bool {
        self.last = Some(now);
        match self.causes.iter_mut().find(|(it, _)| *it == cause) {
            Some((_, since)) if now.duration_since(*since) < LOG_INTERVAL => false,
            Some((_, since)) => {
                *since = now;
                true
            }
            None => {
                self.causes.push((cause, now));
                true
            }
        }
    }

    /// Whether the last refusal is so long ago that it no longer counts as trouble. True once.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        self.last.take_if(|last| now.duration_since(*last) >= LOG_INTERVAL).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::clock;

    #[test]
    fn each_cause_is_logged_once_a_minute() {
        let (now, mut refusal_log) = (clock::now(), RefusalLog::default());
        let second = Duration::from_secs(1);
        assert!(refusal_log.should_log(RefusalCause::Malformed, now));
        assert!(refusal_log.should_log(RefusalCause::TooLong, now));
        assert!(!refusal_log.should_log(RefusalCause::Malformed, now + 59 * second));
        assert!(refusal_log.should_log(RefusalCause::Malformed, now + 60 * second));
        assert!(!refusal_log.is_over(now + 61 * second));
        assert!(refusal_log.is_over(now + 120 * second));
        assert!(!refusal_log.is_over(now + 121 * second));
    }
}
