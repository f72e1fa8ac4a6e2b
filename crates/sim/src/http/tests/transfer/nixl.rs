//! Prefill and decode legs over two engines: what a router gets right, and what each of its mistakes looks like.

use std::time::Duration;

use tokio::io::AsyncBufReadExt;

use super::*;
use crate::http::transfer::{Connector, LoadFailure, NixlConfig, TransferConfig};

fn config(profile: Profile, nixl: NixlConfig) -> HostConfig {
    let transfer = TransferConfig::new(Connector::Nixl(nixl), LOOPBACK, &profile);
    HostConfig { model: "tiny".to_owned(), transfer: Some(transfer), ..HostConfig::new(profile) }
}

async fn engine(profile: Profile) -> Host {
    Host::bind(LOOPBACK, config(profile, NixlConfig::default())).await.unwrap()
}

async fn engine_with(change: impl FnOnce(&mut NixlConfig)) -> Host {
    let mut nixl = NixlConfig::default();
    change(&mut nixl);
    Host::bind(LOOPBACK, config(INSTANT, nixl)).await.unwrap()
}

/// A decode engine that gives up soon.
async fn impatient() -> Host {
    engine_with(|it| it.handshake_timeout = SHORT).await
}

/// A prefill and a decode engine.
async fn pair() -> (Host, Host) {
    (engine(INSTANT).await, engine(INSTANT).await)
}

/// Sends the prefill leg and returns what the decode leg needs.
async fn prefill(host: &Host, text: &str) -> Value {
    let params = json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": null, "remote_port": null});
    let ask = chat(text, json!({"max_tokens": 1, "kv_transfer_params": params}));
    let reply = post(host, "/v1/chat/completions", ask).await;
    assert_eq!(reply.status, 200);
    reply.json()["kv_transfer_params"].clone()
}

fn decode_leg(text: &str, params: &Value, stream: bool) -> Value {
    let usage = json!({"include_usage": stream});
    chat(
        text,
        json!({"max_tokens": 24, "stream": stream, "stream_options": usage, "kv_transfer_params": params}),
    )
}

async fn decode(host: &Host, text: &str, params: &Value) -> RouteReply {
    post(host, "/v1/chat/completions", decode_leg(text, params, false)).await
}

#[tokio::test]
async fn a_prefill_leg_answers_with_what_the_decode_leg_needs() {
    let p = engine(INSTANT).await;
    let params = prefill(&p, TEXT).await;
    let port = p.side_channel().unwrap().port();
    let engine_id = params["remote_engine_id"].as_str().unwrap();
    let request_id = params["remote_request_id"].as_str().unwrap();
    assert_eq!(engine_id.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
    assert!(request_id.starts_with("chatcmpl-r1-") && request_id.len() == "chatcmpl-r1-".len() + 8);
    // The keys of vLLM 0.32, in its order.
    let expected = format!(
        r#"{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"{engine_id}","remote_request_id":"{request_id}","remote_host":"127.0.0.1","remote_port":{port},"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":59,"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0}}"#
    );
    let ask = json!({"do_remote_decode": true});
    let raw =
        post(&p, "/v1/chat/completions", chat("x", json!({"max_tokens": 1, "kv_transfer_params": ask})))
            .await;
    assert_eq!(serde_json::from_str::<Value>(&expected).unwrap(), params);
    let first_keys =
        r#""kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":"#;
    assert!(raw.text().contains(first_keys), "{}", raw.text());
    assert_eq!(p.handle().stats().engine.used_blocks, 4 + 1, "the blocks of both are held");
}

#[tokio::test]
async fn two_legs_say_what_one_engine_says_and_only_the_first_computes() {
    let (p, d) = pair().await;
    let params = prefill(&p, TEXT).await;
    assert!(metric(&p, "kv_cache_usage_perc").await > 0.0, "a router can see what is held");
    let whole = decode(&d, TEXT, &params).await;
    assert_eq!(text_of(&whole), right_text(TEXT).await);
    assert_eq!(
        whole.json()["usage"]["prompt_tokens_details"]["cached_tokens"],
        0,
        "as at the prefill engine"
    );
    p.handle().until(|it| it.engine.used_blocks == 0).await;
    let computed = "prompt_tokens_by_source_total{source=\"local_compute\"}";
    let received = "prompt_tokens_by_source_total{source=\"external_kv_transfer\"}";
    check_metrics(&p, &[(computed, 59.0), (received, 0.0), ("nixl_num_kv_expired_reqs_total", 0.0)]).await;
    check_metrics(
        &d,
        &[
            (computed, 0.0),
            (received, 59.0),
            ("prompt_tokens_total", 59.0),
            ("external_prefix_cache_queries_total", 59.0),
            ("external_prefix_cache_hits_total", 59.0),
            ("prompt_tokens_cached_by_source_total{source=\"p2p\"}", 59.0),
            ("nixl_bytes_transferred_sum", 4.0 * 16.0 * 131_072.0),
            ("nixl_num_descriptors_sum", 4.0),
            ("nixl_xfer_time_seconds_count", 1.0),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_streamed_decode_leg_looks_like_any_stream() {
    let (p, d) = pair().await;
    let params = prefill(&p, TEXT).await;
    let reply = post(&d, "/v1/chat/completions", decode_leg(TEXT, &params, true)).await;
    assert!(reply.complete);
    let data = reply.data();
    let pieces = data.iter().filter_map(|it| it["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<String>(), right_text(TEXT).await);
    assert_eq!(data.last().unwrap()["usage"]["completion_tokens"], 24);
}

#[tokio::test]
async fn the_other_generating_routes_have_legs_too() {
    let (p, d) = pair().await;
    let ask = |more: Value| {
        let mut body = json!({"prompt": TEXT, "max_tokens": 20, "ignore_eos": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let leg = ask(json!({"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": true}}));
    let params = post(&p, "/v1/completions", leg).await.json()["kv_transfer_params"].clone();
    let answer = post(&d, "/v1/completions", ask(json!({"kv_transfer_params": params}))).await.json();
    let plain = post(&host(INSTANT).await, "/v1/completions", ask(json!({}))).await.json();
    assert_eq!(answer["choices"][0]["text"], plain["choices"][0]["text"]);
    assert_eq!(metric(&d, "external_prefix_cache_hits_total").await, 45.0);
    assert_eq!(plain["kv_transfer_params"], Value::Null);
    for (path, limit) in [("/v1/messages", "max_tokens"), ("/v1/responses", "max_output_tokens")] {
        let params = json!({"do_remote_decode": true});
        let leg = chat(TEXT, json!({"input": TEXT, limit: 1, "kv_transfer_params": params}));
        let answer = post(&p, path, leg).await.json();
        assert_eq!(answer["kv_transfer_params"]["do_remote_prefill"], true, "{path}");
    }
}

#[tokio::test]
async fn what_the_decode_engine_holds_is_not_fetched_again() {
    let (p, d) = pair().await;
    for cached in [0, 48] {
        let params = prefill(&p, TEXT).await;
        assert_eq!(params["remote_prefill_cached_tokens"], cached);
        let usage = decode(&d, TEXT, &params).await.json()["usage"].clone();
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], cached);
    }
    check_metrics(
        &d,
        &[
            ("nixl_num_descriptors_sum", 4.0 + 1.0),
            ("prompt_tokens_by_source_total{source=\"local_cache_hit\"}", 48.0),
            ("prompt_tokens_by_source_total{source=\"external_kv_transfer\"}", 59.0 + 11.0),
        ],
    )
    .await;
}

#[tokio::test]
async fn parameters_work_once_and_then_give_wrong_text() {
    let (p, d) = pair().await;
    let params = prefill(&p, TEXT).await;
    let right = right_text(TEXT).await;
    assert_eq!(text_of(&decode(&d, TEXT, &params).await), right);
    let other = engine(INSTANT).await;
    let again = decode(&other, TEXT, &params).await;
    assert_eq!(again.status, 200);
    assert_ne!(text_of(&again), right);
    assert_eq!(text_of(&decode(&d, TEXT, &params).await), text_of(&again), "wrong, but always the same");
    check_metrics(&p, &[("nixl_num_notifications_after_expiry_total", 2.0)]).await;
    check_metrics(&d, &[("nixl_num_failed_transfers_total", 0.0)]).await;
}

#[tokio::test]
async fn parameters_of_another_prompt_give_wrong_text() {
    let (p, d) = pair().await;
    let params = prefill(&p, TEXT).await;
    let reply = decode(&d, "Something else", &params).await;
    assert_eq!(reply.status, 200);
    assert_ne!(text_of(&reply), right_text("Something else").await);
}

#[tokio::test]
async fn a_dropped_request_holds_its_blocks_until_the_lease_ends() {
    let (p, d) = (engine_with(|it| it.lease = SHORT).await, engine(INSTANT).await);
    let (params, took) = timed(async {
        let params = prefill(&p, TEXT).await;
        p.handle().until(|it| it.engine.used_blocks == 0).await;
        params
    })
    .await;
    assert!(took >= SHORT, "{took:?}");
    check_metrics(&p, &[("nixl_num_kv_expired_reqs_total", 1.0)]).await;
    let late = decode(&d, TEXT, &params).await;
    assert_eq!(late.status, 200);
    assert_ne!(text_of(&late), right_text(TEXT).await);
}

/// The two forms of a failed decode leg. It takes at least this long, and not much longer.
async fn check_failure(d: &Host, params: &Value, at_least: Duration) {
    let streamed = post(d, "/v1/chat/completions", decode_leg(TEXT, params, true));
    let (streamed, took) = timed(streamed).await;
    assert_eq!((streamed.status, streamed.chunks.len()), (200, 3));
    assert!(streamed.complete);
    assert!((at_least..LONG / 2).contains(&took), "{took:?}");
    assert_eq!(streamed.data()[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let error = "{\"error\": {\"message\": \"Internal server error\", \"type\": \"InternalServerError\", \"param\": null, \"code\": 500}}";
    assert_eq!(streamed.chunks[1..], [format!("data: {error}\n\n"), "data: [DONE]\n\n".to_owned()]);
    let (whole, took) = timed(decode(d, TEXT, params)).await;
    assert!((at_least..LONG / 2).contains(&took), "{took:?}");
    assert_eq!((whole.status, whole.json()), (500, serde_json::from_str::<Value>(error).unwrap()));
    check_metrics(
        d,
        &[
            ("nixl_num_failed_transfers_total", 2.0),
            ("request_success_total{finished_reason=\"error\"}", 2.0),
            ("kv_cache_usage_perc", 0.0),
        ],
    )
    .await;
    let plain = decode(d, TEXT, &Value::Null).await;
    assert_eq!(text_of(&plain), right_text(TEXT).await, "the plain body still works");
}

#[tokio::test]
async fn a_dead_prefill_engine_fails_the_decode_leg_after_the_handshake() {
    let (p, d) = (engine(INSTANT).await, impatient().await);
    let params = prefill(&p, TEXT).await;
    p.stop().await;
    check_failure(&d, &params, SHORT).await;
}

#[tokio::test]
async fn the_death_of_an_engine_that_was_met_is_noticed_at_once() {
    let (p, d) = (engine(INSTANT).await, engine_with(|it| it.handshake_timeout = LONG).await);
    decode(&d, "hello", &prefill(&p, "hello").await).await;
    let params = prefill(&p, TEXT).await;
    p.stop().await;
    check_failure(&d, &params, Duration::ZERO).await;
}

#[tokio::test]
async fn a_wrong_port_or_engine_fails_after_the_handshake() {
    let p = engine(INSTANT).await;
    for (key, value) in [("remote_port", json!(1)), ("remote_engine_id", json!("another"))] {
        let d = impatient().await;
        let mut params = prefill(&p, TEXT).await;
        params[key] = value;
        check_failure(&d, &params, SHORT).await;
    }
}

#[tokio::test]
async fn a_restarted_engine_is_another_one() {
    let (p, d) = (engine(INSTANT).await, impatient().await);
    let params = prefill(&p, TEXT).await;
    p.handle().restart_engine();
    check_failure(&d, &params, SHORT).await;
    assert_ne!(prefill(&p, TEXT).await["remote_engine_id"], params["remote_engine_id"]);
}

#[tokio::test]
async fn a_silent_prefill_engine_fails_the_decode_leg_after_the_handshake() {
    let (p, d) = (engine(INSTANT).await, impatient().await);
    let params = prefill(&p, TEXT).await;
    p.handle().inject(Injection::always(Fault::SilentSideChannel));
    check_failure(&d, &params, SHORT).await;
}

#[tokio::test]
async fn with_recompute_a_lost_engine_costs_time_and_nothing_else() {
    let d = engine_with(|it| (it.handshake_timeout, it.on_failure) = (SHORT, LoadFailure::Recompute)).await;
    let p = engine(INSTANT).await;
    let params = prefill(&p, TEXT).await;
    p.stop().await;
    let (reply, took) = timed(decode(&d, TEXT, &params)).await;
    assert!(took >= SHORT, "{took:?}");
    assert_eq!(text_of(&reply), right_text(TEXT).await);
    let computed = "prompt_tokens_by_source_total{source=\"local_compute\"}";
    check_metrics(&d, &[("nixl_num_failed_transfers_total", 1.0), (computed, 59.0)]).await;
}

/// An engine whose link needs this long for a block.
async fn linked(block: Duration) -> Host {
    let mut config = config(INSTANT, NixlConfig::default());
    let link = &mut config.transfer.as_mut().unwrap().link;
    link.bytes_per_second = 16.0 * f64::from(link.token_bytes) / block.as_secs_f64();
    Host::bind(LOOPBACK, config).await.unwrap()
}

#[tokio::test]
async fn a_transfer_takes_what_the_link_says() {
    let (p, d) = (engine(INSTANT).await, linked(SHORT).await);
    let params = prefill(&p, TEXT).await;
    let (reply, took) = timed(decode(&d, TEXT, &params)).await;
    assert_eq!(reply.status, 200);
    assert!(took >= SHORT * 4, "{took:?} for four blocks");
    d.handle().inject(Injection::always(Fault::SlowLink { factor: 5.0 }));
    let params = prefill(&p, TEXT).await;
    let (_, took) = timed(decode(&d, TEXT, &params)).await;
    assert!(took >= SHORT * 5, "{took:?} for the one that is not cached");
    assert!(metric(&d, "nixl_xfer_time_seconds_sum").await >= 0.27);
}

#[tokio::test]
async fn a_prefill_engine_that_dies_during_the_transfer_fails_it_at_once() {
    let (p, d) = (engine(INSTANT).await, linked(LONG).await);
    let params = prefill(&p, TEXT).await;
    let body = decode_leg(TEXT, &params, false).to_string();
    let mut client = open(d.addr(), "POST", "/v1/chat/completions", &body).await;
    d.handle().until(|it| it.engine.receiving == 1).await;
    p.handle().until(|it| it.transfer_connections == 1).await;
    p.stop().await;
    let mut raw = Vec::new();
    client.read_to_end(&mut raw).await.unwrap();
    assert_eq!(RouteReply::parse(&raw).status, 500);
}

#[tokio::test]
async fn a_decode_leg_that_is_cancelled_frees_the_prefill_engine() {
    let (p, d) = (engine(INSTANT).await, linked(SHORT).await);
    let params = prefill(&p, TEXT).await;
    let body = decode_leg(TEXT, &params, true).to_string();
    let client = open(d.addr(), "POST", "/v1/chat/completions", &body).await;
    d.handle().until(|it| it.engine.receiving == 1).await;
    drop(client);
    p.handle().until(|it| it.engine.used_blocks == 0).await;
    check_metrics(&p, &[("nixl_num_kv_expired_reqs_total", 0.0)]).await;
    let stats = d.handle().until(|it| it.engine.used_blocks == 0).await;
    assert_eq!((stats.engine.counters.aborted, stats.engine.counters.answer_tokens), (1, 0));
}

/// An engine that runs one sequence at a time and has one that does not end.
async fn busy() -> (Host, TcpStream) {
    let d = engine(Profile { running_max: 1, ..SLOW }).await;
    let client = open(d.addr(), "POST", "/v1/chat/completions", &endless(true)).await;
    d.handle().until(|it| it.engine.running == 1).await;
    (d, client)
}

#[tokio::test]
async fn a_decode_leg_that_is_cancelled_in_the_queue_frees_the_prefill_engine() {
    let p = engine(INSTANT).await;
    let (d, _client) = busy().await;
    let params = prefill(&p, TEXT).await;
    let body = decode_leg(TEXT, &params, true).to_string();
    let client = open(d.addr(), "POST", "/v1/chat/completions", &body).await;
    d.handle().until(|it| it.engine.waiting == 1).await;
    drop(client);
    p.handle().until(|it| it.engine.used_blocks == 0).await;
    check_metrics(&p, &[("nixl_num_kv_expired_reqs_total", 0.0)]).await;
}

/// A prefill engine's side channel that only counts: returns after this many heartbeats.
async fn count_heartbeats(listener: tokio::net::TcpListener, wanted: usize) {
    let mut seen = 0;
    while seen < wanted {
        let (stream, _) = listener.accept().await.unwrap();
        let mut lines = tokio::io::BufReader::new(stream);
        let mut line = String::new();
        while seen < wanted && lines.read_line(&mut line).await.unwrap() > 0 {
            seen += usize::from(line.contains("heartbeat"));
            line.clear();
            lines.get_mut().write_all(b"{\"answer\":\"yes\"}\n").await.unwrap();
        }
    }
}

#[tokio::test]
async fn heartbeats_are_sent_in_the_queue_and_during_the_transfer() {
    for is_queued in [true, false] {
        let nixl = NixlConfig { lease: SHORT, ..NixlConfig::default() };
        let profile = if is_queued { Profile { running_max: 1, ..SLOW } } else { INSTANT };
        let mut config = config(profile, nixl);
        config.transfer.as_mut().unwrap().link.floor = LONG;
        let d = Host::bind(LOOPBACK, config).await.unwrap();
        let _busy = open(d.addr(), "POST", "/v1/chat/completions", &endless(true)).await;
        d.handle().until(|it| it.engine.running == 1).await;
        let listener = tokio::net::TcpListener::bind(LOOPBACK).await.unwrap();
        let mut params = prefill(&engine(INSTANT).await, TEXT).await;
        params["remote_port"] = json!(listener.local_addr().unwrap().port());
        let body = decode_leg(TEXT, &params, true).to_string();
        let _client = open(d.addr(), "POST", "/v1/chat/completions", &body).await;
        count_heartbeats(listener, 3).await;
        assert_eq!(d.handle().stats().engine.receiving, usize::from(!is_queued));
    }
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_extends_the_lease() {
    // Time moves only when it is advanced: a blocking task keeps the runtime from skipping idle time.
    let (_end, ended) = std::sync::mpsc::channel::<()>();
    tokio::task::spawn_blocking(move || ended.recv());
    let p = engine(INSTANT).await;
    let params = prefill(&p, TEXT).await;
    let ask = format!("{}\n", json!({"ask": "heartbeat", "request_id": params["remote_request_id"]}));
    let mut stream = tokio::io::BufReader::new(TcpStream::connect(p.side_channel().unwrap()).await.unwrap());
    let mut ends = Vec::new();
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(10)).await;
        stream.write_all(ask.as_bytes()).await.unwrap();
        stream.read_line(&mut String::new()).await.unwrap();
        ends.push(p.state.driver.next_expiry().map(|it| it.as_secs_f64().round()));
    }
    assert_eq!(ends, [Some(30.0), Some(40.0), Some(50.0)]);
}

#[tokio::test]
async fn a_refused_decode_leg_frees_the_prefill_engine() {
    let (p, d) = pair().await;
    let params = prefill(&p, TEXT).await;
    let mut body = decode_leg(TEXT, &params, false);
    body["max_tokens"] = json!(1_000_000);
    assert_eq!(post(&d, "/v1/chat/completions", body).await.status, 400);
    p.handle().until(|it| it.engine.used_blocks == 0).await;
    check_metrics(&p, &[("nixl_num_kv_expired_reqs_total", 0.0)]).await;
}

#[tokio::test]
async fn a_prefill_leg_that_is_cancelled_holds_nothing() {
    let p = engine(SLOW).await;
    let ask =
        json!({"max_tokens": 100_000, "ignore_eos": true, "kv_transfer_params": {"do_remote_decode": true}});
    let client = open(p.addr(), "POST", "/v1/chat/completions", &chat(TEXT, ask).to_string()).await;
    p.handle().until(|it| it.engine.running == 1).await;
    drop(client);
    let stats = p.handle().until(|it| it.engine.running == 0 && it.requests_open == 0).await;
    assert_eq!(stats.engine.used_blocks, 0);
}

#[tokio::test]
async fn a_decode_leg_without_blocks_kills_the_engine() {
    for stream in [true, false] {
        let d = engine(INSTANT).await;
        let params = json!({"do_remote_prefill": true});
        let reply = post(&d, "/v1/chat/completions", decode_leg(TEXT, &params, stream)).await;
        assert_eq!(reply.status, if stream { 200 } else { 500 });
        assert!(reply.text().contains("EngineCore encountered an issue"), "{}", reply.text());
        assert_eq!(stream, reply.text().ends_with("data: [DONE]\n\n"));
        d.died().await;
        d.handle().until(|it| it.connections_open == 0).await;
        for addr in [d.addr(), d.side_channel().unwrap()] {
            let refused = TcpStream::connect(addr).await.unwrap_err().kind();
            assert_eq!(refused, std::io::ErrorKind::ConnectionRefused);
        }
    }
}

#[tokio::test]
async fn without_a_connector_the_parameters_mean_nothing() {
    let plain = host(INSTANT).await;
    let params = json!({"do_remote_decode": true});
    let ask = chat(TEXT, json!({"max_tokens": 1, "kv_transfer_params": params}));
    let reply = post(&plain, "/v1/chat/completions", ask).await.json();
    assert_eq!(reply["kv_transfer_params"], Value::Null);
    let reply = decode(&plain, TEXT, &json!({"do_remote_prefill": true})).await;
    assert_eq!(text_of(&reply), right_text(TEXT).await);
}
