//! `maitre serve`: settings, runtime, build, announce, serve, drain.

use std::io::{IsTerminal as _, Write as _};
use std::net::IpAddr;
use std::process::ExitCode;

use clap::{ArgMatches, Command};
use maitre_config::{self as config, Config};
use maitre_net::worker_url::WorkerUrl;
use maitre_proxy::settings::Serves;
use maitre_proxy::{Router, Secret, Stopped, descriptors, secret};
use tracing::{info, warn};

use crate::key;
use crate::key_file::{self, KeyFile};
use crate::log;
use crate::notify::{Notify, ServiceState};
use crate::reload::{self, Sources};
use crate::signals::Signals;

/// Ends the short help, which lists the common settings only.
const MORE: &str = "\
Example: maitre serve --worker localhost:8000 --worker localhost:8001

`maitre serve --help` lists every setting. Each is also a key of the config file and an environment
variable: --log-level is log.level and MAITRE_LOG_LEVEL. `maitre check FILE` reads a config file.";

pub fn command() -> Command {
    Command::new("serve")
        .about("Route requests to workers")
        .args(config::args())
        .after_help(MORE)
        .after_long_help("")
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    run_with(Sources::of(matches))
}

/// The same with settings that were built elsewhere.
pub(crate) fn run_with(sources: Sources) -> anyhow::Result<ExitCode> {
    let config = match sources.read() {
        Ok(config) => config,
        Err(errors) => {
            eprintln!("{errors}");
            return Ok(ExitCode::FAILURE);
        }
    };
    let log = log::start(&config.log)?;
    if let Err(error) = descriptors::raise_limit() {
        warn!(%error, "cannot raise the limit on open files to the hard limit");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(serve(sources, config, log.clone()));
    // A stream that outlived its deadline must not keep the process running.
    runtime.shutdown_background();
    log.flush();
    code
}

async fn serve(sources: Sources, mut config: Config, log: log::Handle) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    config.warnings.iter().for_each(|it| warn!("{it}"));
    let made = make_admin_key(&mut config)?;
    let own_key = made.as_ref().map(|it| Secret::of(it.as_bytes()));
    let (shell, mut reloader) = reload::pair(sources, config.clone(), log, own_key)?;
    let router = Router::start_in(shell, config.settings.clone()).await?;
    let key_file = made.as_deref().map(|key| keep_key(&router, key));
    announce(&router, &config, made.as_deref(), key_file.as_ref().and_then(|it| it.as_ref()));
    let notify = Notify::from_environment();
    notify_systemd(&notify, ServiceState::Ready);
    tokio::select! {
        () = signals.wait() => {}
        () = reloader.run(&router) => {}
    }
    notify_systemd(&notify, ServiceState::Stopping);
    // Requests for a reload fail from now on instead of waiting for ever.
    drop(reloader);
    drain(router, &mut signals).await
}

/// If the settings have no admin key, generates one for this run, so that the page works from the first
/// start.
fn make_admin_key(config: &mut Config) -> anyhow::Result<Option<String>> {
    if config.settings.admin_key.is_some() {
        return Ok(None);
    }
    let key = secret::fresh()?;
    config.settings.admin_key = Some(Secret::of(key.as_bytes()));
    Ok(Some(key))
}

/// Writes the key of this run to a file, so that commands on this machine find it. Without one they need to be told.
fn keep_key(router: &Router, key: &str) -> Option<KeyFile> {
    let folders = key_file::folders(|name| std::env::var_os(name));
    let kept = KeyFile::write(&folders, router.admin().port(), key);
    kept.inspect_err(|error| warn!(%error, "could not write the admin key to a file; set admin_key")).ok()
}

fn announce(router: &Router, config: &Config, made: Option<&str>, key_file: Option<&KeyFile>) {
    let settings = &config.settings;
    let (workers, strategy) = (settings.workers.len(), settings.brain.strategy);
    info!(listen = %router.listen(), admin = %router.admin(), workers, %strategy, "serving");
    if let Some(file) = &settings.record.file {
        info!(file = %file.display(), "recording requests, as hashes");
    }
    if workers == 0 && config.discovery.from.is_empty() {
        warn!(
            "no workers; add some with --worker http://host:port, or say where to find them with --discovery-from"
        );
    }
    let is_name = |it: &&WorkerUrl| it.address.host().parse::<IpAddr>().is_err();
    if settings.serves == Serves::Gateways
        && let Some(worker) = settings.workers.iter().find(is_name)
    {
        warn!(
            worker = worker.address.to_string(),
            "gateways know workers by IP address and port; this one is given by name"
        );
    }
    let mut out = std::io::stdout().lock();
    match made {
        // Only on a terminal, not into a file or a journal: there only the operator reads it.
        Some(key) if out.is_terminal() => {
            let scheme = if settings.admin_tls.cert.is_some() { "https" } else { "http" };
            let _ = writeln!(out, "page {scheme}://{}/#key={key}", router.admin());
        }
        Some(_) => info!(
            file = key_file.map(|it| tracing::field::display(it.path().display())),
            "the page and the admin API need a key: set admin_key, or see `{}`",
            key::admin_command(router.admin().port())
        ),
        None => {}
    }
}

/// systemd may wait for this; a failure does not stop the router.
fn notify_systemd(notify: &Notify, state: ServiceState) {
    if let Err(error) = notify.send(state) {
        warn!(%error, ?state, "could not notify systemd; does the socket of NOTIFY_SOCKET exist?");
    }
}

async fn drain(router: Router, signals: &mut Signals) -> anyhow::Result<ExitCode> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A screen; the whole list has more than two hundred lines.
    const LINES_MAX: usize = 40;
    const COLUMNS: usize = 100;

    #[test]
    fn the_short_help_fits_a_screen_and_the_long_one_has_everything() {
        let short = command().render_help().to_string();
        let lines: usize = short.lines().map(|it| it.chars().count().div_ceil(COLUMNS).max(1)).sum();
        assert!(lines <= LINES_MAX, "{lines} lines:\n{short}");
        for part in ["--worker", "--listen", "--config", "--strategy", "--keys", "`maitre serve --help`"] {
            assert!(short.contains(part), "{part}:\n{short}");
        }
        let long = command().render_long_help().to_string();
        for flag in command().get_arguments().filter_map(|it| it.get_long()) {
            assert!(long.contains(&format!("--{flag}")), "{flag}");
        }
        assert!(long.contains("Options after the URL") && !long.contains("lists every setting"));
    }
}
