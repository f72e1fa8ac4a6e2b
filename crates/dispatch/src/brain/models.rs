//! What workers say of themselves: their models, their load, their caches.

use maitre_base::{EngineLoad, Instant, StoredBlocks, WorkerId};
use maitre_fleet::{Card, Models, Worker};

use super::Parts;

impl Parts {
    pub(super) fn learn_models(&mut self, worker: WorkerId, cards: &[Card<'_>]) {
        let seen = self.fleet.models_seen();
        self.fleet.learn_models(worker, cards);
        self.scheduler.fleet_changed = true;
        for card in cards {
            let Some(model) = self.fleet.model(card.name) else { continue };
            let own = self.settings.strategies.get(card.name).copied();
            self.placer.strategies.add(model, own.unwrap_or(self.settings.strategy), self.settings.knobs);
        }
        if self.fleet.models_seen() > seen {
            self.placer.apply_early_pins(&self.fleet);
        }
        self.find_grain(worker);
    }

    pub(super) fn load_reported(&mut self, now: Instant, worker: WorkerId, load: EngineLoad) {
        self.fleet.report(now, worker, load);
        let capacity = self.fleet.worker(worker).and_then(Worker::capacity);
        self.cache.size(worker, load.block_size, capacity);
        self.find_grain(worker);
    }

    pub(super) fn blocks_stored(&mut self, worker: WorkerId, blocks: &StoredBlocks<'_>) {
        let model = self.fleet.base_of(worker).and_then(|it| self.fleet.name(it));
        let model = model.map_or("", |it| it);
        let before = self.cache.block(worker);
        self.cache.stored(worker, model, blocks);
        if self.cache.block(worker) != before {
            self.find_grain(worker);
        }
    }

    /// Finds the block size that divides those of all workers of this one's model.
    fn find_grain(&mut self, worker: WorkerId) {
        let Some(base) = self.fleet.base_of(worker) else { return };
        let same = self.fleet.workers().filter(|it| it.models != Models::Unknown);
        let same = same.filter(|it| self.fleet.base_of(it.id) == Some(base));
        let grain = same.fold(0, |sum, it| common_divisor(sum, self.cache.block(it.id)));
        self.block_grains.insert(u64::from(base.0), grain.max(1));
    }
}

/// The greatest common divisor.
fn common_divisor(one: u32, other: u32) -> u32 {
    match other {
        0 => one,
        _ => common_divisor(other, one % other),
    }
}
