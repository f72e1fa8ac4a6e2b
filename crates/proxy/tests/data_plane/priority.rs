//! The class of a request reaches the engine if the operator wants it to, and no other byte changes.

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;

use crate::fixture::{Fixture, TestResponse, chat, engine_settings, fixture_with, post, settings, within};

const CHAT: &str = "/v1/chat/completions";

async fn fixture(forward_priority: bool) -> Fixture {
    let engine = maitre_sim::http::HostConfig { bodies_max: 10, ..engine_settings() };
    let mut settings = settings();
    settings.hints.forward_priority = forward_priority;
    let fixture = fixture_with(1, engine, settings).await;
    // Once its metrics are read, the engine is detected.
    within(fixture.router.until(|brain| brain.fleet().workers().all(|it| it.report.is_some()))).await;
    fixture
}

fn asking(path: &str, body: &str, class: &'static str) -> Request<Full<Bytes>> {
    let mut request = post(path, body.to_owned());
    request.headers_mut().insert("x-maitre-class", HeaderValue::from_static(class));
    request
}

/// The body of the last request, as the engine got it.
fn received(fixture: &Fixture) -> String {
    let bodies = fixture.engines[0].handle().bodies();
    String::from_utf8(bodies.last().unwrap().body.to_vec()).unwrap()
}

#[track_caller]
fn check_refused(answer: &TestResponse, part: &str) {
    let json = answer.json();
    assert_eq!((answer.status.as_u16(), json["error"]["code"].as_str()), (400, Some("bad_header")), "{json}");
    assert!(json["error"]["message"].as_str().unwrap().contains(part), "{json}");
}

#[tokio::test]
async fn an_engine_gets_the_class_as_its_own_priority() {
    let fixture = fixture(true).await;
    let mut client = fixture.client().await;
    let body = chat(1, false);
    for (class, number) in [("interactive", 0), ("standard", 1), ("batch", 2)] {
        let answer = client.ask(asking(CHAT, &body, class)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(received(&fixture), body.replacen('{', &format!("{{\"priority\":{number},"), 1));
    }
    // The client's number is about our classes, and becomes the engine's priority.
    let urgent = body.replacen('{', "{ \"priority\" : -7 , ", 1);
    assert_eq!(client.post(CHAT, urgent.clone()).await.status, 200);
    assert_eq!(received(&fixture), urgent.replace("-7", "0"));
    fixture.until_nothing_is_open().await;
}

#[tokio::test]
async fn by_default_no_byte_of_a_body_changes() {
    let fixture = fixture(false).await;
    let mut client = fixture.client().await;
    let body = chat(1, false).replacen('{', "{ \"priority\" : 7 , ", 1);
    assert_eq!(client.ask(asking(CHAT, &body, "batch")).await.unwrap().status, 200);
    assert_eq!(received(&fixture), body);
}

#[tokio::test]
async fn a_bad_header_of_ours_gets_an_error_that_lists_valid_values() {
    let fixture = fixture(false).await;
    let mut client = fixture.client().await;
    let answer = client.ask(asking(CHAT, &chat(1, false), "gold")).await.unwrap();
    check_refused(&answer, "interactive, standard, batch");
    let mut request = post(CHAT, chat(1, false));
    request.headers_mut().insert("x-maitre-deadline-ms", HeaderValue::from_static("5s"));
    check_refused(&client.ask(request).await.unwrap(), "x-maitre-deadline-ms");
    assert!(fixture.engines[0].handle().bodies().is_empty());
    fixture.until_nothing_is_open().await;
}
