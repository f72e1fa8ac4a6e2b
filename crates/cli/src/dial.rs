//! How `top`, `explain`, `bench` and `doctor` reach an address that somebody typed: by TLS if it begins with `https`,
//! believing one authority or those that browsers trust, and with the flag that mends what TLS finds wrong.
//!
//! Left out: certificates of our own, and names other than the address's host. Who needs those has settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{anyhow, ensure};
use clap::{Arg, value_parser};
use maitre_proxy::settings::WorkerTls;
use maitre_proxy::{Address, Dialer, NoTls};

/// Who vouches for what is reached by TLS.
pub(crate) fn arg() -> Arg {
    Arg::new("ca")
        .long("ca")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help("Who signs the certificate of an https:// address, as PEM [default: the authorities that browsers trust]")
}

/// Dials these addresses. Who only has plain ones needs no authority, and is told so.
pub(crate) fn dialer<'a>(
    ca: Option<&Path>,
    addresses: impl IntoIterator<Item = &'a Address>,
) -> anyhow::Result<Arc<Dialer>> {
    ensure!(
        ca.is_none() || addresses.into_iter().any(Address::is_tls),
        "--ca goes with an address that begins with https://, and none does"
    );
    let settings = WorkerTls { ca: ca.map(Path::to_owned), ..WorkerTls::default() };
    Ok(Arc::new(Dialer::load("tls", &settings).map_err(|it| anyhow!("--ca {}", it.what()))?))
}

/// What is wrong, and what to write instead.
pub(crate) fn told(why: &NoTls) -> String {
    let mend = match why {
        NoTls::Unsigned => "name its authority with --ca FILE",
        NoTls::Misnamed(..) => "write the address with a name that it is for",
        NoTls::Expired | NoTls::NotYetValid => "renew it, or mend this machine's clock",
        NoTls::Unwelcome(_) => {
            "it wants a certificate of its clients, which this command has none of; ask it from where it wants none"
        }
        NoTls::Unacceptable(_) => {
            "have it made anew: one for servers, with the host's name in it, and not an authority's own (CA:FALSE)"
        }
        NoTls::Plain => "write http:// if that is how it is reached",
        NoTls::Ended(_) | NoTls::Closed | NoTls::Failed(_) => "see the log of whoever listens there",
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
