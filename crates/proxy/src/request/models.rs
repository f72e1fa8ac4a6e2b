//! `GET /v1/models` over the whole fleet: the workers' own entries, each model once.
//!
//! A model that a caller may not use does not exist for it, neither in the list nor when it asks for it by name.

use bytes::Bytes;
use maitre_dialect::{models, openai};

use crate::brain::SharedBrain;
use crate::keys::Caller;
use crate::refuse::{Refused, echo};

/// Most names in an error message.
const NAMES_MAX: usize = 20;

pub(super) fn list(brain: &SharedBrain, caller: &Caller) -> Bytes {
    let lists: Vec<Bytes> = brain.links().iter().filter_map(|it| it.about().models).collect();
    let lists: Vec<&[u8]> = lists.iter().map(|it| &it[..]).collect();
    Bytes::from(models::merge(&lists, |it| caller.may_use(it)))
}

/// The models that are served, for the error message of a request for another one.
pub(crate) fn names(brain: &SharedBrain, caller: &Caller) -> String {
    brain.read(|brain| {
        let names = brain.fleet().model_names().filter(|it| caller.may_use(it));
        let names: Vec<&str> = names.take(NAMES_MAX).collect();
        if names.is_empty() { "nothing yet".to_owned() } else { names.join(", ") }
    })
}

/// Refuses a model that the caller may not use, with the same message as for one that no worker serves.
pub(super) fn check(
    brain: &SharedBrain,
    caller: &Caller,
    parsed: &openai::Request<'_>,
) -> Result<(), Refused> {
    if !caller.is_limited() {
        return Ok(());
    }
    let known = || names(brain, caller);
    let Some(model) = parsed.model.as_deref() else {
        // The fleet would choose one.
        return Err(Refused::ModelRequired { known: known() });
    };
    // SGLang names an adapter beside the model, or after it with a colon.
    let may_adapt = |it: &str| caller.may_use(it) || caller.may_use(&format!("{model}:{it}"));
    let is_allowed =
        caller.may_use(model) && parsed.lora.as_deref().is_none_or(may_adapt) && parsed.loras.is_none();
    match is_allowed {
        true => Ok(()),
        false => Err(Refused::UnknownModel { model: echo(model), known: known() }),
    }
}
