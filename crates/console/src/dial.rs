//! How `top`, `explain`, `bench` and `doctor` reach an address that somebody typed: by TLS if it begins with `https`,
//! believing one authority or those that browsers trust, with the flag that mends what TLS finds wrong; and the key that
//! is shown there.
//!
//! Left out: certificates of our own, and names other than the address's host. Who needs those has settings.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, ensure};
use clap::{Arg, ArgMatches, value_parser};
use http::HeaderValue;
use maitre_net::address::Address;
use maitre_net::dial::Dialer;
use maitre_net::tls::TlsClientSettings;
use maitre_net::tls::TlsFailure;

/// Who vouches for what is reached by TLS.
pub fn arg() -> Arg {
    Arg::new("ca")
        .long("ca")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("Who signs the certificate of an https:// address, as PEM [default: the authorities that browsers trust]")
}

/// Dials these addresses. Who only has plain ones needs no authority, and is told so.
pub fn dialer<'a>(
    ca: Option<&Path>,
    addresses: impl IntoIterator<Item = &'a Address>,
) -> anyhow::Result<Arc<Dialer>> {
    ensure!(
        ca.is_none() || addresses.into_iter().any(Address::is_tls),
        "--ca goes with an address that begins with https://, and none does"
    );
    let settings = TlsClientSettings { ca: ca.map(Path::to_owned), ..TlsClientSettings::default() };
    Ok(Arc::new(Dialer::load("tls", &settings).map_err(|it| anyhow!("--ca {}", it.what()))?))
}

/// What is shown there as a bearer token: the flag `--key`, else what the environment has under `name`.
pub fn key(
    matches: &ArgMatches,
    variable: Option<OsString>,
    name: &'static str,
) -> anyhow::Result<Option<HeaderValue>> {
    // An empty variable counts as absent, as everywhere.
    let variable = variable.filter(|it| !it.is_empty());
    let (key, place) = match (matches.get_one::<String>("key"), variable) {
        (Some(key), _) => (key.clone(), "--key"),
        (None, Some(key)) => (key.into_string().unwrap_or("\n".to_owned()), name),
        (None, None) => return Ok(None),
    };
    // The key itself is not repeated: it would end in somebody's log.
    let mut value = HeaderValue::try_from(format!("Bearer {key}"))
        .ok()
        .with_context(|| format!("{place}: not a key that a header can carry"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// What is wrong, and what to write instead.
pub fn told(why: &TlsFailure) -> String {
    let mend = match why {
        TlsFailure::UntrustedIssuer => "name its authority with --ca FILE",
        TlsFailure::WrongName(..) => "write the address with a name that it is for",
        TlsFailure::Expired | TlsFailure::NotYetValid => "renew it, or mend this machine's clock",
        TlsFailure::ClientRejected(_) => {
            "it wants a certificate of its clients, which this command has none of; ask it from where it wants none"
        }
        TlsFailure::InvalidCertificate(_) => {
            "have it made anew: one for servers, with the host's name in it, and not an authority's own (CA:FALSE)"
        }
        TlsFailure::NotTls => "write http:// if that is how it is reached",
        TlsFailure::Alert(_) | TlsFailure::Closed | TlsFailure::Other(_) => {
            "see the log of whoever listens there"
        }
    };
    format!("{why}; {mend}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    #[test]
    fn an_authority_goes_with_tls_and_must_be_one() {
        let (plain, tls) = (address("http://a:1"), address("https://a:1"));
        let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let failed = |ca, address| format!("{:#}", dialer(ca, [address]).unwrap_err());
        assert!(failed(Some(file), &plain).contains("begins with https://"));
        assert!(failed(Some(Path::new("absent.pem")), &tls).starts_with("--ca absent.pem: No such file"));
        assert!(failed(Some(file), &tls).contains("Cargo.toml: holds no certificate"));
        assert!(dialer(None, [&plain]).is_ok() && dialer(None, [&plain, &tls]).is_ok());
    }
}
