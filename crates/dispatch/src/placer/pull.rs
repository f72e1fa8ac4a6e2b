//! What workers could fetch of a prompt that they do not hold themselves: pull it from another worker, or load it from a store
//! that they share.
//!
//! The source is the ready worker that holds the longest prefix of the prompt, as far as that is computed already. Each other
//! worker that can pull is offered what it lacks of that prefix, if fetching it costs less than computing it. What a store
//! holds engines load without being told.

use maitre_base::{RequestId, Tokens, WorkerId};
use maitre_fleet::WorkerSnapshot;
use maitre_fleet::transfers::{TransferTime, Way};
use maitre_policy::{Fetch, least_delay};

use super::{Query, World, pace};
use crate::cache::{Held, PromptChain, blocks_in_tokens, tokens_in_blocks};

/// For each worker of a survey what it would pull; empty where nobody can.
#[derive(Clone, Debug, Default)]
pub(crate) struct PullSurvey {
    fetches: Vec<Fetch>,
}

/// A worker to pull from.
#[derive(Clone, Copy)]
struct PullSource {
    worker: WorkerId,
    held: Tokens,
    requests: u32,
}

impl PullSurvey {
    pub(super) fn clear(&mut self) {
        self.fetches.clear();
    }

    pub(crate) fn at(&self, place: usize) -> Fetch {
        self.fetches.get(place).copied().unwrap_or_default()
    }

    /// What each of these workers, which hold that much of the prompt, would pull.
    pub(super) fn look(
        &mut self,
        (world, query): (&World<'_>, &Query<'_>),
        (snapshots, held): (&[WorkerSnapshot], &[Held]),
        unfinished: &UnfinishedPrompts,
    ) {
        let source = source((world, query), (snapshots, held), unfinished);
        let stored = query.prompt.filter(|_| world.cache.has_stores());
        if held.is_empty() || source.is_none() && stored.is_none() {
            return;
        }
        self.fetches.extend(snapshots.iter().zip(held).map(|(snapshot, held)| {
            let held = held.tokens + held.below;
            let stored = stored.map(|it| world.cache.in_store(snapshot.worker, it, query.ask.prefill));
            match stored.filter(|&it| it > held && source.is_none_or(|source| source.held <= it)) {
                Some(stored) => load(world, snapshot, stored - held),
                None => source.map_or_else(Fetch::default, |it| pull(world, snapshot, (it, held))),
            }
        }));
    }
}

fn load(world: &World<'_>, snapshot: &WorkerSnapshot, tokens: Tokens) -> Fetch {
    let TransferTime { own, queue } =
        world.fleet.pull_time(world.cache.way_from_store(snapshot.worker), tokens);
    Fetch { tokens, seconds: own + queue, from: None }
}

fn pull(world: &World<'_>, snapshot: &WorkerSnapshot, (source, held): (PullSource, Tokens)) -> Fetch {
    let tokens = source.held - held;
    if tokens == Tokens::ZERO || !world.fleet.may_pull(world.now, snapshot.worker) {
        return Fetch::default();
    }
    let way = Way::between(source.worker, snapshot.worker);
    let TransferTime { own, queue } = world.fleet.pull_time(way, tokens);
    let fetch = Fetch { tokens, seconds: own + queue, from: Some(source.worker) };
    let pace = pace(snapshot.prefill, snapshot.decode);
    match least_delay::pays((fetch, held), &pace) {
        true => fetch,
        false => Fetch::default(),
    }
}

/// Who holds the longest computed prefix; of several, the one with the fewest requests.
fn source(
    (world, query): (&World<'_>, &Query<'_>),
    (snapshots, held): (&[WorkerSnapshot], &[Held]),
    unfinished: &UnfinishedPrompts,
) -> Option<PullSource> {
    let may_pull = query.may_split && world.fleet.has_pulls() && !world.fleet.awaits_first_pull();
    let prompt = query.prompt.filter(|_| may_pull)?;
    let mut best: Option<PullSource> = None;
    for (snapshot, held) in snapshots.iter().zip(held) {
        let (worker, requests) = (snapshot.worker, snapshot.requests);
        let is_worse = |held: Tokens| {
            best.is_some_and(|it| held < it.held || held == it.held && requests >= it.requests)
        };
        let all = held.prefix() + held.below;
        if all == Tokens::ZERO || is_worse(all) || !world.fleet.is_source(world.now, worker, query.watch) {
            continue;
        }
        let held = unfinished.computed(worker, prompt, (query.ask.prefill, all));
        if held > Tokens::ZERO && !is_worse(held) {
            best = Some(PullSource { worker, held, requests });
        }
    }
    best
}

/// Prompts that workers have got and not computed yet. They count as held from the moment they are sent, but nobody can pull
/// them. Kept only where workers pull.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnfinishedPrompts {
    /// By worker id.
    at: Vec<Vec<Unfinished>>,
}

#[derive(Clone, Debug)]
struct Unfinished {
    request: RequestId,
    prompt: PromptChain,
    /// Leading blocks of its chain that the worker held before.
    held_before: usize,
    coming: Coming,
}

/// How a worker comes by a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coming {
    /// Requests behind it can share what it computes.
    Computed,
    /// Blocks that are on their way can be shared once they are there: a request that comes before computes them again.
    Pulled,
}

impl UnfinishedPrompts {
    pub(crate) fn begin(
        &mut self,
        (request, worker): (RequestId, WorkerId),
        prompt: &PromptChain,
        (prompt_tokens, held, coming): (Tokens, Tokens, Coming),
    ) {
        let held_before = tokens_in_blocks(prompt, prompt_tokens, held);
        let workers = self.at.len().max(worker.index() + 1);
        self.at.resize_with(workers, Vec::new);
        self.at[worker.index()].push(Unfinished { request, prompt: prompt.clone(), held_before, coming });
    }

    pub(crate) fn end(&mut self, request: RequestId, worker: WorkerId) {
        let Some(prompts) = self.at.get_mut(worker.index()) else { return };
        if let Some(place) = prompts.iter().position(|it| it.request == request) {
            prompts.swap_remove(place);
        }
    }

    /// How much of what the worker is believed to hold of a prompt is computed.
    fn computed(&self, worker: WorkerId, prompt: &PromptChain, tokens: (Tokens, Tokens)) -> Tokens {
        self.held_without(worker, prompt, tokens, |_| true)
    }

    /// How much of it is there for a request that comes now: all but what is on its way.
    pub(super) fn usable(&self, worker: WorkerId, prompt: &PromptChain, tokens: (Tokens, Tokens)) -> Tokens {
        self.held_without(worker, prompt, tokens, |it| it.coming == Coming::Pulled)
    }

    fn held_without(
        &self,
        worker: WorkerId,
        prompt: &PromptChain,
        (all, held): (Tokens, Tokens),
        counts: fn(&Unfinished) -> bool,
    ) -> Tokens {
        // The hash of a prefix says whether two prompts are equal up to there: where this one goes on as an unfinished one
        // does, the worker has no more of it than it had before that.
        let shares = |it: &&Unfinished| {
            counts(it)
                && (it.prompt.unit, it.prompt.block) == (prompt.unit, prompt.block)
                && it.held_before < it.prompt.chain.len()
                && prompt.chain.get(it.held_before) == it.prompt.chain.get(it.held_before)
        };
        let prompts = self.at.get(worker.index()).map_or(&[][..], |it| it);
        let least = prompts.iter().filter(shares).map(|it| it.held_before).min();
        least.map_or(held, |blocks| held.min(blocks_in_tokens(prompt, all, blocks as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_index::PrefixHash;
    use maitre_index::prefix::Unit;

    const WORKER: WorkerId = WorkerId(3);

    /// A chain of 16-token blocks, one for each letter, each depending on those before.
    fn prompt(letters: &str) -> PromptChain {
        let mut hash = 0;
        let chain: Vec<PrefixHash> = letters
            .bytes()
            .map(|it| {
                hash = maitre_base::hash::bytes(hash, &[it]);
                PrefixHash(hash)
            })
            .collect();
        PromptChain {
            unit: Unit::Tokens,
            units: 16 * letters.len() as u64,
            block: 16,
            chain: chain.into(),
            chunks: None,
        }
    }

    /// A worker that held so many tokens of `sent` is computing the rest. How much of `asked` can be pulled from it, if it
    /// is believed to hold `held` tokens of that?
    #[track_caller]
    fn check(sent: (&str, u64), asked: &str, held: u64, expected: u64) {
        let mut unfinished = UnfinishedPrompts::default();
        let sent_prompt = prompt(sent.0);
        let tokens = Tokens(sent_prompt.units);
        unfinished.begin((RequestId(1), WORKER), &sent_prompt, (tokens, Tokens(sent.1), Coming::Computed));
        let asked = prompt(asked);
        let computed = |unfinished: &UnfinishedPrompts, worker| {
            unfinished.computed(worker, &asked, (Tokens(asked.units), Tokens(held))).0
        };
        assert_eq!(computed(&unfinished, WORKER), expected);
        assert_eq!(computed(&unfinished, WorkerId(4)), held, "another worker");
        let usable = |unfinished: &UnfinishedPrompts| {
            unfinished.usable(WORKER, &asked, (Tokens(asked.units), Tokens(held))).0
        };
        assert_eq!(usable(&unfinished), held, "what is being computed can be shared");
        unfinished.end(RequestId(1), WORKER);
        unfinished.begin((RequestId(1), WORKER), &sent_prompt, (tokens, Tokens(sent.1), Coming::Pulled));
        assert_eq!(usable(&unfinished), expected, "what is being pulled cannot");
        unfinished.end(RequestId(1), WORKER);
        assert_eq!(computed(&unfinished, WORKER), held, "once it is computed");
    }

    #[test]
    fn what_a_worker_is_still_computing_cannot_be_pulled() {
        check(("abcd", 0), "abcdefgh", 64, 0);
        check(("abcd", 32), "abcdefgh", 64, 32);
        check(("abcd", 40), "abcdefgh", 64, 32);
    }

    #[test]
    fn an_unfinished_prompt_that_goes_another_way_does_not_matter() {
        check(("abxy", 32), "abcdefgh", 64, 64);
        check(("xyz", 0), "abcdefgh", 64, 64);
        check(("abcd", 64), "abcdefgh", 64, 64);
        check(("abcdef", 32), "ab", 16, 16);
    }
}
