//! Bodies in, requests or refusals out.

use proptest::prelude::*;

use super::*;

#[track_caller]
fn chat(body: &str) -> Request<'_> {
    parse(Route::Chat, body.as_bytes()).unwrap()
}

/// A chat body with one more field, and what was read of it.
#[track_caller]
fn check(extra: &str, read: impl Fn(&Request<'_>) -> String, expected: &str) {
    let body = format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{extra}}}"#);
    assert_eq!(read(&chat(&body)), expected, "extra: {extra}");
}

#[track_caller]
fn check_refused(route: Route, body: impl AsRef<[u8]>, expected: (&str, Option<&str>, &str)) {
    let body = body.as_ref();
    let refusal = parse(route, body).expect_err("must be refused");
    let actual = (refusal.code(), refusal.param(), refusal.to_string());
    let (code, param, message) = expected;
    assert_eq!(actual, (code, param, message.to_owned()), "body: {}", String::from_utf8_lossy(body));
}

fn head(route: Route, body: &str, limit: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    parse(route, body.as_bytes()).unwrap().prompt.head(limit, |piece| bytes.extend_from_slice(piece));
    bytes
}

#[track_caller]
fn check_same_head(route: Route, bodies: &[&str]) {
    let heads: Vec<_> = bodies.iter().map(|body| head(route, body, usize::MAX)).collect();
    for (body, actual) in bodies.iter().zip(&heads) {
        assert_eq!(String::from_utf8_lossy(actual), String::from_utf8_lossy(&heads[0]), "body: {body}");
    }
}

#[test]
fn the_fields_routing_needs_are_read() {
    let model = |it: &Request<'_>| format!("{:?}", it.model);
    check(r#","model":"llama""#, model, r#"Some("llama")"#);
    check(r#","model":"a\/b\u00e9""#, model, r#"Some("a/bé")"#);
    check(r#","model":null"#, model, "None");
    check("", model, "None");
    check(r#","mod\u0065l":"escaped key""#, model, r#"Some("escaped key")"#);

    let stream = |it: &Request<'_>| format!("{} {}", it.stream, it.include_usage);
    check("", stream, "false false");
    check(r#","stream":true,"stream_options":{"include_usage":true}"#, stream, "true true");
    check(r#","stream":null,"stream_options":null"#, stream, "false false");

    let who = |it: &Request<'_>| format!("{:?} {:?}", it.user, it.session);
    check(r#","user":"u","session_id":"s","prompt_cache_key":"k""#, who, r#"Some("u") Some("s")"#);
    check(r#","metadata":{"user_id":"m"},"prompt_cache_key":"k""#, who, r#"Some("m") Some("k")"#);
    check(r#","conversation":{"id":"c"}"#, who, r#"None Some("c")"#);
    check(r#","conversation":"c","user":7"#, who, r#"None Some("c")"#);

    let cache = |it: &Request<'_>| format!("{:?} {:?} {:?}", it.lora, it.cache_salt, it.priority);
    check(
        r#","lora_path":"p","cache_salt":"s","priority":-3"#,
        cache,
        r#"Some("p") Some("s") Some(Number(-3))"#,
    );
    check(r#","lora_path":null,"lora_name":"n","extra_key":"x""#, cache, r#"Some("n") Some("x") None"#);
    check(r#","cache_salt":"s","extra_key":"x""#, cache, r#"None Some("sx") None"#);

    let loras = |it: &Request<'_>| format!("{:?}", it.loras);
    check(r#","lora_path":[ "a"],"lora_name":null"#, loras, r#"Some("[ \"a\"]")"#);
    check(r#","lora":[{"id":0}]"#, loras, r#"Some("[{\"id\":0}]")"#);
    check(r#","lora_path":"a","lora_name":null"#, loras, "None");
}

#[test]
fn the_priority_may_be_a_number_a_word_or_a_tier() {
    let urgent = |it: &Request<'_>| format!("{:?} {:?}", it.priority, it.service_tier);
    check(r#","priority":2.0,"service_tier":"flex""#, urgent, r#"Some(Number(2)) Some("flex")"#);
    check(r#","priority":"batch","service_tier":1"#, urgent, r#"Some(Word("batch")) None"#);
    check(r#","priority":-9223372036854775808"#, urgent, "Some(Number(-9223372036854775808)) None");
    check(r#","priority":null,"service_tier":null"#, urgent, "None None");
}

#[track_caller]
fn check_field_refused(extra: &str, expected: (&str, Option<&str>, &str)) {
    let body = format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{extra}}}"#);
    check_refused(Route::Chat, body, expected);
}

#[test]
fn a_priority_that_engines_read_in_different_ways_is_refused() {
    for (value, found) in [
        ("true", "a boolean"),
        ("[1]", "an array"),
        ("{}", "an object"),
        ("1.5", "a fraction or beyond 64 bits"),
        ("NaN", "a fraction or beyond 64 bits"),
        ("1e999", "a fraction or beyond 64 bits"),
        ("9223372036854775808", "a fraction or beyond 64 bits"),
        (r#""1""#, "a number in quotes"),
        (r#"" -1_0 ""#, "a number in quotes"),
        (r#""+.5""#, "a number in quotes"),
        (r#""-Infinity""#, "a number in quotes"),
        (r#""١""#, "a number in quotes"),
        (r#""\u0031""#, "a number in quotes"),
        (r#""""#, "a number in quotes"),
    ] {
        let message = format!("`priority` must be an integer or the name of a class, not {found}");
        check_field_refused(&format!(r#","priority":{value}"#), ("wrong_type", Some("priority"), &message));
    }
}

#[test]
fn two_adapters_are_refused() {
    for (path, name) in [(r#""a""#, r#""b""#), (r#""a""#, r#""a""#), (r#"["a"]"#, r#""b""#), (r#""a""#, "7")]
    {
        check_field_refused(
            &format!(r#","lora_path":{path},"lora_name":{name}"#),
            (
                "conflicting_fields",
                Some("lora_name"),
                "`lora_name` and `lora_path` exclude each other; send one of them",
            ),
        );
    }
}

#[test]
fn fields_that_steer_engines_are_named() {
    let steering = |it: &Request<'_>| it.steering.unwrap_or("-").to_owned();
    check(r#","temperature":0.5,"top_k":1,"guided_json":{},"chat_template":"x""#, steering, "-");
    check(r#","kv_transfer_params":{"do_remote_prefill":true}"#, steering, "kv_transfer_params");
    check(r#","kv_transfer_par\u0061ms":1"#, steering, "kv_transfer_params");
    check(r#","kv_transfer_params":null"#, steering, "-");
    // One parser takes the first value and another the last.
    check(r#","rid":"x","rid":null"#, steering, "rid");
    check(r#","input_ids":[1,2]"#, steering, "input_ids");
    for name in ["bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank", "session_params"]
    {
        check(&format!(r#","{name}":0"#), steering, name);
    }
    let native = parse(Route::Generate, br#"{"input_ids":[1]}"#).unwrap();
    assert_eq!(native.steering, None);
}

#[test]
fn the_limit_on_tokens_has_many_names_and_spellings() {
    let max = |it: &Request<'_>| format!("{:?}", it.max_tokens);
    check(r#","max_tokens":16"#, max, "Some(16)");
    check(r#","max_tokens":16,"max_completion_tokens":8"#, max, "Some(8)");
    check(r#","max_output_tokens":4"#, max, "Some(4)");
    check(r#","sampling_params":{"max_new_tokens":5}"#, max, "Some(5)");
    check(r#","max_tokens":16.0"#, max, "Some(16)");
    check(r#","max_tokens":1e3"#, max, "Some(1000)");
    check(r#","max_tokens":99999999999999999999"#, max, "Some(9223372036854775807)");
    check(r#","max_tokens":-1"#, max, "None");
    check(r#","max_tokens":NaN"#, max, "None");
    check(r#","max_tokens":null"#, max, "None");
}

#[test]
fn several_answers_are_asked_for_by_number_and_by_prompts() {
    for (route, body, expected) in [
        (Route::Chat, r#"{"messages":[{"role":"user","content":"a"}]}"#, 1),
        (Route::Chat, r#"{"messages":[{"role":"user","content":"a"}],"n":64}"#, 64),
        (Route::Chat, r#"{"messages":[{"role":"user","content":"a"}],"n":null,"best_of":3.0}"#, 3),
        (Route::Chat, r#"{"messages":[{"role":"user","content":"a"}],"n":"many"}"#, 1),
        (Route::Chat, r#"{"messages":[{"role":"user","content":"a"}],"n":-5}"#, 1),
        (Route::Chat, r#"{"messages":[{"role":"user","content":"a"}],"n":99999999999999}"#, 16_384),
        (Route::Completions, r#"{"prompt":"a","n":2,"best_of":8}"#, 8),
        (Route::Completions, r#"{"prompt":["a","b","c"],"n":2}"#, 6),
        (Route::Completions, r#"{"prompt":[[1,2],[3]]}"#, 2),
        (Route::Completions, r#"{"prompt":[1,2,3]}"#, 1),
        (Route::Completions, r#"{"prompt":[],"n":2}"#, 2),
        (Route::Completions, r#"{"prompt":["a","b","c"],"n":16384}"#, 3 * 16_384),
        (Route::Completions, r#"{"prompt":["a","b"],"n":99999999999999}"#, 2 * 16_384),
        (Route::Generate, r#"{"text":["a","b"],"sampling_params":{"n":4}}"#, 8),
        (Route::Generate, r#"{"input_ids":[[1],[2],[3]]}"#, 3),
    ] {
        assert_eq!(parse(route, body.as_bytes()).unwrap().answers, expected, "{body}");
    }
}

#[test]
fn a_repeated_field_is_refused() {
    for (extra, field) in [
        (r#","model":"a","model":"b""#, "model"),
        (r#","model":"a","model":"a""#, "model"),
        (r#","model":null,"mod\u0065l":"b""#, "model"),
        (r#","priority":1,"x":0,"priority":null"#, "priority"),
        (r#","lora_path":"a","lora_path":"b""#, "lora_path"),
        (r#","lora_name":"a","lora_name":"b""#, "lora_name"),
        (r#","lora":[],"lora":[]"#, "lora"),
        (r#","n":1,"n":2"#, "n"),
        (r#","cache_salt":"a","cache_salt":"b""#, "cache_salt"),
        (r#","stream":"no","stream":true"#, "stream"),
        (r#","max_tokens":1,"max_tokens":null"#, "max_tokens"),
        (r#","messages":[{"role":"user"}]"#, "messages"),
    ] {
        let message = format!("`{field}` is there more than once; send it once");
        check_field_refused(extra, ("repeated_field", Some(field), &message));
    }
    // Other fields are the engine's.
    check(r#","temperature":0,"temperature":1"#, |_| String::new(), "");
    // Two names of one part are two fields.
    assert!(parse(Route::Score, br#"{"text_1":"a","text_2":"b","query":"c"}"#).is_ok());
}

#[test]
fn fields_we_do_not_read_may_have_any_value() {
    for extra in
        [r#","seed":NaN"#, r#","x":-Infinity"#, r#","x":1e999"#, r#","x":"\ud800""#, r#","":{"a":[[]]}"#]
    {
        check(extra, |_| String::new(), "");
    }
}

#[test]
fn bodies_that_are_not_a_json_object_are_refused_with_the_position() {
    let invalid = |message: &'static str| ("invalid_json", None, message);
    check_refused(
        Route::Chat,
        "{\n  \"model\": llama}",
        invalid("the request body is not valid JSON: expected a value at line 2 column 12 (byte 13)"),
    );
    check_refused(
        Route::Chat,
        "",
        invalid("the request body is not valid JSON: expected a value at line 1 column 1 (byte 0)"),
    );
    check_refused(
        Route::Chat,
        "{\"messages\":[1]} x",
        invalid(
            "the request body is not valid JSON: expected the end of the body at line 1 column 18 (byte 17)",
        ),
    );
    check_refused(
        Route::Chat,
        "[1]",
        ("not_an_object", None, "the request body must be a JSON object, not an array"),
    );
    check_refused(
        Route::Chat,
        b"{\"a\":\"\xff\"}",
        ("invalid_utf8", None, "the request body is not valid UTF-8 at byte 6"),
    );
    check_refused(
        Route::Chat,
        format!("{{\"a\":{}", "[".repeat(1000)),
        ("nested_too_deep", None, "the request body is nested more than 128 levels deep at byte 134"),
    );
}

#[test]
fn a_missing_or_malformed_prompt_is_refused_by_name() {
    let missing = |field: &'static str| ("missing_field", Some(field), format!("`{field}` is missing"));
    for (route, field) in [
        (Route::Chat, "messages"),
        (Route::Messages, "messages"),
        (Route::CountTokens, "messages"),
        (Route::Completions, "prompt"),
        (Route::Responses, "input"),
        (Route::Embeddings, "input"),
        (Route::Generate, "text"),
    ] {
        let (code, param, message) = missing(field);
        check_refused(route, "{}", (code, param, &message));
        check_refused(route, format!("{{\"{field}\":null}}"), (code, param, &message));
    }
    check_refused(
        Route::Chat,
        r#"{"messages":[ ]}"#,
        ("empty_field", Some("messages"), "`messages` must not be empty"),
    );
    let wrong = |field, message| ("wrong_type", Some(field), message);
    check_refused(
        Route::Chat,
        r#"{"messages":"hi"}"#,
        wrong("messages", "`messages` must be an array, not a string"),
    );
    check_refused(
        Route::Completions,
        r#"{"prompt":{}}"#,
        wrong("prompt", "`prompt` must be a string or an array, not an object"),
    );
    let with = |field: &str| format!(r#"{{"prompt":"a",{field}}}"#);
    check_refused(
        Route::Completions,
        with(r#""model":5"#),
        wrong("model", "`model` must be a string, not a number"),
    );
    check_refused(
        Route::Completions,
        with(r#""stream":"yes""#),
        wrong("stream", "`stream` must be a boolean, not a string"),
    );
    check_refused(
        Route::Completions,
        with(r#""max_tokens":"16""#),
        wrong("max_tokens", "`max_tokens` must be an integer, not a string"),
    );
}

#[test]
fn every_shape_of_prompt_an_engine_knows_is_accepted() {
    for (route, body) in [
        (Route::Completions, r#"{"prompt_embeds":"AAAA"}"#),
        (Route::Completions, r#"{"prompt":["a","b"]}"#),
        (Route::Responses, r#"{"prompt":{"id":"p"}}"#),
        (Route::Embeddings, r#"{"messages":[{"role":"user","content":"a"}]}"#),
        (Route::Generate, r#"{"input_ids":[[1],[2]]}"#),
        (Route::Rerank, r#"{"query":"q","documents":["d"]}"#),
        (Route::Score, r#"{"text_1":"a","text_2":["b"]}"#),
        (Route::Tokenize, r#"{"content":"a"}"#),
        (Route::Detokenize, r#"{"tokens":[1]}"#),
        (Route::Classify, "{}"),
    ] {
        assert!(parse(route, body.as_bytes()).is_ok(), "{body}");
    }
}

#[track_caller]
fn check_ids(route: Route, body: &str, expected: Option<usize>) {
    assert_eq!(parse(route, body.as_bytes()).unwrap().prompt.token_ids(), expected, "body: {body}");
}

#[test]
fn token_ids_are_counted_where_the_client_sent_them() {
    check_ids(Route::Completions, r#"{"prompt":[1, 2, 3]}"#, Some(3));
    check_ids(Route::Completions, r#"{"prompt":[[1,2],[ 3 ]]}"#, Some(3));
    check_ids(Route::Generate, r#"{"input_ids":[7]}"#, Some(1));
    check_ids(Route::Completions, r#"{"prompt":"1,2"}"#, None);
    check_ids(Route::Completions, r#"{"prompt":["1","2"]}"#, None);
    check_ids(Route::Completions, r#"{"prompt":[]}"#, None);
}

#[test]
fn the_size_of_a_prompt_leaves_out_what_is_not_text() {
    let text =
        chat(r#"{"messages":[{"role":"user","content":"hi"}],"tools":[],"user":"nobody"}"#).prompt.bytes();
    assert_eq!(text, r#"[{"role":"user","content":"hi"}][]"#.len());
    let image = "A".repeat(100_000);
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":[{{"image_url":{{"url":"data:image/png;base64,{image}"}}}}]}}]}}"#
    );
    assert!(chat(&body).prompt.bytes() < 100);
}

#[test]
fn the_head_does_not_depend_on_how_the_json_was_written() {
    check_same_head(
        Route::Chat,
        &[
            r#"{"messages":[{"role":"user","content":"a/é\n"},{"role":"assistant","content":null,"tool_calls":[{"id":"x"}]}]}"#,
            r#"{ "messages" : [ { "content" : "a\/\u00e9\u000a" , "role" : "user" } ,
                { "tool_calls" : [ { "id" : "\u0078" } ] , "role" : "assistant" , "content" : null } ] , "model" : "m" }"#,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a/é\n"}]},{"role":"assistant","tool_calls":[{"id":"x"}]}]}"#,
        ],
    );
    check_same_head(
        Route::Messages,
        &[
            r#"{"system":"s","messages":[{"role":"user","content":"a"}],"tools":[{"name":"t"}]}"#,
            r#"{"tools":[{ "name":"t" }],"messages":[{"content":[{"text":"a","type":"text"}],"role":"user"}],"system":"s"}"#,
        ],
    );
}

#[test]
fn different_prompts_have_different_heads() {
    let bodies = [
        r#"{"messages":[{"role":"user","content":"ab"}]}"#,
        r#"{"messages":[{"role":"system","content":"ab"}]}"#,
        r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}"#,
        r#"{"messages":[{"role":"user","content":["a","b"]}]}"#,
        r#"{"messages":[{"role":"user","content":"ab","name":"n"}]}"#,
        r#"{"messages":[{"role":"user","content":"ab"}],"tools":[]}"#,
        r#"{"messages":[{"role":"user","content":[{"image_url":{"url":"x"}}]}]}"#,
        r#"{"messages":[{"role":"user","content":[{"image_url":{"url":"y"}}]}]}"#,
    ];
    let heads: std::collections::HashSet<_> =
        bodies.iter().map(|body| head(Route::Chat, body, usize::MAX)).collect();
    assert_eq!(heads.len(), bodies.len());
}

#[test]
fn a_growing_conversation_keeps_its_head() {
    let short = head(Route::Chat, r#"{"messages":[{"role":"user","content":"a"}]}"#, usize::MAX);
    let long = head(
        Route::Chat,
        r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#,
        usize::MAX,
    );
    assert!(long.starts_with(&short), "{short:?} {long:?}");
}

#[test]
fn a_shorter_head_is_the_start_of_a_longer_one() {
    for (route, body) in [
        (
            Route::Chat,
            r#"{"tools":[{"a": "b\n\"c"}],"messages":[{"role":"user","content":[{"text":"x\ny"},{"n":1}],"name":"z"}]}"#,
        ),
        (
            Route::Responses,
            r#"{"instructions":"i","input":[{"role":"user","content":"a"},{"type":"function_call","name":"f"}]}"#,
        ),
        (Route::Embeddings, r#"{"input":["a","b"]}"#),
        (Route::Completions, r#"{"prompt":[1, 2, 3]}"#),
        (Route::Rerank, r#"{"documents":[{"text":"d"}],"query":"q"}"#),
    ] {
        let whole = head(route, body, usize::MAX);
        for limit in 0..=whole.len() + 1 {
            assert_eq!(head(route, body, limit), whole[..limit.min(whole.len())], "{body} at {limit}");
        }
    }
}

#[test]
fn a_body_with_one_byte_changed_never_panics() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a\n\u00e9\"b"}]}],"tools":[{"x":[1,2]}],"stream":true,"max_tokens":5,"prompt":[1,2]}"#;
    let mut rng = maitre_base::Rng::new(7);
    for _ in 0..20_000 {
        let mut bytes = body.as_bytes().to_vec();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len());
            bytes[at] = rng.next_u64() as u8;
        }
        exercise(&bytes);
    }
}

/// Everything a caller may do with a body; none of it may panic.
fn exercise(body: &[u8]) {
    for route in Route::ALL {
        if let Ok(request) = parse(route, body) {
            let _ = (request.prompt.bytes(), request.prompt.token_ids());
            request.prompt.head(usize::MAX, |_| {});
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(body: Vec<u8>) {
        exercise(&body);
    }

    #[test]
    fn arbitrary_fields_never_panic(key in "messages|prompt|input|tools|text|sampling_params|stream|system", value in r#"[\[\]{}:,"\\0-9a-frtu ]{0,30}"#) {
        exercise(format!(r#"{{"messages":[{{"role":"user","content":"a"}}],"{key}":{value}}}"#).as_bytes());
    }
}
