//! Maps the names that one worker's engine gives its blocks to their position in our table, and counts
//! copies.
//!
//! Entries are a list in the order in which they were stored, 16 bytes each: writing the blocks of one store is
//! sequential. A table of four-byte words finds them: a part of the name's hash, and the number of the entry.
//! Every store and removal reads one random line of that table per name, and nearly all of them miss the CPU's
//! caches. A table of the entries themselves has four times as many lines for as many names: stores took 1.4 times
//! as long with it, removals 1.6 times.
//!
//! A line of the table has 15 words, and counts the names for which it had no room. Those are in one of the next
//! lines, and a search continues there only if the count is not zero. So a removal needs no other name's entry.

use maitre_base::Tier;

/// Words of a line that are in use before the table grows. More would make a second line frequent.
const LINE_NAMES: usize = 12;
const LINE_WORDS: usize = 15;
/// Two hundred million names. A word must hold the number of the entry and a few bits of its hash.
const LINES_MAX: usize = 1 << 24;
/// Entries per page of the list, as a power of two.
const PAGE_SHIFT: u32 = 7;
const PAGE: usize = 1 << PAGE_SHIFT;
const ENTRY_BYTES: usize = size_of::<[u64; 2]>();
/// Ends the list of empty places.
const END: u32 = u32::MAX;

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
    #[inline(always)]
    fn pack(self) -> [u64; 2] {
        let [gpu, cpu, disk] = self.copies;
        let copies = u64::from(gpu) << 40 | u64::from(cpu) << 48 | u64::from(disk) << 56;
        [self.name, copies | u64::from(self.offset) << 32 | u64::from(self.run)]
    }

    #[inline]
    fn unpack([name, rest]: [u64; 2]) -> Name {
        let [offset, gpu, cpu, disk] = ((rest >> 32) as u32).to_le_bytes();
        Name { name, run: rest as u32, offset, copies: [gpu, cpu, disk] }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.copies == [0; 3]
    }

    /// Whether there is a copy in any tier other than the GPU.
    pub(crate) fn is_lower(&self) -> bool {
        self.copies[Tier::Cpu as usize] > 0 || self.copies[Tier::Disk as usize] > 0
    }
}

/// A cache line of the table. The used words come first.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line {
    words: [u32; LINE_WORDS],
    used: u8,
    /// Names whose search begins here or before and ends after this line. Saturates, and then stays.
    passed: u8,
    /// One bit per word: whether the search for its name begins in an earlier line.
    moved: u16,
}

impl Line {
    /// Removes a word. The last one takes its place.
    fn remove(&mut self, word: usize) {
        self.used -= 1;
        let last = usize::from(self.used);
        let is_moved = self.moved >> last & 1;
        self.moved = self.moved & !(1 << word) & !(1 << last);
        self.words[word] = self.words[last];
        self.words[last] = 0;
        if word != last {
            self.moved |= is_moved << word;
        }
    }
}

const EMPTY: Line = Line { words: [0; LINE_WORDS], used: 0, passed: 0, moved: 0 };

#[derive(Clone, Debug)]
pub(crate) struct Names {
    lines: Vec<Line>,
    /// Packed entries. One without copies is an empty place; its first word is the number of the next one.
    pages: Vec<Box<[[u64; 2]]>>,
    /// Places that have ever been full.
    places: usize,
    /// The first empty place of them.
    empty: u32,
    len: usize,
    /// The number of lines, as a power of two. This many bits of a hash select the line.
    line_bits: u32,
    seed: u64,
}

impl Names {
    pub(crate) fn new(seed: u64) -> Names {
        Names { lines: Vec::new(), pages: Vec::new(), places: 0, empty: END, len: 0, line_bits: 0, seed }
    }

    /// The number of places, full or empty.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    /// The place of the name's entry.
    #[inline]
    pub(crate) fn find(&self, name: u64) -> Option<usize> {
        let (mut at, hash) = self.home(self.hash(name));
        // Every line may have been full at some time.
        for _ in 0..self.lines.len() {
            let line = &self.lines[at];
            // Compare all words without branching. There is a match only if the name is known, or by accident.
            let is_match = |word: u32| (word ^ hash) & !number_mask(self.line_bits) == 0;
            if line.words.iter().fold(false, |any, &it| any | is_match(it)) {
                let words = line.words.iter().take(usize::from(line.used));
                let mut places = words.filter(|&&it| is_match(it)).map(|&it| place_of(it, self.line_bits));
                if let Some(place) = places.find(|&it| self.entry(it)[0] == name) {
                    return Some(place);
                }
            }
            if line.passed == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Starts the fetch that `find` will need, without waiting for it. See `ReportApplier::touch`.
    #[inline]
    pub(crate) fn touch(&self, name: u64) -> u8 {
        self.lines.get(self.home(self.hash(name)).0).map_or(0, |it| it.used)
    }

    /// The same for the next `insert`.
    #[inline]
    pub(crate) fn touch_next(&self) -> u64 {
        let place = if self.empty == END { self.places } else { self.empty as usize };
        self.pages.get(place >> PAGE_SHIFT).map_or(0, |it| it[place % PAGE][1])
    }

    /// `None` for an empty place.
    #[inline]
    pub(crate) fn at(&self, place: usize) -> Option<Name> {
        if place >= self.places {
            return None;
        }
        Some(Name::unpack(self.entry(place))).filter(|it| !it.is_gone())
    }

    /// Changes the entry at a place that `find` returned. An entry without copies leaves the place empty.
    pub(crate) fn set(&mut self, place: usize, entry: Name) {
        if entry.is_gone() {
            self.remove(place);
        } else {
            *self.entry_mut(place) = entry.pack();
        }
    }

    /// Makes room for this many more names.
    #[inline]
    pub(crate) fn reserve(&mut self, count: usize) {
        let lines = self.lines_for(self.len + count);
        if lines != self.lines.len() {
            self.resize(lines);
        }
    }

    /// Adds a name that is not there. There must be room: call `reserve` first. The entry must have a copy.
    #[inline]
    pub(crate) fn insert(&mut self, entry: Name) {
        debug_assert!(!entry.is_gone(), "an entry without copies is an empty place");
        let [name, rest] = entry.pack();
        self.insert_packed(name, rest);
    }

    /// Takes a packed entry in two registers. If it were read from memory in larger parts than it was just written,
    /// the read would wait for all earlier writes: a tenth of a store.
    fn insert_packed(&mut self, name: u64, rest: u64) {
        let place = match self.empty {
            END => self.add_place(),
            empty => {
                self.empty = self.entry(empty as usize)[0] as u32;
                empty as usize
            }
        };
        *self.entry_mut(place) = [name, rest];
        self.len += 1;
        self.link(self.hash(name), place);
    }

    /// Releases memory after the number of names has shrunk.
    pub(crate) fn shrink(&mut self) {
        if self.len * 4 < self.lines.len() * LINE_NAMES && self.lines.len() > 1 {
            let old = std::mem::replace(self, Names::new(self.seed));
            self.reserve(old.len);
            (0..old.places).filter_map(|place| old.at(place)).for_each(|it| self.insert(it));
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lines.capacity() * size_of::<Line>()
            + self.pages.len() * PAGE * ENTRY_BYTES
            + self.pages.capacity() * size_of::<Box<[[u64; 2]]>>()
    }

    /// Peak memory for inserting this many names, while the old and the new table both exist.
    pub(crate) fn bytes_to_insert(&self, count: usize) -> usize {
        let lines = match self.lines_for(self.len + count) {
            lines if lines == self.lines.len() => 0,
            lines if lines > LINES_MAX => return isize::MAX as usize,
            lines => lines,
        };
        let pages = count.div_ceil(PAGE) + 1;
        lines * size_of::<Line>() + pages * PAGE * ENTRY_BYTES + (self.pages.capacity() + pages) * 32 + 64
    }

    #[inline]
    fn lines_for(&self, len: usize) -> usize {
        let mut lines = self.lines.len();
        while len > lines * LINE_NAMES {
            lines = 1.max(lines * 2);
        }
        lines
    }

    #[inline(never)]
    fn resize(&mut self, lines: usize) {
        let old = std::mem::replace(&mut self.lines, vec![EMPTY; lines]);
        let old_bits = std::mem::replace(&mut self.line_bits, lines.ilog2());
        for (at, line) in old.iter().enumerate() {
            for (number, &word) in line.words.iter().take(usize::from(line.used)).enumerate() {
                let place = place_of(word, old_bits);
                // A line and its words have all bits of the hash that a larger table needs.
                let hash = match line.moved >> number & 1 {
                    0 => {
                        ((at as u64) << (32 - old_bits)) as u32 | (word & !number_mask(old_bits)) >> old_bits
                    }
                    _ => self.hash(self.entry(place)[0]),
                };
                self.link(hash, place);
            }
        }
    }

    fn add_place(&mut self) -> usize {
        if self.places == self.pages.len() * PAGE {
            self.pages.push(vec![[0; 2]; PAGE].into_boxed_slice());
        }
        self.places += 1;
        self.places - 1
    }

    /// Adds a word for the entry at this place.
    #[inline]
    fn link(&mut self, hash: u32, place: usize) {
        let (home, word) = self.home(hash);
        let mut at = home;
        while usize::from(self.lines[at].used) == LINE_WORDS {
            self.lines[at].passed = self.lines[at].passed.saturating_add(1);
            at = self.after(at);
        }
        let line = &mut self.lines[at];
        line.moved |= u16::from(at != home) << line.used;
        line.words[usize::from(line.used)] = word | (place as u32 + 1);
        line.used += 1;
    }

    /// Removes the word of the entry at this place, and the entry.
    fn remove(&mut self, place: usize) {
        let name = self.entry(place)[0];
        let (mut at, _) = self.home(self.hash(name));
        loop {
            let line = &self.lines[at];
            let mut words = line.words.iter().take(usize::from(line.used));
            if let Some(word) = words.position(|&it| place_of(it, self.line_bits) == place) {
                self.lines[at].remove(word);
                break;
            }
            let passed = &mut self.lines[at].passed;
            // A saturated count may be too low.
            *passed -= u8::from(*passed < u8::MAX);
            at = self.after(at);
        }
        *self.entry_mut(place) = [u64::from(self.empty), 0];
        self.empty = place as u32;
        self.len -= 1;
    }

    #[inline]
    fn after(&self, line: usize) -> usize {
        if line + 1 == self.lines.len() { 0 } else { line + 1 }
    }

    #[inline]
    fn entry(&self, place: usize) -> [u64; 2] {
        self.pages[place >> PAGE_SHIFT][place % PAGE]
    }

    #[inline]
    fn entry_mut(&mut self, place: usize) -> &mut [u64; 2] {
        &mut self.pages[place >> PAGE_SHIFT][place % PAGE]
    }

    #[inline]
    fn hash(&self, name: u64) -> u32 {
        ((name ^ self.seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
    }

    /// The line where the search for a name with this hash begins, and the part of the hash that its word has: the bits
    /// after those that select the line.
    #[inline]
    fn home(&self, hash: u32) -> (usize, u32) {
        let shifted = u64::from(hash) << self.line_bits;
        ((shifted >> 32) as usize, shifted as u32 & !number_mask(self.line_bits))
    }
}

/// The bits of a word that hold the number of the entry, counted from one. A line takes `LINE_NAMES` names, so that
/// is four bits more than select the line.
#[inline]
fn number_mask(line_bits: u32) -> u32 {
    (1 << (line_bits + 4)) - 1
}

#[inline]
fn place_of(word: u32, line_bits: u32) -> usize {
    (word & number_mask(line_bits)).wrapping_sub(1) as usize
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
            // Grows and shrinks by turns, within whole tables and within full ones.
            let known = if step / 5_000 % 2 == 0 { 900 } else { 100 };
            let name = rng.next_u64() % known;
            match (names.find(name), plain.remove(&name)) {
                (Some(place), Some(run)) => {
                    assert_eq!(names.at(place).map(|it| it.run), Some(run));
                    names.set(place, Name::default());
                }
                (None, None) => {
                    names.reserve(1);
                    names.insert(Name { name, run: step, offset: 1, copies: [1, 0, 0] });
                    plain.insert(name, step);
                }
                (place, run) => panic!("step {step}: {place:?} but {run:?}"),
            }
            assert_eq!(names.len, plain.len());
            if step % 977 == 0 {
                names.shrink();
                assert!(plain.keys().all(|&name| names.find(name).is_some()), "step {step}");
            }
        }
        let all = (0..names.places()).filter_map(|it| names.at(it)).map(|it| (it.name, it.run));
        assert_eq!(all.collect::<BTreeMap<u64, u32>>(), plain);
    }

    #[test]
    fn names_with_the_same_hash_are_found_and_removed() {
        // The inverse of the multiplier of `hash`: only low bits of the product differ, which it does not use.
        let name_of = |at: u64| at.wrapping_mul(0xF1DE_83E1_9937_733D);
        let mut names = Names::new(0);
        for at in 0..200 {
            names.reserve(1);
            names.insert(Name { name: name_of(at), run: at as u32, offset: 0, copies: [1, 0, 0] });
            assert_eq!(names.hash(name_of(at)), 0);
        }
        for at in (0..200).rev() {
            let place = names.find(name_of(at)).unwrap_or_else(|| panic!("{at} is lost"));
            assert_eq!(names.at(place).map(|it| it.run), Some(at as u32));
            names.set(place, Name::default());
            assert_eq!(names.find(name_of(at)), None);
        }
        let is_empty = |it: &Line| it.used == 0 && it.passed == 0 && it.moved == 0;
        assert!(names.lines.iter().all(is_empty), "{:?}", names.lines);
    }

    #[test]
    fn packing_loses_nothing() {
        let entry = Name { name: u64::MAX - 1, run: u32::MAX - 2, offset: 63, copies: [1, 0, 255] };
        assert_eq!(Name::unpack(entry.pack()), entry);
    }
}
