//! How far an answer has progressed: the driver writes it, its request awaits it.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::engine::transfer::Content;

/// How far one answer has progressed.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct AnswerProgress {
    pub(in crate::http) tokens: u32,
    pub(in crate::http) cached_tokens: u32,
    pub(in crate::http) content: Content,
    pub(in crate::http) end: Option<AnswerEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum AnswerEnd {
    Complete,
    /// The KV of its prompt did not arrive. There are no tokens.
    Failed,
}

impl Default for AnswerProgress {
    fn default() -> AnswerProgress {
        AnswerProgress { tokens: 0, cached_tokens: 0, content: Content::Right, end: None }
    }
}

#[derive(Debug)]
pub(super) struct Progress {
    cell: Mutex<ProgressCell>,
}

#[derive(Debug, Default)]
struct ProgressCell {
    progress: AnswerProgress,
    /// Reported instead of the engine's number.
    cached_tokens: Option<u32>,
    /// Wakes on any token, or only on the last.
    waits_for_all: bool,
    waker: Option<Waker>,
}

impl Progress {
    pub(super) fn new(cached_tokens: Option<u32>) -> Progress {
        Progress { cell: Mutex::new(ProgressCell { cached_tokens, ..ProgressCell::default() }) }
    }

    pub(super) fn report(&self, tokens: u32, cached_tokens: u32, end: Option<AnswerEnd>) {
        let mut cell = self.cell.lock();
        let cached_tokens = cell.cached_tokens.unwrap_or(cached_tokens);
        cell.progress = AnswerProgress { tokens, cached_tokens, end, ..cell.progress };
        let waker = if end.is_some() || !cell.waits_for_all { cell.waker.take() } else { None };
        drop(cell);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Call it before the first token.
    pub(super) fn set_content(&self, content: Content) {
        self.cell.lock().progress.content = content;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.cell.lock().progress.end.is_some()
    }

    /// Ready once the answer has more than `tokens` tokens, or has failed.
    pub(super) fn poll_beyond(&self, tokens: u32, context: &mut Context<'_>) -> Poll<AnswerProgress> {
        let mut cell = self.cell.lock();
        if cell.progress.tokens > tokens || cell.progress.end == Some(AnswerEnd::Failed) {
            return Poll::Ready(cell.progress);
        }
        cell.waits_for_all = false;
        cell.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Ready once the answer is complete or has failed.
    pub(super) fn poll_end(&self, context: &mut Context<'_>) -> Poll<AnswerProgress> {
        let mut cell = self.cell.lock();
        if cell.progress.end.is_some() {
            return Poll::Ready(cell.progress);
        }
        cell.waits_for_all = true;
        cell.waker = Some(context.waker().clone());
        Poll::Pending
    }
}
