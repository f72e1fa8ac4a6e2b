//! `maitre replay`: every strategy on the same traffic, in virtual time.
//!
//! The router's brain is the one that serves; engines, sockets and time are simulated. The same command gives
//! the same bytes, whatever the machine and however many strategies run side by side.

pub mod study;
pub mod trace;
pub mod tune;

mod page;
mod progress;
mod report_file;
mod series;
pub mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command, value_parser};
use maitre_sim::lab::{Knowledge, PreparedTrace, RunOutcome, Via};
use maitre_sim::report::{ReportRow, Targets};
use maitre_sim::trace::Trace;
use parking_lot::Mutex;
use serde_json::{Value, json};

use progress::Progress;
use report_file::ReportFile;
use study::{StrategyChoice, Study};

use maitre_console::out;

/// One strategy at one speed.
#[derive(Debug)]
pub struct Run {
    pub row: ReportRow,
    /// By part, class and tenant, each empty where there is only one.
    pub parts: Vec<ReportRow>,
    pub classes: Vec<ReportRow>,
    pub tenants: Vec<ReportRow>,
    pub outcome: RunOutcome,
}

pub fn command() -> Command {
    let own = [
        Arg::new("workers")
            .long("workers")
            .value_name("N|LIST")
            .default_value("8")
            .help("How many, or a mixed fleet: 4xh100x2-32b,4xa10g-8b"),
        Arg::new("strategy")
            .long("strategy")
            .value_name("NAME,…")
            .default_value("round-robin,cache-aware,least-delay")
            .value_delimiter(',')
            .help("Strategies to compare; `all` for every one, with the two bounds oracle and ideal-cache"),
        Arg::new("speed")
            .long("speed")
            .value_name("X,…")
            .default_value("1")
            .value_delimiter(',')
            .value_parser(value_parser!(f64))
            .help("Plays the trace so many times as fast; several make a sweep"),
        Arg::new("html")
            .long("html")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Also write a page with a finding, tables and charts; it opens without a network"),
    ];
    Command::new("replay")
        .about("Every strategy on the same traffic, in virtual time")
        .args(study::args())
        .args(own)
        .args(study::run_args())
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let workers: &String = matches.get_one("workers").context("workers")?;
    let study = Study::read(matches, workers)?;
    let choices = choices(matches)?;
    let speeds: Vec<f64> = matches.get_many("speed").unwrap_or_default().copied().collect();
    for speed in &speeds {
        anyhow::ensure!((0.001..=1_000.0).contains(speed), "--speed {speed}: 0.001 to 1000 are possible");
    }
    let file = matches.get_one::<PathBuf>("html").map(|it| ReportFile::new(it)).transpose()?;
    let jobs = matches.get_one::<u32>("jobs").map(|&it| it as usize);
    let mut runs = play_all(&study, &choices, &speeds, jobs);
    trace::name_tenants(&study.source, runs.iter_mut().flat_map(|it| &mut it.tenants));
    if let Some(file) = file {
        let command = page::typed(std::env::args_os().map(|it| it.to_string_lossy().into_owned()));
        file.write(&page::draw(&study, &runs, &command))?;
    }
    out::print(&match matches.get_flag("json") {
        true => format!("{}\n", report(&study, &runs)),
        false => table::draw(&study, &runs),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn choices(matches: &ArgMatches) -> anyhow::Result<Vec<StrategyChoice>> {
    let names: Vec<&String> = matches.get_many("strategy").unwrap_or_default().collect();
    let (all, named): (Vec<&String>, Vec<&String>) = names.into_iter().partition(|it| it.as_str() == "all");
    let choice = |name: &&String| name.parse().map_err(|it| anyhow::anyhow!("--strategy: {it}"));
    let named: Vec<StrategyChoice> = named.iter().map(choice).collect::<anyhow::Result<_>>()?;
    Ok(if all.is_empty() { named } else { StrategyChoice::all() })
}

/// A run to come.
pub(crate) struct Task<'a> {
    pub(crate) study: &'a Study,
    pub(crate) choice: StrategyChoice,
    pub(crate) prepared: &'a PreparedTrace<'a>,
    /// Of the prepared, for the row.
    pub(crate) speed: f64,
}

/// All strategies at all speeds.
fn play_all(study: &Study, choices: &[StrategyChoice], speeds: &[f64], jobs: Option<usize>) -> Vec<Run> {
    let traces: Vec<Trace> = speeds.iter().map(|&it| study.hastened(it)).collect();
    let decks = decks(study, &traces);
    let tasks: Vec<Task<'_>> = decks
        .iter()
        .zip(speeds)
        .flat_map(|(prepared, &speed)| {
            choices.iter().map(move |&choice| Task { study, choice, prepared, speed })
        })
        .collect();
    play_tasks(&tasks, jobs)
}

/// Several at a time; the runs come back in the order in which they were asked for.
pub(crate) fn play_tasks(tasks: &[Task<'_>], jobs: Option<usize>) -> Vec<Run> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let progress = Progress::begin(tasks.iter().map(|it| it.prepared.requests().len()).sum());
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = tasks.get(place) else { break };
            let run = play_one(task, &progress);
            done.lock().push((place, run));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 1..jobs.unwrap_or(cores).min(tasks.len()) {
            scope.spawn(work);
        }
        work();
    });
    progress.end();
    let mut done = done.into_inner();
    done.sort_by_key(|it| it.0);
    done.into_iter().map(|(_, run)| run).collect()
}

/// Times differ between speeds, prompts do not.
fn decks<'a>(study: &Study, traces: &'a [Trace]) -> Vec<PreparedTrace<'a>> {
    let mut decks: Vec<PreparedTrace<'a>> = Vec::with_capacity(traces.len());
    for trace in traces {
        let prepared = match decks.first() {
            Some(first) => first.at_times_of(trace),
            None => PreparedTrace::new(trace, study.block_tokens),
        };
        decks.push(prepared);
    }
    decks
}

fn play_one(&Task { study, choice, prepared, speed }: &Task<'_>, progress: &Progress) -> Run {
    let mut reported = 0;
    let mut step = |arrived: usize| {
        // One update per request would cost more than some requests do.
        if arrived - reported >= 64 || arrived == prepared.requests().len() {
            progress.add(arrived - reported);
            reported = arrived;
        }
    };
    let outcome = study.play(choice, prepared, &mut step);
    let row = ReportRow { speed, ..outcome.row(choice.as_str(), &study.targets) };
    let [mut parts, mut classes, mut tenants] = [RunOutcome::parts, RunOutcome::classes, RunOutcome::tenants]
        .map(|rows: fn(&RunOutcome, &str, &Targets) -> Vec<ReportRow>| {
            rows(&outcome, choice.as_str(), &study.targets)
        });
    [&mut parts, &mut classes, &mut tenants].into_iter().flatten().for_each(|it| it.speed = speed);
    Run { row, parts, classes, tenants, outcome }
}

pub(crate) fn knowledge_word(knowledge: Knowledge) -> &'static str {
    match knowledge {
        Knowledge::Reported => "reported",
        Knowledge::Predicted => "predicted",
        Knowledge::None => "none",
    }
}

fn report(study: &Study, runs: &[Run]) -> Value {
    let trace = &study.trace;
    let count = trace.requests.len() as f64;
    let prompts: u64 = trace.requests.iter().map(maitre_sim::trace::Request::prompt_tokens).sum();
    let answers: u64 = trace.requests.iter().map(|it| u64::from(it.answer_tokens)).sum();
    let mut fleet: Vec<(&str, u32)> = Vec::new();
    for profile in &study.fleet {
        match fleet.last_mut() {
            Some((name, count)) if *name == profile.name => *count += 1,
            _ => fleet.push((profile.name, 1)),
        }
    }
    let rows = |rows: fn(&Run) -> &Vec<ReportRow>| runs.iter().flat_map(rows).collect::<Vec<&ReportRow>>();
    json!({
        "trace": {
            "source": study.source,
            "requests": trace.requests.len(),
            "seconds": trace.span().as_secs_f64(),
            "prompt_tokens_mean": (prompts as f64 / count * 10.0).round() / 10.0,
            "answer_tokens_mean": (answers as f64 / count * 10.0).round() / 10.0,
        },
        "fleet": fleet.iter().map(|(name, count)| json!({"profile": name, "workers": count})).collect::<Vec<_>>(),
        "kv_tokens": study.fleet.iter().map(maitre_sim::profile::Profile::kv_tokens).min(),
        "block_tokens": study.block_tokens,
        "knowledge": knowledge_word(study.knowledge),
        "routers": study.routers,
        "sync": study.sync.map(|it| json!({
            "via": if it.via == Via::Redis { "redis" } else { "mesh" },
            "delay_ms": it.delay.as_secs_f64() * 1e3,
        })),
        "seed": study.seed,
        "targets": {
            "ttft_s": study.targets.first_token.as_secs_f64(),
            "tpot_s": study.targets.per_token.as_secs_f64(),
        },
        "rows": runs.iter().map(|it| &it.row).collect::<Vec<_>>(),
        "parts": rows(|it| &it.parts),
        "classes": rows(|it| &it.classes),
        "tenants": rows(|it| &it.tenants),
    })
}
