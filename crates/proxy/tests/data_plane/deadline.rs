//! Each wait has its own limit.

use std::time::Duration;

use maitre_proxy::RouterSettings;
use maitre_sim::http::fault::{Fault, Injection};

use crate::fixture::{Fixture, chat, engine_settings, fixture_with, settings};

const SHORT: Duration = Duration::from_millis(150);

async fn stalling(fault: Fault, limit: impl FnOnce(&mut RouterSettings)) -> Fixture {
    let mut settings = settings();
    limit(&mut settings);
    let fixture = fixture_with(2, engine_settings(), settings).await;
    for engine in &fixture.engines {
        engine.handle().inject(Injection::always(fault));
    }
    fixture
}

#[tokio::test]
async fn no_headers_in_time_is_a_504_and_no_second_attempt() {
    let fixture = stalling(Fault::Stall, |it| it.timeouts.headers = SHORT).await;
    let answer = fixture.client().await.post("/v1/chat/completions", chat(3, true)).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (504, &"timed_out".into()));
    fixture.until_nothing_is_open().await;
    let asked = |it: &maitre_sim::http::Host| it.handle().stats().engine.waiting;
    assert_eq!(fixture.engines.iter().map(asked).sum::<usize>(), 0);
}

#[tokio::test]
async fn no_first_token_in_time_is_a_504() {
    let fixture = stalling(Fault::StallAfterChunks { chunks: 0 }, |it| it.timeouts.first_token = SHORT).await;
    let answer = fixture.client().await.post("/v1/chat/completions", chat(3, true)).await;
    assert_eq!(answer.status, 504, "{}", answer.text());
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn silence_in_mid_stream_ends_it_with_an_error_event() {
    let fixture = stalling(Fault::StallAfterChunks { chunks: 2 }, |it| it.timeouts.inter_token = SHORT).await;
    let answer = fixture.client().await.post("/v1/chat/completions", chat(9, true)).await;
    let text = answer.text();
    assert!(text.contains("worker_stalled") && !text.contains("[DONE]"), "{text}");
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn the_whole_request_has_a_time_limit() {
    let fixture = stalling(Fault::StallAfterChunks { chunks: 2 }, |it| it.timeouts.total = SHORT).await;
    let answer = fixture.client().await.post("/v1/chat/completions", chat(9, true)).await;
    assert!(answer.text().contains("\"timed_out\""), "{}", answer.text());
    let fixture = stalling(Fault::Stall, |it| it.timeouts.total = SHORT).await;
    assert_eq!(fixture.client().await.post("/v1/chat/completions", chat(9, true)).await.status, 504);
    fixture.until_nothing_is_open().await;
}
