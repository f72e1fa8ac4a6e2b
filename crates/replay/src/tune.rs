//! `maitre tune`: finds how many workers meet a target, and with which knobs.
//!
//! It replays the trace in virtual time, as `maitre replay` does, with one fleet after the other, and prints
//! lines for a config file. The same command gives the same bytes on any machine.

mod climb;
mod count;
mod dials;
mod mix;
mod player;
mod search;
mod show;
mod target;
mod traffic;

#[cfg(test)]
mod tests;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use maitre_console::{flag, out};
use maitre_policy::Name;
use maitre_sim::lab::PreparedTrace;
use maitre_sim::lab::script::WORKERS_MAX;
use maitre_sim::trace::Trace;

use crate::roles;
use crate::study::{self, Study};
use count::Span;
use player::{Ground, Player};
use search::Search;
use show::Report;
use target::{Goal, Target};
use traffic::Split;

pub fn command() -> Command {
    Command::new("tune")
        .about("Find the smallest fleet that meets a target, and its knobs, in virtual time")
        .args(study::args())
        .args(own_args())
        .args(roles::link_args())
        .args(study::run_args())
}

fn own_args() -> [Arg; 7] {
    [
        flag::value("target", "TARGET")
            .action(ArgAction::Append)
            .default_value("ttft_p99<2s")
            .value_parser(|text: &str| text.parse::<Target>())
            .help("A target, such as tpot_mean<80ms or \"p99 TTFT under 2 s\"; may be repeated"),
        flag::value("workers", "MIN..MAX")
            .default_value("1..64")
            .value_parser(span)
            .help("The range of fleet sizes"),
        flag::value("strategy", "NAME,…")
            .default_value("least-delay")
            .value_delimiter(',')
            .help("Strategies to tune; `all` for every one"),
        flag::value("speed", "X")
            .default_value("1")
            .value_parser(value_parser!(f64))
            .help("Speed, as a multiple of the trace's, to plan for growth"),
        flag::value("objective", "FIELD")
            .default_value("ttft_mean")
            .value_parser(target::find)
            .help("What the knobs should improve, while targets are met"),
        flag::value("runs", "N")
            .default_value("60")
            .value_parser(value_parser!(u32).range(0..=10_000))
            .help("Maximum runs for the knobs of each strategy; 0 leaves them unchanged"),
        flag::switch("roles").help(
            "Also find which workers should prefill, decode or do both, or that none should have a role",
        ),
    ]
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let asked = Asked::read(matches)?;
    let (text, code) = asked.answer(matches.get_flag("json"))?;
    out::print(&text)?;
    Ok(code)
}

/// The values of the flags.
#[derive(Debug)]
struct Asked {
    study: Study,
    names: Vec<Name>,
    goal: Goal,
    span: Span,
    speed: f64,
    runs: usize,
    jobs: Option<usize>,
    seeks_roles: bool,
}

impl Asked {
    fn read(matches: &ArgMatches) -> anyhow::Result<Asked> {
        let span: Span = *matches.get_one("workers").context("workers")?;
        let speed: f64 = *matches.get_one("speed").context("speed")?;
        anyhow::ensure!((0.001..=1_000.0).contains(&speed), "--speed {speed}: 0.001 to 1000 are possible");
        // A script that fits the smallest fleet fits every larger one.
        let mut study = Study::read(matches, &span.min.to_string())?;
        let seeks_roles = matches.get_flag("roles");
        if !seeks_roles {
            roles::check_link(matches, &study, "--roles")?;
        }
        study.link = roles::link(matches);
        Ok(Asked {
            names: names(matches)?,
            goal: Goal {
                targets: matches.get_many("target").unwrap_or_default().copied().collect(),
                objective: matches.get_one("objective").copied().context("objective")?,
            },
            span,
            speed,
            runs: *matches.get_one::<u32>("runs").context("runs")? as usize,
            jobs: matches.get_one::<u32>("jobs").map(|&it| it as usize),
            study,
            seeks_roles,
        })
    }

    /// The text to print, and whether any fleet is large enough.
    fn answer(self, as_json: bool) -> anyhow::Result<(String, ExitCode)> {
        let has_dials = self.runs > 0 && self.names.iter().any(|&it| !dials::of(it).is_empty());
        let split = traffic::split(&self.study, self.speed, has_dials || self.seeks_roles)?;
        let decks: Vec<PreparedTrace<'_>> =
            split.traffics.iter().map(|it| PreparedTrace::new(&it.trace, self.study.block_tokens)).collect();
        let mut player = self.player(&split, &decks)?;
        let mut search = Search {
            player: &mut player,
            goal: &self.goal,
            span: self.span,
            runs: self.runs,
            split: &split,
            seeks_roles: self.seeks_roles,
        };
        let quests = search.run(&self.names)?;
        let report = Report::new(&self, &split, &player, &quests);
        let text = if as_json { format!("{}\n", report.json()) } else { report.text() };
        let code = if report.is_found() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        Ok((text, code))
    }

    fn player<'a>(&self, split: &Split, decks: &'a [PreparedTrace<'a>]) -> anyhow::Result<Player<'a>> {
        let ground = |(prepared, traffic): (&'a PreparedTrace<'a>, &traffic::Traffic)| Ground {
            prepared,
            seed: traffic.seed,
        };
        let grounds = decks.iter().zip(&split.traffics).map(ground).collect();
        let mut study = self.study.clone();
        study.trace = Trace::default();
        let profile = *study.fleet.first().context("--profile")?;
        Ok(Player { study, profile, grounds, speed: self.speed, jobs: self.jobs, tried: Vec::new() })
    }
}

fn names(matches: &ArgMatches) -> anyhow::Result<Vec<Name>> {
    let texts: Vec<&String> = matches.get_many("strategy").unwrap_or_default().collect();
    let (all, named): (Vec<&String>, Vec<&String>) = texts.into_iter().partition(|it| it.as_str() == "all");
    let mut names: Vec<Name> = Vec::new();
    for text in named {
        let name = text.parse().map_err(|it| anyhow::anyhow!("--strategy: {it}, all"))?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(if all.is_empty() { names } else { Name::ALL.to_vec() })
}

/// `1..64`, both ends included; a single number is both ends.
fn span(text: &str) -> Result<Span, String> {
    let (min, max) = text.split_once("..").unwrap_or((text, text));
    let number = |it: &str| it.trim().parse::<u32>().ok().filter(|it| (1..=WORKERS_MAX).contains(it));
    match (number(min), number(max)) {
        (Some(min), Some(max)) if min <= max => Ok(Span { min, max }),
        _ => Err(format!("write MIN..MAX, as in 1..64, from 1 to {WORKERS_MAX}")),
    }
}
