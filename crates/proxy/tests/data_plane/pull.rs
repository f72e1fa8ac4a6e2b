//! A worker pulls KV cache from another one that holds it, and what happens if that one does not answer.

use std::time::Duration;

use maitre_policy::Name;
use maitre_proxy::settings::BrokenStreams;
use maitre_proxy::{Router, RouterSettings};
use maitre_sim::http::transfer::{Connector, PeerConfig, TransferConfig};
use maitre_sim::http::{Host, HostConfig};
use maitre_sim::profile::H100X2_32B;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::fixture::{ANYWHERE, Fixture, TestResponse, metric, settings, within};

/// A prefix of about 6,000 tokens, half a second of prefill.
const PREFIX: usize = 6_000;

fn engine() -> HostConfig {
    let peer = PeerConfig { timeout: Duration::from_secs(60) };
    let transfer = TransferConfig::new(Connector::Peer(peer), ANYWHERE, &H100X2_32B);
    HostConfig { transfer: Some(transfer), bodies_max: 10, ..HostConfig::new(H100X2_32B) }
}

fn pulling() -> RouterSettings {
    let mut settings = settings();
    settings.brain.strategy = Name::LeastDelay;
    settings
}

/// Two engines that can pull from each other, at these ports or at their own.
async fn pair(mut settings: RouterSettings, pull_port: Option<u16>) -> Fixture {
    let mut engines = Vec::new();
    for _ in 0..2 {
        let host = Host::bind(ANYWHERE, engine()).await.unwrap();
        let port = pull_port.unwrap_or(host.side_channel().unwrap().port());
        settings.workers.push(format!("http://{}?pull={port}", host.addr()).parse().unwrap());
        engines.push(host);
    }
    let router = Router::start(settings).await.unwrap();
    within(router.until_all_ready()).await;
    Fixture { router, engines }
}

/// A chat that begins with the prefix and goes on with so many words of its own.
fn chat(own: usize, words: usize) -> String {
    let prefix = "menu ".repeat(PREFIX);
    let rest = format!("w{own} ").repeat(words);
    format!(
        r#"{{"model":"maitre-sim","messages":[{{"role":"user","content":"{prefix}{rest}"}}],"max_tokens":2,"stream":true}}"#
    )
}

/// One engine computes the prefix; then four requests for it come at once, more than that engine serves without delay.
async fn five_chats(fixture: &Fixture) -> Vec<TestResponse> {
    let mut answers = vec![fixture.client().await.post("/v1/chat/completions", chat(1, 1)).await];
    let mut asked = JoinSet::new();
    for own in 2..6 {
        let mut client = fixture.client().await;
        asked.spawn(async move { client.post("/v1/chat/completions", chat(own, 3_000)).await });
    }
    answers.extend(within(asked.join_all()).await);
    for answer in &answers {
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    }
    answers
}

#[tokio::test]
async fn a_worker_pulls_what_another_holds() {
    let fixture = pair(pulling(), None).await;
    let answers = five_chats(&fixture).await;
    let pulled = answers.iter().filter(|it| it.headers.contains_key("x-maitre-pull-worker"));
    let pulled: Vec<&TestResponse> = pulled.collect();
    assert!(!pulled.is_empty());
    for answer in &pulled {
        assert_ne!(answer.header("x-maitre-pull-worker"), answer.header("x-maitre-worker"));
    }
    let bodies: Vec<Value> = (fixture.engines.iter())
        .flat_map(|it| it.handle().bodies())
        .map(|it| serde_json::from_slice(&it.body).unwrap())
        .filter(|it: &Value| it.get("kv_transfer_params").is_some())
        .collect();
    assert_eq!(bodies.len(), pulled.len());
    let ports = fixture.engines.iter().map(|it| it.side_channel().unwrap().port());
    let ports: Vec<u16> = ports.collect();
    for body in &bodies {
        let from = &body["kv_transfer_params"]["remote_kv_source"];
        assert!(ports.iter().any(|it| from["remote_port"] == *it), "{from}");
        assert!(from["kv_request_id"].as_str().is_some_and(|it| it.starts_with("maitre-")), "{from}");
        assert_eq!(body["max_tokens"], 2, "the rest is the client's");
    }
    let page = fixture.router.metrics();
    assert_eq!(metric(&page, r#"maitre_pulls_total{outcome="answered"}"#), pulled.len() as f64);
    assert!(metric(&page, "maitre_pulled_tokens_total") > PREFIX as f64 / 2.0, "{page}");
    within(fixture.until_nothing_is_open()).await;
}

#[tokio::test]
async fn a_stream_that_pulls_can_be_continued() {
    let fixture = pair(RouterSettings { broken_streams: BrokenStreams::Continue, ..pulling() }, None).await;
    within(fixture.router.until(|brain| brain.fleet().workers().all(|it| it.report.is_some()))).await;
    let answers = five_chats(&fixture).await;
    assert!(answers.iter().any(|it| it.headers.contains_key("x-maitre-pull-worker")));
    within(fixture.until_nothing_is_open()).await;
    let covered = r#"maitre_stream_coverage_total{coverage="covered"}"#;
    assert_eq!(metric(&fixture.router.metrics(), covered), answers.len() as f64);
}

#[tokio::test]
async fn a_silent_source_is_given_up_and_the_client_does_not_notice() {
    // It accepts connections, in the backlog, and answers nothing.
    let silent = TcpListener::bind(ANYWHERE).await.unwrap();
    let mut settings = pulling();
    settings.brain.pull_patience = Duration::from_millis(300);
    let fixture = pair(settings, Some(silent.local_addr().unwrap().port())).await;
    five_chats(&fixture).await;
    let failed = || metric(&fixture.router.metrics(), r#"maitre_pulls_total{outcome="failed"}"#);
    assert_eq!(failed(), 1.0);
    five_chats(&fixture).await;
    assert_eq!(failed(), 1.0, "not tried again at once");
    within(fixture.until_nothing_is_open()).await;
}
