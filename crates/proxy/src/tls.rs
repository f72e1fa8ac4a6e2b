//! TLS, toward clients, operators and workers: what is made of the files that the operator names, and made again when
//! they change.
//!
//! Certificates live for weeks and are replaced by somebody else's program, in place. So the files are looked at every
//! so often; what is good takes the place of what was there, for new connections; what is not is told once, and the old
//! stays in force. Whole configurations are swapped, not certificates within one: with the old one go the sessions that
//! could be resumed, so nobody gets in by a ticket who would not get in by a handshake.
//!
//! Left out: revocation lists, and tenants named by client certificates.

mod files;
mod inward;
mod no_tls;
mod outward;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::crypto::{CryptoProvider, ring};
use tracing::{info, warn};

use crate::house::RouterState;
use crate::metrics::Metrics;
use crate::settings::{self, Settings, WorkerTls};
pub use files::BadTls;
use files::Files;
pub(crate) use inward::{Inward, Listener, receive};
pub use no_tls::NoTls;
pub(crate) use outward::Outward;

/// Between two looks at the files. Chosen: short against any overlap of certificates, and a look costs a few reads.
const LOOK_EVERY: Duration = Duration::from_secs(2);

pub(crate) struct Tls {
    pub(crate) clients: Inward,
    pub(crate) admin: Inward,
    pub(crate) workers: Outward,
    /// Toward who takes our traces.
    pub(crate) collector: Outward,
}

impl Tls {
    pub(crate) fn load(settings: &Settings) -> Result<Tls, BadTls> {
        let clients = Inward::load(Listener::Clients, &settings.tls)?;
        let admin = Inward::load(Listener::Admin, &settings.admin_tls)?;
        let workers = Outward::load("worker_tls", &settings.worker_tls)?;
        let collector = Outward::load("traces", &toward_collector(settings))?;
        Ok(Tls { clients, admin, workers, collector })
    }

    /// Goes by what other settings name, or says what is wrong with it. Where they name the same nothing is read: files that
    /// changed are `follow`'s business.
    pub(crate) fn change(&self, old: &Settings, new: &Settings, metrics: &Metrics) -> Result<(), String> {
        let named = |it: &Settings| {
            (it.tls.clone(), it.admin_tls.clone(), it.worker_tls.clone(), it.traces.ca.clone())
        };
        if named(old) != named(new) {
            Tls::load(new).map_err(|error| error.to_string())?;
            self.refresh(new, metrics);
        }
        Ok(())
    }

    /// Reads the files again; what changed and is good is in force from now on. Blocks on the disk.
    pub(crate) fn refresh(&self, settings: &Settings, metrics: &Metrics) {
        self.clients.refresh(&settings.tls, metrics);
        self.admin.refresh(&settings.admin_tls, metrics);
        self.workers.refresh(&settings.worker_tls, metrics);
        self.collector.refresh(&toward_collector(settings), metrics);
    }
}

/// A collector is verified like a worker, but by an authority of its own, and is told nothing of who we are.
fn toward_collector(settings: &Settings) -> WorkerTls {
    WorkerTls { ca: settings.traces.ca.clone(), ..WorkerTls::default() }
}

/// Follows the files, and the settings that name them, until aborted.
pub(crate) async fn follow(house: Arc<RouterState>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let settings = house.settings.load_full();
        if names_files(&settings) {
            let house = house.clone();
            // A disk that hangs holds up this task and nobody else.
            let _ = tokio::task::spawn_blocking(move || house.tls.refresh(&settings, &house.metrics)).await;
        } else {
            house.tls.refresh(&settings, &house.metrics);
        }
    }
}

fn names_files(settings: &Settings) -> bool {
    let listens = |it: &settings::Tls| it.cert.is_some() || it.key.is_some() || it.client_ca.is_some();
    let workers = &settings.worker_tls;
    listens(&settings.tls)
        || listens(&settings.admin_tls)
        || workers.ca.is_some()
        || workers.cert.is_some()
        || workers.key.is_some()
        || settings.traces.ca.is_some()
}

/// The last files that something was made of, or was to be.
struct Tried(AtomicU64);

impl Tried {
    fn new(files: &Files) -> Tried {
        Tried(AtomicU64::new(files.print()))
    }

    /// Makes something of the files if they are others than the last time, and says so.
    fn again<T>(
        &self,
        files: &Files,
        metrics: &Metrics,
        what: &str,
        make: impl FnOnce(&Files) -> Result<T, BadTls>,
    ) -> Option<T> {
        if self.0.swap(files.print(), Ordering::Relaxed) == files.print() {
            return None;
        }
        match make(files) {
            Ok(made) => {
                metrics.tls_files_changed("taken");
                info!(what, "TLS files changed; new connections go by them");
                Some(made)
            }
            Err(error) => {
                metrics.tls_files_changed("refused");
                warn!(what, %error, "TLS files changed and cannot be used; the old ones stay in force");
                None
            }
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
