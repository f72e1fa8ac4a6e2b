//! The queue as it is, or as it would be with one more request: questions that change nothing.
//!
//! A dry run must know where a request would come in the queue. Copying 50,000 queued requests to find out
//! would stall every other decision for milliseconds, so the view adds the request while it reads.

use maitre_base::{ClassId, Instant, RequestId};

use super::class_queue::ClassQueue;
use super::work::Work;
use super::{Addition, ClassMask, PASSED_OVER_MAX, QueueEntry, SEARCHED_MAX, WaitQueue, Waiting};

#[derive(Clone, Copy, Debug)]
pub struct QueueView<'a> {
    pub(super) queue: &'a WaitQueue,
    pub(super) addition: Option<&'a Addition>,
}

impl<'a> QueueView<'a> {
    /// As `WaitQueue::next_matching`.
    pub fn next_matching(
        &self,
        now: Instant,
        open: ClassMask,
        fits: impl Fn(RequestId) -> bool,
        found: &mut Vec<RequestId>,
    ) {
        found.clear();
        let aged = self.first_by_age(now, open).filter(|&it| fits(it));
        found.extend(aged);
        let (mut passed, mut has_one) = (0, aged.is_some());
        for (class, class_queue) in self.open(open) {
            class_queue.list(self.addition_to(class), found, |it| {
                let is_in = aged != Some(it) && fits(it);
                has_one |= is_in;
                passed += usize::from(!is_in);
                let most = if has_one { PASSED_OVER_MAX } else { SEARCHED_MAX };
                if !is_in && passed >= most { None } else { Some(is_in) }
            });
        }
        if let Some(place) = found.iter().position(|&it| self.queue.is_barrier(it)) {
            found.truncate(place + 1);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.addition.is_none()
    }

    pub fn waiting(&self, class: ClassId) -> Waiting {
        let class_queue = self.queue.classes.get(class.index());
        class_queue.map_or_else(Waiting::default, |it| it.waiting(self.addition_to(class)))
    }

    /// As `WaitQueue::cost_ahead`.
    pub fn cost_ahead(&self, class: ClassId) -> f64 {
        (0..=class.0).map(|it| self.waiting(ClassId(it)).cost).sum()
    }

    /// The non-empty classes of this set, in order of precedence.
    fn open(&self, open: ClassMask) -> impl Iterator<Item = (ClassId, &'a ClassQueue)> {
        let added = self.addition.map(|it| it.entry.class);
        let classes = (0..).map(ClassId).zip(&self.queue.classes);
        classes.filter(move |(class, it)| open.has(*class) && (!it.is_empty() || added == Some(*class)))
    }

    /// The oldest request below the first non-empty class, if it has aged and the credit covers it.
    fn first_by_age(&self, now: Instant, open: ClassMask) -> Option<RequestId> {
        let classes = self.open(open).skip(1);
        let oldest = classes.filter_map(|(class, it)| it.oldest(self.addition_to(class))).min();
        let (since, request) = oldest?;
        let cost = Work::of(self.entry(request)?.cost);
        (now.since(since) >= self.queue.aging && self.queue.credit.covers(cost)).then_some(request)
    }

    fn entry(&self, request: RequestId) -> Option<QueueEntry> {
        let added = self.addition.map(|it| it.entry).filter(|it| it.request == request);
        added.or_else(|| self.queue.entry(request))
    }

    fn addition_to(&self, class: ClassId) -> Option<&'a Addition> {
        self.addition.filter(|it| it.entry.class == class)
    }
}
