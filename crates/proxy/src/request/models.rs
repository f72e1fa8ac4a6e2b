//! `GET /v1/models` over the whole fleet: the workers' own entries, each model once; and `GET /v1/models/{id}`, one entry.
//!
//! A model that a caller may not use does not exist for it, neither in the list nor when it asks for it by name.

use std::sync::Arc;

use bytes::Bytes;
use maitre_dialect::models::{self, CardList};
use maitre_dialect::openai;

use crate::brain::SharedBrain;
use crate::keys::Caller;
use crate::refuse::{Refused, echo};

/// Most names in an error message.
const NAMES_MAX: usize = 20;

pub(super) fn list(brain: &SharedBrain, caller: &Caller) -> Bytes {
    Bytes::from(models::merge(lists(brain).iter().map(|it| &**it), |it| caller.may_use(it)))
}

/// The entry of one model.
pub(super) fn one(brain: &SharedBrain, caller: &Caller, id: &str) -> Result<Bytes, Refused> {
    let lists = lists(brain);
    let found = models::find(lists.iter().map(|it| &**it), id).filter(|_| caller.may_use(id));
    let card = found.map(|it| Bytes::copy_from_slice(it.as_bytes()));
    card.ok_or_else(|| Refused::UnknownModel { model: echo(id), known: names(brain, caller) })
}

/// The id in the path of one model. It may contain slashes, encoded or not.
pub(super) fn id_in(path: &str) -> Option<String> {
    let id = path.strip_prefix("/v1/models/").filter(|it| !it.is_empty())?;
    let mut pieces = id.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let digits = piece.get(..2).filter(|it| it.bytes().all(|it| it.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// The workers' own lists.
fn lists(brain: &SharedBrain) -> Vec<Arc<CardList>> {
    brain.links().iter().filter_map(|it| it.about().models).collect()
}

/// The models that are served, for the error message of a request for another one.
pub(crate) fn names(brain: &SharedBrain, caller: &Caller) -> String {
    brain.read(|brain| {
        let names = brain.fleet().model_names().filter(|it| caller.may_use(it));
        let names: Vec<&str> = names.take(NAMES_MAX).collect();
        match names.is_empty() {
            true if caller.is_limited() => "none that this key may use".to_owned(),
            true => "nothing yet".to_owned(),
            false => names.join(", "),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_may_have_slashes_in_either_spelling() {
        let rows = [
            ("/v1/models/llama", Some("llama")),
            ("/v1/models/meta-llama/Llama-3.1-8B", Some("meta-llama/Llama-3.1-8B")),
            ("/v1/models/meta-llama%2FLlama-3.1-8B", Some("meta-llama/Llama-3.1-8B")),
            ("/v1/models/a%20b%c3%a9", Some("a bé")),
            ("/v1/models/", None),
            ("/v1/models", None),
            ("/v1/models/a%2", None),
            ("/v1/models/a%zz", None),
            ("/v1/models/%ff", None),
            ("/v1/model/a", None),
        ];
        for (path, id) in rows {
            assert_eq!(id_in(path).as_deref(), id, "{path}");
        }
    }
}
