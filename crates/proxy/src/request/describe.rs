//! Between arrival and placement: parses the body and tokenizes its prompt, which is all that the brain wants to know.
//!
//! A large body is described on a thread beside the lane: at 15 MB, parsing, rendering and hashing take long enough for
//! every other client of the lane to notice. What would be refused whatever its prompt is, is not tokenized.

use std::sync::Arc;

use maitre_base::{HandoffStyle, Instant, RequestId, TenantId};
use maitre_dialect::legs;
use maitre_dialect::openai::{self, BadRequest};
use maitre_dispatch::{Arrival, Brain};
use maitre_fleet::Wanted;
use maitre_queue::allowance::Budget;
use tokio::runtime::Handle;

use super::arrive::{Arrived, Urgency};
use super::coverage::Coverage;
use super::models;
use crate::keys::Caller;
use crate::lane::Lane;
use crate::record::RecordedPrompt;
use crate::refuse::{BodyLimit, Refused};
use crate::settings::RouterSettings;
use crate::tokenize::TokenizedPrompt;

/// The largest body that is described on its lane. Rendering twice as much takes 0.3 ms, once its older turns are
/// remembered.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// The largest body whose prompt is tokenized without asking first whether it would be refused: that costs a lock.
const UNASKED_BYTES_MAX: usize = 16 << 10;

/// A request as the brain will see it. Owned, so that it can be made on another thread.
pub(crate) struct Described {
    model: Option<String>,
    tokenized: Option<TokenizedPrompt>,
    /// Without the model and the prompt.
    facts: Arrival<'static>,
    /// None if engines need not know it.
    pub(super) urgency: Option<Urgency>,
    /// The salt of its tenant, for the worker.
    pub(super) salt: Option<String>,
    pub(super) coverage: Coverage,
}

impl Described {
    pub(crate) fn arrival(&self) -> Arrival<'_> {
        let prompt = self.tokenized.as_ref().and_then(|it| it.prompt.as_ref());
        Arrival { model: self.model.as_deref(), prompt, ..self.facts }
    }

    /// For the record, if there is one.
    pub(super) fn take_recorded(&mut self) -> Option<RecordedPrompt> {
        self.tokenized.as_mut()?.recorded.take()
    }
}

/// Describes a request, beside the lane if its body is large.
pub(crate) async fn describe(
    lane: &Arc<Lane>,
    settings: &Arc<RouterSettings>,
    request: RequestId,
    arrived: &Arc<Arrived>,
) -> Result<Described, Refused> {
    if arrived.body.len() <= INLINE_BYTES_MAX {
        return describe_here(lane, settings, request, arrived).await;
    }
    // Never closed.
    let permit = lane.state.tokenizer.work.large_bodies.clone().acquire_owned().await.ok();
    let (lane, settings, arrived) = (lane.clone(), settings.clone(), arrived.clone());
    let runtime = Handle::current();
    let describe = move || {
        let described = runtime.block_on(describe_here(&lane, &settings, request, &arrived));
        drop(permit);
        described
    };
    // It fails if the lane is being shut down.
    let described = tokio::task::spawn_blocking(describe).await;
    described.unwrap_or(Err(Refused::TooBusy(BodyLimit::All)))
}

async fn describe_here(
    lane: &Lane,
    settings: &RouterSettings,
    request: RequestId,
    arrived: &Arrived,
) -> Result<Described, Refused> {
    let Some(parsed) = arrived.parse(settings)? else {
        let (facts, urgency) = arrived.facts(settings, request, None)?;
        return Ok(Described {
            model: None,
            tokenized: None,
            facts,
            urgency,
            salt: None,
            coverage: Coverage::Off,
        });
    };
    let (state, body) = (&lane.state, &parsed.request);
    check_steering(arrived.caller(), body)?;
    models::check(&state.brain, arrived.caller(), body)?;
    let (facts, urgency) = arrived.facts(settings, request, Some(body))?;
    let is_refused = arrived.body.len() > UNASKED_BYTES_MAX && {
        let now = state.clock.now();
        let unserved = |brain: &Brain| is_unserved(brain, body.model.as_deref());
        state.brain.read(|brain| unserved(brain) || is_spent(brain, now, facts.tenant))
    };
    let tokenized = match is_refused {
        // The brain refuses it, and counts it as refused.
        true => TokenizedPrompt::unread(body),
        // Without asking the brain, which would take its lock.
        false if !settings.brain.reads_prompts() => TokenizedPrompt::unread(body),
        false => state.tokenizer.tokenize(&lane.upstreams, arrived.route(), body).await,
    };
    let (coverage, may_split) = match arrived.is_carried() {
        // A gateway sends it to one worker, once.
        true => (Coverage::Off, false),
        false => (Coverage::of(settings, arrived, &facts), may_split(arrived, state.brain.kv_styles())),
    };
    Ok(Described {
        model: body.model.as_deref().map(str::to_owned),
        facts: Arrival { size: tokenized.size, may_split, ..facts },
        tokenized: Some(tokenized),
        urgency,
        salt: parsed.salt,
        coverage,
    })
}

/// Whether the request's KV cache may come from another worker, which prefills it or holds it.
fn may_split(arrived: &Arrived, mut styles: impl Iterator<Item = HandoffStyle>) -> bool {
    let can = |style: HandoffStyle| {
        let route = arrived.route().filter(|&it| legs::serves(style, it));
        route.is_some_and(|it| matches!(legs::obstacle(style, it, &arrived.body), Ok(None)))
    };
    // Which way it will go is decided later.
    styles.next().is_some_and(can) && styles.all(can)
}

/// Whether no worker serves the model that the request names.
fn is_unserved(brain: &Brain, model: Option<&str>) -> bool {
    let fleet = brain.fleet();
    let wanted = |name| fleet.model(name).map_or(Wanted::Unlisted, Wanted::Model);
    model.is_some_and(|it| !fleet.anyone_serves(wanted(it)))
}

/// Whether the tenant has nothing left of a rate limit.
fn is_spent(brain: &Brain, now: Instant, tenant: TenantId) -> bool {
    let is_spent = |it: Option<Budget>| it.is_some_and(|it| it.remaining == 0);
    let budgets = brain.budgets(now, tenant);
    brain.settings().queue.enabled && (is_spent(budgets.requests) || is_spent(budgets.tokens))
}

/// Refuses a field that would control the engine itself, unless the caller may.
fn check_steering(caller: &Caller, parsed: &openai::Request<'_>) -> Result<(), Refused> {
    match parsed.steering {
        Some(field) if !caller.may_steer() => Err(Refused::BadRequest(BadRequest::Steering { field })),
        _ => Ok(()),
    }
}
