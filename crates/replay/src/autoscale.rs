//! Fleets that grow and shrink: by which signals, how long a worker takes to start, and a curve for the traffic.

use std::time::Duration;

use anyhow::Context as _;
use clap::{Arg, ArgMatches, value_parser};
use maitre_base::Role;
use maitre_console::flag;
use maitre_sim::lab::script::WORKERS_MAX;
use maitre_sim::lab::{Autoscale, ScaleRule};
use maitre_sim::trace::curve::RateCurve;

use crate::study::{StrategyChoice, Study, is_given, set_pairs};

pub(super) fn args() -> [Arg; 4] {
    [
        flag::value("autoscale", "RULE,…")
            .value_delimiter(',')
            .value_parser(|text: &str| text.parse::<ScaleRule>())
            .help(
                "Start and stop workers, beginning with --workers: by maitre, the number that the router gives; queue-N or \
                 requests-N, so many waiting (and running) requests per worker; kv-PART, this part of the KV cache in use",
            ),
        flag::value("start-up", "DURATION")
            .default_value("90s")
            .value_parser(maitre_config::duration)
            .help("With --autoscale: how long a new worker takes until it takes requests"),
        flag::value("workers-max", "N")
            .default_value("64")
            .value_parser(value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))
            .help("With --autoscale: the most workers at once"),
        flag::value("curve", "TIME:MULTIPLE,…")
            .value_parser(|text: &str| RateCurve::read(text, maitre_config::duration))
            .help("The rate of the traffic over time, as a multiple of the trace's: 10m:1,12m:3 triples within two minutes"),
    ]
}

/// Bends the trace to the curve, and returns the rules to compare; `None` is a fleet that stays as it is.
pub(super) fn read(
    matches: &ArgMatches,
    study: &mut Study,
    choices: &[StrategyChoice],
) -> anyhow::Result<Vec<Option<Autoscale>>> {
    if let Some(curve) = matches.get_one::<RateCurve>("curve") {
        curve.apply(&mut study.trace);
    }
    let rules: Vec<ScaleRule> = matches.get_many("autoscale").unwrap_or_default().copied().collect();
    let sets = set_pairs(matches)?;
    if rules.is_empty() {
        let idle = sets.iter().find(|it| it.0.starts_with("scaling."));
        anyhow::ensure!(idle.is_none(), "--set scaling.…: it has no effect without --autoscale maitre");
        let idle = ["start-up", "workers-max"].into_iter().find(|it| is_given(matches, it));
        if let Some(flag) = idle {
            anyhow::bail!("--{flag}: no worker is started; write --autoscale maitre");
        }
        return Ok(vec![None]);
    }
    anyhow::ensure!(
        study.script.is_empty(),
        "--autoscale and --script both change the fleet; leave one of them out"
    );
    anyhow::ensure!(
        study.roles.iter().all(|&it| it == Role::Both),
        "--autoscale: workers with roles are not scaled"
    );
    let mut profiles = study.fleet.iter().map(|it| it.name);
    let first = profiles.next();
    anyhow::ensure!(profiles.all(|it| Some(it) == first), "--autoscale: workers must be of one kind");
    let bound = choices.iter().find(|it| !matches!(it, StrategyChoice::Strategy(_)));
    if let Some(bound) = bound {
        anyhow::bail!("--strategy {bound}: it has no router that would know how many workers are needed");
    }
    let start_up: Duration = *matches.get_one("start-up").context("start-up")?;
    let workers_max: u32 = *matches.get_one("workers-max").context("workers-max")?;
    let is_set = |key: &str| sets.iter().any(|it| it.0 == key);
    // As an operator would set them.
    let scaling = &mut study.config.settings.brain.scaling;
    if !is_set("scaling.start_up") {
        scaling.start_up = start_up;
    }
    if !is_set("scaling.ttft") {
        scaling.ttft = study.targets.first_token;
    }
    let profile = *study.fleet.first().context("no worker")?;
    let autoscale = |rule: ScaleRule| Some(Autoscale { rule, profile, start_up, workers_max });
    Ok(rules.into_iter().map(autoscale).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::PlayedRules;
    use maitre_policy::Name;
    use maitre_policy::split::SplitRule;
    use maitre_sim::lab::PreparedTrace;

    /// Four times what one worker can do, after a minute.
    const SURGE: &[&str] =
        &["--trace", "noreuse:prompt=2000,out=20,qps=1,seconds=200", "--curve", "50s:1,60s:12"];

    fn read_all(args: &[&str]) -> anyhow::Result<(Study, Vec<Option<Autoscale>>)> {
        let words = ["replay", "--profile", "a10g-8b"].iter().chain(SURGE).chain(args);
        let matches = crate::command().try_get_matches_from(words)?;
        let mut study = Study::read(&matches, "1")?;
        let choices = [StrategyChoice::Strategy(Name::LeastDelay)];
        let scales = read(&matches, &mut study, &choices)?;
        Ok((study, scales))
    }

    #[test]
    fn a_fleet_grows_with_its_traffic_and_every_request_is_answered() {
        let (study, scales) = read_all(&["--autoscale", "maitre,requests-4", "--start-up", "10s"]).unwrap();
        let prepared = PreparedTrace::new(&study.trace, study.block_tokens);
        for autoscale in scales {
            let choice = StrategyChoice::Strategy(Name::LeastDelay);
            let rules = PlayedRules { choice, split: SplitRule::Never, autoscale };
            let outcome = study.play(rules, &prepared, &mut |_| {});
            let row = outcome.row("it", &study.targets);
            assert_eq!(row.requests + row.refused, study.trace.requests.len() as u64, "{autoscale:?}");
            assert!(row.workers_max.unwrap() > 2, "{row:?}");
            let hours = row.duration_s / 3_600.0;
            assert!(row.worker_hours.unwrap() > hours && row.worker_hours.unwrap() < 64.0 * hours, "{row:?}");
        }
    }

    #[test]
    fn what_cannot_be_scaled_is_refused() {
        for (args, expected) in [
            (&["--autoscale", "maitre", "--workers", "2"][..], ""),
            (&["--autoscale", "cpu-0.5"], "is not a scaling rule"),
            (&["--set", "scaling.ttft=1s"], "no effect without --autoscale"),
            (&["--start-up", "10s"], "--start-up: no worker is started"),
            (&["--workers-max", "64"], "--workers-max: no worker is started"),
        ] {
            let error = read_all(args).map(|_| ()).err().map(|it| it.to_string()).unwrap_or_default();
            let fits = error.contains(expected) && error.is_empty() == expected.is_empty();
            assert!(fits, "{args:?}: {error}");
        }
    }
}
