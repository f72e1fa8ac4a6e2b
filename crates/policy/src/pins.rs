//! Which key sits where, for the keys seen of late: a bounded map that forgets the idle.
//!
//! Two generations instead of an LRU list: a key that is used moves to the young one; when the young
//! one is full it becomes the old one and the old one is dropped. A key therefore survives at least
//! `limit / 2` newer keys and costs no links.

use std::mem;

use maitre_base::WorkerId;
use maitre_base::hash::NumberMap;

#[derive(Clone, Debug)]
pub struct Pins {
    young: NumberMap<WorkerId>,
    old: NumberMap<WorkerId>,
    /// Most keys a generation holds.
    generation: usize,
}

impl Pins {
    pub fn new(limit: usize) -> Pins {
        Pins { young: NumberMap::default(), old: NumberMap::default(), generation: limit.div_ceil(2).max(1) }
    }

    /// Where the key sits; asking keeps it from being forgotten.
    pub fn get(&mut self, key: u64) -> Option<WorkerId> {
        if let Some(&worker) = self.young.get(&key) {
            return Some(worker);
        }
        let worker = self.old.remove(&key)?;
        self.set(key, worker);
        Some(worker)
    }

    /// Where the key sits. To have asked so keeps nothing from being forgotten.
    pub fn peek(&self, key: u64) -> Option<WorkerId> {
        self.young.get(&key).or_else(|| self.old.get(&key)).copied()
    }

    pub fn set(&mut self, key: u64, worker: WorkerId) {
        if self.young.len() >= self.generation && !self.young.contains_key(&key) {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(key, worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_keys_stay_and_idle_keys_go() {
        let mut pins = Pins::new(100);
        pins.set(0, WorkerId(7));
        for key in 1..10_000 {
            pins.set(key, WorkerId(1));
            assert_eq!(pins.get(0), Some(WorkerId(7)), "after {key} others");
            assert!(pins.young.len() + pins.old.len() <= 100);
        }
        assert_eq!(pins.get(1), None);
    }
}
