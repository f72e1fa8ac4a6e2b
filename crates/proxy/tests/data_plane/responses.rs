//! Requests that continue an earlier response go to the worker that holds it.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use maitre_proxy::{RouterSettings, Secret};
use serde_json::{Value, json};

use crate::fixture::{Client, Fixture, TestResponse, engine_settings, fixture_with, settings, within};

const KEY: &str = "the-key-of-the-operator";

async fn fleet() -> Fixture {
    let settings = RouterSettings { admin_key: Some(Secret::of(KEY.as_bytes())), ..settings() };
    fixture_with(3, engine_settings(), settings).await
}

async fn respond(fixture: &Fixture, more: Value) -> TestResponse {
    let mut body = json!({"model": "maitre-sim", "input": "a table for two", "max_output_tokens": 4});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fixture.client().await.post("/v1/responses", body.to_string()).await
}

/// The id of a response, in one piece or as a stream.
fn id(answer: &TestResponse) -> String {
    let text = answer.text();
    let (_, rest) = text.split_once("\"id\":\"resp_").unwrap_or_else(|| panic!("no id in {text}"));
    format!("resp_{}", rest.split('"').next().unwrap())
}

#[tokio::test]
async fn a_response_is_continued_where_it_was_given() {
    let fixture = fleet().await;
    for stream in [false, true] {
        let first = respond(&fixture, json!({"stream": stream})).await;
        let (id, worker) = (id(&first), first.header("x-maitre-worker").to_owned());
        for _ in 0..4 {
            let next = respond(&fixture, json!({"previous_response_id": id, "stream": stream})).await;
            assert_eq!((next.status.as_u16(), next.header("x-maitre-worker")), (200, worker.as_str()));
        }
    }
    within(fixture.until_nothing_is_open()).await;
}

#[tokio::test]
async fn a_conversation_stays_at_its_worker() {
    let fixture = fleet().await;
    let first = respond(&fixture, json!({"conversation": "conv_1"})).await;
    for conversation in [json!("conv_1"), json!({"id": "conv_1"}), json!("conv_1"), json!("conv_1")] {
        let next = respond(&fixture, json!({"conversation": conversation})).await;
        assert_eq!(next.header("x-maitre-worker"), first.header("x-maitre-worker"));
    }
}

#[tokio::test]
async fn a_worker_that_left_with_the_state_is_a_clear_error() {
    let fixture = fleet().await;
    let first = respond(&fixture, json!({})).await;
    let id = id(&first);
    let worker = first.header("x-maitre-worker");
    let number = fixture.engines.iter().position(|it| worker.ends_with(&it.addr().to_string())).unwrap();
    let request = Request::builder().method("DELETE").uri(format!("/admin/v1/workers/{number}"));
    let request = request.header("host", "maitre").header("authorization", format!("Bearer {KEY}"));
    let mut operator = Client::connect(fixture.router.admin()).await;
    let removed = operator.ask(request.body(Full::new(Bytes::new())).unwrap()).await.unwrap();
    assert_eq!(removed.status.as_u16(), 200, "{}", removed.text());
    within(fixture.router.until(|brain| brain.fleet().workers().count() == 2)).await;
    let next = respond(&fixture, json!({"previous_response_id": id})).await;
    assert_eq!((next.status.as_u16(), next.json()["error"]["code"].as_str()), (404, Some("state_lost")));
    // What no router remembers goes by price: its engine says whether it knows it.
    assert_eq!(respond(&fixture, json!({"previous_response_id": "resp_unknown"})).await.status.as_u16(), 200);
}
