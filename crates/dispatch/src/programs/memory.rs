//! The memory of workers, as programs have it: what is resident where, which of it is idle, and each tenant's part.

use std::collections::{BTreeSet, VecDeque};

use maitre_base::hash::NumberMap;
use maitre_base::{Instant, TenantId, WorkerId};

use super::{Program, ProgramId};

/// A resident program that is idle.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdleProgram {
    pub(super) since: Instant,
    pub(super) id: ProgramId,
    pub(super) tokens: u64,
}

impl IdleProgram {
    fn new(id: ProgramId, program: &Program) -> IdleProgram {
        IdleProgram { since: program.idle_since, id, tokens: program.tokens }
    }

    fn order(&self) -> (Instant, ProgramId) {
        (self.since, self.id)
    }
}

/// The memory of one worker.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerMemory {
    /// Tokens of the programs that are resident.
    pub(super) tokens: u64,
    /// Those of them that are idle, those idle longest first, and by their size. The first is a queue and no tree, because every
    /// price reads its beginning at every worker, and a tree takes several waits for memory to get there.
    pub(super) idle: VecDeque<IdleProgram>,
    pub(super) sizes: BTreeSet<(u64, ProgramId)>,
}

impl WorkerMemory {
    pub(super) fn begin_idle(&mut self, id: ProgramId, program: &Program) {
        let idle = IdleProgram::new(id, program);
        // Nearly always the last: it is idle from now on.
        let place = match self.idle.back() {
            Some(last) if last.order() > idle.order() => self.place(&idle),
            _ => self.idle.len(),
        };
        self.idle.insert(place, idle);
        self.sizes.insert((program.tokens, id));
    }

    /// Called before its tokens change.
    pub(super) fn end_idle(&mut self, id: ProgramId, program: &Program) {
        let idle = IdleProgram::new(id, program);
        let place = self.place(&idle);
        if self.idle.get(place).is_some_and(|it| it.order() == idle.order()) {
            self.idle.remove(place);
        }
        self.sizes.remove(&(program.tokens, id));
    }

    /// Where it is among the idle ones, or would be.
    fn place(&self, idle: &IdleProgram) -> usize {
        self.idle.partition_point(|it| it.order() < idle.order())
    }
}

/// The memory of all workers.
#[derive(Debug, Default)]
pub(super) struct Memory {
    workers: Vec<WorkerMemory>,
    /// Tokens of resident programs, by tenant.
    shares: NumberMap<u64>,
}

impl Memory {
    pub(super) fn workers(&self) -> impl Iterator<Item = &WorkerMemory> {
        self.workers.iter()
    }

    pub(super) fn get(&self, worker: WorkerId) -> Option<&WorkerMemory> {
        self.workers.get(worker.index())
    }

    /// Tokens of the programs that are resident at this worker.
    pub(super) fn used(&self, worker: WorkerId) -> u64 {
        self.get(worker).map_or(0, |it| it.tokens)
    }

    pub(super) fn at(&mut self, worker: WorkerId) -> &mut WorkerMemory {
        if worker.index() >= self.workers.len() {
            self.workers.resize_with(worker.index() + 1, WorkerMemory::default);
        }
        &mut self.workers[worker.index()]
    }

    /// The tokens of a tenant's program at this worker change from the first number to the second.
    pub(super) fn resize(&mut self, tenant: TenantId, worker: WorkerId, (from, to): (u64, u64)) {
        let resident = &mut self.at(worker).tokens;
        *resident = resident.saturating_sub(from) + to;
        let share = self.shares.entry(tenant.0).or_default();
        *share = share.saturating_sub(from) + to;
        if *share == 0 {
            self.shares.remove(&tenant.0);
        }
    }

    /// Tokens of a tenant's resident programs.
    pub(super) fn share(&self, tenant: TenantId) -> f64 {
        self.shares.get(&tenant.0).copied().unwrap_or(0) as f64
    }
}
