//! Fleets whose workers pull KV from each other, or share a store of it.

use std::time::Duration;

use clap::{Arg, ArgMatches};
use maitre_console::flag;
use maitre_sim::lab::{LinkChange, PullingWorkers, StoreConfig};
use maitre_sim::profile::Profile;
use maitre_sim::store::StoreSize;

use crate::roles::parse_bandwidth;
use crate::study::Study;

pub(super) fn args() -> [Arg; 4] {
    [
        flag::switch("kv-pull")
            .help("Workers can pull KV from each other, over the links that --kv-link-floor and --kv-link-bandwidth set"),
        flag::value("kv-store", "TOKENS|TIMESx")
            .value_parser(|text: &str| text.parse::<StoreSize>())
            .help("Workers share a KV store of this size: in tokens, or as a multiple of all caches, such as 4x"),
        flag::value("kv-store-floor", "DURATION")
            .value_parser(maitre_config::duration)
            .requires("kv-store")
            .help("What every load from the store takes [default: 26ms]"),
        flag::value("kv-store-bandwidth", "GB/S")
            .value_parser(parse_bandwidth)
            .requires("kv-store")
            .help("Gigabytes of KV a second that a worker loads from the store [default: 17]"),
    ]
}

pub(super) fn read(matches: &ArgMatches, study: &mut Study) -> anyhow::Result<()> {
    if matches.get_flag("kv-pull") {
        study.pulls = PullingWorkers::All;
    }
    let Some(size) = matches.get_one::<StoreSize>("kv-store") else { return Ok(()) };
    let cache_tokens = study.fleet.iter().map(Profile::kv_tokens).sum();
    let blocks = size
        .blocks(cache_tokens, study.block_tokens)
        .map_err(|problem| anyhow::anyhow!("--kv-store: {problem}"))?;
    let link = LinkChange {
        floor: matches.get_one::<Duration>("kv-store-floor").copied(),
        bytes_per_second: matches.get_one("kv-store-bandwidth").copied(),
    };
    study.store = Some(StoreConfig { tokens: blocks as u64 * u64::from(study.block_tokens), link });
    Ok(())
}

/// What workers share, for a title; begins with a comma unless it is nothing.
pub(super) fn words(study: &Study) -> String {
    let pulls = if study.pulls == PullingWorkers::None { "" } else { ", pulls" };
    let store = study.store.map_or_else(String::new, |it| format!(", a store of {} tokens", it.tokens));
    format!("{pulls}{store}")
}
