//! A bounded map that drops the entries unused for longest.
//!
//! It keeps two generations instead of a list in order of use. A used entry moves to the young one. When that is full
//! it becomes the old one, and the old one is dropped. So an entry survives at least half the limit of newer ones,
//! and needs no links. Both tables keep their capacity, so that a change of generation moves nothing.
//!
//! Left out: exact order of use. A caller that needs an order keeps a number in the value.

use std::mem;

use crate::hash::NumberMap;

#[derive(Clone, Debug)]
pub struct Recent<V> {
    young: NumberMap<V>,
    old: NumberMap<V>,
    /// Most entries a generation holds.
    generation: usize,
    /// Entries dropped for newer ones, since the start.
    forgotten: u64,
}

impl<V: Copy> Recent<V> {
    pub fn new(limit: usize) -> Recent<V> {
        Recent {
            young: NumberMap::default(),
            old: NumberMap::default(),
            generation: limit.div_ceil(2).max(1),
            forgotten: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Entries dropped for newer ones, since the start.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Does not refresh the entry: it is dropped as if it had not been read.
    pub fn peek(&self, key: u64) -> Option<V> {
        self.young.get(&key).or_else(|| self.old.get(&key)).copied()
    }

    /// Reading an entry keeps it from being forgotten.
    pub fn get(&mut self, key: u64) -> Option<&mut V> {
        if let Some(value) = self.old.remove(&key) {
            self.put(key, value);
        }
        self.young.get_mut(&key)
    }

    pub fn put(&mut self, key: u64, value: V) {
        if let Some(held) = self.young.get_mut(&key) {
            *held = value;
            return;
        }
        self.old.remove(&key);
        if self.young.len() >= self.generation {
            mem::swap(&mut self.young, &mut self.old);
            self.forgotten += self.young.len() as u64;
            self.young.clear();
        }
        self.young.insert(key, value);
    }

    pub fn remove(&mut self, key: u64) -> Option<V> {
        self.young.remove(&key).or_else(|| self.old.remove(&key))
    }

    pub fn retain(&mut self, mut keeps: impl FnMut(&V) -> bool) {
        self.young.retain(|_, value| keeps(value));
        self.old.retain(|_, value| keeps(value));
    }

    /// In arbitrary order: sort what you show.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.young.iter().chain(&self.old).map(|(&key, value)| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_entries_stay_idle_ones_go_and_are_counted() {
        let mut recent = Recent::new(100);
        recent.put(0, 7);
        for key in 1..10_000_u64 {
            recent.put(key, 1);
            assert_eq!(recent.get(0).copied(), Some(7), "after {key} others");
            assert!(recent.len() <= 100);
        }
        assert_eq!(recent.peek(1), None);
        assert_eq!(recent.forgotten() + recent.len() as u64, 10_000);
    }

    #[test]
    fn an_entry_is_in_one_generation_only() {
        let mut recent = Recent::new(4);
        for key in 0..3_u64 {
            recent.put(key, 0);
        }
        // 0 and 1 are old by now.
        recent.put(0, 5);
        assert_eq!((recent.len(), recent.peek(0)), (3, Some(5)));
        assert_eq!(recent.remove(0), Some(5));
        assert_eq!(recent.peek(0), None);
    }
}
