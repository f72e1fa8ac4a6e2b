//! Settings that change while the router runs: on SIGHUP, when their file changes, or on an operator's
//! request.
//!
//! All three end here, one after the other. New settings are read and checked as a whole, and applied at
//! once. If anything is wrong with them the old ones stay, and the errors are reported with file, line and
//! key.
//!
//! Files are polled once a second rather than watched: polling sees swapped symbolic links (as in
//! Kubernetes), network mounts, and editors that rename. A file is read once it has been unchanged for a
//! whole second, because half a file may well be valid.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::ArgMatches;
use maitre_config::{self as config, Config, reload};
use maitre_proxy::{Program, Reloaded, Reloading, Router, RouterSettings, Secret};
use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::discovery::Discovery;
use crate::log;
use crate::signals::{HangUp, HangUps};

/// Maximum operators that wait for a reload at once; further requests are refused with a retry.
const WAITING_MAX: usize = 16;

/// Time between two polls of the files.
const EVERY: Duration = Duration::from_secs(1);

/// Where settings come from, so that they can be read again.
pub(crate) enum Sources {
    Command {
        defaults: Box<RouterSettings>,
        matches: Box<ArgMatches>,
        /// As they were at the start: they do not change.
        variables: Vec<(OsString, OsString)>,
    },
    /// Built once, from something that is not read again.
    Made(Box<Config>),
}

impl Sources {
    pub(crate) fn of(matches: &ArgMatches) -> Sources {
        Sources::over(RouterSettings::default(), matches)
    }

    /// For a command with defaults of its own.
    pub(crate) fn over(defaults: RouterSettings, matches: &ArgMatches) -> Sources {
        let variables = std::env::vars_os().collect();
        Sources::Command { defaults: Box::new(defaults), matches: Box::new(matches.clone()), variables }
    }

    pub(crate) fn read(&self) -> Result<Config, config::Errors> {
        match self {
            Sources::Command { defaults, matches, variables } => {
                config::load_over((**defaults).clone(), matches, variables.clone())
            }
            Sources::Made(config) => Ok((**config).clone()),
        }
    }

    /// The config file, if one was given.
    fn file(&self) -> Option<PathBuf> {
        match self {
            Sources::Command { matches, variables, .. } => config::file(matches, variables.clone()),
            Sources::Made(_) => None,
        }
    }
}

type Reply = oneshot::Sender<Result<Reloaded, String>>;

/// The program as the router's operator sees it.
pub(crate) struct Shell {
    asks: mpsc::Sender<Reply>,
    current: Arc<Mutex<Config>>,
    log: log::Handle,
}

/// Reads settings again.
pub(crate) struct Reloader {
    sources: Sources,
    asked: mpsc::Receiver<Reply>,
    current: Arc<Mutex<Config>>,
    log: log::Handle,
    watch: FileWatch,
    hang_ups: HangUps,
    discovery: Discovery,
    /// Generated for this run, if the settings have none.
    admin_key: Option<Secret>,
}

/// `made` is the admin key of this run, if the settings have none. A key from the settings is not kept here:
/// once removed from them, it must stop working.
pub(crate) fn pair(
    sources: Sources,
    config: Config,
    log: log::Handle,
    made: Option<Secret>,
) -> std::io::Result<(Arc<Shell>, Reloader)> {
    let (asks, asked) = mpsc::channel(WAITING_MAX);
    let files = files(&sources, &config);
    let hang_ups = HangUps::new()?;
    let discovery = Discovery::start(&config.discovery)?;
    let current = Arc::new(Mutex::new(config));
    let shell = Arc::new(Shell { asks, current: current.clone(), log: log.clone() });
    let watch = FileWatch::new(files);
    Ok((shell, Reloader { sources, asked, current, log, watch, hang_ups, discovery, admin_key: made }))
}

/// Everything that is read together with the settings.
fn files(sources: &Sources, config: &Config) -> Vec<PathBuf> {
    sources.file().into_iter().chain(config.files().cloned()).collect()
}

impl Program for Shell {
    fn reload(&self) -> Reloading<'_> {
        Box::pin(async {
            let (reply, told) = oneshot::channel();
            let leaving = "the router is on its way out";
            self.asks.try_send(reply).map_err(|error| match error {
                TrySendError::Full(_) => "too many reloads at once; try again".to_owned(),
                TrySendError::Closed(_) => leaving.to_owned(),
            })?;
            told.await.map_err(|_| leaving.to_owned())?
        })
    }

    fn config(&self) -> String {
        self.current.lock().for_showing()
    }

    fn log_level(&self) -> String {
        self.log.level()
    }

    fn set_log_level(&self, level: &str) -> Result<(), String> {
        self.log.set(level)
    }

    fn log_lines_dropped(&self) -> u64 {
        self.log.lines_dropped()
    }
}

impl Reloader {
    /// Reloads settings on request or when a file has changed, until the terminal is closed.
    pub(crate) async fn run(&mut self, router: &Router) {
        let mut looks = tokio::time::interval(EVERY);
        loop {
            tokio::select! {
                // A signal has no answer: one that was sent before a request is served before it.
                biased;
                hang_up = self.hang_ups.wait() => match hang_up {
                    HangUp::Reload => drop(self.reload(router, "SIGHUP")),
                    HangUp::TerminalClosed => return info!("the terminal was closed"),
                },
                Some(reply) = self.asked.recv() => {
                    let outcome = self.reload(router, "an operator asked");
                    // If the caller is gone, the answer is in the log.
                    let _ = reply.send(outcome);
                }
                update = self.discovery.news() => self.discovery.tell(router, update),
                _ = looks.tick() => {
                    if self.watch.has_settled() {
                        let _ = self.reload(router, "a file has changed");
                    }
                }
            }
        }
    }

    /// Applies new settings, or returns why not. `why` is for the log.
    pub(crate) fn reload(&mut self, router: &Router, why: &str) -> Result<Reloaded, String> {
        match self.try_reload(router) {
            Ok(reloaded) => {
                let (added, removed) = (reloaded.workers.added.len(), reloaded.workers.removed.len());
                let (changed, restart) = (reloaded.changed.join(" "), reloaded.restart.join(" "));
                info!(why, changed, added, removed, "settings reloaded");
                if !restart.is_empty() {
                    warn!(keys = restart, "these changed settings take effect at the next start");
                }
                Ok(reloaded)
            }
            Err(error) => {
                warn!(why, "settings stay as they were: {error}");
                Err(error)
            }
        }
    }

    fn try_reload(&mut self, router: &Router) -> Result<Reloaded, String> {
        // Before reading: a write in the meantime then shows as a change.
        self.watch.look();
        let mut new = self.sources.read().map_err(|errors| errors.to_string())?;
        let mut current = self.current.lock();
        let change = reload::change(&current, &mut new)?;
        new.settings.admin_key = new.settings.admin_key.or(self.admin_key);
        new.warnings.iter().for_each(|it| warn!("{it}"));
        let keys = |keys: &[&str]| keys.iter().map(|&it| it.to_owned()).collect();
        let mut reloaded =
            Reloaded { changed: keys(&change.now), restart: keys(&change.at_restart), ..Reloaded::default() };
        // Even if the file has not changed: a reload ends what an operator set at runtime.
        reloaded.workers = router.reload(new.settings.clone())?;
        self.discovery.retune(router, &new.discovery).map_err(|error| error.to_string())?;
        self.log.set(&new.log.level)?;
        self.watch.follow(files(&self.sources, &new));
        *current = new;
        Ok(reloaded)
    }
}

/// Files that are polled until they have changed and are stable again.
struct FileWatch {
    files: Vec<PathBuf>,
    /// Their state when they were last read, and at the last poll.
    read: Vec<Stamp>,
    seen: Vec<Stamp>,
}

/// What changes with a file's content (and sometimes without). None: it cannot be read.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let it = fs::metadata(path).ok()?;
    Some((it.dev(), it.ino(), it.size(), it.mtime(), it.mtime_nsec()))
}

impl FileWatch {
    fn new(files: Vec<PathBuf>) -> FileWatch {
        let read: Vec<Stamp> = files.iter().map(|it| stamp(it)).collect();
        FileWatch { files, seen: read.clone(), read }
    }

    /// Sets the list of files; files already in it keep their state.
    fn follow(&mut self, files: Vec<PathBuf>) {
        if files != self.files {
            *self = FileWatch::new(files);
        }
    }

    /// Records that the files are about to be read.
    fn look(&mut self) {
        self.read = self.files.iter().map(|it| stamp(it)).collect();
        self.seen.clone_from(&self.read);
    }

    /// Whether a file differs from when it was last read and equals the last poll. A missing file is being
    /// replaced, or will no longer be used: it does not count, and does not delay the others.
    fn has_settled(&mut self) -> bool {
        let now: Vec<Stamp> = self.files.iter().map(|it| stamp(it)).collect();
        let is_quiet = now == self.seen;
        self.seen.clone_from(&now);
        let is_other = now.iter().zip(&self.read).any(|(now, read)| now.is_some() && now != read);
        if is_quiet && is_other {
            self.read = now;
        }
        is_quiet && is_other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_once_it_is_stable() {
        let folder = std::env::temp_dir().join(format!("maitre-watch-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("maitre.toml");
        fs::write(&file, "a").unwrap();
        let mut watch = FileWatch::new(vec![file.clone()]);
        assert!(!watch.has_settled(), "as it was read");
        fs::write(&file, "ab").unwrap();
        assert!(!watch.has_settled(), "it may still be written to");
        fs::write(&file, "abc").unwrap();
        assert!(!watch.has_settled(), "and so it was");
        assert!(watch.has_settled());
        assert!(!watch.has_settled(), "once is enough");
        fs::remove_file(&file).unwrap();
        assert!(!watch.has_settled());
        assert!(!watch.has_settled(), "gone: it is being replaced");
        fs::write(&file, "abcd").unwrap();
        assert!(!watch.has_settled());
        assert!(watch.has_settled());
        fs::write(&file, "abcde").unwrap();
        watch.look();
        assert!(!watch.has_settled() && !watch.has_settled(), "it was read already");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_missing_file_does_not_delay_another() {
        let folder = std::env::temp_dir().join(format!("maitre-watch-two-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, keys) = (folder.join("maitre.toml"), folder.join("keys"));
        fs::write(&file, "a").unwrap();
        fs::write(&keys, "k").unwrap();
        let mut watch = FileWatch::new(vec![file.clone(), keys.clone()]);
        fs::remove_file(&keys).unwrap();
        fs::write(&file, "ab").unwrap();
        assert!(!watch.has_settled());
        assert!(watch.has_settled(), "it may no longer name the other");
        assert!(!watch.has_settled());
        fs::write(&keys, "k").unwrap();
        assert!(!watch.has_settled());
        assert!(watch.has_settled(), "back again, as another file");
        fs::remove_dir_all(&folder).unwrap();
    }
}
