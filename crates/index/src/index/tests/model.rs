//! The index in its plainest form, as the tests' oracle: one entry per block, maps throughout, no runs, no
//! bit masks.

use super::{BLOCK_TOKENS, hash_of, tokens_of};
use crate::Holding;
use crate::predicted::{FADE, PENDING_MAX};
use crate::worker::{CAPACITY_DEFAULT, CacheSource};
use maitre_base::Instant;
use maitre_base::Tier;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub(super) struct Belief {
    used: u64,
    used_at: Instant,
    depth: usize,
    author: u64,
    settled: Option<(Instant, u64)>,
}

#[derive(Clone, Debug)]
struct Waiting {
    parent: Option<u64>,
    names: Vec<u64>,
    /// One block for each name.
    blocks: Vec<u8>,
    tier: Tier,
}

#[derive(Clone, Debug)]
pub(super) struct ModelWorker {
    /// Name to block and copies.
    names: BTreeMap<u64, (u64, [u32; 3])>,
    predicted: BTreeMap<u64, Belief>,
    parked: Vec<Waiting>,
    /// The prompt up to the end of a block, by hash.
    prompts: BTreeMap<u64, Vec<u8>>,
    /// Adopted parents, and our names for their ancestors.
    adopted: BTreeMap<u64, Vec<u64>>,
    pub(super) source: CacheSource,
    capacity: u32,
    capacity_reported: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PredictedBlocks {
    stamp: u64,
    pub(super) from: usize,
    before: u64,
}

#[derive(Default)]
pub(super) struct PlainIndex {
    pub(super) workers: BTreeMap<u32, ModelWorker>,
    stamp: u64,
}

impl PlainIndex {
    pub(super) fn join(&mut self, worker: u32) {
        self.workers.entry(worker).or_insert(ModelWorker {
            names: BTreeMap::new(),
            predicted: BTreeMap::new(),
            parked: Vec::new(),
            prompts: BTreeMap::new(),
            adopted: BTreeMap::new(),
            source: CacheSource::Predicted,
            capacity: CAPACITY_DEFAULT,
            capacity_reported: CAPACITY_DEFAULT,
        });
    }

    pub(super) fn look_up(&self, worker: u32, prompt: &[u8]) -> Holding {
        let Some(worker) = self.workers.get(&worker) else { return Holding::default() };
        let hashes: Vec<u64> = (1..=prompt.len()).map(|end| hash_of(&prompt[..end])).collect();
        let leaving = worker.leaving();
        let near = |it: u64| worker.is_near(it) && !leaving.contains(&it);
        let (near, any) = (
            hashes.iter().take_while(|&&it| near(it)).count(),
            hashes.iter().take_while(|&&it| near(it) || worker.is_lower(it)).count(),
        );
        Holding { blocks: near as u32, lower: (any - near) as u32 }
    }

    pub(super) fn predict(&mut self, now: Instant, worker: u32, prompt: &[u8]) -> Option<PredictedBlocks> {
        self.stamp += 1;
        let (stamp, from) = (self.stamp, self.look_up(worker, prompt).blocks as usize);
        let worker = self.workers.get_mut(&worker)?;
        let last = from.checked_sub(1).and_then(|it| worker.predicted.get(&hash_of(&prompt[..=it])));
        let before = last.map_or(0, |it| it.used);
        for at in 0..prompt.len() {
            let hash = hash_of(&prompt[..=at]);
            let is_known = worker.predicted.contains_key(&hash);
            let is_kept = worker.source == CacheSource::Reported && !is_known;
            if at >= from && (is_known || !worker.is_on_gpu(hash)) || at < from && is_kept {
                let belief = Belief { used: 0, used_at: now, depth: at, author: stamp, settled: None };
                worker.predicted.insert(hash, belief);
            }
            if let Some(belief) = worker.predicted.get_mut(&hash) {
                belief.used = stamp;
                belief.used_at = now;
                if worker.source == CacheSource::Reported {
                    belief.settled = None;
                }
            }
        }
        worker.trim();
        Some(PredictedBlocks { stamp, from, before })
    }

    pub(super) fn forget(&mut self, worker: u32, prompt: &[u8], predicted_blocks: PredictedBlocks) {
        let Some(worker) = self.workers.get_mut(&worker) else { return };
        for end in 1..=prompt.len() {
            let hash = hash_of(&prompt[..end]);
            let is_own =
                |it: &Belief| it.author == predicted_blocks.stamp && it.used == predicted_blocks.stamp;
            if worker.predicted.get(&hash).is_some_and(is_own) && !worker.is_on_gpu(hash) {
                worker.predicted.remove(&hash);
            }
        }
    }

    pub(super) fn prefilled(
        &mut self,
        now: Instant,
        worker: u32,
        prompt: &[u8],
        predicted_blocks: PredictedBlocks,
    ) {
        self.stamp += 1;
        let Some(worker) = self.workers.get_mut(&worker) else { return };
        for end in 1..=prompt.len() {
            if let Some(belief) = worker.predicted.get_mut(&hash_of(&prompt[..end]))
                && (worker.source == CacheSource::Predicted || belief.used <= predicted_blocks.stamp)
            {
                belief.settled = belief.settled.or(Some((now, self.stamp)));
            }
        }
    }

    pub(super) fn correct(
        &mut self,
        worker: u32,
        prompt: &[u8],
        predicted_blocks: PredictedBlocks,
        found: usize,
    ) {
        let Some(worker) = self.workers.get_mut(&worker) else { return };
        if worker.source == CacheSource::Reported {
            return;
        }
        if found > predicted_blocks.from {
            let grown = worker.capacity + worker.capacity / 8 + (found - predicted_blocks.from) as u32;
            worker.capacity = grown.min(worker.capacity_reported.max(worker.capacity));
        } else if found + 1 < predicted_blocks.from {
            let belief = worker.predicted.get(&hash_of(&prompt[..=found]));
            if belief.and_then(|it| it.settled).is_some_and(|settled| settled.1 < predicted_blocks.stamp) {
                worker.predicted.retain(|_, it| it.used > predicted_blocks.before);
                if worker.capacity_reported == CAPACITY_DEFAULT {
                    let left = worker.predicted.len() as u32;
                    let gentle = worker.capacity - worker.capacity / 4;
                    let floor = worker.capacity_reported / 8;
                    worker.capacity = worker.capacity.min(left.max(gentle).max(floor).max(1));
                }
            }
        }
    }

    pub(super) fn set_capacity(&mut self, worker: u32, blocks: u32) {
        if let Some(worker) = self.workers.get_mut(&worker)
            && worker.capacity_reported != blocks
        {
            (worker.capacity_reported, worker.capacity) = (blocks, blocks);
            worker.trim();
        }
    }

    pub(super) fn tick(&mut self, now: Instant) {
        for worker in self.workers.values_mut().filter(|it| it.source == CacheSource::Reported) {
            let on_gpu = worker.on_gpu();
            worker.predicted.retain(|hash, it| {
                let limit = if it.settled.is_some() { FADE } else { PENDING_MAX };
                let settled_at = it.settled.map_or(Instant::ZERO, |it| it.0);
                on_gpu.contains(hash) || now.since(it.used_at.max(settled_at)) < limit
            });
        }
    }

    pub(super) fn clear(&mut self, worker: u32) {
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.predicted.clear();
            worker.clear_reported();
        }
    }

    pub(super) fn clear_reported(&mut self, worker: u32) {
        if let Some(worker) = self.workers.get_mut(&worker) {
            worker.clear_reported();
        }
    }
}

impl ModelWorker {
    fn clear_reported(&mut self) {
        let on_gpu = std::mem::take(&mut self.names).into_values().filter(|it| it.1[0] > 0);
        on_gpu.for_each(|it| self.overrule(it.0));
        self.parked.clear();
        self.adopted.clear();
    }

    pub(super) fn store(&mut self, names: &[u64], parent: Option<u64>, blocks: &[u8], tier: Tier) {
        let mut parent = parent;
        let mut waiting = Vec::new();
        for (names, blocks) in names.chunks(64).zip(blocks.chunks(64)) {
            waiting.push(Waiting { parent, names: names.to_vec(), blocks: blocks.to_vec(), tier });
            if parent.is_none_or(|it| self.names.contains_key(&it)) {
                self.apply(waiting.pop().unwrap());
            }
            parent = names.last().copied();
        }
        self.parked.extend(waiting);
    }

    fn apply(&mut self, waiting: Waiting) {
        let parent = waiting.parent.map(|it| self.prompts[&self.names[&it].0].clone());
        let mut prompt = parent.unwrap_or_default();
        for (&name, &block) in waiting.names.iter().zip(&waiting.blocks) {
            prompt.push(block);
            self.bind(name, &prompt, waiting.tier);
        }
        self.apply_parked();
    }

    fn apply_parked(&mut self) {
        let is_known =
            |it: &Waiting, names: &BTreeMap<u64, _>| it.parent.is_some_and(|it| names.contains_key(&it));
        while let Some(at) = self.parked.iter().position(|it| is_known(it, &self.names)) {
            let next = self.parked.remove(at);
            self.apply(next);
        }
    }

    fn bind(&mut self, name: u64, prompt: &[u8], tier: Tier) {
        let hash = hash_of(prompt);
        self.prompts.insert(hash, prompt.to_vec());
        let entry = self.names.entry(name).or_insert((hash, [0; 3]));
        let is_another = entry.0 != hash;
        let old = entry.0;
        if is_another {
            *entry = (hash, [0; 3]);
        }
        entry.1[tier as usize] += 1;
        if tier == Tier::Gpu {
            self.confirm(hash);
        }
        if is_another {
            if !self.is_on_gpu(old) {
                self.overrule(old);
            }
            self.disown(name);
        }
    }

    /// The prompt was computed: finds the parked blocks with its last tokens.
    pub(super) fn adopt(&mut self, prompt: &[u8]) {
        for at in (0..self.parked.len()).rev() {
            let root = &self.parked[at];
            let (Some(parent), Tier::Gpu) = (root.parent, root.tier) else { continue };
            if self.parked.iter().any(|it| it.names.contains(&parent)) {
                continue;
            }
            let (mut blocks, mut last) = (root.names.len(), root.names.last());
            for _ in 0..self.parked.len() {
                let Some(child) = self.parked.iter().find(|it| it.parent == last.copied()) else { break };
                blocks += child.names.len();
                last = child.names.last();
            }
            let depths = prompt.len().saturating_sub(blocks).max(1)..prompt.len();
            let fits = |&depth: &usize| prompt[depth..].iter().zip(&root.blocks).all(|(a, b)| a == b);
            if let Some(depth) = { depths }.find(fits) {
                return self.adopt_at(parent, &prompt[..depth]);
            }
        }
    }

    fn adopt_at(&mut self, parent: u64, prompt: &[u8]) {
        let own: Vec<u64> =
            (1..prompt.len()).map(|end| crate::adopted::name_of(hash_of(&prompt[..end]))).collect();
        for (end, &name) in (1..).zip(&own) {
            self.bind(name, &prompt[..end], Tier::Gpu);
        }
        self.bind(parent, prompt, Tier::Gpu);
        self.adopted.insert(parent, own);
        self.apply_parked();
    }

    fn disown(&mut self, parent: u64) {
        for name in self.adopted.remove(&parent).unwrap_or_default() {
            self.remove(name, Tier::Gpu);
        }
    }

    pub(super) fn store_known(&mut self, names: &[u64], tier: Tier) {
        for name in names {
            if let Some(entry) = self.names.get_mut(name) {
                entry.1[tier as usize] += 1;
                if tier == Tier::Gpu {
                    let hash = entry.0;
                    self.confirm(hash);
                }
            }
        }
    }

    pub(super) fn remove(&mut self, name: u64, tier: Tier) {
        match self.names.get_mut(&name) {
            Some((hash, copies)) => {
                let hash = *hash;
                let is_known = copies[tier as usize] > 0;
                copies[tier as usize] = copies[tier as usize].saturating_sub(1);
                let is_gone = copies[Tier::Gpu as usize] == 0;
                if *copies == [0; 3] {
                    self.names.remove(&name);
                }
                if is_known && is_gone {
                    self.disown(name);
                }
                if tier == Tier::Gpu && !self.is_on_gpu(hash) {
                    self.overrule(hash);
                }
            }
            None => {
                if let Some(at) = self.parked.iter().position(|it| it.names.contains(&name)) {
                    let waiting = &mut self.parked[at];
                    let cut = waiting.names.iter().position(|&it| it == name).unwrap();
                    waiting.names.truncate(cut);
                    waiting.blocks.truncate(cut);
                    if cut == 0 {
                        self.parked.remove(at);
                    }
                }
            }
        }
    }

    fn confirm(&mut self, hash: u64) {
        if self.source == CacheSource::Predicted {
            self.overrule(hash);
        }
    }

    fn overrule(&mut self, hash: u64) {
        let is_settled = self.predicted.get(&hash).is_some_and(|it| it.settled.is_some());
        if is_settled || self.source == CacheSource::Predicted {
            self.predicted.remove(&hash);
        }
    }

    /// How many are reported on the GPU, how many are only predicted, and how many of all these are not leaving.
    pub(super) fn blocks(&self) -> (usize, usize, usize) {
        let reported = self.on_gpu();
        let predicted = self.predicted.keys().filter(|&it| !reported.contains(it)).count();
        (reported.len(), predicted, reported.len() + predicted - self.leaving().len())
    }

    fn on_gpu(&self) -> BTreeSet<u64> {
        self.names.values().filter(|it| it.1[0] > 0).map(|it| it.0).collect()
    }

    /// With fresh reports, the least recently used blocks that will not fit.
    fn leaving(&self) -> BTreeSet<u64> {
        if self.source == CacheSource::Predicted {
            return BTreeSet::new();
        }
        let reported = self.on_gpu();
        let near = reported.len() + self.predicted.keys().filter(|&it| !reported.contains(it)).count();
        let mut order: Vec<(u64, usize, u64)> =
            self.predicted.iter().map(|(&hash, it)| (it.used, usize::MAX - it.depth, hash)).collect();
        order.sort_unstable();
        order.iter().take(near.saturating_sub(self.capacity as usize)).map(|it| it.2).collect()
    }

    pub(super) fn parked_blocks(&self) -> usize {
        self.parked.iter().map(|it| it.names.len()).sum()
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    fn is_on_gpu(&self, hash: u64) -> bool {
        self.names.values().any(|it| it.0 == hash && it.1[0] > 0)
    }

    fn is_near(&self, hash: u64) -> bool {
        self.predicted.contains_key(&hash) || self.is_on_gpu(hash)
    }

    fn is_lower(&self, hash: u64) -> bool {
        self.names.values().any(|it| it.0 == hash && it.1[1..].iter().any(|&copies| copies > 0))
    }

    pub(super) fn trim(&mut self) {
        while self.source == CacheSource::Predicted && self.predicted.len() > self.capacity as usize {
            let oldest = self.predicted.iter().min_by_key(|(_, it)| (it.used, usize::MAX - it.depth));
            let hash = *oldest.unwrap().0;
            self.predicted.remove(&hash);
        }
    }
}

/// The tokens of some blocks, concatenated.
pub(super) fn tokens(blocks: &[u8]) -> Vec<u32> {
    blocks.iter().flat_map(|&block| tokens_of(block, BLOCK_TOKENS)).collect()
}
