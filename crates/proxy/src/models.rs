//! `GET /v1/models` over the whole fleet: every worker's own cards, each model once.

use bytes::Bytes;
use maitre_dialect::models;

use crate::house::House;

/// Most names a message lists.
const NAMES_MAX: usize = 20;

pub(crate) fn list(house: &House) -> Bytes {
    let lists: Vec<Bytes> = house.links().iter().filter_map(|it| it.about().models).collect();
    let lists: Vec<&[u8]> = lists.iter().map(|it| &it[..]).collect();
    Bytes::from(models::merge(&lists))
}

/// The names of what is served, for a message to someone who asked for something else.
pub(crate) fn names(house: &House) -> String {
    house.look(|brain| {
        let names: Vec<&str> = brain.fleet().model_names().take(NAMES_MAX).collect();
        if names.is_empty() { "nothing yet".to_owned() } else { names.join(", ") }
    })
}
