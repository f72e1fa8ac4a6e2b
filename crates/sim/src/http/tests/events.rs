//! KV events over loopback sockets: subscribers learn what the cache holds.

use std::collections::BTreeMap;

use maitre_zmtp::subscription::Subscription;
use maitre_zmtp::{Next, Role, ZmtpLimits, ZmtpPeer, frame, greeting};

use super::*;
use crate::engine;
use crate::events;
use crate::events::disturbance::Disturbance;
use crate::kv::{Names, Root};

/// Room for eleven blocks: a few prompts, then something must be evicted.
const SMALL: Profile = Profile { kv_blocks: 12, ..INSTANT };

async fn publishing(profile: Profile, change: impl FnOnce(&mut events::PublisherConfig)) -> Host {
    let mut events =
        events::PublisherConfig { replay: Some(LOOPBACK), ..events::PublisherConfig::new(LOOPBACK) };
    change(&mut events);
    let config = HostConfig {
        model: "tiny".to_owned(),
        adapters: vec!["tiny-sql".to_owned()],
        events: Some(events),
        ..HostConfig::new(profile)
    };
    Host::bind(LOOPBACK, config).await.unwrap()
}

/// The router's end of a connection.
struct Client {
    stream: TcpStream,
    peer: ZmtpPeer,
    buffer: Vec<u8>,
}

impl Client {
    async fn connect(addr: SocketAddr, role: Role) -> Client {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(&greeting::OPENING).await.unwrap();
        let limits = ZmtpLimits { message_bytes_max: 1 << 20, frames_max: 4 };
        let mut client = Client { stream, peer: ZmtpPeer::new(role, limits), buffer: Vec::new() };
        while !client.peer.is_ready() {
            assert!(client.step().await.unwrap().is_none());
        }
        client
    }

    /// Subscribed, and registered as such.
    async fn subscribe(host: &Host, topic: &[u8]) -> Client {
        let before = host.handle().stats().events.subscribers;
        let mut client = Client::connect(host.events().unwrap().stream, Role::Sub).await;
        client.send(&[&Subscription::Add(topic).to_frame()]).await;
        host.handle().until(|it| it.events.subscribers > before).await;
        client
    }

    async fn send(&mut self, frames: &[&[u8]]) {
        let mut bytes = Vec::new();
        frame::put_message(frames, &mut bytes);
        self.stream.write_all(&bytes).await.unwrap();
    }

    /// The next message; `None` when the connection ends.
    async fn next(&mut self) -> Option<Vec<Vec<u8>>> {
        let mut message = Vec::new();
        loop {
            let (body, is_last) = loop {
                if let Some(frame) = self.step().await? {
                    break frame;
                }
            };
            message.push(body);
            if is_last {
                return Some(message);
            }
        }
    }

    /// A frame, if that is what comes next. The outer option is the connection.
    async fn step(&mut self) -> Option<Option<(Vec<u8>, bool)>> {
        match self.peer.next(&self.buffer).unwrap() {
            Next::Wait { .. } => match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            },
            Next::Handled { bytes, reply } => {
                self.buffer.drain(..bytes);
                self.stream.write_all(&reply).await.unwrap();
            }
            Next::Frame { head_bytes, body_bytes, is_last } => {
                self.buffer.drain(..head_bytes);
                return Some(Some((self.buffer.drain(..body_bytes).collect(), is_last)));
            }
        }
        Some(None)
    }
}

/// MessagePack read back, as far as batches use it.
fn unpack(bytes: &mut &[u8]) -> Value {
    let take = |bytes: &mut &[u8], count: usize| -> Vec<u8> { bytes.split_off(..count).unwrap().to_vec() };
    let number =
        |bytes: &mut &[u8], count| take(bytes, count).iter().fold(0, |sum, &it| sum << 8 | u64::from(it));
    let text = |bytes: &mut &[u8], count| json!(String::from_utf8(take(bytes, count)).unwrap());
    match number(bytes, 1) {
        0xc0 => Value::Null,
        0xcb => json!(f64::from_bits(number(bytes, 8))),
        tag @ 0xcc..=0xcf => json!(number(bytes, 1 << (tag - 0xcc))),
        0xdc => {
            let count = number(bytes, 2);
            (0..count).map(|_| unpack(bytes)).collect()
        }
        tag @ 0x80..=0x8f => {
            let pair = |_| (unpack(bytes).as_str().unwrap().to_owned(), unpack(bytes));
            Value::Object((0x80..tag).map(pair).collect())
        }
        tag @ 0x90..=0x9f => (0x90..tag).map(|_| unpack(bytes)).collect(),
        tag @ 0xa0..=0xbf => text(bytes, (tag - 0xa0) as usize),
        tag @ 0..=0x7f => json!(tag),
        tag => panic!("{tag:#x}"),
    }
}

fn events_of(payload: &[u8]) -> Vec<Value> {
    let mut rest = payload;
    let batch = unpack(&mut rest);
    assert!(rest.is_empty() && batch[0].as_f64().unwrap() > 1e9 && batch[2] == 0, "{batch}");
    batch[1].as_array().unwrap().clone()
}

fn kinds(payload: &[u8]) -> Vec<String> {
    events_of(payload).iter().map(|it| it["type"].as_str().unwrap().to_owned()).collect()
}

fn number(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame.try_into().unwrap())
}

async fn prompt(host: &Host, text: &str, more: Value) {
    let reply = post(host, "/v1/chat/completions", chat(text, more)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// About nine blocks, shared only by prompts of the same number.
fn long(number: u32) -> String {
    format!("{number:03} ").repeat(130)
}

#[tokio::test]
async fn the_stream_adds_up_to_what_the_cache_holds() {
    let host = publishing(Profile { kv_blocks: 40, ..INSTANT }, |_| {}).await;
    let mut client = Client::subscribe(&host, b"").await;
    for round in 0..12 {
        let more = match round % 3 {
            0 => json!({"max_tokens": 40, "ignore_eos": true}),
            1 => json!({"max_tokens": 1, "cache_salt": "pepper"}),
            _ => json!({"max_tokens": 1, "model": "tiny-sql"}),
        };
        prompt(&host, &long(round / 2), more).await;
    }
    let handle = host.handle();
    let mut copies: BTreeMap<u64, u32> = BTreeMap::new();
    for expected in 0..handle.stats().events.batches {
        let message = client.next().await.unwrap();
        assert_eq!((message.len(), number(&message[1])), (3, expected));
        for event in events_of(&message[2]) {
            let hashes = event["block_hashes"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap());
            for hash in hashes {
                match event["type"].as_str().unwrap() {
                    "BlockStored" => *copies.entry(hash).or_default() += 1,
                    "BlockRemoved" => *copies.get_mut(&hash).unwrap() -= 1,
                    other => panic!("{other}"),
                }
            }
        }
    }
    copies.retain(|_, count| *count > 0);
    assert!(handle.stats().engine.counters.evictions > 0);
    assert_eq!(copies, handle.resident());
}

#[tokio::test]
async fn the_cached_blocks_of_a_prompt_can_be_queried() {
    let host = publishing(INSTANT, |_| {}).await;
    let tokens: Vec<u32> = (0..100).collect();
    let ask = json!({"model": "tiny", "prompt": tokens, "max_tokens": 1, "cache_salt": "pepper"});
    assert_eq!(post(&host, "/v1/completions", ask).await.status, 200);
    let root = |salt| Root::new(Names { model: "tiny", adapter: None, salt });
    assert_eq!(host.handle().holds(&tokens, &root("pepper")), 6);
    assert_eq!(host.handle().holds(&tokens[..40], &root("pepper")), 2);
    assert_eq!(host.handle().holds(&tokens, &root("")), 0);
}

#[tokio::test]
async fn a_stored_block_event_carries_everything_that_identifies_it() {
    let host = publishing(INSTANT, |_| {}).await;
    let mut client = Client::subscribe(&host, b"").await;
    let tokens: Vec<u32> = (1000..1040).collect();
    let ask = json!({"model": "tiny-sql", "prompt": tokens, "max_tokens": 1, "cache_salt": "pepper"});
    post(&host, "/v1/completions", ask).await;
    let root = Root::new(Names { model: "tiny", adapter: Some("tiny-sql"), salt: "pepper" });
    let first = crate::kv::chain(root.hash(), &tokens[..16]);
    let expected = json!([{
        "type": "BlockStored",
        "block_hashes": [first, crate::kv::chain(first, &tokens[16..32])],
        "parent_block_hash": null,
        "token_ids": tokens[..32],
        "block_size": 16,
        "lora_id": 1,
        "medium": "GPU",
        "lora_name": "tiny-sql",
        "extra_keys": [["tiny-sql", "pepper"], ["tiny-sql"]],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }]);
    assert_eq!(Value::from(events_of(&client.next().await.unwrap()[2])), expected);
}

#[tokio::test]
async fn removals_precede_the_store_that_caused_them() {
    let host = publishing(SMALL, |_| {}).await;
    let mut client = Client::subscribe(&host, b"").await;
    for number in 0..2 {
        prompt(&host, &long(number), json!({"max_tokens": 1})).await;
    }
    assert_eq!(kinds(&client.next().await.unwrap()[2]), ["BlockStored"]);
    let kinds = kinds(&client.next().await.unwrap()[2]);
    let (stored, removed) = kinds.split_last().unwrap();
    assert!(stored == "BlockStored" && !removed.is_empty(), "{kinds:?}");
    assert!(removed.iter().all(|it| it == "BlockRemoved"), "{kinds:?}");
}

#[tokio::test]
async fn a_subscriber_receives_its_topic_and_nothing_earlier() {
    let host = publishing(INSTANT, |it| it.topic = "kv@a".to_owned()).await;
    prompt(&host, &long(0), json!({"max_tokens": 1})).await;
    let mut other = Client::connect(host.events().unwrap().stream, Role::Sub).await;
    other.send(&[&Subscription::Add(b"kv@b").to_frame()]).await;
    let mut client = Client::subscribe(&host, b"kv@").await;
    prompt(&host, &long(1), json!({"max_tokens": 1})).await;
    let message = client.next().await.unwrap();
    assert_eq!((&message[0][..], number(&message[1])), (b"kv@a".as_slice(), 1));
    // After unsubscribing, the connection stays open and silent.
    client.send(&[&Subscription::Remove(b"kv@").to_frame()]).await;
    host.handle().until(|it| it.events.subscribers == 0).await;
    prompt(&host, &long(2), json!({"max_tokens": 1})).await;
    host.handle().disturb(Disturbance::CloseConnections);
    assert_eq!((client.next().await, other.next().await), (None, None));
}

#[tokio::test]
async fn a_replay_is_requested_by_number_and_anything_else_is_ignored() {
    let host = publishing(INSTANT, |_| {}).await;
    for number in 0..3 {
        prompt(&host, &long(number), json!({"max_tokens": 1})).await;
    }
    let mut client = Client::connect(host.events().unwrap().replay.unwrap(), Role::Dealer).await;
    client.send(&[b"hello"]).await;
    client.send(&[b"", &[0; 9]]).await;
    client.send(&[b"", &1u64.to_be_bytes()]).await;
    let mut numbers = Vec::new();
    for _ in 0..3 {
        let message = client.next().await.unwrap();
        assert_eq!(message.len(), 4);
        numbers.push(number(&message[2]));
    }
    assert_eq!(numbers, [1, 2, u64::MAX]);
    assert_eq!(host.handle().stats().events.replays, 1);
}

#[tokio::test]
async fn a_crash_drops_everything_but_the_port() {
    let host = publishing(SLOW, |_| {}).await;
    let handle = host.handle();
    prompt(&host, &long(0), json!({"max_tokens": 1})).await;
    let mut client = Client::subscribe(&host, b"").await;
    let mut answer = open(host.addr(), "POST", "/v1/chat/completions", &endless(true)).await;
    handle.until(|it| it.engine.counters.answer_tokens > 5).await;
    handle.restart_engine();
    while client.next().await.is_some() {}
    let mut raw = Vec::new();
    let _ = answer.read_to_end(&mut raw).await;
    assert!(!RouteReply::parse(&raw).complete);
    let stats = handle.until(|it| it.connections_open == 0 && it.events.connections == 0).await;
    assert_eq!((stats.engine.running, stats.requests_open, stats.events.batches), (0, 0, 0));
    assert_eq!(stats.engine.counters, engine::EngineCounters::default());
    assert!(handle.resident().is_empty());
    let mut client = Client::subscribe(&host, b"").await;
    prompt(&host, &long(0), json!({"max_tokens": 1})).await;
    assert_eq!(number(&client.next().await.unwrap()[1]), 0);
}

#[tokio::test]
async fn a_crash_over_http_is_answered() {
    let host = publishing(INSTANT, |_| {}).await;
    prompt(&host, &long(0), json!({"max_tokens": 1})).await;
    assert_eq!(call(host.addr(), "POST", "/sim/restart", "").await.status, 200);
    assert_eq!(host.handle().stats().events.batches, 0);
    assert_eq!(get(&host, "/sim/restart").await.status, 405);
    assert_eq!(get(&host, "/sim/nothing").await.status, 404);
}

#[tokio::test]
async fn a_cache_reset_is_published_with_the_next_step() {
    let host = publishing(SLOW, |_| {}).await;
    let handle = host.handle();
    let busy = open(host.addr(), "POST", "/v1/chat/completions", &endless(true)).await;
    handle.until(|it| it.engine.counters.answer_tokens > 0).await;
    assert_eq!(post(&host, "/reset_prefix_cache", json!({})).await.json(), json!({"success": false}));
    drop(busy);
    handle.until(|it| it.engine.used_blocks == 0).await;
    let mut client = Client::subscribe(&host, b"").await;
    assert!(!handle.resident().is_empty());
    assert_eq!(call(host.addr(), "POST", "/reset_prefix_cache", "").await.json(), json!({"success": true}));
    assert!(handle.resident().is_empty());
    prompt(&host, &long(0), json!({"max_tokens": 1})).await;
    assert_eq!(kinds(&client.next().await.unwrap()[2]), ["AllBlocksCleared", "BlockStored"]);
}

#[tokio::test]
async fn event_sources_are_reported_as_by_vllm() {
    let host = publishing(INSTANT, |it| it.topic = "kv".to_owned()).await;
    let events = host.events().unwrap();
    let expected = json!({"0": {
        "enable_kv_cache_events": true,
        "publisher": "zmq",
        "endpoint": format!("tcp://*:{}", events.stream.port()),
        "replay_endpoint": format!("tcp://{}", events.replay.unwrap()),
        "buffer_steps": 10_000,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": "kv",
    }});
    assert_eq!(get(&host, "/kv_event_sources").await.json(), expected);
}

#[tokio::test]
async fn an_engine_that_publishes_nothing_says_so() {
    let host = host(INSTANT).await;
    assert_eq!(get(&host, "/kv_event_sources").await.json(), json!({}));
    let disturbed = post(&host, "/sim/events", json!({"kind": "drop", "batches": 1})).await;
    assert_eq!(disturbed.status, 400);
    assert!(disturbed.text().contains("publishes no events"));
}

#[tokio::test]
async fn the_stream_is_disturbed_over_http() {
    let host = publishing(INSTANT, |_| {}).await;
    let mut client = Client::subscribe(&host, b"").await;
    let disturb = async |body: Value| assert_eq!(post(&host, "/sim/events", body).await.status, 200);
    disturb(json!({"kind": "drop", "batches": 1})).await;
    disturb(json!({"kind": "double", "batches": 1})).await;
    disturb(json!({"kind": "swap", "pairs": 1})).await;
    for number in 0..4 {
        prompt(&host, &long(number), json!({"max_tokens": 1})).await;
    }
    assert_eq!(call(host.addr(), "DELETE", "/sim/events", "").await.status, 200);
    let mut numbers = Vec::new();
    for _ in 0..4 {
        numbers.push(number(&client.next().await.unwrap()[1]));
    }
    assert_eq!(numbers, [2, 1, 1, 3]);
    assert_eq!(post(&host, "/sim/events", json!({"kind": "explode"})).await.status, 400);
    assert_eq!(get(&host, "/sim/events").await.status, 405);
}

#[tokio::test]
async fn a_client_of_another_protocol_is_disconnected() {
    let host = publishing(INSTANT, |_| {}).await;
    let events = host.events().unwrap();
    let hostile: [&[u8]; 3] = [b"GET / HTTP/1.1\r\n\r\n", b"\xff\0\0\0\0\0\0\0\0\x7f\x01", b"\x05\0hello"];
    for addr in [events.stream, events.replay.unwrap()] {
        for bytes in hostile {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
        let mut client =
            Client::connect(addr, if addr == events.stream { Role::Sub } else { Role::Dealer }).await;
        client.stream.write_all(b"\x02\0\0\0\x10\0\0\0\0").await.unwrap();
        assert_eq!(client.next().await, None);
    }
    host.handle().until(|it| it.events.connections == 0).await;
}
