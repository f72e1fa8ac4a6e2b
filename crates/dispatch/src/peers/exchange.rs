//! Between the brain and the router's place among others: their words are the same, their types their own, for neither
//! should have to know the other.

use std::sync::Arc;

use maitre_base::TenantId;
use maitre_cluster as cluster;
use maitre_fleet::rates::Fit;
use maitre_index::PrefixHash;
use maitre_index::prefix::Unit;

use super::{Judged, Outbox, PeerUpdate};
use crate::cache::Prompt;

/// Tells the others, with the next flush, what the brain has for them, and leaves the outbox empty with their room.
/// `links` is scratch.
pub fn publish(node: &mut cluster::Node, outbox: &mut Outbox, links: &mut Vec<u64>) {
    // Before the rest: a worker that left and came back is there.
    outbox.gone.drain(..).for_each(|it| node.forget(it));
    outbox.promised.drain(..).for_each(|(worker, it)| node.promise(worker, it));
    outbox.judged.drain(..).for_each(|(worker, it)| node.set_facts(worker, told_facts(it)));
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

/// PeerUpdate with what it speaks of, for as long as the brain hears it.
#[derive(Debug)]
pub enum ReceivedUpdate {
    Placed { worker: u64, prompt: Prompt },
    Other(PeerUpdate<'static>),
}

impl ReceivedUpdate {
    pub fn new(news: &cluster::PeerUpdate) -> ReceivedUpdate {
        ReceivedUpdate::Other(match *news {
            cluster::PeerUpdate::Placed(ref seated) => {
                return ReceivedUpdate::Placed { worker: seated.worker, prompt: prompt(seated) };
            }
            cluster::PeerUpdate::Promised { worker, load } => PeerUpdate::Promised { worker, work: load },
            cluster::PeerUpdate::Assessed { worker, facts } => {
                PeerUpdate::Judged { worker, judged: heard_facts(facts) }
            }
            cluster::PeerUpdate::Pinned { model, session, worker } => {
                PeerUpdate::Pinned { model, session, worker }
            }
            cluster::PeerUpdate::Spent { model, tenant, more } => {
                PeerUpdate::Spent { model, tenant: TenantId(tenant), more }
            }
            cluster::PeerUpdate::Routers { live, known } => PeerUpdate::Routers { heard: live, known },
        })
    }

    /// In the brain's words.
    pub fn update(&self) -> PeerUpdate<'_> {
        match self {
            ReceivedUpdate::Placed { worker, prompt } => PeerUpdate::Placed { worker: *worker, prompt },
            ReceivedUpdate::Other(news) => *news,
        }
    }
}

fn prompt(seated: &cluster::PeerPlacement) -> Prompt {
    Prompt {
        unit: match seated.unit {
            cluster::Unit::Tokens => Unit::Tokens,
            cluster::Unit::Words => Unit::Words,
        },
        units: seated.units,
        block: seated.block,
        chain: seated.links.iter().map(|&it| PrefixHash(it)).collect::<Arc<[PrefixHash]>>(),
    }
}

fn told_facts(judged: Judged) -> cluster::WorkerFacts {
    let fit = |it: Fit| cluster::LinearFit { base: it.base as f32, slope: it.slope as f32 };
    cluster::WorkerFacts {
        verdict: judged.verdict,
        rates: judged.rates.map(|(prefill, decode)| (fit(prefill), fit(decode))),
    }
}

fn heard_facts(facts: cluster::WorkerFacts) -> Judged {
    let fit = |it: cluster::LinearFit| Fit { base: f64::from(it.base), slope: f64::from(it.slope) };
    Judged { verdict: facts.verdict, rates: facts.rates.map(|(prefill, decode)| (fit(prefill), fit(decode))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_heard() {
        let fit = |base| Fit { base, slope: 0.25 };
        for verdict in [cluster::Verdict::Healthy, cluster::Verdict::Suspect, cluster::Verdict::Ejected] {
            for rates in [None, Some((fit(0.5), fit(2.0)))] {
                let judged = Judged { verdict, rates };
                assert_eq!(heard_facts(told_facts(judged)), judged);
            }
        }
    }

    #[test]
    fn a_prompt_is_heard_as_it_was_sent() {
        for (unit, expected) in [(cluster::Unit::Tokens, Unit::Tokens), (cluster::Unit::Words, Unit::Words)] {
            let seated = cluster::PeerPlacement { worker: 7, unit, block: 16, units: 35, links: vec![1, 2] };
            let heard = ReceivedUpdate::new(&cluster::PeerUpdate::Placed(seated));
            let PeerUpdate::Placed { worker: 7, prompt } = heard.update() else { panic!("{heard:?}") };
            let links: Vec<u64> = prompt.chain.iter().map(|it| it.0).collect();
            assert_eq!((prompt.unit, prompt.units, prompt.block, links), (expected, 35, 16, vec![1, 2]));
        }
    }
}
