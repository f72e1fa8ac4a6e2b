//! What is expected of a prompt at its worker, and what is heard about it later.

use std::sync::{Arc, OnceLock};

use maitre_base::Instant;
use maitre_index::PredictedBlocks;
use maitre_index::prefix::Unit;

use super::PromptChain;

/// What a placed prompt is expected to leave in the cache of its worker, and in the store that it shares. Empty until it is
/// written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prediction(Arc<(OnceLock<PredictedBlocks>, OnceLock<PredictedBlocks>)>);

impl Prediction {
    pub(super) fn set_written(&self, predicted: PredictedBlocks) {
        // Written once: a prompt is placed once under one prediction.
        let _ = self.0.0.set(predicted);
    }

    pub(super) fn written(&self) -> Option<PredictedBlocks> {
        self.0.0.get().copied()
    }

    pub(super) fn in_store(&self) -> Option<PredictedBlocks> {
        self.0.1.get().copied()
    }

    pub(super) fn set_in_store(&self, predicted: PredictedBlocks) {
        // The first counts: it was made when the prompt was computed.
        let _ = self.0.1.set(predicted);
    }
}

#[derive(Debug)]
pub(super) enum PromptEvent {
    /// The prompt was sent there.
    Placed(Instant, Prediction),
    /// Its first token came.
    Prefilled(Instant, Prediction),
    /// The attempt ended before that.
    Failed(Prediction),
    /// The engine counted this part of it as cached.
    Counted(Prediction, f64),
    /// Its blocks may have been reported after its first token.
    Adopted,
}

/// How many blocks the engine has found in its cache, if it counted this part of the prompt as cached.
pub(super) fn found_blocks(prompt: &PromptChain, size: u32, predicted: PredictedBlocks, part: f64) -> u32 {
    let found = (part * prompt.units as f64 / f64::from(size)).round() as u32;
    match prompt.unit {
        // Code has twice the tokens of prose in as many bytes, so a part of the tokens is only roughly the same part of the
        // words. Without this, a cached half that was prose passed for a miss, and a miss removes everything older.
        Unit::Words if (predicted.from / 2..=predicted.from * 2).contains(&found) => predicted.from,
        Unit::Words | Unit::Tokens => found,
    }
}
