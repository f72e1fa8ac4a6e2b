//! The LoRA adapters of one worker: which are loaded, and whether there is a slot for another.
//!
//! An engine lists every adapter it could serve and keeps a few of them on the GPU. Its last report may be a second
//! old, so adapters of requests that the router has placed since then count too.

use maitre_base::AdapterSlot;

use crate::model::ModelId;

#[derive(Clone, Debug, Default)]
pub struct Adapters {
    /// How many adapters fit, if the engine says.
    slots: Option<u32>,
    /// Loaded according to its last report.
    loaded: Vec<ModelId>,
    /// Adapters of this router's requests in flight there, with their counts.
    held: Vec<(ModelId, u32)>,
}

impl Adapters {
    pub(crate) fn hear(&mut self, slots: u32, loaded: Vec<ModelId>) {
        self.slots = Some(slots);
        self.loaded = loaded;
    }

    pub(crate) fn begin(&mut self, model: ModelId) {
        match self.held.iter_mut().find(|it| it.0 == model) {
            Some((_, requests)) => *requests += 1,
            None => self.held.push((model, 1)),
        }
    }

    pub(crate) fn end(&mut self, model: ModelId) {
        if let Some(place) = self.held.iter().position(|it| it.0 == model) {
            self.held[place].1 -= 1;
            if self.held[place].1 == 0 {
                self.held.swap_remove(place);
            }
        }
    }

    pub fn slot(&self, model: ModelId) -> AdapterSlot {
        if self.loaded.contains(&model) || self.held.iter().any(|it| it.0 == model) {
            return AdapterSlot::Ready;
        }
        let ours = self.held.iter().filter(|it| !self.loaded.contains(&it.0)).count();
        match self.slots {
            Some(slots) if self.loaded.len() + ours >= slots as usize => AdapterSlot::Waits,
            _ => AdapterSlot::Loads,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ModelId = ModelId(1);
    const B: ModelId = ModelId(2);
    const C: ModelId = ModelId(3);

    #[test]
    fn an_adapter_is_loaded_by_its_report_or_by_our_count() {
        let mut adapters = Adapters::default();
        assert_eq!(adapters.slot(A), AdapterSlot::Loads);
        adapters.begin(A);
        assert_eq!(adapters.slot(A), AdapterSlot::Ready);
        adapters.end(A);
        assert_eq!(adapters.slot(A), AdapterSlot::Loads);
        adapters.hear(2, vec![A]);
        assert_eq!((adapters.slot(A), adapters.slot(B)), (AdapterSlot::Ready, AdapterSlot::Loads));
    }

    #[test]
    fn slots_run_out() {
        let mut adapters = Adapters::default();
        adapters.hear(2, vec![A]);
        adapters.begin(A);
        adapters.begin(B);
        assert_eq!(adapters.slot(C), AdapterSlot::Waits);
        adapters.end(B);
        assert_eq!(adapters.slot(C), AdapterSlot::Loads);
    }
}
