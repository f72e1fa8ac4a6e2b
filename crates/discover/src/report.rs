//! What a source reports, and the channel it reports on.

use maitre_net::worker_url::WorkerUrl;
use tokio::sync::mpsc;

/// One report of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceReport {
    pub(crate) workers: ReportedWorkers,
    /// For the operator: why it failed, or what was left out.
    pub(crate) note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReportedWorkers {
    /// The current workers. A missing one may return in the next report.
    List(Vec<WorkerUrl>),
    /// The same, but part of the list is missing.
    Partial(Vec<WorkerUrl>),
    /// All workers. One that is neither ready nor unready was deleted or is terminating.
    Census { ready: Vec<WorkerUrl>, unready: Vec<WorkerUrl> },
    /// No information about workers.
    Failure,
}

impl SourceReport {
    pub(crate) fn of(workers: ReportedWorkers) -> SourceReport {
        SourceReport { workers, note: None }
    }

    pub(crate) fn failure(note: impl ToString) -> SourceReport {
        SourceReport { workers: ReportedWorkers::Failure, note: Some(note.to_string()) }
    }
}

/// The channel from one source to the table.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    pub(crate) index: usize,
    pub(crate) to: mpsc::Sender<(usize, SourceReport)>,
}

impl Reporter {
    /// Without a receiver this task is about to be dropped, so an error is ignored.
    pub(crate) async fn send(&self, report: SourceReport) {
        let _ = self.to.send((self.index, report)).await;
    }
}
