//! Prompts longer than a worker's knee that are being prefilled, by worker and class.
//!
//! Such a prompt makes the worker's steps long. Requests of higher classes find short steps only at workers without one.

use maitre_base::{ClassId, Instant, Tokens, WorkerId};
use maitre_queue::settings::CLASSES_MAX;

#[derive(Clone, Debug, Default)]
pub(crate) struct LongPrefills {
    workers: Vec<AtWorker>,
}

#[derive(Clone, Copy, Debug, Default)]
struct AtWorker {
    by_class: [u32; CLASSES_MAX],
    /// The one that began last: when, and its tokens.
    latest: (Instant, Tokens),
    /// As the last one that was prefilled here took. None until one was.
    seconds_per_token: Option<f64>,
}

impl AtWorker {
    /// The part of the latest one that is done. An overdue one may take any time, and where none was prefilled yet nobody
    /// knows how long they take: none of it is done then.
    fn done(&self, now: Instant) -> f64 {
        let (began, tokens) = self.latest;
        let Some(seconds) = self.seconds_per_token.map(|it| it * tokens.0 as f64) else { return 0.0 };
        let elapsed = now.since(began).as_secs_f64();
        if elapsed < seconds { elapsed / seconds } else { 0.0 }
    }
}

impl LongPrefills {
    pub(crate) fn begin(&mut self, now: Instant, worker: WorkerId, class: ClassId, tokens: Tokens) {
        if worker.index() >= self.workers.len() {
            self.workers.resize(worker.index() + 1, AtWorker::default());
        }
        let at = &mut self.workers[worker.index()];
        at.by_class[class.index()] += 1;
        at.latest = (now, tokens);
    }

    /// The first token of one that began then is out.
    pub(crate) fn prefilled(&mut self, now: Instant, worker: WorkerId, began: Instant, tokens: Tokens) {
        if let Some(it) = self.workers.get_mut(worker.index()) {
            it.seconds_per_token = Some(now.since(began).as_secs_f64() / tokens.0.max(1) as f64);
        }
    }

    pub(crate) fn end(&mut self, worker: WorkerId, class: ClassId) {
        if let Some(it) = self.workers.get_mut(worker.index()).map(|it| &mut it.by_class[class.index()]) {
            debug_assert!(*it > 0, "ended more than began");
            *it = it.saturating_sub(1);
        }
    }

    /// Whether this worker has one of this class or below.
    pub(crate) fn is_at(&self, worker: WorkerId, class: ClassId) -> bool {
        let at = self.workers.get(worker.index());
        at.is_some_and(|it| it.by_class[class.index()..].iter().any(|&it| it > 0))
    }

    /// Whether, with long prompts at these workers, one more may begin elsewhere if `most` workers may have them on average.
    ///
    /// Of 1.6 workers, the last part is one more worker part of the time: one that begins before another ends. With one begun
    /// every 1.6th of the time that each takes, 1.6 are under way on average, so the next begins when the only one has
    /// done 1 / 1.6 of its work.
    pub(crate) fn may_begin(&self, now: Instant, at: impl Iterator<Item = WorkerId>, most: f64) -> bool {
        let (mut workers, mut done_most) = (0, 0.0_f64);
        for worker in at {
            workers += 1;
            done_most = done_most.max(self.workers.get(worker.index()).map_or(0.0, |it| it.done(now)));
        }
        let workers = f64::from(workers);
        workers + 1.0 <= most || workers < most && done_most >= workers / most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: ClassId = ClassId(2);
    const TOKENS: Tokens = Tokens(10_000);

    fn second(it: f64) -> Instant {
        Instant::from_millis((it * 1e3) as u64)
    }

    /// Workers that took a second for such a prompt, and began one each at these times.
    fn begun_at(times: &[f64]) -> LongPrefills {
        let mut prefills = LongPrefills::default();
        for (worker, &time) in (0..).map(WorkerId).zip(times) {
            prefills.begin(Instant::ZERO, worker, CLASS, TOKENS);
            prefills.prefilled(second(1.0), worker, Instant::ZERO, TOKENS);
            prefills.end(worker, CLASS);
            prefills.begin(second(time), worker, CLASS, TOKENS);
        }
        prefills
    }

    #[track_caller]
    fn check(begun: &[f64], most: f64, now: f64, expected: bool) {
        let workers = (0..begun.len() as u32).map(WorkerId);
        let actual = begun_at(begun).may_begin(second(now), workers, most);
        assert_eq!(actual, expected, "begun at {begun:?}, {most} workers, at {now} s");
    }

    #[test]
    fn the_last_part_of_a_worker_is_one_that_begins_before_another_ends() {
        check(&[], 1.0, 10.0, true);
        check(&[10.0], 1.0, 10.9, false);
        check(&[10.0], 1.6, 10.6, false);
        check(&[10.0], 1.6, 10.7, true);
        check(&[10.0, 10.6], 1.6, 10.9, false);
        check(&[10.0], 2.0, 10.0, true);
        check(&[10.0, 10.5], 2.5, 10.7, false);
        check(&[10.0, 10.5], 2.5, 10.9, true);
        check(&[10.0], f64::INFINITY, 10.0, true);
    }

    #[test]
    fn nothing_of_an_overdue_prompt_is_done() {
        check(&[10.0], 1.6, 11.0, false);
        check(&[10.0], 1.6, 60.0, false);
        check(&[10.0, 60.0], 2.5, 60.7, false);
        check(&[10.0, 60.0], 2.5, 60.9, true);
    }

    #[test]
    fn a_longer_prompt_takes_longer() {
        let mut prefills = begun_at(&[10.0]);
        prefills.end(WorkerId(0), CLASS);
        prefills.begin(second(20.0), WorkerId(0), CLASS, Tokens(20_000));
        let at = |it| prefills.may_begin(second(it), [WorkerId(0)].into_iter(), 1.6);
        assert_eq!((at(20.7), at(21.3)), (false, true));
    }

    #[test]
    fn nobody_knows_how_long_the_first_one_takes() {
        let mut prefills = LongPrefills::default();
        prefills.begin(Instant::ZERO, WorkerId(0), CLASS, TOKENS);
        let at = |it| prefills.may_begin(second(it), [WorkerId(0)].into_iter(), 1.9);
        assert!(!(1..100).any(|it| at(f64::from(it) / 10.0)));
    }
}
