//! A drained worker hands its streams over: another worker goes on with each, and the drained one is left.
//!
//! Unlike a worker that has failed, this one still answers. So nothing is given up before the other worker's answer has
//! begun: if none goes on, the stream stays where it is and asks again a little later.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use maitre_base::Tokens;
use maitre_dialect::continuation::{Break, ContinuableStream};
use maitre_dispatch::{Event, SecondCause};
use maitre_net::wake_gate::Gated;
use tokio::time::sleep;

use super::super::exchange::StartedResponse;
use super::super::second::SecondAttempt;
use super::ResponseStream;
use super::continuation::{Continuation, Continuing, RestOf, attempt};
use crate::metrics::Continued;

/// After an attempt that failed. Chosen: a drain lasts seconds.
const AGAIN: Duration = Duration::from_secs(1);

impl Continuation {
    /// Ready if the stream should go on elsewhere, though its worker is healthy.
    pub(super) fn poll_hand_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.obstacle() {
            Some(_) => Poll::Pending,
            None => Pin::new(&mut self.hand_over).poll(cx),
        }
    }
}

/// Looks for a worker that goes on with the stream. The stream that comes back goes on there, or where it was.
pub(super) fn hand_over(mut stream: Box<ResponseStream>) -> Continuing {
    Box::pin(async move {
        match leave(&mut stream).await {
            Some((started, rest, second)) => {
                stream.guard.take_over(second.win(), |request, by| Event::HandedOver { request, by });
                stream.guard.lane.state.metrics.continuations.broke(Continued::HandedOver);
                stream.timer = None;
                if let Some(continuation) = &mut stream.continuation {
                    continuation.request.stream = rest;
                }
                stream.go_on_with(started);
            }
            None => {
                if let Some(continuation) = &mut stream.continuation {
                    let link = stream.link.clone();
                    continuation.hand_over = Gated::new(Box::pin(async move {
                        sleep(AGAIN).await;
                        link.hands_over().cancelled_owned().await;
                    }));
                }
            }
        }
        stream
    })
}

/// The response of the worker that goes on, and the stream as that one continues it. The old worker is not read meanwhile.
async fn leave(
    stream: &mut ResponseStream,
) -> Option<(Box<StartedResponse>, ContinuableStream, SecondAttempt)> {
    let ResponseStream { guard, continuation, .. } = stream;
    let request = &continuation.as_ref()?.request;
    let mut rest = request.stream.clone();
    let Break::Rest { tokens } = rest.break_off() else { return None };
    let second = SecondAttempt::ask(guard, SecondCause::HandOver { delivered: Tokens(tokens) })?;
    let arrived = request.arrived.as_deref()?;
    let mut rest_of = RestOf { arrived, rewrite: &request.rewrite, stream: &mut rest };
    let started = attempt(&guard.lane, &mut rest_of, second.placement).await.ok()?;
    Some((started, rest, second))
}
