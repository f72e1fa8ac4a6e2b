//! What the brain decided about a request; or, while the request is queued, where the decision will be sent.
//!
//! The senders are kept beside the brain, behind its lock, so a decision cannot miss its waiter. A request that is
//! placed at once needs none of this.

use maitre_base::RequestId;
use maitre_base::hash::NumberMap;
use maitre_dispatch::{Placement, Refusal};
use tokio::sync::oneshot;

pub(crate) type Decided = Result<Placement, Refusal>;
pub(crate) type Waiter = oneshot::Receiver<Decided>;

#[derive(Debug)]
pub(crate) enum Decision {
    /// The event asked for none.
    Nothing,
    Placed(Placement),
    Refuse(Refusal),
    /// The request is queued.
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

/// Requests that wait for a decision: as many as the brain has in its queue, whose limits bound this map too.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    senders: NumberMap<oneshot::Sender<Decided>>,
    /// Recalled requests whose attempts have not noticed yet.
    recalled: NumberMap<Waiter>,
}

impl Waiters {
    /// The request is queued from now on.
    pub(super) fn wait(&mut self, request: RequestId) -> Waiter {
        let (sender, waiter) = oneshot::channel();
        self.senders.insert(request.0, sender);
        waiter
    }

    /// The request is queued again; its attempt takes the waiter when it notices.
    pub(super) fn recall(&mut self, request: RequestId) {
        let waiter = self.wait(request);
        self.recalled.insert(request.0, waiter);
    }

    pub(super) fn take_recalled(&mut self, request: RequestId) -> Option<Waiter> {
        self.recalled.remove(&request.0)
    }

    pub(super) fn recalls(&self) -> usize {
        self.recalled.len()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.senders.len()
    }

    /// Where to send the decision about a request. None: the request has ended, and the brain will hear of it.
    pub(super) fn take(&mut self, request: RequestId) -> Option<oneshot::Sender<Decided>> {
        self.senders.remove(&request.0)
    }

    /// Nothing more will be decided about the request.
    pub(super) fn forget(&mut self, request: RequestId) {
        self.senders.remove(&request.0);
        self.recalled.remove(&request.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: RequestId = RequestId(7);
    const DECIDED: Decided = Err(Refusal::NoWorker);

    #[test]
    fn a_waiter_receives_one_decision() {
        let mut waiters = Waiters::default();
        let mut waiter = waiters.wait(REQUEST);
        waiters.take(REQUEST).unwrap().send(DECIDED).unwrap();
        assert_eq!(waiter.try_recv(), Ok(DECIDED));
        assert!(waiters.take(REQUEST).is_none());
    }

    #[test]
    fn a_decision_made_before_the_recall_was_noticed_is_not_lost() {
        let mut waiters = Waiters::default();
        waiters.recall(REQUEST);
        waiters.take(REQUEST).unwrap().send(DECIDED).unwrap();
        assert_eq!(waiters.take_recalled(REQUEST).unwrap().try_recv(), Ok(DECIDED));
        assert_eq!(waiters.recalls(), 0);
    }

    #[test]
    fn nothing_is_kept_of_a_request_that_has_ended() {
        let mut waiters = Waiters::default();
        waiters.recall(REQUEST);
        waiters.forget(REQUEST);
        assert!(waiters.take(REQUEST).is_none() && waiters.recalls() == 0);
    }
}
