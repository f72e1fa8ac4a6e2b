//! Pulls from a peer's cache: what it has, what it has not, and a peer that does not answer.

use super::*;
use crate::http::transfer::{Connector, PeerConfig, TransferConfig};

async fn engine_with(change: impl FnOnce(&mut TransferConfig)) -> Host {
    let mut transfer = TransferConfig::new(Connector::Peer(PeerConfig::default()), LOOPBACK, &INSTANT);
    change(&mut transfer);
    let config =
        HostConfig { model: "tiny".to_owned(), transfer: Some(transfer), ..HostConfig::new(INSTANT) };
    Host::bind(LOOPBACK, config).await.unwrap()
}

async fn engine() -> Host {
    engine_with(|_| {}).await
}

/// An engine that gives up soon.
async fn impatient() -> Host {
    engine_with(|it| it.connector = Connector::Peer(PeerConfig { timeout: SHORT })).await
}

fn source(port: u16) -> Value {
    let source = json!({"kv_request_id": "6f0e", "remote_host": "127.0.0.1", "remote_port": port});
    json!({"kv_transfer_params": {"remote_kv_source": source}})
}

fn side_channel(host: &Host) -> u16 {
    host.side_channel().unwrap().port()
}

async fn compute(host: &Host, text: &str) -> RouteReply {
    post(host, "/v1/chat/completions", chat(text, json!({"max_tokens": 24}))).await
}

async fn pull(host: &Host, text: &str, port: u16) -> RouteReply {
    let mut body = chat(text, source(port));
    body["max_tokens"] = json!(24);
    post(host, "/v1/chat/completions", body).await
}

fn cached_tokens(reply: &RouteReply) -> Value {
    reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
}

#[tokio::test]
async fn whole_blocks_are_pulled_and_the_rest_is_computed() {
    let (a, b) = (engine().await, engine().await);
    let computed = compute(&a, TEXT).await;
    let pulled = pull(&b, TEXT, side_channel(&a)).await;
    assert_eq!(text_of(&pulled), text_of(&computed));
    assert_eq!((cached_tokens(&pulled), &pulled.json()["kv_transfer_params"]), (json!(48), &Value::Null));
    check_metrics(
        &b,
        &[
            ("prompt_tokens_by_source_total{source=\"local_compute\"}", 11.0),
            ("prompt_tokens_by_source_total{source=\"external_kv_transfer\"}", 48.0),
            ("prompt_tokens_cached_by_source_total{source=\"p2p\"}", 48.0),
            ("external_prefix_cache_hits_total", 48.0),
            ("kv_offload_tiering_read_bytes_total{tier=\"1:p2p\"}", 48.0 * 131_072.0),
            ("kv_offload_tiering_chunk_queries_total{tier=\"1:p2p\"}", 3.0),
            ("kv_offload_tiering_chunk_hits_total{tier=\"1:p2p\"}", 3.0),
        ],
    )
    .await;
    assert_eq!(a.handle().stats().engine.used_blocks, 0, "a peer holds nothing for others");
}

#[tokio::test]
async fn only_what_is_not_cached_here_is_pulled() {
    let (a, b) = (engine().await, engine().await);
    compute(&a, TEXT).await;
    compute(&b, &TEXT[..100]).await;
    assert_eq!(cached_tokens(&pull(&b, TEXT, side_channel(&a)).await), 48);
    check_metrics(
        &b,
        &[
            ("prompt_tokens_by_source_total{source=\"local_cache_hit\"}", 16.0),
            ("prompt_tokens_by_source_total{source=\"external_kv_transfer\"}", 32.0),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_wrong_guess_costs_a_look_up_and_nothing_else() {
    let (a, b) = (engine_with(|it| it.link.floor = LONG).await, engine().await);
    compute(&b, TEXT).await;
    let other = "Something that nobody has said so far, and that is longer than a block of tokens.";
    let pulled = pull(&a, other, side_channel(&b)).await;
    assert_eq!(text_of(&pulled), text_of(&compute(&engine().await, other).await));
    assert_eq!(cached_tokens(&pulled), 0);
    let queries = "kv_offload_tiering_chunk_queries_total{tier=\"1:p2p\"}";
    let failures = "kv_offload_tiering_promotion_job_failures_total{tier=\"1:p2p\"}";
    check_metrics(&a, &[(queries, 1.0), (failures, 0.0)]).await;
}

#[tokio::test]
async fn a_prompt_without_a_full_block_asks_nobody() {
    let b = engine_with(|it| it.connector = Connector::Peer(PeerConfig { timeout: LONG })).await;
    assert_eq!(pull(&b, "x", 1).await.status, 200);
}

/// The pull costs the timeout, and then the prompt is computed.
async fn check_lost(b: &Host, port: u16) {
    let (reply, took) = timed(pull(b, TEXT, port)).await;
    assert!(took >= SHORT, "{took:?}");
    assert_eq!(text_of(&reply), text_of(&compute(&engine().await, TEXT).await));
    let failures = "kv_offload_tiering_promotion_job_failures_total{tier=\"1:p2p\"}";
    let computed = "prompt_tokens_by_source_total{source=\"local_compute\"}";
    check_metrics(b, &[(failures, 1.0), (computed, 59.0), ("external_prefix_cache_hits_total", 0.0)]).await;
}

#[tokio::test]
async fn a_dead_or_silent_peer_costs_the_timeout() {
    let (a, b) = (engine().await, impatient().await);
    let port = side_channel(&a);
    compute(&a, TEXT).await;
    a.handle().inject(Injection::always(Fault::SilentSideChannel));
    check_lost(&b, port).await;
    a.stop().await;
    check_lost(&impatient().await, port).await;
}

#[tokio::test]
async fn a_pull_that_takes_too_long_is_given_up() {
    let a = engine().await;
    compute(&a, TEXT).await;
    let slow = engine_with(|it| {
        it.connector = Connector::Peer(PeerConfig { timeout: SHORT });
        it.link.floor = LONG;
    })
    .await;
    check_lost(&slow, side_channel(&a)).await;
}

#[tokio::test]
async fn legs_of_the_tier_are_not_simulated() {
    let b = engine().await;
    let legs = json!({"kv_transfer_params": {"remote_prefiller": {"kv_request_id": "1"}}});
    assert_eq!(post(&b, "/v1/chat/completions", chat(TEXT, legs)).await.status, 400);
}
