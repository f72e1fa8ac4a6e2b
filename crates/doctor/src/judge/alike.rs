//! Checks that workers of one model are alike: blocks, versions, contexts, types.

use maitre_base::Role;
use maitre_dialect::engine::Need;

use super::{groups, odd_ones};
use crate::code::Code;
use crate::facts::{Fleet, Worker};
use crate::report::{Finding, Outcome};

/// Whether each worker that prefills has one of its model that decodes, and the other way round.
pub(super) fn roles(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    let mut said = Vec::new();
    for group in groups(fleet) {
        let of = |role: Role| group.iter().filter(move |it| it.role == role);
        let [prefill, decode] = [Role::Prefill, Role::Decode].map(|it| of(it).count());
        if prefill + decode > 0 {
            said.push(format!("{prefill} prefill, {decode} decode"));
        }
        let (alone, missing) = match (prefill, decode) {
            (1.., 0) => (Role::Prefill, Role::Decode),
            (0, 1..) => (Role::Decode, Role::Prefill),
            _ => continue,
        };
        for worker in of(alone) {
            outcome.find(Finding::at(
                &worker.url,
                Code::RolesUnpaired,
                format!("has the role {alone}, and no worker of its model has the role {missing}"),
                format!(
                    "add ?role={missing} to the URL of another one, or remove ?role={alone} from this one"
                ),
            ));
        }
    }
    outcome.said = listing(said, "every worker serves whole requests");
    outcome
}

pub(super) fn blocks(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    let mut said = Vec::new();
    for group in groups(fleet) {
        let sizes: Vec<(&Worker, u64)> =
            group.iter().filter_map(|it| Some((*it, it.block_tokens()?))).collect();
        let Some(odd) = odd_ones(&sizes) else { continue };
        said.push(format!("{} tokens", odd.usual));
        for (worker, size) in odd.others {
            let start = worker.kind.advice(Need::BlockTokens);
            outcome.find(Finding::at(
                &worker.url,
                Code::BlockSizesDiffer,
                format!("has blocks of {size} tokens, {} of its peers have {}", odd.count, odd.usual),
                format!("start it {start} ({})", odd.usual),
            ));
        }
    }
    outcome.said = listing(said, "no engine reports its block size");
    outcome
}

pub(super) fn versions(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    let mut said = Vec::new();
    for group in groups(fleet) {
        let versions: Vec<(&Worker, &str)> =
            group.iter().filter_map(|it| Some((*it, it.about.version.as_deref()?))).collect();
        let Some(odd) = odd_ones(&versions) else { continue };
        said.push(format!("{} {}", versions[0].0.kind.name(), odd.usual));
        for (worker, version) in odd.others {
            outcome.find(Finding::at(
                &worker.url,
                Code::VersionsDiffer,
                format!("is version {version}, {} of its peers are {}", odd.count, odd.usual),
                format!("update it to {}, or use --ignore versions-differ during a rollout", odd.usual),
            ));
        }
    }
    outcome.said = listing(said, "no engine reports its version");
    outcome
}

/// A property in which two engines of one model may differ without an error.
struct EngineTrait {
    code: Code,
    name: &'static str,
    need: Need,
    read: fn(&Worker) -> Option<String>,
}

const TRAITS: [EngineTrait; 3] = [
    EngineTrait {
        code: Code::ContextsDiffer,
        name: "a context (max_model_len) of",
        need: Need::Context,
        read: |it| it.models().first()?.max_model_len.map(|length| length.to_string()),
    },
    EngineTrait {
        code: Code::TypesDiffer,
        name: "dtype",
        need: Need::Dtype,
        read: |it| it.about.dtype.clone(),
    },
    EngineTrait {
        code: Code::TypesDiffer,
        name: "a KV cache of type",
        need: Need::KvDtype,
        read: |it| it.about.kv_dtype.clone(),
    },
];

pub(super) fn shapes(fleet: &Fleet) -> Outcome {
    let mut outcome = Outcome::default();
    let mut said = Vec::new();
    for group in groups(fleet) {
        for shape in &TRAITS {
            let values: Vec<(&Worker, String)> =
                group.iter().filter_map(|it| Some((*it, (shape.read)(it)?))).collect();
            let Some(odd) = odd_ones(&values) else { continue };
            said.push(format!("{} {}", shape.name, odd.usual));
            for (worker, value) in odd.others {
                let (usual, start) = (&odd.usual, worker.kind.advice(shape.need));
                outcome.find(Finding::at(
                    &worker.url,
                    shape.code,
                    format!("has {} {value}, {} of its peers have {usual}", shape.name, odd.count),
                    format!("start it {start} ({usual})"),
                ));
            }
        }
    }
    outcome.said = listing(said, "no engine reports any");
    outcome
}

/// Each value once, on one line.
fn listing(mut said: Vec<String>, nothing: &str) -> String {
    said.sort_unstable();
    said.dedup();
    if said.is_empty() { nothing.to_owned() } else { said.join("; ") }
}
