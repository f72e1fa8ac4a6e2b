//! Answers in; what they hand over, or what is wrong with them, out.

use super::*;

/// The decode worker's body for a client's `{}`, or the error.
#[track_caller]
fn check(style: HandoffStyle, answer: &str, expected: Result<&str, &str>) {
    let actual = Answer::read(style, answer.as_bytes());
    let actual = actual.map(|it| it.decode(Route::Chat, b"{}").unwrap().into_owned());
    let actual = actual.map(|it| String::from_utf8(it).unwrap()).map_err(|it| it.to_string());
    let expected =
        expected.map(str::to_owned).map_err(|it| format!("read the prefill worker's answer: {it}"));
    assert_eq!(actual, expected, "{style}: {answer}");
}

#[test]
fn parameters_are_passed_on_untouched() {
    let whole = r#"{"do_remote_prefill" : true,"remote_block_ids":[[12]],"remote_engine_id":"a","remote_host":"10.0.0.5","remote_port":5600,"new":{"k":1.0e2}}"#;
    let passed = format!(r#"{{"kv_transfer_params":{whole}}}"#);
    check(HandoffStyle::NixlPull, &format!(r#"{{"id":"x","kv_transfer_params": {whole} }}"#), Ok(&passed));
    // Not asked to fetch: whatever it is, the engine knows.
    let other = r#"{"kv_transfer_params":{"do_remote_prefill":false,"other":1}}"#;
    check(HandoffStyle::NixlPull, other, Ok(other));
}

#[test]
fn an_answer_without_parameters_leaves_the_body_alone() {
    for answer in ["{}", r#"{"kv_transfer_params":null}"#, r#"{"choices":7}"#] {
        check(HandoffStyle::NixlPull, answer, Ok("{}"));
        assert!(!Answer::read(HandoffStyle::NixlPull, answer.as_bytes()).unwrap().hands_over());
    }
    let nothing = r#"{"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[ ],"remote_engine_id":"a","remote_host":"h","remote_port":1}}"#;
    check(HandoffStyle::NixlPull, nothing, Ok("{}"));
    for style in [HandoffStyle::NixlPush, HandoffStyle::Mooncake, HandoffStyle::Store] {
        check(style, r#"{"kv_transfer_params":{"do_remote_prefill":true}}"#, Ok("{}"));
    }
}

#[test]
fn parameters_that_would_end_the_decode_worker_are_an_error() {
    let whole = [
        r#""remote_block_ids":[[1]]"#,
        r#""remote_engine_id":"a""#,
        r#""remote_host":"h""#,
        r#""remote_port":1"#,
    ];
    for (index, member) in whole.iter().enumerate() {
        let (name, _) = member.split_once(':').unwrap();
        let error = format!("`{}` is missing or null", name.trim_matches('"'));
        let mut rest = whole.to_vec();
        rest.remove(index);
        for rest in [rest.join(","), format!("{},{name}:null", rest.join(","))] {
            let answer = format!(r#"{{"kv_transfer_params":{{"do_remote_prefill":true,{rest}}}}}"#);
            check(HandoffStyle::NixlPull, &answer, Err(&error));
        }
    }
    let text = r#"{"kv_transfer_params":"x"}"#;
    check(HandoffStyle::NixlPull, text, Err("`kv_transfer_params` must be an object, not a string"));
}

#[test]
fn an_answer_that_cannot_be_read_says_why() {
    check(HandoffStyle::Store, "", Err("not a JSON object: expected `{` at byte 0"));
    check(HandoffStyle::NixlPull, "[]", Err("not a JSON object: expected `{` at byte 0"));
    check(HandoffStyle::NixlPull, r#"{"a":1"#, Err("not a JSON object: expected `,` or `}` at byte 6"));
    check(
        HandoffStyle::NixlPull,
        "{} data",
        Err("not a JSON object: expected the end of the body at byte 3"),
    );
    let deep = format!("{{\"a\":{}", "[".repeat(200));
    assert!(matches!(Answer::read(HandoffStyle::Store, deep.as_bytes()), Err(BadAnswer::TooDeep { .. })));
    assert_eq!(Answer::read(HandoffStyle::Store, b"{\xff"), Err(BadAnswer::NotUtf8 { offset: 1 }));
    let large = vec![b' '; ANSWER_BYTES_MAX + 1];
    assert_eq!(Answer::read(HandoffStyle::Store, &large), Err(BadAnswer::TooLarge { bytes: large.len() }));
}

#[test]
fn the_usage_of_every_style_and_api_is_read() {
    let answer =
        r#"{"usage":{"prompt_tokens":7,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":5}}}"#;
    for style in [HandoffStyle::NixlPull, HandoffStyle::NixlPush, HandoffStyle::Mooncake, HandoffStyle::Store]
    {
        let usage = Answer::read(style, answer.as_bytes()).unwrap().usage().unwrap();
        assert_eq!((usage.prompt_tokens, usage.cached_tokens), (Some(7), Some(5)));
    }
    let messages = br#"{"usage":{"input_tokens":2,"cache_read_input_tokens":5}}"#;
    let usage = Answer::read(HandoffStyle::Store, messages).unwrap().usage().unwrap();
    assert_eq!((usage.prompt_tokens, usage.cached_tokens), (Some(7), Some(5)));
    for answer in ["{}", r#"{"usage":null}"#, r#"{"usage":[1]}"#] {
        assert_eq!(Answer::read(HandoffStyle::Store, answer.as_bytes()).unwrap().usage(), None, "{answer}");
    }
}

const PARAMS: &str = r#"{"request_type":"context_only","ctx_request_id":7,"disagg_request_id":1099511627776,"first_gen_tokens":[5],"encoded_opaque_state":"AA==","ctx_usage":null}"#;

fn context(finish_reason: &str, params: &str) -> String {
    format!(
        r#"{{"id":"x","object":"chat.completion","created":1,"choices":[{{"index":0,"message":{{"role":"assistant","content":"Hi"}},"finish_reason":{finish_reason},"disaggregated_params":{params}}}],"usage":{{"prompt_tokens":3}},"prompt_token_ids":[1,2,3]}}"#
    )
}

#[test]
fn a_generation_leg_repeats_ids_and_state() {
    let params = r#"{"request_type":"generation_only","ctx_request_id":7,"disagg_request_id":1099511627776,"first_gen_tokens":[5],"encoded_opaque_state":"AA==","ctx_usage":{"prompt_tokens":3}}"#;
    let chat = format!(r#"{{"disaggregated_params":{params},"prompt_token_ids":[1,2,3]}}"#);
    for reason in [r#""length""#, r#""not_finished""#, "null"] {
        check(HandoffStyle::TensorRt, &context(reason, PARAMS), Ok(&chat));
    }
    let answer = context(r#""length""#, PARAMS);
    let answer = Answer::read(HandoffStyle::TensorRt, answer.as_bytes()).unwrap();
    let body = answer.decode(Route::Completions, br#"{"prompt":"one two","max_tokens":9}"#).unwrap();
    let expected = format!(r#"{{"disaggregated_params":{params},"prompt":[1,2,3],"max_tokens":9}}"#);
    assert_eq!(String::from_utf8(body.into_owned()).unwrap(), expected);
    // Without ids the engine tokenizes again; an older engine has no field for the usage.
    let old = r#"{"choices":[{"disaggregated_params":{"ctx_request_id":7,"disagg_request_id":8}}]}"#;
    let made = r#"{"disaggregated_params":{"request_type":"generation_only","ctx_request_id":7,"disagg_request_id":8}}"#;
    check(HandoffStyle::TensorRt, old, Ok(made));
}

#[test]
fn a_context_answer_that_cannot_go_on_says_why() {
    let check = |answer: &str, error| check(HandoffStyle::TensorRt, answer, Err(error));
    check("{}", "`choices` is missing or null");
    check(r#"{"choices":null}"#, "`choices` must be an array, not null");
    check(r#"{"choices":[]}"#, "`choices` must hold one object, and holds 0 values");
    check(r#"{"choices":[{},{}]}"#, "`choices` must hold one object, and holds 2 values");
    check(r#"{"choices":[7]}"#, "`choices` must hold one object, and holds 1 values");
    check(r#"{"choices":[{}]}"#, "`choices[0].disaggregated_params` is missing or null");
    check(&context("null", "null"), "`choices[0].disaggregated_params` is missing or null");
    check(&context("null", "[]"), "`choices[0].disaggregated_params` must be an object, not an array");
    check(&context("null", r#"{"disagg_request_id":1}"#), "`ctx_request_id` is missing or null");
    check(
        &context("null", r#"{"ctx_request_id":1,"disagg_request_id":null}"#),
        "`disagg_request_id` is missing or null",
    );
    let ids = context("null", PARAMS).replace("[1,2,3]", "\"AQ==\"");
    check(&ids, "`prompt_token_ids` must be an array, not a string");
}

#[test]
fn a_context_answer_that_is_complete_goes_to_the_client() {
    let text = context(r#""stop""#, PARAMS);
    let answer = Answer::read(HandoffStyle::TensorRt, text.as_bytes()).unwrap();
    assert!(!answer.hands_over());
    let complete = answer.complete().unwrap();
    assert_eq!(
        complete.body(),
        r#"{"id":"x","object":"chat.completion","created":1,"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}"#
    );
    let chunk = r#"data: {"id":"x","object":"chat.completion.chunk","created":1,"choices":[{"delta":{"role":"assistant","content":"Hi"},"index":0,"finish_reason":"stop"}]}"#;
    let usage = r#"data: {"id":"x","object":"chat.completion.chunk","created":1,"choices":[],"usage":{"prompt_tokens":3}}"#;
    assert_eq!(complete.events(Route::Chat, false), format!("{chunk}\n\ndata: [DONE]\n\n"));
    assert_eq!(complete.events(Route::Chat, true), format!("{chunk}\n\n{usage}\n\ndata: [DONE]\n\n"));
    // Without parameters too, and with line ends between its members.
    let text = "{\"object\":\"text_completion\",\r\n\"choices\":[{\"text\":\"a\\nb\",\n\"finish_reason\":\"stop\"}]}";
    let complete = Answer::read(HandoffStyle::TensorRt, text.as_bytes()).unwrap().complete().unwrap();
    assert_eq!(
        complete.events(Route::Completions, false),
        "data: {\"object\":\"text_completion\",  \"choices\":[{\"text\":\"a\\nb\", \"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
    );
}
