//! TLS as a server and as a client, from files that the operator names and that may change while we run.
//!
//! Certificates live for weeks and another program replaces them in place. So the caller reloads now and then: good
//! files apply to new connections; bad files are logged once and the old configuration stays in force. A reload
//! replaces the whole configuration, not only its certificates. Resumable sessions go with the old one, so no client
//! can resume a session that a full handshake would no longer allow.
//!
//! Left out: revocation lists, and tenants named by client certificates.

mod client;
mod failure;
mod files;
mod server;
mod validity;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use rustls::crypto::{CryptoProvider, ring};
use tracing::{info, warn};

pub use client::TlsClient;
pub use failure::TlsFailure;
use files::PemFiles;
pub use files::TlsConfigError;
pub use server::{AcceptError, TlsServer};
pub use validity::{Expiry, Validity};

/// TLS on a listener. Without a certificate the listener speaks plain HTTP. All files are PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsServerSettings {
    /// The certificate, followed by its chain.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// The authorities of client certificates. None: the listener asks for none.
    pub client_ca: Option<PathBuf>,
    pub client_auth: ClientAuth,
}

impl TlsServerSettings {
    pub fn names_files(&self) -> bool {
        self.cert.is_some() || self.key.is_some() || self.client_ca.is_some()
    }
}

/// Whether a client must present a certificate if the listener asks for one. An invalid one is never accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    #[default]
    Required,
    Optional,
}

/// TLS to `https` addresses. All files are PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsClientSettings {
    /// The authorities we trust. None: those that browsers trust.
    pub ca: Option<PathBuf>,
    /// The certificate we present if asked.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Whether the server's certificate is verified.
    pub verify: bool,
    /// The name that the server's certificate must be for. Empty: the host of its address.
    pub server_name: String,
}

impl TlsClientSettings {
    pub fn names_files(&self) -> bool {
        self.ca.is_some() || self.cert.is_some() || self.key.is_some()
    }
}

impl Default for TlsClientSettings {
    fn default() -> TlsClientSettings {
        TlsClientSettings { ca: None, cert: None, key: None, verify: true, server_name: String::new() }
    }
}

/// What a look at the files led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsReload {
    Unchanged,
    /// The new files apply to new connections.
    Applied,
    /// The new files cannot be used; the old ones stay in force.
    Rejected,
}

/// Identifies the files, and the settings that name them, that were last loaded or rejected.
struct LoadedFiles {
    fingerprint: AtomicU64,
    /// Of the certificate that we present.
    validity: ArcSwapOption<Validity>,
}

impl LoadedFiles {
    fn new(section: &str, files: &PemFiles) -> LoadedFiles {
        let validity = ArcSwapOption::from_pointee(files.validity(section));
        LoadedFiles { fingerprint: AtomicU64::new(files.fingerprint()), validity }
    }

    fn validity(&self) -> Option<Validity> {
        self.validity.load().as_deref().copied()
    }

    /// If the files have changed, makes a configuration of them and hands it to `apply`.
    fn reload<T>(
        &self,
        section: &str,
        files: &PemFiles,
        make: impl FnOnce(&PemFiles) -> Result<T, TlsConfigError>,
        apply: impl FnOnce(T),
    ) -> TlsReload {
        if self.fingerprint.swap(files.fingerprint(), Ordering::Relaxed) == files.fingerprint() {
            return TlsReload::Unchanged;
        }
        match make(files) {
            Ok(made) => {
                apply(made);
                self.validity.store(files.validity(section).map(Arc::new));
                info!(section, "TLS files changed; they apply to new connections");
                TlsReload::Applied
            }
            Err(error) => {
                warn!(section, %error, "TLS files changed and cannot be used; the old ones stay in force");
                TlsReload::Rejected
            }
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
