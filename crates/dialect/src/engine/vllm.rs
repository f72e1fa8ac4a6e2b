//! vLLM: Prometheus at `/metrics`, one series per data-parallel `engine`.
//!
//! Capacity is not a value but a set of labels of `cache_config_info`. The blocks there are those of all ranks together, the
//! tokens (since 0.25) those of one. Where layers form several groups, blocks times their size is not the capacity, and
//! `block_size` may be that of the smallest group; 0.32 has the size that counts under another name. Up to 0.11 the usage gauge was called
//! `gpu_cache_usage_perc`; it is and was a ratio, not a percentage.

use maitre_base::EngineLoad;

use crate::engine::ranks::Gauges;
use crate::engine::{Adapters, Unreadable};
use crate::exposition::{self, Sample};
use crate::models::CARDS_MAX;

/// What the engine's cache is like, one series for each rank.
pub(crate) const CONFIG: &str = "vllm:cache_config_info";

pub(crate) fn load(only: Option<u32>, scrape: &[u8]) -> Result<EngineLoad, Unreadable> {
    let mut gauges = Gauges::collect("vllm", scrape, |gauges, sample| {
        let ranks = match sample.base_name() {
            "vllm:num_requests_running" => &mut gauges.running,
            "vllm:num_requests_waiting" => &mut gauges.waiting,
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" => &mut gauges.kv_usage,
            "vllm:prefix_cache_queries" | "vllm:gpu_prefix_cache_queries" => &mut gauges.queried_tokens,
            "vllm:prefix_cache_hits" | "vllm:gpu_prefix_cache_hits" => &mut gauges.hit_tokens,
            CONFIG => {
                add_config(gauges, sample);
                return true;
            }
            _ => return false,
        };
        ranks.add(rank(sample), sample.value);
        true
    })?;
    gauges.blocks.divide();
    Ok(gauges.load(only))
}

/// Tokens in a block of full attention, by the labels of `cache_config_info`.
pub(crate) fn block_tokens(config: &Sample<'_>) -> Option<u64> {
    // A label is `None` until the engine has measured its memory.
    let number = |name| config.label(name).and_then(|it| it.parse().ok());
    number("effective_attention_block_size").or_else(|| number("block_size"))
}

/// Ranks are numbered over all hosts of a deployment, and each host reports its own.
pub(crate) fn first_rank(scrape: &[u8]) -> u32 {
    let configs = exposition::samples(scrape).filter(|it| it.name == CONFIG);
    configs.filter_map(|it| it.label("engine")?.parse().ok()).min().unwrap_or(0)
}

/// Adapters are labels too, with the time as the value. Every combination that ever occurred keeps its
/// series, so only the newest counts. With several data-parallel ranks, the newest is from the rank that
/// wrote last.
pub(crate) fn adapters(scrape: &[u8]) -> Option<Adapters> {
    // Most engines have no adapters, and this page is read every second.
    memchr::memmem::find(scrape, b"vllm:lora_requests_info{")?;
    let told = exposition::samples(scrape).filter(|it| it.name == "vllm:lora_requests_info");
    let newest = told.filter(|it| it.value.is_finite()).max_by(|a, b| a.value.total_cmp(&b.value))?;
    let names = |label| -> Vec<String> {
        let joined = newest.label(label).unwrap_or_default();
        joined.split(',').filter(|it| !it.is_empty()).take(CARDS_MAX).map(str::to_owned).collect()
    };
    Some(Adapters {
        max: newest.label("max_lora")?.parse().ok()?,
        running: names("running_lora_adapters"),
        waiting: names("waiting_lora_adapters"),
    })
}

fn add_config<'a>(gauges: &mut Gauges<'a>, sample: &Sample<'a>) {
    if let Some(size) = block_tokens(sample) {
        gauges.block_size.add(rank(sample), size as f64);
    }
    let number = |name| sample.label(name).and_then(|it| it.parse().ok());
    if let Some(blocks) = number("num_gpu_blocks") {
        gauges.blocks.add(rank(sample), blocks);
    }
    if let Some(tokens) = number("kv_cache_size_tokens") {
        gauges.kv_tokens.add(rank(sample), tokens);
    }
}

fn rank<'a>(sample: &Sample<'a>) -> std::borrow::Cow<'a, str> {
    sample.label("engine").unwrap_or_default()
}
