//! The TLS of each listener and of each kind of server we connect to, and the task that reloads its files.

use std::sync::Arc;
use std::time::Duration;

use maitre_net::stream::ByteStream;
use maitre_net::tls::{Expiry, TlsClient, TlsClientSettings, TlsConfigError, TlsReload, TlsServer, Validity};
use tokio::net::TcpStream;
use tracing::{debug, warn};

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::settings::{RouterSettings, SharedSettings};

/// Between two looks at the files. Chosen: short against any overlap of certificates; a look costs a few reads.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

pub(crate) struct Tls {
    clients: TlsServer,
    admin: TlsServer,
    pub(crate) workers: Arc<TlsClient>,
    /// To the collector of our traces.
    pub(crate) collector: Arc<TlsClient>,
}

/// Which listener accepted a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    Clients,
    Admin,
}

impl Listener {
    const fn name(self) -> &'static str {
        match self {
            Listener::Clients => "clients",
            Listener::Admin => "admin",
        }
    }
}

impl Tls {
    pub(crate) fn load(settings: &RouterSettings) -> Result<Tls, TlsConfigError> {
        Ok(Tls {
            clients: load_clients(settings)?,
            admin: load_admin(settings)?,
            workers: Arc::new(load_workers(settings)?),
            collector: Arc::new(load_collector(settings)?),
        })
    }

    /// What is wrong with each section whose files cannot be used.
    pub(crate) fn errors(settings: &RouterSettings) -> impl Iterator<Item = TlsConfigError> + use<> {
        let errors = [
            load_clients(settings).err(),
            load_admin(settings).err(),
            load_workers(settings).err(),
            load_collector(settings).err(),
        ];
        errors.into_iter().flatten()
    }

    /// Applies other settings, or returns what is wrong with them. Reads nothing if they name the same files: `follow`
    /// reloads files that changed.
    pub(crate) fn change(
        &self,
        old: &RouterSettings,
        new: &RouterSettings,
        metrics: &Metrics,
    ) -> Result<(), String> {
        let named = |it: &RouterSettings| {
            (it.tls.clone(), it.admin_tls.clone(), it.worker_tls.clone(), it.traces.ca.clone())
        };
        if named(old) != named(new) {
            Tls::load(new).map_err(|error| error.to_string())?;
            self.reload(new, metrics);
        }
        Ok(())
    }

    /// The certificates that we present, by the section of the settings that names them.
    pub(crate) fn certificates(&self) -> [(&'static str, Option<Validity>); 3] {
        [
            ("tls", self.clients.validity()),
            ("admin_tls", self.admin.validity()),
            ("worker_tls", self.workers.validity()),
        ]
    }

    /// Accepts a connection within `limit`. None if its handshake failed, which has been counted.
    pub(crate) async fn accept(
        &self,
        listener: Listener,
        stream: TcpStream,
        limit: Duration,
        metrics: &Metrics,
    ) -> Option<ByteStream> {
        let server = match listener {
            Listener::Clients => &self.clients,
            Listener::Admin => &self.admin,
        };
        match server.accept(stream, limit).await {
            Ok(stream) => Some(stream),
            Err(error) => {
                let listener = listener.name();
                debug!(listener, %error, "TLS handshake failed");
                metrics.handshake_failed(listener);
                error.close().await;
                None
            }
        }
    }

    /// Reads the files again; good ones that changed apply from now on. Blocks on the disk.
    fn reload(&self, settings: &RouterSettings, metrics: &Metrics) {
        let reloads = [
            self.clients.reload(&settings.tls),
            self.admin.reload(&settings.admin_tls),
            self.workers.reload(&settings.worker_tls),
            self.collector.reload(&collector_settings(settings)),
        ];
        for reload in reloads {
            match reload {
                TlsReload::Unchanged => {}
                TlsReload::Applied => metrics.tls_files_changed("taken"),
                TlsReload::Rejected => metrics.tls_files_changed("refused"),
            }
        }
    }
}

fn load_clients(settings: &RouterSettings) -> Result<TlsServer, TlsConfigError> {
    TlsServer::load("tls", &[b"h2", b"http/1.1"], &settings.tls)
}

/// Browsers offer both, and get HTTP/1.1: only gRPC is served over HTTP/2 there.
fn load_admin(settings: &RouterSettings) -> Result<TlsServer, TlsConfigError> {
    TlsServer::load("admin_tls", &[b"http/1.1", b"h2"], &settings.admin_tls)
}

fn load_workers(settings: &RouterSettings) -> Result<TlsClient, TlsConfigError> {
    TlsClient::load("worker_tls", &settings.worker_tls)
}

fn load_collector(settings: &RouterSettings) -> Result<TlsClient, TlsConfigError> {
    TlsClient::load("traces", &collector_settings(settings))
}

/// A collector is verified like a worker, by an authority of its own, and gets no client certificate.
fn collector_settings(settings: &RouterSettings) -> TlsClientSettings {
    TlsClientSettings { ca: settings.traces.ca.clone(), ..TlsClientSettings::default() }
}

/// Logs a certificate that expires soon, and once more when it has.
#[derive(Default)]
struct ExpiryWarnings([Option<Expiry>; 3]);

impl ExpiryWarnings {
    fn check(&mut self, now: i64, certificates: [(&'static str, Option<Validity>); 3]) {
        for (warned, (section, validity)) in self.0.iter_mut().zip(certificates) {
            let expiry = validity.and_then(|it| it.expiry(now));
            if std::mem::replace(warned, expiry) == expiry {
                continue;
            }
            let hours = validity.map_or(0, |it| it.ends.saturating_sub(now) / 3_600);
            match expiry {
                None => {}
                Some(Expiry::Soon) => {
                    warn!(
                        section,
                        hours, "the certificate expires soon; replace the files, no restart is needed"
                    );
                }
                Some(Expiry::Expired) => {
                    warn!(
                        section,
                        "the certificate has expired: its peers refuse to connect; replace the files"
                    );
                }
            }
        }
    }
}

/// Reloads changed files until aborted.
pub(crate) async fn follow(
    clock: Clock,
    tls: Arc<Tls>,
    settings: Arc<SharedSettings>,
    metrics: Arc<Metrics>,
) {
    let mut warnings = ExpiryWarnings::default();
    loop {
        warnings.check(clock.unix_seconds(), tls.certificates());
        tokio::time::sleep(RELOAD_INTERVAL).await;
        let settings = settings.snapshot();
        if names_files(&settings) {
            let (tls, metrics) = (tls.clone(), metrics.clone());
            // A disk that hangs blocks this task and no other.
            let _ = tokio::task::spawn_blocking(move || tls.reload(&settings, &metrics)).await;
        } else {
            tls.reload(&settings, &metrics);
        }
    }
}

fn names_files(settings: &RouterSettings) -> bool {
    settings.tls.names_files()
        || settings.admin_tls.names_files()
        || settings.worker_tls.names_files()
        || settings.traces.ca.is_some()
}

#[cfg(test)]
mod tests {
    use maitre_testkit::log::Log;

    use super::*;

    const DAY: i64 = 86_400;

    #[test]
    fn a_certificate_that_expires_is_logged_once_soon_and_once_then() {
        let log = Log::new();
        let mut warnings = ExpiryWarnings::default();
        let first = Validity { begins: 0, ends: 90 * DAY };
        let lines = |warnings: &mut ExpiryWarnings, now, validity| {
            let before = log.with("").len();
            for _ in 0..2 {
                warnings.check(now, [("tls", validity), ("admin_tls", None), ("worker_tls", None)]);
            }
            log.with("")[before..].join(" ")
        };
        assert_eq!(lines(&mut warnings, 80 * DAY, Some(first)), "");
        let soon = lines(&mut warnings, 88 * DAY, Some(first));
        assert!(soon.contains("expires soon") && soon.contains("hours=48"), "{soon}");
        assert!(lines(&mut warnings, 91 * DAY, Some(first)).contains("has expired"));
        let second = Validity { begins: 91 * DAY, ends: 181 * DAY };
        assert_eq!(lines(&mut warnings, 91 * DAY, Some(second)), "");
        assert!(lines(&mut warnings, 180 * DAY, Some(second)).contains("expires soon"));
        // Without TLS there is nothing to warn of, and after it the same certificate is news.
        assert_eq!(lines(&mut warnings, 180 * DAY, None), "");
        assert!(lines(&mut warnings, 180 * DAY, Some(second)).contains("expires soon"));
    }
}
