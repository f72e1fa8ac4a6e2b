//! What a request says of its class reaches the engine if the operator wants it to, and no other byte changes.

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;

use crate::table::{Answer, Table, chat, engine_settings, post, settings, table_with, within};

const CHAT: &str = "/v1/chat/completions";

async fn table(forward_priority: bool) -> Table {
    let engine = maitre_sim::http::Settings { bodies_max: 10, ..engine_settings() };
    let mut settings = settings();
    settings.door.forward_priority = forward_priority;
    let table = table_with(1, engine, settings).await;
    // Whose metrics are read, its brand is known.
    within(table.router.until(|brain| brain.fleet().workers().all(|it| it.report.is_some()))).await;
    table
}

fn asking(path: &str, body: &str, class: &'static str) -> Request<Full<Bytes>> {
    let mut request = post(path, body.to_owned());
    request.headers_mut().insert("x-maitre-class", HeaderValue::from_static(class));
    request
}

/// The body of the last request, as the engine got it.
fn received(table: &Table) -> String {
    let bodies = table.engines[0].handle().bodies();
    String::from_utf8(bodies.last().unwrap().body.to_vec()).unwrap()
}

#[track_caller]
fn check_refused(answer: &Answer, part: &str) {
    let json = answer.json();
    assert_eq!((answer.status.as_u16(), json["error"]["code"].as_str()), (400, Some("bad_header")), "{json}");
    assert!(json["error"]["message"].as_str().unwrap().contains(part), "{json}");
}

#[tokio::test]
async fn an_engine_is_told_the_class_in_its_own_order() {
    let table = table(true).await;
    let mut client = table.client().await;
    let body = chat(1, false);
    for (class, number) in [("interactive", 0), ("standard", 1), ("batch", 2)] {
        let answer = client.ask(asking(CHAT, &body, class)).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(received(&table), body.replacen('{', &format!("{{\"priority\":{number},"), 1));
    }
    // Its own number was about our classes, and is put into the engine's words.
    let urgent = body.replacen('{', "{ \"priority\" : -7 , ", 1);
    assert_eq!(client.post(CHAT, urgent.clone()).await.status, 200);
    assert_eq!(received(&table), urgent.replace("-7", "0"));
    table.until_nothing_is_open().await;
}

#[tokio::test]
async fn unless_it_is_asked_for_no_byte_of_a_body_changes() {
    let table = table(false).await;
    let mut client = table.client().await;
    let body = chat(1, false).replacen('{', "{ \"priority\" : 7 , ", 1);
    assert_eq!(client.ask(asking(CHAT, &body, "batch")).await.unwrap().status, 200);
    assert_eq!(received(&table), body);
}

#[tokio::test]
async fn a_header_of_ours_that_cannot_be_read_is_told_what_could() {
    let table = table(false).await;
    let mut client = table.client().await;
    let answer = client.ask(asking(CHAT, &chat(1, false), "gold")).await.unwrap();
    check_refused(&answer, "interactive, standard, batch");
    let mut request = post(CHAT, chat(1, false));
    request.headers_mut().insert("x-maitre-deadline-ms", HeaderValue::from_static("5s"));
    check_refused(&client.ask(request).await.unwrap(), "x-maitre-deadline-ms");
    assert!(table.engines[0].handle().bodies().is_empty());
    table.until_nothing_is_open().await;
}
