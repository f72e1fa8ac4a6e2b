//! TensorRT-LLM: Prometheus at `/prometheus/metrics` where performance metrics are enabled; otherwise a JSON
//! list of iteration statistics at `/metrics`, of which the last entry is current.
//!
//! Reading the list empties it. An empty list therefore means that the engine has not stepped since, and is
//! no error.

use serde::Deserialize;

use maitre_base::EngineLoad;

use crate::engine::Unreadable;
use crate::engine::ranks::Gauges;

pub(crate) fn load(only: Option<u32>, scrape: &[u8]) -> Result<EngineLoad, Unreadable> {
    Gauges::read("tensorrt", only, scrape, |gauges, sample| {
        let ranks = match sample.name {
            "trtllm_num_requests_running" => &mut gauges.running,
            "trtllm_num_requests_waiting" => &mut gauges.waiting,
            "trtllm_kv_cache_utilization" => &mut gauges.kv_usage,
            "trtllm_kv_cache_tokens_per_block" => &mut gauges.block_size,
            "trtllm_kv_cache_max_blocks" => &mut gauges.blocks,
            _ => return sample.name.starts_with("trtllm_"),
        };
        // Reports as one engine, whatever its parallelism.
        ranks.add("".into(), sample.value);
        true
    })
}

pub(crate) fn load_of_json(body: &[u8]) -> Result<EngineLoad, Unreadable> {
    let iterations: Vec<Iteration> =
        serde_json::from_slice(body).map_err(|source| Unreadable::Json { kind: "tensorrt", source })?;
    Ok(iterations.last().map(Iteration::load).unwrap_or_default())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Iteration {
    num_active_requests: Option<u64>,
    num_queued_requests: Option<u64>,
    kv_cache_stats: Option<KvCache>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KvCache {
    max_num_blocks: Option<u64>,
    used_num_blocks: Option<u64>,
    tokens_per_block: Option<u64>,
}

impl Iteration {
    fn load(&self) -> EngineLoad {
        let cache = self.kv_cache_stats.as_ref();
        let blocks = cache.and_then(|it| it.max_num_blocks);
        let block_size = cache.and_then(|it| it.tokens_per_block);
        let used = cache.and_then(|it| it.used_num_blocks);
        let share = |(used, all): (u64, u64)| (all > 0).then(|| (used as f64 / all as f64).min(1.0));
        EngineLoad {
            running: self.num_active_requests,
            waiting: self.num_queued_requests,
            kv_usage: used.zip(blocks).and_then(share),
            block_size,
            blocks,
            kv_tokens: block_size.zip(blocks).map(|(size, count)| size.saturating_mul(count)),
            ..EngineLoad::default()
        }
    }
}
