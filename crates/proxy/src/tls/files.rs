//! PEM files, read whole, with a print to tell whether they changed, and turned into what rustls wants.

use std::fmt::Debug;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use maitre_base::hash;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The largest file. Chosen: four times the bundle that systems come with.
const BYTES_MAX: u64 = 1 << 20;

/// Which setting, and what is wrong with what it names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {what}")]
pub struct BadTls {
    key: String,
    what: String,
}

impl BadTls {
    pub(super) fn new(key: impl Into<String>, what: impl Into<String>) -> BadTls {
        BadTls { key: key.into(), what: what.into() }
    }

    /// Without the setting, for who was given the file in another way.
    pub fn what(&self) -> &str {
        &self.what
    }
}

/// A setting that may name a file.
pub(super) type Named<'a> = (String, Option<&'a PathBuf>);

/// What the named files hold now; a file that cannot be read is kept as the reason.
pub(super) struct Files {
    print: u64,
    read: Vec<One>,
}

struct One {
    key: String,
    path: PathBuf,
    bytes: Result<Vec<u8>, String>,
}

impl Files {
    /// Reads them. The settings themselves are part of the print: they may change where no file does.
    pub(super) fn read<const COUNT: usize>(settings: &impl Debug, named: [Named<'_>; COUNT]) -> Files {
        let mut print = hash::bytes(0, format!("{settings:?}").as_bytes());
        let mut read = Vec::new();
        for (key, path) in named.into_iter().filter_map(|(key, path)| Some((key, path?))) {
            let bytes = slurp(path);
            let seen = bytes.as_ref().map_or_else(|why| why.as_bytes(), Vec::as_slice);
            print = hash::pair(print, hash::bytes(1, seen));
            read.push(One { key, path: path.clone(), bytes });
        }
        Files { print, read }
    }

    /// A number that is another one if any file or setting is.
    pub(super) fn print(&self) -> u64 {
        self.print
    }

    fn one(&self, key: &str) -> Result<Option<(&One, &[u8])>, BadTls> {
        let Some(one) = self.read.iter().find(|it| it.key == key) else { return Ok(None) };
        match &one.bytes {
            Ok(bytes) => Ok(Some((one, bytes))),
            Err(why) => Err(one.bad(why)),
        }
    }

    pub(super) fn certificates(&self, key: &str) -> Result<Option<Vec<CertificateDer<'static>>>, BadTls> {
        let Some((one, bytes)) = self.one(key)? else { return Ok(None) };
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
        match certificates {
            Ok(certificates) if !certificates.is_empty() => Ok(Some(certificates)),
            Ok(_) => {
                Err(one.bad("holds no certificate; write a PEM file with -----BEGIN CERTIFICATE----- in it"))
            }
            Err(error) => Err(one.bad(&error.to_string())),
        }
    }

    pub(super) fn key(&self, key: &str) -> Result<Option<PrivateKeyDer<'static>>, BadTls> {
        let Some((one, bytes)) = self.one(key)? else { return Ok(None) };
        let wanted = "holds no private key; write a PEM file with -----BEGIN PRIVATE KEY----- in it, without a passphrase";
        // Whatever a PEM reader would say of it stays unsaid: it may quote the file.
        PrivateKeyDer::from_pem_slice(bytes).map(Some).map_err(|_| one.bad(wanted))
    }

    /// A certificate and its key: both, or neither.
    pub(super) fn pair(&self, cert: &str, key: &str) -> Result<Option<Pair>, BadTls> {
        match (self.certificates(cert)?, self.key(key)?) {
            (Some(chain), Some(key)) => Ok(Some((chain, key))),
            (None, None) => Ok(None),
            (Some(_), None) => Err(BadTls::new(key, format!("is missing; name the private key of {cert}"))),
            (None, Some(_)) => Err(BadTls::new(cert, format!("is missing; name the certificate of {key}"))),
        }
    }

    pub(super) fn authorities(&self, key: &str) -> Result<Option<RootCertStore>, BadTls> {
        let Some(certificates) = self.certificates(key)? else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            roots.add(certificate).map_err(|error| BadTls::new(key, error.to_string()))?;
        }
        Ok(Some(roots))
    }
}

pub(super) type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl One {
    fn bad(&self, why: &str) -> BadTls {
        BadTls::new(self.key.clone(), format!("{}: {why}", self.path.display()))
    }
}

fn slurp(path: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    match bytes.len() as u64 > BYTES_MAX {
        true => Err(format!("is larger than {BYTES_MAX} bytes; name a PEM file")),
        false => Ok(bytes),
    }
}
