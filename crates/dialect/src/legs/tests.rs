//! Bodies in, bodies out: every style by its bytes, what a real vLLM was sent and answered, and laws for any body.

mod laws;

use serde_json::Value;

use super::*;
use crate::legs::peer::PeerSource;
use crate::legs::sglang::{Bootstrap, Rooms};

const CHANNEL: nixl::SideChannel<'static> = nixl::SideChannel {
    engine_id: "prefill-1",
    host: "10.0.0.5",
    port: 5600,
    tp_size: 1,
    pp_size: 1,
    request_id: "r1",
};
const PAIRING: mooncake::Pairing<'static> =
    mooncake::Pairing { request_id: "r1", bootstrap: "http://10.0.0.5:8998", engine_id: "e0" };
const BOOTSTRAP: Bootstrap<'static> =
    Bootstrap { host: "10.0.0.5", port: Some(8998), rooms: Rooms::any(1 << 63), prefill_rank: None };

/// One of each style.
const TRANSFERS: [Transfer<'static>; 6] = [
    Transfer::NixlPull,
    Transfer::NixlPush(CHANNEL),
    Transfer::Mooncake(PAIRING),
    Transfer::Sglang(BOOTSTRAP),
    Transfer::TensorRt { request_id: 1 << 40 },
    Transfer::Store,
];

const CLIENT: &str = r#"{"model":"m","messages":[{"role":"user","content":"Hi"}],"stream":true}"#;

fn text(body: Vec<u8>) -> String {
    String::from_utf8(body).unwrap()
}

#[track_caller]
fn check_prefill(transfer: Transfer<'_>, route: Route, body: &str, expected: &str) {
    assert_eq!(text(transfer.prefill(route, body.as_bytes()).unwrap()), expected, "{}", transfer.style());
}

#[track_caller]
fn check_decode(transfer: Transfer<'_>, route: Route, body: &str, expected: &str) {
    let actual = transfer.decode(route, body.as_bytes()).unwrap().into_owned();
    assert_eq!(text(actual), expected, "{}", transfer.style());
}

#[test]
fn each_style_has_its_bytes_on_both_legs() {
    let rest = r#""model":"m","messages":[{"role":"user","content":"Hi"}],"#;
    let [pull, push, pair, sglang, tensorrt, store] = TRANSFERS;
    let nixl = format!(
        r#"{{"kv_transfer_params":{{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}},"max_tokens":1,{rest}"stream":false}}"#
    );
    check_prefill(pull, Route::Chat, CLIENT, &nixl);
    check_decode(pull, Route::Chat, CLIENT, CLIENT);
    check_prefill(push, Route::Chat, CLIENT, &nixl);
    let pushed = format!(
        r#"{{"kv_transfer_params":{{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"prefill-1","remote_host":"10.0.0.5","remote_port":5600,"tp_size":1,"pp_size":1,"remote_request_id":"r1"}},{rest}"stream":true}}"#
    );
    check_decode(push, Route::Chat, CLIENT, &pushed);
    let paired = format!(
        r#"{{"kv_transfer_params":{{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-r1"}},"max_tokens":1,{rest}"stream":false}}"#
    );
    check_prefill(pair, Route::Chat, CLIENT, &paired);
    let paired = format!(
        r#"{{"kv_transfer_params":{{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"xfer-r1","remote_bootstrap_addr":"http://10.0.0.5:8998","remote_engine_id":"e0"}},{rest}"stream":true}}"#
    );
    check_decode(pair, Route::Chat, CLIENT, &paired);
    let met = format!(
        r#"{{"bootstrap_host":"10.0.0.5","bootstrap_port":8998,"bootstrap_room":4611686018427387904,{rest}"stream":true}}"#
    );
    check_prefill(sglang, Route::Chat, CLIENT, &met);
    check_decode(sglang, Route::Chat, CLIENT, &met);
    let context = format!(
        r#"{{"disaggregated_params":{{"request_type":"context_only","disagg_request_id":1099511627776}},{rest}"stream":false}}"#
    );
    check_prefill(tensorrt, Route::Chat, CLIENT, &context);
    check_decode(tensorrt, Route::Chat, CLIENT, CLIENT);
    check_prefill(store, Route::Chat, CLIENT, &format!(r#"{{"max_tokens":1,{rest}"stream":false}}"#));
    check_decode(store, Route::Chat, CLIENT, CLIENT);
}

#[test]
fn a_prefill_leg_asks_for_one_token_whatever_the_client_asked_for() {
    let check = |route, body, expected| check_prefill(Transfer::Store, route, body, expected);
    check(
        Route::Chat,
        r#"{ "max_tokens": 9, "max_completion_tokens": null, "min_tokens": 5, "a": 1 }"#,
        r#"{"stream":false, "max_tokens": 1, "max_completion_tokens": 1, "a": 1 }"#,
    );
    check(
        Route::Completions,
        r#"{"stream_options":{},"stream":true,"min_completion_tokens":2,"max_tokens":0}"#,
        r#"{"stream":false,"max_tokens":1}"#,
    );
    check(Route::Messages, r#"{"max_tokens":9}"#, r#"{"stream":false,"max_tokens":1}"#);
    check(
        Route::Responses,
        r#"{"max_output_tokens":9,"max_tokens":9}"#,
        r#"{"stream":false,"max_output_tokens":1,"max_tokens":9}"#,
    );
    // TensorRT-LLM ends a context leg by itself.
    check_prefill(
        Transfer::TensorRt { request_id: 5 },
        Route::Completions,
        r#"{"max_tokens":9,"min_tokens":3,"stream":true,"stream_options":{}}"#,
        r#"{"disaggregated_params":{"request_type":"context_only","disagg_request_id":5},"max_tokens":9,"min_tokens":3,"stream":false}"#,
    );
}

#[test]
fn a_field_of_the_client_is_replaced_and_not_doubled() {
    let own = r#"{"kv_transfer_params":{"remote_host":"evil"},"a":1,"kv_transfer_params":[]}"#;
    let params = r#"{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-r1"}"#;
    check_prefill(
        Transfer::Mooncake(PAIRING),
        Route::Chat,
        own,
        &format!(r#"{{"stream":false,"max_tokens":1,"kv_transfer_params":{params},"a":1}}"#),
    );
    check_decode(
        Transfer::Sglang(BOOTSTRAP),
        Route::Chat,
        r#"{"bootstrap_host":"evil","bootstrap_room":1,"bootstrap_port":2}"#,
        r#"{"bootstrap_host":"10.0.0.5","bootstrap_room":4611686018427387904,"bootstrap_port":8998}"#,
    );
    let source = PeerSource { kv_request_id: "k", host: "h", port: 1 };
    assert_eq!(
        text(source.pull(br#"{"kv_transfer_params":null}"#).unwrap()),
        r#"{"kv_transfer_params":{"remote_kv_source":{"kv_request_id":"k","remote_host":"h","remote_port":1}}}"#
    );
}

#[test]
fn strings_from_settings_are_quoted() {
    let odd = mooncake::Pairing { request_id: "a\"b", bootstrap: "\\", engine_id: "\u{1}é" };
    let body = Transfer::Mooncake(odd).decode(Route::Chat, b"{}").unwrap().into_owned();
    let params: Value = serde_json::from_slice(&body).unwrap();
    let params = &params["kv_transfer_params"];
    assert_eq!(
        (&params["transfer_id"], &params["remote_bootstrap_addr"], &params["remote_engine_id"]),
        (&"xfer-a\"b".into(), &"\\".into(), &"\u{1}é".into())
    );
}

#[test]
fn a_body_that_is_not_an_object_is_refused() {
    for transfer in TRANSFERS {
        for body in ["", "[]", "{", "{} {}", "\"kv_transfer_params\"", "{\"a\":\"\u{1}\"}"] {
            let refused = transfer.prefill(Route::Completions, body.as_bytes());
            assert!(matches!(refused, Err(BadRequest::NotJson { .. })), "{body}: {refused:?}");
        }
        assert_eq!(
            transfer.prefill(Route::Chat, b"{\"a\":\"\xff\"}"),
            Err(BadRequest::NotUtf8 { offset: 6 })
        );
    }
}

fn captured(file: &str) -> Value {
    serde_json::from_str(file).unwrap()
}

const PREFILL_REQUEST: &str = include_str!("../../tests/fixtures/vllm-0.32-legs/prefill-request.json");
const PREFILL_ANSWER: &str = include_str!("../../tests/fixtures/vllm-0.32-legs/prefill-answer.json");
const DECODE_REQUEST: &str = include_str!("../../tests/fixtures/vllm-0.32-legs/decode-request.json");
const PULL: &str = include_str!("../../tests/fixtures/vllm-0.32-legs/pull.json");

#[test]
fn a_real_request_in_two_legs_is_made_of_the_clients_body() {
    let (client, params) = DECODE_REQUEST.split_once(",\"kv_transfer_params\":").unwrap();
    let client = format!("{client}}}");
    let sent = Transfer::NixlPull.prefill(Route::Chat, client.as_bytes()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&sent).unwrap(), captured(PREFILL_REQUEST));
    let answer = Answer::read(HandoffStyle::NixlPull, PREFILL_ANSWER.as_bytes()).unwrap();
    let usage = answer.usage().unwrap();
    assert_eq!((usage.prompt_tokens, usage.cached_tokens), (Some(910), Some(0)));
    assert!(answer.hands_over() && answer.complete().is_none());
    let sent = text(answer.decode(Route::Chat, client.as_bytes()).unwrap().into_owned());
    let params = params.trim_end().strip_suffix('}').unwrap();
    assert_eq!(sent, client.replacen('{', &format!("{{\"kv_transfer_params\":{params},"), 1));
    assert_eq!(captured(&sent), captured(DECODE_REQUEST));
}

#[test]
fn a_real_pull_from_a_peer_is_made_of_the_clients_body() {
    let source =
        PeerSource { kv_request_id: "adb00e773ee846e08cc073622f7538ef", host: "127.0.0.1", port: 29103 };
    let (params, _) = PULL.split_once(",\"usage\"").unwrap();
    assert_eq!(text(source.pull(b"{}").unwrap()), format!("{params}}}"));
    let rest = CLIENT.strip_prefix('{').unwrap();
    assert_eq!(text(source.pull(CLIENT.as_bytes()).unwrap()), format!("{params},{rest}"));
}

#[test]
fn the_room_chooses_the_rank() {
    for random in [0, 1, 12345, 1 << 63, u64::MAX - 1, u64::MAX] {
        for dp_size in [1, 2, 3, 8, 1024] {
            for rank in [0, dp_size / 2, dp_size - 1] {
                let rooms = Rooms::on_rank(random, rank, dp_size);
                let bootstrap = Bootstrap { rooms, ..BOOTSTRAP };
                let body = bootstrap.decode(Route::Completions, br#"{"prompt":["a","b","c"]}"#).unwrap();
                let body: Value = serde_json::from_slice(&body).unwrap();
                let rooms = body["bootstrap_room"].as_array().unwrap();
                let rooms: Vec<i64> = rooms.iter().map(|it| it.as_i64().unwrap()).collect();
                assert!(rooms[0] >= 0 && rooms.is_sorted_by(|a, b| a < b), "{rooms:?}");
                assert!(rooms.iter().all(|it| it % i64::from(dp_size) == i64::from(rank)), "{rooms:?}");
            }
        }
    }
}

#[test]
fn a_batch_meets_in_a_room_for_each_prompt() {
    let sglang = Transfer::Sglang(Bootstrap { port: None, rooms: Rooms::any(14), ..BOOTSTRAP });
    let fields = r#""bootstrap_host":"10.0.0.5","bootstrap_port":null,"bootstrap_room":7"#;
    for (route, prompt) in [
        (Route::Completions, r#""prompt":"a""#),
        (Route::Completions, r#""prompt":[1,2]"#),
        (Route::Completions, r#""prompt":[]"#),
        (Route::Generate, r#""input_ids":[ 1 ]"#),
        (Route::Chat, r#""prompt":["a","b"]"#),
    ] {
        check_prefill(sglang, route, &format!("{{{prompt}}}"), &format!("{{{fields},{prompt}}}"));
    }
    let fields =
        r#""bootstrap_host":["10.0.0.5","10.0.0.5"],"bootstrap_port":[null,null],"bootstrap_room":[7,8]"#;
    for (route, prompt) in [
        (Route::Completions, r#""prompt":["a","b"]"#),
        (Route::Completions, r#""prompt":[ [1],[2,3] ]"#),
        (Route::Generate, r#""text":[ "a", "b,c" ]"#),
        (Route::Generate, r#""input_ids":[[1],[2]]"#),
    ] {
        check_prefill(sglang, route, &format!("{{{prompt}}}"), &format!("{{{fields},{prompt}}}"));
    }
    let one =
        r#"{"bootstrap_host":["10.0.0.5"],"bootstrap_port":[null],"bootstrap_room":[7],"prompt":["a"]}"#;
    check_prefill(sglang, Route::Completions, r#"{"prompt":["a"]}"#, one);
    // A batch of any size grows by no more than a large one.
    let prompts = |count: usize| format!(r#"{{"prompt":[""{}]}}"#, r#","""#.repeat(count - 1));
    let grown = |body: &str| sglang.decode(Route::Completions, body.as_bytes()).unwrap().len() - body.len();
    assert!(grown(&prompts(1024)) > 1024 * "10.0.0.5".len());
    assert!(grown(&prompts(1025)) < 100);
}

#[test]
fn a_rank_that_the_room_does_not_choose_is_named() {
    let sglang = Transfer::Sglang(Bootstrap { rooms: Rooms::any(2), prefill_rank: Some(3), ..BOOTSTRAP });
    let fields = r#""bootstrap_host":"10.0.0.5","bootstrap_port":8998,"bootstrap_room":1"#;
    check_prefill(sglang, Route::Chat, "{}", &format!(r#"{{{fields},"routed_dp_rank":3}}"#));
    check_decode(sglang, Route::Chat, "{}", &format!(r#"{{{fields},"disagg_prefill_dp_rank":3}}"#));
}

#[test]
fn the_engines_of_a_mooncake_worker_are_read() {
    let body = br#"{"10":{"engine_id":"e10","worker_addr":{"0":{"0":"10.0.0.5:1"}}},"0":{"engine_id":"e\u0030","worker_addr":{}}}"#;
    assert_eq!(mooncake::engines(body).unwrap(), [(0, "e0".to_owned()), (10, "e10".to_owned())]);
    assert_eq!(mooncake::engines(b"{}").unwrap(), []);
    for body in ["[]", "", r#"{"x":{"engine_id":"e"}}"#, r#"{"0":{}}"#, r#"{"0":{"engine_id":7}}"#] {
        let error = mooncake::engines(body.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("read what mooncake says of itself: "), "{error}");
    }
}

#[test]
fn ids_for_tensorrt_are_above_those_of_engines() {
    for random in [0, 3, 1 << 63, u64::MAX] {
        assert!(i64::try_from(tensorrt::request_id(random)).unwrap() >= 1 << 40);
    }
    assert_ne!(tensorrt::request_id(0), tensorrt::request_id(u64::MAX));
}

#[track_caller]
fn check_obstacle(style: HandoffStyle, route: Route, body: &str, expected: Option<&str>) {
    assert_eq!(obstacle(style, route, body.as_bytes()).unwrap(), expected, "{style} {route:?}: {body}");
}

#[test]
fn what_only_one_worker_can_serve_is_named() {
    for style in HandoffStyle::ALL {
        check_obstacle(style, Route::Chat, CLIENT, None);
        for (body, field) in [
            (r#"{"prompt_logprobs":0}"#, "prompt_logprobs"),
            (r#"{"echo":true}"#, "echo"),
            (r#"{"logprob_start_len":0}"#, "logprob_start_len"),
            (r#"{"previous_response_id":"r"}"#, "previous_response_id"),
            (r#"{"background":true}"#, "background"),
        ] {
            check_obstacle(style, Route::Completions, body, Some(field));
        }
        let none = r#"{"prompt_logprobs":null,"echo":false,"logprob_start_len":-1,"previous_response_id":null,"n":1,"best_of":null,"use_beam_search":false,"prompt_embeds":null,"prompt":[1,2]}"#;
        check_obstacle(style, Route::Completions, none, None);
        for (body, field) in [
            (r#"{"n":2}"#, "n"),
            (r#"{"best_of":3}"#, "best_of"),
            (r#"{"use_beam_search":true}"#, "use_beam_search"),
            (r#"{"prompt_embeds":"x"}"#, "prompt_embeds"),
            (r#"{"input_embeds":[[1.0]]}"#, "input_embeds"),
        ] {
            check_obstacle(
                style,
                Route::Completions,
                body,
                Some(field).filter(|_| style != HandoffStyle::Store),
            );
        }
        let takes_batches = matches!(style, HandoffStyle::Store | HandoffStyle::Sglang);
        let batch = r#"{"prompt":["a","b"]}"#;
        check_obstacle(style, Route::Completions, batch, Some("prompt").filter(|_| !takes_batches));
    }
    let thinking = r#"{"thinking":{"type":"enabled","budget_tokens":9}}"#;
    check_obstacle(HandoffStyle::Store, Route::Messages, thinking, Some("thinking"));
    check_obstacle(HandoffStyle::Store, Route::Messages, r#"{"thinking":{"type":"disabled"}}"#, None);
    check_obstacle(HandoffStyle::NixlPull, Route::Messages, thinking, None);
    let several = r#"{"sampling_params":{"n":2}}"#;
    check_obstacle(HandoffStyle::Sglang, Route::Generate, several, Some("sampling_params.n"));
    check_obstacle(HandoffStyle::Sglang, Route::Generate, r#"{"sampling_params":{"n":1}}"#, None);
    assert!(obstacle(HandoffStyle::Store, Route::Chat, b"[]").is_err());
}

#[test]
fn a_call_that_the_client_demands_is_not_parsed_of_one_token() {
    let named = r#"{"tool_choice":{"type":"function","function":{"name":"f"}}}"#;
    let required = r#"{"tool_choice":"required"}"#;
    for style in HandoffStyle::ALL {
        let is_vllm = !matches!(style, HandoffStyle::Sglang | HandoffStyle::TensorRt);
        let expected = Some("tool_choice").filter(|_| is_vllm);
        for body in [named, required] {
            check_obstacle(style, Route::Chat, body, expected);
        }
        for body in [r#"{"tool_choice":{"type":"tool","name":"f"}}"#, r#"{"tool_choice":{"type":"any"}}"#] {
            check_obstacle(style, Route::Messages, body, expected);
        }
        for body in [r#"{"tool_choice":"auto"}"#, r#"{"tool_choice":"none"}"#, r#"{"tool_choice":null}"#] {
            check_obstacle(style, Route::Chat, body, None);
        }
        check_obstacle(style, Route::Messages, r#"{"tool_choice":{"type":"auto"}}"#, None);
    }
}

#[test]
fn an_engine_that_calls_tools_itself_would_use_its_parameters_again() {
    let function = r#"{"type":"function","name":"f","parameters":{"type":"object"}}"#;
    for own in ["mcp", "web_search_preview", "code_interpreter"] {
        let body = format!(r#"{{"tools":[{function},{{"type":"{own}"}}]}}"#);
        for style in HandoffStyle::ALL {
            let expected = Some("tools").filter(|_| style != HandoffStyle::Store);
            check_obstacle(style, Route::Responses, &body, expected);
        }
    }
    for body in
        [format!(r#"{{"tools":[{function}]}}"#), r#"{"tools":[]}"#.to_owned(), r#"{"tools":null}"#.to_owned()]
    {
        check_obstacle(HandoffStyle::NixlPull, Route::Responses, &body, None);
    }
    check_obstacle(HandoffStyle::NixlPull, Route::Chat, r#"{"tools":[{"type":"mcp"}]}"#, None);
}

#[test]
fn a_prompt_that_is_cut_to_fit_the_answer_is_cut_otherwise_for_one_token() {
    for style in HandoffStyle::ALL {
        let moves_vllms =
            !matches!(style, HandoffStyle::Sglang | HandoffStyle::TensorRt | HandoffStyle::Store);
        let expected = |name| Some(name).filter(|_| moves_vllms);
        let to_fit = r#"{"truncate_prompt_tokens":-1}"#;
        check_obstacle(style, Route::Chat, to_fit, expected("truncate_prompt_tokens"));
        check_obstacle(style, Route::Responses, r#"{"truncation":"auto"}"#, expected("truncation"));
        check_obstacle(style, Route::Completions, r#"{"truncate_prompt_tokens":500}"#, None);
        check_obstacle(style, Route::Responses, r#"{"truncation":"disabled"}"#, None);
    }
}
