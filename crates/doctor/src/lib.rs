//! `maitre doctor`: checks a fleet from outside and reports what is wrong, where, and how to fix it.
//!
//! The worst faults are silent: an engine without prefix caching, a topic without events, a tokenizer that
//! differs from the engine's. No request fails, but no prefix hits. So the doctor asks everything once
//! (`gather`), keeps the answers as plain facts (`facts`), and judges them in functions that open no socket
//! (`judge`).
//!
//! It changes nothing. It sends at most six requests of one token to each worker; `--no-requests` sends none.

mod client;
mod clock;
pub mod code;
mod facts;
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
use maitre_proxy::RouterSettings;

use code::Code;
use report::Report;

pub use gather::look;
pub use judge::judge;

/// Nothing is wrong.
const HEALTHY: u8 = 0;
/// There are findings.
const UNHEALTHY: u8 = 1;
/// The fleet could not be checked.
const UNCHECKED: u8 = 2;

const TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT_MAX: Duration = Duration::from_mins(10);

const ABOUT: &str = "\
Check a fleet and say what is wrong with it, worker by worker, with the flag or setting that fixes it.

Reads what `serve` reads: a config file, variables, flags. Asks each worker for its health, models, metrics and KV \
events, and sends it at most six requests of one token (the same short prompt twice, once more with a cache salt, three \
tiny streams) and three questions to /tokenize where a tokenizer is set. --no-requests leaves the six out. Nothing is \
changed anywhere.

Exit code: 0 healthy, 1 something is wrong, 2 could not check.";

/// What to check, and how.
#[derive(Clone, Debug)]
pub struct DoctorPlan {
    /// The settings of `serve`. Without workers, the doctor checks those of the router.
    pub settings: RouterSettings,
    /// Where clients reach a running router.
    pub router: Option<Address>,
    /// Where operators reach it.
    pub admin: Option<Address>,
    /// For both; workers use the TLS settings.
    pub dialer: Arc<Dialer>,
    /// The value of the `authorization` header.
    pub key: Option<HeaderValue>,
    /// For each request; responses of engines may take six times as long.
    pub timeout: Duration,
    /// Whether to send requests to engines.
    pub requests: bool,
}

impl DoctorPlan {
    /// Checks everything about the workers of these settings.
    pub fn new(settings: RouterSettings) -> DoctorPlan {
        DoctorPlan {
            settings,
            router: None,
            admin: None,
            dialer: Arc::default(),
            key: None,
            timeout: TIMEOUT,
            requests: true,
        }
    }
}

pub fn command() -> Command {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let switch = |name: &'static str, help: &'static str| text(name, "", help).action(ArgAction::SetTrue);
    let range = Duration::from_millis(1)..=TIMEOUT_MAX;
    Command::new("doctor").about("Find what is wrong with a fleet, and how to fix it").long_about(ABOUT).args([
        text("router", "URL", "A running router's client address, as in http://127.0.0.1:8080"),
        text("admin-url", "URL", "Its admin address, as in http://127.0.0.1:8081; without workers here, checks the router's workers"),
        dial::arg().help("Authority of the certificates of --router and --admin-url, as PEM; for workers set worker_tls.ca"),
        text("timeout", "DURATION", "Timeout of each check; six times as long for engine responses [default: 5s]")
            .value_parser(move |it: &str| Time(range.clone()).read(it)),
        switch("no-requests", "Send no requests to engines: cached tokens, salts and speed are not checked"),
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
    // An error is not a finding, and has another exit code.
    match examine(matches) {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(error) => {
            eprintln!("maitre: {error:#}");
            Ok(ExitCode::from(UNCHECKED))
        }
    }
}

fn examine(matches: &ArgMatches) -> anyhow::Result<u8> {
    let config = match config::load(matches, std::env::vars_os()) {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            return Ok(UNCHECKED);
        }
    };
    let plan = read_plan(matches, config.settings, std::env::var_os(DOCTOR_KEY))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let fleet = runtime.block_on(look(&plan))?;
    if fleet.workers.is_empty() && fleet.admin().is_none() {
        let seen = judge(&fleet).findings.into_iter().next().map(|it| format!("; {}", it.what));
        anyhow::bail!("no workers and no router to check{}", seen.unwrap_or_default());
    }
    let ignored: Vec<Code> = matches.get_many::<Code>("ignore").unwrap_or_default().copied().collect();
    let mut report = judge(&fleet);
    report.findings.retain(|it| !ignored.contains(&it.code));
    print(&report, matches.get_flag("json"))?;
    Ok(if report.findings.is_empty() { HEALTHY } else { UNHEALTHY })
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

fn read_plan(
    matches: &ArgMatches,
    settings: RouterSettings,
    variable: Option<OsString>,
) -> anyhow::Result<DoctorPlan> {
    let address = |name: &str| -> anyhow::Result<Option<Address>> {
        let text = matches.get_one::<String>(name);
        text.map(|it| it.parse().with_context(|| format!("--{name}"))).transpose()
    };
    let (router, admin) = (address("router")?, address("admin-url")?);
    anyhow::ensure!(
        !settings.workers.is_empty() || admin.is_some(),
        "nothing to check; give workers with --worker http://host:port or --config, or a router with \
         --admin-url http://host:port"
    );
    let ca = matches.get_one::<PathBuf>("ca");
    Ok(DoctorPlan {
        dialer: dial::dialer(ca.map(PathBuf::as_path), [&router, &admin].into_iter().flatten())?,
        router,
        admin,
        key: dial::key(matches, variable, DOCTOR_KEY)?
            .or_else(|| settings.worker_key.as_ref().map(|it| it.header().clone())),
        timeout: matches.get_one("timeout").copied().unwrap_or(TIMEOUT),
        requests: !matches.get_flag("no-requests"),
        ..DoctorPlan::new(settings)
    })
}
