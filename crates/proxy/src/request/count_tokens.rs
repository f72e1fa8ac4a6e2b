//! `/v1/messages/count_tokens`: not every engine has it, so the request goes on until a worker does.
//!
//! The brain knows nothing of the APIs of engines. It places the request like any other; if that worker has no such path,
//! the router asks the others that serve the model, without a placement: counting takes no prefill.

use std::sync::Arc;
use std::time::Duration;

use maitre_fleet::{HealthState, Wanted};
use tokio::time::timeout;

use super::arrive::Arrived;
use super::exchange::{Outbound, StartedResponse, send};
use super::forward;
use super::guard::RequestGuard;
use super::place::{Leg, Placed};
use crate::link::Link;
use crate::refuse::{Refused, lacks_path};

/// Further workers that are asked. Workers of one model usually run the same engine.
const TRIES_MAX: usize = 4;

/// How long one of these may take: a tokenizer needs a second for the longest prompts.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn forward(
    guard: &mut RequestGuard,
    arrived: &Arc<Arrived>,
    placed: Placed,
) -> Result<Box<StartedResponse>, Refused> {
    let rewrite = placed.rewrite.clone();
    let first = forward::forward(guard, arrived, placed).await?;
    if !lacks_path(first.head.status) {
        return Ok(first);
    }
    for link in others(guard, arrived, &first)? {
        let outbound = Outbound { arrived, rewrite: &rewrite, leg: Leg::Whole };
        match timeout(PATIENCE, send(&guard.lane.upstreams, outbound, link, first.placement)).await {
            Ok(Ok(started)) if !lacks_path(started.head.status) => return Ok(started),
            _ => {}
        }
    }
    Err(Refused::NoWorkerHasPath { path: arrived.target.path().to_owned() })
}

/// Other ready workers that serve the model of this request.
fn others(
    guard: &RequestGuard,
    arrived: &Arrived,
    first: &StartedResponse,
) -> Result<Vec<Arc<Link>>, Refused> {
    let parsed = arrived.parse(&guard.settings)?;
    let model = parsed.as_ref().and_then(|it| it.request.model.as_deref());
    let brain = &guard.lane.state.brain;
    let ready: Vec<_> = brain.read(|brain| {
        let fleet = brain.fleet();
        let Some(model) = model.and_then(|it| fleet.model(it)) else { return Vec::new() };
        let fit = |state| matches!(state, HealthState::Ready | HealthState::Warming { .. });
        let ready = fleet.workers().filter(|it| it.serves(Wanted::Model(model)) && fit(it.health.state()));
        ready.map(|it| it.id).filter(|&it| it != first.link.worker).take(TRIES_MAX).collect()
    });
    Ok(ready.into_iter().filter_map(|it| brain.link(it)).collect())
}
