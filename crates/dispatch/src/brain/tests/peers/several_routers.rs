//! Connected routers, and routers that are disconnected from each other.

use super::*;
use proptest::strategy::{Just, Strategy as _};

/// An outbox on its way to the other routers.
struct Letter {
    due: Instant,
    from: usize,
    outbox: Outbox,
}

/// Routers in front of one fleet.
pub(super) struct Cluster {
    pub(super) harnesses: Vec<Harness>,
    pub(super) delay: Duration,
    letters: Vec<Letter>,
    /// What each router has last published as promised.
    rows: Vec<BTreeMap<u64, PromisedWork>>,
}

impl Cluster {
    pub(super) fn of(harnesses: Vec<Harness>, delay: Duration) -> Cluster {
        let rows = harnesses.iter().map(|_| BTreeMap::new()).collect();
        let mut cluster = Cluster { harnesses, delay, letters: Vec::new(), rows };
        let count = cluster.harnesses.len() as u32;
        for harness in &mut cluster.harnesses {
            harness.outbox();
            harness.receive(PeerUpdate::Routers { live: count, known: count });
        }
        cluster
    }

    /// Time passes: letters that are due arrive, and outboxes are sent.
    pub(super) fn after(&mut self, span: Duration) {
        for harness in &mut self.harnesses {
            harness.now = harness.now + span;
        }
        self.exchange();
    }

    pub(super) fn exchange(&mut self) {
        let now = self.harnesses[0].now;
        for from in 0..self.harnesses.len() {
            if self.harnesses[from].brain.has_outbox() {
                let outbox = self.harnesses[from].outbox();
                self.letters.push(Letter { due: now + self.delay, from, outbox });
            }
        }
        while let Some(place) = self.letters.iter().position(|it| it.due <= now) {
            let letter = self.letters.remove(place);
            self.deliver(&letter);
        }
    }

    fn deliver(&mut self, letter: &Letter) {
        let Letter { from, outbox, .. } = letter;
        for &(worker, load) in &outbox.promised {
            self.rows[*from].insert(worker, load);
        }
        for to in (0..self.harnesses.len()).filter(|it| it != from) {
            for &(worker, _) in &outbox.promised {
                let others = (0..self.rows.len()).filter(|&it| it != to);
                let loads = others.filter_map(|it| self.rows[it].get(&worker));
                let work = loads.fold(PromisedWork::default(), |sum, it| sum.plus(it));
                self.harnesses[to].receive(PeerUpdate::Promised { worker, work });
            }
            for (worker, prompt) in &outbox.placed {
                self.harnesses[to].receive(PeerUpdate::Placed { worker: *worker, prompt });
            }
            for &(model, session, worker) in &outbox.pinned {
                self.harnesses[to].receive(PeerUpdate::Pinned { model, session, worker });
            }
            for &(model, tenant, more) in &outbox.spent {
                self.harnesses[to].receive(PeerUpdate::Spent { model, tenant, more });
            }
            for &(worker, assessment) in &outbox.assessed {
                self.harnesses[to].receive(PeerUpdate::Assessed { worker, assessment });
            }
        }
    }
}

/// A router whose workers joined in this order.
fn in_order(order: &[u32], settings: BrainSettings) -> Harness {
    let mut harness = Harness::with(0, settings);
    for (number, &port) in order.iter().enumerate() {
        let worker = WorkerId(number as u32);
        harness.on(Event::WorkerJoined { url: &url(port) });
        harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        harness.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
    }
    harness
}

fn url_of(harness: &Harness, placement: Placement) -> String {
    harness.brain.fleet().worker(placement.worker).unwrap().url.clone()
}

/// What a router believes all routers have promised to each worker.
fn beliefs(harness: &Harness) -> BTreeMap<u64, PromisedWork> {
    harness.brain.fleet().workers().map(|it| (it.key, it.promised_by_all().work)).collect()
}

#[test]
fn a_prompt_placed_by_one_router_is_found_by_another() {
    let delay = Duration::from_millis(20);
    let harnesses = [[1, 2, 3, 4], [4, 2, 1, 3]].map(|it| in_order(&it, sharing(Name::LeastDelay))).into();
    let mut cluster = Cluster::of(harnesses, delay);
    for text in 0..20 {
        let (long, longer) = (prompt(text, 100), prompt(text, 140));
        let one = placement(&cluster.harnesses[0].on(Event::Arrived(chat(2 * text, &long))));
        cluster.after(delay);
        cluster.after(delay);
        cluster.harnesses[0].begin(2 * text);
        cluster.harnesses[0].on(Event::Left { request: RequestId(2 * text) });
        cluster.after(delay);
        cluster.after(delay);
        let other = placement(&cluster.harnesses[1].on(Event::Arrived(chat(2 * text + 1, &longer))));
        assert_eq!(url_of(&cluster.harnesses[0], one), url_of(&cluster.harnesses[1], other), "{text}");
        assert_eq!(other.held, Some(Tokens(1_600)));
        cluster.harnesses[1].on(Event::Left { request: RequestId(2 * text + 1) });
    }
}

#[test]
fn three_routers_spread_load_as_one_would() {
    let delay = Duration::from_millis(20);
    for strategy in [Name::LeastRequest, Name::LeastWork, Name::LeastDelay] {
        let mut cluster = Cluster::of((0..3).map(|_| Harness::with(4, sharing(strategy))).collect(), delay);
        for request in 0..120 {
            let router = request as usize % 3;
            cluster.harnesses[router].arrive(request, Some("llama")).unwrap();
            cluster.after(delay);
            cluster.after(delay);
        }
        let all = beliefs(&cluster.harnesses[0]);
        assert!(all.values().all(|it| it.requests == 30), "{strategy}: {all:?}");
    }
}

proptest! {
    /// After any events at three routers and a full exchange, each router believes the sum of what all have promised.
    /// When all requests have ended, that is zero.
    #[test]
    fn routers_agree_on_promises_and_they_return_to_zero(
        script in prop::collection::vec((0u64..30, 0usize..3, 0u8..9, any::<prop::sample::Index>()), 0..200),
        delay in 0u64..100,
    ) {
        let delay = Duration::from_millis(delay);
        let harnesses = (0..3).map(|_| Harness::with(3, sharing(Name::LeastRequest))).collect();
        let mut cluster = Cluster::of(harnesses, delay);
        for (request, router, step, choice) in script {
            let harness = &mut cluster.harnesses[router];
            let id = RequestId(request);
            match step {
                0..=3 if !harness.brain.pending.contains_key(&request) => {
                    harness.on(Event::Arrived(arrival(request, Some("llama"))));
                }
                4 => drop(harness.begin(request)),
                5 => drop(harness.on(Event::Finished { request: id, counted: None, pieces: 1 })),
                6 => drop(harness.on(Event::Left { request: id })),
                _ => drop(harness.fail_attempt(request, Failure::ALL[choice.index(Failure::ALL.len())])),
            }
            cluster.after(Duration::from_millis(10));
        }
        cluster.after(delay);
        cluster.after(delay);
        let mut really: BTreeMap<u64, PromisedWork> = BTreeMap::new();
        for worker in cluster.harnesses.iter().flat_map(|it| it.brain.fleet().workers()) {
            let sum = really.entry(worker.key).or_default();
            *sum = sum.plus(&worker.promised.work);
        }
        for harness in &cluster.harnesses {
            prop_assert_eq!(&beliefs(harness), &really);
        }
        for request in 0..30 {
            cluster.harnesses.iter_mut().for_each(|it| drop(it.on(Event::Left { request: RequestId(request) })));
        }
        cluster.after(delay);
        cluster.after(delay);
        for harness in &cluster.harnesses {
            prop_assert_eq!(harness.promised(), [PromisedWork::default(); 3]);
            let elsewhere: Vec<_> = harness.brain.fleet().workers().map(|it| it.promised_by_others.work).collect();
            prop_assert_eq!(elsewhere, [PromisedWork::default(); 3]);
        }
    }

    /// Disconnected routers with the same workers, in any order, place a new prompt at the same worker.
    #[test]
    fn disconnected_routers_agree_where_a_new_prompt_goes(
        order in Just((0..8u32).collect::<Vec<_>>()).prop_shuffle(),
        seeds in any::<(u64, u64)>(),
        texts in prop::collection::vec((any::<u32>(), 1u64..60), 1..20),
    ) {
        let strategies = [Name::LeastDelay, Name::CacheAware, Name::DynamoCost, Name::Weighted, Name::StickyUntilSaturated, Name::Preble, Name::Lmetric, Name::Dualmap];
        for strategy in strategies {
            let settings = |seed| BrainSettings { seed, ..sharing(strategy) };
            let mut one = in_order(&[0, 1, 2, 3, 4, 5, 6, 7], settings(seeds.0));
            let mut other = in_order(&order, settings(seeds.1));
            for (request, &(text, blocks)) in texts.iter().enumerate() {
                let text = prompt(u64::from(text), blocks);
                let request = request as u64;
                let arrival = Arrival { head: Some(text.chain[0].0), ..chat(request, &text) };
                let go = |harness: &mut Harness| {
                    let placement = placement(&harness.on(Event::Arrived(arrival)));
                    harness.on(Event::Left { request: RequestId(request) });
                    url_of(harness, placement)
                };
                let there = (go(&mut one), go(&mut other));
                prop_assert_eq!(&there.0, &there.1, "{} of {} blocks", strategy, blocks);
            }
        }
    }
}

/// Two overloaded routers share one worker, and the second starts when the first has filled it. Requests take between 0.5
/// and 1.5 s, and updates 40 ms.
#[test]
fn a_router_that_joins_at_a_full_worker_gets_half_of_it() {
    const STEP: Duration = Duration::from_millis(20);
    let mut harnesses: Vec<Harness> =
        (0..2).map(|_| Harness::with_queue(1, sharing(Name::RoundRobin))).collect();
    harnesses.iter_mut().for_each(|it| it.come_and_go(ClassId(0)));
    let mut cluster = Cluster::of(harnesses, Duration::from_millis(40));
    let most = cluster.harnesses[0].brain.limits(WorkerId(0)).unwrap().sequences;
    let seats = |harness: &Harness| harness.promised()[0].requests;
    let (mut next, mut seen) = (0, Vec::new());
    for step in 0..750 {
        for router in 0..2 {
            let harness = &mut cluster.harnesses[router];
            // The second router starts after five seconds.
            while (router == 0 || step > 250) && harness.brain.parts.scheduler.waiting() < 40 {
                next += 1;
                let small = Arrival { size: Size::Tokens(1), ..arrival(next, Some("llama")) };
                harness.on(Event::Arrived(small));
            }
            let is_done = |it: &(u64, &PendingRequest)| {
                let span = Duration::from_millis(500 + maitre_base::hash::mix(it.0) % 1_000);
                it.1.attempt().is_some_and(|it| harness.now.since(it.placed_at) >= span)
            };
            let mut done: Vec<u64> = harness
                .brain
                .pending
                .iter()
                .map(|it| (*it.0, it.1.as_ref()))
                .filter(is_done)
                .map(|it| it.0)
                .collect();
            done.sort_unstable();
            for request in done {
                harness.on(Event::Left { request: RequestId(request) });
            }
            harness.on(Event::Tick);
        }
        cluster.after(STEP);
        seen.push((seats(&cluster.harnesses[0]), seats(&cluster.harnesses[1])));
    }
    assert_eq!(seen[249], (most, 0));
    // It took its share at once, and from the tenth second on the first router has made room for it.
    let half = most * 9 / 20..=most * 11 / 20;
    assert!(seen[500..].iter().all(|it| half.contains(&it.0) && half.contains(&it.1)), "of {most}: {seen:?}");
}

#[test]
fn new_prompts_spread_over_all_workers_without_dice() {
    let mut harness = in_order(&[0, 1, 2, 3], sharing(Name::LeastDelay));
    let mut seen = [0u32; 4];
    for text in 0..400 {
        let prompt = prompt(text, 20);
        let placement = placement(&harness.on(Event::Arrived(chat(text, &prompt))));
        harness.on(Event::Left { request: RequestId(text) });
        seen[placement.worker.index()] += 1;
    }
    assert!(seen.iter().all(|it| (60..140).contains(it)), "{seen:?}");
}

#[test]
fn prompts_that_share_sixteen_blocks_go_to_the_same_worker() {
    let mut harness = in_order(&[0, 1, 2, 3], sharing(Name::StickyUntilSaturated));
    let mut go = |text: u64, after: u64| {
        let chain: Vec<PrefixHash> =
            prompt(text, 16).chain.iter().chain(&*prompt(after, 4).chain).copied().collect();
        let prompt = PromptChain { chain: chain.into(), units: 320, ..prompt(text, 20) };
        let placement = placement(&harness.on(Event::Arrived(chat(1, &prompt))));
        harness.on(Event::Left { request: RequestId(1) });
        placement.worker
    };
    for text in 0..20 {
        let there = go(text, 1_000);
        assert!((1_001..1_020).all(|after| go(text, after) == there));
    }
}
