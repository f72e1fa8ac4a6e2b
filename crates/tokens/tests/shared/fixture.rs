//! The fixtures: model folders, and what vLLM made of chats in them.
#![allow(clippy::expect_used, reason = "a test fails by it")]
#![allow(dead_code, reason = "each test binary uses its part of it")]

use std::path::{Path, PathBuf};

use maitre_tokens::chat::{Chat, Ending};
use maitre_tokens::date::Date;
use maitre_tokens::model::Model;
use maitre_tokens::options::ModelOptions;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Their tokenizers are as written in `tokenizer.json`.
pub(crate) const FAMILIES: [&str; 4] = ["chatml", "inst", "first", "header"];

/// And one that transformers 5 assembles in its own way.
pub(crate) const REBUILT: &str = "rebuilt";

/// The day on which the golden files were made, by the clock they were given.
pub(crate) fn today() -> Date {
    Date::of_unix_seconds(1_794_700_800)
}

pub(crate) fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(family)
}

pub(crate) fn model(family: &str) -> Model {
    Model::load(&folder(family), ModelOptions::default()).expect("the fixture loads")
}

#[derive(Deserialize)]
pub(crate) struct Golden {
    pub(crate) cases: Vec<Case>,
    pub(crate) texts: Vec<Text>,
}

#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    request: Request,
    pub(crate) text: Option<String>,
    pub(crate) ids: Option<Vec<u32>>,
    why: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Request {
    messages: Box<RawValue>,
    tools: Option<Box<RawValue>>,
    documents: Option<Box<RawValue>>,
    chat_template_kwargs: Option<Box<RawValue>>,
    reasoning_effort: Option<Box<RawValue>>,
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    continue_final_message: bool,
}

impl Golden {
    pub(crate) fn read(family: &str) -> Golden {
        let bytes = std::fs::read(folder(family).join("golden.json")).expect("the fixture is there");
        serde_json::from_slice(&bytes).expect("the fixture is JSON")
    }
}

fn raw(part: &Option<Box<RawValue>>) -> Option<&str> {
    part.as_deref().map(RawValue::get)
}

impl Case {
    /// The request as the router's parser would cut it out of a body.
    pub(crate) fn chat(&self) -> Chat<'_> {
        let request = &self.request;
        Chat {
            tools: raw(&request.tools),
            documents: raw(&request.documents),
            arguments: raw(&request.chat_template_kwargs),
            reasoning_effort: raw(&request.reasoning_effort),
            ending: match (request.continue_final_message, request.add_generation_prompt) {
                (true, _) => Ending::Continue,
                (false, Some(false)) => Ending::Nothing,
                (false, _) => Ending::Answer,
            },
            ..Chat::new(request.messages.get(), today())
        }
    }

    pub(crate) fn refused_by_types(&self) -> bool {
        self.why.as_ref().is_some_and(|it| it.starts_with("ValidationError"))
    }
}
