//! Values addressed by number; the numbers of removed values are reused.
//!
//! Values live in fixed-size pages, so growing never copies them and never holds two copies. Under a byte
//! budget, a vector that doubles is a spike as large as itself.

use std::ops::{Index, IndexMut};

const PAGE: usize = 128;

pub(crate) const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    pages: Vec<Vec<T>>,
    free: Vec<u32>,
}

impl<T: Default> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { pages: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self[id] = value;
            return id;
        }
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        let page = self.pages.len() - 1;
        self.pages[page].push(value);
        (page * PAGE + self.pages[page].len() - 1) as u32
    }

    pub(crate) fn remove(&mut self, id: u32) -> T {
        self.free.push(id);
        std::mem::take(&mut self[id])
    }

    /// Maps about `count` live values, spread evenly over the slab.
    pub(crate) fn sample<R>(
        &self,
        count: usize,
        is_live: impl Fn(&T) -> bool,
        of: impl Fn(&T) -> R,
    ) -> Vec<R> {
        let step = (self.pages.len() * PAGE / count).max(1);
        let values = self.pages.iter().flatten();
        values.step_by(step).filter(|it| is_live(it)).map(of).collect()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.pages.len() * PAGE * size_of::<T>()
            + self.pages.capacity() * size_of::<Vec<T>>()
            + self.free.capacity() * size_of::<u32>()
    }

    /// The bytes that one more page may take, including growth of the page list and the free list.
    pub(crate) fn bytes_to_grow(&self) -> usize {
        PAGE * size_of::<T>() + self.pages.capacity() * size_of::<Vec<T>>() + self.free.capacity() * 4 + 128
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, id: u32) -> &T {
        &self.pages[id as usize / PAGE][id as usize % PAGE]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut T {
        &mut self.pages[id as usize / PAGE][id as usize % PAGE]
    }
}
