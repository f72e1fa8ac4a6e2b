//! Foreign bytes in every parser of this crate: no panic, the same result however the bytes are cut, and the verdict of a
//! second parser where there is one.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use maitre_base::HandoffStyle;
use maitre_base::KvEvent;
use maitre_dialect::continuation::{Break, ContinuableStream, Flow, StreamTerms, as_chat};
use maitre_dialect::engine::{self, EngineKind};
use maitre_dialect::kv::{self, EventBatch, Groups};
use maitre_dialect::legs::sglang::{Bootstrap, Rooms};
use maitre_dialect::legs::{self, Answer, FirstEvents, StreamStart, Transfer, mooncake, nixl};
use maitre_dialect::route::Route;
use maitre_dialect::{exposition, models, openai, sse, usage};
use maitre_testkit::fuzz::fuzz;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

const ROUTES: [Route; 5] =
    [Route::Chat, Route::Completions, Route::Responses, Route::Messages, Route::Generate];

const CHAT: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"h\u00e9 \"q\""},{"role":"assistant","content":[{"type":"text","text":"x"}]}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":12,"priority":-3,"user":"u","cache_salt":"s","temperature":0.5e-3}"#;
const COMPLETION: &[u8] = br#"{"prompt":[1,2,3],"model":"m","n":1,"logit_bias":{"1":2.5},"stop":["a","b"],"echo":false,"suffix":null}"#;
const RESPONSES: &[u8] =
    br#"{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}],"previous_response_id":"r"}"#;

#[test]
fn fuzz_request() {
    fuzz(HERE, "request", &[CHAT, COMPLETION, RESPONSES, b"[]", b" {} "], |input, dice| {
        let route = ROUTES[dice.below(ROUTES.len())];
        let oracle = serde_json::from_slice::<Value>(input);
        let Ok(request) = openai::parse(route, input) else { return };
        // What the router has read, every other parser reads as well.
        let Ok(Value::Object(object)) = oracle else { panic!("not an object to serde_json: {oracle:?}") };
        let text = |key: &str| object.get(key).and_then(Value::as_str);
        assert_eq!(request.model.as_deref(), text("model"));
        assert_eq!(request.stream, object.get("stream") == Some(&Value::Bool(true)));
    });
}

const KEPT: &[u8] = include_bytes!("fixtures/vllm-0.32-continuation/cut.sse");
const REST: &[u8] = include_bytes!("fixtures/vllm-0.32-continuation/chat-rest.sse");
const MESSAGE: &[u8] = include_bytes!("fixtures/vllm-0.32-messages/request.json");
const MESSAGE_CHAT: &[u8] = include_bytes!("fixtures/vllm-0.32-messages/chat.sse");

#[test]
fn fuzz_continuation() {
    fn feed(stream: &mut ContinuableStream, pieces: &[&[u8]]) -> (Vec<u8>, Flow) {
        let mut out = Vec::new();
        // Nothing of a stream is read after it has broken or ended.
        let flow = pieces.iter().map(|it| stream.feed(it, &mut out)).find(|it| *it != Flow::On);
        (out, flow.unwrap_or(Flow::On))
    }
    let small = b": hi\n\ndata: {\"id\":\"a\",\"choices\":[{\"delta\":{\"role\":\"assistant\"}}],\"prompt_token_ids\":[1,2]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"token_ids\":[3]}],\"usage\":{\"prompt_tokens\":2}}\n\n";
    fuzz(HERE, "continuation", &[KEPT, REST, small, STREAM], |input, dice| {
        let terms = StreamTerms::read(Route::Chat, CHAT).unwrap();
        let (mut whole, mut cut) = (ContinuableStream::new(terms.clone()), ContinuableStream::new(terms));
        assert_eq!(feed(&mut whole, &[input]), feed(&mut cut, &dice.cut(input)));
        let broken = whole.break_off();
        assert_eq!(broken, cut.break_off());
        if matches!(broken, Break::Rest { .. }) {
            let request = whole.request(EngineKind::Vllm, CHAT).unwrap();
            serde_json::from_slice::<Value>(&request).unwrap();
            assert_eq!(feed(&mut whole, &[input]), feed(&mut cut, &dice.cut(input)));
            assert_eq!(whole.break_off(), cut.break_off());
        }
    });
    fuzz(HERE, "continuation-messages", &[MESSAGE_CHAT, KEPT, small, STREAM], |input, dice| {
        let terms = StreamTerms::read(Route::Messages, MESSAGE).unwrap();
        let (mut whole, mut cut) = (ContinuableStream::new(terms.clone()), ContinuableStream::new(terms));
        assert_eq!(feed(&mut whole, &[input]), feed(&mut cut, &dice.cut(input)));
        assert_eq!(whole.break_off(), cut.break_off());
    });
    fuzz(HERE, "continuation-as-chat", &[MESSAGE, CHAT], |input, _| {
        if let Ok(chat) = as_chat(input) {
            serde_json::from_slice::<Value>(&chat).unwrap();
        }
    });
    fuzz(HERE, "continuation-terms", &[CHAT, COMPLETION, RESPONSES], |input, dice| {
        let route = ROUTES[dice.below(ROUTES.len())];
        let _read = StreamTerms::read(route, input);
    });
}

const STREAM: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\ndata: [DONE]\n\n";
const EVENTS: &[u8] =
    b"event: message_start\r\ndata: {\"type\":\"message_start\"}\r\n\r\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
const COMPLETED: &[u8] =
    b": comment\nevent: response.completed\ndata: {\"response\":{\"usage\":{\"input_tokens\":3}}}\n\n";

#[test]
fn fuzz_event_stream() {
    let watch = |route: Route, pieces: &[&[u8]]| {
        let mut tracker = sse::Tracker::new(route);
        for piece in pieces {
            tracker.feed(piece);
        }
        (tracker.begun(), tracker.ended(), tracker.failed(), tracker.between_events())
    };
    fuzz(HERE, "event-stream", &[STREAM, EVENTS, COMPLETED], |input, dice| {
        for route in ROUTES {
            assert_eq!(watch(route, &dice.cut(input)), watch(route, &[input]), "{route:?}");
        }
    });
}

#[test]
fn fuzz_usage() {
    let find = |route: Route, pieces: &[&[u8]]| {
        let mut finder = usage::Finder::new(route);
        pieces.iter().for_each(|it| finder.feed(it));
        finder.finish()
    };
    let whole = br#"{"id":"x","meta_info":{"prompt_tokens":3,"cached_tokens":1},"usage":{"input_tokens":4,"output_tokens":1}}"#;
    fuzz(HERE, "usage", &[STREAM, whole, COMPLETED], |input, dice| {
        for route in ROUTES {
            assert_eq!(find(route, &dice.cut(input)), find(route, &[input]), "{route:?}");
        }
    });
}

/// A store with one block, as vLLM writes it: an array of a time, events and a rank.
const STORED: &[u8] = b"\x93\xcb\x41\xda\x00\x00\x00\x00\x00\x00\x91\x86\xa4type\xabBlockStored\xacblock_hashes\x91\xcf\x11\x22\x33\x44\x55\x66\x77\x88\xb1parent_block_hash\xc0\xa9token_ids\x94\x01\x02\x03\x04\xaablock_size\x04\xa7lora_id\xc0\x00";
const OLD_STYLE: &[u8] =
    b"\x92\xcb\x41\xda\x00\x00\x00\x00\x00\x00\x92\x92\xacBlockRemoved\x91\x01\x91\xb0AllBlocksCleared";

#[test]
fn fuzz_kv_events() {
    let (mut batch, mut groups) = (EventBatch::default(), Groups::default());
    fuzz(HERE, "kv-events", &[STORED, OLD_STYLE], |input, _| {
        if kv::decode(input, &mut groups, &mut batch).is_err() {
            assert_eq!(batch.events().count(), 0, "half a message");
        }
        // Nothing is larger than the bytes that it came in.
        for event in batch.events() {
            if let KvEvent::Stored(it) = event {
                assert!(it.tokens.len() <= input.len() && it.names.len() <= input.len());
            }
        }
    });
}

const METRICS: &[u8] = b"# HELP vllm:num_requests_running Running\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\",model_name=\"a\\\"b\"} 3.0\nvllm:num_requests_waiting{engine=\"0\"} 2\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1.0 1700000000\nsglang:num_running_reqs 4\nsglang:token_usage 1e-3\n";

#[test]
fn fuzz_metrics_page() {
    let kinds = [EngineKind::Vllm, EngineKind::Sglang];
    fuzz(HERE, "metrics-page", &[METRICS], |input, dice| {
        for sample in exposition::samples(input) {
            let _ = (sample.base_name(), sample.label("engine"), sample.label("model_name"));
        }
        let _ = engine::parse_metrics(kinds[dice.below(2)], Some(0).filter(|_| dice.below(2) == 0), input);
    });
}

#[test]
fn fuzz_models() {
    let list = br#"{"object":"list","data":[{"id":"a","object":"model","owned_by":"vllm","root":"a","parent":null,"max_model_len":4096},{"id":"b","parent":"a"}]}"#;
    fuzz(HERE, "models", &[list], |input, dice| {
        let _ = models::parse(input);
        let shows_all = dice.below(2) == 0;
        let lists = [input, &list[..]].map(models::CardList::read);
        let merged = models::merge(lists.iter().flatten(), |it| shows_all || it.len() % 2 == 0);
        serde_json::from_str::<Value>(&merged).expect("the merged list is JSON");
    });
}

/// The members of an object as a second parser reads them, in order and with those that are repeated.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Members, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members;
            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// Every field that a leg may set, replace or remove.
const LEG_FIELDS: [&str; 14] = [
    "kv_transfer_params",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "min_tokens",
    "min_completion_tokens",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disaggregated_params",
    "prompt_token_ids",
    "prompt",
];

const TRANSFERS: [Transfer<'static>; 6] = [
    Transfer::NixlPull,
    Transfer::NixlPush(nixl::SideChannel {
        engine_id: "e\"",
        host: "h",
        port: 1,
        tp_size: 1,
        pp_size: 1,
        request_id: "r",
    }),
    Transfer::Mooncake(mooncake::Pairing { request_id: "r", bootstrap: "http://h:1", engine_id: "e" }),
    Transfer::Sglang(Bootstrap { host: "h", port: None, rooms: Rooms::any(7), prefill_rank: None }),
    Transfer::TensorRt { request_id: 7 },
    Transfer::Store,
];

/// The body was made of the client's: other members are the same and in the same order, and `set` is there once.
fn check_leg(client: &Members, made: &[u8], set: Option<&str>) {
    let made: Members = serde_json::from_slice(made).expect("a body is JSON");
    let others = |it: &Members| -> Vec<(String, Value)> {
        it.0.iter().filter(|it| !LEG_FIELDS.contains(&&*it.0)).cloned().collect()
    };
    assert_eq!(others(&made), others(client));
    let count = |name: &str| made.0.iter().filter(|it| it.0 == name).count();
    assert!(set.is_none_or(|it| count(it) == 1), "{set:?} is there {} times", set.map_or(0, count));
}

const LEGS: &[u8] = br#"{"stream":true,"prompt":["a","b"],"kv_transfer_params":{"a":1}, "min_tokens":2,"kv_transfer_params":null ,"max_completion_tokens":7,"stream_options":{},"bootstrap_room":[1],"disaggregated_params":{},"stream":false}"#;

#[test]
fn fuzz_prefill_leg() {
    fuzz(HERE, "prefill-leg", &[CHAT, COMPLETION, RESPONSES, LEGS, b" {} "], |input, dice| {
        let route = ROUTES[dice.below(ROUTES.len())];
        let transfer = TRANSFERS[dice.below(TRANSFERS.len())];
        let made = transfer.prefill(route, input);
        let Ok(client) = serde_json::from_slice::<Members>(input) else { return };
        let Ok(made) = made else { panic!("refused what is JSON: {made:?}") };
        let set = match transfer.style() {
            HandoffStyle::NixlPull | HandoffStyle::NixlPush | HandoffStyle::Mooncake => "kv_transfer_params",
            HandoffStyle::Sglang => "bootstrap_room",
            HandoffStyle::TensorRt => "disaggregated_params",
            HandoffStyle::Store => "stream",
        };
        check_leg(&client, &made, Some(set));
        let again = transfer.prefill(route, &made);
        assert_eq!(again.as_deref(), Ok(&*made), "the same twice");
    });
}

const PULLED: &[u8] = include_bytes!("fixtures/vllm-0.32-legs/prefill-answer.json");
const CONTEXT: &[u8] = br#"{"choices":[{"index":0,"finish_reason":"length","disaggregated_params":{"request_type":"context_only","ctx_request_id":7,"disagg_request_id":8,"ctx_usage":null}}],"usage":{"prompt_tokens":3},"prompt_token_ids":[1,2]}"#;
const COMPLETE: &[u8] = br#"{"object":"chat.completion","choices":[{"message":{"content":"a"},"finish_reason":"stop","disaggregated_params":null}],"usage":{}}"#;

#[test]
fn fuzz_decode_leg() {
    let answers = [
        (HandoffStyle::NixlPull, PULLED, "kv_transfer_params"),
        (HandoffStyle::TensorRt, CONTEXT, "disaggregated_params"),
    ]
    .map(|(style, answer, set)| (Answer::read(style, answer).unwrap(), set));
    fuzz(HERE, "decode-leg", &[CHAT, COMPLETION, RESPONSES, LEGS, b" {} "], |input, dice| {
        let route = ROUTES[dice.below(ROUTES.len())];
        let (answer, set) = &answers[dice.below(answers.len())];
        let after = answer.decode(route, input);
        let transfer = TRANSFERS[dice.below(TRANSFERS.len())];
        let at_once = transfer.decode(route, input);
        let _ = legs::obstacle(transfer.style(), route, input);
        let Ok(client) = serde_json::from_slice::<Members>(input) else { return };
        check_leg(&client, &after.expect("JSON is accepted"), Some(set));
        check_leg(&client, &at_once.expect("JSON is accepted"), None);
    });
}

#[test]
fn fuzz_prefill_answer() {
    fuzz(HERE, "prefill-answer", &[PULLED, CONTEXT, COMPLETE], |input, dice| {
        for style in HandoffStyle::ALL {
            let Ok(answer) = Answer::read(style, input) else { continue };
            let route = ROUTES[dice.below(ROUTES.len())];
            let made = answer.decode(route, CHAT).expect("our own body is JSON");
            // What serde_json cannot read in the answer (a lone surrogate, say), it cannot read here either.
            if serde_json::from_slice::<Value>(input).is_ok() {
                serde_json::from_slice::<Value>(&made).expect("a body is JSON");
            }
            if let Some(complete) = answer.complete() {
                let _ = complete.body();
                let events = complete.events(route, dice.below(2) == 0);
                assert!(events.lines().all(|it| it.is_empty() || it.starts_with("data: ")), "{events}");
            }
        }
        let _ = mooncake::engines(input);
    });
}

#[test]
fn fuzz_first_events() {
    let failed: &[u8] = include_bytes!("fixtures/vllm-0.32-legs/failed.sse");
    let decode: &[u8] = include_bytes!("fixtures/vllm-0.32-legs/decode.sse");
    fuzz(HERE, "first-events", &[failed, decode, STREAM, EVENTS, COMPLETED], |input, dice| {
        for route in ROUTES {
            let mut first = FirstEvents::new(route);
            let mut held = Vec::new();
            let decided = dice.cut(input).into_iter().map(|piece| {
                held.extend_from_slice(piece);
                first.read(&held)
            });
            let decided = decided.into_iter().find(|it| *it != StreamStart::Announced);
            let whole = Some(FirstEvents::new(route).read(input)).filter(|it| *it != StreamStart::Announced);
            assert_eq!(decided, whole, "{route:?}");
        }
    });
}
