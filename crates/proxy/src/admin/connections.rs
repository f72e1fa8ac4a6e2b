//! The connections of the admin listener: few, and never all taken.
//!
//! Everybody who reaches the port can open connections, without a key. So a new connection never waits for an old one: when
//! all places are taken the oldest connection makes room, first of all one whose client has not shown the admin key. A probe
//! takes a millisecond; to keep it out, a stranger would have to open `CONNECTIONS_MAX` connections in that time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::{AbortHandle, JoinSet};

/// Connections at once.
pub(super) const CONNECTIONS_MAX: usize = 128;

#[derive(Default)]
pub(super) struct Connections {
    tasks: JoinSet<()>,
    /// Oldest first.
    open: VecDeque<OpenConnection>,
}

struct OpenConnection {
    task: AbortHandle,
    by_operator: OperatorMark,
}

/// Whether the client of a connection has shown the admin key.
#[derive(Clone, Default)]
pub(super) struct OperatorMark(Arc<AtomicBool>);

impl OperatorMark {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Connections {
    /// Serves a connection; closes another one if there are too many.
    pub(super) fn serve<F>(&mut self, serve: impl FnOnce(OperatorMark) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.open.retain(|it| !it.task.is_finished());
        if self.open.len() >= CONNECTIONS_MAX {
            self.close_one();
        }
        let by_operator = OperatorMark::default();
        let task = self.tasks.spawn(serve(by_operator.clone()));
        self.open.push_back(OpenConnection { task, by_operator });
    }

    /// Closes the connection that matters least.
    pub(super) fn close_one(&mut self) {
        let stranger = self.open.iter().position(|it| !it.by_operator.is_set());
        if let Some(closed) = self.open.remove(stranger.unwrap_or(0)) {
            closed.task.abort();
        }
    }

    /// Waits until a connection has ended; forever if there is none.
    pub(super) async fn ended(&mut self) {
        if self.tasks.join_next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_stranger_makes_room_and_operators_stay() {
        let mut connections = Connections::default();
        let mut marks = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            connections.serve(|mark| {
                marks.push(mark);
                std::future::pending()
            });
        }
        marks[0].set();
        connections.serve(|_| std::future::pending());
        connections.ended().await;
        assert_eq!(connections.tasks.len(), CONNECTIONS_MAX);
        let is_first = |it: &OpenConnection, mark: &OperatorMark| Arc::ptr_eq(&it.by_operator.0, &mark.0);
        assert!(is_first(&connections.open[0], &marks[0]), "an operator's");
        assert!(is_first(&connections.open[1], &marks[2]), "the second one made room");
        connections.open.iter().for_each(|it| it.by_operator.set());
        connections.serve(|_| std::future::pending());
        assert!(is_first(&connections.open[0], &marks[2]), "if all are operators', the oldest");
    }
}
