//! The models a worker serves, as its `/v1/models` lists them, and one list made of many.
//!
//! Clients read fields from model cards that we do not interpret (permissions, context lengths,
//! capabilities). So a merged list carries each card as the worker wrote it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Maximum cards read from one list. Chosen: well above the adapters one engine can load.
pub const CARDS_MAX: usize = 4096;

/// Maximum length of an id, because a model's name is used in labels and keys.
pub const ID_BYTES_MAX: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub id: String,
    /// The base model, if this is an adapter of one.
    pub parent: Option<String>,
    pub max_model_len: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
#[error("read the list of models: {0}")]
pub struct Unreadable(#[from] serde_json::Error);

/// Reads a `/v1/models` body. Cards without a usable id are skipped; a list over the limit is cut.
pub fn parse(body: &[u8]) -> Result<Vec<Model>, Unreadable> {
    Ok(cards(body)?.map(|(card, _)| card.model()).collect())
}

/// One worker's list, read once. A fleet with adapters lists tens of thousands of cards: to parse them for each client that
/// asks took a lane 38 ms for 24 workers of 2,000 cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardList {
    /// The cards as the worker wrote them, one after the other.
    text: String,
    cards: Vec<(Model, Range<usize>)>,
}

impl CardList {
    /// Reads a `/v1/models` body, with the limits of `parse`.
    pub fn read(body: &[u8]) -> Result<CardList, Unreadable> {
        let mut list = CardList::default();
        for (card, raw) in cards(body)? {
            let start = list.text.len();
            list.text.push_str(raw);
            list.cards.push((card.model(), start..list.text.len()));
        }
        Ok(list)
    }

    pub fn models(&self) -> impl Iterator<Item = &Model> {
        self.cards.iter().map(|it| &it.0)
    }

    /// The id of each card, and its text.
    fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.cards.iter().map(|(model, span)| (model.id.as_str(), &self.text[span.clone()]))
    }
}

/// Merges several lists into a `/v1/models` body that has only the models to be shown. The first card of each id stays.
pub fn merge<'a>(lists: impl IntoIterator<Item = &'a CardList>, is_shown: impl Fn(&str) -> bool) -> String {
    let mut seen = HashSet::new();
    let mut data = String::new();
    for (id, raw) in lists.into_iter().flat_map(CardList::texts) {
        if is_shown(id) && seen.insert(id) {
            if !data.is_empty() {
                data.push(',');
            }
            data.push_str(raw);
        }
    }
    format!(r#"{{"object":"list","data":[{data}]}}"#)
}

/// The card of one model in several lists, as the first worker that has it wrote it.
pub fn find<'a>(lists: impl IntoIterator<Item = &'a CardList>, id: &str) -> Option<&'a str> {
    lists.into_iter().flat_map(CardList::texts).find(|it| it.0 == id).map(|it| it.1)
}

/// The `owned_by` of the first card: engines sign with their own name.
pub(crate) fn owner(body: &[u8]) -> Option<String> {
    let (card, _) = cards(body).ok()?.next()?;
    card.owned_by.map(Cow::into_owned)
}

#[derive(Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Card<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow, default)]
    parent: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    owned_by: Option<Cow<'a, str>>,
    #[serde(default)]
    max_model_len: Option<u64>,
}

impl Card<'_> {
    fn model(self) -> Model {
        Model {
            id: self.id.into_owned(),
            parent: self.parent.map(Cow::into_owned),
            max_model_len: self.max_model_len,
        }
    }
}

/// The usable cards, each with its own text.
fn cards(body: &[u8]) -> Result<impl Iterator<Item = (Card<'_>, &str)>, serde_json::Error> {
    let list: List<'_> = serde_json::from_slice(body)?;
    let cards = list.data.into_iter().take(CARDS_MAX).filter_map(|raw| {
        let card: Card<'_> = serde_json::from_str(raw.get()).ok()?;
        (1..=ID_BYTES_MAX).contains(&card.id.len()).then_some((card, raw.get()))
    });
    Ok(cards)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VLLM: &str = r#"{"object":"list","data":[
        {"id":"llama","object":"model","created":1,"owned_by":"vllm","root":"llama","parent":null,"max_model_len":8192, "permission":[{"id":"p"}]},
        {"id":"sql-lora","owned_by":"vllm","root":"/lora","parent":"llama"}]}"#;

    #[track_caller]
    fn check(body: &str, expected: &[(&str, Option<&str>, Option<u64>)]) {
        let models = parse(body.as_bytes()).unwrap();
        let actual: Vec<_> =
            models.iter().map(|it| (it.id.as_str(), it.parent.as_deref(), it.max_model_len)).collect();
        assert_eq!(actual, expected, "body: {body}");
    }

    fn lists(bodies: &[&str]) -> Vec<CardList> {
        bodies.iter().map(|it| CardList::read(it.as_bytes()).unwrap()).collect()
    }

    #[test]
    fn cards_give_model_base_and_context_length() {
        check(VLLM, &[("llama", None, Some(8192)), ("sql-lora", Some("llama"), None)]);
        check(r#"{"data":[]}"#, &[]);
        check(
            r#"{"models":[{"name":"x"}],"object":"list","data":[{"id":"g\u0067uf","meta":{"n_ctx":1}}]}"#,
            &[("gguf", None, None)],
        );
    }

    #[test]
    fn cards_without_a_usable_id_are_left_out() {
        let long = "x".repeat(ID_BYTES_MAX + 1);
        check(
            &format!(r#"{{"data":[1,{{}},{{"id":7}},{{"id":""}},{{"id":"{long}"}},{{"id":"a"}}]}}"#),
            &[("a", None, None)],
        );
    }

    #[test]
    fn a_list_over_the_limit_is_cut() {
        let cards: Vec<_> = (0..CARDS_MAX + 10).map(|id| format!(r#"{{"id":"{id}"}}"#)).collect();
        let body = format!(r#"{{"data":[{}]}}"#, cards.join(","));
        assert_eq!(parse(body.as_bytes()).unwrap().len(), CARDS_MAX);
    }

    #[test]
    fn merged_lists_keep_the_first_card_of_each_id_verbatim() {
        let other = r#"{"data":[{"id":"llama","owned_by":"me"},{"id":"qwen", "extra" : 1e2}]}"#;
        let merged = merge(&lists(&[VLLM, other]), |_| true);
        check(
            &merged,
            &[("llama", None, Some(8192)), ("sql-lora", Some("llama"), None), ("qwen", None, None)],
        );
        assert!(merged.contains(r#""max_model_len":8192, "permission":[{"id":"p"}]}"#), "{merged}");
        assert!(merged.contains(r#"{"id":"qwen", "extra" : 1e2}"#), "{merged}");
        assert_eq!(merge([], |_| true), r#"{"object":"list","data":[]}"#);
    }

    #[test]
    fn the_card_of_one_model_is_verbatim_and_the_first() {
        let other = r#"{"data":[{"id":"sql-lora","owned_by":"me"},{"id":"org\/qwen", "extra" : 1e2}]}"#;
        let lists = lists(&[VLLM, other]);
        assert_eq!(find(&lists, "org/qwen"), Some(r#"{"id":"org\/qwen", "extra" : 1e2}"#));
        assert!(find(&lists, "sql-lora").unwrap().contains(r#""parent":"llama""#));
        assert_eq!(find(&lists, "org"), None);
    }

    #[test]
    fn a_merged_list_has_only_the_models_to_be_shown() {
        let merged = merge(&lists(&[VLLM]), |it| it == "sql-lora");
        check(&merged, &[("sql-lora", Some("llama"), None)]);
    }

    #[test]
    fn a_body_that_is_not_a_list_is_an_error() {
        assert!(CardList::read(b"<html>").is_err());
        let error = parse(b"<html>").unwrap_err().to_string();
        assert_eq!(error, "read the list of models: expected value at line 1 column 1");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(body: Vec<u8>) {
            let _ = parse(&body);
            merge(CardList::read(&body).ok().as_ref(), |_| true);
        }

        #[test]
        fn a_changed_list_never_panics(at: prop::sample::Index, byte: u8) {
            let mut body = VLLM.as_bytes().to_vec();
            let at = at.index(body.len());
            body[at] = byte;
            let models = parse(&body).ok();
            let list = CardList::read(&body).ok();
            prop_assert_eq!(list.as_ref().map(|it| it.models().cloned().collect::<Vec<_>>()), models);
            merge(&list, |_| true);
        }
    }
}
