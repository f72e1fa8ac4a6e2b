//! The pool against a naive one that keeps its free queue as a list and its names as a scan.

use super::*;

use std::sync::LazyLock;

use proptest::prelude::*;

static ROOT: LazyLock<Root> = LazyLock::new(|| Root::new(Names { model: "tiny", adapter: None, salt: "" }));

fn full(hash: u64) -> Full<'static> {
    Full { hash, parent: None, tokens: &[], root: &ROOT }
}

/// A pool whose sequence `hashes` was stored and released again.
fn pool_with(kv_blocks: u32, hashes: &[u64]) -> Pool {
    let mut pool = Pool::new(kv_blocks, 0);
    let mut held = Vec::new();
    assert!(pool.grow(&mut held, hashes.len()));
    for (&id, &hash) in held.iter().zip(hashes) {
        pool.store(id, full(hash));
    }
    pool.release(&mut held);
    pool
}

#[test]
fn the_null_block_is_never_allocated() {
    let mut pool = Pool::new(4, 0);
    let mut held = Vec::new();
    assert!(!pool.grow(&mut held, 4));
    assert!(held.is_empty(), "all or none");
    assert!(pool.grow(&mut held, 3));
    assert!(!held.contains(&NULL));
}

#[test]
fn a_freed_block_can_be_hit_until_it_is_handed_out() {
    let mut pool = pool_with(3, &[7, 8]);
    assert_eq!(pool.used(), 0);
    assert!(pool.find(7).is_some() && pool.find(8).is_some());
    let mut held = Vec::new();
    assert!(pool.grow(&mut held, 2));
    assert!(pool.find(7).is_none() && pool.find(8).is_none());
    assert_eq!(pool.evictions(), 2);
}

#[test]
fn tails_are_evicted_before_heads() {
    let mut pool = pool_with(4, &[7, 8, 9]);
    let mut held = Vec::new();
    for (taken, gone) in [9, 8, 7].into_iter().enumerate() {
        assert!(pool.find(gone).is_some());
        assert!(pool.grow(&mut held, taken + 1));
        assert!(pool.find(gone).is_none(), "{gone} should be the next to go");
    }
}

#[test]
fn a_block_without_a_name_is_reused_first() {
    let mut pool = pool_with(5, &[7, 8]);
    let mut held = Vec::new();
    assert!(pool.grow(&mut held, 2));
    let unnamed = held[1];
    pool.store(held[0], full(9));
    pool.release(&mut held);
    assert!(pool.grow(&mut held, 1));
    assert_eq!(held, [unnamed]);
    assert_eq!(pool.evictions(), 0);
}

#[test]
fn a_shared_block_is_not_evicted() {
    let mut pool = pool_with(3, &[7, 8]);
    let mut shared = vec![pool.find(8).unwrap()];
    pool.share(shared[0]);
    let mut held = Vec::new();
    assert!(pool.grow(&mut held, 1));
    assert!(pool.find(8).is_some() && pool.find(7).is_none());
    assert!(!pool.grow(&mut held, 2), "the only other block is shared");
    pool.release(&mut shared);
    assert!(pool.grow(&mut held, 2));
}

#[test]
fn copies_are_evicted_independently() {
    let mut pool = Pool::new(3, 0);
    let (mut older, mut newer) = (Vec::new(), Vec::new());
    assert!(pool.grow(&mut older, 1) && pool.grow(&mut newer, 1));
    pool.store(older[0], full(7));
    pool.store(newer[0], full(7));
    assert_eq!(pool.find(7), Some(older[0]));
    let newest = newer[0];
    pool.release(&mut older);
    assert!(pool.grow(&mut older, 1));
    assert_eq!(pool.find(7), Some(newest));
}

#[test]
fn changes_beyond_the_limit_are_counted_and_order_is_kept() {
    let mut pool = Pool::new(2, 2);
    let mut held = Vec::new();
    for (round, hash) in [7, 8, 9].into_iter().enumerate() {
        assert!(pool.grow(&mut held, 1), "round {round}");
        pool.store(held[0], Full { parent: Some(6), tokens: &[1, 2], ..full(hash) });
        pool.release(&mut held);
    }
    let stored = Stored {
        medium: Medium::Gpu,
        hash: 7,
        parent: Some(6),
        tokens: Box::new([1, 2]),
        adapter: None,
        salt: None,
    };
    assert_eq!(
        pool.take_changes(),
        (vec![Change::Stored(stored), Change::Removed { hash: 7, medium: Medium::Gpu }], 3)
    );
    assert_eq!(pool.take_changes(), (vec![], 0));
}

#[test]
fn a_name_depends_on_the_root_and_on_every_token() {
    let tokens: Vec<u32> = (0..17).collect();
    let mut seen = std::collections::HashSet::from([chain(1, &tokens), chain(2, &tokens)]);
    for position in 0..tokens.len() {
        let mut changed = tokens.clone();
        changed[position] += 100;
        seen.insert(chain(1, &changed));
    }
    assert_eq!(seen.len(), 2 + tokens.len());
}

/// What the pool promises, written to be read rather than to be fast.
struct Naive {
    /// Name and number of users of each block but the null block.
    blocks: Vec<(Option<u64>, u32)>,
    free: std::collections::VecDeque<BlockId>,
    /// Named blocks, oldest name first.
    named: Vec<BlockId>,
}

impl Naive {
    fn new(kv_blocks: u32) -> Naive {
        Naive {
            blocks: vec![(None, 0); kv_blocks as usize],
            free: (1..kv_blocks).collect(),
            named: Vec::new(),
        }
    }

    fn find(&self, hash: u64) -> Option<BlockId> {
        self.named.iter().copied().find(|&id| self.blocks[id as usize].0 == Some(hash))
    }

    fn share(&mut self, id: BlockId) {
        self.free.retain(|&it| it != id);
        self.blocks[id as usize].1 += 1;
    }

    fn grow(&mut self, held: &mut Vec<BlockId>, target: usize) -> bool {
        if target > held.len() + self.free.len() {
            return false;
        }
        while held.len() < target {
            let id = self.free.pop_front().unwrap();
            self.named.retain(|&it| it != id);
            self.blocks[id as usize] = (None, 1);
            held.push(id);
        }
        true
    }

    fn store(&mut self, id: BlockId, hash: u64) {
        self.blocks[id as usize].0 = Some(hash);
        self.named.push(id);
    }

    fn release(&mut self, held: &mut Vec<BlockId>) {
        while let Some(id) = held.pop() {
            let (name, users) = &mut self.blocks[id as usize];
            *users -= 1;
            match (*users, *name) {
                (0, Some(_)) => self.free.push_back(id),
                (0, None) => self.free.push_front(id),
                _ => {}
            }
        }
    }
}

impl Naive {
    fn clear(&mut self) -> bool {
        let is_unused = self.blocks.iter().all(|it| it.1 == 0);
        if is_unused {
            self.blocks.fill((None, 0));
            self.named.clear();
        }
        is_unused
    }

    fn resident(&self) -> BTreeMap<u64, u32> {
        let mut copies = BTreeMap::new();
        for hash in self.blocks.iter().filter_map(|it| it.0) {
            *copies.entry(hash).or_default() += 1;
        }
        copies
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// Hits what it can of a sequence of a family, unless it came too early for that, then grows to its
    /// length and stores all but the last.
    Begin {
        family: u64,
        blocks: usize,
        early: bool,
    },
    End {
        index: usize,
    },
    Clear,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0..4u64, 1..9usize, any::<bool>())
            .prop_map(|(family, blocks, early)| Op::Begin { family, blocks, early }),
        2 => (0..8usize).prop_map(|index| Op::End { index }),
        1 => Just(Op::Clear),
    ];
    proptest::collection::vec(op, 0..80)
}

proptest! {
    #[test]
    fn the_pool_matches_the_naive_one(kv_blocks in 2..20u32, ops in ops()) {
        let (mut pool, mut naive) = (Pool::new(kv_blocks, 0), Naive::new(kv_blocks));
        let mut live: Vec<(Vec<BlockId>, Vec<BlockId>)> = Vec::new();
        for op in ops {
            match op {
                Op::Begin { family, blocks, early } => {
                    let hash = |index: usize| family * 100 + index as u64 + 1;
                    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                    for index in 0..if early { 0 } else { blocks - 1 } {
                        prop_assert_eq!(pool.find(hash(index)), naive.find(hash(index)));
                        let Some(id) = pool.find(hash(index)) else { break };
                        pool.share(id);
                        naive.share(id);
                        ours.push(id);
                        theirs.push(id);
                    }
                    let hits = ours.len();
                    let grown = pool.grow(&mut ours, blocks);
                    prop_assert_eq!(grown, naive.grow(&mut theirs, blocks));
                    prop_assert_eq!(&ours, &theirs);
                    for index in hits..if grown { blocks - 1 } else { hits } {
                        pool.store(ours[index], full(hash(index)));
                        naive.store(theirs[index], hash(index));
                    }
                    live.push((ours, theirs));
                }
                Op::End { index } if index < live.len() => {
                    let (mut ours, mut theirs) = live.swap_remove(index);
                    pool.release(&mut ours);
                    naive.release(&mut theirs);
                }
                Op::End { .. } => {}
                Op::Clear => prop_assert_eq!(pool.clear(), naive.clear()),
            }
            prop_assert_eq!(pool.free() as usize, naive.free.len());
            prop_assert!(pool.used() <= pool.capacity());
            prop_assert_eq!(pool.resident(), naive.resident());
        }
        for (mut ours, _) in live {
            pool.release(&mut ours);
        }
        prop_assert_eq!(pool.used(), 0);
    }
}
