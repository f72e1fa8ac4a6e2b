//! `maitre doctor`: looks at a fleet from outside and says what is wrong with it, where, and how to mend it.
//!
//! The faults that hurt a router most are silent: an engine that caches nothing, a topic nobody publishes under, a
//! tokenizer that is not the engine's. Nothing fails, and nothing hits. So everything is asked once (`gather`), written
//! down as plain facts (`facts`), and judged by functions that open no socket (`judge`).
//!
//! It changes nothing. It sends a handful of requests of one token to each worker, unless told not to.

mod client;
mod clock;
pub mod code;
pub mod facts;
mod gather;
mod judge;
pub mod report;
mod show;

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command};
use http::HeaderValue;
use maitre_config as config;
use maitre_config::environment::DOCTOR_KEY;
use maitre_config::form::{Form as _, Time};
use maitre_console::dial;
use maitre_console::out;
use maitre_net::address::Address;
use maitre_net::dial::Dialer;
use maitre_proxy::Settings;

use code::Code;
use report::Report;

pub use gather::look;
pub use judge::judge;

/// Nothing is wrong.
const WELL: u8 = 0;
/// Something is.
const UNWELL: u8 = 1;
/// It could not be told.
const UNSEEN: u8 = 2;

const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_MAX: Duration = Duration::from_mins(10);

const ABOUT: &str = "\
Look at a fleet and say what is wrong with it, worker by worker, with the flag or setting that mends it.

Reads what `serve` reads: a config file, variables, flags. Asks each worker for its health, models, metrics and KV \
events, and sends it at most six requests of one token (the same short prompt twice, once more with a cache salt, three \
tiny streams) and three questions to /tokenize where a tokenizer is set. --no-requests leaves the six out. Nothing is \
changed anywhere.

Exit code: 0 all well, 1 something is wrong, 2 could not look.";

/// What to look at, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Those of `serve`. Without workers, those that the router has are looked at.
    pub settings: Settings,
    /// Where clients reach a running router.
    pub router: Option<Address>,
    /// Where operators do.
    pub admin: Option<Address>,
    /// One that can dial both; workers are dialled by the settings.
    pub dialer: Arc<Dialer>,
    /// The value of the `authorization` header.
    pub key: Option<HeaderValue>,
    /// For each question; answers of engines may take six times as long.
    pub patience: Duration,
    /// Whether engines are sent requests.
    pub requests: bool,
}

impl Plan {
    /// All there is to see of these settings' workers.
    pub fn new(settings: Settings) -> Plan {
        Plan {
            settings,
            router: None,
            admin: None,
            dialer: Arc::default(),
            key: None,
            patience: PATIENCE,
            requests: true,
        }
    }
}

pub fn command() -> Command {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let switch = |name: &'static str, help: &'static str| text(name, "", help).action(ArgAction::SetTrue);
    let range = Duration::from_millis(1)..=PATIENCE_MAX;
    Command::new("doctor").about("Say what is wrong with a fleet, and how to mend it").long_about(ABOUT).args([
        text("router", "URL", "A running router, where clients reach it, as in http://127.0.0.1:8080"),
        text("admin-url", "URL", "The same where operators do, as in http://127.0.0.1:8081; without workers here, its own are looked at"),
        dial::arg().help("Who signs the certificates of --router and --admin-url, as PEM; for workers there is worker_tls.ca"),
        text("timeout", "DURATION", "How long a question may take; six times as long for answers [default: 5s]")
            .value_parser(move |it: &str| Time(range.clone()).read(it)),
        switch("no-requests", "Send engines no requests: no look at cached tokens, salts and speed"),
        text("key", "KEY", "Sent to workers, and to --router, as a bearer token [default: the variable MAITRE_DOCTOR_KEY]"),
        text("ignore", "CODE", "Leave out findings of this code; may be repeated")
            .action(ArgAction::Append)
            .value_delimiter(',')
            .value_parser(|it: &str| it.parse::<Code>()),
        switch("json", "Print the report as one JSON object"),
    ])
    .args(config::args())
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    // An error is not a finding: whoever goes by the exit code must not take one for the other.
    match examine(matches) {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(error) => {
            eprintln!("maitre: {error:#}");
            Ok(ExitCode::from(UNSEEN))
        }
    }
}

fn examine(matches: &ArgMatches) -> anyhow::Result<u8> {
    let config = match config::load(matches, std::env::vars_os()) {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            return Ok(UNSEEN);
        }
    };
    let plan = read_plan(matches, config.settings, std::env::var_os(DOCTOR_KEY))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let fleet = runtime.block_on(look(&plan))?;
    if fleet.workers.is_empty() && fleet.admin().is_none() {
        let seen = judge(&fleet).findings.into_iter().next().map(|it| format!("; {}", it.what));
        anyhow::bail!("no workers and no router to look at{}", seen.unwrap_or_default());
    }
    let ignored: Vec<Code> = matches.get_many::<Code>("ignore").unwrap_or_default().copied().collect();
    let mut report = judge(&fleet);
    report.findings.retain(|it| !ignored.contains(&it.code));
    print(&report, matches.get_flag("json"))?;
    Ok(if report.findings.is_empty() { WELL } else { UNWELL })
}

fn print(report: &Report, as_json: bool) -> anyhow::Result<()> {
    let paint = match std::io::stdout().is_terminal() {
        true => show::Paint::Coloured,
        false => show::Paint::Plain,
    };
    out::print(&match as_json {
        true => format!("{}\n", show::json(report)),
        false => show::text(report, paint),
    })?;
    Ok(())
}

fn read_plan(matches: &ArgMatches, settings: Settings, variable: Option<OsString>) -> anyhow::Result<Plan> {
    let address = |name: &str| -> anyhow::Result<Option<Address>> {
        let text = matches.get_one::<String>(name);
        text.map(|it| it.parse().with_context(|| format!("--{name}"))).transpose()
    };
    let (router, admin) = (address("router")?, address("admin-url")?);
    anyhow::ensure!(
        !settings.workers.is_empty() || admin.is_some(),
        "nothing to look at; name workers with --worker http://host:port or --config, or a router with \
         --admin-url http://host:port"
    );
    let ca = matches.get_one::<PathBuf>("ca");
    Ok(Plan {
        dialer: dial::dialer(ca.map(PathBuf::as_path), [&router, &admin].into_iter().flatten())?,
        router,
        admin,
        key: dial::key(matches, variable, DOCTOR_KEY)?
            .or_else(|| settings.worker_key.as_ref().map(|it| it.header().clone())),
        patience: matches.get_one("timeout").copied().unwrap_or(PATIENCE),
        requests: !matches.get_flag("no-requests"),
        ..Plan::new(settings)
    })
}
