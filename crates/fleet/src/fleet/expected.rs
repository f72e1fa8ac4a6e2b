//! Models that may have no worker now: those that a worker has listed before, and those that the operator names.

use super::Fleet;
use crate::model::ModelId;

impl Fleet {
    /// Remembers models by the names that workers will list them under. They stay known until the router stops.
    pub fn expect<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        for name in names {
            if let Some(model) = self.intern(name) {
                self.models[model.0 as usize].is_expected = true;
            }
        }
    }

    /// The model of this name, whether a worker lists it now or not.
    pub fn expected(&self, name: &str) -> Option<ModelId> {
        self.names.get(name).copied().filter(|it| self.models[it.0 as usize].is_expected)
    }

    /// The models behind all expected names; a model with several names may appear several times.
    pub fn expected_models(&self) -> impl Iterator<Item = ModelId> {
        self.models.iter().filter(|it| it.is_expected).map(|it| it.base)
    }

    /// The expected model, if there is only one.
    pub fn only_expected(&self) -> Option<ModelId> {
        let mut models = self.expected_models();
        let first = models.next()?;
        models.all(|it| it == first).then_some(first)
    }
}
