//! Sessions in virtual time: schedules the calls that `sessions::closed_loop` returns.

use maitre_base::Instant;

use super::{SimEvent, Simulation};
use crate::sessions::closed_loop::EndedSession;
use crate::sessions::tasks::PlayedSession;

impl Simulation<'_> {
    /// Begins the first sessions of each tenant.
    pub(super) fn start_sessions(&mut self) {
        for tenant in 0..self.config.sessions.len() {
            for _ in 0..self.config.sessions[tenant] {
                self.start_session(Instant::ZERO, tenant);
            }
        }
    }

    fn start_session(&mut self, now: Instant, tenant: usize) {
        let first = self.sessions.as_mut().and_then(|it| it.start(now, tenant));
        if let Some(call) = first {
            self.schedule(now, SimEvent::Arrival(call));
        }
    }

    /// A call arrives. Returns whether its session is still in progress.
    pub(super) fn session_goes_on(&mut self, number: usize) -> bool {
        self.sessions.as_mut().is_none_or(|it| it.arrive(number))
    }

    /// A call was answered: schedules the calls that follow.
    pub(super) fn call_answered(&mut self, now: Instant, number: usize) {
        let Some(sessions) = &mut self.sessions else { return };
        let after = sessions.answer(now, number);
        for (at, call) in after.next {
            self.schedule(at, SimEvent::Arrival(call));
        }
        if let Some(ended) = after.ended {
            self.end_session(now, ended, true);
        }
    }

    /// A call was refused or failed, and so has its session: its other calls do not come.
    pub(super) fn call_lost(&mut self, now: Instant, number: usize) {
        let Some(ended) = self.sessions.as_mut().and_then(|it| it.lose(number)) else { return };
        self.not_arrived -= ended.dropped;
        self.end_session(now, ended, false);
    }

    fn end_session(&mut self, now: Instant, ended: EndedSession, is_complete: bool) {
        let Some(plans) = self.prepared.sessions else { return };
        let calls = plans.sessions[ended.number].calls();
        let tenant = self.prepared.requests[calls.start].tenant;
        self.outcome.sessions.push(PlayedSession {
            number: ended.number,
            began: ended.began,
            took: now.since(ended.began),
            alone: self.prepared.alone.get(ended.number).copied(),
            calls: calls.len(),
            tenant,
            is_complete,
        });
        let place = if self.config.sessions.len() > 1 { tenant as usize - 1 } else { 0 };
        self.start_session(now, place);
    }
}
