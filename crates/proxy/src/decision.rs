//! What the brain decided about a request; or, while it stands in line, who will be told.
//!
//! The senders lie beside the brain, behind its lock: what it decides about somebody who waits cannot miss the one
//! it is for. A request that is seated at once has none of this.

use maitre_base::RequestId;
use maitre_base::hash::NumberMap;
use maitre_dispatch::{Placement, Refusal};
use tokio::sync::oneshot;

pub(crate) type Decided = Result<Placement, Refusal>;
pub(crate) type Teller = oneshot::Sender<Decided>;
pub(crate) type Waiter = oneshot::Receiver<Decided>;

#[derive(Debug)]
pub(crate) enum Decision {
    /// The event asked for none.
    Nothing,
    Placed(Placement),
    Refuse(Refusal),
    /// It stands in line.
    Wait(Waiter),
}

impl From<Decided> for Decision {
    fn from(decided: Decided) -> Decision {
        match decided {
            Ok(placement) => Decision::Placed(placement),
            Err(refusal) => Decision::Refuse(refusal),
        }
    }
}

/// Requests that wait for a decision. As many as the brain has in line: its limits bound this too.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    tellers: NumberMap<Teller>,
    /// Those that were called back and have not noticed yet.
    recalled: NumberMap<Waiter>,
}

impl Waiters {
    /// The request stands in line from now on.
    pub(crate) fn wait(&mut self, request: RequestId) -> Waiter {
        let (teller, waiter) = oneshot::channel();
        self.tellers.insert(request.0, teller);
        waiter
    }

    /// The request is in line again; its attempt takes the waiter when it notices.
    pub(crate) fn recall(&mut self, request: RequestId) {
        let waiter = self.wait(request);
        self.recalled.insert(request.0, waiter);
    }

    pub(crate) fn take_recalled(&mut self, request: RequestId) -> Option<Waiter> {
        self.recalled.remove(&request.0)
    }

    pub(crate) fn recalls(&self) -> usize {
        self.recalled.len()
    }

    /// Who is to be told of what was decided. None: nobody waits for it, and whoever did will say so.
    pub(crate) fn take(&mut self, request: RequestId) -> Option<Teller> {
        self.tellers.remove(&request.0)
    }

    /// Nothing more will be decided about it.
    pub(crate) fn forget(&mut self, request: RequestId) {
        self.tellers.remove(&request.0);
        self.recalled.remove(&request.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: RequestId = RequestId(7);
    const DECIDED: Decided = Err(Refusal::NoWorker);

    #[test]
    fn whoever_waits_is_told_once() {
        let mut waiters = Waiters::default();
        let mut waiter = waiters.wait(REQUEST);
        waiters.take(REQUEST).unwrap().send(DECIDED).unwrap();
        assert_eq!(waiter.try_recv(), Ok(DECIDED));
        assert!(waiters.take(REQUEST).is_none());
    }

    #[test]
    fn what_is_decided_before_a_recall_was_noticed_is_not_lost() {
        let mut waiters = Waiters::default();
        waiters.recall(REQUEST);
        waiters.take(REQUEST).unwrap().send(DECIDED).unwrap();
        assert_eq!(waiters.take_recalled(REQUEST).unwrap().try_recv(), Ok(DECIDED));
        assert_eq!(waiters.recalls(), 0);
    }

    #[test]
    fn of_one_that_is_over_nothing_is_left() {
        let mut waiters = Waiters::default();
        waiters.recall(REQUEST);
        waiters.forget(REQUEST);
        assert!(waiters.take(REQUEST).is_none() && waiters.recalls() == 0);
    }
}
