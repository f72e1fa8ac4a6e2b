//! Routers that are wired together, and routers that are cut off from each other.

use super::*;
use proptest::strategy::{Just, Strategy as _};

/// What one router told, under way.
struct Letter {
    due: Instant,
    from: usize,
    outbox: Outbox,
}

/// Routers in front of one fleet.
pub(super) struct Cluster {
    pub(super) tables: Vec<Table>,
    pub(super) delay: Duration,
    letters: Vec<Letter>,
    /// What each last said it has promised.
    rows: Vec<BTreeMap<u64, PromisedWork>>,
}

impl Cluster {
    pub(super) fn of(tables: Vec<Table>, delay: Duration) -> Cluster {
        let rows = tables.iter().map(|_| BTreeMap::new()).collect();
        let mut cluster = Cluster { tables, delay, letters: Vec::new(), rows };
        let count = cluster.tables.len() as u32;
        for table in &mut cluster.tables {
            table.outbox();
            table.hear(PeerUpdate::Routers { live: count, known: count });
        }
        cluster
    }

    /// It is so much later: what is due arrives, and what there is to tell is sent.
    pub(super) fn after(&mut self, span: Duration) {
        for table in &mut self.tables {
            table.now = table.now + span;
        }
        self.exchange();
    }

    pub(super) fn exchange(&mut self) {
        let now = self.tables[0].now;
        for from in 0..self.tables.len() {
            if self.tables[from].brain.has_outbox() {
                let outbox = self.tables[from].outbox();
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
        for to in (0..self.tables.len()).filter(|it| it != from) {
            for &(worker, _) in &outbox.promised {
                let others = (0..self.rows.len()).filter(|&it| it != to);
                let loads = others.filter_map(|it| self.rows[it].get(&worker));
                let work = loads.fold(PromisedWork::default(), |sum, it| sum.plus(it));
                self.tables[to].hear(PeerUpdate::Promised { worker, work });
            }
            for (worker, prompt) in &outbox.placed {
                self.tables[to].hear(PeerUpdate::Placed { worker: *worker, prompt });
            }
            for &(model, session, worker) in &outbox.pinned {
                self.tables[to].hear(PeerUpdate::Pinned { model, session, worker });
            }
            for &(model, tenant, more) in &outbox.spent {
                self.tables[to].hear(PeerUpdate::Spent { model, tenant, more });
            }
            for &(worker, assessment) in &outbox.assessed {
                self.tables[to].hear(PeerUpdate::Assessed { worker, assessment });
            }
        }
    }
}

/// A router whose workers joined in this order.
fn in_order(order: &[u32], settings: Settings) -> Table {
    let mut table = Table::with(0, settings);
    for (number, &port) in order.iter().enumerate() {
        let worker = WorkerId(number as u32);
        table.on(Event::WorkerJoined { url: &url(port) });
        table.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        table.on(Event::ModelsReported { worker, cards: &[Card { name: "llama", parent: None }] });
    }
    table
}

fn url_of(table: &Table, placement: Placement) -> String {
    table.brain.fleet().worker(placement.worker).unwrap().url.clone()
}

/// What a router believes is promised to each worker, by all.
fn beliefs(table: &Table) -> BTreeMap<u64, PromisedWork> {
    table.brain.fleet().workers().map(|it| (it.key, it.promised_by_all().work)).collect()
}

#[test]
fn what_one_router_sent_somewhere_the_next_one_finds_there() {
    let delay = Duration::from_millis(20);
    let tables = [[1, 2, 3, 4], [4, 2, 1, 3]].map(|it| in_order(&it, sharing(Name::LeastDelay))).into();
    let mut cluster = Cluster::of(tables, delay);
    for text in 0..20 {
        let (long, longer) = (prompt(text, 100), prompt(text, 140));
        let one = placement(&cluster.tables[0].on(Event::Arrived(chat(2 * text, &long))));
        cluster.after(delay);
        cluster.after(delay);
        cluster.tables[0].begin(2 * text);
        cluster.tables[0].on(Event::Left { request: RequestId(2 * text) });
        cluster.after(delay);
        cluster.after(delay);
        let other = placement(&cluster.tables[1].on(Event::Arrived(chat(2 * text + 1, &longer))));
        assert_eq!(url_of(&cluster.tables[0], one), url_of(&cluster.tables[1], other), "{text}");
        assert_eq!(other.held, Some(Tokens(1_600)));
        cluster.tables[1].on(Event::Left { request: RequestId(2 * text + 1) });
    }
}

#[test]
fn three_routers_spread_what_comes_as_one_would() {
    let delay = Duration::from_millis(20);
    for strategy in [Name::LeastRequest, Name::LeastWork, Name::LeastDelay] {
        let mut cluster = Cluster::of((0..3).map(|_| Table::with(4, sharing(strategy))).collect(), delay);
        for request in 0..120 {
            let router = request as usize % 3;
            cluster.tables[router].arrive(request, Some("llama")).unwrap();
            cluster.after(delay);
            cluster.after(delay);
        }
        let all = beliefs(&cluster.tables[0]);
        assert!(all.values().all(|it| it.requests == 30), "{strategy}: {all:?}");
    }
}

proptest! {
    /// Whatever happens at three routers, once all is told each believes what is really promised, which is what each
    /// has promised itself, together; and when all requests have ended, that is nothing.
    #[test]
    fn all_believe_the_same_and_it_comes_to_zero(
        script in prop::collection::vec((0u64..30, 0usize..3, 0u8..9, any::<prop::sample::Index>()), 0..200),
        delay in 0u64..100,
    ) {
        let delay = Duration::from_millis(delay);
        let tables = (0..3).map(|_| Table::with(3, sharing(Name::LeastRequest))).collect();
        let mut cluster = Cluster::of(tables, delay);
        for (request, router, step, choice) in script {
            let table = &mut cluster.tables[router];
            let id = RequestId(request);
            match step {
                0..=3 if !table.brain.pending.contains_key(&request) => {
                    table.on(Event::Arrived(arrival(request, Some("llama"))));
                }
                4 => drop(table.begin(request)),
                5 => drop(table.on(Event::Finished { request: id, counted: None, pieces: 1 })),
                6 => drop(table.on(Event::Left { request: id })),
                _ => drop(table.break_down(request, Failure::ALL[choice.index(Failure::ALL.len())])),
            }
            cluster.after(Duration::from_millis(10));
        }
        cluster.after(delay);
        cluster.after(delay);
        let mut really: BTreeMap<u64, PromisedWork> = BTreeMap::new();
        for worker in cluster.tables.iter().flat_map(|it| it.brain.fleet().workers()) {
            let sum = really.entry(worker.key).or_default();
            *sum = sum.plus(&worker.promised.work);
        }
        for table in &cluster.tables {
            prop_assert_eq!(&beliefs(table), &really);
        }
        for request in 0..30 {
            cluster.tables.iter_mut().for_each(|it| drop(it.on(Event::Left { request: RequestId(request) })));
        }
        cluster.after(delay);
        cluster.after(delay);
        for table in &cluster.tables {
            prop_assert_eq!(table.promised(), [PromisedWork::default(); 3]);
            let elsewhere: Vec<_> = table.brain.fleet().workers().map(|it| it.promised_by_others.work).collect();
            prop_assert_eq!(elsewhere, [PromisedWork::default(); 3]);
        }
    }

    /// Routers that know the same workers, in whatever order they met them, and hear nothing of each other, send what is
    /// new to the same place.
    #[test]
    fn who_is_cut_off_agrees_where_a_new_prompt_goes(
        order in Just((0..8u32).collect::<Vec<_>>()).prop_shuffle(),
        seeds in any::<(u64, u64)>(),
        texts in prop::collection::vec((any::<u32>(), 1u64..60), 1..20),
    ) {
        let strategies = [Name::LeastDelay, Name::CacheAware, Name::DynamoCost, Name::Weighted, Name::StickyUntilSaturated, Name::Preble, Name::Lmetric, Name::Dualmap];
        for strategy in strategies {
            let settings = |seed| Settings { seed, ..sharing(strategy) };
            let mut one = in_order(&[0, 1, 2, 3, 4, 5, 6, 7], settings(seeds.0));
            let mut other = in_order(&order, settings(seeds.1));
            for (request, &(text, blocks)) in texts.iter().enumerate() {
                let text = prompt(u64::from(text), blocks);
                let request = request as u64;
                let arrival = Arrival { head: Some(text.chain[0].0), ..chat(request, &text) };
                let go = |table: &mut Table| {
                    let placement = placement(&table.on(Event::Arrived(arrival)));
                    table.on(Event::Left { request: RequestId(request) });
                    url_of(table, placement)
                };
                let there = (go(&mut one), go(&mut other));
                prop_assert_eq!(&there.0, &there.1, "{} of {} blocks", strategy, blocks);
            }
        }
    }
}

/// Two routers with more to do than one worker can take, one of which comes when the other has filled it. Requests take
/// half a second to one and a half, and are told after 40 ms.
#[test]
fn a_router_that_comes_late_to_a_full_worker_gets_half_of_it() {
    const STEP: Duration = Duration::from_millis(20);
    let tables = (0..2).map(|_| Table::with_line(1, sharing(Name::RoundRobin))).collect();
    let mut cluster = Cluster::of(tables, Duration::from_millis(40));
    let most = cluster.tables[0].brain.limits(WorkerId(0)).unwrap().sequences;
    let seats = |table: &Table| table.promised()[0].requests;
    let (mut next, mut seen) = (0, Vec::new());
    for step in 0..750 {
        for router in 0..2 {
            let table = &mut cluster.tables[router];
            // The second one comes after five seconds.
            while (router == 0 || step > 250) && table.brain.parts.scheduler.waiting() < 40 {
                next += 1;
                let small = Arrival { size: Size::Tokens(1), ..arrival(next, Some("llama")) };
                table.on(Event::Arrived(small));
            }
            let is_done = |it: &(&u64, &PendingRequest)| {
                let span = Duration::from_millis(500 + maitre_base::hash::mix(*it.0) % 1_000);
                it.1.attempt().is_some_and(|it| table.now.since(it.placed_at) >= span)
            };
            let mut done: Vec<u64> = table.brain.pending.iter().filter(is_done).map(|it| *it.0).collect();
            done.sort_unstable();
            for request in done {
                table.on(Event::Left { request: RequestId(request) });
            }
            table.on(Event::Tick);
        }
        cluster.after(STEP);
        seen.push((seats(&cluster.tables[0]), seats(&cluster.tables[1])));
    }
    assert_eq!(seen[249], (most, 0));
    // Then it took its part at once, and since the tenth second the first one has made room for it.
    let half = most * 9 / 20..=most * 11 / 20;
    assert!(seen[500..].iter().all(|it| half.contains(&it.0) && half.contains(&it.1)), "of {most}: {seen:?}");
}

#[test]
fn new_prompts_spread_over_all_workers_though_no_dice_are_thrown() {
    let mut table = in_order(&[0, 1, 2, 3], sharing(Name::LeastDelay));
    let mut seen = [0u32; 4];
    for text in 0..400 {
        let prompt = prompt(text, 20);
        let placement = placement(&table.on(Event::Arrived(chat(text, &prompt))));
        table.on(Event::Left { request: RequestId(text) });
        seen[placement.worker.index()] += 1;
    }
    assert!(seen.iter().all(|it| (60..140).contains(it)), "{seen:?}");
}

#[test]
fn those_who_begin_alike_for_sixteen_blocks_belong_together() {
    let mut table = in_order(&[0, 1, 2, 3], sharing(Name::StickyUntilSaturated));
    let mut go = |text: u64, after: u64| {
        let chain: Vec<PrefixHash> =
            prompt(text, 16).chain.iter().chain(&*prompt(after, 4).chain).copied().collect();
        let prompt = Prompt { chain: chain.into(), units: 320, ..prompt(text, 20) };
        let placement = placement(&table.on(Event::Arrived(chat(1, &prompt))));
        table.on(Event::Left { request: RequestId(1) });
        placement.worker
    };
    for text in 0..20 {
        let there = go(text, 1_000);
        assert!((1_001..1_020).all(|after| go(text, after) == there));
    }
}
