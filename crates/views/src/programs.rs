//! Programs: which have KV memory, and which calls the router holds until theirs do.

use crate::schema::view;
use crate::text::Text;

view! {
    /// Programs and their working set. Programs are named by a part of a hash: their names may be secrets.
    ProgramsView {
        /// `working-set`, `thunder-agent` or `cache-ttl`.
        rule: Text,
        ..
        known: u64,
        /// Programs with KV memory at a worker.
        resident: u64,
        /// Programs with a call in flight.
        running: u64,
        /// Programs with a held call.
        held: u64,
        calls_held: u64,
        /// The longest time that a call is held now; null if none is.
        held_longest_ms: Option<f64>,
        /// The working set: tokens of the resident programs.
        resident_tokens: u64,
        held_tokens: u64,
        /// The KV memory of all workers; null if one of them has not reported it.
        kv_tokens: Option<u64>,
        workers: Vec<ProgramMemory>,
        /// The longest held first, at most 20.
        calls: Vec<HeldCallView>,
        /// Programs with memory first, the largest first, at most 20.
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
        /// Null if the engine has not reported it.
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
        /// The worker where its context has memory.
        worker: Option<u32>,
        url: Option<Text>,
        tokens: u64,
        calls: u32,
        /// Time since its last call ended; null while a call is in flight or held.
        idle_ms: Option<f64>,
    }

    /// A held call.
    HeldCallView(hold: HoldView) {
        program: Text,
        ..
        /// The request's id.
        id: Option<Text>,
        tenant: Option<Text>,
        /// Calls of its program so far, this one included.
        calls: u32,
        held_ms: f64,
    }

    /// Why a call is held, or would be.
    HoldView {
        /// Tokens that its program needs.
        tokens: u64,
        ..
        /// The worker with the most memory that no program uses.
        roomiest: Option<u32>,
        roomiest_url: Option<Text>,
        /// The part of its KV cache that programs use.
        roomiest_usage: Option<f64>,
        /// Held calls that the router tries before it.
        ahead: u32,
        /// The call goes after this time, whatever the memory.
        at_latest_ms: f64,
    }

    /// Calls whose hold ended for one reason, since the start.
    HoldsEnded {
        /// `memory`, `waited`, `deadline`, `disconnected` or `list-full`.
        reason: Text,
        ..
        calls: u64,
        /// How long they were held in total.
        held_ms: f64,
    }

    /// A decision about a call of a program.
    ProgramStepView {
        program: Text,
        ..
        /// Its calls so far, this one included.
        calls: u32,
        /// The worker of the previous call; null for the first call.
        last_worker: Option<u32>,
        last_url: Option<Text>,
        /// How long this call was held.
        held_ms: f64,
        /// What its memory costs the other programs of the chosen worker: the prefill of what they lose. Part of the
        /// term `room`.
        memory_ms: f64,
        /// The same at the worker of the previous call, if that was a candidate.
        last_memory_ms: Option<f64>,
    }
}
