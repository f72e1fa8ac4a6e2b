//! Checks that Maitre's tokens of a chat match the engine's.

use crate::code::Code;
use crate::facts::{Comparison, Fleet};
use crate::report::{Finding, Outcome};

pub(super) fn tokens(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    for (model, why) in &fleet.here.unusable {
        outcome.find(Finding::general(
            Code::TokenizerUnusable,
            format!("the tokenizer of {model} cannot be loaded: {why}"),
            format!("fix tokenizers.\"{model}\": the model's own folder, with tokenizer.json and tokenizer_config.json"),
        ));
    }
    let (mut same, mut looked) = (0, 0);
    for worker in fleet.present() {
        looked += worker.compared.len();
        // One finding per worker: a wrong template is wrong for every chat.
        let mut faults = worker.compared.iter().filter_map(|it| Some((&it.model, fault(&it.outcome)?)));
        if let Some((model, what)) = faults.next() {
            outcome.find(Finding::at(
                &worker.url,
                Code::TokensDiffer,
                format!("{model}: {what}"),
                format!(
                    "set tokenizers.\"{model}\" to exactly the folder that the engine serves, including the chat template; \
                     without it the engine is asked for its tokens"
                ),
            ));
        }
        same += worker.compared.iter().filter(|it| matches!(it.outcome, Comparison::Same { .. })).count();
    }
    outcome.said = match looked {
        0 => "not compared: no tokenizer is set for a model of an engine with a tokenize endpoint".to_owned(),
        _ => format!("{same} of {looked} chats give the same tokens here and there"),
    };
    outcome
}

fn fault(comparison: &Comparison) -> Option<String> {
    match comparison {
        Comparison::Same { .. } | Comparison::Unanswered(_) => None,
        Comparison::Differ { ours, theirs, at } => Some(format!(
            "a chat is {ours} tokens here and {theirs} by its /tokenize; they differ from token {at} on"
        )),
        Comparison::Unrendered(why) => Some(format!("a plain chat cannot be rendered here: {why}")),
    }
}
