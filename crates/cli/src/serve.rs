//! `maitre serve`: settings, runtime, build, announce, serve, drain.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{ArgMatches, Command};
use maitre_proxy::{Router, Stopped};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use crate::config::{self, Config, Format, Log};
use crate::signals::Signals;

pub fn command() -> Command {
    Command::new("serve").about("Route requests to workers").args(config::args())
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let config = match config::load(matches, std::env::vars_os()) {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            return Ok(ExitCode::FAILURE);
        }
    };
    start_log(&config.log)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(serve(config));
    // A stream that outlived its deadline must not hold the process.
    runtime.shutdown_background();
    code
}

async fn serve(config: Config) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let (workers, strategy) = (config.settings.workers.len(), config.settings.brain.strategy);
    let record = config.settings.record.file.clone();
    let router = Router::start(config.settings).await?;
    info!(listen = %router.listen(), admin = %router.admin(), workers, %strategy, "serving");
    if let Some(file) = record {
        info!(file = %file.display(), "recording requests, as hashes");
    }
    if workers == 0 {
        warn!("no workers; add some with --worker http://host:port");
    }
    signals.wait().await;
    info!("draining; a second signal ends it at once");
    tokio::select! {
        stopped = router.stop() => match stopped {
            Stopped::Drained => {
                info!("drained");
                Ok(ExitCode::SUCCESS)
            }
            Stopped::Cut { open } => {
                warn!(open, "the drain deadline passed with requests open");
                Ok(ExitCode::FAILURE)
            }
        },
        () = signals.wait() => {
            warn!("ended without draining");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn start_log(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&log.level)?;
    let colours = std::io::stderr().is_terminal();
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours);
    match log.format {
        Format::Text => lines.with_target(false).init(),
        Format::Json => lines.json().flatten_event(true).with_target(false).init(),
    }
    Ok(())
}
