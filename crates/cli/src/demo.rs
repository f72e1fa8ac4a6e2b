//! `maitre demo`: simulated engines, the router and mixed traffic in one process.
//!
//! Everything except the GPUs is real: the traffic goes over loopback sockets through the same router that
//! `maitre serve` runs, to engines that schedule, cache and evict as vLLM does. Several strategies run one
//! after the other on fresh engines, with the same arrivals and the same prompts. There may be several
//! routers in front of the same engines; then clients use each in turn.

pub(crate) mod client;
mod engines;
mod router_thread;
mod routers;
mod screen;
mod tally;

use std::io::{IsTerminal as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgMatches, Command, value_parser};
use maitre_base::Instant;
use maitre_console::clock::Stopwatch;
use maitre_console::flag;
use maitre_policy::Name;
use maitre_proxy::{Router, RouterSettings, secret};
use maitre_sim::events;
use maitre_sim::profile::Profile;
use maitre_sim::workload::{DEMO_KV_BLOCKS, Mix, Workload};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::demo::client::Turns;
use crate::demo::engines::Engines;
use crate::demo::routers::Routers;
use crate::demo::tally::Tally;

/// A port chosen by the kernel.
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// How long one strategy runs without a terminal.
const SECONDS: u32 = 20;

/// How long requests may take to finish when a run ends.
const LAST_ORDERS: Duration = Duration::from_secs(20);

/// Time between two frames of the live table.
const FRAME: Duration = Duration::from_millis(500);

pub fn command() -> Command {
    Command::new("demo").about("Simulated engines, the router and live traffic in one process").args([
        flag::value("strategy", "NAME,…")
            .value_delimiter(',')
            .value_parser(|text: &str| text.parse::<Name>().map_err(|it| it.to_string()))
            .help("Strategies to run, one after the other [default: least-delay]"),
        flag::value("seconds", "N")
            .value_parser(value_parser!(u32).range(1..=86_400))
            .help("How long each runs [default: 20; one strategy in a terminal: until Ctrl-C]"),
        flag::switch("no-events")
            .help("Engines publish no KV events; the router predicts caches from what it routed"),
        flag::switch("headless").help("No live table"),
        flag::switch("json").help("Print the result as one JSON object"),
        flag::value("engines", "N")
            .default_value("4")
            .value_parser(value_parser!(u32).range(1..=64))
            .help("Number of engines"),
        flag::value("routers", "N")
            .default_value("1")
            .value_parser(value_parser!(u32).range(1..=i64::from(routers::MOST)))
            .help("Number of routers, which share their state; requests go to each in turn"),
        flag::value("rate", "N")
            .value_parser(value_parser!(f64))
            .help("Sessions started per second [default: 20]"),
        flag::value("seed", "N")
            .default_value("1")
            .value_parser(value_parser!(u64))
            .help("Seed of the traffic: the same seed gives the same sessions"),
    ])
}

/// What to run, from the flags.
struct DemoPlan {
    strategies: Vec<Name>,
    seconds: Option<u32>,
    live: bool,
    json: bool,
    engines: usize,
    routers: usize,
    events: Option<events::PublisherConfig>,
    mix: Mix,
    seed: u64,
    /// The parameters in the URLs of the pages.
    key: String,
}

impl DemoPlan {
    fn read(matches: &ArgMatches) -> anyhow::Result<DemoPlan> {
        let strategies: Vec<Name> = matches.get_many("strategy").unwrap_or_default().copied().collect();
        let strategies =
            if strategies.is_empty() { vec![RouterSettings::default().brain.strategy] } else { strategies };
        let live = !matches.get_flag("headless") && std::io::stdout().is_terminal();
        let endless = live && strategies.len() == 1;
        let seconds = matches.get_one::<u32>("seconds").copied();
        let mix = Mix::default();
        let rate = matches.get_one("rate").copied().unwrap_or(mix.sessions_per_second);
        anyhow::ensure!(
            (0.1..=10_000.0).contains(&rate),
            "--rate {rate}: write a number between 0.1 and 10000"
        );
        Ok(DemoPlan {
            strategies,
            seconds: seconds.or_else(|| (!endless).then_some(SECONDS)),
            live,
            json: matches.get_flag("json"),
            engines: *matches.get_one::<u32>("engines").context("engines")? as usize,
            routers: *matches.get_one::<u32>("routers").context("routers")? as usize,
            events: (!matches.get_flag("no-events")).then(|| events::PublisherConfig {
                replay: Some(ANYWHERE),
                ..events::PublisherConfig::new(ANYWHERE)
            }),
            mix: Mix { sessions_per_second: rate, ..mix },
            seed: *matches.get_one("seed").context("seed")?,
            key: secret::fresh()?,
        })
    }
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let plan = DemoPlan::read(matches)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut runs = Vec::new();
    let mut seconds = 0.0;
    for &strategy in &plan.strategies {
        let (tally, elapsed) = runtime.block_on(run_one(&plan, strategy))?;
        seconds = elapsed.as_secs_f64();
        runs.push((strategy.to_string(), tally));
    }
    print(&plan, &runs, seconds)?;
    let errors: u64 = runs.iter().map(|(_, tally)| tally.errors).sum();
    if let Some(error) = runs.iter().find_map(|(_, tally)| tally.first_error.as_ref()) {
        eprintln!("{errors} requests failed; the first: {error}");
    }
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(plan: &DemoPlan, runs: &[(String, Tally)], seconds: f64) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if plan.json {
        let strategies: Vec<Value> = runs.iter().map(|(name, tally)| tally.report(name, seconds)).collect();
        let report = json!({
            "seconds": seconds.round(),
            "seed": plan.seed,
            "routers": plan.routers,
            "events": plan.events.is_some(),
            "strategies": strategies,
        });
        writeln!(out, "{report}")?;
    } else {
        write!(out, "\n{}", screen::compare(runs, seconds))?;
        if plan.routers > 1 {
            writeln!(out, "total of {} routers, which took requests in turn", plan.routers)?;
        }
    }
    Ok(())
}

/// Runs the traffic under one strategy, on fresh engines. Returns the results and the elapsed time.
async fn run_one(plan: &DemoPlan, strategy: Name) -> anyhow::Result<(Tally, Duration)> {
    let profile = Profile { kv_blocks: DEMO_KV_BLOCKS, ..maitre_sim::profile::H200_8B };
    let mut settings = maitre_sim::http::HostConfig::new(profile);
    settings.events.clone_from(&plan.events);
    let engines = Engines::start(plan.engines, settings).await?;
    let routers = Routers::start(plan, strategy, &engines).await?;
    if !plan.live {
        eprint!("{}", routers.pages(&plan.key));
    }
    routers.until_all_ready().await;
    let tally = Arc::new(Mutex::new(Tally::default()));
    let watch = Stopwatch::start();
    let limit = plan.seconds.map_or(Duration::MAX, |it| Duration::from_secs(it.into()));
    tokio::select! {
        () = traffic(plan, &routers, watch, limit, &tally) => {}
        () = live(plan, strategy, &routers, watch, &tally) => {}
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    let elapsed = watch.elapsed().min(limit);
    routers.stop().await;
    let tally = tally.lock().clone();
    Ok((tally, elapsed))
}

/// Opens sessions when they are due, until the limit; then waits for the requests in flight.
async fn traffic(
    plan: &DemoPlan,
    routers: &Routers,
    watch: Stopwatch,
    limit: Duration,
    tally: &Arc<Mutex<Tally>>,
) {
    let mut workload = Workload::new(plan.seed, plan.mix.clone());
    let turns = Arc::new(Turns::new(routers.all().map(Router::listen).collect()));
    let mut clients = JoinSet::new();
    loop {
        let session = workload.next_session();
        let due = session.arrival.since(Instant::ZERO);
        if due >= limit {
            break;
        }
        tokio::time::sleep(due.saturating_sub(watch.elapsed())).await;
        tally.lock().sessions += 1;
        let tally = tally.clone();
        clients.spawn(client::run_session(
            turns.clone(),
            session,
            move || watch.elapsed() < limit,
            move |told| match told {
                Ok(seen) => tally.lock().seen(&seen),
                Err(error) => tally.lock().failed(format!("{error:#}")),
            },
        ));
        while clients.try_join_next().is_some() {}
    }
    let _ = tokio::time::timeout(LAST_ORDERS, clients.join_all()).await;
}

/// Draws the first router's table until the traffic ends; without a terminal, waits for ever.
async fn live(plan: &DemoPlan, strategy: Name, routers: &Routers, watch: Stopwatch, tally: &Mutex<Tally>) {
    if !plan.live {
        return std::future::pending().await;
    }
    let title = title(plan, strategy, routers);
    let mut frames = tokio::time::interval(FRAME);
    loop {
        frames.tick().await;
        let picture =
            routers.first().look(|brain| screen::draw(&title, watch.elapsed(), brain, &tally.lock()));
        let mut out = std::io::stdout().lock();
        // If the terminal is gone, drop the frame and continue the demo.
        let _ = write!(out, "{}{picture}", screen::HOME);
        let _ = out.flush();
    }
}

/// What runs, and the addresses of its pages.
fn title(plan: &DemoPlan, strategy: Name, routers: &Routers) -> String {
    let count = if plan.routers > 1 { format!(", {} routers", plan.routers) } else { String::new() };
    let pages = routers.pages(&plan.key);
    let first = routers.first();
    format!(
        "maitre demo: {strategy}, {} engines (h200-8b){count}   Ctrl-C ends it\n{pages}router http://{}   metrics http://{}/metrics",
        plan.engines,
        first.listen(),
        first.admin(),
    )
}
