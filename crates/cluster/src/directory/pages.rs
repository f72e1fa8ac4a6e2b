//! Chains cut into pages, each with the page before it: a tree in which a page's number names all up to it.
//!
//! Bounded by two generations, as `Recent` is, but by whole paths: whoever keeps a page keeps all before it. So the
//! young generation holds a page only with all its ancestors, and both together hold none without them: a page that is
//! found leads to the root, and to find the last one young is to know that nothing has to be moved.

use std::mem;

use crate::frame::{LINKS_MAX, PAGE};
use maitre_base::hash::{self, NumberMap};

/// Most pages kept: 1.8 million links, 18 MB with their tables. Seven eighths of a power of two in each generation,
/// which is what a table holds before it doubles.
pub(crate) const PAGES_MAX: usize = 2 * 114_688;
/// Most pages from the root to any.
pub(crate) const PATH_MAX: usize = LINKS_MAX / PAGE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// 0 for the first.
    pub(crate) parent: u64,
    pub(crate) links: [u64; PAGE],
}

/// The number of the page that ends with this link. A prefix has the same name however it is cut into blocks, so
/// the block is part of it; never 0.
pub(crate) fn id(last: u64, block: u32) -> u64 {
    hash::pair(last, u64::from(block)).max(1)
}

/// Why there is no way from the root to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Astray {
    /// This one is not there.
    Missing(u64),
    /// It is longer than it may be. Only numbers made up on purpose lead in a circle, or further than was said.
    TooFar,
}

#[derive(Clone, Debug)]
pub(crate) struct Pages {
    young: NumberMap<Page>,
    old: NumberMap<Page>,
    generation: usize,
    rescued: Vec<(u64, Page)>,
}

impl Pages {
    pub(crate) fn new(limit: usize) -> Pages {
        Pages {
            young: NumberMap::default(),
            old: NumberMap::default(),
            generation: (limit / 2).max(1),
            rescued: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Page> {
        self.young.get(&id).or_else(|| self.old.get(&id))
    }

    pub(crate) fn is_young(&self, id: u64) -> bool {
        self.young.contains_key(&id)
    }

    /// Fills `path` with the pages from the root to this one, so many at the most.
    pub(crate) fn trace(&self, last: u64, most: usize, path: &mut Vec<u64>) -> Result<(), Astray> {
        path.clear();
        let mut id = last;
        while id != 0 {
            let page = self.get(id).ok_or(Astray::Missing(id))?;
            if path.len() >= most {
                return Err(Astray::TooFar);
            }
            path.push(id);
            id = page.parent;
        }
        path.reverse();
        Ok(())
    }

    /// Makes a path young, and room for so many pages more in that generation. `path` is whole and from the root.
    /// Whether there is room at all.
    pub(crate) fn keep(&mut self, path: &[u64], more: usize) -> bool {
        if path.len() + more > self.generation {
            return false;
        }
        let is_young = path.last().is_none_or(|&last| self.is_young(last));
        let moving = if is_young { 0 } else { path.iter().filter(|&&it| !self.is_young(it)).count() };
        if self.young.len() + moving + more > self.generation {
            // What is old goes, but not that of it which is to become young.
            for &id in path {
                if let Some(page) = self.old.remove(&id) {
                    self.rescued.push((id, page));
                }
            }
            mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
            self.young.extend(self.rescued.drain(..));
        } else if moving == 0 {
            return true;
        }
        for &id in path {
            if let Some(page) = self.old.remove(&id) {
                self.young.insert(id, page);
            }
        }
        true
    }

    /// As `keep`, for the path to this page. Whether it is there and there is room.
    pub(crate) fn keep_path(&mut self, last: u64, more: usize, path: &mut Vec<u64>) -> bool {
        // Most often nothing has to be moved.
        let is_young = last == 0 || self.is_young(last);
        (is_young && self.young.len() + more <= self.generation)
            || (self.trace(last, PATH_MAX, path).is_ok() && self.keep(path, more))
    }

    /// Puts a page after one that was kept. There is room: `keep` saw to it.
    pub(crate) fn put(&mut self, id: u64, page: Page) {
        debug_assert!(page.parent == 0 || self.is_young(page.parent), "a page without the one before it");
        // One that is there stays as it is: nothing that is told can lead it in a circle.
        let page = self.old.remove(&id).unwrap_or(page);
        self.young.entry(id).or_insert(page);
    }
}

#[cfg(test)]
impl Pages {
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.young.keys().chain(self.old.keys()).copied().collect()
    }
}
