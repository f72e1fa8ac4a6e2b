//! Why there is no TLS with somebody: a closed list, so that whoever tells it can say what to do about it in the words
//! of their own settings or flags.

use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError, Error};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoTls {
    /// Nobody we trust has signed its certificate.
    Unsigned,
    /// Its certificate is for other names; the first is what was expected.
    Misnamed(String, Vec<String>),
    Expired,
    NotYetValid,
    /// Something else is wrong with its certificate.
    Unacceptable(String),
    /// It does not accept who we are: it wants a certificate, or another one.
    Unwelcome(String),
    /// It does not speak TLS.
    Plain,
    /// It ended the handshake, and said so.
    Ended(String),
    /// It closed the connection in the middle of the handshake, without a word.
    Closed,
    Failed(String),
}

impl NoTls {
    /// What TLS says in an error; none if the error is not one of TLS.
    pub fn of(error: &io::Error) -> Option<NoTls> {
        let error = error.get_ref()?.downcast_ref::<Error>()?;
        Some(match error {
            Error::InvalidCertificate(why) => distrusted(why),
            Error::AlertReceived(alert) => match alert {
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::AccessDenied
                | AlertDescription::UnknownCA => NoTls::Unwelcome(format!("{alert:?}")),
                alert => NoTls::Ended(format!("{alert:?}")),
            },
            Error::InvalidMessage(_) => NoTls::Plain,
            error => NoTls::Failed(error.to_string()),
        })
    }

    /// The same of an error that may have one of TLS somewhere beneath it.
    pub fn beneath(error: &(dyn std::error::Error + 'static)) -> Option<NoTls> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(why) = error.downcast_ref().and_then(NoTls::of) {
                return Some(why);
            }
            next = error.source();
        }
        None
    }

    /// Of a handshake that came to nothing.
    pub(super) fn handshake(error: &io::Error) -> NoTls {
        NoTls::of(error).unwrap_or_else(|| match error.kind() {
            io::ErrorKind::UnexpectedEof => NoTls::Closed,
            _ => NoTls::Failed(error.to_string()),
        })
    }

    /// Whether what is there has answered as only TLS does.
    pub fn speaks_tls(&self) -> bool {
        !matches!(self, NoTls::Plain | NoTls::Closed | NoTls::Failed(_))
    }

    /// What is wrong, and which setting of the section mends it.
    pub(crate) fn told(&self, section: &str) -> String {
        match self {
            NoTls::Unsigned => format!("{self}; name its authority in {section}.ca"),
            NoTls::Misnamed(..) => format!("{self}; {section}.server_name can say which name to expect"),
            NoTls::Unwelcome(_) => format!("{self}; see {section}.cert and {section}.key"),
            NoTls::Plain => format!("{self}; write http:// if that is how it is reached"),
            _ => self.to_string(),
        }
    }
}

/// What is wrong, without what to do.
impl fmt::Display for NoTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoTls::Unsigned => f.write_str("its certificate is not signed by anyone we trust"),
            NoTls::Misnamed(expected, names) if names.is_empty() => {
                write!(f, "its certificate is not for {expected}")
            }
            NoTls::Misnamed(expected, names) => {
                write!(f, "its certificate is not for {expected}, but for {}", names.join(", "))
            }
            NoTls::Expired => f.write_str("its certificate has expired"),
            NoTls::NotYetValid => f.write_str("its certificate is not valid yet"),
            NoTls::Unacceptable(why) => write!(f, "its certificate cannot be accepted: {why}"),
            NoTls::Unwelcome(alert) => write!(f, "it does not accept who we are ({alert})"),
            NoTls::Plain => f.write_str("it does not speak TLS"),
            NoTls::Ended(alert) => write!(f, "it ended the TLS connection: {alert}"),
            NoTls::Closed => f.write_str("it closed the connection in the middle of the TLS handshake"),
            NoTls::Failed(why) => write!(f, "the TLS handshake failed: {why}"),
        }
    }
}

fn distrusted(why: &CertificateError) -> NoTls {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => NoTls::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => NoTls::NotYetValid,
        // The second is an authority of the same name with another key, as after it was made anew.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => NoTls::Unsigned,
        CertificateError::NotValidForNameContext { expected, presented } => {
            NoTls::Misnamed(expected.to_str().into_owned(), presented.clone())
        }
        CertificateError::NotValidForName => NoTls::Misnamed("the name we expect".to_owned(), Vec::new()),
        why => NoTls::Unacceptable(why.to_string()),
    }
}
