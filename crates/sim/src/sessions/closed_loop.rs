//! Sessions as closed loops. A fixed number per tenant is open at once, and the next begins when one ends. An agent's
//! next call comes its think time after the answer.
//!
//! It has no clock of its own: `lab` drives it in virtual time, and `maitre bench` in real time.

use std::collections::VecDeque;
use std::time::Duration;

use maitre_base::Instant;

use super::{AgentSession, CallPlan};

/// What sessions add to a trace: when its requests are sent.
#[derive(Clone, Copy, Debug)]
pub struct SessionPlans<'a> {
    pub calls: &'a [CallPlan],
    pub sessions: &'a [AgentSession],
}

/// The sessions of a run.
#[derive(Clone, Debug)]
pub struct SessionLoop<'a> {
    plans: SessionPlans<'a>,
    /// The sessions that have not begun, by tenant.
    unstarted: Vec<VecDeque<usize>>,
    progress: Vec<SessionProgress>,
}

#[derive(Clone, Debug, Default)]
struct SessionProgress {
    began: Instant,
    /// When each thread ended.
    threads: Vec<Option<Instant>>,
    /// Calls that wait for sub-agents: the call, and the earliest time at which it may be sent.
    waiting: Vec<(usize, Instant)>,
    arrived: usize,
    /// A call was refused or failed: the session is over.
    is_lost: bool,
}

/// What follows from an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AfterAnswer {
    /// Calls by their numbers, and when each comes.
    pub next: Vec<(Instant, usize)>,
    /// It was the last answer of its session.
    pub ended: Option<EndedSession>,
}

/// A session that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedSession {
    pub number: usize,
    pub began: Instant,
    /// Calls that will not be sent.
    pub dropped: usize,
}

impl<'a> SessionLoop<'a> {
    /// The sessions of each tenant, in the order of the trace.
    pub fn new(plans: SessionPlans<'a>, tenant: impl Fn(usize) -> usize, tenants: usize) -> SessionLoop<'a> {
        let mut unstarted = vec![VecDeque::new(); tenants.max(1)];
        for number in 0..plans.sessions.len() {
            unstarted[tenant(number)].push_back(number);
        }
        let progress = plans.sessions.iter().map(|it| SessionProgress {
            threads: vec![None; it.threads.len()],
            ..SessionProgress::default()
        });
        SessionLoop { plans, unstarted, progress: progress.collect() }
    }

    /// Begins the next session of this tenant, if one is left. Returns its first call, to be sent now.
    pub fn start(&mut self, now: Instant, tenant: usize) -> Option<usize> {
        let number = self.unstarted[tenant].pop_front()?;
        self.progress[number].began = now;
        Some(self.plans.sessions[number].threads[0].start)
    }

    /// A call arrives. Returns whether its session is still in progress.
    pub fn arrive(&mut self, call: usize) -> bool {
        let progress = &mut self.progress[self.plans.calls[call].session as usize];
        progress.arrived += 1;
        !progress.is_lost
    }

    /// A call was answered.
    pub fn answer(&mut self, now: Instant, call: usize) -> AfterAnswer {
        let plan = &self.plans.calls[call];
        let (number, thread) = (plan.session as usize, plan.thread as usize);
        let progress = &mut self.progress[number];
        if progress.is_lost {
            return AfterAnswer::default();
        }
        let threads = &self.plans.sessions[number].threads;
        let mut next: Vec<(Instant, usize)> =
            plan.starts.iter().map(|&(it, after)| (now + after, threads[it as usize].start)).collect();
        if call + 1 < threads[thread].end {
            let think = match self.plans.calls[call + 1].waits_for.is_empty() {
                true => self.plans.calls[call + 1].think,
                false => Duration::ZERO,
            };
            progress.waiting.push((call + 1, now + think));
        } else {
            progress.threads[thread] = Some(now);
        }
        next.extend(progress.take_ready(self.plans.calls));
        let is_over = progress.threads.iter().all(Option::is_some);
        let ended = EndedSession { number, began: progress.began, dropped: 0 };
        AfterAnswer { next, ended: is_over.then_some(ended) }
    }

    /// A call was refused or failed: its session is over, and its other calls are not sent. `None` if it was over
    /// before.
    pub fn lose(&mut self, call: usize) -> Option<EndedSession> {
        let number = self.plans.calls[call].session as usize;
        let progress = &mut self.progress[number];
        if std::mem::replace(&mut progress.is_lost, true) {
            return None;
        }
        let dropped = self.plans.sessions[number].calls().len() - progress.arrived;
        Some(EndedSession { number, began: progress.began, dropped })
    }
}

impl SessionProgress {
    /// The calls that no longer wait for a sub-agent, and when to send them.
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
