//! Applies the stores of one engine: finds the parent, hashes the tokens, places the blocks. Blocks with unknown parents
//! are parked.
//!
//! Nearly all of the time goes to memory: the parent's name, its run, and one cache line per name, none of which is
//! likely to be in the CPU's cache. So a store prefetches the lines of its names, and hashes tokens meanwhile. Blocks
//! are placed a run at a time.

use crate::adopted;
use crate::holders::low;
use crate::names::Name;
use crate::parked::Waiting;
use crate::prefix::{PrefixHash, Root, Running, Unit};
use crate::reported::{PIECE, ReportApplier, increment};
use crate::table::{Chain, Placing, Position, PrefixTable};
use crate::worker::{GRAIN, PartialPage};
use maitre_base::{StoredBlocks, Tier};
use std::hint::black_box;

/// Where a store continues from.
#[derive(Clone, Copy)]
struct Start {
    prefix: Running,
    /// Tokens in the group that is not full yet.
    filled_tokens: u32,
    /// The last full block, and its name.
    at: Option<Position>,
    previous: Option<u64>,
}

/// Consecutive blocks, at most `PIECE`.
struct PlacedBlocks<'a> {
    names: &'a [u64],
    prefixes: &'a [PrefixHash],
    /// One bit per block: whether a run may begin with it.
    may_begin: u64,
}

impl PlacedBlocks<'_> {
    fn new<'a>(
        table: &PrefixTable,
        at: Option<Position>,
        names: &'a [u64],
        prefixes: &'a [PrefixHash],
    ) -> PlacedBlocks<'a> {
        debug_assert!(names.len() <= PIECE, "one bit per block");
        let depth = table.depth_after(at);
        let may_begin = |(at, &it)| u64::from(table.may_begin_run(it, depth + at)) << at;
        let may_begin = prefixes.iter().enumerate().map(may_begin).fold(0, |all, it| all | it);
        PlacedBlocks { names, prefixes, may_begin }
    }

    fn skip(&mut self, count: usize) {
        self.names = &self.names[count..];
        self.prefixes = &self.prefixes[count..];
        self.may_begin = self.may_begin.checked_shr(count as u32).unwrap_or(0);
    }
}

enum Parent {
    Known(Start),
    /// The parent may still arrive.
    Unknown(u64),
    /// The parent is known, but its own prefix no longer is.
    Lost,
}

impl ReportApplier<'_> {
    /// Stores blocks of this worker's block size, at most `PIECE`. There must be room.
    pub(crate) fn store(&mut self, model: &str, stored: &StoredBlocks<'_>) {
        let Some(block_tokens) = self.worker.block_tokens() else { return };
        self.worker.names.reserve(stored.names.len());
        // These fetches overlap with each other, and with those of the parent.
        self.touch(stored.parent.iter().chain(stored.names));
        black_box(self.worker.names.touch_next());
        let start = match self.parent(model, stored) {
            Parent::Known(start) => start,
            Parent::Lost => return self.applied.dropped += stored.names.len() as u32,
            Parent::Unknown(parent) => return self.park(parent, stored),
        };
        let placing = Placing { slot: self.worker.slot, block_tokens, author: None, clock: self.clock };
        let count = if stored.block_tokens == block_tokens {
            self.store_blocks(stored, start, placing)
        } else {
            self.store_pages(stored, start, placing)
        };
        self.applied.ignored += (stored.names.len() - count) as u32;
        self.applied.stored += count as u32;
        if !self.worker.parked.is_empty() {
            self.wake(&stored.names[..count]);
        }
    }

    /// Prefetches the entries of these names. Look-ups one by one would each wait for memory; in a loop this
    /// short the fetches overlap.
    pub(crate) fn touch<'a>(&self, names: impl Iterator<Item = &'a u64>) {
        black_box(names.fold(0, |sum, &name| sum ^ self.worker.names.touch(name)));
    }

    /// Stores the blocks that have all their tokens. Returns how many there are.
    fn store_blocks(&mut self, stored: &StoredBlocks<'_>, start: Start, placing: Placing) -> usize {
        let mut prefixes = [PrefixHash(0); PIECE];
        let pages = stored.tokens.chunks_exact(stored.block_tokens as usize);
        let (mut prefix, mut count) = (start.prefix.prefix(), 0);
        // Fetched here, because each step of the hash waits for the one before it, and the CPU has time.
        let (mut may_begin, depth) = (0, self.table.depth_after(start.at));
        for ((_, tokens), slot) in stored.names.iter().zip(pages).zip(&mut prefixes) {
            if let Some(&extra) = stored.extras.get(count).filter(|&&it| it != 0) {
                prefix = prefix.with(extra);
            }
            prefix = prefix.then_all(tokens);
            may_begin |= u64::from(self.table.may_begin_run(prefix, depth + count)) << count;
            *slot = prefix;
            count += 1;
        }
        let blocks = PlacedBlocks { names: &stored.names[..count], prefixes: &prefixes[..count], may_begin };
        self.place(blocks, (start.at, stored.tier), placing);
        count
    }

    /// Stores the pages that have all their tokens, where several are a block. Returns how many there are.
    fn store_pages(&mut self, stored: &StoredBlocks<'_>, start: Start, placing: Placing) -> usize {
        let (mut names, mut prefixes, mut blocks) = ([0; PIECE], [PrefixHash(0); PIECE], 0);
        let (mut at, mut count) = (start, 0);
        let pages = stored.tokens.chunks_exact(stored.block_tokens as usize);
        for (&name, tokens) in stored.names.iter().zip(pages) {
            if let Some(&extra) = stored.extras.get(count).filter(|&&it| it != 0) {
                at.prefix = at.prefix.prefix().with(extra).into();
            }
            count += 1;
            at.filled_tokens += stored.block_tokens;
            if at.filled_tokens < placing.block_tokens {
                tokens.iter().for_each(|&token| at.prefix.push(token));
                self.note_page(name, at, stored.tier);
                continue;
            }
            let prefix = at.prefix.end(tokens);
            (names[blocks], prefixes[blocks]) = (name, prefix);
            blocks += 1;
            at = Start { prefix: prefix.into(), previous: Some(name), filled_tokens: 0, ..at };
        }
        let blocks = PlacedBlocks::new(self.table, start.at, &names[..blocks], &prefixes[..blocks]);
        self.place(blocks, (start.at, stored.tier), placing);
        count
    }

    /// Places these blocks after a block, or at the beginning of a prompt. Returns the last position.
    fn place(
        &mut self,
        mut blocks: PlacedBlocks<'_>,
        (mut at, tier): (Option<Position>, Tier),
        placing: Placing,
    ) -> Option<Position> {
        while !blocks.names.is_empty() {
            let rest = (blocks.prefixes, blocks.may_begin);
            let ((run, offset), count) = self.table.extend_run(at, rest, placing);
            self.bind_all(&blocks.names[..count], (run, offset), tier);
            at = Some((run, offset + (count - 1) as u8));
            blocks.skip(count);
        }
        at
    }

    /// The engine holds this chain, and `parent` is its name for the last block. There must be room.
    pub(crate) fn adopt(&mut self, parent: u64, chain: Chain<'_>) {
        self.worker.names.reserve(chain.prefixes.len());
        let Some((_, ancestors)) = chain.prefixes.split_last() else { return };
        let ancestors: Box<[u64]> = ancestors.iter().map(|it| it.0).collect();
        let names: Vec<u64> = ancestors.iter().map(|&it| adopted::name_of(it)).chain([parent]).collect();
        let placing = Placing {
            slot: self.worker.slot,
            block_tokens: chain.block_tokens,
            author: None,
            clock: self.clock,
        };
        let mut at = None;
        for (names, prefixes) in names.chunks(PIECE).zip(chain.prefixes.chunks(PIECE)) {
            let blocks = PlacedBlocks::new(self.table, at, names, prefixes);
            at = self.place(blocks, (at, Tier::Gpu), placing);
        }
        self.worker.adopted.insert(parent, ancestors);
        self.wake(&[parent]);
    }

    /// Binds these names to the blocks of a run from this position on, as `bind` would one by one.
    fn bind_all(&mut self, names: &[u64], (run, offset): Position, tier: Tier) {
        let start = usize::from(offset);
        let bits = low(start + names.len()) & !low(start);
        let share = self.table.share(run, self.worker.slot);
        let names = names.iter().zip(offset..);
        if share.is_some_and(|it| (it.gpu | it.lower) & bits != 0) {
            return names.for_each(|(&name, offset)| self.bind(name, (run, offset), tier));
        }
        self.hold(run, bits, tier.into());
        let mut copies = [0; 3];
        copies[tier as usize] = 1;
        for (&name, offset) in names {
            // None of these blocks has a name yet, so a known name belongs to another block.
            let known = self.worker.names.find(name).and_then(|place| self.worker.names.at(place));
            match known {
                None => self.worker.names.insert(Name { name, run, offset, copies }),
                Some(old) => self.rebind(old, (run, offset), tier),
            }
        }
    }

    fn parent(&self, model: &str, stored: &StoredBlocks<'_>) -> Parent {
        let Some(parent) = stored.parent else {
            let root = Root::new(Unit::Tokens, model, stored.adapter, stored.salt);
            return Parent::Known(Start {
                prefix: root.start().into(),
                filled_tokens: 0,
                at: None,
                previous: None,
            });
        };
        if let Some(at) = self.position(parent) {
            let prefix = PrefixHash(self.table.hash(at)).into();
            return Parent::Known(Start { prefix, filled_tokens: 0, at: Some(at), previous: Some(parent) });
        }
        let Some(page) = self.worker.pages.get(&parent) else { return Parent::Unknown(parent) };
        let at = page.previous.map(|it| self.position(it));
        match at {
            Some(None) => Parent::Lost,
            at => Parent::Known(Start {
                prefix: page.prefix,
                filled_tokens: u32::from(page.filled_tokens),
                at: at.flatten(),
                previous: page.previous,
            }),
        }
    }

    fn position(&self, name: u64) -> Option<Position> {
        let entry = self.worker.names.find(name).and_then(|place| self.worker.names.at(place))?;
        Some(self.table.resolve((entry.run, entry.offset)))
    }

    fn park(&mut self, parent: u64, stored: &StoredBlocks<'_>) {
        self.applied.parked += stored.names.len() as u32;
        self.applied.dropped += self.worker.parked.park(Waiting::new(parent, stored)) as u32;
    }

    fn note_page(&mut self, name: u64, start: Start, tier: Tier) {
        let page = self.worker.pages.entry(name).or_insert(PartialPage {
            prefix: start.prefix,
            previous: start.previous,
            filled_tokens: 0,
            copies: [0; 3],
        });
        debug_assert!(start.filled_tokens < GRAIN, "a full group is a block");
        page.prefix = start.prefix;
        page.previous = start.previous;
        page.filled_tokens = start.filled_tokens as u8;
        increment(&mut page.copies, tier);
    }
}
