//! llama.cpp: Prometheus at `/metrics` where it is enabled. It has slots instead of blocks, so no block
//! sizes.

use maitre_base::EngineLoad;

use crate::engine::Unreadable;
use crate::engine::ranks::Gauges;

pub(crate) fn load(only: Option<u32>, scrape: &[u8]) -> Result<EngineLoad, Unreadable> {
    Gauges::read("llamacpp", only, scrape, |gauges, sample| {
        let ranks = match sample.name {
            "llamacpp:requests_processing" => &mut gauges.running,
            "llamacpp:requests_deferred" => &mut gauges.waiting,
            // Removed in newer builds.
            "llamacpp:kv_cache_usage_ratio" => &mut gauges.kv_usage,
            _ => return false,
        };
        ranks.add("".into(), sample.value);
        true
    })
}
