//! Frames that the node rejected: counted, and logged once a minute for each cause.
//!
//! Some causes do not go away by themselves and are shown to the operator: a router of another version, one with our own
//! name, and one router too many.

use std::time::Duration;

use maitre_base::Instant;
use maitre_cluster::FrameError;
use tracing::warn;

const LOG_INTERVAL: Duration = Duration::from_secs(60);

maitre_base::words! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum RejectCause {
        Foreign = "foreign",
        Version = "version",
        Malformed = "malformed",
        NameTaken = "namesake",
        TooManyRouters = "crowded",
    }
}

impl RejectCause {
    const fn of(error: &FrameError) -> RejectCause {
        match error {
            FrameError::Foreign => RejectCause::Foreign,
            FrameError::Version { .. } => RejectCause::Version,
            FrameError::Malformed(_) => RejectCause::Malformed,
            FrameError::NameTaken(_) => RejectCause::NameTaken,
            FrameError::TooManyRouters => RejectCause::TooManyRouters,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct RejectedFrames {
    by_cause: [CauseCount; RejectCause::ALL.len()],
}

#[derive(Debug, Default)]
struct CauseCount {
    count: u64,
    logged: Option<Instant>,
    /// When the last frame was rejected, and the error.
    last: Option<(Instant, String)>,
}

impl RejectedFrames {
    pub(super) fn note(&mut self, now: Instant, error: &FrameError) {
        let cause = RejectCause::of(error);
        let counted = &mut self.by_cause[cause as usize];
        counted.count += 1;
        counted.last = Some((now, error.to_string()));
        if counted.logged.is_none_or(|it| now.since(it) >= LOG_INTERVAL) {
            counted.logged = Some(now);
            let (cause, count) = (cause.name(), counted.count);
            warn!(cause, count, "refused a frame of another router: {error}");
        }
    }

    /// By cause.
    pub(super) fn counts(&self) -> [u64; RejectCause::ALL.len()] {
        std::array::from_fn(|it| self.by_cause[it].count)
    }

    /// A problem that an operator must fix, if it occurred within the last minute.
    pub(super) fn problem(&self, now: Instant) -> Option<&str> {
        let lasting = [RejectCause::NameTaken, RejectCause::Version, RejectCause::TooManyRouters]
            .map(|it| &self.by_cause[it as usize].last);
        let recent = lasting.into_iter().flatten().find(|(at, _)| now.since(*at) < LOG_INTERVAL);
        recent.map(|(_, error)| error.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_counted_and_lasting_problems_are_shown_for_a_minute() {
        let mut rejected = RejectedFrames::default();
        let at = |seconds: u64| Instant::from_millis(seconds * 1_000);
        rejected.note(at(0), &FrameError::Malformed("short"));
        rejected.note(at(1), &FrameError::Foreign);
        assert_eq!((rejected.counts(), rejected.problem(at(1))), ([1, 0, 1, 0, 0], None));
        rejected.note(at(2), &FrameError::Version { theirs: 9, ours: 1 });
        assert!(rejected.problem(at(2)).unwrap().contains("version 9"));
        rejected.note(at(3), &FrameError::NameTaken("a".to_owned()));
        rejected.note(at(4), &FrameError::NameTaken("a".to_owned()));
        assert!(rejected.problem(at(5)).unwrap().contains("cluster.name"));
        assert_eq!(rejected.counts(), [1, 1, 1, 2, 0]);
        assert_eq!(rejected.problem(at(64)), None);
        rejected.note(at(70), &FrameError::TooManyRouters);
        assert!(rejected.problem(at(70)).unwrap().contains("64 routers"));
    }
}
