//! Token ids as JSON writes them: `1,2723,201`.
//!
//! They are only kept to be written into another request, so they are never turned into numbers. Text takes about five
//! bytes an id where a number would take four.

use memchr::memchr_iter;

use crate::json::{Raw, Shape};

/// Maximum bytes of one stream's ids. Chosen: six hundred thousand ids, more than the context of most models.
pub(super) const ID_BYTES_MAX: usize = 4 << 20;

#[derive(Clone, Debug, Default)]
pub(super) struct IdList {
    text: String,
    count: u64,
}

/// Digits of the largest id. No vocabulary has more than a few hundred thousand.
const ID_DIGITS_MAX: usize = 10;

/// How far a list was at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdMark {
    bytes: usize,
    pub(super) count: u64,
}

impl IdList {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn mark(&self) -> IdMark {
        IdMark { bytes: self.text.len(), count: self.count }
    }

    /// Forgets what was added since.
    pub(super) fn rewind(&mut self, mark: IdMark) {
        self.text.truncate(mark.bytes);
        self.count = mark.count;
    }

    /// The last ids, in their order, as JSON writes them.
    pub(super) fn last(&self, count: usize) -> Vec<&str> {
        let mut last: Vec<&str> = self.text.rsplit(',').take(count).map(str::trim_ascii).collect();
        last.reverse();
        last
    }

    /// Forgets the last id, of several.
    pub(super) fn pop(&mut self) {
        if let Some(end) = self.text.rfind(',') {
            self.text.truncate(end);
            self.count -= 1;
        }
    }

    /// Adds the ids of an array. Returns false if it has others than whole numbers, or there are too many.
    #[must_use]
    pub(super) fn extend(&mut self, array: Raw<'_>) -> bool {
        let Some(inside) = inside(array) else { return false };
        inside.is_empty() || self.push(inside, count(inside))
    }

    /// Adds some ids, as JSON writes them between the brackets.
    #[must_use]
    pub(super) fn push(&mut self, inside: &str, count: u64) -> bool {
        if self.text.len() + inside.len() >= ID_BYTES_MAX {
            return false;
        }
        if !self.text.is_empty() {
            self.text.push(',');
        }
        self.text.push_str(inside);
        self.count += count;
        true
    }

    /// Whether an array has the same ids.
    pub(super) fn equals(&self, array: Raw<'_>) -> bool {
        let ids = |text: &'_ str| text.split(',').map(str::trim_ascii).map(str::to_owned).collect::<Vec<_>>();
        inside(array).is_some_and(|it| it == self.text || ids(it) == ids(&self.text))
    }
}

/// How many ids an array has; none if it is no array of whole numbers.
pub(super) fn count_of(array: Raw<'_>) -> Option<u64> {
    inside(array).map(count)
}

fn count(inside: &str) -> u64 {
    if inside.is_empty() { 0 } else { memchr_iter(b',', inside.as_bytes()).count() as u64 + 1 }
}

fn inside(array: Raw<'_>) -> Option<&str> {
    if array.shape() != Shape::Array {
        return None;
    }
    let inside = array.text[1..array.text.len() - 1].trim_ascii();
    let are_ids =
        inside.is_empty() || inside.as_bytes().split(|it| *it == b',').all(|it| is_id(it.trim_ascii()));
    are_ids.then_some(inside)
}

/// Whether this is a whole number that may be an id, as JSON writes it.
pub(super) fn is_id(text: &[u8]) -> bool {
    let is_number = (1..=ID_DIGITS_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    is_number && (text.len() == 1 || text[0] != b'0')
}
