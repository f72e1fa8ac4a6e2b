//! Tokenized text is cached, and the cache makes no difference to the ids.
#![allow(clippy::expect_used, reason = "a test fails by it")]

#[path = "shared/fixture.rs"]
mod fixture;

use std::sync::LazyLock;

use fixture::{FAMILIES, folder, model, today};
use maitre_tokens::chat::{Chat, Ids};
use maitre_tokens::model::Model;
use maitre_tokens::options::{CacheBytes, ModelOptions};
use proptest::prelude::{Strategy, prop};
use proptest::{prop_assert_eq, proptest};
use tokenizers::Tokenizer;

/// A model with a cache, one without, and the tokenizer alone.
struct Trio {
    family: &'static str,
    remembers: Model,
    forgets: Model,
    plain: Tokenizer,
}

static TRIOS: LazyLock<Vec<Trio>> = LazyLock::new(|| FAMILIES.map(Trio::load).into());

impl Trio {
    fn load(family: &'static str) -> Trio {
        let forgetful = ModelOptions { cache_bytes: CacheBytes(0), ..ModelOptions::default() };
        Trio {
            family,
            remembers: model(family),
            forgets: Model::load(&folder(family), forgetful).expect("the fixture loads"),
            plain: Tokenizer::from_file(folder(family).join("tokenizer.json")).expect("the fixture loads"),
        }
    }
}

fn messages(turns: &[(&str, String)]) -> String {
    let turns = turns.iter().map(|(role, content)| serde_json::json!({"role": role, "content": content}));
    serde_json::Value::Array(turns.collect()).to_string()
}

/// Turn by turn: user, assistant, user and so on.
fn conversation(said: &[String]) -> Vec<(&'static str, String)> {
    said.iter().cloned().enumerate().map(|(at, it)| (["user", "assistant"][at % 2], it)).collect()
}

fn said() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "Hello",
        " world",
        " ",
        "  ",
        "\n",
        "é",
        "e\u{301}",
        "日本",
        "🙂",
        "123",
        "<",
        "|",
        ">",
        "<s>",
        "</s>",
        "<unk>",
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
        "<|eot_id|>",
        "<|image|>",
        "[INST]",
        "[/INST]",
        " [MASK] ",
        "[MASK]",
        "[CALLS]",
        "<|im_",
        "end|>",
        "<<s>>",
        "▁",
        "<0x0A>",
        "word",
        "_",
        "\u{1c}",
        "\u{0}",
        "'s",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|it| it.concat())
}

proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(60))]
    #[test]
    fn remembered_fresh_and_plain_ids_are_the_same(said in prop::collection::vec(said(), 1..8)) {
        for Trio { family, remembers, forgets, plain } in TRIOS.iter() {
            // Every beginning of it, as the turns come in.
            for turns in (1..=said.len()).step_by(2) {
                let messages = messages(&conversation(&said[..turns]));
                let chat = Chat::new(&messages, today());
                let prompt = remembers.render(&chat).expect("turns are taken in turn");
                let ids = remembers.encode(&prompt).expect("a text has ids");
                let whole = plain.encode_fast(prompt.text(), false).expect("a text has ids");
                prop_assert_eq!(&ids.tokens, whole.get_ids(), "{}: {:?}", family, prompt.text());
                prop_assert_eq!(&ids, &forgets.encode(&prompt).expect("a text has ids"), "{}", family);
                prop_assert_eq!(remembers.fresh_bytes(&prompt), 0);
                prop_assert_eq!(forgets.fresh_bytes(&prompt), prompt.text().len());
            }
            let text = said.concat();
            let ids = Ids { tokens: plain.encode_fast(&*text, true).expect("a text has ids").get_ids().into(), media: None };
            prop_assert_eq!(remembers.text(&text).expect("a text has ids"), ids, "{}: {:?}", family, text);
        }
    }
}

#[test]
fn a_conversation_pays_for_its_last_turn_only() {
    for family in ["chatml", "header", "inst", "first"] {
        let model = model(family);
        let mut turns: Vec<(&str, String)> = Vec::new();
        let mut fresh_before = 0;
        for turn in 0..10 {
            turns.push(("user", format!("Question {turn}: {}", "why and how ".repeat(40))));
            let messages = messages(&turns);
            let prompt = model.render(&Chat::new(&messages, today())).expect("turns are taken in turn");
            let expected = model.fresh_bytes(&prompt) as u64;
            model.encode(&prompt).expect("a text has ids");
            let fresh = model.stats().fresh_bytes - fresh_before;
            assert!(
                fresh > 0 && fresh <= expected,
                "{family}, turn {turn}: it said what it would cost at most"
            );
            // The last answer, this question and their headers. Also the question before: the tags around it are
            // words to the tokenizer, so it is one piece with its answer.
            assert!(
                turn == 0 || fresh < 2_000,
                "{family}, turn {turn}: {fresh} bytes of {}",
                prompt.text().len()
            );
            fresh_before += fresh;
            turns.push(("assistant", format!("Answer {turn}: {}", "because it is so ".repeat(50))));
        }
        let total = model.stats();
        assert!(total.cached_bytes > 2 * total.fresh_bytes, "{family}: {total:?}");
    }
}

#[test]
fn threads_share_a_model() {
    let trio = Trio::load("chatml");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let trio = &trio;
            scope.spawn(move || {
                for at in 0..20 {
                    let messages =
                        messages(&[("user", format!("same {}", at % 5)), ("assistant", format!("{thread}"))]);
                    let chat = Chat::new(&messages, today());
                    assert_eq!(trio.remembers.chat(&chat), trio.forgets.chat(&chat));
                }
            });
        }
    });
}
