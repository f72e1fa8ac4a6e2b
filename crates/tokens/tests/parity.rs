//! The ids are vLLM's: golden files made by its own code (`fixtures/make.py`), and the plain tokenizer.
#![allow(clippy::expect_used, reason = "a test fails by it")]

#[path = "shared/fixture.rs"]
mod fixture;

use fixture::{Case, FAMILIES, Golden, REBUILT, folder, model};
use maitre_tokens::template::RenderError;

/// Cases that vLLM accepts and we do not, because Python reads numbers beyond a double as infinity.
const UNREAD: &[&str] = &["large numbers in arguments"];

#[track_caller]
fn check(
    family: &str,
    case: &Case,
    expected: Option<(&str, &[u32])>,
    actual: Result<(String, Vec<u32>), RenderError>,
) {
    let name = &case.name;
    match (expected, actual) {
        (Some((text, ids)), Ok((actual_text, actual_ids))) => {
            assert_eq!(actual_text, text, "{family}, {name}: another text");
            assert_eq!(actual_ids, ids, "{family}, {name}: the same text, other ids");
        }
        (Some(_), Err(error)) => assert!(UNREAD.contains(&name.as_str()), "{family}, {name}: {error}"),
        // The engine answers a body that its request types reject; whether we could render it does not matter.
        (None, Ok(_)) => assert!(case.refused_by_types(), "{family}, {name}: vLLM refuses it"),
        (None, Err(_)) => {}
    }
}

#[test]
fn chats_get_the_ids_vllm_gives_them() {
    for family in FAMILIES.into_iter().chain([REBUILT]) {
        let model = model(family);
        let golden = Golden::read(family);
        assert!(golden.cases.iter().filter(|it| it.ids.is_some()).count() >= 40, "{family}: too few to tell");
        // Twice: the second time from the cache.
        for case in golden.cases.iter().chain(&golden.cases) {
            let actual = model.render(&case.chat()).and_then(|prompt| {
                let ids = model.encode(&prompt)?;
                assert_eq!(ids.media, None, "{family}, {}: nothing here is seen or heard", case.name);
                Ok((prompt.text().to_owned(), ids.tokens))
            });
            check(family, case, case.text.as_deref().zip(case.ids.as_deref()), actual);
        }
        let stats = model.stats();
        assert!(
            stats.cached_bytes >= stats.fresh_bytes,
            "{family}: the second time was from memory: {stats:?}"
        );
    }
}

#[test]
fn texts_get_the_ids_of_a_completion() {
    for family in FAMILIES.into_iter().chain([REBUILT]) {
        let model = model(family);
        for text in Golden::read(family).texts {
            let ids = model.text(&text.text).expect("a text has ids");
            assert_eq!(ids.tokens, text.ids, "{family}: {:?}", text.text);
        }
    }
}

#[test]
fn a_folder_says_which_file_is_wrong() {
    let error = |path: &std::path::Path| match maitre_tokens::model::Model::load(path, Default::default()) {
        Ok(_) => panic!("{} loads", path.display()),
        Err(error) => error.to_string(),
    };
    let missing = folder("nowhere");
    assert!(error(&missing).ends_with("nowhere/tokenizer.json: no such file"), "{}", error(&missing));
    let broken = std::env::temp_dir().join(format!("maitre-tokens-{}", std::process::id()));
    std::fs::create_dir_all(&broken).expect("a folder of our own");
    std::fs::write(broken.join("tokenizer.json"), "{}").expect("a file of our own");
    assert!(error(&broken).starts_with("load the tokenizer in "), "{}", error(&broken));
    std::fs::copy(folder("chatml").join("tokenizer.json"), broken.join("tokenizer.json")).expect("a copy");
    std::fs::write(broken.join("chat_template.jinja"), "{% for %}").expect("a file of our own");
    assert!(error(&broken).starts_with("compile the chat template \"default\" of "), "{}", error(&broken));
    std::fs::write(broken.join("tokenizer_config.json"), "{").expect("a file of our own");
    assert!(error(&broken).contains("tokenizer_config.json: EOF"), "{}", error(&broken));
    std::fs::remove_dir_all(&broken).expect("ours to remove");
}
