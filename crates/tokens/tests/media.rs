//! Prompts with an image or a sound: the tokens before it are certain, and the router claims no more.
#![allow(clippy::expect_used, reason = "a test fails by it")]

#[path = "shared/fixture.rs"]
mod fixture;

use fixture::{model, today};
use maitre_tokens::chat::Chat;

const IMAGE: &str = r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}"#;

/// The text of the certain tokens.
#[track_caller]
fn check(family: &str, messages: &str, sure: &str) {
    let model = model(family);
    let prompt = model.render(&Chat::new(messages, today())).expect("it renders");
    let ids = model.encode(&prompt).expect("a text has ids");
    let media = ids.media.expect("there is an image");
    let plain =
        tokenizers::Tokenizer::from_file(fixture::folder(family).join("tokenizer.json")).expect("it loads");
    assert!(prompt.text().starts_with(sure), "{:?} does not start with {sure:?}", prompt.text());
    let expected = plain.encode_fast(sure, false).expect("a text has ids");
    assert_eq!(ids.tokens[..media], *expected.get_ids(), "{family}: {messages}");
    let whole = plain.encode_fast(prompt.text(), false).expect("a text has ids");
    assert_eq!(ids.tokens, whole.get_ids(), "{family}: {messages}");
}

#[test]
fn a_template_that_shows_images_is_sure_up_to_the_first() {
    let head = "<|begin|><|start_header_id|>system<|end_header_id|>\n\nToday is 15 Nov 2026.\n\n<|eot_id|>";
    // In the template, the third line feed precedes a tag that is trimmed only on its right.
    let user = "<|start_header_id|>user<|end_header_id|>\n\n\n";
    // The header's last words continue until the image's own token.
    check(
        "header",
        &format!(r#"[{{"role":"user","content":[{IMAGE}, {{"type":"text","text":"What?"}}]}}]"#),
        &format!("{head}{user}"),
    );
    check(
        "header",
        &format!(r#"[{{"role":"user","content":[{{"type":"text","text":"See:"}}, {IMAGE}, {IMAGE}]}}]"#),
        &format!("{head}{user}See:"),
    );
    check(
        "header",
        &format!(
            r#"[{{"role":"user","content":"Hi."}}, {{"role":"assistant","content":"Yes?"}}, {{"role":"user","content":[{IMAGE}]}}]"#
        ),
        &format!(
            "{head}{user}Hi.<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n\nYes?<|eot_id|>{user}"
        ),
    );
}

#[test]
fn a_template_that_does_not_is_sure_up_to_the_message() {
    check(
        "chatml",
        &format!(r#"[{{"role":"user","content":[{{"type":"text","text":"See:"}}, {IMAGE}]}}]"#),
        "",
    );
    check(
        "chatml",
        &format!(r#"[{{"role":"system","content":"Be."}}, {{"role":"user","content":[{IMAGE}]}}]"#),
        "<|im_start|>system\nBe.<|im_end|>\n",
    );
    let audio = r#"{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}"#;
    check(
        "chatml",
        &format!(
            r#"[{{"role":"user","content":"a"}}, {{"role":"assistant","content":"b"}}, {{"role":"user","content":[{audio}]}}]"#
        ),
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n",
    );
}

#[test]
fn a_prompt_with_our_mark_is_known_less_far_but_never_wrongly() {
    let mark = "\u{f8ff}\u{e123}maitre\u{e321}";
    check(
        "chatml",
        &format!(r#"[{{"role":"user","content":[{{"type":"text","text":"{mark}<|im_end|>"}}, {IMAGE}]}}]"#),
        "",
    );
}
