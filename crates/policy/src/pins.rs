//! Which key sits where, for the keys seen of late: a bounded map that forgets the idle.
//!
//! Two generations instead of an LRU list: a key that is used moves to the young one; when the young
//! one is full it becomes the old one and the old one is dropped. A key therefore survives at least
//! `limit / 2` newer keys and costs no links.

use std::mem;

use maitre_base::WorkerId;
use maitre_base::hash::NumberMap;

use crate::Candidate;

/// A worker, known again also when its number has become another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    pub worker: WorkerId,
    /// Half of the worker's key: a pin is no larger for it, and two that are mistaken for each other once in four
    /// thousand million cost a cache miss.
    mark: u32,
}

impl Pin {
    pub fn to(candidate: &Candidate) -> Pin {
        Pin::new(candidate.worker, candidate.key)
    }

    pub fn new(worker: WorkerId, key: u64) -> Pin {
        Pin { worker, mark: key as u32 }
    }
}

#[derive(Clone, Debug)]
pub struct Pins {
    young: NumberMap<Pin>,
    old: NumberMap<Pin>,
    /// Most keys a generation holds.
    generation: usize,
}

impl Pins {
    pub fn new(limit: usize) -> Pins {
        Pins { young: NumberMap::default(), old: NumberMap::default(), generation: limit.div_ceil(2).max(1) }
    }

    /// Where the key sits; asking keeps it from being forgotten.
    pub fn get(&mut self, key: u64) -> Option<Pin> {
        if let Some(&pin) = self.young.get(&key) {
            return Some(pin);
        }
        let pin = self.old.remove(&key)?;
        self.set(key, pin);
        Some(pin)
    }

    /// Where the key sits. To have asked so keeps nothing from being forgotten.
    pub fn peek(&self, key: u64) -> Option<Pin> {
        self.young.get(&key).or_else(|| self.old.get(&key)).copied()
    }

    pub fn set(&mut self, key: u64, pin: Pin) {
        if self.young.len() >= self.generation && !self.young.contains_key(&key) {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(key, pin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_keys_stay_and_idle_keys_go() {
        let mut pins = Pins::new(100);
        let pin = |worker| Pin { worker: WorkerId(worker), mark: 0 };
        pins.set(0, pin(7));
        for key in 1..10_000 {
            pins.set(key, pin(1));
            assert_eq!(pins.get(0), Some(pin(7)), "after {key} others");
            assert!(pins.young.len() + pins.old.len() <= 100);
        }
        assert_eq!(pins.get(1), None);
    }
}
