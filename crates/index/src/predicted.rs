//! Predictions: a prompt that was sent to a worker will be in its cache.
//!
//! The engine evicts the least recently used blocks, and within one prompt the last block first. The prediction does
//! the same, at the estimated size of the cache. From the first missing block on, the engine computes the whole rest
//! of the prompt, so that request *predicts* all of it.
//!
//! Reports say what an engine holds now, not what it will hold when a request that arrives now runs: under a backlog
//! it evicts much until then. So with fresh reports, blocks keep their place in the eviction order after the engine
//! has stored them. Those that will not fit beside all promised blocks count as *leaving*: not held. Without that,
//! reports were worse than predictions, which evict when a request is sent: with agents in a short memory the mean
//! TTFT was 1.22 times as long.
//!
//! A prediction is *settled* when a request that uses it produces its first token. Only a miss on a settled block is
//! evidence. The engine evicted that block and everything used no later, so its cache is smaller than estimated.

use crate::believed::{Belief, Moment, Stamp};
use crate::holders::{Mask, RUN_BLOCKS, low};
use crate::table::{Chain, Placing, PrefixTable, Segment};
use crate::worker::{CAPACITY_DEFAULT, CacheSource, WorkerBlocks};
use maitre_base::Instant;
use std::cmp::Ordering;
use std::time::Duration;

/// How long a prediction stays that fresh reports do not confirm, once its blocks should exist. It is longer than
/// events take at worst. When they were five seconds late, three seconds here made a prefix vanish and come back, and
/// the mean TTFT of RAG past saturation was 50 s instead of 29.
pub const FADE: Duration = Duration::from_secs(10);
/// How long a prediction stays whose blocks are not computed yet. Its request may wait at the engine for minutes, and
/// requests with the same prefix must find it. When these faded after three seconds too, the next request computed
/// the prefix on another worker. The bound is for requests whose end the router never sees.
pub const PENDING_MAX: Duration = Duration::from_secs(600);

/// The estimated size of a cache is at least the reported size divided by this. Chosen: misses have other causes too,
/// such as a cache reset.
const CAPACITY_FLOOR: u32 = 8;

/// What one request predicted at its worker. Pass it to `forget`, `prefilled` and `correct`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictedBlocks {
    stamp: Stamp,
    /// How many leading blocks the worker held before: the position of the first predicted block.
    pub from: u32,
    /// When the last of those blocks was used before.
    before: Stamp,
}

impl PredictedBlocks {
    /// For an unknown worker; changes nothing.
    pub const NOTHING: PredictedBlocks = PredictedBlocks { stamp: 0, from: 0, before: 0 };

    /// Whether this request predicted it and no other request has used it since.
    fn is_alone_in(self, belief: &Belief) -> bool {
        belief.author == self.stamp && belief.used == self.stamp
    }
}

/// One worker's predictions, while a request is recorded.
pub(crate) struct PredictionWriter<'a> {
    pub(crate) table: &'a mut PrefixTable,
    pub(crate) worker: &'a mut WorkerBlocks,
    pub(crate) path: &'a mut Vec<Segment>,
    pub(crate) clock: u32,
}

impl PredictionWriter<'_> {
    /// Predicts the missing blocks, and refreshes the others. `path` has the runs along the chain.
    pub(crate) fn write(&mut self, moment: Moment, chain: Chain<'_>) -> PredictedBlocks {
        let (from, before) = self.believed();
        self.part();
        if let Some(&segment) = self.path.iter().rfind(|it| it.start < from)
            && self.table.fence(segment, from, self.worker.slot)
        {
            self.table.trace(chain, self.path);
        }
        self.place(moment, chain, from);
        if self.worker.source == CacheSource::Reported {
            self.keep(moment, chain, from);
        }
        self.touch(moment, from);
        self.trim();
        PredictedBlocks { stamp: moment.stamp, from: from as u32, before }
    }

    /// Drops what this request predicted, unless another request has used it since.
    pub(crate) fn erase(&mut self, chain: Chain<'_>, predicted_blocks: PredictedBlocks) {
        self.table.trace(chain, self.path);
        for &Segment { run, .. } in self.path.iter() {
            let Some(share) = self.table.share(run, self.worker.slot) else { continue };
            if self.table.beliefs.get(share.belief).is_some_and(|it| predicted_blocks.is_alone_in(it)) {
                self.table.change(run, self.worker.slot, |share| share.predicted &= share.gpu);
            }
        }
        self.trim();
    }

    /// How many leading blocks are held without those that only this request predicts.
    pub(crate) fn held_without(&mut self, chain: Chain<'_>, predicted_blocks: PredictedBlocks) -> usize {
        self.table.trace(chain, self.path);
        let mut held = 0;
        for segment in self.path.iter() {
            let Some(share) = self.table.share(segment.run, self.worker.slot) else { break };
            let belief = self.table.beliefs.get(share.belief);
            let is_own = belief.is_some_and(|it| predicted_blocks.is_alone_in(it));
            let here = PrefixTable::leading(if is_own { share.gpu } else { share.near() }, segment.blocks);
            if segment.start != held || here == 0 {
                break;
            }
            held += here;
            if here < segment.blocks {
                break;
            }
        }
        held
    }

    /// Records that all blocks that count as held do exist. `path` has the runs along their chain.
    pub(crate) fn settle(&mut self, moment: Moment, predicted_blocks: PredictedBlocks) {
        let is_reported = self.worker.source == CacheSource::Reported;
        self.part();
        for &Segment { run, blocks, .. } in self.path.iter() {
            let Some(&share) = self.table.share(run, self.worker.slot) else { continue };
            if share.predicted & low(blocks) != 0
                && let Some(belief) = self.table.beliefs.get_mut(share.belief)
            {
                // If reports confirm predictions, a prediction that a later request waits for is not settled yet.
                if !is_reported || belief.used <= predicted_blocks.stamp {
                    belief.settled = belief.settled.or(Some(moment));
                }
            }
        }
    }

    /// Learns from the number of blocks that the engine found in its cache.
    pub(crate) fn correct(&mut self, chain: Chain<'_>, predicted_blocks: PredictedBlocks, found: u32) {
        // The engine rounds a hit down to whole blocks and leaves one token to compute: one block less proves
        // nothing.
        if found > predicted_blocks.from {
            let more = self.worker.capacity / 8 + (found - predicted_blocks.from);
            let most = self.worker.capacity_reported.max(self.worker.capacity);
            self.worker.capacity = self.worker.capacity.saturating_add(more).min(most);
        } else if found + 1 < predicted_blocks.from && self.is_proof(chain, predicted_blocks, found as usize)
        {
            self.evict_used_until(predicted_blocks.before);
            self.shrink();
        }
    }

    /// Drops the least recently used blocks, tails first, until the rest fits the cache. If a report will tell when
    /// they are gone, they only count as leaving until then.
    pub(crate) fn trim(&mut self) {
        let slot = self.worker.slot;
        if self.worker.source == CacheSource::Reported {
            return self.mark_leaving();
        }
        while let Some(&oldest) = self.table.beliefs.oldest(slot) {
            // Blocks older than the reports also make room for them: no report will tell of their removal.
            let is_older = oldest.used <= self.worker.reports_from;
            let others = if is_older { self.worker.numbers.reported_blocks } else { 0 };
            let held = others + self.table.beliefs.blocks(slot);
            let Some(excess) = held.checked_sub(self.worker.capacity).filter(|&it| it > 0) else { return };
            self.table.change(oldest.run, slot, |share| {
                for _ in 0..excess.min(share.predicted.count_ones()) {
                    share.predicted &= !(1 << share.predicted.ilog2());
                }
            });
        }
    }

    /// Marks as leaving as many blocks as do not fit the cache once the engine has computed everything predicted.
    fn mark_leaving(&mut self) {
        let slot = self.worker.slot;
        let near = self.worker.numbers.reported_blocks + self.table.beliefs.unreported(slot);
        let excess = near.saturating_sub(self.worker.capacity);
        loop {
            let leaving = self.table.beliefs.leaving_blocks(slot);
            let last = self.table.beliefs.last_leaving(slot).copied();
            match (leaving.cmp(&excess), last) {
                (Ordering::Less, last) => {
                    if let Some(it) = last {
                        self.table.change(it.run, slot, |share| share.leave(excess - leaving));
                    }
                    if self.table.beliefs.leaving_blocks(slot) < excess
                        && self.table.beliefs.more_leaving(slot).is_none()
                    {
                        return;
                    }
                }
                (Ordering::Greater, Some(it)) => {
                    self.table.change(it.run, slot, |share| share.stay(leaving - excess));
                    if self.table.beliefs.leaving_blocks(slot) > excess {
                        self.table.beliefs.fewer_leaving(slot);
                    }
                }
                (Ordering::Equal | Ordering::Greater, _) => return,
            }
        }
    }

    /// No block is leaving any longer.
    pub(crate) fn keep_all(&mut self) {
        let slot = self.worker.slot;
        while let Some(&last) = self.table.beliefs.last_leaving(slot) {
            self.table.change(last.run, slot, |share| share.stay(RUN_BLOCKS as u32));
            self.table.beliefs.fewer_leaving(slot);
        }
    }

    /// Drops the predictions that reports should have confirmed by now. Looks at no more than `most` entries, newest
    /// first, because those are not confirmed yet. Returns how many of `most` are left.
    pub(crate) fn fade(&mut self, now: Instant, most: usize) -> usize {
        let (slot, mut left) = (self.worker.slot, most);
        let mut unreported = self.table.beliefs.unreported(slot);
        let mut next = self.table.beliefs.newest(slot).copied();
        while let Some(belief) = next.filter(|_| left > 0 && unreported > 0) {
            // Read before the drop frees the entry.
            next = self.table.beliefs.older(&belief).copied();
            left -= 1;
            let share = self.table.share(belief.run, slot);
            unreported -= share.map_or(0, |it| (it.predicted & !it.gpu).count_ones());
            let settled = belief.settled.map(|it| it.now.max(belief.used_at));
            if settled.is_some_and(|it| now.since(it) >= FADE) || now.since(belief.used_at) >= PENDING_MAX {
                self.table.change(belief.run, slot, |share| share.predicted &= share.gpu);
            }
        }
        self.trim();
        left
    }

    /// Drops the oldest prediction.
    pub(crate) fn drop_oldest(&mut self) {
        let slot = self.worker.slot;
        if let Some(&oldest) = self.table.beliefs.oldest(slot) {
            self.table.change(oldest.run, slot, |share| share.predicted = 0);
        }
    }

    pub(crate) fn clear(&mut self) {
        let slot = self.worker.slot;
        while let Some(&oldest) = self.table.beliefs.oldest(slot) {
            self.table.change(oldest.run, slot, |share| share.predicted = 0);
        }
    }

    /// How many leading blocks this worker is expected to hold, and when the last of them was used.
    fn believed(&self) -> (usize, Stamp) {
        let (mut believed, mut before) = (0, 0);
        for segment in self.path.iter() {
            let Some(share) = self.table.share(segment.run, self.worker.slot) else { break };
            let held = PrefixTable::leading(share.near(), segment.blocks);
            if segment.start != believed || held == 0 {
                break;
            }
            let is_predicted = share.predicted >> (held - 1) & 1 == 1;
            let belief = self.table.beliefs.get(share.belief).filter(|_| is_predicted);
            before = belief.map_or(0, |it| it.used);
            believed += held;
            if held < segment.blocks {
                break;
            }
        }
        (believed, before)
    }

    /// Splits a run where the chain ends or diverges: the two parts have different histories from now on.
    fn part(&mut self) {
        for &segment in self.path.iter() {
            self.table.fence(segment, segment.start + segment.blocks, self.worker.slot);
        }
    }

    /// Adds the blocks from `from` on. `path` has the runs along the chain. Between them no block is in the table, so
    /// they are added a run at a time without another search. Afterwards `path` has these runs too.
    fn place(&mut self, moment: Moment, chain: Chain<'_>, from: usize) {
        let first = self.path.partition_point(|it| it.start + it.blocks <= from);
        let known: Vec<Segment> = self.path.drain(first..).collect();
        let mut at = self.path.last().map(|it| (it.run, (it.blocks - 1) as u8));
        let mut next = from;
        for known in known.into_iter().map(Some).chain([None]) {
            let end = known.map_or(chain.prefixes.len(), |it| it.start);
            while next < end {
                let placing = Placing {
                    slot: self.worker.slot,
                    block_tokens: chain.block_tokens,
                    author: Some(moment.stamp),
                    clock: self.clock,
                };
                let ((run, last), count) = self.table.extend_new(at, &chain.prefixes[next..end], placing);
                let blocks = usize::from(last) + 1;
                self.believe(run, low(blocks) & !low(blocks - count), moment);
                match self.path.last_mut() {
                    Some(grown) if grown.run == run => grown.blocks = blocks,
                    _ => self.path.push(Segment { run, start: next, blocks }),
                }
                at = Some((run, last));
                next += count;
            }
            if let Some(segment @ Segment { run, start, blocks }) = known {
                self.table.end_run(at);
                // The worker may hold a part of the first one.
                self.believe(run, low(blocks) & !low(next - start), moment);
                self.path.push(segment);
                at = Some((run, (blocks - 1) as u8));
                next = start + blocks;
            }
        }
    }

    /// Also predicts those of the first `end` blocks that are reported. The engine may evict them before the request
    /// runs. The request then computes them again, and requests with the same prefix must find them.
    fn keep(&mut self, moment: Moment, chain: Chain<'_>, end: usize) {
        let mut at = 0;
        while let Some(&Segment { run, start, blocks }) = self.path.get(at).filter(|it| it.start < end) {
            let blocks = blocks.min(end - start);
            let Some(&share) = self.table.share(run, self.worker.slot) else { break };
            let bits = share.predicted & low(blocks);
            // Blocks with different histories are in different runs.
            let alike = PrefixTable::leading(if bits & 1 == 1 { bits } else { !bits }, blocks);
            let is_mixed = alike < blocks || share.predicted != bits;
            if is_mixed && alike < self.table.runs[run].len() {
                self.table.split(run, alike);
                self.table.trace(chain, self.path);
                continue;
            }
            if bits == 0 {
                let mut is_new = false;
                self.table.change(run, self.worker.slot, |share| {
                    is_new = share.belief == crate::slab::NONE;
                    share.predicted |= low(blocks);
                });
                self.set_author(run, is_new, moment);
            }
            at += 1;
        }
    }

    /// Predicts these blocks of a run, unless they are already reported.
    fn believe(&mut self, run: u32, bits: Mask, moment: Moment) {
        let mut is_new = false;
        self.table.change(run, self.worker.slot, |share| {
            is_new = share.belief == crate::slab::NONE;
            share.predicted |= !share.gpu & bits;
        });
        self.set_author(run, is_new, moment);
    }

    fn set_author(&mut self, run: u32, is_new: bool, moment: Moment) {
        if is_new
            && let Some(share) = self.table.share(run, self.worker.slot)
            && let Some(belief) = self.table.beliefs.get_mut(share.belief)
        {
            belief.author = moment.stamp;
        }
    }

    /// Marks the whole path as most recently used, the head last.
    fn touch(&mut self, moment: Moment, from: usize) {
        for &Segment { run, start, blocks } in self.path.iter().rev() {
            *self.table.runs[run].used.get_mut() = self.clock;
            let Some(&share) = self.table.share(run, self.worker.slot) else { continue };
            if share.predicted & low(blocks) == 0 {
                continue;
            }
            let is_planted = start + share.predicted.trailing_zeros() as usize >= from;
            if share.leaving() != 0 {
                self.table.change(run, self.worker.slot, |share| share.stay(RUN_BLOCKS as u32));
            }
            self.table.beliefs.renew(share.belief);
            if let Some(belief) = self.table.beliefs.get_mut(share.belief) {
                belief.used = moment.stamp;
                belief.used_at = moment.now;
                if is_planted {
                    belief.author = moment.stamp;
                }
                // Reports must confirm it again once this request is prefilled.
                if is_planted || self.worker.source == CacheSource::Reported {
                    belief.settled = None;
                }
            }
        }
    }

    /// Whether this block was known to exist before the request was sent.
    fn is_proof(&mut self, chain: Chain<'_>, predicted_blocks: PredictedBlocks, block: usize) -> bool {
        self.table.trace(chain, self.path);
        let Some(segment) = self.path.iter().find(|it| (it.start..it.start + it.blocks).contains(&block))
        else {
            return false;
        };
        let share = self.table.share(segment.run, self.worker.slot);
        share.is_some_and(|share| {
            share.predicted >> (block - segment.start) & 1 == 1
                && self
                    .table
                    .beliefs
                    .get(share.belief)
                    .and_then(|it| it.settled)
                    .is_some_and(|settled| settled.stamp < predicted_blocks.stamp)
        })
    }

    fn evict_used_until(&mut self, stamp: Stamp) {
        let slot = self.worker.slot;
        while let Some(&oldest) = self.table.beliefs.oldest(slot).filter(|it| it.used <= stamp) {
            self.table.change(oldest.run, slot, |share| share.predicted = 0);
        }
    }

    /// Shrinks the estimated capacity towards what was used since, by at most a quarter at a time: one miss may have
    /// other causes.
    fn shrink(&mut self) {
        // Trust a reported size: blocks that were missing early were evicted while the request was queued. Shrinking
        // for them cost a saturated fleet a tenth of its hits.
        if self.worker.capacity_reported != CAPACITY_DEFAULT {
            return;
        }
        let floor = self.worker.capacity_reported / CAPACITY_FLOOR;
        let gentle = self.worker.capacity - self.worker.capacity / 4;
        let left = self.table.beliefs.blocks(self.worker.slot);
        let smaller = left.max(gentle).max(floor).max(1);
        self.worker.capacity = self.worker.capacity.min(smaller);
    }
}
