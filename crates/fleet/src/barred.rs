//! The workers that one request may not go to.

use maitre_base::WorkerId;

/// Excludes some workers, or admits only some. The lists are short: earlier attempts, and what a gateway allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Barred<'a> {
    /// Workers at which the request failed.
    pub tried: &'a [WorkerId],
    /// The only workers that may take it; `None`: all may.
    pub only: Option<&'a [WorkerId]>,
}

impl Barred<'_> {
    #[inline]
    pub fn bars(&self, worker: WorkerId) -> bool {
        self.tried.contains(&worker) || self.only.is_some_and(|it| !it.contains(&worker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(tried: &[u32], only: Option<&[u32]>, open: &[u32]) {
        let ids = |it: &[u32]| it.iter().map(|&it| WorkerId(it)).collect::<Vec<_>>();
        let (tried, only) = (ids(tried), only.map(ids));
        let barred = Barred { tried: &tried, only: only.as_deref() };
        let found: Vec<u32> = (0..4).filter(|&it| !barred.bars(WorkerId(it))).collect();
        assert_eq!(found, open);
    }

    #[test]
    fn a_worker_is_open_if_it_is_allowed_and_was_not_tried() {
        check(&[], None, &[0, 1, 2, 3]);
        check(&[1], None, &[0, 2, 3]);
        check(&[1], Some(&[1, 3, 9]), &[3]);
        check(&[], Some(&[]), &[]);
    }
}
