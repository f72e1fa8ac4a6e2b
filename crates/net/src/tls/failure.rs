//! Why a TLS connection failed: a closed list, so that each caller can add what to do, in terms of its own settings or
//! flags.

use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError, Error};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsFailure {
    /// No authority that we trust signed the server's certificate.
    UntrustedIssuer,
    /// The server's certificate is for other names: the expected name, and those it is for.
    WrongName(String, Vec<String>),
    Expired,
    NotYetValid,
    /// The server's certificate has another fault.
    InvalidCertificate(String),
    /// The server wants a client certificate, or another one.
    ClientRejected(String),
    /// The server does not speak TLS.
    NotTls,
    /// The server ended the handshake with an alert.
    Alert(String),
    /// The server closed the connection during the handshake, without an alert.
    Closed,
    Other(String),
}

impl TlsFailure {
    /// The TLS failure in an I/O error, if it is one.
    pub fn in_io(error: &io::Error) -> Option<TlsFailure> {
        let error = error.get_ref()?.downcast_ref::<Error>()?;
        Some(match error {
            Error::InvalidCertificate(why) => certificate_failure(why),
            Error::AlertReceived(alert) => match alert {
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::AccessDenied
                | AlertDescription::UnknownCA => TlsFailure::ClientRejected(format!("{alert:?}")),
                alert => TlsFailure::Alert(format!("{alert:?}")),
            },
            Error::InvalidMessage(_) => TlsFailure::NotTls,
            error => TlsFailure::Other(error.to_string()),
        })
    }

    /// From the error of a failed handshake.
    pub(super) fn of_handshake(error: &io::Error) -> TlsFailure {
        TlsFailure::in_io(error).unwrap_or_else(|| match error.kind() {
            io::ErrorKind::UnexpectedEof => TlsFailure::Closed,
            _ => TlsFailure::Other(error.to_string()),
        })
    }

    /// Whether the server answered in a way that only a TLS server does.
    pub fn speaks_tls(&self) -> bool {
        !matches!(self, TlsFailure::NotTls | TlsFailure::Closed | TlsFailure::Other(_))
    }

    /// What is wrong, and which setting of the section to change.
    pub fn advice(&self, section: &str) -> String {
        match self {
            TlsFailure::UntrustedIssuer => format!("{self}; name its authority in {section}.ca"),
            TlsFailure::WrongName(..) => {
                format!("{self}; {section}.server_name can say which name to expect")
            }
            TlsFailure::ClientRejected(_) => format!("{self}; see {section}.cert and {section}.key"),
            TlsFailure::NotTls => format!("{self}; write http:// if that is how it is reached"),
            _ => self.to_string(),
        }
    }
}

/// What is wrong, without advice.
impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsFailure::UntrustedIssuer => f.write_str("its certificate is not signed by anyone we trust"),
            TlsFailure::WrongName(expected, names) if names.is_empty() => {
                write!(f, "its certificate is not for {expected}")
            }
            TlsFailure::WrongName(expected, names) => {
                write!(f, "its certificate is not for {expected}, but for {}", names.join(", "))
            }
            TlsFailure::Expired => f.write_str("its certificate has expired"),
            TlsFailure::NotYetValid => f.write_str("its certificate is not valid yet"),
            TlsFailure::InvalidCertificate(why) => write!(f, "its certificate cannot be accepted: {why}"),
            TlsFailure::ClientRejected(alert) => write!(f, "it does not accept who we are ({alert})"),
            TlsFailure::NotTls => f.write_str("it does not speak TLS"),
            TlsFailure::Alert(alert) => write!(f, "it ended the TLS connection: {alert}"),
            TlsFailure::Closed => f.write_str("it closed the connection in the middle of the TLS handshake"),
            TlsFailure::Other(why) => write!(f, "the TLS handshake failed: {why}"),
        }
    }
}

fn certificate_failure(why: &CertificateError) -> TlsFailure {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsFailure::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TlsFailure::NotYetValid
        }
        // A bad signature means an authority of the same name with another key, as after it was recreated.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => TlsFailure::UntrustedIssuer,
        CertificateError::NotValidForNameContext { expected, presented } => {
            TlsFailure::WrongName(expected.to_str().into_owned(), presented.clone())
        }
        CertificateError::NotValidForName => {
            TlsFailure::WrongName("the name we expect".to_owned(), Vec::new())
        }
        // An error of the verifier, whose text is the name of a variant. `openssl req -x509` makes authorities by default.
        CertificateError::Other(why) => TlsFailure::InvalidCertificate(match why.0.to_string() {
            name if name == "CaUsedAsEndEntity" => "it is an authority's own (CA:TRUE)".to_owned(),
            name => name,
        }),
        why => TlsFailure::InvalidCertificate(why.to_string()),
    }
}
