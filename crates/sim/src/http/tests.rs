//! The HTTP face over loopback sockets: routes, framing, faults, and clients that leave.

mod continuation;
mod events;
mod transfer;

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::fault::{Fault, Injection, Scope};
use super::{Host, HostConfig};
use crate::profile::{H200_8B, INSTANT, Profile, StepModel};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// One millisecond per token: slow enough that a test can disconnect in the middle of an answer.
const SLOW: Profile = Profile { step: StepModel { floor_ms: 1.0, ..INSTANT.step }, ..INSTANT };

async fn host(profile: Profile) -> Host {
    let config = HostConfig {
        model: "tiny".to_owned(),
        adapters: vec!["tiny-sql".to_owned()],
        bodies_max: 2,
        ..HostConfig::new(profile)
    };
    Host::bind(LOOPBACK, config).await.unwrap()
}

struct RouteReply {
    status: u16,
    head: String,
    /// The chunks of a chunked response.
    chunks: Vec<String>,
    /// Whether the response ended properly.
    complete: bool,
}

impl RouteReply {
    fn text(&self) -> String {
        self.chunks.concat()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.text()).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The JSON of each `data:` line but `[DONE]`.
    fn data(&self) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter(|it| *it != "[DONE]").map(|it| serde_json::from_str(it).unwrap()).collect()
    }

    fn parse(raw: &[u8]) -> RouteReply {
        let raw = String::from_utf8(raw.to_vec()).unwrap();
        let Some((head, mut rest)) = raw.split_once("\r\n\r\n") else {
            return RouteReply { status: 0, head: raw, chunks: vec![], complete: false };
        };
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let head = head.to_ascii_lowercase();
        let mut reply = RouteReply { status, head, chunks: vec![], complete: false };
        if !reply.head.contains("transfer-encoding: chunked") {
            let length = reply.head.split("content-length: ").nth(1).unwrap();
            reply.complete = length.lines().next().unwrap().parse() == Ok(rest.len());
            reply.chunks.push(rest.to_owned());
            return reply;
        }
        while let Some((size, after)) = rest.split_once("\r\n") {
            let size = usize::from_str_radix(size, 16).unwrap();
            reply.complete = size == 0;
            if size == 0 || after.len() < size + 2 {
                break;
            }
            reply.chunks.push(after[..size].to_owned());
            rest = &after[size + 2..];
        }
        reply
    }
}

async fn open(addr: SocketAddr, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\nx-request-id: r1\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn call(addr: SocketAddr, method: &str, path: &str, body: &str) -> RouteReply {
    let mut stream = open(addr, method, path, body).await;
    let mut raw = Vec::new();
    // A reset counts as an end here.
    let _ = stream.read_to_end(&mut raw).await;
    RouteReply::parse(&raw)
}

async fn post(host: &Host, path: &str, body: Value) -> RouteReply {
    call(host.addr(), "POST", path, &body.to_string()).await
}

async fn get(host: &Host, path: &str) -> RouteReply {
    call(host.addr(), "GET", path, "").await
}

fn chat(text: &str, more: Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": text}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// An endless answer, for clients that disconnect.
fn endless(stream: bool) -> String {
    chat("hello", json!({"stream": stream, "max_tokens": 100_000, "ignore_eos": true})).to_string()
}

#[tokio::test]
async fn a_chat_streams_byte_for_byte_as_vllm_does() {
    let host = host(INSTANT).await;
    let ask = json!({"stream": true, "max_tokens": 2, "stream_options": {"include_usage": true}});
    let reply = post(&host, "/v1/chat/completions", chat("hello", ask)).await;
    assert_eq!(reply.status, 200);
    assert!(reply.head.contains("content-type: text/event-stream; charset=utf-8"), "{}", reply.head);
    let created = reply.data()[0]["created"].to_string();
    let head = r#"data: {"id":"chatcmpl-r1","object":"chat.completion.chunk","created":0,"model":"tiny","choices":["#;
    let text =
        |index: usize| reply.data()[index]["choices"][0]["delta"]["content"].as_str().unwrap().to_owned();
    let expected = [
        format!(
            "{head}{}",
            "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\"prompt_token_ids\":null}\n\n"
        ),
        format!(
            "{head}{{\"index\":0,\"delta\":{{\"content\":\"{}\"}},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}}]}}\n\n",
            text(1)
        ),
        format!(
            "{head}{{\"index\":0,\"delta\":{{\"content\":\"{}\"}},\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":null}}]}}\n\n",
            text(2)
        ),
        format!(
            "{head}{}",
            "],\"usage\":{\"prompt_tokens\":16,\"total_tokens\":18,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\n"
        ),
        "data: [DONE]\n\n".to_owned(),
    ];
    let actual: Vec<String> = reply.chunks.iter().map(|it| it.replace(&created, "0")).collect();
    assert_eq!(actual, expected);
    assert!(reply.complete);
    assert_eq!((text(1).len(), text(2).len()), (4, 4));
}

#[tokio::test]
async fn a_complete_chat_has_the_text_of_the_streamed_one() {
    let host = host(INSTANT).await;
    let whole = post(&host, "/v1/chat/completions", chat("hello", json!({}))).await;
    assert!(whole.head.contains("content-type: application/json"), "{}", whole.head);
    let whole = whole.json();
    let streamed = post(&host, "/v1/chat/completions", chat("hello", json!({"stream": true}))).await.data();
    let pieces = streamed.iter().filter_map(|it| it["choices"][0]["delta"]["content"].as_str());
    assert_eq!(whole["choices"][0]["message"]["content"], json!(pieces.collect::<String>()));
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!(streamed.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert_eq!((&whole["id"], &whole["object"]), (&json!("chatcmpl-r1"), &json!("chat.completion")));
    assert_eq!(whole["usage"]["completion_tokens"], json!(streamed.len() - 1));
}

#[tokio::test]
async fn the_next_turn_hits_what_the_last_one_computed() {
    let host = host(INSTANT).await;
    let first =
        post(&host, "/v1/chat/completions", chat("hello", json!({"max_tokens": 40, "ignore_eos": true})))
            .await;
    let answer = first.json()["choices"][0]["message"]["content"].clone();
    let next = json!({"messages": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "go on"},
    ]});
    let usage = post(&host, "/v1/chat/completions", next).await.json()["usage"].clone();
    // 16 tokens of prompt and 39 of the answer were computed: three blocks.
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 48);
    let salted = chat("hello", json!({"cache_salt": "tenant"}));
    let usage = post(&host, "/v1/chat/completions", salted).await.json()["usage"].clone();
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn an_adapter_answers_under_its_own_name_and_shares_no_cache() {
    let host = host(INSTANT).await;
    let ask = |model: &str| chat(&"hello ".repeat(20), json!({"model": model, "max_tokens": 3}));
    post(&host, "/v1/chat/completions", ask("tiny")).await;
    let reply = post(&host, "/v1/chat/completions", ask("tiny-sql")).await.json();
    assert_eq!(reply["model"], "tiny-sql");
    assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

#[tokio::test]
async fn a_required_tool_is_called_in_one_piece_and_streamed() {
    let host = host(INSTANT).await;
    let parameters = json!({"type": "object", "properties": {"guests": {"type": "integer"}}});
    let tools = json!([{"type": "function", "function": {"name": "seat", "parameters": parameters}}]);
    let ask = |stream: bool| chat("hi", json!({"tools": tools, "tool_choice": "required", "stream": stream}));
    let whole = post(&host, "/v1/chat/completions", ask(false)).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(function, &json!({"name": "seat", "arguments": "{\"guests\":7}"}));
    let streamed = post(&host, "/v1/chat/completions", ask(true)).await.data();
    let calls: Vec<&Value> = streamed.iter().map(|it| &it["choices"][0]["delta"]["tool_calls"][0]).collect();
    assert_eq!(calls[1]["function"]["name"], "seat");
    let arguments = calls.iter().filter_map(|it| it["function"]["arguments"].as_str());
    assert_eq!(arguments.collect::<String>(), "{\"guests\":7}");

    let tools = json!([{"name": "seat", "input_schema": parameters}]);
    let ask = chat("hi", json!({"max_tokens": 50, "tools": tools, "tool_choice": {"type": "any"}}));
    let message = post(&host, "/v1/messages", ask).await.json();
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["content"][0]["input"], json!({"guests": 7}));
}

#[tokio::test]
async fn completions_stream_text() {
    let host = host(INSTANT).await;
    let ask =
        |stream: bool| json!({"prompt": "once upon", "max_tokens": 3, "ignore_eos": true, "stream": stream});
    let whole = post(&host, "/v1/completions", ask(false)).await.json();
    assert_eq!((&whole["object"], &whole["id"]), (&json!("text_completion"), &json!("cmpl-r1")));
    let reply = post(&host, "/v1/completions", ask(true)).await;
    let pieces = reply.data();
    let text: String = pieces.iter().map(|it| it["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(whole["choices"][0]["text"], json!(text));
    assert_eq!(pieces[2]["choices"][0]["finish_reason"], "length");
    assert_eq!(reply.chunks.last().unwrap(), "data: [DONE]\n\n");
    let generated =
        json!({"text": "once upon", "sampling_params": {"max_new_tokens": 3, "ignore_eos": true}});
    let generated = post(&host, "/generate", generated).await.json();
    assert_eq!(generated["text"], json!(text));
    assert_eq!(generated["meta_info"]["completion_tokens"], 3);
}

/// The names of the events, without repetitions.
fn names(reply: &RouteReply) -> Vec<String> {
    let mut names: Vec<String> =
        reply.chunks.iter().map(|it| it.lines().next().unwrap().replace("event: ", "")).collect();
    names.dedup();
    names
}

#[tokio::test]
async fn messages_stream_named_events_and_no_done() {
    let host = host(INSTANT).await;
    let ask = |stream: bool| chat("hello", json!({"max_tokens": 5, "stream": stream}));
    let reply = post(&host, "/v1/messages", ask(true)).await;
    assert_eq!(
        names(&reply),
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let data = reply.data();
    let text: String = data.iter().filter_map(|it| it["delta"]["text"].as_str()).collect();
    let whole = post(&host, "/v1/messages", ask(false)).await.json();
    assert_eq!(whole["content"], json!([{"type": "text", "text": text}]));
    assert_eq!((&whole["stop_reason"], &whole["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(5)));
    assert_eq!(data[0]["message"]["usage"]["input_tokens"], 16);
    let count = post(&host, "/v1/messages/count_tokens", ask(false)).await.json();
    assert_eq!(count, json!({"input_tokens": 16}));
}

#[tokio::test]
async fn responses_stream_numbered_events() {
    let host = host(INSTANT).await;
    let ask = |stream: bool| json!({"input": "hello", "max_output_tokens": 500, "stream": stream});
    let reply = post(&host, "/v1/responses", ask(true)).await;
    assert_eq!(
        names(&reply),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed"
        ]
    );
    let data = reply.data();
    assert!(data.iter().zip(0..).all(|(it, number)| it["sequence_number"] == json!(number)));
    let whole = post(&host, "/v1/responses", ask(false)).await.json();
    assert_eq!(whole["output"], data.last().unwrap()["response"]["output"]);
    assert_eq!(whole["status"], "completed");
}

#[tokio::test]
async fn pooling_routes_give_the_same_numbers_to_the_same_texts() {
    let host = host(INSTANT).await;
    let embed = json!({"input": ["a", "b", "a"]});
    let vectors = post(&host, "/v1/embeddings", embed).await.json();
    assert_eq!(vectors["data"][0]["embedding"], vectors["data"][2]["embedding"]);
    assert_ne!(vectors["data"][0]["embedding"], vectors["data"][1]["embedding"]);
    let base64 = json!({"input": "a", "dimensions": 3, "encoding_format": "base64"});
    let base64 = post(&host, "/v1/embeddings", base64).await.json();
    assert_eq!(base64["data"][0]["embedding"].as_str().unwrap().len(), 16);
    let rerank = json!({"query": "q", "documents": ["x", "y", "z"], "top_n": 2});
    let results = post(&host, "/rerank", rerank.clone()).await.json()["results"].clone();
    assert_eq!(results.as_array().unwrap().len(), 2);
    assert!(results[0]["relevance_score"].as_f64() >= results[1]["relevance_score"].as_f64());
    assert_eq!(post(&host, "/v1/rerank", rerank).await.json()["results"], results);
    let score = post(&host, "/score", json!({"text_1": "q", "text_2": ["x", "y"]})).await.json();
    assert_eq!(score["data"].as_array().unwrap().len(), 2);
    let classes = post(&host, "/classify", json!({"input": "a"})).await.json();
    assert_eq!(classes["data"][0]["num_classes"], 2);
}

#[tokio::test]
async fn tokens_go_there_and_back() {
    let host = host(INSTANT).await;
    let tokens = post(&host, "/tokenize", json!({"prompt": "mise en place"})).await.json();
    assert_eq!((&tokens["count"], &tokens["token_strs"]), (&json!(4), &Value::Null));
    assert_eq!(tokens["max_model_len"], 131_072);
    let text = post(&host, "/detokenize", json!({"tokens": tokens["tokens"]})).await.json();
    assert_eq!(text, json!({"prompt": "mise en place"}));
    assert_eq!(post(&host, "/tokenize", chat("hello", json!({}))).await.json()["count"], 16);
}

#[tokio::test]
async fn the_plain_routes_answer() {
    let host = host(INSTANT).await;
    for path in ["/health", "/ping"] {
        let reply = get(&host, path).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, ""));
    }
    assert!(get(&host, "/version").await.json()["version"].is_string());
    let models = get(&host, "/v1/models").await.json();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["parent"]), (&json!("tiny"), &Value::Null));
    assert_eq!(
        (&models["data"][1]["id"], &models["data"][1]["parent"]),
        (&json!("tiny-sql"), &json!("tiny"))
    );
    assert_eq!(models["data"][0]["owned_by"], "vllm");
}

#[tokio::test]
async fn metrics_count_in_vllm_names() {
    let host = host(INSTANT).await;
    for _ in 0..2 {
        post(&host, "/v1/chat/completions", chat(&"hello ".repeat(20), json!({"max_tokens": 3}))).await;
    }
    let page = get(&host, "/metrics").await.text();
    let labels = r#"{engine="0",model_name="tiny"}"#;
    for line in [
        format!("vllm:num_requests_running{labels} 0.0"),
        format!("vllm:num_requests_waiting{labels} 0.0"),
        format!("vllm:kv_cache_usage_perc{labels} 0.0"),
        format!("vllm:prefix_cache_queries_total{labels} 88.0"),
        format!("vllm:prefix_cache_hits_total{labels} 32.0"),
        format!("vllm:prompt_tokens_total{labels} 88.0"),
        format!("vllm:generation_tokens_total{labels} 6.0"),
        format!("vllm:num_preemptions_total{labels} 0.0"),
        format!("vllm:time_to_first_token_seconds_count{labels} 2.0"),
        format!("vllm:inter_token_latency_seconds_count{labels} 4.0"),
    ] {
        assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
    }
    assert!(page.contains(r#"vllm:cache_config_info{block_size="16","#));
    assert!(page.contains(r#"num_gpu_blocks="65536""#));
    assert!(page.contains(r#"finished_reason="length"} 2.0"#));
}

#[tokio::test]
async fn invalid_requests_are_answered_as_by_vllm() {
    let host = host(INSTANT).await;
    let check = async |method: &str, path: &str, body: &str, status: u16, kind: &str| {
        let reply = call(host.addr(), method, path, body).await;
        assert_eq!(reply.status, status, "{method} {path} {body}");
        let error = &reply.json()["error"];
        assert_eq!((&error["code"], &error["type"]), (&json!(status), &json!(kind)));
        assert!(error["message"].is_string() && error.get("param").is_some());
    };
    check("POST", "/v1/chat/completions", "{", 400, "BadRequestError").await;
    check("POST", "/v1/chat/completions", "{}", 400, "BadRequestError").await;
    let other = chat("hi", json!({"model": "huge"})).to_string();
    check("POST", "/v1/chat/completions", &other, 404, "NotFoundError").await;
    let long = chat("hi", json!({"max_tokens": 200_000})).to_string();
    check("POST", "/v1/chat/completions", &long, 400, "BadRequestError").await;
    check("GET", "/v1/chat/completions", "", 405, "Method Not Allowed").await;
    check("POST", "/metrics", "", 405, "Method Not Allowed").await;
    check("PUT", "/v1/models", "", 405, "Method Not Allowed").await;
    check("GET", "/nowhere", "", 404, "Not Found").await;
}

#[tokio::test]
async fn a_client_that_leaves_aborts_its_job() {
    for stream in [true, false] {
        let host = host(SLOW).await;
        let handle = host.handle();
        let client = open(host.addr(), "POST", "/v1/chat/completions", &endless(stream)).await;
        handle.until(|it| it.engine.running == 1 && it.engine.counters.answer_tokens > 0).await;
        drop(client);
        let stats = handle.until(|it| it.requests_open == 0 && it.engine.running == 0).await;
        assert_eq!((stats.engine.counters.aborted, stats.engine.used_blocks), (1, 0));
        assert_eq!(stats.connections_open, 0);
    }
}

#[tokio::test]
async fn stopping_cuts_streams_and_refuses_connections() {
    let host = host(SLOW).await;
    let (addr, handle) = (host.addr(), host.handle());
    let mut client = open(addr, "POST", "/v1/chat/completions", &endless(true)).await;
    handle.until(|it| it.engine.counters.answer_tokens > 2).await;
    host.stop().await;
    let mut raw = Vec::new();
    let _ = client.read_to_end(&mut raw).await;
    assert!(!RouteReply::parse(&raw).complete);
    assert_eq!(TcpStream::connect(addr).await.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!((handle.stats().connections_open, handle.stats().requests_open), (0, 0));
}

#[tokio::test]
async fn connections_are_kept_alive() {
    let host = host(INSTANT).await;
    let mut stream = TcpStream::connect(host.addr()).await.unwrap();
    for _ in 0..3 {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: sim\r\n\r\n").await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 200 OK"));
    }
    assert_eq!(host.handle().stats().connections_open, 1);
    assert_eq!(host.handle().stats().requests_received, 3);
}

/// A streamed chat under a fault: (status, chunks, complete).
async fn under(fault: Fault) -> (u16, usize, bool) {
    let host = host(INSTANT).await;
    host.handle().inject(Injection::times(fault, 1));
    let ask = chat("hello", json!({"stream": true, "max_tokens": 9, "ignore_eos": true}));
    let reply = post(&host, "/v1/chat/completions", ask.clone()).await;
    let after = post(&host, "/v1/chat/completions", ask).await;
    assert!(after.complete && after.chunks.len() == 11, "the fault strikes once");
    (reply.status, reply.chunks.len(), reply.complete)
}

#[tokio::test]
async fn faults_apply_where_they_say() {
    assert_eq!(under(Fault::RefuseConnections).await, (0, 0, false));
    assert_eq!(under(Fault::CloseBeforeHeaders).await, (0, 0, false));
    assert_eq!(under(Fault::CloseAfterHeaders).await, (200, 0, false));
    assert_eq!(under(Fault::CloseAfterChunks { chunks: 3 }).await, (200, 3, false));
    assert_eq!(under(Fault::Status { status: 503 }).await, (503, 1, true));
}

#[tokio::test]
async fn a_stalled_request_ends_when_its_client_leaves() {
    for fault in [Fault::Stall, Fault::StallAfterChunks { chunks: 2 }] {
        let host = host(SLOW).await;
        let handle = host.handle();
        handle.inject(Injection::always(fault));
        let client = open(host.addr(), "POST", "/v1/chat/completions", &endless(true)).await;
        handle.until(|it| it.requests_open == 1).await;
        drop(client);
        handle.until(|it| it.requests_open == 0 && it.engine.used_blocks == 0).await;
    }
}

#[tokio::test]
async fn faults_are_set_and_cleared_over_http() {
    let host = host(INSTANT).await;
    post(&host, "/sim/fault", json!({"kind": "status", "status": 500})).await;
    assert_eq!(post(&host, "/tokenize", json!({"prompt": "a"})).await.status, 500);
    assert_eq!(get(&host, "/health").await.status, 200, "probes are spared");
    host.handle().inject(Injection { scope: Scope::All, ..Injection::always(Fault::Status { status: 500 }) });
    assert_eq!(get(&host, "/health").await.status, 500, "unless told otherwise");
    assert_eq!(call(host.addr(), "DELETE", "/sim/fault", "").await.status, 200);
    assert_eq!(post(&host, "/tokenize", json!({"prompt": "a"})).await.status, 200);
    assert_eq!(post(&host, "/sim/fault", json!({"kind": "earthquake"})).await.status, 400);
}

#[tokio::test]
async fn the_latest_bodies_are_kept_byte_for_byte() {
    let host = host(INSTANT).await;
    let bodies = ["{\"prompt\": \"first\"}", "{ \"prompt\":\n\"sec\\u006fnd\" }", "not json"];
    for body in bodies {
        call(host.addr(), "POST", "/tokenize", body).await;
    }
    let kept: Vec<_> = host.handle().bodies().into_iter().map(|it| it.body).collect();
    assert_eq!(kept, bodies[1..]);
}

#[tokio::test(start_paused = true)]
async fn steps_take_what_the_profile_says() {
    let host = host(H200_8B).await;
    let handle = host.handle();
    let begin = std::time::Duration::ZERO;
    let clock = tokio::time::sleep(begin).deadline();
    let ask = chat(&"x".repeat(4 * 1_000), json!({"max_tokens": 11, "ignore_eos": true}));
    let usage = post(&host, "/v1/chat/completions", ask.clone()).await.json()["usage"].clone();
    let tokens = usage["prompt_tokens"].as_f64().unwrap();
    let first = 16.5 + 0.015183 * tokens + 4.21e-7 * tokens * tokens;
    let rest = 10.0 * (4.5 + 3.08e-5 * (tokens + 5.5) + 0.0274);
    let millis = clock.elapsed().as_secs_f64() * 1e3;
    // Tokio's timers have millisecond resolution.
    assert!((millis - first - rest).abs() < 2.0, "{millis} ms, not {first} + {rest}");
    handle.inject(Injection::always(Fault::Slow { factor: 3.0 }));
    let clock = tokio::time::sleep(begin).deadline();
    post(&host, "/v1/chat/completions", ask).await;
    let slow = clock.elapsed().as_secs_f64() * 1e3;
    assert!(slow > 3.0 * rest, "{slow} ms");
}
