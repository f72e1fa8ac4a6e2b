//! Sessions as closed loops: so many of each tenant are open at once, the next begins when one ends, and the next call of
//! an agent comes its think time after the answer.

use std::collections::VecDeque;
use std::time::Duration;

use maitre_base::Instant;

use super::outcome::PlayedSession;
use super::{SimEvent, Simulation};
use crate::sessions::{AgentSession, CallPlan};

/// What sessions add to a trace: when its requests come.
#[derive(Clone, Copy, Debug)]
pub struct SessionPlans<'a> {
    pub calls: &'a [CallPlan],
    pub sessions: &'a [AgentSession],
}

/// The sessions of a run.
pub(super) struct SessionLoop {
    /// The sessions that have not begun, by tenant.
    unstarted: Vec<VecDeque<usize>>,
    progress: Vec<SessionProgress>,
}

#[derive(Clone, Debug, Default)]
struct SessionProgress {
    began: Instant,
    /// When each thread ended.
    threads: Vec<Option<Instant>>,
    /// Calls that wait for sub-agents: the call, and when it may come at the earliest.
    waiting: Vec<(usize, Instant)>,
    arrived: usize,
    /// A call was refused or failed: the session is over.
    is_lost: bool,
}

impl SessionLoop {
    /// The sessions of each tenant, in the order of the trace.
    pub(super) fn new(
        plans: SessionPlans<'_>,
        tenant: impl Fn(usize) -> usize,
        tenants: usize,
    ) -> SessionLoop {
        let mut unstarted = vec![VecDeque::new(); tenants.max(1)];
        for number in 0..plans.sessions.len() {
            unstarted[tenant(number)].push_back(number);
        }
        let progress = plans.sessions.iter().map(|it| SessionProgress {
            threads: vec![None; it.threads.len()],
            ..SessionProgress::default()
        });
        SessionLoop { unstarted, progress: progress.collect() }
    }

    /// Whether this call comes after its session was lost.
    pub(super) fn is_void(&self, session: usize) -> bool {
        self.progress[session].is_lost
    }
}

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
        let (Some(sessions), Some(plans)) = (&mut self.sessions, self.prepared.sessions) else { return };
        let Some(number) = sessions.unstarted[tenant].pop_front() else { return };
        sessions.progress[number].began = now;
        let first = plans.sessions[number].threads[0].start;
        self.schedule(now, SimEvent::Arrival(first));
    }

    /// A call arrives. Returns whether its session is still played.
    pub(super) fn session_goes_on(&mut self, number: usize) -> bool {
        let (Some(sessions), Some(plans)) = (&mut self.sessions, self.prepared.sessions) else { return true };
        let session = plans.calls[number].session as usize;
        sessions.progress[session].arrived += 1;
        !sessions.is_void(session)
    }

    /// A call was answered: what follows from it comes in its time.
    pub(super) fn call_answered(&mut self, now: Instant, number: usize) {
        let (Some(sessions), Some(plans)) = (&mut self.sessions, self.prepared.sessions) else { return };
        let call = &plans.calls[number];
        let (session, thread) = (call.session as usize, call.thread as usize);
        let progress = &mut sessions.progress[session];
        if progress.is_lost {
            return;
        }
        let threads = &plans.sessions[session].threads;
        let mut next: Vec<(Instant, usize)> =
            call.starts.iter().map(|&(it, after)| (now + after, threads[it as usize].start)).collect();
        if number + 1 < threads[thread].end {
            let think = match plans.calls[number + 1].waits_for.is_empty() {
                true => plans.calls[number + 1].think,
                false => Duration::ZERO,
            };
            progress.waiting.push((number + 1, now + think));
        } else {
            progress.threads[thread] = Some(now);
        }
        next.extend(progress.take_ready(plans.calls));
        let is_over = progress.threads.iter().all(Option::is_some);
        for (at, call) in next {
            self.schedule(at, SimEvent::Arrival(call));
        }
        if is_over {
            self.end_session(now, session, true);
        }
    }

    /// A call was refused or failed: so is its session, and what is left of it does not come.
    pub(super) fn call_lost(&mut self, now: Instant, number: usize) {
        let (Some(sessions), Some(plans)) = (&mut self.sessions, self.prepared.sessions) else { return };
        let session = plans.calls[number].session as usize;
        let progress = &mut sessions.progress[session];
        if std::mem::replace(&mut progress.is_lost, true) {
            return;
        }
        self.not_arrived -= plans.sessions[session].calls().len() - progress.arrived;
        self.end_session(now, session, false);
    }

    fn end_session(&mut self, now: Instant, number: usize, is_complete: bool) {
        let (Some(sessions), Some(plans)) = (&self.sessions, self.prepared.sessions) else { return };
        let calls = plans.sessions[number].calls();
        let tenant = self.prepared.requests[calls.start].tenant;
        self.outcome.sessions.push(PlayedSession {
            number,
            began: sessions.progress[number].began,
            took: now.since(sessions.progress[number].began),
            alone: self.prepared.alone[number],
            calls: calls.len(),
            tenant,
            is_complete,
        });
        let place = if self.config.sessions.len() > 1 { tenant as usize - 1 } else { 0 };
        self.start_session(now, place);
    }
}

impl SessionProgress {
    /// The calls that no longer wait for a sub-agent, and when they come.
    fn take_ready(&mut self, calls: &[CallPlan]) -> Vec<(Instant, usize)> {
        let mut ready = Vec::new();
        let threads = &self.threads;
        self.waiting.retain(|&(number, earliest)| {
            let ends = calls[number].waits_for.iter();
            let mut ends = ends.map(|&(it, after)| threads[it as usize].map(|end| end + after));
            // It waits until all of them have ended.
            let Some(at) = ends.try_fold(earliest, |at, end| end.map(|it| at.max(it))) else { return true };
            ready.push((at, number));
            false
        });
        ready
    }
}
