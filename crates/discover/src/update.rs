//! What is published: all workers, and the state of each source.

use std::collections::BTreeSet;

use maitre_base::Instant;
use maitre_net::worker_url::WorkerUrl;

use crate::report::SourceReport;
use crate::settings::Grace;
use crate::source::WorkerSource;
use crate::stable_list::{LastReport, StableList};

/// All workers, smoothed and merged, and the state of each source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Each address once, sorted; where two sources name it, with the options of the first.
    pub workers: Vec<WorkerUrl>,
    /// In the order in which the sources were given.
    pub sources: Vec<SourceStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceStatus {
    /// The source as an operator writes it.
    pub source: String,
    pub state: SourceState,
    /// Its workers, including those that it no longer names and that are not dropped yet.
    pub workers: usize,
    /// How many of those are held although its last report left them out.
    pub held: usize,
    /// Why it fails, or what was left out.
    pub note: Option<String>,
    /// When it last reported workers, by the clock given to `run`.
    pub answered: Option<Instant>,
}

maitre_base::words! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum SourceState {
        /// It has not reported yet.
        Waiting = "waiting",
        Fine = "fine",
        /// Its last report left out so many workers that they are held for now.
        Holding = "holding",
        /// It cannot be read; its last list stays.
        Failing = "failing",
    }
}

impl Update {
    /// Whether every source has reported, even if only a failure. False without sources, as before `run` has
    /// begun.
    pub fn is_complete(&self) -> bool {
        !self.sources.is_empty() && self.sources.iter().all(|it| it.state != SourceState::Waiting)
    }
}

impl SourceStatus {
    /// Whether it equals another, ignoring the time.
    pub(crate) fn says(&self, other: &SourceStatus) -> bool {
        SourceStatus { answered: other.answered, ..self.clone() } == *other
    }
}

/// All sources and the workers of each.
#[derive(Debug)]
pub(crate) struct SourceTable {
    rows: Vec<(String, StableList)>,
}

impl SourceTable {
    pub(crate) fn new(sources: &[WorkerSource], grace: Grace) -> SourceTable {
        SourceTable { rows: sources.iter().map(|it| (it.to_string(), StableList::new(grace))).collect() }
    }

    pub(crate) fn apply(&mut self, now: Instant, index: usize, report: SourceReport) {
        if let Some((_, list)) = self.rows.get_mut(index) {
            list.apply(now, report);
        }
    }

    pub(crate) fn expire(&mut self, now: Instant) {
        self.rows.iter_mut().for_each(|(_, list)| list.expire(now));
    }

    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.rows.iter().filter_map(|(_, list)| list.next_expiry()).min()
    }

    pub(crate) fn update(&self) -> Update {
        let mut seen = BTreeSet::new();
        let all = self.rows.iter().flat_map(|(_, list)| list.workers());
        let mut workers: Vec<WorkerUrl> = all.filter(|it| seen.insert(&it.address)).cloned().collect();
        workers.sort_by_cached_key(WorkerUrl::to_string);
        Update { workers, sources: self.rows.iter().map(|(source, list)| status(source, list)).collect() }
    }
}

fn status(source: &str, list: &StableList) -> SourceStatus {
    let held = list.held();
    let state = match list.last_report() {
        None => SourceState::Waiting,
        Some(LastReport::Failure) => SourceState::Failing,
        Some(LastReport::Workers) if held > 0 => SourceState::Holding,
        Some(LastReport::Workers) => SourceState::Fine,
    };
    SourceStatus {
        source: source.to_owned(),
        state,
        workers: list.count(),
        held,
        note: list.note().map(str::to_owned),
        answered: list.answered(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ReportedWorkers;

    fn list(urls: &[&str]) -> SourceReport {
        SourceReport::of(ReportedWorkers::List(urls.iter().map(|it| it.parse().unwrap()).collect()))
    }

    fn urls(update: &Update) -> Vec<String> {
        update.workers.iter().map(WorkerUrl::to_string).collect()
    }

    #[test]
    fn two_sources_make_one_list_and_the_first_wins() {
        let sources = ["file:/a", "file:/b"].map(|it| it.parse().unwrap());
        let mut table = SourceTable::new(&sources, Grace::default());
        assert!(!Update::default().is_complete() && !table.update().is_complete());
        table.apply(Instant::ZERO, 1, list(&["http://a:1?ranks=2", "http://c:1"]));
        assert_eq!(urls(&table.update()), ["http://a:1?ranks=2", "http://c:1"]);
        table.apply(Instant::ZERO, 0, list(&["http://b:1", "http://a:1"]));
        assert_eq!(urls(&table.update()), ["http://a:1", "http://b:1", "http://c:1"]);
        assert!(table.update().is_complete());
    }

    #[test]
    fn a_failing_source_does_not_affect_others() {
        let sources = ["file:/a", "file:/b"].map(|it| it.parse().unwrap());
        let mut table = SourceTable::new(&sources, Grace::default());
        table.apply(Instant::ZERO, 0, SourceReport::failure("cut"));
        table.apply(Instant::ZERO, 1, list(&["http://b:1"]));
        let update = table.update();
        assert_eq!(urls(&update), ["http://b:1"]);
        assert_eq!(update.sources[0].state, SourceState::Failing);
        assert_eq!(update.sources[0].note.as_deref(), Some("cut"));
        assert_eq!((update.sources[1].state, update.sources[1].workers), (SourceState::Fine, 1));
    }

    #[test]
    fn an_equal_report_later_is_no_change() {
        let mut table = SourceTable::new(&["file:/a".parse().unwrap()], Grace::default());
        table.apply(Instant::ZERO, 0, list(&["http://a:1"]));
        let before = table.update().sources.remove(0);
        table.apply(Instant::from_millis(7), 0, list(&["http://a:1"]));
        let after = table.update().sources.remove(0);
        assert!(before != after && before.says(&after));
    }
}
