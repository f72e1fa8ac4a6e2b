//! What was found in Redis, or given to us, and not believed: counted each time, told once a minute.

use super::clock::Instant;
use crate::seal::Unsealed;
use std::time::Duration;

/// The same cause is not told again so soon.
pub(super) const QUIET: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Cause {
    #[error("{0}")]
    Unsealed(#[from] Unsealed),
    #[error("it is longer than a frame may be")]
    TooLong,
    #[error("it has not the fields of an entry of a router; something else writes to this stream")]
    Nonsense,
    #[error("its snapshot ends in the middle, or is too long")]
    Snapshot,
    #[error("the key of its snapshot holds something else; another program uses the same names")]
    Type,
    #[error("we were to send one that is longer than a frame may be; please report it")]
    OwnTooLong,
    #[error("our snapshot is longer than one may be; what did not fit was left out")]
    OwnSnapshot,
}

/// When each cause was last told. As many as there are causes.
#[derive(Debug, Default)]
pub(super) struct Told {
    causes: Vec<(Cause, Instant)>,
    last: Option<Instant>,
}

impl Told {
    /// Whether it is to be told now.
    pub(super) fn tell(&mut self, cause: Cause, now: Instant) -> bool {
        self.last = Some(now);
        match self.causes.iter_mut().find(|(it, _)| *it == cause) {
            Some((_, since)) if now.duration_since(*since) < QUIET => false,
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

    /// Whether what was refused is so long ago that it is trouble no more. Says so once.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        self.last.take_if(|last| now.duration_since(*last) >= QUIET).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::clock;

    #[test]
    fn each_cause_is_told_once_a_minute() {
        let (now, mut told) = (clock::now(), Told::default());
        let second = Duration::from_secs(1);
        assert!(told.tell(Cause::Nonsense, now));
        assert!(told.tell(Cause::TooLong, now));
        assert!(!told.tell(Cause::Nonsense, now + 59 * second));
        assert!(told.tell(Cause::Nonsense, now + 60 * second));
        assert!(!told.is_over(now + 61 * second));
        assert!(told.is_over(now + 120 * second));
        assert!(!told.is_over(now + 121 * second));
    }
}
