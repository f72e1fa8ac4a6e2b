//! Learns blocks that an engine stored before we followed its events, from requests that hit them.
//!
//! Such a request stores only what follows its hit, under a parent whose name we have never seen: the store is
//! parked. But we sent the request and know its prompt. Its stores end with its last full block. So a parked chain of
//! K blocks begins about K blocks before the prompt's end, and must have the same tokens from there on. The unknown
//! parent is the block before. The engine holds everything up to it, or there would have been no hit. Without this, a
//! system prompt that is older than the router would keep every request's blocks unplaced for as long as it is in
//! use.
//!
//! Two prompts with equal ends and different beginnings can be confused while both are being computed. Then
//! the names are wrong and the blocks are not: the worker has just computed this prompt. They are forgotten
//! when the engine removes the name, or uses it for another block.
//!
//! The names of the parent's ancestors stay unknown. They are held under names of our own until the parent is
//! removed: engines evict the end of a prefix first. That may be too early; then the next hit restores it.
//!
//! It does not work for pages smaller than our blocks: a hit may end inside a block there, whose hash we do not have.

use maitre_base::{Tier, WorkerId};

use crate::Index;
use crate::parked::Waiting;
use crate::reported::Applied;
use crate::table::Chain;

/// Positions tried for one prompt. Chosen: each takes eight multiplications, one after the other, so all take about
/// 30 µs.
const TRIES_MAX: usize = 2_048;

/// Parked chains tried for one prompt, the newest first. Chosen: more than an engine prefills at once.
const ROOTS_MAX: usize = 64;

impl Index {
    /// The worker has computed a prompt: places the parked stores that belong to it.
    pub fn adopt(&mut self, id: WorkerId, chain: Chain<'_>) -> Applied {
        let mut applied = Applied::default();
        if let Some((parent, depth)) = self.parent_in(id, chain)
            && self.room(id.index(), depth) == depth
        {
            let chain = Chain { prefixes: &chain.prefixes[..depth], ..chain };
            if let Some(mut applier) = self.report_applier(id, &mut applied) {
                applier.adopt(parent, chain);
            }
            self.account(id.index());
            self.store_ready(id, &mut applied);
        }
        self.finish(id, applied)
    }

    /// A parent that parked stores wait for and that this chain has, and the number of blocks up to it.
    fn parent_in(&self, id: WorkerId, chain: Chain<'_>) -> Option<(u64, usize)> {
        let worker = self.workers.get(id.index())?.as_deref()?;
        let mut tries = TRIES_MAX;
        for (waiting, blocks) in worker.parked.roots().take(ROOTS_MAX) {
            if waiting.block_tokens != chain.block_tokens || waiting.tier != Tier::Gpu {
                continue;
            }
            // The blocks of the response come after the prompt, if the first token came long ago.
            let first = chain.prefixes.len().saturating_sub(blocks).max(1);
            for depth in first..chain.prefixes.len() {
                tries = tries.checked_sub(1)?;
                if is_at(depth, waiting, chain) {
                    return Some((waiting.parent, depth)).filter(|_| worker.adopted.has_room(depth - 1));
                }
            }
        }
        None
    }
}

/// Whether the parked blocks have the tokens of this chain from block `depth` on, as far as both go.
fn is_at(depth: usize, waiting: &Waiting, chain: Chain<'_>) -> bool {
    let pages = waiting.tokens.chunks_exact(chain.block_tokens as usize);
    let pairs = chain.prefixes[depth - 1..].windows(2);
    let mut blocks = pages.zip(pairs).enumerate();
    blocks.all(|(at, (tokens, pair))| {
        let before = match waiting.extras.get(at) {
            Some(&extra) if extra != 0 => pair[0].with(extra),
            _ => pair[0],
        };
        before.then_all(tokens) == pair[1]
    })
}
