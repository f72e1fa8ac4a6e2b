//! What the brain believes of caches and how it seats by that: what was routed, what engines report, what
//! answers count, and what each of them must not do.
//!
//! Every script runs with both strategies that go by caches and with several dice, for a prompt that lands
//! on its holder by luck proves nothing.

use super::*;
use maitre_base::Tier;
use maitre_index::feed::Trust;
use maitre_index::prefix;
use maitre_policy::Why;

mod adapter;
mod pace;
mod rules;

/// What the usual rates expect of a prompt of 1,600 tokens, so that answers teach nothing by chance.
const FIRST_TOKEN: Duration = Duration::from_millis(100);

impl Table {
    /// A fleet that goes by caches.
    fn cached(count: u32, strategy: Name, seed: u64) -> Table {
        Table::with(count, Settings { strategy, seed, ..Settings::default() })
    }

    /// The prompt as the proxy would name it for `llama`.
    fn prompt(&self, tokens: &[u32], salt: Option<&str>) -> Prompt {
        let plan = self.brain.plan(Some("llama")).unwrap();
        let root =
            Root::new(Unit::Tokens, plan.model.as_deref().unwrap_or_default(), plan.adapter.as_deref(), salt);
        named(root, tokens, plan.block)
    }

    fn placement(&mut self, arrival: Arrival<'_>) -> Placement {
        placement(&self.on(Event::Arrived(arrival)))
    }

    fn ask(&mut self, request: u64, tokens: &[u32]) -> Placement {
        let prompt = self.prompt(tokens, None);
        self.placement(of_prompt(request, &prompt))
    }

    /// The first token comes, and the rest of the answer after it.
    fn answer(&mut self, request: u64, counted: Option<Counted>) {
        self.now = self.now + FIRST_TOKEN;
        self.begin(request);
        self.now = self.now + Duration::from_millis(10);
        self.on(Event::Finished { request: RequestId(request), counted, pieces: 2 });
    }

    /// The prompt is asked and answered; where.
    fn serve(&mut self, request: u64, tokens: &[u32]) -> Placement {
        let placement = self.ask(request, tokens);
        self.answer(request, None);
        placement
    }

    /// The worker's engine stores a prompt. Blocks are named by where they end and by what they end with.
    fn store(&mut self, worker: u32, tokens: &[u32], how: Store<'_>) {
        let names = names(tokens, how.block);
        let blocks = StoredBlocks {
            names: &names,
            parent: None,
            tokens,
            block_tokens: how.block,
            adapter: how.adapter,
            salt: how.salt,
            extras: &[],
            tier: how.tier,
        };
        self.on(Event::CacheChanged { worker: WorkerId(worker), event: KvEvent::Stored(blocks) });
    }

    fn remove(&mut self, worker: u32, names: &[u64]) {
        self.on(Event::CacheChanged {
            worker: WorkerId(worker),
            event: KvEvent::Removed { names, tier: Tier::Gpu },
        });
    }

    fn say_block_size(&mut self, worker: u32, tokens: u64) {
        let load = maitre_base::EngineLoad { block_size: Some(tokens), ..maitre_base::EngineLoad::default() };
        self.on(Event::LoadReported { worker: WorkerId(worker), load });
    }

    /// Blocks that are believed to be anywhere because they were routed there.
    fn predicted(&self) -> u32 {
        let numbers = self.brain.fleet().workers().filter_map(|it| self.brain.cache().numbers(it.id));
        numbers.map(|it| it.predicted_blocks).sum()
    }
}

#[derive(Clone, Copy)]
struct Store<'a> {
    block: u32,
    adapter: Option<&'a str>,
    salt: Option<&'a str>,
    tier: Tier,
}

/// As most engines do.
const PLAIN: Store<'_> = Store { block: 16, adapter: None, salt: None, tier: Tier::Gpu };

fn named(root: Root, units: &[u32], block: u32) -> Prompt {
    let mut chain = Vec::new();
    prefix::chain(root, units, block as usize, &mut chain);
    Prompt { unit: Unit::Tokens, units: units.len() as u64, block, chain: chain.into() }
}

fn of_prompt(request: u64, prompt: &Prompt) -> Arrival<'_> {
    let size = Size::Tokens(prompt.units);
    Arrival { size, prompt: Some(prompt), ..arrival(request, Some("llama")) }
}

/// So many tokens, of a text that begins as no other does.
fn text(which: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|it| which * 1_000_003 + it).collect()
}

fn names(tokens: &[u32], block: u32) -> Vec<u64> {
    let blocks = tokens.chunks_exact(block as usize).enumerate();
    blocks.map(|(at, it)| (at as u64) << 32 | u64::from(it[it.len() - 1])).collect()
}

/// Runs a script over four workers, with both strategies and several dice.
#[track_caller]
fn check(script: impl Fn(&mut Table)) {
    for strategy in [Name::LeastDelay, Name::CacheAware] {
        for seed in 0..6 {
            script(&mut Table::cached(4, strategy, seed));
        }
    }
}

/// Where a prompt goes that one worker holds in part.
#[track_caller]
fn check_seat(placement: Placement, worker: u32, held: u64) {
    assert_eq!((placement.worker.0, placement.held), (worker, Some(Tokens(held))), "{placement:?}");
    assert_eq!(placement.why, Why::Cached);
}

#[track_caller]
fn check_held_by_nobody(placement: Placement) {
    assert_eq!(placement.held, Some(Tokens(0)), "{placement:?}");
    assert!([Why::LeastDelay, Why::MostRoom, Why::Only].contains(&placement.why), "{placement:?}");
}

// What we routed.

#[test]
fn a_prompt_follows_its_predicted_holder() {
    check(|table| {
        let home = table.serve(1, &text(1, 1_600));
        check_held_by_nobody(home);
        check_seat(table.serve(2, &text(1, 2_000)), home.worker.0, 1_600);
        check_seat(table.serve(3, &text(1, 2_400)), home.worker.0, 2_000);
        check_held_by_nobody(table.serve(4, &text(2, 1_600)));
    });
}

#[test]
fn an_attempt_that_failed_before_its_first_token_leaves_no_belief() {
    for failure in Failure::ALL {
        check(|table| {
            let first = table.ask(1, &text(1, 1_600));
            let effects = table.break_down(1, failure);
            let second = effects.iter().find_map(|it| match it {
                Effect::Place(placement) => Some(*placement),
                _ => None,
            });
            // What was tried elsewhere is believed to be there, and only there.
            assert_eq!(table.predicted(), second.map_or(0, |_| 100), "{failure:?}");
            if let Some(second) = second {
                check_held_by_nobody(second);
                table.answer(1, None);
                assert_ne!(first.worker, second.worker);
                check_seat(table.ask(2, &text(1, 2_000)), second.worker.0, 1_600);
            }
        });
    }
}

#[test]
fn a_client_that_left_before_the_first_token_leaves_no_belief() {
    check(|table| {
        table.ask(1, &text(1, 1_600));
        assert_eq!(table.predicted(), 100);
        table.on(Event::Left { request: RequestId(1) });
        assert_eq!(table.predicted(), 0);
        check_held_by_nobody(table.ask(2, &text(1, 1_600)));
    });
}

#[test]
fn what_was_prefilled_stays_believed_however_the_answer_ends() {
    for ending in [Event::Left { request: RequestId(1) }, Event::BrokeOff { request: RequestId(1) }] {
        check(|table| {
            table.ask(1, &text(1, 1_600));
            table.now = table.now + FIRST_TOKEN;
            table.begin(1);
            table.on(ending);
            assert_eq!(table.predicted(), 100);
        });
    }
}

#[test]
fn a_failed_request_does_not_take_along_what_was_there_before_it() {
    check(|table| {
        let home = table.serve(1, &text(1, 1_600));
        check_seat(table.ask(2, &text(1, 2_000)), home.worker.0, 1_600);
        table.on(Event::Left { request: RequestId(2) });
        check_seat(table.ask(3, &text(1, 2_000)), home.worker.0, 1_600);
    });
}

/// Of two with one prompt, the first to fail takes nothing along that the other may yet compute. Wrong, and
/// known: when the other fails as well, the belief stays, for the index remembers only the first as the one
/// that was to compute it. It goes with the cache's turn, or when the worker refuses.
#[test]
fn a_belief_that_two_share_outlives_both_of_them() {
    check(|table| {
        for worker in 1..4 {
            table.on(Event::WorkerDrained { worker: WorkerId(worker), draining: true });
        }
        table.ask(1, &text(1, 1_600));
        table.ask(2, &text(1, 1_600));
        table.on(Event::Left { request: RequestId(1) });
        assert_eq!(table.predicted(), 100);
        table.on(Event::Left { request: RequestId(2) });
        assert_eq!(table.predicted(), 100, "should be 0: nobody has computed it");
    });
}

// What engines report.

#[test]
fn a_reported_block_makes_its_worker_the_holder_until_it_is_removed() {
    check(|table| {
        let tokens = text(1, 1_600);
        table.store(2, &tokens, PLAIN);
        check_seat(table.ask(1, &text(1, 2_000)), 2, 1_600);
        table.on(Event::Left { request: RequestId(1) });
        // A hole ends what can be used, though much lies behind it.
        table.remove(2, &names(&tokens, 16)[80..81]);
        check_seat(table.ask(2, &text(1, 2_000)), 2, 1_280);
        table.on(Event::Left { request: RequestId(2) });
        table.remove(2, &names(&tokens, 16)[..1]);
        check_held_by_nobody(table.ask(3, &text(1, 2_000)));
    });
}

#[test]
fn a_report_overrules_what_was_routed() {
    check(|table| {
        let tokens = text(1, 1_600);
        let home = table.serve(1, &tokens).worker.0;
        table.store(home, &tokens, PLAIN);
        table.remove(home, &names(&tokens, 16));
        assert_eq!(table.predicted(), 0);
        check_held_by_nobody(table.ask(2, &tokens));
    });
}

#[test]
fn of_two_copies_one_may_go() {
    check(|table| {
        let tokens = text(1, 1_600);
        table.store(3, &tokens, PLAIN);
        table.store(3, &tokens, PLAIN);
        table.remove(3, &names(&tokens, 16));
        check_seat(table.ask(1, &text(1, 2_000)), 3, 1_600);
    });
}

#[test]
fn a_cleared_cache_and_a_refused_connection_end_everything_known() {
    let worker = WorkerId(1);
    let refused = Event::Probed { worker, evidence: Evidence::Refused };
    for end in [Event::CacheChanged { worker, event: KvEvent::Cleared }, refused] {
        check(|table| {
            table.store(1, &text(1, 1_600), PLAIN);
            assert_eq!(table.brain.cache().numbers(worker).unwrap().reported_blocks, 100);
            check_seat(table.ask(1, &text(1, 2_000)), 1, 1_600);
            table.answer(1, None);
            table.on(end);
            table.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
            let numbers = table.brain.cache().numbers(worker).unwrap();
            assert_eq!((numbers.reported_blocks, numbers.predicted_blocks), (0, 0));
            check_held_by_nobody(table.ask(2, &text(1, 2_000)));
        });
    }
}

#[test]
fn slower_memory_counts_after_fast_memory() {
    for seed in 0..6 {
        let mut table = Table::cached(4, Name::LeastDelay, seed);
        let tokens = text(1, 1_600);
        table.store(0, &tokens[..320], PLAIN);
        table.store(1, &tokens[..320], PLAIN);
        table.store(1, &tokens, PLAIN);
        // Offloaded: the engine says so by name alone, and lets go of its own copy.
        let blocks = StoredBlocks {
            names: &names(&tokens, 16),
            parent: None,
            tokens: &[],
            block_tokens: 0,
            adapter: None,
            salt: None,
            extras: &[],
            tier: Tier::Cpu,
        };
        table.on(Event::CacheChanged { worker: WorkerId(1), event: KvEvent::Stored(blocks) });
        table.remove(1, &names(&tokens, 16)[20..]);
        check_seat(table.ask(1, &tokens), 1, 320);
    }
}

#[test]
fn what_fresh_reports_do_not_confirm_fades() {
    check(|table| {
        for worker in 0..4 {
            table.on(Event::TrustChanged { worker: WorkerId(worker), trust: Trust::Fresh });
        }
        table.serve(1, &text(1, 1_600));
        table.now = table.now + maitre_index::FADE;
        table.on(Event::Tick);
        check_held_by_nobody(table.ask(2, &text(1, 2_000)));
    });
}

#[test]
fn what_nobody_could_report_does_not_fade() {
    check(|table| {
        let home = table.serve(1, &text(1, 1_600)).worker.0;
        table.now = table.now + maitre_index::FADE * 100;
        table.on(Event::Tick);
        check_seat(table.ask(2, &text(1, 2_000)), home, 1_600);
    });
}

// What answers count.

/// Two prompts are served, the second twice, and then its answer says the engine found nothing of it: so it
/// evicted that, and all that was older. Returns what is still believed of both.
fn after_a_miss(strategy: Name, trust: Trust) -> [u64; 2] {
    let mut table = Table::cached(1, strategy, 0);
    table.on(Event::TrustChanged { worker: WorkerId(0), trust });
    table.serve(1, &text(1, 1_600));
    table.serve(2, &text(2, 1_600));
    table.ask(3, &text(2, 2_000));
    table.answer(3, Some(Counted { prompt: Some(2_000), cached: Some(0), answer: Some(2) }));
    [1, 2].map(|which| {
        let held = table.ask(10 + u64::from(which), &text(which, 3_000)).held;
        held.unwrap().0
    })
}

#[test]
fn where_no_events_exist_a_miss_mends_the_belief() {
    for strategy in [Name::LeastDelay, Name::CacheAware] {
        for trust in [Trust::None, Trust::Cold, Trust::Suspect] {
            // The engine has just computed the second prompt again.
            assert_eq!(after_a_miss(strategy, trust), [0, 2_000], "{trust:?}");
        }
    }
}

#[test]
fn where_reports_are_fresh_a_count_is_ignored() {
    for strategy in [Name::LeastDelay, Name::CacheAware] {
        assert_eq!(after_a_miss(strategy, Trust::Fresh), [1_600, 2_000]);
    }
}

/// A prompt known by its bytes, half prose and half code: the held half is a third of its tokens.
#[test]
fn bytes_that_are_dense_in_one_place_are_no_miss() {
    let mut table = Table::cached(1, Name::LeastDelay, 0);
    let root = Root::new(Unit::Words, "llama", None, None);
    let mut ask = |request, which, words: u32, counted| {
        let prompt = Prompt { unit: Unit::Words, ..named(root, &text(which, words), 16) };
        let placement = table.placement(of_prompt(request, &prompt));
        table.answer(request, counted);
        placement.held.unwrap()
    };
    ask(1, 1, 1_600, None);
    ask(2, 2, 1_600, None);
    ask(3, 2, 3_200, Some(Counted { prompt: Some(3_000), cached: Some(1_000), answer: Some(2) }));
    assert_eq!(ask(4, 1, 3_200, None), Tokens(1_600), "an older prompt is still believed");
    // Nothing at all is a miss, in whatever one counts.
    ask(5, 2, 4_800, None);
    ask(6, 2, 6_400, Some(Counted { prompt: Some(6_000), cached: Some(0), answer: Some(2) }));
    assert_eq!(ask(7, 1, 4_800, None), Tokens(0));
}

// How much that is.

#[test]
fn words_hold_the_same_part_of_the_estimated_tokens() {
    check(|table| {
        let root = Root::new(Unit::Words, "llama", None, None);
        let prompt = Prompt { unit: Unit::Words, ..named(root, &text(1, 1_000), 16) };
        // Four bytes a token before any answer was counted: twice as many tokens as words.
        let arrival = |request| Arrival { size: Size::Bytes(8_000), ..of_prompt(request, &prompt) };
        let home = table.placement(arrival(1)).worker.0;
        table.answer(1, None);
        check_seat(table.placement(arrival(2)), home, 62 * 16 * 2);
        // The same numbers as tokens are another prompt.
        check_held_by_nobody(table.ask(3, &text(1, 1_000)));
    });
}

#[test]
fn a_prompt_cached_to_its_end_is_computed_again_from_its_last_block_on() {
    check(|table| {
        let home = table.serve(1, &text(1, 1_600)).worker.0;
        for (request, (tokens, held)) in
            [(1_600, 1_584), (1_601, 1_600), (1_599, 1_584), (1_584, 1_568)].into_iter().enumerate()
        {
            let request = 10 + request as u64;
            check_seat(table.ask(request, &text(1, tokens)), home, held);
            table.on(Event::Left { request: RequestId(request) });
        }
        check_held_by_nobody(table.ask(2, &text(1, 16)));
    });
}

#[test]
fn the_promise_is_what_is_left_to_compute() {
    check(|table| {
        let home = table.serve(1, &text(1, 1_600)).worker;
        table.ask(2, &text(1, 2_000));
        let promised = table.brain.fleet().worker(home).unwrap().promised.work;
        assert_eq!((promised.prefill, promised.context), (Tokens(400), Tokens(500)));
    });
}

#[test]
fn nobody_looked_is_not_nothing_held() {
    let mut table = Table::cached(2, Name::LeastDelay, 0);
    assert_eq!(placement(&table.on(Event::Arrived(arrival(1, Some("llama"))))).held, None);
    assert_eq!(table.ask(2, &text(1, 1_600)).held, Some(Tokens(0)));
    assert_eq!(Table::of(1).brain.plan(Some("llama")), None, "round robin goes by no cache");
}

#[test]
fn a_record_wants_every_prompt_and_asks_no_engine_for_it() {
    let settings = Settings { strategy: Name::RoundRobin, reads_all: true, ..Settings::default() };
    let mut table = Table::with(1, settings);
    table.on(Event::TrustChanged { worker: WorkerId(0), trust: Trust::Fresh });
    let plan = table.brain.plan(Some("llama")).unwrap();
    assert_eq!((plan.reader, plan.reported, plan.block), (Reader::Record, false, 16));
}

// How it is cut.

#[test]
fn one_chain_suits_workers_with_blocks_of_different_sizes() {
    check(|table| {
        table.say_block_size(0, 16);
        table.say_block_size(1, 128);
        assert_eq!(table.brain.plan(Some("llama")).unwrap().block, 16);
        table.store(0, &text(1, 2_400), PLAIN);
        table.store(1, &text(1, 3_840), Store { block: 128, ..PLAIN });
        check_seat(table.ask(1, &text(1, 5_000)), 1, 3_840);
        table.on(Event::Left { request: RequestId(1) });
        table.store(0, &text(1, 4_880), PLAIN);
        check_seat(table.ask(2, &text(1, 5_000)), 0, 4_880);
        table.on(Event::Left { request: RequestId(2) });
        table.on(Event::WorkerDrained { worker: WorkerId(0), draining: true });
        // Cached to its end, and computed again from the last block on: here one of 128.
        check_seat(table.ask(3, &text(1, 3_840)), 1, 3_712);
    });
}

#[test]
fn what_was_routed_is_cut_as_the_worker_cuts() {
    for strategy in [Name::LeastDelay, Name::CacheAware] {
        let mut table = Table::cached(1, strategy, 0);
        table.say_block_size(0, 128);
        table.serve(1, &text(1, 1_600));
        assert_eq!(table.predicted(), 12);
        assert_eq!(table.ask(2, &text(1, 2_000)).held, Some(Tokens(1_536)));
    }
}

#[test]
fn the_chain_is_cut_at_the_greatest_common_divisor() {
    for (sizes, expected) in [
        (&[][..], 16),
        (&[128, 128][..], 128),
        (&[16, 128][..], 16),
        (&[48, 128][..], 16),
        (&[24, 128][..], 8),
        // Pages smaller than our least block are counted together.
        (&[1, 64][..], 16),
    ] {
        let mut table = Table::cached(sizes.len().max(1) as u32, Name::LeastDelay, 0);
        for (worker, &size) in sizes.iter().enumerate() {
            table.say_block_size(worker as u32, size);
        }
        assert_eq!(table.brain.plan(Some("llama")).unwrap().block, expected, "{sizes:?}");
    }
}

#[test]
fn events_know_the_size_of_a_block_better_than_the_metrics() {
    let mut table = Table::cached(1, Name::LeastDelay, 0);
    table.say_block_size(0, 16);
    table.store(0, &text(1, 256), Store { block: 64, ..PLAIN });
    table.say_block_size(0, 16);
    assert_eq!(table.brain.plan(Some("llama")).unwrap().block, 64);
    assert_eq!(table.ask(1, &text(1, 300)).held, Some(Tokens(256)));
}

// What keeps caches apart.

#[test]
fn a_salt_keeps_caches_apart() {
    check(|table| {
        table.store(2, &text(1, 1_600), Store { salt: Some("tenant-7"), ..PLAIN });
        let mut held = |request, salt| {
            let prompt = table.prompt(&text(1, 2_000), salt);
            let placement = table.placement(of_prompt(request, &prompt));
            table.on(Event::Left { request: RequestId(request) });
            placement
        };
        check_held_by_nobody(held(1, None));
        check_held_by_nobody(held(2, Some("tenant-8")));
        check_seat(held(3, Some("tenant-7")), 2, 1_600);
    });
}

#[test]
fn a_worker_that_lists_no_models_is_known_by_its_reports_too() {
    let mut table = Table::cached(0, Name::LeastDelay, 0);
    table.on(Event::WorkerJoined { url: "http://127.0.0.1:1" });
    table.on(Event::Probed { worker: WorkerId(0), evidence: Evidence::ProbeAnswered });
    let plan = table.brain.plan(Some("whatever")).unwrap();
    assert_eq!(plan.model, None);
    let prompt = named(Root::new(Unit::Tokens, "", None, None), &text(1, 2_000), plan.block);
    let arrival = |request| Arrival { model: Some("whatever"), ..of_prompt(request, &prompt) };
    check_held_by_nobody(table.placement(arrival(1)));
    table.on(Event::Left { request: RequestId(1) });
    table.store(0, &text(1, 1_600), PLAIN);
    assert_eq!(table.placement(arrival(2)).held, Some(Tokens(1_600)));
}

// What is unknown.

#[test]
fn a_fleet_that_reports_nothing_seats_everybody() {
    check(|table| {
        for request in 0..200 {
            table.ask(request, &text(request as u32, 1_600));
        }
        let requests: Vec<u32> = table.promised().iter().map(|it| it.requests).collect();
        assert_eq!(requests.iter().sum::<u32>(), 200);
        assert!(requests.iter().all(|&it| it > 20), "{requests:?}");
    });
}

#[test]
fn a_full_worker_is_avoided_and_a_full_fleet_still_seats() {
    let full = maitre_base::EngineLoad {
        running: Some(200),
        waiting: Some(300),
        kv_usage: Some(1.0),
        blocks: Some(1_000),
        block_size: Some(16),
        ..maitre_base::EngineLoad::default()
    };
    for seed in 0..6 {
        let mut table = Table::cached(2, Name::LeastDelay, seed);
        let placement = |table: &mut Table| {
            let placement = table.ask(seed, &text(1, 1_600));
            table.on(Event::Left { request: RequestId(seed) });
            placement.worker.0
        };
        let say = |table: &mut Table, worker| {
            // Strangers are believed once two reports agree.
            for _ in 0..2 {
                table.on(Event::LoadReported { worker: WorkerId(worker), load: full });
            }
        };
        say(&mut table, 0);
        assert_eq!(placement(&mut table), 1);
        say(&mut table, 1);
        placement(&mut table);
        table.now = table.now + maitre_fleet::load::STALE_AFTER + Duration::from_millis(1);
        say(&mut table, 1);
        assert_eq!(placement(&mut table), 0, "what was said 3.5 s ago says nothing");
    }
}

#[test]
fn a_no_teaches_nothing_but_that_somebody_is_there() {
    check(|table| {
        let placement = table.ask(1, &text(1, 1_600));
        let before = table.brain.fleet().worker(placement.worker).unwrap().rates;
        table.on(Event::Declined { request: RequestId(1) });
        assert_eq!(table.brain.fleet().worker(placement.worker).unwrap().rates, before);
        assert_eq!(table.brain.open(), 0);
        check_held_by_nobody(table.ask(2, &text(1, 1_600)));
    });
}

/// A health check that answers 503 once comes from the same process, and its cache is as it was. Nobody would
/// tell us of it a second time.
#[test]
fn a_worker_that_says_it_is_unfit_while_it_publishes_keeps_what_it_reported() {
    for trust in [Trust::Fresh, Trust::Cold] {
        let mut table = Table::cached(2, Name::LeastDelay, 0);
        let worker = WorkerId(1);
        table.on(Event::TrustChanged { worker, trust });
        table.store(1, &text(1, 1_600), PLAIN);
        table.on(Event::Probed { worker, evidence: Evidence::Refused });
        table.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        assert_eq!(table.brain.cache().numbers(worker).unwrap().reported_blocks, 100, "{trust:?}");
    }
}

/// What was reported is the feed's to clear, whose account of it would be wrong otherwise.
#[test]
fn a_worker_where_nobody_listens_any_more_loses_what_we_presumed() {
    for (trust, reported) in [(Trust::None, 0), (Trust::Suspect, 100)] {
        let mut table = Table::cached(1, Name::LeastDelay, 0);
        let worker = WorkerId(0);
        table.store(0, &text(1, 1_600), PLAIN);
        table.serve(1, &text(2, 1_600));
        assert_eq!(table.predicted(), 100);
        table.on(Event::TrustChanged { worker, trust });
        table.on(Event::Probed { worker, evidence: Evidence::Refused });
        assert_eq!(table.predicted(), 0, "{trust:?}");
        assert_eq!(table.brain.cache().numbers(worker).unwrap().reported_blocks, reported, "{trust:?}");
    }
}

/// What was read as bytes no report can confirm: it must not be given up for want of one.
#[test]
fn what_was_read_as_words_is_believed_while_reports_are_fresh() {
    for trust in [Trust::None, Trust::Fresh] {
        for seed in 0..6 {
            let mut table = Table::cached(4, Name::LeastDelay, seed);
            for worker in 0..4 {
                table.on(Event::TrustChanged { worker: WorkerId(worker), trust });
            }
            let words = named(Root::new(Unit::Words, "llama", None, None), &text(1, 1_600), 16);
            let words = Prompt { unit: Unit::Words, ..words };
            let home = table.placement(of_prompt(1, &words)).worker;
            table.answer(1, None);
            for _ in 0..60 {
                table.now = table.now + Duration::from_millis(500);
                table.on(Event::Tick);
            }
            let placement = table.placement(of_prompt(2, &words));
            assert_eq!((placement.worker, placement.held), (home, Some(Tokens(1_584))), "{trust:?}");
            // The engine was restarted.
            table.on(Event::Left { request: RequestId(2) });
            table.on(Event::CacheChanged { worker: home, event: KvEvent::Cleared });
            assert_eq!(table.predicted(), 0);
        }
    }
}
