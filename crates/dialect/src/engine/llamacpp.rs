//! llama.cpp: Prometheus at `/metrics` where it was switched on. Slots, not blocks, so no sizes.

use crate::engine::ranks::Gauges;
use crate::engine::{Load, Unreadable};

pub(crate) fn load(only: Option<u32>, scrape: &[u8]) -> Result<Load, Unreadable> {
    Gauges::read("llamacpp", only, scrape, |gauges, sample| {
        let ranks = match sample.name {
            "llamacpp:requests_processing" => &mut gauges.running,
            "llamacpp:requests_deferred" => &mut gauges.waiting,
            // Gone from newer builds.
            "llamacpp:kv_cache_usage_ratio" => &mut gauges.kv_usage,
            _ => return false,
        };
        ranks.add("".into(), sample.value);
        true
    })
}
