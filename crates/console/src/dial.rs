//! How `top`, `explain`, `bench` and `doctor` connect to an address from the command line: the flag `--ca`, the key they
//! present, and what to type when TLS fails.
//!
//! Left out: client certificates, and server names other than the address's host. Settings have those.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, ensure};
use clap::{Arg, ArgMatches, value_parser};
use http::HeaderValue;
use maitre_net::address::Address;
use maitre_net::dial::Dialer;
use maitre_net::tls::{TlsClientSettings, TlsFailure};

/// The authority of an `https` address.
pub fn arg() -> Arg {
    Arg::new("ca")
        .long("ca")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("The authority that signed the certificate of an https:// address, as PEM [default: the authorities that browsers trust]")
}

/// A dialer for these addresses. An authority for plain ones only is an error.
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

/// The bearer token: the flag `--key`, else the environment variable `name`.
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
    // The error does not repeat the key: it would end up in a log.
    let mut value = HeaderValue::try_from(format!("Bearer {key}"))
        .ok()
        .with_context(|| format!("{place}: not a key that a header can carry"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// What is wrong with a TLS connection, and what to type instead.
pub fn advice(why: &TlsFailure) -> String {
    let mend = match why {
        TlsFailure::UntrustedIssuer => "name its authority with --ca FILE",
        TlsFailure::WrongName(..) => "write the address with one of those names",
        TlsFailure::Expired | TlsFailure::NotYetValid => "renew it, or set this machine's clock",
        TlsFailure::ClientRejected(_) => {
            "it wants a client certificate, which this command does not have; use a listener that wants none"
        }
        TlsFailure::InvalidCertificate(_) => {
            "have it issued anew: for servers, with the host's name in it, and not as an authority (CA:FALSE)"
        }
        TlsFailure::NotTls => "write http:// if that is how it is reached",
        TlsFailure::Alert(_) | TlsFailure::Closed | TlsFailure::Other(_) => "see the log of the server",
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
