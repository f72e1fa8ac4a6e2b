//! Frames that a node would not hear: counted, and told once a minute for each cause.
//!
//! Some of the causes do not mend themselves, and so are trouble to show: a router of another version, one of our own
//! name, and one too many.

use std::time::Duration;

use maitre_base::Instant;
use maitre_cluster::FrameError;
use tracing::warn;

const EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Foreign,
    Version,
    Malformed,
    Namesake,
    Crowded,
}

impl Cause {
    pub(crate) const ALL: [Cause; 5] =
        [Cause::Foreign, Cause::Version, Cause::Malformed, Cause::Namesake, Cause::Crowded];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Cause::Foreign => "foreign",
            Cause::Version => "version",
            Cause::Malformed => "malformed",
            Cause::Namesake => "namesake",
            Cause::Crowded => "crowded",
        }
    }

    const fn of(unheard: &FrameError) -> Cause {
        match unheard {
            FrameError::Foreign => Cause::Foreign,
            FrameError::Version { .. } => Cause::Version,
            FrameError::Malformed(_) => Cause::Malformed,
            FrameError::NameTaken(_) => Cause::Namesake,
            FrameError::TooManyRouters => Cause::Crowded,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// By cause.
    rows: [Row; Cause::ALL.len()],
}

#[derive(Debug, Default)]
struct Row {
    count: u64,
    told: Option<Instant>,
    /// The last one: when, and what it says.
    last: Option<(Instant, String)>,
}

impl Refusals {
    pub(super) fn note(&mut self, now: Instant, unheard: &FrameError) {
        let cause = Cause::of(unheard);
        let row = &mut self.rows[cause as usize];
        row.count += 1;
        row.last = Some((now, unheard.to_string()));
        if row.told.is_none_or(|it| now.since(it) >= EVERY) {
            row.told = Some(now);
            let (cause, count) = (cause.name(), row.count);
            warn!(cause, count, "refused a frame of another router: {unheard}");
        }
    }

    /// By cause.
    pub(super) fn counts(&self) -> [u64; Cause::ALL.len()] {
        std::array::from_fn(|it| self.rows[it].count)
    }

    /// What somebody must mend, if it was seen of late.
    pub(super) fn trouble(&self, now: Instant) -> Option<&str> {
        let lasting =
            [Cause::Namesake, Cause::Version, Cause::Crowded].map(|it| &self.rows[it as usize].last);
        let recent = lasting.into_iter().flatten().find(|(at, _)| now.since(*at) < EVERY);
        recent.map(|(_, what)| what.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_counted_and_what_must_be_mended_is_shown_for_a_while() {
        let mut refusals = Refusals::default();
        let at = |seconds: u64| Instant::from_millis(seconds * 1_000);
        refusals.note(at(0), &FrameError::Malformed("short"));
        refusals.note(at(1), &FrameError::Foreign);
        assert_eq!((refusals.counts(), refusals.trouble(at(1))), ([1, 0, 1, 0, 0], None));
        refusals.note(at(2), &FrameError::Version { theirs: 9, ours: 1 });
        assert!(refusals.trouble(at(2)).unwrap().contains("version 9"));
        refusals.note(at(3), &FrameError::NameTaken("a".to_owned()));
        refusals.note(at(4), &FrameError::NameTaken("a".to_owned()));
        assert!(refusals.trouble(at(5)).unwrap().contains("cluster.name"));
        assert_eq!(refusals.counts(), [1, 1, 1, 2, 0]);
        assert_eq!(refusals.trouble(at(64)), None);
        refusals.note(at(70), &FrameError::TooManyRouters);
        assert!(refusals.trouble(at(70)).unwrap().contains("64 routers"));
    }
}
