//! Programs as views. A program is shown by a part of its hash: its name is the client's, and may be a secret.

use maitre_base::{Instant, TenantId, WorkerId};
use maitre_dispatch::Brain;
use maitre_dispatch::observer::decision::Decision;
use maitre_dispatch::programs::ProgramId;
use maitre_dispatch::programs::view::{
    HeldSummary, Hold, HoldEnd, HoldTally, ProgramSummary, ViewLimits, WorkerPrograms,
};
use maitre_views::programs::{
    HeldCallView, HoldView, HoldsEnded, ProgramMemory, ProgramStepView, ProgramView, ProgramsView,
};
use maitre_views::text::Text;

use crate::explain::millis;
use crate::state::RouterState;

/// Programs listed, and held calls.
const LISTED: ViewLimits = ViewLimits { programs: 20, held: 20 };

/// None while programs are off.
pub(super) fn view(router: &RouterState, now: Instant, brain: &Brain) -> Option<ProgramsView> {
    let seen = brain.programs(now, LISTED)?;
    let counts = seen.counts;
    let kv_tokens = seen.workers.iter().map(|it| it.kv_tokens).sum::<Option<u64>>();
    let ended = |&(end, tally): &(HoldEnd, HoldTally)| HoldsEnded {
        reason: end.name().into(),
        calls: tally.calls,
        held_ms: millis(tally.held.as_secs_f64()),
    };
    Some(ProgramsView {
        rule: brain.settings().programs.rule.name().into(),
        known: counts.known,
        resident: counts.resident,
        running: counts.running,
        held: counts.held,
        calls_held: counts.held_calls,
        held_longest_ms: (counts.held_calls > 0).then(|| millis(counts.held_longest.as_secs_f64())),
        resident_tokens: counts.resident_tokens,
        held_tokens: counts.held_tokens,
        kv_tokens,
        workers: seen.workers.iter().map(|it| memory(brain, it)).collect(),
        calls: seen.held.iter().map(|it| held_call(router, brain, it)).collect(),
        programs: seen.programs.iter().map(|it| program(router, brain, it)).collect(),
        holds_ended: seen.tallies.iter().map(ended).collect(),
    })
}

/// As tenants without a name are shown.
fn name(id: ProgramId) -> Text {
    format!("{:08x}", id.0 >> 32).into()
}

fn url(brain: &Brain, worker: WorkerId) -> Option<Text> {
    brain.fleet().worker(worker).map(|it| it.url.clone().into())
}

/// The tenant. Where clients have keys, it has a name in the settings. Elsewhere it is masked: its name may be a key.
pub(super) fn tenant(router: &RouterState, tenant: TenantId) -> Option<Text> {
    let settings = router.settings.load();
    if let Some(name) = settings.keys.tenant_name(tenant) {
        return Some(name.to_owned().into());
    }
    let known = settings.brain.queue.tenants.get(&tenant);
    let masked = || match known {
        Some(known) if !settings.keys.is_empty() => known.name.clone(),
        Some(known) => maitre_queue::settings::masked(&known.name),
        None => format!("{:08x}", tenant.0 >> 32),
    };
    (tenant != TenantId(0)).then(|| masked().into())
}

fn memory(brain: &Brain, it: &WorkerPrograms) -> ProgramMemory {
    ProgramMemory {
        worker: it.worker.0,
        url: url(brain, it.worker).unwrap_or_default(),
        programs: it.programs,
        idle: it.idle,
        tokens: it.tokens,
        kv_tokens: it.kv_tokens,
    }
}

fn program(router: &RouterState, brain: &Brain, it: &ProgramSummary) -> ProgramView {
    ProgramView {
        program: name(it.id),
        state: it.state.name().into(),
        tenant: tenant(router, it.tenant),
        worker: it.worker.map(|it| it.0),
        url: it.worker.and_then(|it| url(brain, it)),
        tokens: it.tokens,
        calls: it.calls,
        idle_ms: it.idle.map(|it| millis(it.as_secs_f64())),
    }
}

pub(super) fn held_call(router: &RouterState, brain: &Brain, it: &HeldSummary) -> HeldCallView {
    HeldCallView {
        hold: hold(brain, &it.hold),
        program: name(it.program),
        id: router.request_ids.of(it.request).map(|it| it.to_string().into()),
        tenant: tenant(router, it.tenant),
        calls: it.calls,
        held_ms: millis(it.held.as_secs_f64()),
    }
}

pub(super) fn hold(brain: &Brain, it: &Hold) -> HoldView {
    HoldView {
        tokens: it.tokens,
        roomiest: it.roomiest.map(|it| it.0.0),
        roomiest_url: it.roomiest.and_then(|it| url(brain, it.0)),
        roomiest_usage: it.roomiest.map(|it| it.1),
        ahead: it.ahead,
        at_latest_ms: millis(it.at_latest.as_secs_f64()),
    }
}

/// What a decision says of the program.
pub(super) fn step(brain: &Brain, decision: &Decision) -> Option<ProgramStepView> {
    let step = decision.program?;
    let price = |worker: WorkerId| {
        let at = decision.candidates.iter().find(|it| it.candidate.worker == worker);
        at.map(|it| millis(it.candidate.displaced_seconds))
    };
    Some(ProgramStepView {
        program: name(step.id),
        calls: step.calls,
        last_worker: step.last.map(|it| it.0),
        last_url: step.last.and_then(|it| url(brain, it)),
        held_ms: millis(step.held.as_secs_f64()),
        memory_ms: price(decision.worker).unwrap_or(0.0),
        last_memory_ms: step.last.and_then(price),
    })
}
