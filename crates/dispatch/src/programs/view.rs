//! Programs as people see them: how many there are, what has memory, and which calls are held and why.
//!
//! Nothing here reaches a decision. A view walks once over all programs, at most 65,536, under the brain's lock. Lists are bounded, the largest or the longest held first.

use std::cmp::Reverse;
use std::time::Duration;

use maitre_base::{Instant, RequestId, TenantId, WorkerId};
use maitre_fleet::{Fleet, Wanted, Worker};

use super::held::HeldCall;
use super::{Program, ProgramCall, ProgramId, ProgramRule, Programs};

maitre_base::words! {
    /// How the hold of a call ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum HoldEnd {
        /// A worker had memory for its program.
        Memory = "memory",
        /// It was held for `programs.wait`, and went whatever the memory.
        Waited = "waited",
        /// It was refused: its own deadline had passed.
        Deadline = "deadline",
        /// Its client disconnected.
        Disconnected = "disconnected",
        /// It was not held at all, because too many were.
        ListFull = "list-full",
    }
}

/// Calls whose hold ended in one way, and how long they were held together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldTally {
    pub calls: u64,
    pub held: Duration,
}

/// By `HoldEnd`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HoldTallies([HoldTally; HoldEnd::ALL.len()]);

impl HoldTallies {
    pub(super) fn count(&mut self, end: HoldEnd, held: Duration) {
        let tally = &mut self.0[end as usize];
        tally.calls += 1;
        tally.held += held;
    }
}

/// What programs have in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCounts {
    pub known: u64,
    pub resident: u64,
    /// Those with a call at a worker, or in the queue.
    pub running: u64,
    /// Those with a call that is held.
    pub held: u64,
    /// Calls that are held.
    pub held_calls: u64,
    /// Tokens of all resident programs.
    pub resident_tokens: u64,
    /// Tokens of all programs with a call that is held.
    pub held_tokens: u64,
    /// How long the call that is held longest has been held.
    pub held_longest: Duration,
}

maitre_base::words! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ProgramState {
        /// A call is at a worker, or in the queue.
        Running = "running",
        /// Its context has memory, and its next call is awaited.
        Idle = "idle",
        /// A call waits for memory.
        Held = "held",
        /// It has no memory, and its next call is awaited.
        NoMemory = "no-memory",
    }
}

/// One program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramSummary {
    pub id: ProgramId,
    pub tenant: TenantId,
    pub state: ProgramState,
    /// Where its context has memory.
    pub worker: Option<WorkerId>,
    pub tokens: u64,
    pub calls: u32,
    /// How long no call of it has been under way.
    pub idle: Option<Duration>,
}

/// Why a call is held, or would be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hold {
    /// The tokens that its program needs.
    pub tokens: u64,
    /// The worker with the most memory that no program fills, and the part of its KV cache that programs fill.
    pub roomiest: Option<(WorkerId, f64)>,
    /// Held calls for its model that are tried before it.
    pub ahead: u32,
    /// When it goes, whatever the memory.
    pub at_latest: Duration,
}

/// A call of a program, in the record of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramStep {
    pub id: ProgramId,
    /// Its calls so far.
    pub calls: u32,
    /// Where the call before this one went; none for the first, and if that worker has left.
    pub last: Option<WorkerId>,
    /// How long this call was held.
    pub held: Duration,
}

/// A call that is held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldSummary {
    pub request: RequestId,
    pub program: ProgramId,
    pub tenant: TenantId,
    pub calls: u32,
    pub held: Duration,
    pub hold: Hold,
}

/// The memory of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPrograms {
    pub worker: WorkerId,
    pub programs: u64,
    pub idle: u64,
    /// Tokens of the programs that are resident there.
    pub tokens: u64,
    /// Tokens that its KV cache holds; none if it has not said.
    pub kv_tokens: Option<u64>,
}

impl WorkerPrograms {
    /// The part of its KV cache that programs fill; more than one while it has too many.
    pub fn usage(&self) -> Option<f64> {
        self.kv_tokens.map(|it| self.tokens as f64 / it.max(1) as f64)
    }
}

/// Everything about programs, at one instant.
#[derive(Clone, Debug, Default)]
pub struct ProgramsSnapshot {
    pub counts: ProgramCounts,
    /// Of each worker of the fleet, in order.
    pub workers: Vec<WorkerPrograms>,
    /// The largest, those with memory first.
    pub programs: Vec<ProgramSummary>,
    /// Held longest first.
    pub held: Vec<HeldSummary>,
    pub tallies: Vec<(HoldEnd, HoldTally)>,
}

/// The lengths of the two lists of a view.
#[derive(Clone, Copy, Debug, Default)]
pub struct ViewLimits {
    pub programs: usize,
    pub held: usize,
}

/// What people see of a brain, and by which weights tenants share.
pub(crate) struct Sight<'a, W> {
    pub(crate) now: Instant,
    pub(crate) fleet: &'a Fleet,
    pub(crate) weight: W,
}

impl Programs {
    /// None while programs are off.
    pub(crate) fn view<W: Fn(TenantId) -> f64>(
        &self,
        sight: &Sight<'_, W>,
        limits: ViewLimits,
    ) -> Option<ProgramsSnapshot> {
        if !self.is_on() {
            return None;
        }
        let counts = self.counts(sight.now);
        let mut workers: Vec<WorkerPrograms> =
            sight.fleet.workers().map(|it| self.worker_programs(it)).collect();
        let mut programs: Vec<ProgramSummary> = Vec::new();
        for (&id, program) in &self.programs {
            let place = program.worker.and_then(|at| workers.binary_search_by_key(&at, |it| it.worker).ok());
            if let Some(place) = place {
                workers[place].programs += 1;
            }
            if limits.programs > 0 {
                programs.push(summary(sight.now, ProgramId(id), program));
            }
        }
        // By id last: the order of the map is nobody's.
        let order = |it: &ProgramSummary| (it.worker.is_none(), Reverse(it.tokens), it.id);
        if programs.len() > limits.programs {
            programs.select_nth_unstable_by_key(limits.programs, order);
            programs.truncate(limits.programs);
        }
        programs.sort_unstable_by_key(order);
        let held = self.held_summaries(sight, limits.held);
        let tallies = HoldEnd::ALL.into_iter().zip(self.tallies.0).collect();
        Some(ProgramsSnapshot { counts, workers, programs, held, tallies })
    }

    pub(crate) fn counts(&self, now: Instant) -> ProgramCounts {
        let mut counts = ProgramCounts {
            known: self.programs.len() as u64,
            held_calls: self.held.len() as u64,
            resident_tokens: self.memory.workers().map(|it| it.tokens).sum(),
            held_longest: self.held.oldest().map_or(Duration::ZERO, |it| now.since(it.since)),
            ..ProgramCounts::default()
        };
        for program in self.programs.values() {
            counts.resident += u64::from(program.worker.is_some());
            counts.running += u64::from(program.in_flight > 0);
            counts.held += u64::from(program.held > 0);
            counts.held_tokens += if program.held > 0 { program.tokens } else { 0 };
        }
        counts
    }

    fn worker_programs(&self, worker: &Worker) -> WorkerPrograms {
        let memory = self.memory.get(worker.id);
        WorkerPrograms {
            worker: worker.id,
            programs: 0,
            idle: memory.map_or(0, |it| it.idle.len() as u64),
            tokens: memory.map_or(0, |it| it.tokens),
            kv_tokens: worker.capacity().map(|it| it.0),
        }
    }

    fn held_summaries<W: Fn(TenantId) -> f64>(&self, sight: &Sight<'_, W>, most: usize) -> Vec<HeldSummary> {
        if self.held.is_empty() || most == 0 {
            return Vec::new();
        }
        let places = self.held.places(|it| self.memory.share(it) / (sight.weight)(it));
        let summary = |call: &HeldCall| {
            let program = self.programs.get(&call.program.0);
            let held = sight.now.since(call.since);
            let ahead = places.get(&call.request.0).copied().unwrap_or(0);
            let hold = Hold {
                tokens: program.map_or(0, |it| it.tokens),
                roomiest: self.roomiest(call.wanted, sight.fleet),
                ahead,
                at_latest: self.settings.wait_max.saturating_sub(held),
            };
            HeldSummary {
                request: call.request,
                program: call.program,
                tenant: call.tenant,
                calls: program.map_or(0, |it| it.calls),
                held,
                hold,
            }
        };
        self.held.iter().take(most).map(summary).collect()
    }

    /// This call, if it is held.
    pub(crate) fn held_summary<W: Fn(TenantId) -> f64>(
        &self,
        sight: &Sight<'_, W>,
        request: RequestId,
    ) -> Option<HeldSummary> {
        let place = self.held.iter().position(|it| it.request == request)?;
        self.held_summaries(sight, place + 1).pop()
    }

    /// Why a call that comes now would be held; none if it would go.
    pub(crate) fn would_hold<W: Fn(TenantId) -> f64>(
        &self,
        sight: &Sight<'_, W>,
        call: &ProgramCall<'_>,
    ) -> Option<Hold> {
        let (id, tokens, wanted) = (call.program, call.tokens, call.wanted);
        let known = self.programs.get(&id.0).copied();
        let mut program = Program { tokens, wanted, ..known.unwrap_or(Program::new(sight.now, call)) };
        program.worker = program.worker.filter(|_| !self.is_rewritten(call));
        let goes = match self.settings.rule {
            ProgramRule::Off => true,
            ProgramRule::WorkingSet | ProgramRule::CacheTtl => {
                self.room(sight.now, &program, sight.fleet).is_some()
            }
            ProgramRule::ThunderAgent => self.active_room(&program, sight.fleet).is_some(),
        };
        let ahead = || {
            let share = |it: TenantId| self.memory.share(it) / (sight.weight)(it);
            // `calls` counts this one once it has come.
            let program = Program { calls: program.calls.saturating_add(1), ..program };
            let call = self.held_call(RequestId(u64::MAX), (id, &program), sight.now);
            self.held.ahead_of(&call, share) as u32
        };
        (!goes && !self.held.is_full()).then(|| Hold {
            tokens,
            roomiest: self.roomiest(wanted, sight.fleet),
            ahead: ahead(),
            at_latest: self.settings.wait_max,
        })
    }

    /// The worker for this with the most memory that no program fills, and the part that they fill.
    fn roomiest(&self, wanted: Wanted, fleet: &Fleet) -> Option<(WorkerId, f64)> {
        let fit = fleet.workers().filter(|it| it.is_fit() && it.serves(wanted));
        let free = fit.filter_map(|it| {
            let (memory, capacity) = (self.memory.used(it.id), it.capacity()?.0);
            let part = memory as f64 / capacity.max(1) as f64;
            Some((capacity as i64 - memory as i64, it.id, part))
        });
        // Of equals the first.
        free.max_by_key(|it| (it.0, Reverse(it.1))).map(|it| (it.1, it.2))
    }

    /// What a decision about a call of this program should say, before the call is placed.
    pub(crate) fn step(&self, id: Option<ProgramId>, held: Duration) -> Option<ProgramStep> {
        let id = id?;
        let program = self.programs.get(&id.0);
        let (calls, last) = (program.map_or(0, |it| it.calls), program.and_then(|it| it.last));
        Some(ProgramStep { id, calls, last, held })
    }

    /// A call that is held, if it is, leaves without going.
    pub(crate) fn count_lost(&mut self, now: Instant, request: RequestId, end: HoldEnd) {
        if let Some(call) = self.held.get(request) {
            self.tallies.count(end, now.since(call.since));
        }
    }
}

fn summary(now: Instant, id: ProgramId, program: &Program) -> ProgramSummary {
    let state = match (program.held > 0, program.in_flight > 0, program.worker.is_some()) {
        (_, true, _) => ProgramState::Running,
        (true, false, _) => ProgramState::Held,
        (false, false, true) => ProgramState::Idle,
        (false, false, false) => ProgramState::NoMemory,
    };
    let is_idle = matches!(state, ProgramState::Idle | ProgramState::NoMemory);
    ProgramSummary {
        id,
        tenant: program.tenant,
        state,
        worker: program.worker,
        tokens: program.tokens,
        calls: program.calls,
        idle: is_idle.then(|| now.since(program.idle_since)),
    }
}
