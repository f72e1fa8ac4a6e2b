//! Any input of a client gives an answer or an error: no panic, no endless loop, no more memory than stated.
#![allow(clippy::expect_used, reason = "a test fails by it")]

#[path = "shared/fixture.rs"]
mod fixture;

use std::sync::LazyLock;

use fixture::{FAMILIES, folder, today};
use maitre_tokens::chat::{Chat, Ending};
use maitre_tokens::model::Model;
use maitre_tokens::options::{ContentFormat, ModelOptions, RenderLimits};
use maitre_tokens::template::RenderError;
use proptest::prelude::{Just, Strategy, any, prop};
use proptest::{prop_oneof, proptest};

static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| FAMILIES.map(fixture::model).into());

fn with_template(template: &str, limits: RenderLimits) -> Model {
    let options = ModelOptions { template: Some(template.to_owned()), limits, ..ModelOptions::default() };
    Model::load(&folder("chatml"), options).expect("the test's own template compiles")
}

#[track_caller]
fn check(messages: &str, expected: &str) {
    for model in MODELS.iter() {
        let error = model.chat(&Chat::new(messages, today())).expect_err("it is refused");
        assert!(error.to_string().starts_with(expected), "{messages}: {error}");
    }
}

#[test]
fn malformed_messages_are_refused_by_name() {
    check("", "messages: not JSON");
    check("{}", "messages: expected an array");
    check("null", "messages: expected an array");
    check("\"hello\"", "messages: expected an array");
    check("[]", "messages: expected at least one message");
    check("[1]", "messages[0]: not an object");
    check("[{}]", "messages[0]: role is no text");
    check(r#"[{"role": 7, "content": "a"}]"#, "messages[0]: role is no text");
    check(
        r#"[{"role": "user", "content": 7}]"#,
        "messages[0]: content is neither text nor an array of parts",
    );
    check(r#"[{"role": "user", "content": [7]}]"#, "messages[0]: a part is neither text nor an object");
    check(
        r#"[{"role": "user", "content": [{"type": "text", "text": 7}]}]"#,
        "messages[0]: a part's text is no text",
    );
    check(r#"[{"role": "user", "content": [{"type": 7}]}]"#, "messages[0]: a part's type is no text");
    check(r#"[{"role": "assistant", "tool_calls": {}}]"#, "messages[0]: tool_calls is no array");
    check(
        r#"[{"role": "assistant", "tool_calls": [{"type": "function"}]}]"#,
        "messages[0]: a tool call has no function",
    );
    check(r#"[{"role": "user", "content": "\ud800"}]"#, "messages: not JSON");
    check(&"[".repeat(100_000), "messages: not JSON");
    check(&format!("{}1{}", "[".repeat(200), "]".repeat(200)), "messages: not JSON");
}

#[test]
fn other_parts_are_refused_by_name_too() {
    let chat = Chat::new(r#"[{"role": "user", "content": "a"}]"#, today());
    let bad = |chat: Chat<'_>| MODELS[0].chat(&chat).expect_err("it is refused").to_string();
    assert_eq!(bad(Chat { tools: Some("{}"), ..chat }), "tools: expected an array of tools");
    assert_eq!(bad(Chat { tools: Some("[{}]"), ..chat }), "tools[0]: no function");
    assert_eq!(bad(Chat { documents: Some("[1]"), ..chat }), "documents: expected an array of objects");
    assert_eq!(bad(Chat { arguments: Some("[]"), ..chat }), "chat_template_kwargs: expected an object");
    assert_eq!(
        bad(Chat { system: Some("7"), ..chat }),
        "system: expected a string or an array of text parts"
    );
    assert!(
        MODELS[0]
            .chat(&Chat { tools: Some("null"), documents: Some("null"), system: Some("null"), ..chat })
            .is_ok()
    );
}

#[test]
fn a_system_prompt_beside_the_messages_comes_first() {
    let model = &MODELS[0];
    let beside = Chat::new(r#"[{"role": "user", "content": "a"}]"#, today());
    let within = Chat::new(
        r#"[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}]"#,
        today(),
    );
    let within = model.render(&within);
    let parts = r#"[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]"#;
    assert_eq!(model.render(&Chat { system: Some("\"Be brief.\""), ..beside }), within);
    assert_eq!(model.render(&Chat { system: Some(parts), ..beside }), within);
}

#[test]
fn a_template_runs_out_of_fuel_or_room_or_depth() {
    let chat = Chat::new(r#"[{"role": "user", "content": "aaaaaaaaaa"}]"#, today());
    let limits = RenderLimits { fuel: 100_000, text_bytes: 1_000, built_bytes: 1 << 20 };
    let run = |template: &str| {
        with_template(template, limits).render(&chat).expect_err("it is stopped").to_string()
    };
    let endless = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}";
    assert_eq!(run(endless), "render the chat: it takes more than 100000 steps");
    let long = "{% for a in range(1000) %}{{ messages[0].content }}{% endfor %}";
    assert_eq!(run(long), "render the chat: the text is longer than 1000 bytes");
    let deep = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    assert!(run(deep).contains("recursion"), "{}", run(deep));
    assert!(run("{{ strftime_now('%H') }}").contains("depends on more than the day"));
    assert!(run("{{ messages[0].content.nothing.more }}").starts_with("render the chat: undefined value"));
}

/// Each of these would allocate a terabyte or more, and so end the process.
#[test]
fn a_template_bomb_is_stopped() {
    let chat = Chat::new(r#"[{"role": "user", "content": "aaaaaaaaaa"}]"#, today());
    let start = "{% set ns = namespace(s = messages[0].content, l = messages) %}";
    let forty =
        |step: &str| format!("{start}{{% for i in range(40) %}}{step}{{% endfor %}}{{{{ ns.s|length }}}}");
    let bombs = [
        forty("{% set ns.s = ns.s ~ ns.s %}"),
        forty("{% set ns.s = ns.s + ns.s %}"),
        forty("{% set ns.s = (ns.s ~ '') if false else ns.s + ns.s %}"),
        forty("{% set ns.s = ns.s * 10 %}"),
        forty("{% set s %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = s %}"),
        forty("{% set ns.s = [ns.s, ns.s]|join %}"),
        forty("{% set ns.s = 'aa'.join([ns.s, ns.s, ns.s]) %}"),
        forty("{% set ns.s = ns.s|replace('a', 'aa') %}"),
        forty("{% set ns.s = ns.s.replace('', ns.s) %}"),
        forty("{% set ns.s = '%s%s'|format(ns.s, ns.s) %}"),
        forty("{% set ns.s = '{0}{0}'.format(ns.s) %}"),
        forty("{% set ns.s = [ns.s, ns.s]|string %}"),
        forty("{% set ns.s = [ns.s, ns.s]|tojson %}"),
        forty("{% set ns.s = [ns.s, ns.s]|tojson|indent(8, true) %}"),
        forty("{% set ns.l = ns.l + ns.l %}{% set ns.s = ns.l ~ '' %}"),
        forty("{% set ns.l = [ns.l, ns.l] %}{% set ns.s = ns.l|string %}"),
        "{% macro f(s) %}{{ s }}{{ s }}{% endmacro %}".to_owned() + &forty("{% set ns.s = f(ns.s) %}"),
        format!("{start}{{% for i in range(90) %}}{{% set ns.l = ns.l + [ns.s * 20000] %}}{{% endfor %}}"),
        format!("{{% set s %}}{{% for i in range(9000) %}}{}{{% endfor %}}{{% endset %}}", "a".repeat(1_000)),
        format!(
            "{{% macro f() %}}{}{{% endmacro %}}{start}{{% for i in range(2000) %}}{{% set ns.l = ns.l + [f()] %}}{{% endfor %}}",
            "a".repeat(1_000)
        ),
        format!("{start}{{{{ '%99999999d'|format(7) }}}}"),
    ];
    let limits = RenderLimits { fuel: 100_000, text_bytes: 1_000, built_bytes: 1 << 20 };
    for bomb in bombs {
        let error = with_template(&bomb, limits).render(&chat).expect_err("it is stopped").to_string();
        assert_eq!(error, "render the chat: it builds more than 1048576 bytes of text", "{bomb}");
    }
}

#[test]
fn a_model_without_a_template_still_knows_texts() {
    let folder_of_its_own = std::env::temp_dir().join(format!("maitre-tokens-bare-{}", std::process::id()));
    std::fs::create_dir_all(&folder_of_its_own).expect("a folder of our own");
    std::fs::copy(folder("chatml").join("tokenizer.json"), folder_of_its_own.join("tokenizer.json"))
        .expect("a copy");
    let model = Model::load(&folder_of_its_own, ModelOptions::default()).expect("it loads");
    std::fs::remove_dir_all(&folder_of_its_own).expect("ours to remove");
    assert!(model.text("Hello").is_ok_and(|it| !it.tokens.is_empty()));
    let error =
        model.chat(&Chat::new(r#"[{"role": "user", "content": "a"}]"#, today())).expect_err("no template");
    assert!(matches!(error, RenderError::Template(_)), "{error}");
}

#[test]
fn the_operator_may_set_how_content_is_passed() {
    let template = "{{ messages[0].content is string }}{{ more }}".to_owned();
    let options = ModelOptions {
        template: Some(template),
        format: Some(ContentFormat::Parts),
        arguments: Some(r#"{"more": "!"}"#.to_owned()),
        ..ModelOptions::default()
    };
    let model = Model::load(&folder("chatml"), options).expect("it loads");
    let chat = Chat::new(r#"[{"role": "user", "content": "a"}]"#, today());
    assert_eq!(model.render(&chat).expect("it renders").text(), "False!");
    let asked = Chat { arguments: Some(r#"{"more": "?"}"#), ..chat };
    assert_eq!(model.render(&asked).expect("it renders").text(), "False?");
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".{0,8}".prop_map(Into::into),
        prop::sample::select(vec![
            "user",
            "assistant",
            "tool",
            "system",
            "developer",
            "text",
            "function",
            "image_url",
            "{}"
        ])
        .prop_map(Into::into),
    ];
    let key = prop::sample::select(vec![
        "role",
        "content",
        "type",
        "text",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "tool_call_id",
        "reasoning",
        "parameters",
        "image_url",
        "items",
        "x",
    ]);
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::vec((key.clone(), inner), 0..8)
                .prop_map(|it| it.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

/// Nearly a message: mostly well formed, so that the template is reached.
fn message() -> impl Strategy<Value = serde_json::Value> {
    let role = prop::sample::select(vec!["user", "assistant", "tool", "system", "developer", "x"]);
    (role, json(), json(), any::<bool>()).prop_map(|(role, content, calls, plain)| {
        let content = if plain { content.to_string().into() } else { content };
        serde_json::json!({"role": role, "content": content, "tool_calls": calls})
    })
}

proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(150))]
    #[test]
    fn any_json_is_an_answer_or_an_error(
        messages in prop_oneof![json(), prop::collection::vec(message(), 0..5).prop_map(Into::into)],
        tools in prop::option::of(json()),
        ending in prop::sample::select(vec![Ending::Answer, Ending::Continue, Ending::Nothing]),
    ) {
        let (messages, tools) = (messages.to_string(), tools.map(|it| it.to_string()));
        for model in MODELS.iter() {
            let _ = model.chat(&Chat { tools: tools.as_deref(), ending, ..Chat::new(&messages, today()) });
        }
    }

    #[test]
    fn any_text_is_an_answer_or_an_error(text in ".{0,60}") {
        for model in MODELS.iter() {
            let _ = model.chat(&Chat::new(&text, today()));
            let _ = model.text(&text);
        }
    }
}
