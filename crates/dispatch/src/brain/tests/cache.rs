//! What the brain believes of caches and how it places by that: predictions, reports of engines, counts of responses, and
//! what each of them must not do.
//!
//! Every script runs with both strategies that use caches and with several seeds: a prompt that lands on its holder by
//! luck proves nothing.

use super::*;
use maitre_base::Tier;
use maitre_index::feed::Trust;
use maitre_index::prefix;
use maitre_policy::Why;

mod adapter;
mod chunks;
mod pace;
mod pull;
mod rules;
mod sent;
mod threads;

/// The first-token time that the default rates expect of 1,600 tokens, so that responses teach nothing by chance.
const FIRST_TOKEN: Duration = Duration::from_millis(100);

impl Harness {
    /// A fleet whose strategy uses caches.
    fn cached(count: u32, strategy: Name, seed: u64) -> Harness {
        Harness::with(count, BrainSettings { strategy, seed, ..BrainSettings::default() })
    }

    /// The prompt as the proxy would name it for `llama`.
    fn prompt(&self, tokens: &[u32], salt: Option<&str>) -> PromptChain {
        let plan = self.brain.plan(Some("llama")).unwrap();
        let root =
            Root::new(Unit::Tokens, plan.model.as_deref().unwrap_or_default(), plan.adapter.as_deref(), salt);
        let chunks = plan.chunks.then(|| maitre_index::chunks::cut(root, tokens).into());
        PromptChain { chunks, ..named(root, tokens, plan.block) }
    }

    fn placement(&mut self, arrival: Arrival<'_>) -> Placement {
        placement(&self.on(Event::Arrived(arrival)))
    }

    fn ask(&mut self, request: u64, tokens: &[u32]) -> Placement {
        let prompt = self.prompt(tokens, None);
        self.placement(of_prompt(request, &prompt))
    }

    /// The first token comes, and then the rest of the response.
    fn answer(&mut self, request: u64, counted: Option<Counted>) {
        self.now = self.now + FIRST_TOKEN;
        self.begin(request);
        self.now = self.now + Duration::from_millis(10);
        self.on(Event::Finished { request: RequestId(request), counted, pieces: 2 });
    }

    /// The prompt is served; returns where.
    fn serve(&mut self, request: u64, tokens: &[u32]) -> Placement {
        let placement = self.ask(request, tokens);
        self.answer(request, None);
        placement
    }

    /// The worker's engine stores a prompt. The name of a block is made of its end and its last token.
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

    /// Predicted blocks, over all workers.
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

fn named(root: Root, units: &[u32], block: u32) -> PromptChain {
    let mut chain = Vec::new();
    prefix::chain(root, units, block as usize, &mut chain);
    PromptChain { unit: Unit::Tokens, units: units.len() as u64, block, chain: chain.into(), chunks: None }
}

fn of_prompt(request: u64, prompt: &PromptChain) -> Arrival<'_> {
    let size = Size::Tokens(prompt.units);
    Arrival { size, prompt: Some(prompt), ..arrival(request, Some("llama")) }
}

/// So many tokens of a text that shares no prefix with others.
fn text(which: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|it| which * 1_000_003 + it).collect()
}

fn names(tokens: &[u32], block: u32) -> Vec<u64> {
    let blocks = tokens.chunks_exact(block as usize).enumerate();
    blocks.map(|(at, it)| (at as u64) << 32 | u64::from(it[it.len() - 1])).collect()
}

/// Runs a script over four workers, with both strategies and several seeds.
#[track_caller]
fn check(script: impl Fn(&mut Harness)) {
    for strategy in [Name::LeastDelay, Name::CacheAware] {
        for seed in 0..6 {
            script(&mut Harness::cached(4, strategy, seed));
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
fn check_not_held(placement: Placement) {
    assert_eq!(placement.held, Some(Tokens(0)), "{placement:?}");
    assert!([Why::LeastDelay, Why::FewestRequests, Why::Only].contains(&placement.why), "{placement:?}");
}

// Predictions.

#[test]
fn a_prompt_follows_its_predicted_holder() {
    check(|harness| {
        let home = harness.serve(1, &text(1, 1_600));
        check_not_held(home);
        check_seat(harness.serve(2, &text(1, 2_000)), home.worker.0, 1_600);
        check_seat(harness.serve(3, &text(1, 2_400)), home.worker.0, 2_000);
        check_not_held(harness.serve(4, &text(2, 1_600)));
    });
}

#[test]
fn an_attempt_that_failed_before_its_first_token_leaves_no_prediction() {
    for failure in Failure::ALL {
        check(|harness| {
            let first = harness.ask(1, &text(1, 1_600));
            let effects = harness.fail_attempt(1, failure);
            let second = effects.iter().find_map(|it| match it {
                Effect::Place(placement) => Some(*placement),
                _ => None,
            });
            // After a retry the prediction is at the second worker, and only there.
            assert_eq!(harness.predicted(), second.map_or(0, |_| 100), "{failure:?}");
            if let Some(second) = second {
                check_not_held(second);
                harness.answer(1, None);
                assert_ne!(first.worker, second.worker);
                check_seat(harness.ask(2, &text(1, 2_000)), second.worker.0, 1_600);
            }
        });
    }
}

#[test]
fn a_disconnect_before_the_first_token_leaves_no_prediction() {
    check(|harness| {
        harness.ask(1, &text(1, 1_600));
        assert_eq!(harness.predicted(), 100);
        harness.on(Event::Left { request: RequestId(1) });
        assert_eq!(harness.predicted(), 0);
        check_not_held(harness.ask(2, &text(1, 1_600)));
    });
}

#[test]
fn prefilled_blocks_stay_predicted_however_the_response_ends() {
    for ending in [Event::Left { request: RequestId(1) }, Event::BrokeOff { request: RequestId(1) }] {
        check(|harness| {
            harness.ask(1, &text(1, 1_600));
            harness.now = harness.now + FIRST_TOKEN;
            harness.begin(1);
            harness.on(ending);
            assert_eq!(harness.predicted(), 100);
        });
    }
}

#[test]
fn a_failed_request_does_not_remove_blocks_that_were_there_before() {
    check(|harness| {
        let home = harness.serve(1, &text(1, 1_600));
        check_seat(harness.ask(2, &text(1, 2_000)), home.worker.0, 1_600);
        harness.on(Event::Left { request: RequestId(2) });
        check_seat(harness.ask(3, &text(1, 2_000)), home.worker.0, 1_600);
    });
}

/// Of two requests with one prompt, the first to fail removes nothing that the other may yet compute. Known to be wrong:
/// when the other fails as well, the prediction stays, for the index remembers only the first as its source. It goes with
/// eviction, or when the worker refuses connections.
#[test]
fn a_prediction_shared_by_two_requests_outlives_both() {
    check(|harness| {
        for worker in 1..4 {
            harness.on(Event::WorkerDrained { worker: WorkerId(worker), draining: true });
        }
        harness.ask(1, &text(1, 1_600));
        harness.ask(2, &text(1, 1_600));
        harness.on(Event::Left { request: RequestId(1) });
        assert_eq!(harness.predicted(), 100);
        harness.on(Event::Left { request: RequestId(2) });
        assert_eq!(harness.predicted(), 100, "should be 0: no worker has computed it");
    });
}

// Reports of engines.

#[test]
fn a_reported_block_counts_until_it_is_removed() {
    check(|harness| {
        let tokens = text(1, 1_600);
        harness.store(2, &tokens, PLAIN);
        check_seat(harness.ask(1, &text(1, 2_000)), 2, 1_600);
        harness.on(Event::Left { request: RequestId(1) });
        // A gap ends the usable prefix, even if blocks after it are cached.
        harness.remove(2, &names(&tokens, 16)[80..81]);
        check_seat(harness.ask(2, &text(1, 2_000)), 2, 1_280);
        harness.on(Event::Left { request: RequestId(2) });
        harness.remove(2, &names(&tokens, 16)[..1]);
        check_not_held(harness.ask(3, &text(1, 2_000)));
    });
}

#[test]
fn a_report_overrides_a_prediction() {
    check(|harness| {
        let tokens = text(1, 1_600);
        let home = harness.serve(1, &tokens).worker.0;
        harness.on(Event::TrustChanged { worker: WorkerId(home), trust: Trust::Fresh });
        harness.store(home, &tokens, PLAIN);
        harness.remove(home, &names(&tokens, 16));
        assert_eq!(harness.predicted(), 0);
        check_not_held(harness.ask(2, &tokens));
    });
}

#[test]
fn one_of_two_copies_may_be_removed() {
    check(|harness| {
        let tokens = text(1, 1_600);
        harness.store(3, &tokens, PLAIN);
        harness.store(3, &tokens, PLAIN);
        harness.remove(3, &names(&tokens, 16));
        check_seat(harness.ask(1, &text(1, 2_000)), 3, 1_600);
    });
}

#[test]
fn a_cleared_cache_and_a_refused_connection_clear_everything_known() {
    let worker = WorkerId(1);
    let refused = Event::Probed { worker, evidence: Evidence::Refused };
    for end in [Event::CacheChanged { worker, event: KvEvent::Cleared }, refused] {
        check(|harness| {
            harness.store(1, &text(1, 1_600), PLAIN);
            assert_eq!(harness.brain.cache().numbers(worker).unwrap().reported_blocks, 100);
            check_seat(harness.ask(1, &text(1, 2_000)), 1, 1_600);
            harness.answer(1, None);
            harness.on(end);
            harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
            let numbers = harness.brain.cache().numbers(worker).unwrap();
            assert_eq!((numbers.reported_blocks, numbers.predicted_blocks), (0, 0));
            check_not_held(harness.ask(2, &text(1, 2_000)));
        });
    }
}

#[test]
fn slower_memory_counts_after_fast_memory() {
    for seed in 0..6 {
        let mut harness = Harness::cached(4, Name::LeastDelay, seed);
        let tokens = text(1, 1_600);
        harness.store(0, &tokens[..320], PLAIN);
        harness.store(1, &tokens[..320], PLAIN);
        harness.store(1, &tokens, PLAIN);
        // Offloaded: the engine reports it by name alone, and removes its GPU copy.
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
        harness.on(Event::CacheChanged { worker: WorkerId(1), event: KvEvent::Stored(blocks) });
        harness.remove(1, &names(&tokens, 16)[20..]);
        check_seat(harness.ask(1, &tokens), 1, 320);
    }
}

#[test]
fn predictions_that_fresh_reports_do_not_confirm_expire() {
    check(|harness| {
        for worker in 0..4 {
            harness.on(Event::TrustChanged { worker: WorkerId(worker), trust: Trust::Fresh });
        }
        harness.serve(1, &text(1, 1_600));
        harness.now = harness.now + maitre_index::FADE;
        harness.on(Event::Tick);
        check_not_held(harness.ask(2, &text(1, 2_000)));
    });
}

#[test]
fn predictions_that_no_report_could_confirm_stay() {
    check(|harness| {
        let home = harness.serve(1, &text(1, 1_600)).worker.0;
        harness.now = harness.now + maitre_index::FADE * 100;
        harness.on(Event::Tick);
        check_seat(harness.ask(2, &text(1, 2_000)), home, 1_600);
    });
}

/// The engine holds the first 1,600 tokens since before its events were followed, and reports only what comes after.
#[test]
fn a_prefix_older_than_the_events_is_learned_from_the_next_request() {
    for reported_late in [false, true] {
        check(|harness| {
            (0..4).for_each(|worker| {
                harness.on(Event::TrustChanged { worker: WorkerId(worker), trust: Trust::Fresh });
            });
            let tokens = text(1, 1_920);
            let home = harness.ask(1, &tokens).worker;
            let all = names(&tokens, 16);
            let blocks = StoredBlocks {
                names: &all[100..],
                parent: Some(all[99]),
                tokens: &tokens[1_600..],
                block_tokens: 16,
                adapter: None,
                salt: None,
                extras: &[],
                tier: Tier::Gpu,
            };
            let stored = || Event::CacheChanged { worker: home, event: KvEvent::Stored(blocks) };
            if !reported_late {
                harness.on(stored());
            }
            harness.begin(1);
            if reported_late {
                harness.on(stored());
            }
            harness.on(Event::Finished { request: RequestId(1), counted: None, pieces: 2 });
            harness.now = harness.now + maitre_index::FADE * 100;
            harness.on(Event::Tick);
            assert_eq!(harness.predicted(), 0);
            let again = harness.ask(2, &text(1, 2_000));
            assert_eq!((again.worker, again.held), (home, Some(Tokens(1_920))), "late: {reported_late}");
        });
    }
}

// Counts of responses.

/// Two prompts are served, the second twice. Then its response counts nothing as cached: the engine evicted it, and all
/// that was older. Returns what is still predicted of both.
fn after_a_miss(strategy: Name, trust: Trust) -> [u64; 2] {
    let mut harness = Harness::cached(1, strategy, 0);
    harness.on(Event::TrustChanged { worker: WorkerId(0), trust });
    harness.serve(1, &text(1, 1_600));
    harness.serve(2, &text(2, 1_600));
    harness.ask(3, &text(2, 2_000));
    harness.answer(3, Some(Counted { prompt: Some(2_000), cached: Some(0), answer: Some(2) }));
    [1, 2].map(|which| {
        let held = harness.ask(10 + u64::from(which), &text(which, 3_000)).held;
        held.unwrap().0
    })
}

#[test]
fn without_kv_events_a_miss_corrects_the_prediction() {
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

/// A prompt known by its bytes, half prose and half code: the cached half is a third of its tokens.
#[test]
fn uneven_token_density_is_no_miss() {
    let mut harness = Harness::cached(1, Name::LeastDelay, 0);
    let root = Root::new(Unit::Words, "llama", None, None);
    let mut ask = |request, which, words: u32, counted| {
        let prompt = PromptChain { unit: Unit::Words, ..named(root, &text(which, words), 64) };
        let placement = harness.placement(of_prompt(request, &prompt));
        harness.answer(request, counted);
        placement.held.unwrap()
    };
    ask(1, 1, 1_600, None);
    ask(2, 2, 1_600, None);
    ask(3, 2, 3_200, Some(Counted { prompt: Some(3_000), cached: Some(1_000), answer: Some(2) }));
    assert_eq!(ask(4, 1, 3_200, None), Tokens(1_600 + 32), "an older prompt is still believed");
    // Zero cached tokens are a miss in any unit.
    ask(5, 2, 4_800, None);
    ask(6, 2, 6_400, Some(Counted { prompt: Some(6_000), cached: Some(0), answer: Some(2) }));
    assert_eq!(ask(7, 1, 4_800, None), Tokens(0));
}

// In tokens.

#[test]
fn cached_words_count_as_the_same_part_of_the_estimated_tokens() {
    check(|harness| {
        let root = Root::new(Unit::Words, "llama", None, None);
        let prompt = PromptChain { unit: Unit::Words, ..named(root, &text(1, 1_000), 64) };
        // Before any response was counted, a token has four bytes: twice as many tokens as words.
        let arrival = |request| Arrival { size: Size::Bytes(8_000), ..of_prompt(request, &prompt) };
        let home = harness.placement(arrival(1)).worker.0;
        harness.answer(1, None);
        check_seat(harness.placement(arrival(2)), home, 62 * 16 * 2);
        // The same numbers as tokens are another prompt.
        check_not_held(harness.ask(3, &text(1, 1_000)));
    });
}

#[test]
fn a_fully_cached_prompt_still_computes_its_last_block() {
    check(|harness| {
        let home = harness.serve(1, &text(1, 1_600)).worker.0;
        for (request, (tokens, held)) in
            [(1_600, 1_584), (1_601, 1_600), (1_599, 1_584), (1_584, 1_568)].into_iter().enumerate()
        {
            let request = 10 + request as u64;
            check_seat(harness.ask(request, &text(1, tokens)), home, held);
            harness.on(Event::Left { request: RequestId(request) });
        }
        check_not_held(harness.ask(2, &text(1, 16)));
    });
}

#[test]
fn the_promise_is_what_is_left_to_compute() {
    check(|harness| {
        let home = harness.serve(1, &text(1, 1_600)).worker;
        harness.ask(2, &text(1, 2_000));
        let promised = harness.brain.fleet().worker(home).unwrap().promised.work;
        assert_eq!((promised.prefill.tokens, promised.context), (Tokens(400), Tokens(500)));
    });
}

#[test]
fn not_looked_up_differs_from_not_cached() {
    let mut harness = Harness::cached(2, Name::LeastDelay, 0);
    assert_eq!(placement(&harness.on(Event::Arrived(arrival(1, Some("llama"))))).held, None);
    assert_eq!(harness.ask(2, &text(1, 1_600)).held, Some(Tokens(0)));
    assert_eq!(Harness::of(1).brain.plan(Some("llama")), None, "round robin goes by no cache");
}

#[test]
fn a_traffic_record_reads_every_prompt_without_an_engines_tokenizer() {
    let settings = BrainSettings { strategy: Name::RoundRobin, reads_all: true, ..BrainSettings::default() };
    let mut harness = Harness::with(1, settings);
    harness.on(Event::TrustChanged { worker: WorkerId(0), trust: Trust::Fresh });
    let plan = harness.brain.plan(Some("llama")).unwrap();
    assert_eq!((plan.reader, plan.reported, plan.block), (PromptReader::Record, false, 16));
}

// Block sizes.

#[test]
fn one_chain_suits_workers_with_blocks_of_different_sizes() {
    check(|harness| {
        harness.say_block_size(0, 16);
        harness.say_block_size(1, 128);
        assert_eq!(harness.brain.plan(Some("llama")).unwrap().block, 16);
        harness.store(0, &text(1, 2_400), PLAIN);
        harness.store(1, &text(1, 3_840), Store { block: 128, ..PLAIN });
        check_seat(harness.ask(1, &text(1, 5_000)), 1, 3_840);
        harness.on(Event::Left { request: RequestId(1) });
        harness.store(0, &text(1, 4_880), PLAIN);
        check_seat(harness.ask(2, &text(1, 5_000)), 0, 4_880);
        harness.on(Event::Left { request: RequestId(2) });
        harness.on(Event::WorkerDrained { worker: WorkerId(0), draining: true });
        // Fully cached, and computed again from its last block on: here one of 128.
        check_seat(harness.ask(3, &text(1, 3_840)), 1, 3_712);
    });
}

#[test]
fn a_placed_prompt_is_cut_into_the_workers_blocks() {
    for strategy in [Name::LeastDelay, Name::CacheAware] {
        let mut harness = Harness::cached(1, strategy, 0);
        harness.say_block_size(0, 128);
        harness.serve(1, &text(1, 1_600));
        assert_eq!(harness.predicted(), 12);
        assert_eq!(harness.ask(2, &text(1, 2_000)).held, Some(Tokens(1_536)));
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
        // Blocks smaller than our smallest are counted together.
        (&[1, 64][..], 16),
    ] {
        let mut harness = Harness::cached(sizes.len().max(1) as u32, Name::LeastDelay, 0);
        for (worker, &size) in sizes.iter().enumerate() {
            harness.say_block_size(worker as u32, size);
        }
        assert_eq!(harness.brain.plan(Some("llama")).unwrap().block, expected, "{sizes:?}");
    }
}

#[test]
fn the_block_size_of_kv_events_overrides_that_of_metrics() {
    let mut harness = Harness::cached(1, Name::LeastDelay, 0);
    harness.say_block_size(0, 16);
    harness.store(0, &text(1, 256), Store { block: 64, ..PLAIN });
    harness.say_block_size(0, 16);
    assert_eq!(harness.brain.plan(Some("llama")).unwrap().block, 64);
    assert_eq!(harness.ask(1, &text(1, 300)).held, Some(Tokens(256)));
}

// Salts and adapters.

#[test]
fn a_salt_keeps_caches_apart() {
    check(|harness| {
        harness.store(2, &text(1, 1_600), Store { salt: Some("tenant-7"), ..PLAIN });
        let mut held = |request, salt| {
            let prompt = harness.prompt(&text(1, 2_000), salt);
            let placement = harness.placement(of_prompt(request, &prompt));
            harness.on(Event::Left { request: RequestId(request) });
            placement
        };
        check_not_held(held(1, None));
        check_not_held(held(2, Some("tenant-8")));
        check_seat(held(3, Some("tenant-7")), 2, 1_600);
    });
}

#[test]
fn reports_of_a_worker_without_models_count_too() {
    let mut harness = Harness::cached(0, Name::LeastDelay, 0);
    harness.on(Event::WorkerJoined { url: "http://127.0.0.1:1" });
    harness.on(Event::Probed { worker: WorkerId(0), evidence: Evidence::ProbeAnswered });
    let plan = harness.brain.plan(Some("whatever")).unwrap();
    assert_eq!(plan.model, None);
    let prompt = named(Root::new(Unit::Tokens, "", None, None), &text(1, 2_000), plan.block);
    let arrival = |request| Arrival { model: Some("whatever"), ..of_prompt(request, &prompt) };
    check_not_held(harness.placement(arrival(1)));
    harness.on(Event::Left { request: RequestId(1) });
    harness.store(0, &text(1, 1_600), PLAIN);
    assert_eq!(harness.placement(arrival(2)).held, Some(Tokens(1_600)));
}

// Unknown workers and models.

#[test]
fn a_fleet_without_reports_places_every_request() {
    check(|harness| {
        for request in 0..200 {
            harness.ask(request, &text(request as u32, 1_600));
        }
        let requests: Vec<u32> = harness.promised().iter().map(|it| it.requests).collect();
        assert_eq!(requests.iter().sum::<u32>(), 200);
        assert!(requests.iter().all(|&it| it > 20), "{requests:?}");
    });
}

#[test]
fn a_full_worker_is_avoided_and_a_full_fleet_still_places() {
    let full = maitre_base::EngineLoad {
        running: Some(200),
        waiting: Some(300),
        kv_usage: Some(1.0),
        blocks: Some(1_000),
        block_size: Some(16),
        ..maitre_base::EngineLoad::default()
    };
    for seed in 0..6 {
        let mut harness = Harness::cached(2, Name::LeastDelay, seed);
        let placement = |harness: &mut Harness| {
            let placement = harness.ask(seed, &text(1, 1_600));
            harness.on(Event::Left { request: RequestId(seed) });
            placement.worker.0
        };
        let say = |harness: &mut Harness, worker| {
            // Requests of unknown senders count once two reports agree.
            for _ in 0..2 {
                harness.on(Event::LoadReported { worker: WorkerId(worker), load: full });
            }
        };
        say(&mut harness, 0);
        assert_eq!(placement(&mut harness), 1);
        say(&mut harness, 1);
        placement(&mut harness);
        harness.now = harness.now + maitre_fleet::load::STALE_AFTER + Duration::from_millis(1);
        say(&mut harness, 1);
        assert_eq!(placement(&mut harness), 0, "what was said 3.5 s ago says nothing");
    }
}

#[test]
fn a_declined_request_only_shows_that_the_worker_answers() {
    check(|harness| {
        let placement = harness.ask(1, &text(1, 1_600));
        let before = harness.brain.fleet().worker(placement.worker).unwrap().rates;
        harness.on(Event::Declined { request: RequestId(1) });
        assert_eq!(harness.brain.fleet().worker(placement.worker).unwrap().rates, before);
        assert_eq!(harness.brain.open(), 0);
        check_not_held(harness.ask(2, &text(1, 1_600)));
    });
}

/// A health check that answers 503 once comes from the same process, whose cache is unchanged. It would not report its
/// blocks a second time.
#[test]
fn an_unhealthy_worker_that_still_publishes_keeps_its_reported_blocks() {
    for trust in [Trust::Fresh, Trust::Cold] {
        let mut harness = Harness::cached(2, Name::LeastDelay, 0);
        let worker = WorkerId(1);
        harness.on(Event::TrustChanged { worker, trust });
        harness.store(1, &text(1, 1_600), PLAIN);
        harness.on(Event::Probed { worker, evidence: Evidence::Refused });
        harness.on(Event::Probed { worker, evidence: Evidence::ProbeAnswered });
        assert_eq!(harness.brain.cache().numbers(worker).unwrap().reported_blocks, 100, "{trust:?}");
    }
}

/// Only the feed clears reported blocks, since its own account would be wrong otherwise.
#[test]
fn a_worker_that_refuses_connections_loses_its_predicted_blocks() {
    for (trust, reported) in [(Trust::None, 0), (Trust::Suspect, 100)] {
        let mut harness = Harness::cached(1, Name::LeastDelay, 0);
        let worker = WorkerId(0);
        harness.store(0, &text(1, 1_600), PLAIN);
        harness.serve(1, &text(2, 1_600));
        assert_eq!(harness.predicted(), 100);
        harness.on(Event::TrustChanged { worker, trust });
        harness.on(Event::Probed { worker, evidence: Evidence::Refused });
        assert_eq!(harness.predicted(), 0, "{trust:?}");
        assert_eq!(harness.brain.cache().numbers(worker).unwrap().reported_blocks, reported, "{trust:?}");
    }
}

/// No report can confirm a prompt that was read as bytes, so its prediction must not expire for want of one.
#[test]
fn prompts_read_as_words_stay_predicted_while_reports_are_fresh() {
    for trust in [Trust::None, Trust::Fresh] {
        for seed in 0..6 {
            let mut harness = Harness::cached(4, Name::LeastDelay, seed);
            for worker in 0..4 {
                harness.on(Event::TrustChanged { worker: WorkerId(worker), trust });
            }
            let words = named(Root::new(Unit::Words, "llama", None, None), &text(1, 1_600), 64);
            let words = PromptChain { unit: Unit::Words, ..words };
            let home = harness.placement(of_prompt(1, &words)).worker;
            harness.answer(1, None);
            for _ in 0..60 {
                harness.now = harness.now + Duration::from_millis(500);
                harness.on(Event::Tick);
            }
            let placement = harness.placement(of_prompt(2, &words));
            assert_eq!((placement.worker, placement.held), (home, Some(Tokens(1_584))), "{trust:?}");
            // The engine was restarted.
            harness.on(Event::Left { request: RequestId(2) });
            harness.on(Event::CacheChanged { worker: home, event: KvEvent::Cleared });
            assert_eq!(harness.predicted(), 0);
        }
    }
}
