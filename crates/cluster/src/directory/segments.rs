//! The tree of segments: chains cut into pieces of fixed length, each with its parent. A segment's id identifies the
//! whole chain up to it.
//!
//! Bounded by two generations like `Recent`, but by whole paths: keeping a segment keeps all its ancestors. The young
//! generation contains every ancestor of its segments, and so do both generations together. A known segment therefore
//! always leads to the root, and a path whose last segment is young need not be moved.

use std::mem;

use crate::frame::{LINKS_MAX, SEGMENT_LINKS};
use maitre_base::hash::{self, NumberMap};

/// Maximum segments: 1.8 million links, 18 MB with their tables. Each generation holds seven eighths of a power of
/// two, which is what a table holds before it doubles.
pub(crate) const SEGMENTS_MAX: usize = 2 * 114_688;
/// Maximum segments from the root to any other.
pub(crate) const PATH_MAX: usize = LINKS_MAX / SEGMENT_LINKS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// 0 for the first segment.
    pub(crate) parent: u64,
    pub(crate) links: [u64; SEGMENT_LINKS],
}

/// The id of the segment that ends with this link; never 0. A prefix has the same hash for every block size, so the
/// block size is part of the id.
pub(crate) fn id(last: u64, block: u32) -> u64 {
    hash::pair(last, u64::from(block)).max(1)
}

/// Why there is no path from the root to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathError {
    /// This segment is unknown.
    Missing(u64),
    /// The path is too long. Only forged ids form a cycle or a longer path than announced.
    TooLong,
}

#[derive(Clone, Debug)]
pub(crate) struct SegmentStore {
    young: NumberMap<Segment>,
    old: NumberMap<Segment>,
    generation: usize,
    rescued: Vec<(u64, Segment)>,
}

impl SegmentStore {
    pub(crate) fn new(limit: usize) -> SegmentStore {
        SegmentStore {
            young: NumberMap::default(),
            old: NumberMap::default(),
            generation: (limit / 2).max(1),
            rescued: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Segment> {
        self.young.get(&id).or_else(|| self.old.get(&id))
    }

    pub(crate) fn is_young(&self, id: u64) -> bool {
        self.young.contains_key(&id)
    }

    /// Fills `path` with the segments from the root to this one, at most `most`.
    pub(crate) fn trace(&self, last: u64, most: usize, path: &mut Vec<u64>) -> Result<(), PathError> {
        path.clear();
        let mut id = last;
        while id != 0 {
            let segment = self.get(id).ok_or(PathError::Missing(id))?;
            if path.len() >= most {
                return Err(PathError::TooLong);
            }
            path.push(id);
            id = segment.parent;
        }
        path.reverse();
        Ok(())
    }

    /// Moves a path to the young generation and makes room there for `more` segments. `path` is complete, from the
    /// root. Returns whether there is room at all.
    pub(crate) fn keep(&mut self, path: &[u64], more: usize) -> bool {
        if path.len() + more > self.generation {
            return false;
        }
        let is_young = path.last().is_none_or(|&last| self.is_young(last));
        let moving = if is_young { 0 } else { path.iter().filter(|&&it| !self.is_young(it)).count() };
        if self.young.len() + moving + more > self.generation {
            // The old generation is dropped, except for segments of the path.
            for &id in path {
                if let Some(segment) = self.old.remove(&id) {
                    self.rescued.push((id, segment));
                }
            }
            mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
            self.young.extend(self.rescued.drain(..));
        } else if moving == 0 {
            return true;
        }
        for &id in path {
            if let Some(segment) = self.old.remove(&id) {
                self.young.insert(id, segment);
            }
        }
        true
    }

    /// Like `keep`, for the path to this segment. Returns whether the path is known and there is room.
    pub(crate) fn keep_path(&mut self, last: u64, more: usize, path: &mut Vec<u64>) -> bool {
        // Usually nothing has to be moved.
        let is_young = last == 0 || self.is_young(last);
        (is_young && self.young.len() + more <= self.generation)
            || (self.trace(last, PATH_MAX, path).is_ok() && self.keep(path, more))
    }

    /// Adds a segment after one that was kept. `keep` has made room for it.
    pub(crate) fn put(&mut self, id: u64, segment: Segment) {
        debug_assert!(segment.parent == 0 || self.is_young(segment.parent), "the parent was kept");
        // A known segment is never changed, so no peer can create a cycle.
        let segment = self.old.remove(&id).unwrap_or(segment);
        self.young.entry(id).or_insert(segment);
    }
}

#[cfg(test)]
impl SegmentStore {
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.young.keys().chain(self.old.keys()).copied().collect()
    }
}
