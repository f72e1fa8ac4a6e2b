//! Fleets with roles: which prompts go to prefill workers, and how fast KV moves between workers.

use std::time::Duration;

use clap::{Arg, ArgMatches};
use maitre_base::Role;
use maitre_console::flag;
use maitre_policy::split::SplitRule;
use maitre_sim::lab::{LinkChange, PullingWorkers};

use crate::study::{StrategyChoice, Study, is_given};

pub(super) fn args() -> Vec<Arg> {
    let mut args = vec![
        flag::value("split", "RULE,…")
            .value_delimiter(',')
            .value_parser(|text: &str| text.parse::<SplitRule>())
            .help(
                "Which prompts go to prefill workers: price, always, never, or a published rule: threshold-TOKENS, \
                 isl-bounding, prefill-load-TOKENS, isl-or-load-TOKENS, unmatched-TOKENS, edpp-MILLISECONDS, \
                 deflection-MILLISECONDS [default: `split` of the \
                 configuration]",
            ),
    ];
    args.extend(link_args());
    args
}

/// How fast KV moves.
pub(super) fn link_args() -> [Arg; 2] {
    [
        flag::value("kv-link-floor", "DURATION")
            .value_parser(maitre_config::duration)
            .help("What every transfer of KV takes [default: 26ms]"),
        flag::value("kv-link-bandwidth", "GB/S")
            .value_parser(parse_bandwidth)
            .help("Gigabytes of KV a second that reach a worker [default: 17]"),
    ]
}

/// Bytes a second from gigabytes.
pub(super) fn parse_bandwidth(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gigabytes) if (0.001..=100_000.0).contains(&gigabytes) => Ok(gigabytes * 1e9),
        _ => Err("write a number between 0.001 and 100000".to_owned()),
    }
}

pub(super) fn link(matches: &ArgMatches) -> LinkChange {
    LinkChange {
        floor: matches.get_one::<Duration>("kv-link-floor").copied(),
        bytes_per_second: matches.get_one("kv-link-bandwidth").copied(),
    }
}

/// Refuses the speed of a link that no KV would use; `instead` is what to write.
pub(super) fn check_link(matches: &ArgMatches, study: &Study, instead: &str) -> anyhow::Result<()> {
    let moves_kv = study.has_prefill_workers() || study.pulls != PullingWorkers::None;
    match ["kv-link-floor", "kv-link-bandwidth"].into_iter().find(|it| is_given(matches, it)) {
        Some(flag) if !moves_kv => {
            anyhow::bail!("--{flag}: no worker prefills for others, and none pulls; write {instead}")
        }
        _ => Ok(()),
    }
}

/// Sets the links, and returns the rules to compare.
pub(super) fn read(matches: &ArgMatches, study: &mut Study) -> anyhow::Result<Vec<SplitRule>> {
    if !study.has_prefill_workers() && is_given(matches, "split") {
        anyhow::bail!("--split: no worker prefills for others; write --workers 4@prefill,4@decode");
    }
    check_link(matches, study, "--workers 4@prefill,4@decode or --kv-pull")?;
    study.link = link(matches);
    let rules: Vec<SplitRule> = matches.get_many("split").unwrap_or_default().copied().collect();
    Ok(if rules.is_empty() { vec![study.config.settings.brain.split] } else { rules })
}

/// The bounds place whole requests, by the prefixes that engines hold.
pub(super) fn check(study: &Study, choices: &[StrategyChoice]) -> anyhow::Result<()> {
    let bound = choices.iter().find(|it| !matches!(it, StrategyChoice::Strategy(_)));
    match bound {
        Some(bound) if study.chunks.engines.is_some() => {
            anyhow::bail!("--strategy {bound}: it knows no chunks; leave it out, or --chunks")
        }
        Some(bound) if study.has_prefill_workers() => {
            anyhow::bail!("--strategy {bound}: it knows no roles; leave it out, or the prefill workers")
        }
        _ => Ok(()),
    }
}

/// Workers of one kind in a fleet, as text: the profile, and its role if it has one.
pub(super) fn kind(profile: &str, role: Role) -> String {
    match role {
        Role::Both => profile.to_owned(),
        role => format!("{profile}@{role}"),
    }
}
