//! Programs: what has KV memory, and which calls are held until theirs have.

use crate::schema::view;
use crate::text::Text;

view! {
    /// Programs and their working set. Programs are named by a part of a hash: their names may be secrets.
    ProgramsView {
        /// `working-set`, `thunder-agent` or `cache-ttl`.
        rule: Text,
        ..
        known: u64,
        /// Those with KV memory at a worker.
        resident: u64,
        /// Those with a call in flight.
        running: u64,
        /// Those with a call that is held.
        held: u64,
        calls_held: u64,
        /// Of the call that is held longest; null if none is.
        held_longest_ms: Option<f64>,
        /// The working set: tokens of the resident programs.
        resident_tokens: u64,
        held_tokens: u64,
        /// The KV memory of all workers; null if one of them has not said.
        kv_tokens: Option<u64>,
        workers: Vec<ProgramMemory>,
        /// Held longest first, at most 20.
        calls: Vec<HeldCallView>,
        /// Those with memory first, the largest first, at most 20.
        programs: Vec<ProgramView>,
        holds_ended: Vec<HoldsEnded>,
    }

    /// The memory that programs have at one worker.
    ProgramMemory {
        worker: u32,
        ..
        url: Text,
        programs: u64,
        idle: u64,
        tokens: u64,
        /// Null if the engine has not said.
        kv_tokens: Option<u64>,
    }

    /// One program.
    ProgramView {
        program: Text,
        /// `running`, `idle` (with memory), `held` or `no-memory`.
        state: Text,
        ..
        /// Masked: a tenant's name may be a key.
        tenant: Option<Text>,
        /// Where its context has memory.
        worker: Option<u32>,
        url: Option<Text>,
        tokens: u64,
        calls: u32,
        /// Since its last call ended; null while one is under way or held.
        idle_ms: Option<f64>,
    }

    /// A call that is held.
    HeldCallView(hold: HoldView) {
        program: Text,
        ..
        /// The request's id.
        id: Option<Text>,
        tenant: Option<Text>,
        /// Calls of its program so far, with this one.
        calls: u32,
        held_ms: f64,
    }

    /// Why a call is held, or would be.
    HoldView {
        /// Tokens that its program needs.
        tokens: u64,
        ..
        /// The worker with the most memory that no program fills.
        roomiest: Option<u32>,
        roomiest_url: Option<Text>,
        /// The part of its KV cache that programs fill.
        roomiest_usage: Option<f64>,
        /// Held calls that are tried before it.
        ahead: u32,
        /// It goes after so long, whatever the memory.
        at_latest_ms: f64,
    }

    /// Calls whose hold ended in one way, since the start.
    HoldsEnded {
        /// `memory`, `waited`, `deadline`, `disconnected` or `list-full`.
        reason: Text,
        ..
        calls: u64,
        /// How long they were held together.
        held_ms: f64,
    }

    /// A decision about a call of a program.
    ProgramStepView {
        program: Text,
        ..
        /// Its calls so far, with this one.
        calls: u32,
        /// Where the call before went; null for the first one.
        last_worker: Option<u32>,
        last_url: Option<Text>,
        /// How long this call was held.
        held_ms: f64,
        /// What its memory costs the other programs of the chosen worker: the prefill of what they lose. A part of the term
        /// `room`.
        memory_ms: f64,
        /// The same at the worker of the call before, if that was a candidate.
        last_memory_ms: Option<f64>,
    }
}
