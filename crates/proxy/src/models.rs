//! `GET /v1/models` over the whole fleet: every worker's own cards, each model once.
//!
//! What a caller may not use is not there for it, neither in the list nor when it asks for it by name.

use bytes::Bytes;
use maitre_dialect::{models, openai};

use crate::house::RouterState;
use crate::keys::Caller;
use crate::refuse::{Refused, echo};

/// Most names a message lists.
const NAMES_MAX: usize = 20;

pub(crate) fn list(house: &RouterState, caller: &Caller) -> Bytes {
    let lists: Vec<Bytes> = house.links().iter().filter_map(|it| it.about().models).collect();
    let lists: Vec<&[u8]> = lists.iter().map(|it| &it[..]).collect();
    Bytes::from(models::merge(&lists, |it| caller.may_use(it)))
}

/// The names of what is served, for a message to someone who asked for something else.
pub(crate) fn names(house: &RouterState, caller: &Caller) -> String {
    house.look(|brain| {
        let names = brain.fleet().model_names().filter(|it| caller.may_use(it));
        let names: Vec<&str> = names.take(NAMES_MAX).collect();
        if names.is_empty() { "nothing yet".to_owned() } else { names.join(", ") }
    })
}

/// Refuses what the caller may not use, in the very words in which it hears of what nobody serves.
pub(crate) fn check(
    house: &RouterState,
    caller: &Caller,
    parsed: &openai::Request<'_>,
) -> Result<(), Refused> {
    if !caller.is_limited() {
        return Ok(());
    }
    let known = || names(house, caller);
    let Some(model) = parsed.model.as_deref() else {
        // The fleet would choose one.
        return Err(Refused::ModelRequired { known: known() });
    };
    // SGLang's adapters stand beside the model, or behind it.
    let may_adapt = |it: &str| caller.may_use(it) || caller.may_use(&format!("{model}:{it}"));
    let is_allowed =
        caller.may_use(model) && parsed.lora.as_deref().is_none_or(may_adapt) && parsed.loras.is_none();
    match is_allowed {
        true => Ok(()),
        false => Err(Refused::UnknownModel { model: echo(model), known: known() }),
    }
}
