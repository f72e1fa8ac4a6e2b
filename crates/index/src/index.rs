//! The index: the workers it knows, and its public methods.

use crate::believed::Moment;
use crate::believed::Stamp;
use crate::budget::{BUDGET_MIN, Hand};
use crate::coverage::Coverage;
use crate::holdings::Holdings;
use crate::look_up;
use crate::parked::Waiting;
use crate::predicted::{PredictedBlocks, PredictionWriter};
use crate::reported::{Applied, PIECE, ReportApplier};
use crate::table::{Chain, PrefixTable, Segment, Trace};
use crate::worker::{CacheSource, Numbers, WorkerBlocks};
use maitre_base::hash::mix;
use maitre_base::{Instant, WorkerId};
use maitre_base::{StoredBlocks, Tier};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexSettings {
    /// Limit for everything that the index allocates; at least `BUDGET_MIN`.
    pub budget_bytes: usize,
    /// Randomises positions in tables; never changes a result.
    pub seed: u64,
}

impl Default for IndexSettings {
    fn default() -> IndexSettings {
        // About twenty-five million blocks, and a small part of a router's memory.
        IndexSettings { budget_bytes: 1 << 30, seed: 0 }
    }
}

/// Maximum predictions that one tick looks at.
const FADES_MAX: usize = 4_096;

/// How many uses advance the clock that finds cold blocks by one step, as a power of two. At a million uses a
/// second the clock lasts for twelve days.
const CLOCK_SHIFT: u32 = 8;

/// Which worker holds which prefix. Unknown workers are ignored.
#[derive(Debug)]
pub struct Index {
    pub(crate) table: PrefixTable,
    /// By number.
    pub(crate) workers: Vec<Option<Box<WorkerBlocks>>>,
    /// The worker of each slot. Slots are reused at once, so there are as many slots as workers. Worker
    /// numbers are not reused at once.
    pub(crate) slots: Vec<WorkerId>,
    free_slots: Vec<u32>,
    /// Version of the slot map. Includes the seed, so that the maps of two indices are not confused.
    version: u64,
    pub(crate) budget_bytes: usize,
    /// Bytes of all workers together.
    workers_bytes: usize,
    seed: u64,
    stamp: Stamp,
    uses: AtomicU64,
    pub(crate) hand: Hand,
    /// Where the next tick continues.
    fading: usize,
    pub(crate) path: Vec<Segment>,
    ready: Vec<Waiting>,
}

impl Index {
    pub fn new(settings: IndexSettings) -> Index {
        Index {
            table: PrefixTable::new(mix(settings.seed)),
            workers: Vec::new(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            version: mix(settings.seed) | 1,
            budget_bytes: settings.budget_bytes.max(BUDGET_MIN),
            workers_bytes: 0,
            seed: settings.seed,
            stamp: 0,
            uses: AtomicU64::new(0),
            hand: Hand::default(),
            fading: 0,
            path: Vec::new(),
            ready: Vec::new(),
        }
    }

    /// Adds a worker that holds nothing yet. Adding it twice changes nothing.
    pub fn join(&mut self, id: WorkerId) {
        if self.workers.len() <= id.index() {
            self.workers.resize_with(id.index() + 1, || None);
        }
        if self.workers[id.index()].is_some() {
            return;
        }
        let slot = self.free_slots.pop().unwrap_or(self.slots.len() as u32);
        if slot as usize == self.slots.len() {
            self.slots.push(id);
        }
        self.slots[slot as usize] = id;
        self.version = mix(self.version);
        self.table.beliefs.join(slot);
        let seed = mix(self.seed ^ u64::from(id.0) << 32);
        self.workers[id.index()] = Some(Box::new(WorkerBlocks::new(slot, seed)));
        self.account(id.index());
    }

    /// Removes a worker. Costs what it held, not what the table holds.
    pub fn leave(&mut self, id: WorkerId) {
        self.clear(id);
        if let Some(worker) = self.workers.get_mut(id.index()).and_then(Option::take) {
            self.workers_bytes -= worker.accounted;
            self.free_slots.push(worker.slot);
            self.version = mix(self.version);
        }
    }

    /// Finds how much of this chain each worker holds.
    pub fn look_up(&self, chain: Chain<'_>, out: &mut Holdings) {
        let clock = self.clock();
        self.find(Some(clock), chain, out);
    }

    /// The same without counting as a use: does not refresh what it finds.
    pub fn peek(&self, chain: Chain<'_>, out: &mut Holdings) {
        self.find(None, chain, out);
    }

    fn find(&self, clock: Option<u32>, chain: Chain<'_>, out: &mut Holdings) {
        let slots = self.workers.iter().map(|it| it.as_ref().map_or(u32::MAX, |it| it.slot));
        out.reset(self.version, &self.slots, slots);
        look_up::look_up(&self.table, clock, chain, out);
    }

    /// Finds the runs along this chain, for the write that follows.
    pub fn trace(&self, chain: Chain<'_>, trace: &mut Trace) {
        self.table.trace_into(chain, trace);
    }

    /// Records that a request with this prompt was sent to the worker: refreshes the blocks it holds and
    /// predicts the others.
    pub fn predict(&mut self, now: Instant, id: WorkerId, chain: Chain<'_>) -> PredictedBlocks {
        self.predict_along(now, id, chain, &mut Trace::default())
    }

    /// The same, with a trace of the chain that may be out of date.
    pub fn predict_along(
        &mut self,
        now: Instant,
        id: WorkerId,
        chain: Chain<'_>,
        trace: &mut Trace,
    ) -> PredictedBlocks {
        let room = self.room(id.index(), chain.prefixes.len());
        let (moment, clock) = (self.moment(now), self.clock());
        let dropped = chain.prefixes.len() - room;
        let chain = Chain { prefixes: &chain.prefixes[..room], ..chain };
        let Some(mut writer) = self.prediction_writer(id, clock) else { return PredictedBlocks::NOTHING };
        writer.table.trace_into(chain, trace);
        writer.path = &mut trace.segments;
        writer.worker.numbers.dropped += dropped as u64;
        writer.write(moment, chain)
    }

    /// How many leading blocks of this chain the worker holds, without those that only this request predicts.
    pub fn held_without(&mut self, id: WorkerId, chain: Chain<'_>, predicted_blocks: PredictedBlocks) -> u32 {
        let writer = self.prediction_writer(id, 0);
        writer.map_or(0, |mut it| it.held_without(chain, predicted_blocks) as u32)
    }

    /// Records that the request failed before its first token: drops what it predicted, unless another
    /// request has used it since.
    pub fn forget(&mut self, id: WorkerId, chain: Chain<'_>, predicted_blocks: PredictedBlocks) {
        if let Some(mut writer) = self.prediction_writer(id, 0) {
            writer.erase(chain, predicted_blocks);
        }
    }

    /// Records the first token of a request with this prompt: the blocks it uses exist.
    pub fn prefilled(
        &mut self,
        now: Instant,
        id: WorkerId,
        chain: Chain<'_>,
        predicted_blocks: PredictedBlocks,
    ) {
        self.prefilled_along(now, id, (chain, &mut Trace::default()), predicted_blocks);
    }

    /// The same, with a trace of the chain that may be out of date.
    pub fn prefilled_along(
        &mut self,
        now: Instant,
        id: WorkerId,
        (chain, trace): (Chain<'_>, &mut Trace),
        predicted_blocks: PredictedBlocks,
    ) {
        let moment = self.moment(now);
        if let Some(mut writer) = self.prediction_writer(id, 0) {
            writer.table.trace_into(chain, trace);
            writer.path = &mut trace.segments;
            writer.settle(moment, predicted_blocks);
        }
    }

    /// Records how many blocks of the request the engine found in its cache. Ignored while fresh KV events
    /// give better information.
    pub fn correct(
        &mut self,
        id: WorkerId,
        chain: Chain<'_>,
        predicted_blocks: PredictedBlocks,
        found_blocks: u32,
    ) {
        if let Some(mut writer) = self.prediction_writer(id, 0)
            && writer.worker.source == CacheSource::Predicted
            && predicted_blocks != PredictedBlocks::NOTHING
        {
            writer.correct(chain, predicted_blocks, found_blocks);
        }
    }

    /// Sets the capacity of the worker's cache, as its engine reports it.
    pub fn set_capacity(&mut self, id: WorkerId, blocks: u32) {
        if let Some(mut writer) = self.prediction_writer(id, 0)
            && writer.worker.capacity_reported != blocks
        {
            writer.worker.capacity_reported = blocks;
            writer.worker.capacity = blocks;
            writer.trim();
        }
    }

    pub fn set_source(&mut self, id: WorkerId, source: CacheSource) {
        if let Some(mut writer) = self.prediction_writer(id, 0)
            && writer.worker.source != source
        {
            writer.keep_all();
            writer.worker.source = source;
            writer.trim();
        }
    }

    /// Drops predictions that fresh reports should have confirmed. Call it a few times a second.
    pub fn tick(&mut self, now: Instant) {
        let mut left = FADES_MAX;
        for _ in 0..self.workers.len() {
            self.fading = (self.fading + 1) % self.workers.len();
            let Some(mut writer) = self.prediction_writer(WorkerId(self.fading as u32), 0) else { continue };
            if writer.worker.source == CacheSource::Reported {
                left = writer.fade(now, left);
            }
            // The next tick begins with the next worker.
            if left == 0 {
                return;
            }
        }
    }

    /// Records that the worker's engine, which serves `model`, has stored these blocks. Blocks in a store that it
    /// shares do not count as its own.
    pub fn store(&mut self, id: WorkerId, model: &str, stored: &StoredBlocks<'_>) -> Applied {
        let mut applied = Applied::default();
        if stored.tier == Tier::Shared {
            return applied;
        }
        if self.is_left_aside(id) {
            self.leave_aside(id, stored);
            return applied;
        }
        self.store_with_children(id, model, stored, &mut applied);
        if let Some(Some(worker)) = self.workers.get_mut(id.index())
            && stored.tier == Tier::Gpu
        {
            let capacity_tokens = worker.capacity_tokens();
            let tokens = |blocks: u32| u64::from(blocks) * u64::from(stored.block_tokens);
            worker.coverage.stored(
                tokens(stored.names.len() as u32),
                tokens(applied.parked),
                capacity_tokens,
            );
        }
        self.finish(id, applied)
    }

    fn is_left_aside(&self, id: WorkerId) -> bool {
        self.workers.get(id.index()).and_then(Option::as_ref).is_some_and(|it| it.coverage.is_left_aside())
    }

    /// A report that does not count, because others were lost lately. The next one may count again.
    fn leave_aside(&mut self, id: WorkerId, stored: &StoredBlocks<'_>) {
        let stamp = self.stamp;
        if let Some(Some(worker)) = self.workers.get_mut(id.index())
            && stored.tier == Tier::Gpu
        {
            let tokens = stored.names.len() as u64 * u64::from(stored.block_tokens);
            if worker.coverage.calmed(tokens, worker.capacity_tokens()) {
                worker.reports_from = stamp;
            }
        }
    }

    /// Records that the worker's engine has removed one copy of each of these blocks from the tier.
    pub fn remove(&mut self, id: WorkerId, names: &[u64], tier: Tier) -> Applied {
        let mut applied = Applied::default();
        if tier == Tier::Shared || self.is_left_aside(id) {
            return applied;
        }
        if let Some(mut applier) = self.report_applier(id, &mut applied) {
            applier.remove(names, tier);
        }
        self.finish(id, applied)
    }

    pub(crate) fn finish(&mut self, id: WorkerId, applied: Applied) -> Applied {
        if let Some(mut writer) = self.prediction_writer(id, 0) {
            writer.trim();
        }
        self.account(id.index());
        if let Some(Some(worker)) = self.workers.get_mut(id.index()) {
            worker.numbers.unknown += u64::from(applied.unknown);
            worker.numbers.ignored += u64::from(applied.ignored);
            worker.numbers.dropped += u64::from(applied.dropped);
        }
        applied
    }

    /// A gap in the worker's reports cannot be filled. What it reported is no longer certain and becomes a
    /// prediction, in which the least recently used blocks are evicted. Its reports are set aside until there has
    /// been no gap for long.
    pub fn doubt_reported(&mut self, id: WorkerId) {
        if self.is_left_aside(id) {
            // Only predictions are left, and their order is better than one made from reports.
            return self.set_coverage(id, Coverage::after_gap());
        }
        let seed = mix(self.seed ^ u64::from(id.0) << 32);
        if let Some(mut writer) = self.prediction_writer(id, 0) {
            writer.keep_all();
        }
        if let Some(mut applier) = self.report_applier(id, &mut Applied::default()) {
            applier.doubt(seed);
        }
        self.set_coverage(id, Coverage::after_gap());
        if let Some(mut writer) = self.prediction_writer(id, 0) {
            writer.trim();
        }
        self.account(id.index());
    }

    fn set_coverage(&mut self, id: WorkerId, coverage: Coverage) {
        if let Some(Some(worker)) = self.workers.get_mut(id.index()) {
            worker.coverage = coverage;
        }
    }

    /// Forgets what the worker reported. Predictions stay.
    pub fn clear_reported(&mut self, id: WorkerId) {
        let seed = mix(self.seed ^ u64::from(id.0) << 32);
        if let Some(mut applier) = self.report_applier(id, &mut Applied::default()) {
            applier.clear(seed);
            applier.worker.may_shrink = true;
        }
        self.account(id.index());
    }

    /// Forgets everything the worker holds, after its engine restarted.
    pub fn clear(&mut self, id: WorkerId) {
        self.clear_reported(id);
        self.clear_predicted(id);
    }

    /// Forgets the predictions of the worker. Reported blocks stay.
    pub fn clear_predicted(&mut self, id: WorkerId) {
        if let Some(mut writer) = self.prediction_writer(id, 0) {
            writer.clear();
        }
    }

    /// The worker's block size, learned from its reports: the size for cutting prompts into chains.
    pub fn block_tokens(&self, id: WorkerId) -> Option<u32> {
        self.workers.get(id.index())?.as_ref()?.block_tokens()
    }

    /// Whether what the worker's engine stored before its events were followed no longer matters.
    pub fn is_complete(&self, id: WorkerId) -> bool {
        self.workers.get(id.index()).and_then(Option::as_ref).is_some_and(|it| it.coverage.is_complete())
    }

    /// Everything allocated. Never more than the budget.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
            + self.workers_bytes
            + self.workers.capacity() * size_of::<Option<Box<WorkerBlocks>>>()
            + (self.slots.capacity() + self.free_slots.capacity()) * size_of::<u32>()
            + self.path.capacity() * size_of::<Segment>()
    }

    /// Distinct blocks.
    pub fn blocks(&self) -> usize {
        self.table.blocks()
    }

    pub fn numbers(&self, id: WorkerId) -> Option<Numbers> {
        let worker = self.workers.get(id.index())?.as_ref()?;
        Some(Numbers {
            predicted_blocks: self.table.beliefs.unreported(worker.slot),
            near_blocks: worker.numbers.reported_blocks + self.table.beliefs.unreported(worker.slot)
                - self.table.beliefs.leaving_blocks(worker.slot),
            parked_blocks: worker.parked.blocks() as u32,
            capacity_blocks: worker.capacity,
            unplaced_permille: worker.coverage.unplaced_permille(),
            ..worker.numbers
        })
    }

    /// Stores the blocks, and then the parked ones that waited for them.
    fn store_with_children(
        &mut self,
        id: WorkerId,
        model: &str,
        stored: &StoredBlocks<'_>,
        applied: &mut Applied,
    ) {
        let is_placeholder = stored.tokens.is_empty() || stored.block_tokens == 0;
        if is_placeholder || !self.learn(id, stored) {
            if let Some(mut applier) = self.report_applier(id, applied) {
                applier.store_known(stored.names, stored.tier);
            }
            return;
        }
        self.store_pieces(id, model, stored, applied);
        self.store_ready(id, applied);
    }

    /// Stores the parked blocks whose parent is known now, and those that waited for them.
    pub(crate) fn store_ready(&mut self, id: WorkerId, applied: &mut Applied) {
        while let Some(waiting) = self.ready.pop() {
            if let Some(Some(worker)) = self.workers.get_mut(id.index()) {
                worker.coverage.found(waiting.tokens.len() as u64);
            }
            let stored = StoredBlocks {
                names: &waiting.names,
                parent: Some(waiting.parent),
                tokens: &waiting.tokens,
                block_tokens: waiting.block_tokens,
                // Both are part of the parent's prefix hash.
                adapter: None,
                salt: None,
                extras: &waiting.extras,
                tier: waiting.tier,
            };
            // The model is part of it as well.
            self.store_pieces(id, "", &stored, applied);
        }
    }

    fn store_pieces(&mut self, id: WorkerId, model: &str, stored: &StoredBlocks<'_>, applied: &mut Applied) {
        let (mut names, mut tokens, mut extras) = (stored.names, stored.tokens, stored.extras);
        let mut parent = stored.parent;
        while !names.is_empty() {
            let count = names.len().min(PIECE);
            if self.room(id.index(), count) < count {
                applied.dropped += names.len() as u32;
                return;
            }
            let Some(mut applier) = self.report_applier(id, applied) else { return };
            let (first, rest) = names.split_at(count);
            let (first_tokens, rest_tokens) =
                tokens.split_at((count * stored.block_tokens as usize).min(tokens.len()));
            let (first_extras, rest_extras) = extras.split_at(count.min(extras.len()));
            let piece =
                StoredBlocks { names: first, parent, tokens: first_tokens, extras: first_extras, ..*stored };
            applier.store(model, &piece);
            self.account(id.index());
            (names, tokens, extras, parent) = (rest, rest_tokens, rest_extras, first.last().copied());
        }
    }

    /// Learns the engine's block size. False if these blocks differ in size from those on its GPU.
    fn learn(&mut self, id: WorkerId, stored: &StoredBlocks<'_>) -> bool {
        let Some(Some(worker)) = self.workers.get_mut(id.index()) else { return false };
        if worker.page_tokens == Some(stored.block_tokens) {
            worker.may_shrink = false;
            return true;
        }
        // vLLM with groups of different block sizes also reports where a prompt ends within a block, as a smaller block.
        let known = worker.page_tokens.filter(|_| !worker.may_shrink);
        if stored.tier != Tier::Gpu || known.is_some_and(|it| stored.block_tokens < it) {
            return false;
        }
        if worker.page_tokens.replace(stored.block_tokens).is_some() {
            self.clear(id);
        }
        if let Some(Some(worker)) = self.workers.get_mut(id.index()) {
            worker.may_shrink = false;
        }
        true
    }

    pub(crate) fn report_applier<'a>(
        &'a mut self,
        id: WorkerId,
        applied: &'a mut Applied,
    ) -> Option<ReportApplier<'a>> {
        let clock = self.clock();
        let worker = self.workers.get_mut(id.index())?.as_deref_mut()?;
        Some(ReportApplier { table: &mut self.table, worker, clock, applied, ready: &mut self.ready })
    }

    fn prediction_writer(&mut self, id: WorkerId, clock: u32) -> Option<PredictionWriter<'_>> {
        let worker = self.workers.get_mut(id.index())?.as_deref_mut()?;
        Some(PredictionWriter { table: &mut self.table, worker, path: &mut self.path, clock })
    }

    /// Updates the byte count of a worker that may have changed.
    pub(crate) fn account(&mut self, worker: usize) {
        if let Some(Some(worker)) = self.workers.get_mut(worker) {
            self.workers_bytes -= worker.accounted;
            worker.accounted = worker.bytes();
            self.workers_bytes += worker.accounted;
        }
    }

    fn clock(&self) -> u32 {
        let uses = self.uses.fetch_add(1, Relaxed) + 1;
        u32::try_from(uses >> CLOCK_SHIFT).unwrap_or(u32::MAX)
    }

    fn moment(&mut self, now: Instant) -> Moment {
        self.stamp += 1;
        Moment { now, stamp: self.stamp }
    }
}

#[cfg(test)]
mod tests;
