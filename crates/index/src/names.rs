//! Maps the names that one worker's engine gives its blocks to their position in our table, and counts
//! copies.
//!
//! An open-addressing table with 16 bytes per entry. A name's home place is the name scaled to the capacity,
//! so entries keep their order when the table grows, and growing is one pass over both tables. The home place
//! is always the first of a cache line: the table is usually cold, and most look-ups then cost one fetch
//! instead of two. That makes a load factor of 4/5 affordable, and with it growth by doubling, which takes 20
//! to 40 bytes per name. Growing by half at a load factor of 2/3 takes 24 to 36 bytes, but moving the names
//! twice and faulting in fresh pages made up a third of the cost of a store.

use maitre_base::Tier;
use std::hint::black_box;

/// Just before the table grows, four in ten new names need a second cache line.
const LOAD: (usize, usize) = (4, 5);
const CAPACITY_MIN: usize = 16;
const ENTRY_BYTES: usize = size_of::<[u64; 2]>();
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4_096;
/// Entries per cache line.
const LINE: usize = LINE_BYTES / ENTRY_BYTES;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) name: u64,
    /// The run in which the block was stored. The run may have been split since; `PrefixTable::resolve`
    /// follows the split.
    pub(crate) run: u32,
    pub(crate) offset: u8,
    /// Copies per tier, saturating at 255. With more copies than that, a block may be forgotten too early,
    /// never too late. Zero in every tier marks an empty place.
    pub(crate) copies: [u8; 3],
}

impl Name {
    #[inline]
    fn pack(self) -> [u64; 2] {
        let [gpu, cpu, disk] = self.copies.map(u64::from);
        let copies = gpu | cpu << 8 | disk << 16;
        [self.name, copies << 40 | u64::from(self.offset) << 32 | u64::from(self.run)]
    }

    #[inline]
    fn unpack([name, rest]: [u64; 2]) -> Name {
        let copies = [rest >> 40, rest >> 48, rest >> 56].map(|it| it as u8);
        Name { name, run: rest as u32, offset: (rest >> 32) as u8, copies }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.copies == [0; 3]
    }

    /// Whether there is a copy in any tier other than the GPU.
    pub(crate) fn is_lower(&self) -> bool {
        self.copies[Tier::Cpu as usize] > 0 || self.copies[Tier::Disk as usize] > 0
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// Packed entries. A zero second word marks an empty place, and zeroed memory is free to allocate. Places
    /// before `first` and from `end` on stay empty; they only align the table to a cache line.
    entries: Vec<[u64; 2]>,
    first: usize,
    end: usize,
    len: usize,
    seed: u64,
}

impl Names {
    pub(crate) fn new(seed: u64) -> Names {
        Names { entries: Vec::new(), first: 0, end: 0, len: 0, seed }
    }

    /// The number of places, full or empty.
    pub(crate) fn places(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn find(&self, name: u64) -> Option<usize> {
        if self.entries.is_empty() { None } else { self.find_place(name).ok() }
    }

    /// The place of the name, or the empty place where `fill` may put it. The table must have an empty place:
    /// call `reserve` first.
    #[inline]
    pub(crate) fn find_place(&self, name: u64) -> Result<usize, usize> {
        let home = self.home(name);
        if let Some(line) = self.entries.get(home..home + LINE) {
            // Compare all four entries without branching: a branch would be mispredicted every other time.
            let full = line.iter().filter(|it| !is_empty(it)).count();
            let is_known = line.iter().fold(false, |known, it| known | (it[0] == name && !is_empty(it)));
            if !is_known && full < LINE {
                return Err(home + full);
            }
        }
        self.find_beyond(home, name)
    }

    fn find_beyond(&self, mut at: usize, name: u64) -> Result<usize, usize> {
        loop {
            let entry = &self.entries[at];
            if is_empty(entry) {
                return Err(at);
            }
            if entry[0] == name {
                return Ok(at);
            }
            at = self.after(at);
        }
    }

    /// Starts the fetch that `find` will need, without waiting for it. See `ReportApplier::hash`.
    #[inline]
    pub(crate) fn touch(&self, name: u64) -> u64 {
        self.entries.get(self.home(name)).map_or(0, |it| it[0])
    }

    /// None for an empty place.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> Option<Name> {
        self.entries.get(place).filter(|it| !is_empty(it)).map(|&it| Name::unpack(it))
    }

    /// Changes the entry at a place that `find` returned. An entry without copies frees the place, and the
    /// next entry may move there.
    pub(crate) fn set(&mut self, place: usize, entry: Name) {
        if entry.is_gone() {
            self.close(place);
        } else {
            self.entries[place] = entry.pack();
        }
    }

    /// Makes room for this many more names.
    #[inline]
    pub(crate) fn reserve(&mut self, count: usize) {
        let capacity = self.capacity_for(self.len + count);
        if capacity != self.capacity() {
            self.resize(capacity);
        }
    }

    /// Puts an entry in the place that `find_place` returned for its name. The table must not have changed
    /// since, and the entry must have a copy.
    #[inline]
    pub(crate) fn fill(&mut self, place: usize, entry: Name) {
        debug_assert!(!entry.is_gone(), "an entry without copies is an empty place");
        self.entries[place] = entry.pack();
        self.len += 1;
    }

    /// Releases memory after the number of names has shrunk.
    pub(crate) fn shrink(&mut self) {
        if self.len * 4 < self.capacity() && self.capacity() > CAPACITY_MIN {
            self.resize(CAPACITY_MIN.max(self.len * 2).next_multiple_of(LINE));
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * ENTRY_BYTES
    }

    /// Peak memory for inserting this many names, while the old and the new table both exist.
    pub(crate) fn bytes_to_insert(&self, count: usize) -> usize {
        let capacity = self.capacity_for(self.len + count);
        if capacity == self.capacity() { 0 } else { (capacity + LINE) * ENTRY_BYTES }
    }

    /// The capacity in entries: always whole cache lines.
    #[inline]
    fn capacity(&self) -> usize {
        self.end - self.first
    }

    #[inline]
    fn capacity_for(&self, len: usize) -> usize {
        let mut capacity = self.capacity();
        while len * LOAD.1 > capacity * LOAD.0 {
            capacity = CAPACITY_MIN.max(capacity * 2);
        }
        capacity
    }

    #[inline(never)]
    fn resize(&mut self, capacity: usize) {
        let old = std::mem::replace(&mut self.entries, vec![[0; 2]; capacity + LINE - 1]);
        self.first = self.entries.as_ptr().align_offset(LINE_BYTES).min(LINE - 1);
        self.end = self.first + capacity;
        // Write each page before reading it: a page that is read first faults twice, once for the read and
        // once for the write.
        self.entries.iter_mut().step_by(PAGE_BYTES / ENTRY_BYTES).for_each(|it| *it = black_box([0; 2]));
        old.into_iter().filter(|it| !is_empty(it)).for_each(|it| self.put(it));
    }

    #[inline]
    fn put(&mut self, entry: [u64; 2]) {
        let home = self.home(entry[0]);
        let mut at = home;
        if let Some(line) = self.entries.get(home..home + LINE) {
            at += line.iter().filter(|it| !is_empty(it)).count().min(LINE - 1);
        }
        while !is_empty(&self.entries[at]) {
            at = self.after(at);
        }
        self.entries[at] = entry;
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.end { self.first } else { at + 1 }
    }

    fn close(&mut self, mut gap: usize) {
        self.len -= 1;
        let capacity = self.capacity();
        let mut next = gap;
        loop {
            next = self.after(next);
            if is_empty(&self.entries[next]) {
                break;
            }
            // An entry after the gap may move into it unless its home place lies after the gap.
            let home = self.home(self.entries[next][0]);
            if distance(home, next, capacity) >= distance(gap, next, capacity) {
                self.entries[gap] = self.entries[next];
                gap = next;
            }
        }
        self.entries[gap] = [0; 2];
    }

    #[inline]
    fn home(&self, name: u64) -> usize {
        let scrambled = (name ^ self.seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let lines = (self.capacity() / LINE) as u128;
        self.first + ((u128::from(scrambled) * lines) >> 64) as usize * LINE
    }
}

/// An empty place has no copies in any tier.
#[inline]
fn is_empty(entry: &[u64; 2]) -> bool {
    entry[1] >> 40 == 0
}

fn distance(from: usize, to: usize, capacity: usize) -> usize {
    if to >= from { to - from } else { to + capacity - from }
}

#[cfg(test)]
mod tests {
    use super::*;
    use maitre_base::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn matches_a_plain_map() {
        let (mut names, mut plain, mut rng) = (Names::new(9), BTreeMap::new(), Rng::new(2));
        for step in 0..40_000u32 {
            let name = rng.next_u64() % 900;
            match (names.find(name), plain.remove(&name)) {
                (Some(place), Some(run)) => {
                    assert_eq!(names.at(place).map(|it| it.run), Some(run));
                    names.set(place, Name::default());
                }
                (None, None) => {
                    names.reserve(1);
                    let Err(place) = names.find_place(name) else { panic!("step {step}: there now") };
                    names.fill(place, Name { name, run: step, offset: 1, copies: [1, 0, 0] });
                    plain.insert(name, step);
                }
                (place, run) => panic!("step {step}: {place:?} but {run:?}"),
            }
            assert_eq!(names.len, plain.len());
        }
        names.shrink();
        assert!(plain.keys().all(|&name| names.find(name).is_some()));
    }

    #[test]
    fn packing_loses_nothing() {
        let entry = Name { name: u64::MAX - 1, run: u32::MAX - 2, offset: 63, copies: [1, 0, 255] };
        assert_eq!(Name::unpack(entry.pack()), entry);
    }
}
