//! Waiting for a lock that is held for microseconds: longer than the locks themselves spin, shorter than it takes to put a
//! thread to sleep and to wake it.

use std::hint::spin_loop;

/// Chosen: together about twenty microseconds.
const ATTEMPTS: u32 = 300;
const PAUSES: u32 = 16;

/// The first result of an attempt; none if all fail.
pub fn spin<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    (0..ATTEMPTS).find_map(|_| {
        let result = attempt();
        if result.is_none() {
            (0..PAUSES).for_each(|_| spin_loop());
        }
        result
    })
}
