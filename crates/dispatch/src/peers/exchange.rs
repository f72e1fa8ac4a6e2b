//! Translates between the brain and the cluster node: the terms are the same, the types are not, so that neither crate
//! depends on the other's.

use std::sync::Arc;

use maitre_base::TenantId;
use maitre_cluster as cluster;
use maitre_fleet::rates::LinearFit;
use maitre_index::PrefixHash;
use maitre_index::prefix::Unit;

use super::{Assessment, Outbox, PeerUpdate};
use crate::cache::PromptChain;

/// Hands the outbox to the node, which sends it with the next flush. The outbox is left empty and keeps its memory; `links`
/// is scratch.
pub fn publish(node: &mut cluster::Node, outbox: &mut Outbox, links: &mut Vec<u64>) {
    // Departures first: a worker that left and came back is there.
    outbox.gone.drain(..).for_each(|it| node.forget(it));
    outbox.promised.drain(..).for_each(|(worker, it)| node.promise(worker, it));
    outbox.assessed.drain(..).for_each(|(worker, it)| node.set_facts(worker, to_facts(it)));
    outbox.pinned.drain(..).for_each(|(model, session, worker)| node.pin(model, session, worker));
    outbox.spent.drain(..).for_each(|(model, TenantId(tenant), more)| node.spend(model, tenant, more));
    for (worker, prompt) in outbox.placed.drain(..) {
        links.clear();
        links.extend(prompt.chain.iter().map(|it| it.0));
        let unit = match prompt.unit {
            Unit::Tokens => cluster::Unit::Tokens,
            Unit::Words => cluster::Unit::Words,
        };
        node.place(worker, cluster::Chain { unit, block: prompt.block, units: prompt.units, links });
    }
    outbox.dropped = 0;
}

/// A peer update that owns its prompt, for as long as the brain applies it.
#[derive(Debug)]
pub enum ReceivedUpdate {
    Placed { worker: u64, prompt: PromptChain },
    Other(PeerUpdate<'static>),
}

impl ReceivedUpdate {
    pub fn new(update: &cluster::PeerUpdate) -> ReceivedUpdate {
        ReceivedUpdate::Other(match *update {
            cluster::PeerUpdate::Placed(ref placed) => {
                return ReceivedUpdate::Placed { worker: placed.worker, prompt: prompt(placed) };
            }
            cluster::PeerUpdate::Promised { worker, load } => PeerUpdate::Promised { worker, work: load },
            cluster::PeerUpdate::Assessed { worker, facts } => {
                PeerUpdate::Assessed { worker, assessment: from_facts(facts) }
            }
            cluster::PeerUpdate::Pinned { model, session, worker } => {
                PeerUpdate::Pinned { model, session, worker }
            }
            cluster::PeerUpdate::Spent { model, tenant, more } => {
                PeerUpdate::Spent { model, tenant: TenantId(tenant), more }
            }
            cluster::PeerUpdate::Routers { live, known } => PeerUpdate::Routers { live, known },
        })
    }

    /// As the brain takes it.
    pub fn update(&self) -> PeerUpdate<'_> {
        match self {
            ReceivedUpdate::Placed { worker, prompt } => PeerUpdate::Placed { worker: *worker, prompt },
            ReceivedUpdate::Other(update) => *update,
        }
    }
}

fn prompt(placed: &cluster::PeerPlacement) -> PromptChain {
    PromptChain {
        unit: match placed.unit {
            cluster::Unit::Tokens => Unit::Tokens,
            cluster::Unit::Words => Unit::Words,
        },
        units: placed.units,
        block: placed.block,
        chain: placed.links.iter().map(|&it| PrefixHash(it)).collect::<Arc<[PrefixHash]>>(),
        // Routers publish prefixes only.
        chunks: None,
    }
}

fn to_facts(assessment: Assessment) -> cluster::WorkerFacts {
    let fit = |it: LinearFit| cluster::LinearFit { base: it.base as f32, slope: it.slope as f32 };
    cluster::WorkerFacts {
        verdict: assessment.verdict,
        rates: assessment.rates.map(|(prefill, decode)| (fit(prefill), fit(decode))),
    }
}

fn from_facts(facts: cluster::WorkerFacts) -> Assessment {
    let fit = |it: cluster::LinearFit| LinearFit { base: f64::from(it.base), slope: f64::from(it.slope) };
    Assessment {
        verdict: facts.verdict,
        rates: facts.rates.map(|(prefill, decode)| (fit(prefill), fit(decode))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assessment_is_received_as_it_was_published() {
        let fit = |base| LinearFit { base, slope: 0.25 };
        for verdict in [cluster::Verdict::Healthy, cluster::Verdict::Suspect, cluster::Verdict::Ejected] {
            for rates in [None, Some((fit(0.5), fit(2.0)))] {
                let assessment = Assessment { verdict, rates };
                assert_eq!(from_facts(to_facts(assessment)), assessment);
            }
        }
    }

    #[test]
    fn a_prompt_is_received_as_it_was_published() {
        for (unit, expected) in [(cluster::Unit::Tokens, Unit::Tokens), (cluster::Unit::Words, Unit::Words)] {
            let placed = cluster::PeerPlacement { worker: 7, unit, block: 16, units: 35, links: vec![1, 2] };
            let received = ReceivedUpdate::new(&cluster::PeerUpdate::Placed(placed));
            let PeerUpdate::Placed { worker: 7, prompt } = received.update() else { panic!("{received:?}") };
            let links: Vec<u64> = prompt.chain.iter().map(|it| it.0).collect();
            assert_eq!((prompt.unit, prompt.units, prompt.block, links), (expected, 35, 16, vec![1, 2]));
        }
    }
}
