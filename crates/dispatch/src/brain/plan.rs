//! What must be known of a prompt before it arrives here: which reader wants it, and in which blocks.

use std::sync::Arc;

use maitre_fleet::Wanted;

use super::Brain;
use crate::cache::BLOCK_TOKENS;

/// How to name the prompt of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPlan {
    /// The model that will compute it, whatever name or adapter was asked for; none if no worker lists it.
    pub model: Option<Arc<str>>,
    pub adapter: Option<Arc<str>>,
    /// Units in a block.
    pub block: u32,
    /// Whether any worker reports its cache: only then do the exact tokens matter.
    pub reported: bool,
    /// Whether any worker reuses chunks: only then is the prompt cut into them.
    pub chunks: bool,
    pub reader: PromptReader,
}

/// Why a prompt is read; the first reason of these that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptReader {
    /// The strategy in charge uses it: the prompt comes with the arrival, and so does the size by its tokens.
    Strategy,
    /// A shadow uses it: the prompt comes with the arrival, but with the size it would have if it were not read. So picks
    /// are what they would be without a shadow.
    Shadow,
    /// Only the traffic record uses it: the prompt must not come with the arrival.
    Record,
}

impl Brain {
    /// How to name the prompt of a request for this model; none if nothing uses it.
    pub fn plan(&self, model: Option<&str>) -> Option<ReadPlan> {
        let (fleet, settings) = (&self.parts.fleet, &self.parts.settings);
        let known = model.and_then(|name| fleet.model(name));
        let reader = match self.parts.placer.strategies.of(known).name().needs().cache {
            true => PromptReader::Strategy,
            false if settings.shadows.iter().any(|it| it.needs().cache) => PromptReader::Shadow,
            false if settings.reads_all => PromptReader::Record,
            false => return None,
        };
        let base = match model {
            Some(_) => known.map(|it| fleet.base(it)),
            None => fleet.base_wanted(Wanted::Anything),
        };
        let name = base.and_then(|it| fleet.name(it)).cloned();
        let adapter = known.filter(|&it| fleet.is_adapter(it)).and_then(|it| fleet.name(it));
        let grain = base.and_then(|it| self.parts.block_grains.get(&u64::from(it.0)));
        Some(ReadPlan {
            model: name,
            adapter: adapter.cloned(),
            block: grain.copied().unwrap_or(BLOCK_TOKENS),
            reported: reader != PromptReader::Record && self.parts.cache.anyone_reports(),
            chunks: reader != PromptReader::Record && self.parts.cache.anyone_reuses_chunks(),
            reader,
        })
    }
}
