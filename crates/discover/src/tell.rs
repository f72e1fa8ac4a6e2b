//! What a source says, and to whom.

use maitre_net::worker_url::WorkerUrl;
use tokio::sync::mpsc;

/// One answer of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) heard: Heard,
    /// What an operator should know: why it failed, or what of it was left out.
    pub(crate) note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Who is there. Who is not may be back with the next answer.
    List(Vec<WorkerUrl>),
    /// The same, with a part of the answer missing.
    Part(Vec<WorkerUrl>),
    /// Everybody there is. Who is neither ready nor unready has been deleted, or is about to end.
    Census { ready: Vec<WorkerUrl>, unready: Vec<WorkerUrl> },
    /// Nothing about workers.
    Failure,
}

impl Answer {
    pub(crate) fn of(heard: Heard) -> Answer {
        Answer { heard, note: None }
    }

    pub(crate) fn failure(note: impl ToString) -> Answer {
        Answer { heard: Heard::Failure, note: Some(note.to_string()) }
    }
}

/// The way from one source to the table.
#[derive(Clone, Debug)]
pub(crate) struct Tell {
    pub(crate) index: usize,
    pub(crate) to: mpsc::Sender<(usize, Answer)>,
}

impl Tell {
    /// If nobody listens any more, the task that tells is about to be dropped.
    pub(crate) async fn tell(&self, answer: Answer) {
        let _ = self.to.send((self.index, answer)).await;
    }
}
