//! PEM files, read whole, with a fingerprint that changes when they do, parsed for rustls.

use std::fmt::Debug;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use maitre_base::hash;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Validity;

/// Largest file. Chosen: four times the bundle of authorities that systems ship.
const BYTES_MAX: u64 = 1 << 20;

/// A setting, and what is wrong with the file it names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {what}")]
pub struct TlsConfigError {
    key: String,
    what: String,
}

impl TlsConfigError {
    pub(super) fn new(key: impl Into<String>, what: impl Into<String>) -> TlsConfigError {
        TlsConfigError { key: key.into(), what: what.into() }
    }

    /// Without the setting, for a command that got the file from a flag.
    pub fn what(&self) -> &str {
        &self.what
    }
}

/// A setting and the file it names, if any.
pub(super) type FileSetting<'a> = (String, Option<&'a PathBuf>);

/// The content of the files now. A file that cannot be read is kept as the reason.
pub(super) struct PemFiles {
    fingerprint: u64,
    files: Vec<PemFile>,
}

struct PemFile {
    key: String,
    path: PathBuf,
    bytes: Result<Vec<u8>, String>,
}

impl PemFiles {
    /// Reads them. The settings are part of the fingerprint: they may change while the files do not.
    pub(super) fn read<const COUNT: usize>(
        settings: &impl Debug,
        named: [FileSetting<'_>; COUNT],
    ) -> PemFiles {
        let mut fingerprint = hash::bytes(0, format!("{settings:?}").as_bytes());
        let mut files = Vec::new();
        for (key, path) in named.into_iter().filter_map(|(key, path)| Some((key, path?))) {
            let bytes = read(path);
            let content = bytes.as_ref().map_or_else(|why| why.as_bytes(), Vec::as_slice);
            fingerprint = hash::pair(fingerprint, hash::bytes(1, content));
            files.push(PemFile { key, path: path.clone(), bytes });
        }
        PemFiles { fingerprint, files }
    }

    /// A number that changes if any file or setting does.
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn file(&self, key: &str) -> Result<Option<(&PemFile, &[u8])>, TlsConfigError> {
        let Some(file) = self.files.iter().find(|it| it.key == key) else { return Ok(None) };
        match &file.bytes {
            Ok(bytes) => Ok(Some((file, bytes))),
            Err(why) => Err(file.error(why)),
        }
    }

    pub(super) fn certificates(
        &self,
        key: &str,
    ) -> Result<Option<Vec<CertificateDer<'static>>>, TlsConfigError> {
        let Some((file, bytes)) = self.file(key)? else { return Ok(None) };
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
        match certificates {
            Ok(certificates) if !certificates.is_empty() => Ok(Some(certificates)),
            Ok(_) => {
                Err(file
                    .error("holds no certificate; write a PEM file with -----BEGIN CERTIFICATE----- in it"))
            }
            Err(error) => Err(file.error(&error.to_string())),
        }
    }

    /// Of the certificate of this section, without its chain: clients need not use all of that.
    pub(super) fn validity(&self, section: &str) -> Option<Validity> {
        let certificates = self.certificates(&format!("{section}.cert")).ok()??;
        Validity::of(certificates.first()?)
    }

    pub(super) fn key(&self, key: &str) -> Result<Option<PrivateKeyDer<'static>>, TlsConfigError> {
        let Some((file, bytes)) = self.file(key)? else { return Ok(None) };
        let wanted = "holds no private key; write a PEM file with -----BEGIN PRIVATE KEY----- in it, without a passphrase";
        // The error of the PEM parser is dropped: it may quote the file.
        PrivateKeyDer::from_pem_slice(bytes).map(Some).map_err(|_| file.error(wanted))
    }

    /// A certificate and its private key: both, or neither.
    pub(super) fn pair(&self, cert: &str, key: &str) -> Result<Option<CertifiedKey>, TlsConfigError> {
        match (self.certificates(cert)?, self.key(key)?) {
            (Some(chain), Some(key)) => Ok(Some((chain, key))),
            (None, None) => Ok(None),
            (Some(_), None) => {
                Err(TlsConfigError::new(key, format!("is missing; name the private key of {cert}")))
            }
            (None, Some(_)) => {
                Err(TlsConfigError::new(cert, format!("is missing; name the certificate of {key}")))
            }
        }
    }

    pub(super) fn authorities(&self, key: &str) -> Result<Option<RootCertStore>, TlsConfigError> {
        let Some(certificates) = self.certificates(key)? else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            roots.add(certificate).map_err(|error| TlsConfigError::new(key, error.to_string()))?;
        }
        Ok(Some(roots))
    }
}

pub(super) type CertifiedKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl PemFile {
    fn error(&self, why: &str) -> TlsConfigError {
        TlsConfigError::new(self.key.clone(), format!("{}: {why}", self.path.display()))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    match bytes.len() as u64 > BYTES_MAX {
        true => Err(format!("is larger than {BYTES_MAX} bytes; name a PEM file")),
        false => Ok(bytes),
    }
}
