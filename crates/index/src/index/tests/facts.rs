//! Single facts about the index.

use super::{BLOCK_TOKENS, chain, chain_of, hash_of, index, name_of, root, tokens};
use crate::prefix::PrefixHash;
use crate::{
    Applied, BUDGET_MIN, CacheSource, Chain, FADE, GRAIN, Holding, Holdings, Index, IndexSettings,
    PENDING_MAX, PredictedBlocks, Trace,
};
use maitre_base::{Instant, Rng, WorkerId};
use maitre_base::{StoredBlocks, Tier};
use std::time::Duration;

const W: WorkerId = WorkerId(0);

/// One worker, and prompts as strings of letters, one per block.
struct Fixture {
    index: Index,
    now: Instant,
}

impl Fixture {
    fn new() -> Fixture {
        let mut index = index();
        index.join(W);
        Fixture { index, now: Instant::from_millis(1) }
    }

    fn store_in(&mut self, prompt: &str, from: usize, tier: Tier) -> Applied {
        store(&mut self.index, W, prompt.as_bytes(), from, tier)
    }

    fn store(&mut self, prompt: &str, from: usize) -> Applied {
        self.store_in(prompt, from, Tier::Gpu)
    }

    fn remove_in(&mut self, prompt: &str, tier: Tier) -> Applied {
        let names = [name_of(prompt.as_bytes(), 0)];
        self.index.remove(W, &names, tier)
    }

    fn remove(&mut self, prompt: &str) -> Applied {
        self.remove_in(prompt, Tier::Gpu)
    }

    fn predict(&mut self, prompt: &str) -> PredictedBlocks {
        self.index.predict(self.now, W, chain(&chain_of(prompt.as_bytes())))
    }

    fn prefilled(&mut self, prompt: &str, predicted_blocks: PredictedBlocks) {
        self.index.prefilled(self.now, W, chain(&chain_of(prompt.as_bytes())), predicted_blocks);
    }

    fn adopt(&mut self, prompt: &str) -> Applied {
        self.index.adopt(W, chain(&chain_of(prompt.as_bytes())))
    }

    #[track_caller]
    fn check(&mut self, prompt: &str, blocks: u32, lower: u32) {
        let actual = look_up(&mut self.index, W, prompt.as_bytes());
        assert_eq!(actual, Holding { blocks, lower }, "of {prompt}");
    }
}

fn store(index: &mut Index, worker: WorkerId, prompt: &[u8], from: usize, tier: Tier) -> Applied {
    let names: Vec<u64> = (from..prompt.len()).map(|it| name_of(&prompt[..=it], 0)).collect();
    let tokens = tokens(&prompt[from..]);
    let stored = StoredBlocks {
        parent: (from > 0).then(|| name_of(&prompt[..from], 0)),
        tier,
        ..StoredBlocks::plain(&names, &tokens, BLOCK_TOKENS)
    };
    index.store(worker, "m", &stored)
}

fn look_up(index: &mut Index, worker: WorkerId, prompt: &[u8]) -> Holding {
    let mut out = Holdings::new();
    index.look_up(chain(&chain_of(prompt)), &mut out);
    out.of(worker)
}

#[test]
fn a_peek_gives_the_same_answer_and_changes_nothing() {
    let mut stage = Fixture::new();
    stage.store("abcdef", 0);
    let before = format!("{:?}", stage.index);
    let mut out = Holdings::new();
    stage.index.peek(chain(&chain_of(b"abcdxy")), &mut out);
    assert_eq!(format!("{:?}", stage.index), before);
    assert_eq!(out.of(W), look_up(&mut stage.index, W, b"abcdxy"));
    assert_ne!(format!("{:?}", stage.index), before, "to look up is to use");
}

#[test]
fn a_missing_block_ends_the_prefix_until_it_is_stored() {
    let mut stage = Fixture::new();
    stage.store("abcdef", 0);
    stage.remove("abcd");
    stage.check("abcdef", 3, 0);
    stage.store("abcd", 3);
    stage.check("abcdef", 6, 0);
}

#[test]
fn two_copies_need_two_removals() {
    let mut stage = Fixture::new();
    stage.store("ab", 0);
    stage.store("ab", 0);
    stage.remove("ab");
    stage.check("ab", 2, 0);
    stage.remove("ab");
    stage.check("ab", 1, 0);
    assert_eq!(stage.remove("ab").unknown, 1);
}

#[test]
fn copies_beyond_the_counter_do_no_harm() {
    let mut stage = Fixture::new();
    for _ in 0..300 {
        stage.store("a", 0);
    }
    for _ in 0..255 {
        stage.check("a", 1, 0);
        stage.remove("a");
    }
    stage.check("a", 0, 0);
    assert_eq!(stage.index.blocks(), 0);
}

#[test]
fn blocks_with_an_unknown_parent_wait_for_it() {
    let mut stage = Fixture::new();
    stage.store("x", 0);
    assert_eq!(stage.store("abcd", 2), Applied { parked: 2, ..Applied::default() });
    stage.check("cd", 0, 0);
    assert_eq!(stage.store("ab", 0).stored, 4);
    stage.check("abcd", 4, 0);
    assert_eq!(stage.index.numbers(W).unwrap().parked_blocks, 0);
}

#[test]
fn parked_blocks_are_bounded() {
    let mut stage = Fixture::new();
    for number in 0..2_000u32 {
        let prompt: Vec<u8> = [number.to_le_bytes().as_slice(), b"x"].concat();
        store(&mut stage.index, W, &prompt, 4, Tier::Gpu);
    }
    let numbers = stage.index.numbers(W).unwrap();
    assert!(numbers.parked_blocks <= 256 && numbers.dropped >= 1_700, "{numbers:?}");
}

#[test]
fn tiers_are_kept_apart() {
    let mut stage = Fixture::new();
    stage.store("abcd", 0);
    stage.store_in("abc", 0, Tier::Cpu);
    stage.store_in("abc", 0, Tier::Disk);
    stage.remove("abc");
    stage.remove("ab");
    stage.check("abcd", 1, 3);
    stage.remove_in("abc", Tier::Cpu);
    stage.check("abcd", 1, 3);
    stage.remove_in("abc", Tier::Disk);
    stage.check("abcd", 1, 1);
    stage.remove("abcd");
    stage.check("abcd", 1, 1);
}

#[test]
fn placeholders_add_a_tier_to_known_blocks() {
    let mut stage = Fixture::new();
    stage.store("ab", 0);
    let names = [name_of(b"ab", 0), name_of(b"zz", 0)];
    let placeholder = StoredBlocks { tier: Tier::Cpu, ..StoredBlocks::plain(&names, &[], 0) };
    let applied = stage.index.store(W, "m", &placeholder);
    assert_eq!((applied.stored, applied.ignored), (1, 1));
    stage.remove("ab");
    stage.check("ab", 1, 1);
}

#[test]
fn blocks_without_all_their_tokens_are_ignored() {
    let mut stage = Fixture::new();
    let names = [name_of(b"a", 0), name_of(b"ab", 0)];
    let tokens = &tokens(b"ab")[..20];
    let stored = StoredBlocks::plain(&names, tokens, BLOCK_TOKENS);
    assert_eq!(stage.index.store(W, "m", &stored).ignored, 1);
    stage.check("ab", 1, 0);
}

#[test]
fn extras_are_in_the_hash_from_their_block_on() {
    let mut stage = Fixture::new();
    let names = [1, 2, 3];
    let tokens = tokens(b"abc");
    let stored = StoredBlocks { extras: &[0, 9, 0], ..StoredBlocks::plain(&names, &tokens, BLOCK_TOKENS) };
    stage.index.store(W, "m", &stored);
    stage.check("abc", 1, 0);
    let first = root().start().then_all(&tokens[..16]);
    let second = first.with(9).then_all(&tokens[16..32]);
    let prefixes = [first, second, second.then_all(&tokens[32..])];
    let mut out = Holdings::new();
    stage.index.look_up(chain(&prefixes), &mut out);
    assert_eq!(out.of(W).blocks, 3);
}

#[test]
fn a_new_block_size_clears_the_cache() {
    let mut stage = Fixture::new();
    stage.store("abcd", 0);
    assert_eq!(stage.index.block_tokens(W), Some(16));
    let tokens = tokens(b"abcd");
    let stored = StoredBlocks::plain(&[1, 2], &tokens, 32);
    stage.index.store(W, "m", &stored);
    assert_eq!(stage.index.block_tokens(W), Some(32));
    stage.check("abcd", 0, 0);
    let mut prefixes = Vec::new();
    crate::prefix::chain(root(), &tokens, 32, &mut prefixes);
    let mut out = Holdings::new();
    stage.index.look_up(Chain { block_tokens: 32, prefixes: &prefixes }, &mut out);
    assert_eq!(out.of(W).blocks, 2);
}

/// One block of this many tokens at the beginning of a prompt.
fn store_sized(stage: &mut Fixture, name: u64, block_tokens: u32) -> Applied {
    let tokens: Vec<u32> = (0..block_tokens).collect();
    stage.index.store(W, "m", &StoredBlocks::plain(&[name], &tokens, block_tokens))
}

#[test]
fn the_end_of_a_prompt_within_a_block_is_no_new_block_size() {
    let mut stage = Fixture::new();
    store_sized(&mut stage, 1, 64);
    assert_eq!(store_sized(&mut stage, 2, 16).ignored, 1);
    assert_eq!(store_sized(&mut stage, 3, 37).ignored, 1);
    assert_eq!(stage.index.block_tokens(W), Some(64));
    assert_eq!(stage.index.numbers(W).unwrap().reported_blocks, 1);
    // The first event may be about such an end.
    let mut stage = Fixture::new();
    store_sized(&mut stage, 2, 16);
    store_sized(&mut stage, 1, 64);
    store_sized(&mut stage, 3, 16);
    assert_eq!(stage.index.block_tokens(W), Some(64));
    assert_eq!(stage.index.numbers(W).unwrap().reported_blocks, 1);
}

#[test]
fn an_engine_may_come_back_with_smaller_blocks() {
    for clear in [Index::clear, Index::clear_reported] {
        let mut stage = Fixture::new();
        store_sized(&mut stage, 1, 64);
        clear(&mut stage.index, W);
        store_sized(&mut stage, 2, 16);
        assert_eq!(stage.index.block_tokens(W), Some(16));
        assert_eq!(stage.index.numbers(W).unwrap().reported_blocks, 1);
    }
}

#[test]
fn chains_of_two_block_sizes_do_not_mix() {
    let mut index = index();
    let (small, large) = (WorkerId(0), WorkerId(1));
    index.join(small);
    index.join(large);
    store(&mut index, small, b"abcd", 0, Tier::Gpu);
    let tokens = tokens(b"abcd");
    let stored = StoredBlocks::plain(&[1, 2], &tokens, 32);
    index.store(large, "m", &stored);
    // A fork after "ab" creates a run that begins where one of the large blocks does.
    store(&mut index, small, b"abxy", 2, Tier::Gpu);
    assert_eq!(look_up(&mut index, small, b"abcd").blocks, 4);
    assert_eq!(look_up(&mut index, large, b"abcd").blocks, 0);
}

/// Pages of this many tokens of the prompt, which here is a list of tokens.
fn store_pages(index: &mut Index, tokens: &[u32], from: usize, page: usize) -> Applied {
    let name = |end: usize| root().start().then_all(&tokens[..end]).0 ^ 1;
    let names: Vec<u64> = (from / page + 1..=tokens.len() / page).map(|it| name(it * page)).collect();
    let stored = StoredBlocks {
        parent: (from > 0).then(|| name(from)),
        ..StoredBlocks::plain(&names, &tokens[from..], page as u32)
    };
    index.store(W, "m", &stored)
}

fn held_tokens(index: &mut Index, tokens: &[u32]) -> u32 {
    let mut prefixes: Vec<PrefixHash> = Vec::new();
    crate::prefix::chain(root(), tokens, GRAIN as usize, &mut prefixes);
    let mut out = Holdings::new();
    index.look_up(Chain { block_tokens: GRAIN, prefixes: &prefixes }, &mut out);
    out.of(W).blocks * GRAIN
}

#[test]
fn small_pages_are_grouped_whatever_the_event_boundaries() {
    for page in [1, 2, 4, 8] {
        let mut rng = Rng::new(page as u64);
        let mut index = index();
        index.join(W);
        let trunk: Vec<u32> = (0..160).collect();
        let mut stored = 0;
        while stored < trunk.len() {
            let to = (stored + page * (1 + rng.below(9))).min(trunk.len());
            store_pages(&mut index, &trunk[..to], stored, page);
            stored = to;
            assert_eq!(
                held_tokens(&mut index, &trunk) as usize,
                to / 16 * 16,
                "{to} tokens in pages of {page}"
            );
        }
        assert_eq!(index.block_tokens(W), Some(GRAIN));
        // A branch from the middle of a group.
        let mut branch = trunk[..88].to_vec();
        branch.extend(1_000..1_040);
        store_pages(&mut index, &branch, 88, page);
        assert_eq!(held_tokens(&mut index, &branch), 128);
        // Leaves go first: a group is gone when its last page is.
        for end in (1..=trunk.len() / page).rev().map(|it| it * page) {
            let names = [root().start().then_all(&trunk[..end]).0 ^ 1];
            let applied = index.remove(W, &names, Tier::Gpu);
            assert_eq!(applied.removed, 1);
            assert_eq!(held_tokens(&mut index, &trunk) as usize, (end - page) / 16 * 16);
        }
    }
}

#[test]
fn a_report_replaces_a_prediction_and_overrules_it() {
    let mut stage = Fixture::new();
    stage.predict("abcd");
    stage.store("abcd", 0);
    assert_eq!(stage.index.numbers(W).unwrap().predicted_blocks, 0);
    stage.remove("ab");
    stage.check("abcd", 1, 0);
}

#[test]
fn unconfirmed_predictions_fade_while_reports_are_fresh() {
    let mut stage = Fixture::new();
    let sent = stage.predict("abcd");
    stage.prefilled("abcd", sent);
    let later = stage.now + FADE;
    stage.index.tick(later);
    stage.check("abcd", 4, 0);
    stage.index.set_source(W, CacheSource::Reported);
    stage.index.tick(later.before(Duration::from_millis(1)));
    stage.check("abcd", 4, 0);
    stage.index.tick(later);
    stage.check("abcd", 0, 0);
}

/// Issue 16: when memory is short, an engine evicts a prefix before the requests that wait for it run.
#[test]
fn an_evicted_prefix_still_counts_where_a_request_waits_that_will_compute_it() {
    let mut stage = Fixture::new();
    stage.index.set_source(W, CacheSource::Reported);
    stage.store("abcd", 0);
    let (first, second) = (stage.predict("abcde"), stage.predict("abcdf"));
    for prompt in ["abcd", "abc", "ab", "a"] {
        stage.remove(prompt);
    }
    stage.check("abcd", 4, 0);
    // The first request has computed it, and the engine evicts it again before the second runs.
    stage.store("abcde", 0);
    stage.prefilled("abcde", first);
    for prompt in ["abcde", "abcd", "abc", "ab", "a"] {
        stage.remove(prompt);
    }
    stage.check("abcde", 4, 0);
    stage.prefilled("abcdf", second);
    stage.index.tick(stage.now + FADE);
    stage.check("abcde", 0, 0);
}

/// Reports say what is held now, predictions what will be held. Under a backlog a request finds the second.
#[test]
fn what_the_backlog_will_evict_is_not_held_until_the_backlog_is_gone() {
    let mut stage = Fixture::new();
    stage.index.set_source(W, CacheSource::Reported);
    stage.index.set_capacity(W, 8);
    for prompt in ["abcd", "pqrs"] {
        let sent = stage.predict(prompt);
        stage.store(prompt, 0);
        stage.prefilled(prompt, sent);
    }
    stage.check("abcd", 4, 0);
    // The engine will compute three blocks before the next request runs, and its cache is full.
    let waiting = stage.predict("xyz");
    stage.check("abcd", 1, 0);
    stage.check("pqrs", 4, 0);
    assert_eq!(stage.index.numbers(W).map(|it| it.near_blocks), Some(8));
    // A request that asks for it anyway makes it the last to be evicted.
    let again = stage.predict("abcd");
    stage.check("abcd", 4, 0);
    stage.check("pqrs", 1, 0);
    let chain_of = |it: &str| chain_of(it.as_bytes());
    stage.index.forget(W, chain(&chain_of("abcd")), again);
    stage.index.forget(W, chain(&chain_of("xyz")), waiting);
    stage.check("abcd", 4, 0);
    stage.check("pqrs", 4, 0);
}

#[test]
fn what_is_leaving_in_the_middle_of_a_run_is_so_in_both_parts_of_it() {
    let mut stage = Fixture::new();
    stage.index.set_source(W, CacheSource::Reported);
    stage.index.set_capacity(W, 8);
    let sent = stage.predict("abcdefgh");
    stage.store("abcdefgh", 0);
    stage.prefilled("abcdefgh", sent);
    let waiting = stage.predict("xyz");
    stage.check("abcdefgh", 5, 0);
    // Another worker's prompt splits the run, once where blocks stay and once where they leave.
    let other = WorkerId(1);
    stage.index.join(other);
    for prompt in ["abcu", "abcdefv"] {
        store(&mut stage.index, other, prompt.as_bytes(), 0, Tier::Gpu);
        stage.check("abcdefgh", 5, 0);
    }
    stage.index.forget(W, chain(&chain_of(b"xyz")), waiting);
    stage.check("abcdefgh", 8, 0);
    stage.predict("uvwxyz");
    stage.check("abcdefgh", 2, 0);
    stage.index.set_source(W, CacheSource::Predicted);
    stage.check("uvwxyz", 6, 0);
}

#[test]
fn the_tail_of_a_run_that_was_split_leaves_before_its_head() {
    let mut stage = Fixture::new();
    stage.index.set_source(W, CacheSource::Reported);
    stage.index.set_capacity(W, 8);
    let sent = stage.predict("abcdefgh");
    stage.store("abcdefgh", 0);
    stage.prefilled("abcdefgh", sent);
    stage.predict("x");
    stage.check("abcdefgh", 7, 0);
    let other = WorkerId(1);
    stage.index.join(other);
    store(&mut stage.index, other, b"abcu", 0, Tier::Gpu);
    stage.predict("y");
    stage.check("abcdefgh", 6, 0);
}

/// Blocks of a prompt that no other test has, to let an engine fill its cache.
fn store_calmly(stage: &mut Fixture, blocks: usize) {
    for number in 0..blocks / 2 {
        let prompt = [0, 128 + (number % 64) as u8];
        store(&mut stage.index, W, &prompt, 0, Tier::Gpu);
    }
}

#[test]
fn after_a_gap_reports_count_again_once_much_was_stored_without_another() {
    let mut stage = Fixture::new();
    stage.index.set_source(W, CacheSource::Reported);
    stage.index.set_capacity(W, 8);
    stage.store("abcd", 0);
    stage.index.doubt_reported(W);
    stage.index.set_source(W, CacheSource::Predicted);
    // As without reports: the index removes nothing, and stores nothing that no request asked for.
    stage.remove("abcd");
    stage.check("abcd", 4, 0);
    stage.store("pqrs", 0);
    stage.check("pqrs", 0, 0);
    stage.predict("wxyz");
    stage.check("wxyz", 4, 0);
    // Eight caches of the smallest size that counts; a gap restarts the count.
    let calm = 1_048_576 / BLOCK_TOKENS as usize;
    store_calmly(&mut stage, calm - 8);
    stage.index.doubt_reported(W);
    store_calmly(&mut stage, calm - 2);
    stage.store("pq", 0);
    stage.check("pq", 0, 0);
    // The next store counts, and what is older makes room for it.
    stage.store("pqrstu", 0);
    stage.check("pqrstu", 6, 0);
    stage.check("abcd", 0, 0);
    stage.check("wxyz", 2, 0);
    stage.remove("pqrstu");
    stage.check("pqrstu", 5, 0);
}

#[test]
fn after_a_gap_the_least_recently_used_here_goes_first() {
    let mut stage = Fixture::new();
    stage.index.set_source(W, CacheSource::Reported);
    stage.index.set_capacity(W, 8);
    for prompt in ["abcd", "pqrs"] {
        let sent = stage.predict(prompt);
        stage.store(prompt, 0);
        stage.prefilled(prompt, sent);
    }
    // Requests with the first prompt go to another worker.
    let other = WorkerId(1);
    stage.index.join(other);
    for _ in 0..1_000 {
        stage.index.predict(stage.now, other, chain(&chain_of(b"abcd")));
    }
    stage.index.doubt_reported(W);
    stage.index.set_source(W, CacheSource::Predicted);
    stage.predict("wxyz");
    for (prompt, held) in [("abcd", 0), ("pqrs", 4), ("wxyz", 4)] {
        stage.check(prompt, held, 0);
    }
}

#[test]
fn a_cleared_cache_ends_what_a_gap_began() {
    let mut stage = Fixture::new();
    stage.store("abcd", 0);
    stage.index.doubt_reported(W);
    stage.index.clear(W);
    stage.store("abcd", 0);
    stage.remove("abcd");
    stage.check("abcd", 3, 0);
}

/// Issue 16: a request that waits at its engine for longer than `FADE` still brings its prefix there.
#[test]
fn a_prediction_stays_until_its_request_is_prefilled() {
    let mut stage = Fixture::new();
    stage.index.set_source(W, CacheSource::Reported);
    let sent = stage.predict("abcd");
    stage.index.tick(stage.now + FADE * 20);
    stage.check("abcd", 4, 0);
    stage.now = stage.now + FADE * 20;
    stage.prefilled("abcd", sent);
    stage.index.tick(stage.now + FADE / 2);
    stage.check("abcd", 4, 0);
    stage.index.tick(stage.now + FADE);
    stage.check("abcd", 0, 0);
}

#[test]
fn a_prediction_whose_request_never_ends_is_dropped_at_last() {
    let mut stage = Fixture::new();
    stage.index.set_source(W, CacheSource::Reported);
    stage.predict("abcd");
    stage.index.tick(stage.now + PENDING_MAX.saturating_sub(Duration::from_millis(1)));
    stage.check("abcd", 4, 0);
    stage.index.tick(stage.now + PENDING_MAX);
    stage.check("abcd", 0, 0);
}

#[test]
fn predictions_are_evicted_oldest_first_and_tails_before_heads() {
    let mut stage = Fixture::new();
    stage.index.set_capacity(W, 6);
    stage.predict("abcd");
    stage.predict("xyz");
    stage.check("abcd", 3, 0);
    stage.predict("abc");
    stage.predict("abcpq");
    stage.check("xyz", 1, 0);
    stage.check("abcpq", 5, 0);
}

#[test]
fn a_failed_request_drops_its_predictions_unless_another_used_them() {
    let mut stage = Fixture::new();
    stage.predict("ab");
    let failed = stage.predict("abcdef");
    assert_eq!(failed.from, 2);
    stage.predict("abcd");
    stage.index.forget(W, chain(&chain_of(b"abcdef")), failed);
    stage.check("abcdef", 4, 0);
}

#[test]
fn a_miss_evicts_older_predictions_and_shrinks_an_unreported_capacity() {
    let missed = |reported: Option<u32>| {
        let mut stage = Fixture::new();
        if let Some(blocks) = reported {
            stage.index.set_capacity(W, blocks);
        }
        let before = stage.index.numbers(W).unwrap().capacity_blocks;
        miss(&mut stage);
        (before, stage.index.numbers(W).unwrap().capacity_blocks)
    };
    let (before, after) = missed(None);
    assert_eq!(after, before - before / 4);
    assert_eq!(missed(Some(100)), (100, 100));
}

fn miss(stage: &mut Fixture) {
    stage.predict("old");
    let sent = stage.predict("abcdef");
    stage.predict("new");
    stage.prefilled("abcdef", sent);
    let predicted_blocks = stage.predict("abcdefg");
    // Rounding down explains one block fewer than expected; nothing changes.
    stage.index.correct(W, chain(&chain_of(b"abcdefg")), predicted_blocks, 5);
    stage.check("old", 3, 0);
    stage.index.correct(W, chain(&chain_of(b"abcdefg")), predicted_blocks, 2);
    stage.check("old", 0, 0);
    stage.check("new", 3, 0);
    stage.check("abcdefg", 7, 0);
}

#[test]
fn a_miss_on_blocks_not_computed_yet_proves_nothing() {
    let mut stage = Fixture::new();
    stage.predict("old");
    let sent = stage.predict("abcdef");
    let predicted_blocks = stage.predict("abcdefg");
    stage.prefilled("abcdef", sent);
    stage.index.correct(W, chain(&chain_of(b"abcdefg")), predicted_blocks, 0);
    stage.check("old", 3, 0);
}

#[test]
fn slots_are_reused_and_worker_numbers_are_not() {
    let mut index = index();
    for worker in 0..500 {
        index.join(WorkerId(worker));
        store(&mut index, WorkerId(worker), b"abc", 0, Tier::Gpu);
        assert_eq!(look_up(&mut index, WorkerId(worker), b"abc").blocks, 3);
        if worker > 0 {
            assert_eq!(look_up(&mut index, WorkerId(worker - 1), b"abc").blocks, 0);
        }
        index.leave(WorkerId(worker));
    }
    assert_eq!((index.slots.len(), index.blocks()), (1, 0));
}

#[test]
fn unknown_workers_are_ignored() {
    let mut index = index();
    assert_eq!(store(&mut index, W, b"abc", 0, Tier::Gpu), Applied::default());
    assert_eq!(index.predict(Instant::ZERO, W, chain(&chain_of(b"abc"))), PredictedBlocks::NOTHING);
    index.leave(W);
    index.clear(W);
    assert_eq!((index.blocks(), index.numbers(W), index.block_tokens(W)), (0, None, None));
}

#[test]
fn a_name_reused_for_another_block_releases_the_first() {
    let mut stage = Fixture::new();
    let mut store = |tokens: &[u32], parent: Option<u64>| {
        let stored = StoredBlocks { parent, ..StoredBlocks::plain(&[7], tokens, BLOCK_TOKENS) };
        stage.index.store(W, "m", &stored);
    };
    store(&tokens(b"a"), None);
    store(&tokens(b"b"), None);
    // Even if the block becomes its own parent.
    store(&tokens(b"c"), Some(7));
    stage.check("a", 0, 0);
    stage.check("b", 0, 0);
    assert_eq!(stage.index.numbers(W).unwrap().reported_blocks, 1);
    stage.index.clear(W);
    assert_eq!(stage.index.blocks(), 0);
}

/// Stores far more than the budget holds.
#[test]
fn the_budget_is_never_exceeded_and_recent_blocks_stay() {
    for budget_bytes in [BUDGET_MIN, 1 << 20, 3 << 20] {
        let mut index = Index::new(IndexSettings { budget_bytes, seed: 1 });
        let mut rng = Rng::new(budget_bytes as u64);
        (0..4).for_each(|it| index.join(WorkerId(it)));
        let (mut recent, mut hits) = (0, 0);
        for number in 0..8_000u32 {
            let worker = WorkerId(number % 4);
            let prompt: Vec<u8> = (0..20)
                .map(|at| if at < 4 { number.to_le_bytes()[at] } else { rng.below(250) as u8 })
                .collect();
            if number % 3 == 0 {
                index.predict(Instant::from_millis(u64::from(number)), worker, chain(&chain_of(&prompt)));
            } else {
                store(&mut index, worker, &prompt, 0, Tier::Gpu);
            }
            assert!(index.bytes() <= budget_bytes, "{} of {budget_bytes} bytes", index.bytes());
            if number > 7_000 {
                recent += 1;
                hits += u32::from(look_up(&mut index, worker, &prompt).blocks == 20);
            }
        }
        assert!(hits * 10 >= recent * 9, "{hits} of {recent} just stored are there, {budget_bytes} bytes");
        assert!((0..4).any(|it| index.numbers(WorkerId(it)).unwrap().evicted > 0));
        (0..4).for_each(|it| index.leave(WorkerId(it)));
        assert_eq!(index.blocks(), 0);
    }
}

#[test]
fn test_hashes_match_those_of_the_chain() {
    assert_eq!(chain_of(b"abc")[2].0, hash_of(b"abc"));
}

/// The system prompt `abc` is older than the events, and every request hits it.
#[test]
fn blocks_older_than_the_events_are_learned_from_a_request_that_hits_them() {
    let mut stage = Fixture::new();
    let sent = stage.predict("abcdef");
    assert_eq!(stage.store("abcdef", 3).parked, 3);
    stage.prefilled("abcdef", sent);
    assert_eq!(stage.adopt("abcdef").stored, 3);
    let numbers = stage.index.numbers(W).unwrap();
    assert_eq!((numbers.reported_blocks, numbers.predicted_blocks, numbers.parked_blocks), (6, 0, 0));
    // From now on any request's stores with that parent are placed at once.
    assert_eq!(stage.store("abcxy", 3).stored, 2);
    stage.check("abcxyz", 5, 0);
    // The engine evicts ends first: without `c`, no event shows when `a` and `b` go.
    stage.remove("abc");
    stage.check("abcdef", 0, 0);
    stage.store("abc", 0);
    stage.check("abcdef", 6, 0);
}

#[test]
fn blocks_of_a_response_do_not_hide_where_the_prompt_begins() {
    let mut stage = Fixture::new();
    stage.store("abcdefgh", 3);
    stage.store("abcdefghi", 8);
    assert_eq!(stage.adopt("abcdef").stored, 6);
    stage.check("abcdefghi", 9, 0);
}

#[test]
fn what_a_prompt_does_not_end_with_stays_parked() {
    for (prompt, why) in [
        ("abcxyz", "other tokens"),
        ("abcdez", "other tokens in the end"),
        ("abc", "nothing after the parent"),
        ("def", "nothing before the parked blocks"),
        ("abcdefghijk", "the prompt goes on, so its blocks were not all stored"),
        ("", "no block"),
    ] {
        let mut stage = Fixture::new();
        stage.store("abcdef", 3);
        assert_eq!(stage.adopt(prompt), Applied::default(), "{why}");
        assert_eq!(stage.index.numbers(W).unwrap().parked_blocks, 3, "{why}");
    }
    let mut stage = Fixture::new();
    stage.store("a", 0);
    stage.store_in("abcdef", 3, Tier::Cpu);
    assert_eq!(stage.adopt("abcdef"), Applied::default(), "not on the GPU");
    stage.index.adopt(WorkerId(7), chain(&chain_of(b"abcdef")));
}

#[test]
fn an_ancestor_stays_while_any_adopted_parent_does() {
    let mut stage = Fixture::new();
    stage.store("abcde", 4);
    stage.adopt("abcde");
    stage.store("abcxy", 4);
    stage.adopt("abcxy");
    stage.remove("abcd");
    stage.check("abcxy", 5, 0);
    stage.check("abcde", 3, 0);
    stage.remove("abcx");
    stage.check("abcxy", 0, 0);
}

/// Two prompts end alike, and the index took the wrong one for the parked blocks'.
#[test]
fn a_name_that_turns_out_to_be_another_block_is_forgotten() {
    let mut stage = Fixture::new();
    stage.store("abcz", 3);
    stage.adopt("xyqz");
    stage.check("xyqz", 4, 0);
    stage.store("abc", 0);
    stage.check("xyqz", 0, 0);
    stage.check("abc", 3, 0);
}

#[test]
fn adopted_blocks_are_forgotten_with_the_rest() {
    let mut stage = Fixture::new();
    stage.store("abcdef", 3);
    stage.adopt("abcdef");
    stage.index.clear_reported(W);
    stage.check("abcdef", 0, 0);
    assert_eq!(stage.index.blocks(), 0);
}

/// A hundred blocks fit. Blocks stored before are unknown until nothing builds on them any more.
#[test]
fn reports_are_complete_once_a_cache_full_of_blocks_follows_known_ones() {
    let mut stage = Fixture::new();
    stage.index.set_capacity(W, 100);
    let prompt = |number: u8| [b'a', b'b', number];
    for number in 0..100 {
        store(&mut stage.index, W, &prompt(number), 2, Tier::Gpu);
    }
    assert!(!stage.index.is_complete(W), "all follow a block that is unknown");
    assert_eq!(stage.index.numbers(W).unwrap().unplaced_permille, 1_000);
    stage.adopt("abc");
    for number in 0..99 {
        assert!(!stage.index.is_complete(W), "{number} blocks");
        store(&mut stage.index, W, &prompt(number), 2, Tier::Gpu);
    }
    store(&mut stage.index, W, &prompt(99), 2, Tier::Gpu);
    assert!(stage.index.is_complete(W));
    assert_eq!(stage.index.numbers(W).unwrap().unplaced_permille, 0);
    stage.index.clear_reported(W);
    assert!(!stage.index.is_complete(W), "a gap");
    assert!(!stage.index.is_complete(WorkerId(7)));
}

#[test]
fn a_trace_is_of_blocks_of_one_length() {
    let (mut index, now, other) = (index(), Instant::from_millis(1), WorkerId(1));
    index.join(W);
    index.join(other);
    let small = chain_of(b"abcdefgh");
    // The same tokens in blocks that are twice as long, so with the same prefix at the end.
    let large: Vec<PrefixHash> = small.iter().skip(1).step_by(2).copied().collect();
    let large = Chain { block_tokens: 2 * BLOCK_TOKENS, prefixes: &large };
    let mut trace = Trace::default();
    // The second one adds nothing, so its trace stays up to date.
    index.predict_along(now, W, chain(&small), &mut trace);
    index.predict_along(now, W, chain(&small), &mut trace);
    index.predict_along(now, other, large, &mut trace);
    let mut out = Holdings::new();
    index.look_up(large, &mut out);
    assert_eq!((out.of(W).blocks, out.of(other).blocks), (0, 4));
    index.look_up(chain(&small), &mut out);
    assert_eq!((out.of(W).blocks, out.of(other).blocks), (8, 0));
}
