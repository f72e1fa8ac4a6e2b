//! Where a worker pulls KV cache from another one that holds it.
//!
//! A source that is dead or silent would hold the request up for half a minute, so its first token has a limit. Nothing is
//! passed on before there is content: until then another worker can answer, or the same one without the pull.

use std::sync::Arc;

use maitre_dialect::legs::peer::PeerSource;
use maitre_dispatch::{Failure, Placement, PullFrom};
use tokio::time::timeout;
use tracing::debug;

use super::exchange::{Outbound, StartedResponse};
use super::place::Leg;
use super::prefill::until_content;
use super::token_ids::send_asking;
use crate::lane::Lane;
use crate::link::Link;

/// Sends the request with the place of the KV cache. If that worker has left meanwhile, sends it plain.
pub(super) async fn pull(
    lane: &Lane,
    outbound: Outbound<'_>,
    link: Arc<Link>,
    (placement, from): (Placement, PullFrom),
) -> Result<Box<StartedResponse>, Failure> {
    let source = lane.state.brain.link(from.worker);
    let Some((host, port)) = source.as_ref().and_then(|it| it.pull.as_ref()) else {
        return send_asking(&lane.upstreams, outbound, link, placement).await;
    };
    let kv_request_id = lane.state.request_ids.of_transfer();
    let peer = PeerSource { kv_request_id: &kv_request_id, host, port: *port };
    let outbound = Outbound { leg: Leg::Pull(peer), ..outbound };
    let answer = async {
        let started = send_asking(&lane.upstreams, outbound, link.clone(), placement).await?;
        match from.limit {
            Some(_) => until_content(lane, outbound.arrived, started).await,
            None => Ok(started),
        }
    };
    let outcome = match from.limit {
        Some(limit) => timeout(limit, answer).await.unwrap_or_else(|_| {
            let from = source.as_ref().map_or("", |it| &it.url);
            link.failed(format!("no token within {limit:?} while it was to pull KV cache from {from}"));
            debug!(worker = link.url, from, ?limit, "a pull took too long");
            Err(Failure::Handoff)
        }),
        None => answer.await,
    };
    lane.state.metrics.splits.pulled(outcome.is_ok(), from.tokens);
    outcome
}
