//! Applies the KV events of one engine: maps names to blocks, counts copies, parks blocks with unknown
//! parents.
//!
//! Engines do not de-duplicate: two requests with one prefix store it twice, and evicting one copy reports
//! "removed" while the other stays. So the index counts copies per name and tier.
//!
//! The index groups pages smaller than `GRAIN`. A group counts as held while its last page is held: engines
//! with such pages (SGLang) keep them in a tree and evict leaves first, so the last page of a group goes
//! first.

use crate::adopted;
use crate::holders::Mask;
use crate::names::{Name, Names};
use crate::parked::Waiting;
use crate::prefix::{PrefixHash, Root, Running, Unit};
use crate::table::{Chain, Placing, Position, PrefixTable};
use crate::worker::{Alias, CacheSource, GRAIN, PartialPage, WorkerBlocks};
use maitre_base::{StoredBlocks, Tier};
use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;

/// Names applied between two checks of the budget.
pub(crate) const PIECE: usize = 64;

/// The result of an event, in blocks (or in pages, where they are smaller).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    pub stored: u32,
    pub removed: u32,
    /// Removals of unknown names.
    pub unknown: u32,
    /// Stores that wait for their parent.
    pub parked: u32,
    /// Too short, of another size, or placeholders of unknown blocks.
    pub ignored: u32,
    /// Dropped because the budget or the parking area was full.
    pub dropped: u32,
}

/// One worker's part of the index, while an event is applied.
pub(crate) struct ReportApplier<'a> {
    pub(crate) table: &'a mut PrefixTable,
    pub(crate) worker: &'a mut WorkerBlocks,
    pub(crate) clock: u32,
    pub(crate) applied: &'a mut Applied,
    /// Parked stores whose parent has arrived.
    pub(crate) ready: &'a mut Vec<Waiting>,
}

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

/// A block as the engine reported it.
#[derive(Clone, Copy)]
struct ReportedBlock {
    name: u64,
    hash: u64,
    tier: Tier,
}

enum Parent {
    Known(Start),
    /// The parent may still arrive.
    Unknown(u64),
    /// The parent is known, but its own prefix is not any more.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Near,
    Lower,
}

impl From<Tier> for Class {
    fn from(tier: Tier) -> Class {
        if tier == Tier::Gpu { Class::Near } else { Class::Lower }
    }
}

impl ReportApplier<'_> {
    /// Stores blocks of this worker's block size, at most `PIECE`. There must be room.
    pub(crate) fn store(&mut self, model: &str, stored: &StoredBlocks<'_>) {
        let (Some(block_tokens), page_tokens) = (self.worker.block_tokens(), stored.block_tokens) else {
            return;
        };
        self.worker.names.reserve(stored.names.len());
        // First, so that these memory fetches overlap with the work that follows.
        self.touch(stored.names);
        let start = match self.parent(model, stored) {
            Parent::Known(start) => start,
            Parent::Lost => return self.applied.dropped += stored.names.len() as u32,
            Parent::Unknown(parent) => return self.park(parent, stored),
        };
        let mut prefixes = [start.prefix; PIECE];
        let count = self.hash(stored, start, &mut prefixes);
        self.applied.ignored += (stored.names.len() - count) as u32;
        self.applied.stored += count as u32;
        let placing = Placing {
            slot: self.worker.slot,
            block_tokens,
            author: None,
            left: count * page_tokens as usize / block_tokens as usize,
            clock: self.clock,
        };
        self.place(stored, &prefixes[..count], start, placing);
        if !self.worker.parked.is_empty() {
            self.wake(&stored.names[..count]);
        }
    }

    /// Prefetches the entries of these names. Look-ups one by one would each wait for memory; in a loop this
    /// short the fetches overlap.
    fn touch(&self, names: &[u64]) {
        black_box(names.iter().fold(0, |sum, &name| sum ^ self.worker.names.touch(name)));
    }

    /// Hashes the pages that have all their tokens, and prefetches their runs.
    fn hash(&self, stored: &StoredBlocks<'_>, start: Start, prefixes: &mut [Running; PIECE]) -> usize {
        let pages = stored.tokens.chunks_exact(stored.block_tokens as usize);
        let block_tokens = self.worker.block_tokens().unwrap_or(stored.block_tokens);
        let (mut running, mut filled) = (start.prefix, start.filled_tokens);
        let mut count = 0;
        for ((_, tokens), slot) in stored.names.iter().zip(pages).zip(prefixes.iter_mut()) {
            if let Some(&extra) = stored.extras.get(count).filter(|&&it| it != 0) {
                running = running.prefix().with(extra).into();
            }
            filled += stored.block_tokens;
            if filled < block_tokens {
                tokens.iter().for_each(|&token| running.push(token));
            } else {
                running = running.end(tokens).into();
                filled = 0;
            }
            *slot = running;
            count += 1;
        }
        black_box(prefixes[..count].iter().fold(0, |sum, it| sum ^ self.table.touch(it.prefix().0)));
        count
    }

    fn place(&mut self, stored: &StoredBlocks<'_>, prefixes: &[Running], start: Start, mut placing: Placing) {
        let mut at = start;
        for (&name, &prefix) in stored.names.iter().zip(prefixes) {
            at.prefix = prefix;
            at.filled_tokens += stored.block_tokens;
            if at.filled_tokens == placing.block_tokens {
                let place = self.place_block(
                    ReportedBlock { name, hash: prefix.prefix().0, tier: stored.tier },
                    at.at,
                    placing,
                );
                placing.left = placing.left.saturating_sub(1);
                at = Start { at: Some(place), previous: Some(name), filled_tokens: 0, prefix };
            } else {
                self.note_page(name, at, stored.tier);
            }
        }
    }

    #[inline]
    fn place_block(&mut self, block: ReportedBlock, at: Option<Position>, placing: Placing) -> Position {
        let ReportedBlock { name, hash, tier } = block;
        if tier == Tier::Gpu
            && let Some(at) = at
            && let Err(empty) = self.worker.names.find_place(name)
            && let Some((run, offset)) = self.table.append(at, hash, placing)
        {
            self.worker.numbers.reported_blocks += 1;
            self.worker.names.fill(empty, Name { name, run, offset, copies: [1, 0, 0] });
            return (run, offset);
        }
        let place = self.table.extend(at, hash, placing);
        self.bind(name, place, tier);
        place
    }

    /// Releases the parked stores that waited for any of these names.
    fn wake(&mut self, names: &[u64]) {
        for &name in names {
            while let Some(waiting) = self.worker.parked.take_child(name) {
                self.ready.push(waiting);
            }
        }
    }

    /// Applies blocks without content: known names now have a copy in this tier too.
    pub(crate) fn store_known(&mut self, names: &[u64], tier: Tier) {
        for &name in names {
            match (self.worker.names.find(name), self.worker.pages.get_mut(&name)) {
                (Some(place), _) => self.copy(place, tier),
                (None, Some(page)) => increment(&mut page.copies, tier),
                (None, None) => {
                    self.applied.ignored += 1;
                    continue;
                }
            }
            self.applied.stored += 1;
        }
    }

    pub(crate) fn remove(&mut self, names: &[u64], tier: Tier) {
        for piece in names.chunks(PIECE) {
            self.touch(piece);
            self.remove_piece(piece, tier);
        }
    }

    fn remove_piece(&mut self, names: &[u64], tier: Tier) {
        for &name in names {
            let is_known = match self.worker.names.find(name) {
                Some(place) => self.uncopy(place, tier),
                None => self.remove_page(name, tier) || self.worker.parked.remove(name),
            };
            if is_known {
                self.disown_if_gone(name);
                self.applied.removed += 1;
            } else {
                self.applied.unknown += 1;
            }
        }
    }

    /// Forgets the name at this place, in all tiers.
    pub(crate) fn forget(&mut self, place: usize) {
        let Some(entry) = self.worker.names.at(place) else { return };
        self.worker.names.set(place, Name::default());
        self.unbind(entry);
        self.disown(entry.name);
    }

    /// The engine holds this chain, and `parent` is its name for the last block. There must be room.
    pub(crate) fn adopt(&mut self, parent: u64, chain: Chain<'_>) {
        self.worker.names.reserve(chain.prefixes.len());
        let mut at = None;
        let Some((last, ancestors)) = chain.prefixes.split_last() else { return };
        let ancestors: Box<[u64]> = ancestors.iter().map(|it| it.0).collect();
        let names = ancestors.iter().map(|&it| (adopted::name_of(it), it)).chain([(parent, last.0)]);
        for (number, (name, hash)) in names.enumerate() {
            let placing = Placing {
                slot: self.worker.slot,
                block_tokens: chain.block_tokens,
                author: None,
                left: chain.prefixes.len() - number,
                clock: self.clock,
            };
            let place = self.table.extend(at, hash, placing);
            self.bind(name, place, Tier::Gpu);
            at = Some(place);
        }
        self.worker.adopted.insert(parent, ancestors);
        self.wake(&[parent]);
    }

    /// An adopted parent that has left the GPU takes its ancestors along, as far as we know.
    fn disown_if_gone(&mut self, name: u64) {
        if self.worker.adopted.is_empty() {
            return;
        }
        let entry = self.worker.names.find(name).and_then(|it| self.worker.names.at(it));
        if entry.is_none_or(|it| it.copies[0] == 0) {
            self.disown(name);
        }
    }

    fn disown(&mut self, name: u64) {
        let Some(ancestors) = self.worker.adopted.remove(name) else { return };
        for &hash in ancestors.iter().rev() {
            if let Some(place) = self.worker.names.find(adopted::name_of(hash)) {
                self.uncopy(place, Tier::Gpu);
            }
        }
    }

    /// Forgets everything that this worker reported.
    pub(crate) fn clear(&mut self, seed: u64) {
        let names = std::mem::replace(&mut self.worker.names, Names::new(seed));
        for place in 0..names.places() {
            if let Some(entry) = names.at(place) {
                self.unbind(entry);
            }
        }
        debug_assert!(self.worker.aliases.is_empty(), "an alias outlived its names");
        self.forget_rest();
    }

    /// Turns all that this worker reported on its GPU into predictions, and forgets the rest.
    pub(crate) fn doubt(&mut self, seed: u64) {
        let names = std::mem::replace(&mut self.worker.names, Names::new(seed));
        let entries = || (0..names.places()).filter_map(|place| names.at(place));
        // Lower tiers first: a block that is in no other is gone then, and its names with it.
        for entry in entries().filter(Name::is_lower) {
            let position = self.table.resolve((entry.run, entry.offset));
            self.let_go(position, Class::Lower, entry.copies[0] == 0);
        }
        for entry in entries().filter(|it| it.copies[0] > 0) {
            let (run, offset) = self.table.resolve((entry.run, entry.offset));
            self.table.change(run, self.worker.slot, |share| {
                share.gpu &= !(1 << offset);
                share.predicted |= 1 << offset;
            });
        }
        // Evicted in the order of their last use, whether a request or a report showed it.
        let used = |id: u32| self.table.beliefs.get(id).map(|it| self.table.runs[it.run].used.load(Relaxed));
        let mut order: Vec<(Option<u32>, u32)> =
            self.table.beliefs.ids(self.worker.slot).map(|id| (used(id), id)).collect();
        order.sort_by_key(|it| it.0);
        order.iter().for_each(|&(_, id)| self.table.beliefs.renew(id));
        self.worker.numbers.reported_blocks = 0;
        self.worker.aliases.clear();
        self.forget_rest();
    }

    /// What is kept besides names.
    fn forget_rest(&mut self) {
        self.worker.pages = Default::default();
        self.worker.parked = Default::default();
        self.worker.adopted = Default::default();
        self.worker.coverage = Default::default();
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

    /// Binds this name to the block at this position, and counts one more copy.
    fn bind(&mut self, name: u64, (run, offset): Position, tier: Tier) {
        let place = match self.worker.names.find_place(name) {
            Ok(place) => place,
            Err(empty) => {
                let mut copies = [0; 3];
                copies[tier as usize] = 1;
                self.hold_new((run, offset), tier.into());
                return self.worker.names.fill(empty, Name { name, run, offset, copies });
            }
        };
        let Some(entry) = self.worker.names.at(place) else { return };
        let known = (entry.run, entry.offset);
        if known != (run, offset) {
            if self.table.resolve(known) != (run, offset) {
                return self.rebind(entry, (run, offset), tier);
            }
            self.worker.names.set(place, Name { run, offset, ..entry });
        }
        self.copy(place, tier);
    }

    /// Rebinds a name that the engine reuses for another block: the block it named before is gone.
    fn rebind(&mut self, old: Name, (run, offset): Position, tier: Tier) {
        // The new block first: releasing the old one might free the run.
        self.hold_new((run, offset), tier.into());
        self.unbind(old);
        if let Some(place) = self.worker.names.find(old.name) {
            let mut copies = [0; 3];
            copies[tier as usize] = 1;
            self.worker.names.set(place, Name { run, offset, copies, ..old });
        }
        self.disown(old.name);
    }

    /// Counts one more copy of a known name.
    fn copy(&mut self, place: usize, tier: Tier) {
        let Some(entry) = self.worker.names.at(place) else { return };
        let class = Class::from(tier);
        let is_there = if class == Class::Near { entry.copies[0] > 0 } else { entry.is_lower() };
        let mut more = entry;
        increment(&mut more.copies, tier);
        self.worker.names.set(place, more);
        let position = self.table.resolve((entry.run, entry.offset));
        if !is_there {
            self.count_alias(position, class, |count| *count += 1);
            self.hold(position, class);
        } else if class == Class::Near {
            self.overrule(position);
        }
    }

    /// Counts one copy less. False if there was none in this tier.
    fn uncopy(&mut self, place: usize, tier: Tier) -> bool {
        let Some(entry) = self.worker.names.at(place) else { return false };
        let mut after = entry;
        let Some(fewer) = after.copies[tier as usize].checked_sub(1) else {
            if tier == Tier::Gpu {
                // There is no known copy, but the removal overrules a prediction.
                let position = self.table.resolve((entry.run, entry.offset));
                self.overrule(position);
            }
            return false;
        };
        after.copies[tier as usize] = fewer;
        self.worker.names.set(place, after);
        let position = self.table.resolve((entry.run, entry.offset));
        if tier == Tier::Gpu && fewer == 0 {
            self.let_go(position, Class::Near, after.is_gone());
        }
        if tier != Tier::Gpu && !after.is_lower() {
            self.let_go(position, Class::Lower, after.is_gone());
        }
        true
    }

    /// Releases everything that a name refers to.
    fn unbind(&mut self, entry: Name) {
        let position = self.table.resolve((entry.run, entry.offset));
        let (near, lower) = (entry.copies[0] > 0, entry.is_lower());
        if lower {
            self.let_go(position, Class::Lower, !near);
        }
        if near {
            self.let_go(position, Class::Near, true);
        }
    }

    /// Adds a holder for a new name of this block. If another name refers to it too, both are counted from
    /// now on.
    fn hold_new(&mut self, position: Position, class: Class) {
        let (run, offset) = position;
        let bit: Mask = 1 << offset;
        if let Some(share) = self.table.share(run, self.worker.slot)
            && (share.gpu | share.lower) & bit != 0
        {
            let only = Alias {
                names: 1,
                near: u32::from(share.gpu & bit != 0),
                lower: u32::from(share.lower & bit != 0),
            };
            let alias = self.worker.aliases.entry(self.table.hash(position)).or_insert(only);
            alias.names += 1;
            *count(alias, class) += 1;
        }
        self.hold(position, class);
    }

    fn hold(&mut self, (run, offset): Position, class: Class) {
        let bit: Mask = 1 << offset;
        if class == Class::Near && self.table.hold_alone(run, self.worker.slot, bit) {
            self.worker.numbers.reported_blocks += 1;
            return;
        }
        let mut gained = 0;
        self.table.change(run, self.worker.slot, |share| match class {
            Class::Lower => share.lower |= bit,
            Class::Near => {
                gained = u32::from(share.gpu & bit == 0);
                share.gpu |= bit;
            }
        });
        if class == Class::Near {
            // From now on the block is held by report, not by prediction.
            self.overrule((run, offset));
        }
        *self.table.runs[run].used.get_mut() = self.clock;
        self.worker.numbers.reported_blocks += gained;
    }

    fn let_go(&mut self, (run, offset): Position, class: Class, name_is_gone: bool) {
        let is_last = self.count_alias((run, offset), class, |count| *count -= 1) == 0;
        if name_is_gone && !self.worker.aliases.is_empty() {
            self.drop_alias((run, offset));
        }
        if !is_last {
            return;
        }
        let bit: Mask = 1 << offset;
        if class == Class::Near {
            self.worker.numbers.reported_blocks -= 1;
        }
        if class == Class::Near {
            self.overrule((run, offset));
        }
        self.table.change(run, self.worker.slot, |share| match class {
            Class::Lower => share.lower &= !bit,
            Class::Near => share.gpu &= !bit,
        });
    }

    /// A report about this block overrules a prediction, unless a request waits at the engine that will compute it.
    fn overrule(&mut self, (run, offset): Position) {
        let bit: Mask = 1 << offset;
        let slot = self.worker.slot;
        let Some(&share) = self.table.share(run, slot).filter(|it| it.predicted & bit != 0) else { return };
        let is_settled = self.table.beliefs.get(share.belief).is_some_and(|it| it.settled.is_some());
        if is_settled || self.worker.source == CacheSource::Predicted {
            self.table.change(run, slot, |share| share.predicted &= !bit);
        }
    }

    /// Changes the count of names for this block, if it has more than one. Returns zero if it has only one.
    fn count_alias(&mut self, position: Position, class: Class, change: impl FnOnce(&mut u32)) -> u32 {
        if self.worker.aliases.is_empty() {
            return 0;
        }
        let Some(alias) = self.worker.aliases.get_mut(&self.table.hash(position)) else { return 0 };
        let count = count(alias, class);
        change(count);
        *count
    }

    fn drop_alias(&mut self, position: Position) {
        let hash = self.table.hash(position);
        if let Some(alias) = self.worker.aliases.get_mut(&hash) {
            alias.names -= 1;
            if alias.names == 1 {
                self.worker.aliases.remove(&hash);
            }
        }
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

    fn remove_page(&mut self, name: u64, tier: Tier) -> bool {
        let Some(page) = self.worker.pages.get_mut(&name) else { return false };
        let Some(fewer) = page.copies[tier as usize].checked_sub(1) else { return false };
        page.copies[tier as usize] = fewer;
        if page.copies == [0; 3] {
            self.worker.pages.remove(&name);
        }
        true
    }
}

fn count(alias: &mut Alias, class: Class) -> &mut u32 {
    match class {
        Class::Near => &mut alias.near,
        Class::Lower => &mut alias.lower,
    }
}

fn increment(copies: &mut [u8; 3], tier: Tier) {
    let count = &mut copies[tier as usize];
    *count = count.saturating_add(1);
}
