//! Requests whose first token is overdue get a second attempt, and the first answer wins.

use std::time::Duration;

use maitre_proxy::RouterSettings;
use maitre_sim::http::fault::{Fault, Injection};

use crate::fixture::{Fixture, chat, engine_settings, fixture_with, settings, until_counted, within};

/// A deadline of a second: with instant engines a request is hedged shortly before.
fn hedging(are_on: bool) -> RouterSettings {
    let mut settings = settings();
    settings.brain.hedges.are_on = are_on;
    settings.brain.hedges.share = 1.0;
    for class in &mut settings.brain.queue.classes {
        class.deadline = Some(Duration::from_secs(1));
    }
    settings
}

async fn warm(fixture: &Fixture) {
    // What a first token takes must be known, and the budget earned.
    for _ in 0..6 {
        let answer = fixture.client().await.post("/v1/chat/completions", chat(3, true)).await;
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test]
async fn a_stalled_worker_is_outpaced_and_left() {
    let fixture = fixture_with(2, engine_settings(), hedging(true)).await;
    warm(&fixture).await;
    let stalled = fixture.engines[0].handle();
    stalled.inject(Injection::always(Fault::Stall));
    let mut words = Vec::new();
    for _ in 0..2 {
        let answer = within(fixture.client().await.post("/v1/chat/completions", chat(3, true))).await;
        assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
        assert!(answer.header("x-maitre-worker").ends_with(&fixture.engines[1].addr().to_string()));
        words.push(answer.header("x-maitre-hedge").to_owned());
    }
    assert!(words.contains(&"won".to_owned()), "{words:?}");
    until_counted(&fixture.router, r#"maitre_hedges_total{outcome="won"}"#, 1.0).await;
    // Cancelled at once: the stalled engine has no request left.
    within(stalled.until(|it| it.requests_open == 0)).await;
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn without_hedges_nothing_is_sent_twice() {
    let fixture = fixture_with(2, engine_settings(), hedging(false)).await;
    warm(&fixture).await;
    assert!(!fixture.router.metrics().contains("maitre_hedges_total{"));
    fixture.until_nothing_is_open().await;
}
