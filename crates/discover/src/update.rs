//! What is told: everyone there is, and how each source fares.

use std::collections::BTreeSet;

use maitre_base::Instant;
use maitre_net::worker_url::WorkerUrl;

use crate::settings::Grace;
use crate::settle::{LastHeard, Settle};
use crate::source::Source;
use crate::tell::Answer;

/// The whole list, settled and merged, and how each source fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Each address once, in order; where two sources name it, as the first of them has it.
    pub workers: Vec<WorkerUrl>,
    /// In the order in which they were given.
    pub sources: Vec<Status>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// As an operator writes it.
    pub source: String,
    pub state: State,
    /// Workers it is taken to have at present, those included that it no longer names.
    pub workers: usize,
    /// Of those, how many are held though its last answer left them out.
    pub held: usize,
    /// Why it fails, or what of its answer was left out.
    pub note: Option<String>,
    /// When it last said anything about workers, on the clock that `run` was given.
    pub answered: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It has not said anything yet.
    Waiting,
    Fine,
    /// Its last answer left out so many that we do not believe it yet.
    Holding,
    /// It cannot be read; its last list stands.
    Failing,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Fine => "fine",
            State::Holding => "holding",
            State::Failing => "failing",
        }
    }
}

impl Update {
    /// Whether every source has said something, if only that it cannot: there is nothing more to wait for.
    /// Not so if there are none, which is how things stand before `run` has begun.
    pub fn is_complete(&self) -> bool {
        !self.sources.is_empty() && self.sources.iter().all(|it| it.state != State::Waiting)
    }
}

impl Status {
    /// Whether it says the same as another, but for when.
    pub(crate) fn says(&self, other: &Status) -> bool {
        Status { answered: other.answered, ..self.clone() } == *other
    }
}

/// All sources and what each is taken to have.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<(String, Settle)>,
}

impl Table {
    pub(crate) fn new(sources: &[Source], grace: Grace) -> Table {
        Table { rows: sources.iter().map(|it| (it.to_string(), Settle::new(grace))).collect() }
    }

    pub(crate) fn hear(&mut self, now: Instant, index: usize, answer: Answer) {
        if let Some((_, settle)) = self.rows.get_mut(index) {
            settle.hear(now, answer);
        }
    }

    pub(crate) fn pass(&mut self, now: Instant) {
        self.rows.iter_mut().for_each(|(_, settle)| settle.pass(now));
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.rows.iter().filter_map(|(_, settle)| settle.due()).min()
    }

    pub(crate) fn update(&self) -> Update {
        let mut seen = BTreeSet::new();
        let all = self.rows.iter().flat_map(|(_, settle)| settle.workers());
        let mut workers: Vec<WorkerUrl> = all.filter(|it| seen.insert(&it.address)).cloned().collect();
        workers.sort_by_cached_key(WorkerUrl::to_string);
        Update { workers, sources: self.rows.iter().map(|(source, settle)| status(source, settle)).collect() }
    }
}

fn status(source: &str, settle: &Settle) -> Status {
    let held = settle.held();
    let state = match settle.heard() {
        None => State::Waiting,
        Some(LastHeard::Failure) => State::Failing,
        Some(LastHeard::Workers) if held > 0 => State::Holding,
        Some(LastHeard::Workers) => State::Fine,
    };
    Status {
        source: source.to_owned(),
        state,
        workers: settle.count(),
        held,
        note: settle.note().map(str::to_owned),
        answered: settle.answered(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tell::Heard;

    fn list(urls: &[&str]) -> Answer {
        Answer::of(Heard::List(urls.iter().map(|it| it.parse().unwrap()).collect()))
    }

    fn urls(update: &Update) -> Vec<String> {
        update.workers.iter().map(WorkerUrl::to_string).collect()
    }

    #[test]
    fn two_sources_make_one_list_and_the_first_has_its_way() {
        let sources = ["file:/a", "file:/b"].map(|it| it.parse().unwrap());
        let mut table = Table::new(&sources, Grace::default());
        assert!(!Update::default().is_complete() && !table.update().is_complete());
        table.hear(Instant::ZERO, 1, list(&["http://a:1?ranks=2", "http://c:1"]));
        assert_eq!(urls(&table.update()), ["http://a:1?ranks=2", "http://c:1"]);
        table.hear(Instant::ZERO, 0, list(&["http://b:1", "http://a:1"]));
        assert_eq!(urls(&table.update()), ["http://a:1", "http://b:1", "http://c:1"]);
        assert!(table.update().is_complete());
    }

    #[test]
    fn one_source_failing_harms_no_other() {
        let sources = ["file:/a", "file:/b"].map(|it| it.parse().unwrap());
        let mut table = Table::new(&sources, Grace::default());
        table.hear(Instant::ZERO, 0, Answer::failure("cut"));
        table.hear(Instant::ZERO, 1, list(&["http://b:1"]));
        let update = table.update();
        assert_eq!(urls(&update), ["http://b:1"]);
        assert_eq!(update.sources[0].state, State::Failing);
        assert_eq!(update.sources[0].note.as_deref(), Some("cut"));
        assert_eq!((update.sources[1].state, update.sources[1].workers), (State::Fine, 1));
    }

    #[test]
    fn when_it_was_said_does_not_change_what_was_said() {
        let mut table = Table::new(&["file:/a".parse().unwrap()], Grace::default());
        table.hear(Instant::ZERO, 0, list(&["http://a:1"]));
        let before = table.update().sources.remove(0);
        table.hear(Instant::from_millis(7), 0, list(&["http://a:1"]));
        let after = table.update().sources.remove(0);
        assert!(before != after && before.says(&after));
    }
}
