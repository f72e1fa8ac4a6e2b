//! A worker that slows down and recovers, over sockets. `scripts/slowdown` plays the same at length.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use maitre_policy::Name;
use maitre_sim::http::HostConfig;
use maitre_sim::http::fault::{Fault, Injection};
use maitre_sim::profile::H200_8B;
use tokio::task::JoinSet;

use crate::fixture::{Fixture, fixture_with, settings};

const WORKERS: usize = 3;
const CLIENTS: u32 = 6;

/// Clients send this many requests, each the next one when its last one has ended. Returns the share of the second worker;
/// 1 is as many as the others get.
async fn share(fixture: &Fixture, sent: &Arc<AtomicU32>, requests: u32) -> f64 {
    let end = sent.load(Ordering::Relaxed) + requests;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (mut client, sent) = (fixture.client().await, sent.clone());
        clients.spawn(async move {
            let mut workers = Vec::new();
            loop {
                let number = sent.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    return workers;
                }
                let body = format!(
                    r#"{{"model":"maitre-sim","prompt":"{number} is like no other","max_tokens":6,"stream":true}}"#
                );
                let answer = client.post("/v1/completions", body).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                workers.push(answer.header("x-maitre-worker").to_owned());
            }
        });
    }
    let workers = clients.join_all().await.concat();
    let second = fixture.engines[1].addr().to_string();
    let there = workers.iter().filter(|it| it.ends_with(&second)).count();
    there as f64 / workers.len() as f64 * WORKERS as f64
}

#[tokio::test]
async fn a_worker_that_slows_down_loses_its_share_and_gets_it_back() {
    let mut engine = HostConfig::new(H200_8B);
    engine.speedup = 0.25;
    let mut settings = settings();
    settings.brain.strategy = Name::LeastDelay;
    let fixture = fixture_with(WORKERS, engine, settings).await;
    let sent = Arc::new(AtomicU32::new(0));
    until_it_has_its_share(&fixture, &sent).await;

    fixture.engines[1].handle().inject(Injection::always(Fault::Slow { factor: 10.0 }));
    share(&fixture, &sent, 50).await;
    let slow = share(&fixture, &sent, 150).await;
    assert!(slow < 0.45, "{slow:.2} while it is slow");

    fixture.engines[1].handle().clear_fault();
    until_it_has_its_share(&fixture, &sent).await;
}

/// Rates hold for at least four seconds, and fade in another four.
async fn until_it_has_its_share(fixture: &Fixture, sent: &Arc<AtomicU32>) {
    let mut shares = Vec::new();
    while !shares.last().is_some_and(|it| *it > 0.8) {
        shares.push(share(fixture, sent, 60).await);
        assert!(shares.len() < 40, "it does not get its share: {shares:.2?}");
    }
}
