//! Workers of one model, and those who wait for them.

use std::time::Duration;

use maitre_base::{ClassId, Instant};
use maitre_queue::settings::CLASSES_MAX;
use maitre_queue::wait_queue::Entry;
use maitre_queue::{ClassMask, Drain, RetrySchedule, Settings, Spare, WaitQueue, spare};

/// How long those below look for a moment at which they disturb nobody.
const CONSIDERATE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) line: WaitQueue,
    pub(super) drain: Drain,
    /// What those were told who were refused, by class.
    books: [RetrySchedule; CLASSES_MAX],
    spare: Spare,
    /// Requests at workers, by class.
    seated: [u32; CLASSES_MAX],
    /// Seconds of prefill that were seated, by class.
    prefill: [Drain; CLASSES_MAX],
    /// Those that are fit.
    pub(super) workers: u32,
}

impl Pool {
    pub(super) fn new(settings: &Settings) -> Pool {
        Pool {
            line: WaitQueue::new(&settings.classes, settings.aging),
            drain: Drain::default(),
            books: [RetrySchedule::default(); CLASSES_MAX],
            spare: Spare::default(),
            seated: [0; CLASSES_MAX],
            prefill: [Drain::default(); CLASSES_MAX],
            workers: 1,
        }
    }

    /// A request was seated that will take so many seconds of prefill.
    pub(super) fn seated(&mut self, now: Instant, class: ClassId, prefill: f64) {
        self.seated[class.index()] += 1;
        self.prefill[class.index()].see(now, prefill);
        self.spare.spend(class, prefill);
    }

    pub(super) fn unseated(&mut self, class: ClassId) {
        self.seated[class.index()] = self.seated[class.index()].saturating_sub(1);
    }

    /// Whether one of this class must find a worker at which nobody waits for a first token: so it is while those above
    /// have more than a request at each, unless there has been no such worker for a while.
    pub(super) fn must_not_disturb(&self, now: Instant, class: ClassId) -> bool {
        let above: u32 = self.seated[..class.index()].iter().sum();
        above > self.workers && self.spare.idle(now, class) < CONSIDERATE
    }

    /// When one of this class should come again whose work takes so many seconds. Those below are told to come after it:
    /// it will go before them. Those above need not know.
    pub(super) fn book(&mut self, now: Instant, class: ClassId, seconds: f64) -> Duration {
        // Nothing may have gone for a while.
        self.drain.see(now, 0.0);
        let mut told = Duration::ZERO;
        for place in (class.index()..CLASSES_MAX).rev() {
            let ahead = self.seconds_ahead(ClassId(place as u8)).unwrap_or(0.0);
            told = self.books[place].retry_after(now, ahead, seconds);
        }
        told
    }

    /// How long it will take until this newcomer's turn comes; none while nobody knows.
    pub(super) fn seconds_before(&self, entry: &Entry) -> Option<f64> {
        self.drain.rate().map(|it| self.line.cost_before(entry) / it)
    }

    /// How long what waits before a newcomer of this class will take to go; none while nobody knows.
    pub(super) fn seconds_ahead(&self, class: ClassId) -> Option<f64> {
        self.drain.rate().map(|it| self.line.cost_ahead(class) / it)
    }

    /// What `allowed` would say now.
    pub(super) fn would_allow(&self, now: Instant, settings: &Settings, bend: f64) -> ClassMask {
        let (mut spare, mut prefill) = (self.spare, self.prefill);
        self.earn(now, settings, bend, (&mut spare, &mut prefill));
        self.mask(settings, &spare)
    }

    /// The classes of which one may go now, by what those above leave of workers whose steps bend at this
    /// crowd.
    pub(super) fn allowed(&mut self, now: Instant, settings: &Settings, bend: f64) -> ClassMask {
        let (mut spare, mut prefill) = (self.spare, self.prefill);
        self.earn(now, settings, bend, (&mut spare, &mut prefill));
        (self.spare, self.prefill) = (spare, prefill);
        self.mask(settings, &self.spare)
    }

    /// Brings what classes leave each other up to date.
    fn earn(
        &self,
        now: Instant,
        settings: &Settings,
        bend: f64,
        (spare, drains): (&mut Spare, &mut [Drain; CLASSES_MAX]),
    ) {
        let workers = f64::from(self.workers.max(1));
        let mut rates = [f64::INFINITY; CLASSES_MAX];
        let (mut requests, mut prefill) = (0, 0.0);
        for (place, rate) in rates.iter_mut().enumerate().take(settings.classes.len()) {
            // Of what a worker could give, a crowd gets as much as it is beside itself and the crowd at the bend.
            let crowd = f64::from(requests) / workers;
            let in_use = (crowd / (bend + crowd)).max(prefill / workers);
            *rate = workers * spare::rate(in_use);
            requests += self.seated[place];
            drains[place].see(now, 0.0);
            prefill += drains[place].rate().unwrap_or(0.0);
        }
        spare.earn(now, &rates);
    }

    fn mask(&self, settings: &Settings, spare: &Spare) -> ClassMask {
        let mut mask = ClassMask::NONE;
        for place in 0..settings.classes.len() {
            let class = ClassId(place as u8);
            match spare.allows(class) {
                true => mask = mask.with(class),
                // Nobody goes before one who is made to wait for the sake of those above.
                false if self.line.waiting(class).requests > 0 => break,
                false => {}
            }
        }
        mask
    }
}
