//! What threads write of their decisions after they have left the brain's lock.
//!
//! A record's list of workers is most of its bytes and most of its instructions, and no decision reads it. So where a
//! choice was prepared by a thread, the record gets its number and its facts under the lock, and the thread writes the
//! list afterwards, into memory of its own. The same goes for the prefixes that prompts have in common. A
//! reader collects the lists first (`Observer::collect`).
//!
//! Every other record is written whole at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use maitre_base::spin::spin;
use maitre_base::{Instant, WorkerId};
use maitre_fleet::fleet::mirror::{FleetChange, Moment};
use maitre_fleet::{Fleet, ModelId};
use maitre_policy::Ask;
use parking_lot::{Mutex, MutexGuard};

use super::consider_priced;
use super::decision::Considered;
use super::forecast::{Corrections, Forecast};
use super::hot::{Prefixes, Sight};
use crate::cache::PromptChain;
use crate::placer::survey::Survey;

/// A record whose list is not written yet.
#[derive(Clone, Debug)]
pub(crate) struct UnwrittenRecord {
    /// Of the record.
    pub(crate) number: u64,
    /// How many records are kept.
    pub(crate) kept: u64,
    pub(crate) now: Instant,
    pub(crate) ask: Ask,
    /// The chosen one among the candidates.
    pub(crate) chosen: usize,
    pub(crate) model: Option<ModelId>,
    /// At the first attempt.
    pub(crate) prompt: Option<PromptChain>,
    /// Memory for the list.
    pub(crate) memory: Vec<Considered>,
}

/// One thread's.
#[derive(Debug, Default)]
pub(crate) struct LaneRecords {
    /// The number of the record whose list comes next; zero while there is none.
    awaited: AtomicU64,
    parts: Mutex<WrittenParts>,
}

#[derive(Debug, Default)]
struct WrittenParts {
    /// With the numbers of their records, the oldest first.
    lists: VecDeque<(u64, Vec<Considered>)>,
    /// Memory for the next list.
    spare: Vec<Considered>,
    prefixes: Prefixes,
}

impl LaneRecords {
    fn write(&self, unwritten: UnwrittenRecord, survey: &Survey, corrections: &Corrections) {
        let UnwrittenRecord { number, kept, now, ask, chosen, model, prompt, memory } = unwritten;
        let parts = &mut *self.parts.lock();
        let mut list = if memory.capacity() > 0 { memory } else { std::mem::take(&mut parts.spare) };
        consider_priced(survey, &ask, chosen, |it| corrections.seconds(&ask, it), &mut list);
        if let Some(prompt) = &prompt {
            let sight = Sight { prompt, tokens: ask.prefill, model, candidates: &survey.candidates };
            parts.prefixes.see(now, sight);
        }
        parts.lists.push_back((number, list));
        // Their records are overwritten.
        while let Some((_, list)) = parts.lists.pop_front_if(|it| it.0 + kept <= number) {
            parts.spare = list;
        }
        self.awaited.store(0, Release);
    }

    fn is_complete(&self) -> bool {
        self.awaited.load(Acquire) == 0
    }

    /// The parts, with the list that is awaited: its thread has left the lock and writes it within microseconds. A thread
    /// that was put to sleep meanwhile is not waited for; its list comes with the next reading.
    fn complete(&self) -> MutexGuard<'_, WrittenParts> {
        let _ = spin(|| self.is_complete().then_some(()));
        self.parts.lock()
    }
}

/// Those of all threads.
#[derive(Debug, Default)]
pub(crate) struct RecordsByLane {
    all: Vec<Arc<LaneRecords>>,
}

impl RecordsByLane {
    pub(crate) fn add(&mut self) -> Arc<LaneRecords> {
        let lane = Arc::<LaneRecords>::default();
        self.all.push(lane.clone());
        lane
    }

    /// Gives all lists to `keep`. Removes the records of threads that have ended; what those saw of prefixes goes to
    /// `prefixes`.
    pub(crate) fn collect(
        &mut self,
        now: Instant,
        prefixes: &mut Prefixes,
        mut keep: impl FnMut(u64, Vec<Considered>),
    ) {
        self.all.retain(|lane| {
            let mut parts = lane.complete();
            parts.lists.drain(..).for_each(|(number, list)| keep(number, list));
            let is_used = Arc::strong_count(lane) > 1;
            if !is_used {
                prefixes.add(now, &parts.prefixes);
            }
            is_used
        });
    }

    /// Adds what all threads saw of prefixes.
    pub(crate) fn add_prefixes(&self, now: Instant, all: &mut Prefixes) {
        self.all.iter().for_each(|it| all.add(now, &it.complete().prefixes));
    }

    pub(crate) fn forget_prefixes(&self) {
        self.all.iter().for_each(|it| it.parts.lock().prefixes.clear());
    }

    pub(crate) fn forget(&self, worker: WorkerId) {
        self.all.iter().for_each(|it| it.parts.lock().prefixes.forget(worker));
    }
}

/// The thread's side of them.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    lane: Arc<LaneRecords>,
    corrections: Corrections,
}

impl RecordWriter {
    pub(crate) fn new(lane: Arc<LaneRecords>, forecast: &Forecast, fleet: &Fleet) -> RecordWriter {
        let mut writer = RecordWriter { lane, corrections: Corrections::default() };
        writer.copy_all(forecast, fleet);
        writer
    }

    fn copy_all(&mut self, forecast: &Forecast, fleet: &Fleet) {
        (0..fleet.numbers()).for_each(|it| self.corrections.follow(forecast, WorkerId(it as u32)));
    }

    /// Copies how predictions are corrected since then: by first tokens, and each of those also changes its worker.
    pub(crate) fn follow(&mut self, forecast: &Forecast, fleet: &Fleet, then: Moment) {
        let Some(changes) = fleet.changes_since(then) else { return self.copy_all(forecast, fleet) };
        for change in changes {
            if let FleetChange::Worker(worker) = change {
                self.corrections.follow(forecast, worker);
            }
        }
    }

    /// The list of this record will come. Under the brain's lock.
    pub(crate) fn announce(&self, unwritten: &UnwrittenRecord) {
        self.lane.awaited.store(unwritten.number, Release);
    }

    /// Writes the list that was announced, from the survey of its choice.
    pub(crate) fn write(&self, unwritten: UnwrittenRecord, survey: &Survey) {
        self.lane.write(unwritten, survey, &self.corrections);
    }
}
