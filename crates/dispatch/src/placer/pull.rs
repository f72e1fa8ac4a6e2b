//! What workers could fetch of a prompt that they do not hold themselves: pull it from another worker, or load it from a store
//! that they share.
//!
//! The source is the ready worker that holds the longest prefix of the prompt, as far as that is computed already. Each other
//! worker that can pull is offered what it lacks of that prefix, if fetching it costs less than computing it. What a store
//! holds engines load without being told.
//!
//! An engine asks the source for blocks when the request's turn comes. So a busy worker is also offered what the source is
//! still computing, if that should be done before the turn.

use maitre_base::{Instant, RequestId, Tokens, WorkerId};
use maitre_fleet::WorkerSnapshot;
use maitre_fleet::transfers::{TransferTime, Way};
use maitre_policy::{Fetch, least_delay};

use super::readers::PrefixReaders;
use super::{Query, World, pace};
use crate::cache::{Held, PromptChain, blocks_in_tokens, tokens_in_blocks};

/// A prefix that is being computed counts for a worker whose wait is this many times longer than what is left of it, and by so
/// many seconds. If it comes too late, the worker computes it a second time. Chosen: prefill takes as long as expected to within
/// a tenth. With neither, groups were 1 % slower at 12/s and 16/s, and 1 and 3 % faster at 20/s and 24/s (six seeds).
const LONGER: f64 = 1.2;
const LONGER_SECONDS: f64 = 0.05;
/// A prompt that is late is expected to take this part of its delay longer.
const LATER: f64 = 0.5;

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

/// Whom workers could pull a prompt from.
#[derive(Clone, Copy, Default)]
struct PullSources {
    now: Option<PullSource>,
    /// One that will hold more, and in how many seconds.
    later: Option<(PullSource, f64)>,
}

impl PullSources {
    fn is_empty(self) -> bool {
        self.now.is_none() && self.later.is_none()
    }

    /// For a worker whose turn to fetch comes after this wait: the one that will hold more first.
    fn after(self, wait_seconds: f64) -> impl Iterator<Item = PullSource> {
        let is_in_time = |ready_in: f64| ready_in * LONGER + LONGER_SECONDS <= wait_seconds;
        self.later.filter(|it| is_in_time(it.1)).map(|it| it.0).into_iter().chain(self.now)
    }
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
        (unfinished, readers): (&UnfinishedPrompts, &PrefixReaders),
    ) {
        let sources = sources((world, query), (snapshots, held), unfinished);
        let stored = query.prompt.filter(|_| world.cache.has_stores());
        if held.is_empty() || sources.is_empty() && stored.is_none() {
            return;
        }
        let sharing = |it: PullSource| {
            let blocks = |prompt| (prompt, tokens_in_blocks(prompt, query.ask.prefill, it.held));
            query.prompt.map(blocks).map_or(0, |it| readers.of(it.0, it.1))
        };
        self.fetches.extend(snapshots.iter().zip(held).map(|(snapshot, held)| {
            let held = held.tokens + held.below;
            let mut pulls =
                sources.after(snapshot.wait_seconds).map(|it| (it, pull(world, snapshot, (it, held))));
            let pull = pulls.find(|it| it.1.from.is_some());
            let stored = stored.map(|it| world.cache.in_store(snapshot.worker, it, query.ask.prefill));
            match stored.filter(|&it| it > held && pull.is_none_or(|(source, _)| source.held <= it)) {
                Some(stored) => load(world, snapshot, stored - held),
                None => {
                    pull.map_or_else(Fetch::default, |(it, pull)| Fetch { shared_by: sharing(it), ..pull })
                }
            }
        }));
    }
}

fn load(world: &World<'_>, snapshot: &WorkerSnapshot, tokens: Tokens) -> Fetch {
    let TransferTime { own, queue } =
        world.fleet.pull_time(world.cache.way_from_store(snapshot.worker), tokens);
    Fetch { tokens, seconds: own + queue, ..Fetch::default() }
}

fn pull(world: &World<'_>, snapshot: &WorkerSnapshot, (source, held): (PullSource, Tokens)) -> Fetch {
    let tokens = source.held - held;
    if tokens == Tokens::ZERO || !world.fleet.may_pull(world.now, snapshot.worker) {
        return Fetch::default();
    }
    let way = Way::between(source.worker, snapshot.worker);
    let TransferTime { own, queue } = world.fleet.pull_time(way, tokens);
    let fetch = Fetch { tokens, seconds: own + queue, from: Some(source.worker), shared_by: 0 };
    let pace = pace(snapshot.prefill, snapshot.decode);
    match least_delay::pays((fetch, held), &pace) {
        true => fetch,
        false => Fetch::default(),
    }
}

/// Who holds the longest computed prefix; of several, the one with the fewest requests. And who will hold a longer one first.
fn sources(
    (world, query): (&World<'_>, &Query<'_>),
    (snapshots, held): (&[WorkerSnapshot], &[Held]),
    unfinished: &UnfinishedPrompts,
) -> PullSources {
    let mut best = PullSources::default();
    let may_pull = query.may_split && world.fleet.has_pulls() && !world.fleet.awaits_first_pull();
    let Some(prompt) = query.prompt.filter(|_| may_pull) else { return best };
    for (snapshot, held) in snapshots.iter().zip(held) {
        let (worker, requests) = (snapshot.worker, snapshot.requests);
        let all = held.prefix() + held.below;
        // Before its unfinished prompts are compared: there are tens of thousands of those in a fleet of a thousand.
        let is_worse = best.now.is_some_and(|it| all < it.held || all == it.held && requests >= it.requests);
        if all == Tokens::ZERO || is_worse || !world.fleet.is_source(world.now, worker, query.watch) {
            continue;
        }
        let held = unfinished.computed(worker, prompt, (query.ask.prefill, all));
        let is_better = |it: PullSource| held > it.held || held == it.held && requests < it.requests;
        if held > Tokens::ZERO && best.now.is_none_or(is_better) {
            best.now = Some(PullSource { worker, held, requests });
        }
        if held == all {
            continue;
        }
        let Some(ready_in) = unfinished.ready_in(world.now, worker, prompt) else { continue };
        let is_better = |it: (PullSource, f64)| all > it.0.held || all == it.0.held && ready_in < it.1;
        if best.later.is_none_or(is_better) {
            best.later = Some((PullSource { worker, held: all, requests }, ready_in));
        }
    }
    best.later = best.later.filter(|later| best.now.is_none_or(|now| now.held < later.0.held));
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
    ready_at: Option<Instant>,
}

/// A prompt that a worker has just got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arriving {
    /// Leading tokens that the worker held before.
    pub(crate) held: Tokens,
    pub(crate) coming: Coming,
    /// When its KV should be there; none if nobody knows.
    pub(crate) ready_at: Option<Instant>,
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
        (prompt, prompt_tokens): (&PromptChain, Tokens),
        Arriving { held, coming, ready_at }: Arriving,
    ) {
        let held_before = tokens_in_blocks(prompt, prompt_tokens, held);
        let workers = self.at.len().max(worker.index() + 1);
        self.at.resize_with(workers, Vec::new);
        self.at[worker.index()].push(Unfinished {
            request,
            prompt: prompt.clone(),
            held_before,
            coming,
            ready_at,
        });
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
        let shared = self.sharing(worker, prompt).filter(|it| counts(it));
        let least = shared.map(|it| it.held_before).min();
        least.map_or(held, |blocks| held.min(blocks_in_tokens(prompt, all, blocks as u32)))
    }

    /// In how many seconds the worker should have computed all that it still computes of a prompt. A guess for one that is late.
    /// What it pulls does not count as held there yet, so nobody waits for that.
    fn ready_in(&self, now: Instant, worker: WorkerId, prompt: &PromptChain) -> Option<f64> {
        let left = |at: Instant| at.since(now).as_secs_f64().max(LATER * now.since(at).as_secs_f64());
        let mut computed = self.sharing(worker, prompt).filter(|it| it.coming == Coming::Computed);
        let first = left(computed.next()?.ready_at?);
        computed.try_fold(first, |latest, it| Some(latest.max(left(it.ready_at?))))
    }

    /// The unfinished prompts there that go on as this one does where their known part ends: the worker has no more of it than
    /// it had before them. The hash of a prefix says whether two prompts are equal up to there.
    fn sharing<'a>(
        &'a self,
        worker: WorkerId,
        prompt: &'a PromptChain,
    ) -> impl Iterator<Item = &'a Unfinished> {
        let shares = |it: &&Unfinished| {
            (it.prompt.unit, it.prompt.block) == (prompt.unit, prompt.block)
                && it.held_before < it.prompt.chain.len()
                && prompt.chain.get(it.held_before) == it.prompt.chain.get(it.held_before)
        };
        self.at.get(worker.index()).map_or(&[][..], |it| it).iter().filter(shares)
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
        let arriving = |coming| Arriving { held: Tokens(sent.1), coming, ready_at: None };
        unfinished.begin((RequestId(1), WORKER), (&sent_prompt, tokens), arriving(Coming::Computed));
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
        unfinished.begin((RequestId(1), WORKER), (&sent_prompt, tokens), arriving(Coming::Pulled));
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

    #[test]
    fn what_is_being_computed_is_there_when_the_last_of_it_is() {
        let second = |it: u64| Instant::from_millis(1_000 * it);
        let mut unfinished = UnfinishedPrompts::default();
        let mut begin = |request, letters, (held, coming), ready_at: Option<u64>| {
            let sent = prompt(letters);
            let arriving = Arriving { held: Tokens(held), coming, ready_at: ready_at.map(second) };
            unfinished.begin((RequestId(request), WORKER), (&sent, Tokens(sent.units)), arriving);
        };
        begin(1, "abcd", (0, Coming::Computed), Some(4));
        begin(2, "abcdef", (64, Coming::Computed), Some(6));
        begin(3, "xy", (0, Coming::Computed), None);
        begin(4, "abcdefgh", (0, Coming::Pulled), Some(9));
        begin(5, "pq", (0, Coming::Pulled), Some(9));
        let ready_in = |now, letters| unfinished.ready_in(second(now), WORKER, &prompt(letters));
        assert_eq!([1, 4, 6].map(|it| ready_in(it, "abcz")), [Some(3.0), Some(0.0), Some(1.0)]);
        assert_eq!(ready_in(1, "abcdez"), Some(5.0), "the second has more of it");
        assert_eq!(ready_in(1, "xyz"), None, "nobody knows");
        assert_eq!(ready_in(1, "pqr"), None, "it computes none of that");
    }

    #[test]
    fn a_later_source_is_for_those_who_wait_longer_than_it_computes() {
        let source = |worker| PullSource { worker: WorkerId(worker), held: Tokens(1), requests: 0 };
        let sources = PullSources { now: Some(source(1)), later: Some((source(2), 1.0)) };
        let picked = |wait| sources.after(wait).map(|it| it.worker.0).collect::<Vec<_>>();
        assert_eq!([0.0, 1.0, 1.2, 1.3].map(picked), [vec![1], vec![1], vec![1], vec![2, 1]]);
        let none = PullSources { now: None, ..sources };
        assert_eq!([1.0, 1.3].map(|wait| none.after(wait).count()), [0, 1]);
    }
}
