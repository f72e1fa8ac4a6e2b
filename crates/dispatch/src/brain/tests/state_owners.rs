//! Requests that continue an earlier response go to the worker that gave it, and nowhere else.

use super::*;
use crate::peers::{Outbox, PeerUpdate};

const STATE: u64 = 77;

fn arrive_with(harness: &mut Harness, request: u64, state: u64) -> Result<u32, Refusal> {
    let arrival = Arrival { state: Some(state), ..arrival(request, Some("llama")) };
    outcome(&harness.on(Event::Arrived(arrival)))
}

#[test]
fn a_request_follows_the_state_that_it_continues() {
    let mut harness = Harness::of(4);
    harness.on(Event::StateHeld { state: STATE, worker: WorkerId(2) });
    for request in 1..6 {
        assert_eq!(arrive_with(&mut harness, request, STATE), Ok(2));
    }
    // Of an unknown one the engine says whether it knows it.
    assert!(arrive_with(&mut harness, 9, 5).is_ok());
}

#[test]
fn a_lost_owner_is_an_error_and_an_unhealthy_one_is_waited_for() {
    let mut harness = Harness::of(3);
    harness.on(Event::StateHeld { state: STATE, worker: WorkerId(1) });
    harness.arrive(1, Some("llama")).unwrap();
    for _ in 0..9 {
        harness.on(Event::Probed { worker: WorkerId(1), evidence: Evidence::Refused });
    }
    assert_eq!(arrive_with(&mut harness, 2, STATE), Err(Refusal::NoWorker));
    harness.on(Event::WorkerGone { worker: WorkerId(1) });
    assert_eq!(arrive_with(&mut harness, 3, STATE), Err(Refusal::StateLost));
}

#[test]
fn another_router_learns_where_the_state_is() {
    let settings = BrainSettings { strategy: Name::RoundRobin, shares: true, ..BrainSettings::default() };
    let (mut here, mut there) = (Harness::with(3, settings.clone()), Harness::with(3, settings));
    here.on(Event::StateHeld { state: STATE, worker: WorkerId(2) });
    let mut outbox = Outbox::default();
    here.brain.take_outbox(&mut outbox);
    let (model, session, worker) = outbox.pinned[0];
    there.on(Event::Peers(PeerUpdate::Pinned { model, session, worker }));
    assert_eq!(arrive_with(&mut there, 1, STATE), Ok(2));
}
