//! Waits for a lock that is held for microseconds. That is longer than the locks themselves spin, and shorter than it
//! takes to put a thread to sleep and wake it.

use std::hint::spin_loop;

/// Chosen: together about twenty microseconds if a pause takes 4 ns, and two hundred if it takes 40.
const ATTEMPTS: u32 = 300;
/// The wait before the next attempt doubles up to this. It begins with one pause, because most locks are free again within a few
/// hundred nanoseconds, and sixteen pauses take 700 on some CPUs.
const PAUSES_MAX: u32 = 16;

/// The result of the first successful attempt; `None` if all fail.
pub fn spin<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    spin_with((), |()| attempt().ok_or(())).ok()
}

/// The same for an attempt that consumes something, and returns it if it fails.
pub fn spin_with<S, T>(mut state: S, mut attempt: impl FnMut(S) -> Result<T, S>) -> Result<T, S> {
    let mut pauses = 1;
    for _ in 0..ATTEMPTS {
        match attempt(state) {
            Ok(result) => return Ok(result),
            Err(back) => state = back,
        }
        (0..pauses).for_each(|_| spin_loop());
        pauses = PAUSES_MAX.min(2 * pauses);
    }
    Err(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_success_counts_and_attempts_are_bounded() {
        let mut left = 5;
        let count_down = || {
            left -= 1;
            (left == 0).then_some("done")
        };
        assert_eq!(spin(count_down), Some("done"));
        assert_eq!(spin_with(0, |tries| Err::<(), u32>(tries + 1)), Err(ATTEMPTS));
    }
}
