//! Programs: sequences of calls that extend one context, such as the sessions of an agent.
//!
//! A program's context stays in its worker's KV cache while a tool runs or a person reads. When the contexts of all open
//! programs outgrow the caches, least recently used eviction throws every one of them out before its next call: each call
//! then computes its whole prompt again. So memory is given to programs, not to requests. A program that has memory at a
//! worker is **resident** there, and its calls go at once. A call of any other program is **held** until a worker has
//! memory for its context. While memory suffices, nothing is held and nothing changes.
//!
//! A resident program that is idle gives way when waiting for it costs more than computing its context again: `think`
//! learns how long that is. Of those the one that has been idle longest goes first: the chance that it returns is the
//! smallest; it is also the one that the engine evicts. When contexts outgrow their worker and none has been idle for so long,
//! the smallest goes: attention makes a token of a long context dearer to compute again.
//!
//! A program is known by its session, or by its chain of prefixes: `lineage` finds the program whose last prompt a new
//! one extends.
//!
//! Left out: what programs share (a system prompt counts once for each), and the end of a program, which nobody reports.

mod cache_ttl;
pub(crate) mod held;
pub(crate) mod lineage;
mod memory;
mod room;
pub(crate) mod think;
mod thunder;
pub mod view;

use std::collections::BTreeSet;
use std::time::Duration;

use maitre_base::hash::{self, NumberMap};
use maitre_base::{Instant, RequestId, TenantId, Tokens, WorkerId};
use maitre_fleet::{Fleet, Wanted, WorkerSnapshot};

use crate::cache::PromptChain;
use held::{HeldCall, HeldCalls};
use lineage::{Lineage, Mark};
use memory::{IdleProgram, Memory, WorkerMemory};
use room::Room;
use think::ThinkTimes;
use view::{HoldEnd, HoldTallies};

/// Programs that are known at a time; each takes about 300 bytes. Beyond it the one that has been idle longest is forgotten.
pub const PROGRAMS_MAX: usize = 65_536;
/// The part of a cache that programs may fill. The engine needs the rest for answers and for prompts of no program.
const FILL: f64 = 0.95;
/// The part up to which held calls are admitted. Contexts grow with every call: without the difference, a program that was
/// just admitted soon pushes another out. Of 0.95, 0.85 and 0.75, tasks of 128 sessions were shortest with this.
const ADMITTED: f64 = 0.85;
/// What a second of displaced prefill costs, in seconds of the request's own. Who is displaced not only computes its context
/// again: it is held for minutes before, and its return displaces others. With 1, calls whose contexts had
/// 128 million tokens left the worker with their memory, of 167 million that were computed; 4, 100 and 1,000 made tasks 9, 19
/// and 15 % shorter at 0.4 of the memory.
const DISPLACED: f64 = 100.0;
/// Idle programs of a worker that are looked at for what a call displaces there; a price is asked for every worker and call.
const GIVES_WAY_MAX: usize = 64;
/// The block of a prompt that tells the threads of a session apart: sub-agents have other instructions. As in `arrival`.
const THREAD_BLOCK: usize = 16;

maitre_base::words! {
    /// How memory is given to programs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum ProgramRule {
        /// Programs are not looked at.
        #[default]
        Off = "off",
        /// By their working sets, as above.
        WorkingSet = "working-set",
        /// `ThunderAgent`'s, as published: every 5 s, programs whose tools run are paused, the smallest first, where a
        /// cache is nearly full.
        ThunderAgent = "thunder-agent",
        /// `CacheTTL`'s, as published: an idle program keeps its memory for the time that maximises what a return saves less
        /// what keeping costs; first come, first served by programs.
        CacheTtl = "cache-ttl",
    }
}

impl std::str::FromStr for ProgramRule {
    type Err = String;

    fn from_str(text: &str) -> Result<ProgramRule, String> {
        let rule = ProgramRule::ALL.into_iter().find(|it| it.name() == text);
        rule.ok_or_else(|| {
            format!("no rule is called \"{text}\"; known: off, working-set, thunder-agent, cache-ttl")
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramSettings {
    pub rule: ProgramRule,
    /// A call that was held this long goes, whatever the memory.
    pub wait_max: Duration,
}

impl Default for ProgramSettings {
    fn default() -> ProgramSettings {
        // The clients of the big APIs give up after ten minutes.
        ProgramSettings { rule: ProgramRule::Off, wait_max: Duration::from_mins(9) }
    }
}

/// Identifies a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramId(pub u64);

/// A program that no call belongs to.
const UNKNOWN: ProgramId = ProgramId(0);

/// A call of a program, as it comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramCall<'a> {
    pub(crate) program: ProgramId,
    pub(crate) tenant: TenantId,
    pub(crate) wanted: Wanted,
    /// Of its context.
    pub(crate) tokens: u64,
    pub(crate) prompt: Option<&'a PromptChain>,
}

#[derive(Clone, Copy, Debug)]
struct Program {
    tenant: TenantId,
    /// What a worker must serve to have memory for it: the model of its last call.
    wanted: Wanted,
    /// Tokens of its context after its last call.
    tokens: u64,
    /// Where its context has memory.
    worker: Option<WorkerId>,
    calls: u32,
    /// Calls that were admitted and have not ended.
    in_flight: u32,
    held: u32,
    /// When its first call came.
    began: Instant,
    /// When its last call ended, or came.
    idle_since: Instant,
    /// `ThunderAgent`'s rule has paused it.
    is_paused: bool,
    /// Where its last call went, for people.
    last: Option<WorkerId>,
    /// What its next prompt has if it extends the last one.
    mark: Option<Mark>,
}

impl Program {
    /// Before its first call.
    fn new(now: Instant, call: &ProgramCall<'_>) -> Program {
        Program {
            tenant: call.tenant,
            wanted: call.wanted,
            tokens: 0,
            worker: None,
            calls: 0,
            in_flight: 0,
            held: 0,
            began: now,
            idle_since: now,
            is_paused: false,
            last: None,
            mark: None,
        }
    }

    /// Whether this call begins a new context, and no call needs the old one: a client has summed its conversation up, or removed
    /// old results from it. What memory the old context has is of no use any more.
    fn is_rewritten_by(&self, call: &ProgramCall<'_>) -> bool {
        let is_idle = self.in_flight + self.held == 0;
        is_idle && self.mark.zip(call.prompt).is_some_and(|(mark, prompt)| !mark.is_in(prompt))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Programs {
    settings: ProgramSettings,
    programs: NumberMap<Program>,
    /// Idle programs, those idle longest first.
    idle: BTreeSet<(Instant, ProgramId)>,
    memory: Memory,
    pub(crate) held: HeldCalls,
    /// Since the last look at the held calls, of which none could go, memory was given back, a call came or left, or a tick
    /// passed. A look tries up to eight calls at every worker, and most events change nothing of that.
    is_changed: bool,
    lineage: Lineage,
    think: ThinkTimes,
    /// When `ThunderAgent`'s rule ran last.
    swept: Instant,
    /// The mean time that a call is held, in seconds.
    hold_seconds: f64,
    /// How holds ended, for people.
    tallies: HoldTallies,
}

impl Programs {
    pub(crate) fn new(settings: ProgramSettings) -> Programs {
        Programs { settings, ..Programs::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.settings.rule != ProgramRule::Off
    }

    pub(crate) fn retune(&mut self, settings: ProgramSettings) {
        self.settings = settings;
        self.is_changed = true;
    }

    /// The program of this call; none while programs are off, or without a name and a prompt.
    pub(crate) fn identify(&mut self, named: Option<u64>, prompt: Option<&PromptChain>) -> Option<ProgramId> {
        if !self.is_on() {
            return None;
        }
        match (named, prompt) {
            (Some(name), prompt) => Some(thread(name, prompt)),
            (None, Some(prompt)) => self.lineage.identify(prompt),
            (None, None) => None,
        }
    }

    /// The same for a call that does not come; a program that is not known has an id of no other.
    pub(crate) fn find(&self, named: Option<u64>, prompt: Option<&PromptChain>) -> Option<ProgramId> {
        match (named, prompt) {
            _ if !self.is_on() => None,
            (Some(name), prompt) => Some(thread(name, prompt)),
            (None, Some(prompt)) => {
                lineage::is_long(prompt).then(|| self.lineage.find(prompt).unwrap_or(UNKNOWN))
            }
            (None, None) => None,
        }
    }

    /// A call has come.
    pub(crate) fn called(&mut self, now: Instant, call: &ProgramCall<'_>) {
        let (id, tokens) = (call.program, call.tokens);
        if self.is_rewritten(call) {
            self.unsettle(id);
        }
        let program = self.programs.entry(id.0).or_insert(Program::new(now, call));
        if program.calls > 0 && program.in_flight + program.held == 0 {
            self.think.observe(now.since(program.idle_since));
        }
        self.idle.remove(&(program.idle_since, id));
        if let Some(worker) = program.worker {
            self.memory.at(worker).end_idle(id, program);
            self.is_changed |= tokens < program.tokens;
            self.memory.resize(program.tenant, worker, (program.tokens, tokens));
        }
        (program.tokens, program.wanted) = (tokens, call.wanted);
        program.mark = call.prompt.and_then(Mark::of);
        // The tenant of a program is that of its first call: what it has is counted there.
        program.calls = program.calls.saturating_add(1);
        program.held += 1;
        self.forget_surplus();
    }

    /// Whether this call gives up the memory of its program: where the old context is useless, the new one waits for memory like
    /// any other, and goes where there is most. Tasks were 0 to 3 % shorter in eight runs on shuffled sessions, and the slowdown of
    /// small ones 9.9 instead of 18.1. The published rules know no contexts.
    fn is_rewritten(&self, call: &ProgramCall<'_>) -> bool {
        let program = self.programs.get(&call.program.0);
        self.settings.rule == ProgramRule::WorkingSet && program.is_some_and(|it| it.is_rewritten_by(call))
    }

    /// Whether a call of this program goes now. If it does, it counts as in flight.
    pub(crate) fn admit(&mut self, now: Instant, id: ProgramId, fleet: &Fleet) -> bool {
        let may_go = match self.settings.rule {
            ProgramRule::Off => true,
            ProgramRule::WorkingSet | ProgramRule::CacheTtl => self.has_memory(now, id, fleet),
            ProgramRule::ThunderAgent => self.is_active(id, fleet),
        };
        if may_go {
            self.force(id);
        }
        may_go
    }

    /// A call goes, whatever the memory.
    pub(crate) fn force(&mut self, id: ProgramId) {
        if let Some(program) = self.programs.get_mut(&id.0) {
            program.held = program.held.saturating_sub(1);
            program.in_flight += 1;
            program.is_paused = false;
        }
    }

    /// Whether the program is resident, or a worker has memory for it: then it is resident there.
    fn has_memory(&mut self, now: Instant, id: ProgramId, fleet: &Fleet) -> bool {
        let Some(program) = self.programs.get(&id.0).copied() else { return true };
        match self.room(now, &program, fleet) {
            Some(Room::At(worker)) => self.settle(now, id, worker, fleet),
            Some(Room::AsItIs) => {}
            None => return false,
        }
        true
    }

    /// Gives the program memory at this worker, and takes it from those that give way first.
    fn settle(&mut self, now: Instant, id: ProgramId, worker: WorkerId, fleet: &Fleet) {
        self.unsettle(id);
        let Some(program) = self.programs.get_mut(&id.0) else { return };
        program.worker = Some(worker);
        self.memory.resize(program.tenant, worker, (0, program.tokens));
        self.make_room(now, worker, fleet);
    }

    /// Idle programs give way while this worker has too many.
    fn make_room(&mut self, now: Instant, worker: WorkerId, fleet: &Fleet) {
        let Some(capacity) = capacity(fleet, worker) else { return };
        let slope = fleet.worker(worker).map_or(0.0, |it| it.rates.prefill.slope);
        loop {
            let before = self.memory.used(worker);
            let Some(next) = self.gives_way(now, worker, slope).filter(|_| before > capacity) else {
                return;
            };
            self.unsettle(next);
            let after = self.memory.used(worker);
            debug_assert!(after < before, "an idle program had no memory");
            if after >= before {
                return;
            }
        }
    }

    /// The idle program that gives way next at this worker, where computing a token takes so many seconds.
    fn gives_way(&self, now: Instant, worker: WorkerId, slope: f64) -> Option<ProgramId> {
        let memory = self.memory.get(worker)?;
        let &IdleProgram { since, id: longest, tokens } = memory.idle.front()?;
        let is_kept = now.since(since) < self.keep(tokens as f64 * slope);
        let smallest =
            memory.sizes.first().filter(|_| is_kept && self.settings.rule == ProgramRule::WorkingSet);
        Some(smallest.map_or(longest, |it| it.1))
    }

    /// Takes the program's memory away.
    fn unsettle(&mut self, id: ProgramId) {
        let Some(program) = self.programs.get_mut(&id.0) else { return };
        let Some(worker) = program.worker.take() else { return };
        self.is_changed = true;
        self.memory.at(worker).end_idle(id, program);
        self.memory.resize(program.tenant, worker, (program.tokens, 0));
    }

    /// A call of this program, if it is one, was placed at this worker.
    pub(crate) fn placed(&mut self, now: Instant, id: Option<ProgramId>, worker: WorkerId, fleet: &Fleet) {
        let Some(id) = id else { return };
        if self.programs.get(&id.0).is_some_and(|it| it.worker != Some(worker)) {
            self.settle(now, id, worker, fleet);
        }
        if let Some(program) = self.programs.get_mut(&id.0) {
            program.last = Some(worker);
        }
    }

    /// A call that was admitted has ended, and left a context of so many tokens.
    pub(crate) fn ended(&mut self, now: Instant, id: ProgramId, tokens: u64, fleet: &Fleet) {
        let Some(program) = self.programs.get_mut(&id.0) else { return };
        // The program was forgotten and came back while the call was under way.
        if program.in_flight == 0 {
            return;
        }
        program.in_flight -= 1;
        self.is_changed = true;
        let before = std::mem::replace(&mut program.tokens, tokens);
        let is_idle = program.in_flight + program.held == 0;
        if is_idle {
            program.idle_since = now;
            self.idle.insert((now, id));
        }
        let Some(worker) = program.worker else { return };
        self.memory.resize(program.tenant, worker, (before, tokens));
        if is_idle {
            self.memory.at(worker).begin_idle(id, program);
        }
        if matches!(self.settings.rule, ProgramRule::WorkingSet | ProgramRule::CacheTtl) {
            self.make_room(now, worker, fleet);
        }
    }

    /// A held call has left.
    pub(crate) fn left(&mut self, now: Instant, id: ProgramId) {
        let Some(program) = self.programs.get_mut(&id.0) else { return };
        program.held = program.held.saturating_sub(1);
        self.is_changed = true;
        if program.in_flight + program.held == 0 {
            program.idle_since = now;
            self.idle.insert((now, id));
            if let Some(worker) = program.worker {
                self.memory.at(worker).begin_idle(id, program);
            }
        }
    }

    /// The worker is gone, and what it held.
    pub(crate) fn worker_gone(&mut self, worker: WorkerId) {
        self.is_changed = true;
        for program in self.programs.values_mut() {
            program.last = program.last.filter(|&it| it != worker);
            if program.worker == Some(worker) {
                self.memory.resize(program.tenant, worker, (program.tokens, 0));
                program.worker = None;
            }
        }
        *self.memory.at(worker) = WorkerMemory::default();
    }

    /// What others lose at each of these workers, in seconds, if this program, or a request of none, takes so many tokens there.
    pub(crate) fn displaced_seconds(
        &self,
        now: Instant,
        (id, tokens): (Option<ProgramId>, u64),
        at: &[WorkerSnapshot],
        seconds: &mut Vec<f64>,
    ) {
        let program = id.and_then(|it| self.programs.get(&it.0));
        let own = program.and_then(|it| Some((it.worker?, it.tokens)));
        seconds.extend(at.iter().map(|at| {
            let (Some(memory), Some(room)) = (self.memory.get(at.worker), at.room) else { return 0.0 };
            let own = own.filter(|it| it.0 == at.worker).map_or(0, |it| it.1);
            let others = memory.tokens - own.min(memory.tokens);
            let over = (others + tokens).saturating_sub(fillable(room.capacity)).min(others);
            if over == 0 || self.settings.rule != ProgramRule::WorkingSet {
                return 0.0;
            }
            let over = self.after_those_that_give_way(now, over, (memory, id), at.prefill.slope);
            DISPLACED * over as f64 * at.prefill.slope
        }));
    }

    /// So many tokens less what those have that have been idle for so long that they give way first: they lose nothing, as most of
    /// them have ended, which nobody reports. While they counted as well, tasks of programs without a name, which leave more
    /// behind, took 4 % longer at 0.7 of the memory (64 at once, five orders of the sessions).
    fn after_those_that_give_way(
        &self,
        now: Instant,
        mut over: u64,
        (memory, without): (&WorkerMemory, Option<ProgramId>),
        slope: f64,
    ) -> u64 {
        // By their places: an iterator over a queue costs more than the one or two steps that it makes here.
        for idle in (0..GIVES_WAY_MAX).map_while(|it| memory.idle.get(it)) {
            if over == 0 || now.since(idle.since) < self.keep(idle.tokens as f64 * slope) {
                break;
            }
            if Some(idle.id) != without {
                over = over.saturating_sub(idle.tokens);
            }
        }
        over
    }

    // Held calls.

    /// Keeps a call until there is memory. Returns whether it is held: a list that is full lets it go.
    pub(crate) fn hold(&mut self, now: Instant, request: RequestId, id: ProgramId) -> bool {
        let Some(program) = self.programs.get(&id.0) else { return false };
        let call = self.held_call(request, (id, program), now);
        let is_held = self.held.push(call);
        self.is_changed |= is_held;
        if !is_held {
            self.tallies.count(HoldEnd::ListFull, Duration::ZERO);
        }
        is_held
    }

    /// A call of this program that is held from now on.
    fn held_call(&self, request: RequestId, (id, program): (ProgramId, &Program), now: Instant) -> HeldCall {
        let by_program = self.settings.rule == ProgramRule::CacheTtl;
        HeldCall {
            request,
            program: id,
            tenant: program.tenant,
            wanted: program.wanted,
            since: now,
            queued_from: if by_program { program.began } else { now },
            is_begun: by_program || program.calls > 1,
        }
    }

    /// The next held call that may go, which is then in flight. Weights are those of tenants.
    pub(crate) fn release(
        &mut self,
        now: Instant,
        fleet: &Fleet,
        weight: impl Fn(TenantId) -> f64,
    ) -> Option<(RequestId, Instant)> {
        if !self.is_changed || self.held.is_empty() {
            return None;
        }
        let late = self.held.oldest().filter(|it| now.since(it.since) >= self.settings.wait_max);
        if let Some(call) = late {
            self.force(call.program);
            return Some(self.end_hold(now, &call, HoldEnd::Waited));
        }
        for call in self.held.next(now, |it| self.memory.share(it) / weight(it)) {
            if self.admit(now, call.program, fleet) {
                return Some(self.end_hold(now, &call, HoldEnd::Memory));
            }
        }
        self.is_changed = false;
        None
    }

    /// A held call goes; other calls of its program are next.
    fn end_hold(&mut self, now: Instant, call: &HeldCall, end: HoldEnd) -> (RequestId, Instant) {
        self.held.remove(call.request);
        self.held.bring_forward(call.program);
        self.learn_hold(now.since(call.since));
        self.tallies.count(end, now.since(call.since));
        (call.request, call.since)
    }

    /// Learns, and applies the rules that go by the clock.
    pub(crate) fn tick(&mut self, now: Instant, fleet: &Fleet) {
        if !self.is_on() {
            return;
        }
        self.think.settle();
        self.is_changed = true;
        if self.settings.rule == ProgramRule::ThunderAgent {
            self.sweep(now, fleet);
        }
    }

    fn forget_surplus(&mut self) {
        while self.programs.len() > PROGRAMS_MAX {
            let Some((at, id)) = self.idle.pop_first() else { return };
            debug_assert!(self.programs.get(&id.0).is_none_or(|it| it.idle_since == at), "idle since then");
            self.unsettle(id);
            self.programs.remove(&id.0);
        }
    }
}

/// A thread of the session of this name: those with other instructions are programs of their own.
fn thread(name: u64, prompt: Option<&PromptChain>) -> ProgramId {
    let block = prompt.and_then(|it| it.chain.iter().take(THREAD_BLOCK).next_back());
    ProgramId(hash::pair(name, block.map_or(0, |it| it.0)))
}

/// The tokens that programs may fill at this worker; none if it has not said how much it holds.
fn capacity(fleet: &Fleet, worker: WorkerId) -> Option<u64> {
    Some(fillable(fleet.worker(worker)?.capacity()?))
}

fn fillable(capacity: Tokens) -> u64 {
    (capacity.0 as f64 * FILL) as u64
}
