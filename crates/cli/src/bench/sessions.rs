//! Plays sessions of agents in real time, as closed loops: the next call comes its think time after the answer, however late
//! that was. What comes next is decided by the same code as in a replay.
//!
//! Times of a call count from when it was due, as in an open loop. The think time after it counts from the end of its answer.

use std::sync::Arc;
use std::time::Duration;

use maitre_base::Instant;
use maitre_sim::sessions::SessionTrace;
use maitre_sim::sessions::closed_loop::{EndedSession, SessionLoop, SessionPlans};
use maitre_sim::sessions::tasks::PlayedSession;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Plan;
use super::play::{Run, watch};
use super::played::Played;

/// Sessions to play.
#[derive(Clone, Debug)]
pub struct Sessions {
    pub trace: SessionTrace,
    /// How many are open at once, of each tenant.
    pub open: Vec<u32>,
    /// How long each takes in an empty fleet; empty if that is not known.
    pub alone: Vec<Duration>,
}

/// What happens to a call.
enum CallStep {
    Due { call: usize, due: Instant },
    Answered { call: usize, done: Instant },
    Lost { call: usize },
}

/// Plays all sessions, or until `ended`, when open calls are cut off. From time to time calls `show` with the elapsed time
/// and the results so far.
pub async fn play_sessions_until(
    plan: &Plan,
    sessions: &Sessions,
    ended: impl Future<Output = ()>,
    show: impl Fn(Duration, &Played),
) -> Played {
    let run = Arc::new(Run::new(plan, &sessions.trace.trace.requests));
    let mut closed = ClosedLoop::new(run.clone(), sessions);
    tokio::select! {
        () = closed.play() => {}
        () = watch(&run, show) => {}
        () = ended => {}
    }
    drop(closed);
    run.take_played()
}

struct ClosedLoop<'a> {
    run: Arc<Run>,
    sessions: &'a Sessions,
    state: SessionLoop<'a>,
    steps: JoinSet<CallStep>,
    /// Sessions that are not over, and calls without an answer.
    open: usize,
    in_flight: usize,
    places: Arc<Semaphore>,
}

impl<'a> ClosedLoop<'a> {
    fn new(run: Arc<Run>, sessions: &'a Sessions) -> ClosedLoop<'a> {
        let trace = &sessions.trace;
        let plans = SessionPlans { calls: &trace.calls, sessions: &trace.sessions };
        let place = |session: usize| sessions.place(session);
        let state = SessionLoop::new(plans, place, sessions.open.len());
        let places = Arc::new(Semaphore::new(run.plan.concurrency));
        ClosedLoop { run, sessions, state, steps: JoinSet::new(), open: 0, in_flight: 0, places }
    }

    async fn play(&mut self) {
        let now = self.run.clock.now();
        for (tenant, &count) in self.sessions.open.iter().enumerate() {
            (0..count).for_each(|_| self.start(now, tenant));
        }
        // Then only calls of lost sessions are left, which may be due in a day.
        while (self.open > 0 || self.in_flight > 0)
            && let Some(step) = self.steps.join_next().await
        {
            match step {
                Ok(CallStep::Due { call, due }) => self.send(call, due),
                Ok(CallStep::Answered { call, done }) => {
                    self.in_flight -= 1;
                    self.answered(call, done);
                }
                Ok(CallStep::Lost { call }) => {
                    self.in_flight -= 1;
                    self.lost(call);
                }
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // A task that was cut off belongs to a run that is.
                    Err(_) => return,
                },
            }
        }
    }

    fn start(&mut self, now: Instant, tenant: usize) {
        if let Some(call) = self.state.start(now, tenant) {
            self.open += 1;
            self.wait(call, now);
        }
    }

    /// The call comes at its time.
    fn wait(&mut self, call: usize, due: Instant) {
        let clock = self.run.clock;
        self.steps.spawn(async move {
            clock.until(due).await;
            CallStep::Due { call, due }
        });
    }

    fn send(&mut self, call: usize, due: Instant) {
        if !self.state.arrive(call) {
            return;
        }
        let request = &self.sessions.trace.trace.requests[call];
        let order = match self.run.order(request, due) {
            Ok(order) => order,
            Err(trouble) => {
                self.run.played.lock().lose(&request.label(), &trouble);
                return self.lost(call);
            }
        };
        let (run, places) = (self.run.clone(), self.places.clone());
        self.in_flight += 1;
        self.steps.spawn(async move {
            let Some(place) = run.take_place(&places).await else { return CallStep::Lost { call } };
            match run.serve(order, place).await {
                Some(done) => CallStep::Answered { call, done },
                None => CallStep::Lost { call },
            }
        });
    }

    fn answered(&mut self, call: usize, done: Instant) {
        let after = self.state.answer(done, call);
        for (due, next) in after.next {
            self.wait(next, due);
        }
        if let Some(ended) = after.ended {
            self.end(done, ended, true);
        }
    }

    fn lost(&mut self, call: usize) {
        if let Some(ended) = self.state.lose(call) {
            self.run.played.lock().planned -= ended.dropped as u64;
            self.end(self.run.clock.now(), ended, false);
        }
    }

    fn end(&mut self, now: Instant, ended: EndedSession, is_complete: bool) {
        let calls = self.sessions.trace.sessions[ended.number].calls();
        self.run.played.lock().sessions.push(PlayedSession {
            number: ended.number,
            began: ended.began,
            took: now.since(ended.began),
            alone: self.sessions.alone.get(ended.number).copied(),
            calls: calls.len(),
            tenant: self.sessions.trace.trace.requests[calls.start].tenant,
            is_complete,
        });
        self.open -= 1;
        self.start(now, self.sessions.place(ended.number));
    }
}

impl Sessions {
    /// Which of the tenants a session belongs to.
    fn place(&self, session: usize) -> usize {
        let first = self.trace.sessions[session].calls().start;
        let tenant = self.trace.trace.requests[first].tenant as usize;
        if self.open.len() > 1 { tenant - 1 } else { 0 }
    }
}
