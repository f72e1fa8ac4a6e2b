//! Applies the KV events of one engine: maps names to blocks, and counts copies. Stores are in `stored.rs`.
//!
//! Engines do not de-duplicate: two requests with one prefix store it twice, and evicting one copy reports
//! "removed" while the other stays. So the index counts copies per name and tier.
//!
//! The index groups pages smaller than `GRAIN`. A group counts as held while its last page is held: engines
//! with such pages (SGLang) keep them in a tree and evict leaves first, so the last page of a group goes
//! first.

use std::sync::atomic::Ordering::Relaxed;

use crate::adopted;
use crate::holders::Mask;
use crate::names::{Name, Names};
use crate::parked::Waiting;
use crate::table::{Position, PrefixTable};
use crate::worker::{Alias, CacheSource, WorkerBlocks};
use maitre_base::Tier;

/// Names applied between two checks of the budget.
pub(crate) const PIECE: usize = 64;

/// The result of an event, in blocks (or in pages, if they are smaller).
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

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Near,
    Lower,
}

impl From<Tier> for Class {
    fn from(tier: Tier) -> Class {
        if tier == Tier::Gpu { Class::Near } else { Class::Lower }
    }
}

impl ReportApplier<'_> {
    /// Releases the parked stores that waited for any of these names.
    pub(crate) fn wake(&mut self, names: &[u64]) {
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
            self.touch(piece.iter());
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

    /// Forgets the ancestors of an adopted parent that has left the GPU, as far as we know them.
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
        let in_order = self.table.beliefs.ids(self.worker.slot).count();
        let entries = || (0..names.places()).filter_map(|place| names.at(place));
        // Lower tiers first: then a block that is in no other tier disappears, and its names with it.
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
        self.merge_order(in_order);
        self.worker.numbers.reported_blocks = 0;
        self.worker.aliases.clear();
        self.forget_rest();
    }

    /// Moves all but the first entries of the eviction order to the place that the last use of their runs gives them.
    fn merge_order(&mut self, in_order: usize) {
        let used = |id: u32| self.table.beliefs.get(id).map(|it| self.table.runs[it.run].used.load(Relaxed));
        let mut order: Vec<(Option<u32>, u32)> =
            self.table.beliefs.ids(self.worker.slot).map(|id| (used(id), id)).collect();
        // A run is also used by requests that went to other workers, which does not change the order here.
        for place in (1..in_order).rev() {
            order[place - 1].0 = order[place - 1].0.min(order[place].0);
        }
        order.sort_by_key(|it| it.0);
        order.iter().for_each(|&(_, id)| self.table.beliefs.renew(id));
    }

    /// Forgets everything except names.
    fn forget_rest(&mut self) {
        self.worker.pages = Default::default();
        self.worker.parked = Default::default();
        self.worker.adopted = Default::default();
        self.worker.coverage = Default::default();
    }

    /// Binds this name to the block at this position, and counts one more copy.
    pub(crate) fn bind(&mut self, name: u64, (run, offset): Position, tier: Tier) {
        let Some(place) = self.worker.names.find(name) else {
            let mut copies = [0; 3];
            copies[tier as usize] = 1;
            self.hold_new((run, offset), tier.into());
            return self.worker.names.insert(Name { name, run, offset, copies });
        };
        let Some(entry) = self.worker.names.at(place) else { return };
        let known = (entry.run, entry.offset);
        if known != (run, offset) {
            if self.table.resolve(known) != (run, offset) {
                self.hold_new((run, offset), tier.into());
                return self.rebind(entry, (run, offset), tier);
            }
            self.worker.names.set(place, Name { run, offset, ..entry });
        }
        self.copy(place, tier);
    }

    /// Rebinds a name that the engine reuses for another block: the block it named before is gone. The new block must
    /// be held already, because releasing the old one might free the run.
    pub(crate) fn rebind(&mut self, old: Name, (run, offset): Position, tier: Tier) {
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
            self.hold(position.0, 1 << position.1, class);
        } else if class == Class::Near {
            self.confirm(position.0, 1 << position.1);
        }
    }

    /// Counts one copy fewer. Returns false if there was none in this tier.
    fn uncopy(&mut self, place: usize, tier: Tier) -> bool {
        let Some(entry) = self.worker.names.at(place) else { return false };
        let mut after = entry;
        let Some(fewer) = after.copies[tier as usize].checked_sub(1) else {
            if tier == Tier::Gpu {
                // There is no known copy, but the removal overrules a prediction.
                let (run, offset) = self.table.resolve((entry.run, entry.offset));
                self.overrule(run, 1 << offset);
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

    /// Adds a holder for a new name of this block. If another name refers to it too, both are counted from now on.
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
        self.hold(run, bit, class);
    }

    /// Adds a holder for these blocks of a run.
    pub(crate) fn hold(&mut self, run: u32, bits: Mask, class: Class) {
        if class == Class::Near && self.table.hold_alone(run, self.worker.slot, bits) {
            self.worker.numbers.reported_blocks += bits.count_ones();
            return;
        }
        let mut gained = 0;
        self.table.change(run, self.worker.slot, |share| match class {
            Class::Lower => share.lower |= bits,
            Class::Near => {
                gained = (bits & !share.gpu).count_ones();
                share.gpu |= bits;
            }
        });
        if class == Class::Near {
            self.confirm(run, bits);
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
            self.overrule(run, bit);
        }
        self.table.change(run, self.worker.slot, |share| match class {
            Class::Lower => share.lower &= !bit,
            Class::Near => share.gpu &= !bit,
        });
    }

    /// The engine has stored these blocks, so they are held by report. If all its reports are known, the prediction
    /// stays too: it gives the blocks' place in the eviction order.
    fn confirm(&mut self, run: u32, bits: Mask) {
        if self.worker.source == CacheSource::Predicted {
            self.overrule(run, bits);
        }
    }

    /// A report about these blocks overrules a prediction, unless a request that waits at the engine will compute
    /// them.
    fn overrule(&mut self, run: u32, bits: Mask) {
        let slot = self.worker.slot;
        let Some(&share) = self.table.share(run, slot).filter(|it| it.predicted & bits != 0) else { return };
        let is_settled = self.table.beliefs.get(share.belief).is_some_and(|it| it.settled.is_some());
        if is_settled || self.worker.source == CacheSource::Predicted {
            self.table.change(run, slot, |share| share.predicted &= !bits);
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

pub(crate) fn increment(copies: &mut [u8; 3], tier: Tier) {
    let count = &mut copies[tier as usize];
    *count = count.saturating_add(1);
}
