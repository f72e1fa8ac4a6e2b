//! A session stays on its worker, so that each turn finds the previous one in the cache.
//!
//! The first placement is the session's home by rendezvous hashing: after a restart, or in another router, it is
//! found again without a table. From then on the session is pinned. Workers that join do not pull sessions off their
//! caches, and a session whose worker left moves once and stays there when the worker returns.

use maitre_base::{Recent, Rng};

use crate::pin::Pin;
use crate::round_robin::RoundRobin;
use crate::{Ask, Candidate, Pick, Why, choose};

/// Maximum sessions remembered; the idlest are forgotten first, and fall back to their home.
pub const SESSIONS_MAX: usize = 1 << 18;

#[derive(Clone, Debug)]
pub struct StickySession {
    pins: Recent<Pin>,
    strangers: RoundRobin,
    /// The session that the last pick pinned, if it did.
    pinned: Option<u64>,
}

impl Default for StickySession {
    fn default() -> StickySession {
        StickySession { pins: Recent::new(SESSIONS_MAX), strangers: RoundRobin::default(), pinned: None }
    }
}

impl StickySession {
    pub fn pick(&mut self, ask: &Ask, candidates: &[Candidate], rng: &mut Rng) -> Option<Pick> {
        self.pinned = None;
        let Some(session) = ask.session else {
            return self.strangers.pick(candidates, rng);
        };
        let pinned = self.pins.get(session).copied();
        let (pick, sits) = sit(session, pinned, candidates)?;
        // A worker that failed this request may be healthy again for the next.
        if !sits && (ask.attempt == 0 || pinned.is_none()) {
            self.pins.put(session, Pin::to(&candidates[pick.index]));
            self.pinned = Some(session);
        }
        Some(pick)
    }

    /// The session that the last pick pinned to a worker it was not pinned to before.
    pub fn pinned(&self) -> Option<u64> {
        self.pinned
    }

    /// Pins the session: another router placed it there.
    pub fn pin(&mut self, session: u64, pin: Pin) {
        self.pins.put(session, pin);
    }

    /// What it would pick, without changing anything.
    pub fn peek(&self, ask: &Ask, candidates: &[Candidate], rng: &mut Rng) -> Option<Pick> {
        match ask.session {
            Some(session) => sit(session, self.pins.peek(session), candidates).map(|it| it.0),
            None => self.strangers.clone().pick(candidates, rng),
        }
    }
}

/// The candidate that the session is pinned to, if it is among them.
fn sit(session: u64, pinned: Option<Pin>, candidates: &[Candidate]) -> Option<(Pick, bool)> {
    if let Some(pin) = pinned
        && let Ok(index) = candidates.binary_search_by_key(&pin.worker, |it| it.worker)
        // Otherwise the number now belongs to another worker, and the session moves as after its worker left.
        && Pin::to(&candidates[index]) == pin
    {
        return Some((Pick { index, why: Why::Session }, true));
    }
    let index = choose::home(candidates, session, |_| true)?;
    let why = if pinned.is_some() { Why::SessionMoved } else { Why::Session };
    Some((Pick { index, why }, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::tests::fleet;
    use maitre_base::WorkerId;

    fn place(strategy: &mut StickySession, session: u64, candidates: &[Candidate]) -> (WorkerId, Why) {
        let ask = Ask { session: Some(session), ..Ask::default() };
        let pick = strategy.pick(&ask, candidates, &mut Rng::new(0)).unwrap();
        (candidates[pick.index].worker, pick.why)
    }

    #[test]
    fn a_session_whose_worker_is_gone_moves_once() {
        let all = fleet(&[(0, 0); 4]);
        let mut strategy = StickySession::default();
        let (home, why) = place(&mut strategy, 42, &all);
        assert_eq!(why, Why::Session);
        assert_eq!(place(&mut strategy, 42, &all), (home, Why::Session));

        let rest: Vec<Candidate> = all.iter().copied().filter(|it| it.worker != home).collect();
        let (second, why) = place(&mut strategy, 42, &rest);
        assert_eq!(why, Why::SessionMoved);
        assert_eq!(place(&mut strategy, 42, &rest), (second, Why::Session));
        assert_eq!(place(&mut strategy, 42, &all), (second, Why::Session), "it does not move back");
    }

    #[test]
    fn a_session_does_not_follow_its_workers_number_to_another_worker() {
        let mut all = fleet(&[(0, 0); 4]);
        let mut strategy = StickySession::default();
        let (home, _) = place(&mut strategy, 42, &all);
        all[home.index()].key ^= 0xABCD;
        let (second, why) = place(&mut strategy, 42, &all);
        assert_eq!(why, Why::SessionMoved);
        assert_eq!(place(&mut strategy, 42, &all), (second, Why::Session));
    }

    #[test]
    fn a_second_attempt_elsewhere_does_not_move_the_session() {
        let all = fleet(&[(0, 0); 4]);
        let mut strategy = StickySession::default();
        let (home, _) = place(&mut strategy, 42, &all);
        let rest: Vec<Candidate> = all.iter().copied().filter(|it| it.worker != home).collect();
        let again = Ask { session: Some(42), attempt: 1, ..Ask::default() };
        let pick = strategy.pick(&again, &rest, &mut Rng::new(0)).unwrap();
        assert_eq!(pick.why, Why::SessionMoved);
        assert_eq!(place(&mut strategy, 42, &all), (home, Why::Session));
    }

    #[test]
    fn a_worker_that_joins_pulls_no_session() {
        let (few, all) = (fleet(&[(0, 0); 2]), fleet(&[(0, 0); 8]));
        let mut strategy = StickySession::default();
        let before: Vec<_> = (0..100).map(|key| place(&mut strategy, key, &few).0).collect();
        let after: Vec<_> = (0..100).map(|key| place(&mut strategy, key, &all).0).collect();
        assert_eq!(before, after);
    }

    #[test]
    fn pins_of_other_routers_are_kept_and_only_ours_are_published() {
        let all = fleet(&[(0, 0); 4]);
        let mut strategy = StickySession::default();
        let (home, _) = place(&mut strategy, 42, &all);
        assert_eq!(strategy.pinned(), Some(42));
        place(&mut strategy, 42, &all);
        assert_eq!(strategy.pinned(), None, "it sat there before");
        let other = all[(home.index() + 1) % 4];
        strategy.pin(42, Pin::new(other.worker, other.key));
        assert_eq!(place(&mut strategy, 42, &all), (other.worker, Why::Session));
        assert_eq!(strategy.pinned(), None, "others know");
    }

    #[test]
    fn strangers_take_turns() {
        let all = fleet(&[(0, 0); 3]);
        let mut strategy = StickySession::default();
        let mut rng = Rng::new(0);
        let mut turn = || strategy.pick(&Ask::default(), &all, &mut rng).unwrap();
        assert_eq!([turn().index, turn().index, turn().index, turn().index], [0, 1, 2, 0]);
        assert_eq!(turn().why, Why::Turn);
    }
}
