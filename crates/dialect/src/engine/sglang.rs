//! SGLang: JSON at `/v1/loads` since 0.5.8, and Prometheus at `/metrics` where it is enabled.
//!
//! Every scheduler process reports. A rank may therefore appear once per tensor-parallel process, and with
//! priorities enabled once per class beside the total. Within a `dp_rank` the largest value counts.

use std::borrow::Cow;

use serde::Deserialize;

use maitre_base::{EngineLoad, Role};

use crate::engine::ranks::Gauges;
use crate::engine::{Disaggregation, Unreadable};

pub(crate) fn load(only: Option<u32>, scrape: &[u8]) -> Result<EngineLoad, Unreadable> {
    Gauges::read("sglang", only, scrape, |gauges, sample| {
        let ranks = match sample.name {
            "sglang:num_running_reqs" => &mut gauges.running,
            "sglang:num_queue_reqs" => &mut gauges.waiting,
            "sglang:token_usage" => &mut gauges.kv_usage,
            "sglang:page_size" => &mut gauges.block_size,
            "sglang:num_pages" => &mut gauges.blocks,
            "sglang:max_total_num_tokens" => &mut gauges.kv_tokens,
            _ => return false,
        };
        ranks.add(sample.label("dp_rank").unwrap_or_default(), sample.value);
        true
    })
    .map(with_blocks)
}

/// Older releases report only the page size.
fn with_blocks(load: EngineLoad) -> EngineLoad {
    let derived = || load.kv_tokens?.checked_div(load.block_size?);
    EngineLoad { blocks: load.blocks.or_else(derived), ..load }
}

pub(crate) fn load_of_json(only: Option<u32>, body: &[u8]) -> Result<EngineLoad, Unreadable> {
    let report: Report =
        serde_json::from_slice(body).map_err(|source| Unreadable::Json { kind: "sglang", source })?;
    let mut gauges = Gauges::default();
    for (index, rank) in report.loads.into_iter().enumerate() {
        let key = rank.dp_rank.map_or_else(|| index.to_string(), |it| it.to_string());
        for (ranks, value) in [
            (&mut gauges.running, rank.num_running_reqs),
            (&mut gauges.waiting, rank.num_waiting_reqs),
            (&mut gauges.kv_usage, rank.token_usage),
            (&mut gauges.kv_tokens, rank.max_total_num_tokens),
        ] {
            if let Some(value) = value {
                ranks.add(key.clone().into(), value);
            }
        }
    }
    Ok(gauges.load(only))
}

/// From `/server_info`, which lists everything the engine was started with.
pub(crate) fn disaggregation(body: &[u8]) -> Result<Disaggregation, Unreadable> {
    let info: DisaggregationInfo<'_> =
        serde_json::from_slice(body).map_err(|source| Unreadable::Json { kind: "sglang", source })?;
    let role = match info.disaggregation_mode.as_deref() {
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        // The word "null".
        _ => Role::Both,
    };
    Ok(Disaggregation {
        role,
        bootstrap_port: info.disaggregation_bootstrap_port.filter(|it| *it != 0),
        dp_size: info.dp_size.unwrap_or(1).max(1),
        follows_room: matches!(
            info.load_balance_method.as_deref(),
            None | Some("auto" | "follow_bootstrap_room")
        ),
        caches_prefixes: role != Role::Decode || info.disaggregation_decode_enable_radix_cache == Some(true),
    })
}

#[derive(Deserialize)]
struct DisaggregationInfo<'a> {
    #[serde(borrow)]
    disaggregation_mode: Option<Cow<'a, str>>,
    disaggregation_bootstrap_port: Option<u16>,
    disaggregation_decode_enable_radix_cache: Option<bool>,
    dp_size: Option<u32>,
    #[serde(borrow)]
    load_balance_method: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Report {
    loads: Vec<Rank>,
}

#[derive(Deserialize)]
struct Rank {
    dp_rank: Option<i64>,
    num_running_reqs: Option<f64>,
    num_waiting_reqs: Option<f64>,
    token_usage: Option<f64>,
    max_total_num_tokens: Option<f64>,
}
