//! `maitre bench`: plays a trace in real time against an OpenAI endpoint and prints the rows of a replay.
//!
//! The endpoint may be anything: `maitre serve`, another router, a single engine. The same trace in `maitre
//! replay` gives the same rows in virtual time.

mod answers;
mod body;
mod clock;
mod connections;
pub mod play;
pub mod played;
pub mod refusal;
pub mod sessions;
mod show;
mod stream;
pub mod trouble;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{ArgAction, ArgMatches, Command, value_parser};
use http::HeaderValue;
use maitre_config::environment::BENCH_KEY;
use maitre_config::form::{Form as _, Ratio, Time};
use maitre_console::out;
use maitre_console::{dial, flag};
use maitre_net::address::Address;
use maitre_net::dial::Dialer;
use maitre_replay::trace;
use maitre_sim::lab::PreparedTrace;
use maitre_sim::profile::{self, Profile};
use maitre_sim::report::Targets;
use maitre_sim::trace::Trace;

use crate::signals::Signals;

use connections::Connections;
use played::Played;
use sessions::Sessions;

/// Far beyond what one generator can do.
const CONCURRENCY_MAX: i64 = 60_000;
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

/// How to play a trace, and against which endpoint.
#[derive(Clone, Debug)]
pub struct Plan {
    pub address: Address,
    /// A client that can connect to the address.
    pub dialer: Arc<Dialer>,
    pub model: String,
    pub api: Api,
    /// Only fields that OpenAI itself accepts; answers may then be shorter than in the trace.
    pub plain: bool,
    /// The value of the `authorization` header.
    pub key: Option<HeaderValue>,
    /// The speed, as a multiple of the trace's.
    pub speed: f64,
    /// Maximum requests, from the start of the trace.
    pub limit: usize,
    /// Only requests that are due earlier than this, in wall time.
    pub span: Duration,
    /// Maximum requests in flight; further ones wait, and are late.
    pub concurrency: usize,
    /// Timeout of each request, from when it was sent.
    pub timeout: Duration,
    /// Maximum attempts of a request that is refused with a `Retry-After`.
    pub tries: u32,
    /// Clients do not say which session a request belongs to.
    pub hides_sessions: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    /// The prompt is one text, which the simulated tokenizer reads as exactly the trace's tokens.
    Completions,
}

impl Plan {
    /// The whole trace at its own speed, against an address without TLS.
    pub fn new(address: Address, model: &str) -> Plan {
        Plan {
            address,
            dialer: Arc::default(),
            model: model.to_owned(),
            api: Api::Chat,
            plain: false,
            key: None,
            speed: 1.0,
            limit: usize::MAX,
            span: Duration::MAX,
            concurrency: 1_024,
            timeout: Duration::from_secs(600),
            tries: 1,
            hides_sessions: false,
        }
    }

    fn connections(&self) -> Connections {
        Connections::new(self.address.clone(), self.key.clone(), self.dialer.clone())
    }
}

pub fn command() -> Command {
    let text =
        |name: &'static str, value: &'static str, help: &'static str| flag::value(name, value).help(help);
    let switch = |name: &'static str, help: &'static str| text(name, "", help).action(ArgAction::SetTrue);
    let duration = |name: &'static str, help: &'static str| {
        let range = Duration::from_millis(1)..=TIMEOUT_MAX;
        text(name, "DURATION", help).value_parser(move |it: &str| Time(range.clone()).read(it))
    };
    let number = |name: &'static str, help: &'static str| {
        text(name, "X", help).value_parser(|it: &str| Ratio(0.001..=1e6).read(it))
    };
    Command::new("bench").about("Play a trace in real time against an OpenAI endpoint").args([
        text("url", "URL", "The endpoint, as in http://127.0.0.1:8080 or https://router.internal")
            .required(true),
        dial::arg(),
        text("trace", "FILE|WORKLOAD", "A trace, or a workload as `maitre generate` takes it").required(true),
        number("speed", "Speed, as a multiple of the trace's; think times of sessions are as much shorter [default: 1]"),
        text("limit", "N", "Only the first N requests, or sessions").value_parser(value_parser!(u32).range(1..)),
        number("seconds", "Only requests that are due in the first X seconds of the run"),
        text("model", "NAME", "The model to request [default: the first of /v1/models]"),
        text("api", "NAME", "chat: as messages; completions: as one text, token for token")
            .default_value("chat")
            .value_parser(PossibleValuesParser::new(["chat", "completions"])),
        switch("plain", "Send only fields that OpenAI accepts; answers may end early"),
        text(
            "concurrency",
            "N",
            "Maximum requests in flight; further ones wait and count as late [default: 1024]",
        )
        .value_parser(value_parser!(u32).range(1..=CONCURRENCY_MAX)),
        duration("timeout", "Timeout of each request [default: 600s]"),
        switch("retry", "Retry refused requests after their Retry-After, up to 5 times"),
        text("key", "KEY", "Sent as a bearer token [default: the variable MAITRE_BENCH_KEY]"),
        duration("ttft-target", "Goodput: maximum time to first token [default: 2s]"),
        duration("tpot-target", "Goodput: maximum mean time per output token [default: 100ms]"),
        text("label", "NAME", "Name of the row [default: the URL's host]"),
        switch("json", "Print the result as one JSON object"),
        text("seed", "N", "Seed of a generated workload").default_value("1").value_parser(value_parser!(u64)),
        text("profile", "NAME|FILE", "With --sessions, the engines' profile: how long sessions take in an empty fleet")
            .requires("sessions")
            .value_parser(|it: &str| profile::file::find(it)),
    ])
    .args(maitre_replay::sessions::args())
}

/// The options, apart from the plan.
struct Output {
    label: String,
    /// Where the trace came from.
    source: String,
    targets: Targets,
    json: bool,
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let output = Output::read(matches)?;
    let plan = read_plan(matches, std::env::var_os(BENCH_KEY))?;
    let traffic = read_traffic(matches, &plan, &output.source)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let played = runtime.block_on(play(plan, &traffic))?;
    output.print(&played)?;
    if played.seen.is_empty() {
        let why = played.main_trouble().map(|(kind, what)| format!("; {kind}: {what}"));
        anyhow::bail!("no request was answered{}", why.unwrap_or_default());
    }
    Ok(ExitCode::SUCCESS)
}

/// What to play.
enum Traffic {
    Open(Trace),
    Sessions(Box<Sessions>),
}

fn read_traffic(matches: &ArgMatches, plan: &Plan, source: &str) -> anyhow::Result<Traffic> {
    let Some(study) = maitre_replay::sessions::read(matches, source, plan.limit)? else {
        let loaded = trace::load(source, *matches.get_one("seed").context("seed")?);
        return Ok(Traffic::Open(loaded.map_err(|it| maitre_replay::sessions::explain(source, it))?));
    };
    anyhow::ensure!(plan.span == Duration::MAX, "--seconds: sessions are played to their ends; use --limit");
    let (mut trace, open) = (study.trace, study.open);
    trace.hasten(plan.speed);
    let alone = matches.get_one::<Profile>("profile").map(|it| {
        let engine = it.faster(plan.speed);
        PreparedTrace::of_sessions(&trace, engine.block_tokens, &engine).alone().to_vec()
    });
    Ok(Traffic::Sessions(Box::new(Sessions { trace, open, alone: alone.unwrap_or_default() })))
}

async fn play(mut plan: Plan, traffic: &Traffic) -> anyhow::Result<Played> {
    let mut signals = Signals::new()?;
    if plan.model.is_empty() {
        plan.model = tokio::select! {
            found = play::first_model(&plan) => found?,
            () = signals.wait() => return Ok(Played::default()),
        };
    }
    let watched = std::io::stderr().is_terminal();
    let show = |elapsed, played: &Played| {
        if watched {
            // If the terminal is gone, drop the line and continue the run.
            let _ = write!(std::io::stderr(), "{}", show::progress(elapsed, played));
        }
    };
    let played = match traffic {
        Traffic::Open(trace) => play::play_until(&plan, trace, signals.wait(), show).await,
        Traffic::Sessions(sessions) => {
            sessions::play_sessions_until(&plan, sessions, signals.wait(), show).await
        }
    };
    if watched {
        eprintln!();
    }
    Ok(played)
}

/// The plan from the flags; the model's name is empty if the endpoint is to be asked for it.
fn read_plan(matches: &ArgMatches, variable: Option<OsString>) -> anyhow::Result<Plan> {
    let named = matches.get_one::<String>("model").cloned().unwrap_or_default();
    let plan = Plan::new(read_address(matches)?, &named);
    let ca = matches.get_one::<PathBuf>("ca");
    let count = |name: &str| matches.get_one::<u32>(name).map(|&it| it as usize);
    let number = |name: &str| matches.get_one::<f64>(name).copied();
    Ok(Plan {
        api: match matches.get_one::<String>("api").map(String::as_str) {
            Some("completions") => Api::Completions,
            _ => Api::Chat,
        },
        plain: matches.get_flag("plain"),
        dialer: dial::dialer(ca.map(PathBuf::as_path), [&plan.address])?,
        key: dial::key(matches, variable, BENCH_KEY)?,
        speed: number("speed").unwrap_or(plan.speed),
        limit: count("limit").unwrap_or(plan.limit),
        span: number("seconds").map_or(plan.span, Duration::from_secs_f64),
        concurrency: count("concurrency").unwrap_or(plan.concurrency),
        timeout: matches.get_one("timeout").copied().unwrap_or(plan.timeout),
        hides_sessions: matches.get_flag("sessions-hidden"),
        tries: if matches.get_flag("retry") { 1 + refusal::RETRIES } else { plan.tries },
        ..plan
    })
}

fn read_address(matches: &ArgMatches) -> anyhow::Result<Address> {
    let url: &String = matches.get_one("url").context("url")?;
    url.parse().context("--url")
}

impl Output {
    fn read(matches: &ArgMatches) -> anyhow::Result<Output> {
        let usual = Targets::default();
        let duration = |name: &str| matches.get_one::<Duration>(name).copied();
        let address = read_address(matches)?.to_string();
        let host = address.split_once("://").map_or(address.as_str(), |it| it.1);
        let label = matches.get_one::<String>("label").cloned();
        Ok(Output {
            source: matches.get_one::<String>("trace").cloned().context("trace")?,
            label: label.unwrap_or_else(|| host.to_owned()),
            targets: Targets {
                first_token: duration("ttft-target").unwrap_or(usual.first_token),
                per_token: duration("tpot-target").unwrap_or(usual.per_token),
            },
            json: matches.get_flag("json"),
        })
    }

    fn print(&self, played: &Played) -> anyhow::Result<()> {
        let mut rows = played.rows(&self.label, &self.targets);
        trace::name_tenants(&self.source, rows.iter_mut());
        out::print(&match self.json {
            true => format!("{}\n", show::json(played, &rows)),
            false => show::draw(played, &rows, &self.targets),
        })?;
        Ok(())
    }
}
