//! SGLang's two legs at once: they meet, they miss each other, and rooms are used twice.

use super::*;
use crate::http::transfer::{BootstrapConfig, Connector, RoomRole, TransferConfig};

async fn engine_with(role: RoomRole, change: impl FnOnce(&mut BootstrapConfig)) -> Host {
    let mut bootstrap = BootstrapConfig::new(role);
    change(&mut bootstrap);
    let transfer = TransferConfig::new(Connector::Bootstrap(bootstrap), LOOPBACK, &INSTANT);
    let config =
        HostConfig { model: "tiny".to_owned(), transfer: Some(transfer), ..HostConfig::new(INSTANT) };
    Host::bind(LOOPBACK, config).await.unwrap()
}

async fn pair() -> (Host, Host) {
    (engine_with(RoomRole::Prefill, |_| {}).await, engine_with(RoomRole::Decode, |_| {}).await)
}

fn port(p: &Host) -> u16 {
    p.side_channel().unwrap().port()
}

/// The body of both legs.
fn body(port: u16, room: u64, stream: bool) -> Value {
    let more = json!({"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room,
        "max_tokens": 24, "stream": stream});
    chat(TEXT, more)
}

async fn leg(host: &Host, port: u16, room: u64) -> RouteReply {
    post(host, "/v1/chat/completions", body(port, room, false)).await
}

async fn begin(host: &Host, port: u16, room: u64) -> TcpStream {
    open(host.addr(), "POST", "/v1/chat/completions", &body(port, room, false).to_string()).await
}

async fn end(mut client: TcpStream) -> RouteReply {
    let mut raw = Vec::new();
    client.read_to_end(&mut raw).await.unwrap();
    RouteReply::parse(&raw)
}

#[tokio::test]
async fn both_legs_end_and_the_decode_engine_says_what_one_engine_says() {
    let (p, d) = pair().await;
    let (prefill, decode) = tokio::join!(leg(&p, port(&p), 1), leg(&d, port(&p), 1));
    assert_eq!(text_of(&decode), right_text(TEXT).await);
    let prefill = prefill.json();
    assert_eq!(prefill["choices"][0]["finish_reason"], "length");
    assert_eq!(prefill["usage"]["completion_tokens"], 1);
    for host in [&p, &d] {
        assert_eq!(host.handle().stats().engine.used_blocks, 0);
    }
    check_metrics(&d, &[("prompt_tokens_by_source_total{source=\"external_kv_transfer\"}", 59.0)]).await;
    check_metrics(&p, &[("prompt_tokens_by_source_total{source=\"local_compute\"}", 59.0)]).await;
}

#[tokio::test]
async fn either_leg_may_come_first() {
    let (p, d) = pair().await;
    let prefill = begin(&p, port(&p), 1).await;
    p.handle().until(|it| it.requests_open == 1).await;
    assert_eq!(p.handle().stats().engine.counters.steps, 0, "it waits for the other before it computes");
    assert_eq!(leg(&d, port(&p), 1).await.status, 200);
    assert_eq!(end(prefill).await.status, 200);
    let decode = begin(&d, port(&p), 2).await;
    d.handle().until(|it| it.engine.receiving == 1).await;
    assert_eq!(leg(&p, port(&p), 2).await.status, 200);
    assert_eq!(text_of(&end(decode).await), right_text(TEXT).await);
}

#[tokio::test]
async fn streamed_legs_end_too() {
    let (p, d) = pair().await;
    let ask = body(port(&p), 1, true);
    let (prefill, decode) = tokio::join!(
        post(&p, "/v1/chat/completions", ask.clone()),
        post(&d, "/v1/chat/completions", ask.clone())
    );
    assert!(prefill.complete && decode.complete);
    assert_eq!((prefill.chunks.len(), decode.chunks.len()), (1 + 1 + 1, 1 + 24 + 1));
}

#[tokio::test]
async fn a_decode_engine_has_no_prefix_cache() {
    let (p, d) = pair().await;
    for room in 1..3 {
        let (prefill, decode) = tokio::join!(leg(&p, port(&p), room), leg(&d, port(&p), room));
        let cached = |it: &RouteReply| it.json()["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
        assert_eq!((cached(&prefill), cached(&decode)), (json!(if room == 1 { 0 } else { 48 }), json!(0)));
    }
    check_metrics(&d, &[("external_prefix_cache_hits_total", 118.0), ("prefix_cache_hits_total", 0.0)]).await;
}

#[tokio::test]
async fn a_router_learns_the_roles_and_where_to_join() {
    let (p, d) = pair().await;
    let info = get(&p, "/server_info").await.json();
    assert_eq!(
        (&info["disaggregation_mode"], &info["disaggregation_bootstrap_port"], &info["page_size"]),
        (&json!("prefill"), &json!(port(&p)), &json!(16))
    );
    assert_eq!(get(&d, "/server_info").await.json()["disaggregation_mode"], "decode");
    assert_eq!(get(&host(INSTANT).await, "/server_info").await.status, 404, "vLLM does not tell");
    let bootstrap = p.side_channel().unwrap();
    assert_eq!(call(bootstrap, "GET", "/health", "").await.text(), "OK");
    let path = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1";
    let route = call(bootstrap, "GET", path, "").await.json();
    assert_eq!((&route["page_size"], &route["prefill_http_port"]), (&json!(16), &json!(p.addr().port())));
}

#[tokio::test]
async fn a_request_without_a_room_is_refused_by_both() {
    let (p, d) = pair().await;
    for host in [&p, &d] {
        let reply = post(host, "/v1/chat/completions", chat(TEXT, json!({}))).await;
        assert_eq!(reply.status, 400);
        assert!(reply.text().contains("without bootstrap room id"), "{}", reply.text());
    }
}

#[tokio::test]
async fn each_leg_fails_when_the_other_never_comes() {
    let p = engine_with(RoomRole::Prefill, |it| it.timeout = SHORT).await;
    let d = engine_with(RoomRole::Decode, |it| it.timeout = SHORT).await;
    for host in [&p, &d] {
        let (reply, took) = timed(leg(host, port(&p), 1)).await;
        assert_eq!(reply.status, 500);
        assert!(took >= SHORT, "{took:?}");
        host.handle().until(|it| it.engine.used_blocks == 0 && it.engine.waiting == 0).await;
    }
}

#[tokio::test]
async fn a_dead_prefill_engine_fails_the_decode_leg_after_two_heartbeats() {
    let p = engine_with(RoomRole::Prefill, |_| {}).await;
    let d = engine_with(RoomRole::Decode, |it| (it.timeout, it.lost_after) = (LONG, SHORT)).await;
    let bootstrap = port(&p);
    let decode = begin(&d, bootstrap, 1).await;
    p.handle().until(|it| it.transfer_connections == 1).await;
    p.stop().await;
    let (reply, took) = timed(end(decode)).await;
    assert_eq!(reply.status, 500);
    assert!((SHORT..LONG / 2).contains(&took), "{took:?}");
    assert_eq!(leg(&d, bootstrap, 2).await.status, 500, "and one that was dead before");
}

#[tokio::test]
async fn a_decode_leg_does_not_learn_that_the_prefill_leg_was_cancelled() {
    let (p, d) = pair().await;
    let prefill = begin(&p, port(&p), 1).await;
    p.handle().until(|it| it.requests_open == 1).await;
    drop(prefill);
    p.handle().until(|it| it.requests_open == 0).await;
    let decode = begin(&d, port(&p), 1).await;
    p.handle().until(|it| it.transfer_connections == 1).await;
    assert_eq!(d.handle().stats().engine.receiving, 1);
    drop(decode);
    let stats = d.handle().until(|it| it.engine.used_blocks == 0 && it.requests_open == 0).await;
    assert_eq!(stats.engine.counters.aborted, 1, "cancelling it frees its blocks at once");
    p.handle().until(|it| it.transfer_connections == 0).await;
    assert_eq!(leg(&p, port(&p), 1).await.status, 500, "the room is of no use to another one");
}

#[tokio::test]
async fn a_decode_leg_that_leaves_during_the_transfer_fails_the_prefill_leg() {
    let p = engine_with(RoomRole::Prefill, |_| {}).await;
    let mut transfer =
        TransferConfig::new(Connector::Bootstrap(BootstrapConfig::new(RoomRole::Decode)), LOOPBACK, &INSTANT);
    transfer.link.floor = LONG;
    let config =
        HostConfig { model: "tiny".to_owned(), transfer: Some(transfer), ..HostConfig::new(INSTANT) };
    let d = Host::bind(LOOPBACK, config).await.unwrap();
    let (decode, prefill) = (begin(&d, port(&p), 1).await, begin(&p, port(&p), 1).await);
    p.handle().until(|it| it.engine.counters.answer_tokens == 1).await;
    assert!(p.handle().stats().engine.used_blocks > 0, "held until they have been read");
    drop(decode);
    assert_eq!(end(prefill).await.status, 500);
    p.handle().until(|it| it.engine.used_blocks == 0).await;
}

#[tokio::test]
async fn a_room_that_is_used_again_is_poisoned() {
    let (p, d) = pair().await;
    let mut texts = Vec::new();
    for _ in 0..3 {
        let (prefill, decode) = tokio::join!(leg(&p, port(&p), 7), leg(&d, port(&p), 7));
        assert_eq!((prefill.status, decode.status), (200, 200));
        texts.push(text_of(&decode));
    }
    assert_eq!(texts[0], right_text(TEXT).await);
    assert_ne!(texts[1], texts[0]);
    assert_eq!(texts[2], texts[1]);
}
