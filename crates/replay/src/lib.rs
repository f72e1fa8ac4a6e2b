//! `maitre replay`: every strategy on the same traffic, in virtual time.
//!
//! The router's brain is the one that serves; engines, sockets and time are simulated. The same command gives
//! the same bytes on any machine, however many strategies run concurrently.

mod study;
pub mod trace;
pub mod tune;

mod autoscale;
mod check;
mod page;
mod progress;
mod report_file;
mod roles;
mod series;
pub mod sessions;
mod sharing;
pub mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, value_parser};
use maitre_base::Role;
use maitre_policy::split::SplitRule;
use maitre_sim::lab::{Autoscale, Knowledge, PreparedTrace, PullingWorkers, RunOutcome, Via};
use maitre_sim::report::{ReportRow, Targets};
use maitre_sim::trace::Trace;
use parking_lot::Mutex;
use serde_json::{Value, json};

use progress::Progress;
use report_file::ReportFile;
use study::{PlayedRules, QueueUse, StrategyChoice, Study};

use maitre_console::{flag, out};

/// One strategy at one speed.
#[derive(Debug)]
pub struct Run {
    pub row: ReportRow,
    /// Rows by part, class and tenant; each list is empty if there is only one.
    pub parts: Vec<ReportRow>,
    pub classes: Vec<ReportRow>,
    pub tenants: Vec<ReportRow>,
    pub outcome: RunOutcome,
}

pub fn command() -> Command {
    let own = [
        flag::value("workers", "N|LIST")
            .default_value("8")
            .help("Number of workers, or a mixed fleet: 4xh100x2-32b,4xa10g-8b; with roles: 4@prefill,4@decode"),
        flag::value("strategy", "NAME,…")
            .default_value("round-robin,cache-aware,least-delay")
            .value_delimiter(',')
            .help("Strategies to compare; `all` for every one, with the two bounds oracle and ideal-cache"),
        flag::value("speed", "X,…")
            .default_value("1")
            .value_delimiter(',')
            .value_parser(value_parser!(f64))
            .help("Speed, as a multiple of the trace's; several values make a sweep"),
        flag::value("queue", "auto|on|off")
            .default_value("auto")
            .value_parser(["auto", "on", "off"])
            .help(
                "Which strategies have the router's queue: all, none, or only least-delay, because the routers of \
                 published rules have none",
            ),
        flag::switch("check")
            .conflicts_with_all(["html", "speed"])
            .help(
                "Compare the replay with the times on record in the trace, to know how far to trust it; of one strategy \
                 and its queue as configured, unless given",
            ),
        flag::value("html", "FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Also write an HTML report with a summary, tables and charts; it loads nothing from the network"),
    ];
    Command::new("replay")
        .about("Every strategy on the same traffic, in virtual time")
        .args(study::args())
        .args(sessions::args())
        .args(own)
        .args(roles::args())
        .args(sharing::args())
        .args(autoscale::args())
        .args(study::run_args())
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let workers: &String = matches.get_one("workers").context("workers")?;
    let mut study = Study::read(matches, workers)?;
    choose_queue(matches, &mut study)?;
    let choices = choices(matches, &study)?;
    roles::check(&study, &choices)?;
    sharing::read(matches, &mut study)?;
    let splits = roles::read(matches, &mut study)?;
    let scales = autoscale::read(matches, &mut study, &choices)?;
    if matches.get_flag("check") {
        check::ensure_observed(&study)?;
    }
    let speeds: Vec<f64> = matches.get_many("speed").unwrap_or_default().copied().collect();
    for speed in &speeds {
        anyhow::ensure!((0.001..=1_000.0).contains(speed), "--speed {speed}: 0.001 to 1000 are possible");
    }
    if let Some(sessions) = &mut study.sessions {
        anyhow::ensure!(speeds.len() == 1, "--speed: sessions are played at one speed");
        sessions.hasten(speeds[0], &mut study.fleet);
    }
    let file = matches.get_one::<PathBuf>("html").map(|it| ReportFile::new(it)).transpose()?;
    let jobs = matches.get_one::<u32>("jobs").map(|&it| it as usize);
    let mut runs =
        play_all(&study, Conditions { choices: &choices, splits: &splits, scales: &scales }, &speeds, jobs);
    trace::name_tenants(&study.source, runs.iter_mut().flat_map(|it| &mut it.tenants));
    if let Some(file) = file {
        let command = page::typed(std::env::args_os().map(|it| it.to_string_lossy().into_owned()));
        file.write(&page::draw(&study, &runs, &command))?;
    }
    out::print(&match (matches.get_flag("json"), matches.get_flag("check")) {
        (true, false) => format!("{}\n", report(&study, &runs)),
        (true, true) => {
            let mut report = report(&study, &runs);
            report["check"] = check::json(&study, &runs);
            format!("{report}\n")
        }
        (false, false) => table::draw(&study, &runs),
        (false, true) => check::draw(&study, &runs),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Settings of the queue that are not in its section.
const QUEUE_KEYS: &[&str] = &["classes", "tenants"];

/// Settings of the queue ask for it as much as `--queue` does: without it they would change nothing.
fn choose_queue(matches: &ArgMatches, study: &mut Study) -> anyhow::Result<()> {
    let asked = matches.get_one::<String>("queue").map(String::as_str);
    let settings = study::set_pairs(matches)?;
    let enabled = &mut study.config.settings.brain.queue.enabled;
    let is_set = settings.iter().any(|it| it.0 == "queue.enabled");
    let is_on = match asked {
        Some("on") => true,
        Some("off") => false,
        // What was recorded had the queue, unless the configuration had none.
        _ if matches.get_flag("check") => return Ok(()),
        _ => {
            let is_asked =
                settings.iter().any(|(key, _)| key.starts_with("queue.") || QUEUE_KEYS.contains(key));
            study.queue = if is_asked { QueueUse::Configured } else { QueueUse::ByStrategy };
            return Ok(());
        }
    };
    anyhow::ensure!(
        !is_set || *enabled == is_on,
        "--queue {} contradicts --set queue.enabled={enabled}: leave one of them out",
        if is_on { "on" } else { "off" }
    );
    *enabled = is_on;
    Ok(())
}

fn choices(matches: &ArgMatches, study: &Study) -> anyhow::Result<Vec<StrategyChoice>> {
    let is_default = matches.value_source("strategy") == Some(ValueSource::DefaultValue);
    if matches.get_flag("check") && is_default {
        return Ok(vec![StrategyChoice::Strategy(study.config.settings.brain.strategy)]);
    }
    let names: Vec<&String> = matches.get_many("strategy").unwrap_or_default().collect();
    let (all, named): (Vec<&String>, Vec<&String>) = names.into_iter().partition(|it| it.as_str() == "all");
    let choice = |name: &&String| name.parse().map_err(|it| anyhow::anyhow!("--strategy: {it}"));
    let named: Vec<StrategyChoice> = named.iter().map(choice).collect::<anyhow::Result<_>>()?;
    Ok(if all.is_empty() { named } else { StrategyChoice::all() })
}

/// What is compared: every combination is a run.
#[derive(Clone, Copy)]
struct Conditions<'a> {
    choices: &'a [StrategyChoice],
    splits: &'a [SplitRule],
    scales: &'a [Option<Autoscale>],
}

impl Conditions<'_> {
    fn each(&self) -> impl Iterator<Item = (String, PlayedRules)> {
        let pairs = self.choices.iter().flat_map(|&choice| self.splits.iter().map(move |&it| (choice, it)));
        let all = pairs.flat_map(|(choice, split)| self.scales.iter().map(move |&it| (choice, split, it)));
        all.map(|(choice, split, autoscale)| {
            let of_split = if self.splits.len() > 1 { format!(", split {split}") } else { String::new() };
            let of_scale = autoscale.map_or_else(String::new, |it| format!(", {}", it.rule));
            (format!("{choice}{of_split}{of_scale}"), PlayedRules { choice, split, autoscale })
        })
    }
}

/// One run that is still to be made.
pub(crate) struct Task<'a> {
    pub(crate) study: &'a Study,
    pub(crate) rules: PlayedRules,
    /// The name of its row.
    pub(crate) name: String,
    pub(crate) prepared: &'a PreparedTrace<'a>,
    /// The speed of the prepared trace, shown in its row.
    pub(crate) speed: f64,
}

/// All conditions at all speeds.
fn play_all(study: &Study, conditions: Conditions<'_>, speeds: &[f64], jobs: Option<usize>) -> Vec<Run> {
    let traces: Vec<Trace> = speeds.iter().map(|&it| study.hastened(it)).collect();
    let decks = match &study.sessions {
        Some(sessions) => vec![sessions.prepare(study.block_tokens, &study.fleet[0])],
        None => decks(study, &traces),
    };
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for (prepared, &speed) in decks.iter().zip(speeds) {
        for (name, rules) in conditions.each() {
            tasks.push(Task { study, rules, name, prepared, speed });
        }
    }
    play_tasks(&tasks, jobs)
}

/// Runs several tasks concurrently; returns the runs in the order of the tasks.
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

fn play_one(task: &Task<'_>, progress: &Progress) -> Run {
    let &Task { study, rules, ref name, prepared, speed } = task;
    let choice = rules.choice;
    let mut reported = 0;
    let mut step = |arrived: usize| {
        // One update per request would cost more than some requests do.
        if arrived - reported >= 64 || arrived == prepared.requests().len() {
            progress.add(arrived - reported);
            reported = arrived;
        }
    };
    let outcome = study.play(rules, prepared, &mut step);
    let mut row = outcome.row(name, &study.targets);
    let [mut parts, mut classes, mut tenants] = [RunOutcome::parts, RunOutcome::classes, RunOutcome::tenants]
        .map(|rows: fn(&RunOutcome, &str, &Targets) -> Vec<ReportRow>| rows(&outcome, name, &study.targets));
    for it in [&mut parts, &mut classes, &mut tenants].into_iter().flatten().chain([&mut row]) {
        it.speed = speed;
        (it.queue, it.knowledge) = (Some(study.has_queue(choice)), Some(study.cache_knowledge(choice)));
    }
    Run { row, parts, classes, tenants, outcome }
}

pub(crate) fn knowledge_word(knowledge: Knowledge) -> &'static str {
    match knowledge {
        Knowledge::Reported => "reported",
        Knowledge::Predicted => "predicted",
        Knowledge::None => "none",
    }
}

/// As `--queue` writes it.
pub(crate) fn queue_word(study: &Study) -> &'static str {
    match (study.queue, study.config.settings.brain.queue.enabled) {
        (QueueUse::ByStrategy, _) => "auto",
        (QueueUse::Configured, true) => "on",
        (QueueUse::Configured, false) => "off",
    }
}

fn report(study: &Study, runs: &[Run]) -> Value {
    let trace = &study.trace;
    let count = trace.requests.len() as f64;
    let prompts: u64 = trace.requests.iter().map(maitre_sim::trace::Request::prompt_tokens).sum();
    let answers: u64 = trace.requests.iter().map(|it| u64::from(it.answer_tokens)).sum();
    let mut fleet: Vec<(&str, Role, u32)> = Vec::new();
    for (profile, &role) in study.fleet.iter().zip(&study.roles) {
        match fleet.last_mut() {
            Some((name, like, count)) if *name == profile.name && *like == role => *count += 1,
            _ => fleet.push((profile.name, role, 1)),
        }
    }
    let group = |&(profile, role, workers): &(&str, Role, u32)| match role {
        Role::Both => json!({"profile": profile, "workers": workers}),
        role => json!({"profile": profile, "workers": workers, "role": role.name()}),
    };
    let rows = |rows: fn(&Run) -> &Vec<ReportRow>| runs.iter().flat_map(rows).collect::<Vec<&ReportRow>>();
    json!({
        "trace": {
            "source": study.source,
            "requests": trace.requests.len(),
            "seconds": trace.span().as_secs_f64(),
            "prompt_tokens_mean": (prompts as f64 / count * 10.0).round() / 10.0,
            "answer_tokens_mean": (answers as f64 / count * 10.0).round() / 10.0,
        },
        "fleet": fleet.iter().map(group).collect::<Vec<_>>(),
        "kv_tokens": study.fleet.iter().map(maitre_sim::profile::Profile::kv_tokens).min(),
        "block_tokens": study.block_tokens,
        "kv_pull": study.pulls != PullingWorkers::None,
        "kv_store_tokens": study.store.map(|it| it.tokens),
        "knowledge": knowledge_word(study.knowledge),
        "queue": queue_word(study),
        "sessions": study.sessions.as_ref().map(sessions::SessionStudy::json),
        "chunks": study.chunks.engines.map(|it| json!({
            "recomputed": it.recomputed(),
            "known": !study.chunks.is_hidden,
        })),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The router queues some of it, and it is over in a moment.
    const TRAFFIC: &str = "rag:documents=30,document=1000,qps=12,seconds=10,out=40";

    fn study(args: &[&str]) -> anyhow::Result<(Study, Vec<StrategyChoice>)> {
        let words = ["replay", "--trace", TRAFFIC, "--profile", "a10g-8b"];
        let matches = command().try_get_matches_from(words.iter().chain(args)).unwrap();
        let mut study = Study::read(&matches, "2")?;
        choose_queue(&matches, &mut study)?;
        let choices = choices(&matches, &study)?;
        Ok((study, choices))
    }

    /// With a fleet that stays as it is.
    fn fixed<'a>(choices: &'a [StrategyChoice], splits: &'a [SplitRule]) -> Conditions<'a> {
        Conditions { choices, splits, scales: &[None] }
    }

    /// The JSON report.
    fn played(args: &[&str]) -> Value {
        let (study, choices) = study(args).unwrap();
        let split = study.config.settings.brain.split;
        report(&study, &play_all(&study, fixed(&choices, &[split]), &[1.0], Some(1)))
    }

    /// What `--queue` came to, and which of three strategies waited in the queue.
    #[track_caller]
    fn check_queue(args: &[&str], word: &str, expected: [bool; 3]) {
        let strategies = ["least-delay", "cache-aware", "oracle"];
        let (study, _) = study(args).unwrap();
        let waits = strategies.map(|it| study.has_queue(it.parse().unwrap()));
        assert_eq!((queue_word(&study), waits), (word, expected), "{args:?}");
    }

    #[test]
    fn published_rules_do_without_the_queue_unless_asked() {
        check_queue(&[], "auto", [true, false, false]);
        check_queue(&["--queue", "auto", "--set", "preble.balance=3"], "auto", [true, false, false]);
        check_queue(&["--queue", "on"], "on", [true, true, false]);
        check_queue(&["--queue", "off"], "off", [false, false, false]);
        check_queue(&["--set", "queue.enabled=false"], "off", [false, false, false]);
        check_queue(&["--set", "queue.enabled=true"], "on", [true, true, false]);
        check_queue(&["--set", "queue.sequences_max=50"], "on", [true, true, false]);
        check_queue(&["--queue", "on", "--set", "queue.enabled=true"], "on", [true, true, false]);
        let error = study(&["--queue", "on", "--set", "queue.enabled=false"]).unwrap_err().to_string();
        assert!(error.contains("--queue on contradicts --set queue.enabled=false"), "{error}");
    }

    #[test]
    fn flags_about_what_routers_share_need_routers_that_share() {
        for (args, expected) in [
            (&["--sync", "mesh"][..], "--sync mesh: there is one router"),
            (&["--sync", "redis", "--routers", "1"], "--sync redis: there is one router"),
            (&["--routers", "2", "--sync-delay", "10"], "--sync-delay: routers share nothing"),
            (&["--routers", "2", "--sync", "mesh", "--sync-delay", "10"], ""),
            (&["--routers", "1", "--sync", "none", "--sync-delay", "10"], ""),
        ] {
            let error = study(args).err().map(|it| it.to_string()).unwrap_or_default();
            assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{args:?}: {error}");
        }
    }

    #[test]
    fn rows_say_under_which_conditions_they_were_played() {
        let strategies = ["--strategy", "least-delay,preble,round-robin,oracle", "--knowledge", "predicted"];
        let with = |queue: &str| played(&[&strategies[..], &["--queue", queue]].concat());
        let (auto, on, off) = (with("auto"), with("on"), with("off"));
        let conditions = |it: &Value| {
            let rows = it["rows"].as_array().unwrap().iter();
            rows.map(|it| json!([it["queue"], it["knowledge"]])).collect::<Vec<_>>()
        };
        assert_eq!(
            conditions(&auto),
            [
                json!([true, "predicted"]),
                json!([false, "predicted"]),
                json!([false, "unused"]),
                json!([false, "exact"])
            ]
        );
        assert_eq!((&auto["rows"][0], &auto["rows"][1]), (&on["rows"][0], &off["rows"][1]));
        for row in &auto["rows"].as_array().unwrap()[..3] {
            let errors = ["forecast_error_ratio", "forecast_error_mean_ratio"].map(|it| row[it].as_f64());
            assert!(errors.iter().all(|it| it.is_some_and(|it| it > 0.0)), "{row}");
        }
        assert!(auto["rows"][3]["forecast_error_ratio"].is_null(), "a bound forecasts nothing");
        // One class waits at its workers, unless the operator caps them.
        let capped =
            played(&[&strategies[..], &["--queue", "on", "--set", "queue.sequences_max=1"]].concat());
        assert_eq!(on["rows"][1]["ttft_mean_s"], off["rows"][1]["ttft_mean_s"]);
        assert_ne!(capped["rows"][1]["ttft_mean_s"], off["rows"][1]["ttft_mean_s"], "nothing waited");
    }

    /// The rules that were read, or why not.
    fn rules(workers: &str, args: &[&str]) -> anyhow::Result<(Study, Vec<SplitRule>)> {
        let words = ["replay", "--trace", TRAFFIC, "--profile", "a10g-8b"];
        let matches = command().try_get_matches_from(words.iter().chain(args))?;
        let mut study = Study::read(&matches, workers)?;
        roles::check(&study, &choices(&matches, &study)?)?;
        sharing::read(&matches, &mut study)?;
        let rules = roles::read(&matches, &mut study)?;
        Ok((study, rules))
    }

    #[test]
    fn each_rule_has_a_row() {
        let (study, rules) = rules("1@prefill,2@decode", &["--split", "price,threshold-512,never"]).unwrap();
        let choice = StrategyChoice::Strategy(maitre_policy::Name::LeastDelay);
        let report = report(&study, &play_all(&study, fixed(&[choice], &rules), &[1.0], Some(1)));
        let names: Vec<&Value> =
            report["rows"].as_array().unwrap().iter().map(|it| &it["strategy"]).collect();
        assert_eq!(
            names,
            ["least-delay, split price", "least-delay, split threshold-512", "least-delay, split never"]
        );
        let [price, threshold, never] =
            [0, 1, 2].map(|it| report["rows"][it]["tpot_mean_s"].as_f64().unwrap());
        assert!(price < never && threshold < never, "{price} {threshold} {never}");
        let fleet = json!([
            {"profile": "a10g-8b", "workers": 1, "role": "prefill"},
            {"profile": "a10g-8b", "workers": 2, "role": "decode"}
        ]);
        assert_eq!(report["fleet"], fleet);
    }

    #[test]
    fn roles_that_make_no_sense_are_refused() {
        for (workers, args, expected) in [
            ("2", &["--split", "always"][..], "--split: no worker prefills for others"),
            (
                "2@decode",
                &["--kv-link-floor", "1ms"],
                "--kv-link-floor: no worker prefills for others, and none pulls",
            ),
            ("1@prefill,1@decode", &["--split", "sometimes"], "no rule is called"),
            ("1@prefill,1@decode", &["--kv-link-bandwidth", "0"], "between 0.001 and 100000"),
            ("1@prefill,1@decode", &["--strategy", "oracle"], "--strategy oracle: it knows no roles"),
            ("2@prefill", &[], "no worker answers"),
            ("2", &["--kv-store", "much"], "write tokens, such as 4000000"),
            ("2", &["--kv-store", "3"], "--kv-store: 0 blocks"),
            ("2", &["--kv-store-bandwidth", "3"], "--kv-store"),
            ("2", &["--chunks", "15%"], "write the part that is computed again"),
            ("2", &["--chunks-hidden"], "--chunks <PART>"),
            ("2", &["--chunks", "0.15", "--strategy", "oracle"], "--strategy oracle: it knows no chunks"),
        ] {
            let error = rules(workers, args).unwrap_err().to_string();
            assert!(error.contains(expected), "{workers} {args:?}: {error}");
        }
        assert_eq!(rules("1@prefill,1@decode", &["--set", "split=always"]).unwrap().1, [SplitRule::Always]);
    }

    const SESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/claude-code-sessions.jsonl.gz");

    fn session_study(args: &[&str]) -> anyhow::Result<(Study, Vec<StrategyChoice>)> {
        let words = ["replay", "--trace", SESSIONS, "--strategy", "least-delay", "--block-tokens", "256"];
        let matches = command().try_get_matches_from(words.iter().chain(args))?;
        let study = Study::read(&matches, "2")?;
        let choices = choices(&matches, &study)?;
        Ok((study, choices))
    }

    const PLAYED: &str = "--sessions 2,1 --limit 4 --queue off --think-max 5s --session-tokens-max 45000";

    #[test]
    fn sessions_are_played_as_closed_loops() {
        let (study, choices) = session_study(&PLAYED.split(' ').collect::<Vec<_>>()).unwrap();
        let runs = play_all(&study, fixed(&choices, &[SplitRule::Price]), &[1.0], Some(1));
        let report = report(&study, &runs);
        let row = &report["rows"][0];
        let number = |key: &str| row[key].as_f64().unwrap();
        assert_eq!((&row["sessions"], &row["sessions_lost"]), (&json!(4), &json!(0)));
        assert!(
            number("task_p50_s") <= number("task_mean_s") && number("task_mean_s") < number("task_p99_s")
        );
        assert!(number("slowdown_mean") >= 0.99 && number("calls_per_s") > 0.0, "{row}");
        let of_tenants =
            report["tenants"].as_array().unwrap().iter().map(|it| it["sessions"].as_u64().unwrap());
        assert_eq!(of_tenants.collect::<Vec<_>>(), [2, 2]);
        let text = table::draw(&study, &runs);
        assert!(text.contains("4 sessions") && text.contains("2 and 1 at once"), "{text}");
    }

    #[test]
    fn sessions_that_cannot_be_played_are_refused() {
        for (args, expected) in [
            (&["--limit", "3"][..], "add --sessions"),
            (&["--sessions", "2", "--session-tokens-max", "9"], "no session has calls of at most 9 tokens"),
            (
                &["--sessions", "2", "--session-tokens-max", "900000", "--kv-tokens", "50000"],
                "--session-tokens-max 49920",
            ),
            (&["--sessions", "0"], "0 is not in"),
            (&["--think-max", "5s"], "--sessions"),
        ] {
            let error = format!("{:#}", session_study(args).unwrap_err());
            assert!(error.contains(expected), "{args:?}: {error}");
        }
    }

    #[test]
    fn rows_say_what_was_pulled_and_loaded() {
        let hot =
            "agents:rate=2,steps=6,kinds=1,system=16000,task=100,observation=150,out=60,pause=1,seconds=20";
        let row = |args: &[&str]| {
            let words = ["replay", "--trace", hot, "--profile", "h100x2-32b", "--strategy", "least-delay"];
            let matches = command().try_get_matches_from(words.iter().chain(args)).unwrap();
            let mut study = Study::read(&matches, "4").unwrap();
            sharing::read(&matches, &mut study).unwrap();
            let rules = roles::read(&matches, &mut study).unwrap();
            let choices = choices(&matches, &study).unwrap();
            let runs = play_all(&study, fixed(&choices, &rules), &[1.0], Some(1));
            (report(&study, &runs), table::draw(&study, &runs))
        };
        let columns = |text: &str| ["pulls", "pulled", "loads", "loaded"].map(|it| text.contains(it));
        let (report, text) = row(&[]);
        assert_eq!((&report["kv_pull"], columns(&text)), (&json!(false), [false; 4]));
        assert!(report["rows"][0]["pulled_tokens"].is_null(), "{report}");
        let (report, text) = row(&["--kv-pull", "--kv-link-floor", "5ms", "--kv-link-bandwidth", "50"]);
        let count = |key: &str| report["rows"][0][key].as_u64().unwrap();
        assert!(count("pulled_requests") > 0, "{report}");
        assert!(count("pulled_tokens") >= 64 * count("pulled_requests"), "{report}");
        assert_eq!(columns(&text), [true, true, false, false], "{text}");
        let (report, text) = row(&["--kv-store", "2x"]);
        assert_eq!(report["kv_store_tokens"], 2 * 4 * 19_208 * 16);
        assert!(report["rows"][0]["loaded_tokens"].as_u64().unwrap() > 0, "{report}");
        assert_eq!(columns(&text), [false, false, true, true], "{text}");
    }

    #[test]
    fn a_check_plays_what_was_served() {
        let names = |args: &[&str]| {
            let (study, choices) = study(args).unwrap();
            let names: Vec<&str> = choices.iter().map(|it| it.as_str()).collect();
            (queue_word(&study), names.join(" "))
        };
        assert_eq!(names(&["--check"]), ("on", "least-delay".to_owned()));
        assert_eq!(
            names(&["--check", "--strategy", "preble", "--queue", "off"]),
            ("off", "preble".to_owned())
        );
        let (study, _) = study(&["--check"]).unwrap();
        let error = check::ensure_observed(&study).unwrap_err().to_string();
        assert!(error.contains("has observed times") && error.contains("maitre serve --record"), "{error}");
    }

    #[test]
    fn the_table_says_why_conditions_differ() {
        let drawn = |args: &[&str]| {
            let (study, choices) = study(args).unwrap();
            table::draw(&study, &play_all(&study, fixed(&choices, &[SplitRule::Price]), &[1.0], Some(1)))
        };
        let text = drawn(&["--strategy", "least-delay,random"]);
        assert!(text.contains("as published, without the queue") && text.contains("--queue off"), "{text}");
        let text = drawn(&["--strategy", "least-delay,random", "--queue", "off"]);
        assert!(!text.contains("as published"), "{text}");
    }
}
