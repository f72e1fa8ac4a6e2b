//! Asks a worker for the token ids of its stream, and no more if it refuses.
//!
//! SGLang has versions that refuse the field for chats and versions that do not know it. A request that a worker refused
//! is sent to it once more as the client wrote it. That happens until the worker has shown which kind it is.

use std::sync::Arc;

use maitre_dialect::route::Route;
use maitre_dispatch::{Failure, Placement};

use super::exchange::{Outbound, StartedResponse, send};
use crate::link::{Link, TokenIdReply};
use crate::refuse::is_clients_fault;
use crate::upstreams::Upstreams;

/// Sends a request, asking for token ids where that is wanted.
pub(super) async fn send_asking(
    upstreams: &Upstreams,
    outbound: Outbound<'_>,
    link: Arc<Link>,
    placement: Placement,
) -> Result<Box<StartedResponse>, Failure> {
    let started = send(upstreams, outbound, link.clone(), placement).await?;
    let route = outbound.arrived.route().filter(|_| started.form.asks_ids);
    // A chat that was made of a message has an error of another form.
    let is_asked_again = |it: &Route| *it == Route::Messages || !link.has_replied(*it, TokenIdReply::Sent);
    let Some(route) = route.filter(is_asked_again) else { return Ok(started) };
    if !is_clients_fault(started.head.status) {
        return Ok(started);
    }
    let plain = outbound.rewrite.without_ids();
    let again = Outbound { rewrite: &plain, ..outbound };
    let started = send(upstreams, again, link.clone(), placement).await?;
    // A worker that has sent ids refuses some requests that it would take without them, not the ids.
    if started.head.status.is_success() && !link.has_replied(route, TokenIdReply::Sent) {
        link.note_token_ids(route, TokenIdReply::Refused);
    }
    Ok(started)
}
