//! The flags of `maitre engine` about KV that moves between engines.

use std::net::{Ipv4Addr, SocketAddr};

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, value_parser};
use maitre_sim::http::transfer::{Connector, LoadFailure, NixlConfig, TransferConfig};
use maitre_sim::profile::Profile;

pub(super) fn args() -> Vec<Arg> {
    let choice = |name: &'static str, values: &'static [&'static str], help: &'static str| {
        Arg::new(name).long(name).value_parser(PossibleValuesParser::new(values)).help(help)
    };
    let duration = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("DURATION").value_parser(maitre_config::duration).help(help)
    };
    let mut args = vec![
        choice("kv-load-failure", &["fail", "recompute"], "What becomes of a request whose KV cannot be fetched: an error, or a prefill [default: fail]"),
        duration("kv-lease", "How long the blocks of a prefill leg are held [default: 30s]"),
        duration("kv-handshake-timeout", "How long an unknown engine is waited for [default: 5s]"),
        duration("kv-link-floor", "What every transfer of KV to this engine takes [default: 26ms; 0ms with the profile instant]"),
        Arg::new("kv-link-bandwidth")
            .long("kv-link-bandwidth")
            .value_name("GB/S")
            .value_parser(parse_bandwidth)
            .help("Gigabytes of KV a second that reach this engine [default: 17; unlimited with the profile instant]"),
        Arg::new("kv-token-bytes")
            .long("kv-token-bytes")
            .value_name("N")
            .value_parser(value_parser!(u32).range(1..))
            .help("Bytes of KV for each token [default: those of the profile's model]"),
    ];
    args = args.into_iter().map(|it| it.requires("kv-transfer")).collect();
    let help = "Exchange KV with other engines as vLLM's NIXL connector does, in pull mode";
    args.insert(0, choice("kv-transfer", &["nixl"], help));
    args
}

/// The connector, if there is to be one. Its address is set later.
pub(super) fn read(matches: &ArgMatches, profile: &Profile) -> anyhow::Result<Option<TransferConfig>> {
    let Some(name) = matches.get_one::<String>("kv-transfer") else { return Ok(None) };
    let connector = match name.as_str() {
        "nixl" => Connector::Nixl(nixl(matches)),
        other => anyhow::bail!("--kv-transfer {other}: not known"),
    };
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut config = TransferConfig::new(connector, anywhere, profile);
    set(&mut config.link.floor, matches, "kv-link-floor");
    set(&mut config.link.bytes_per_second, matches, "kv-link-bandwidth");
    set(&mut config.link.token_bytes, matches, "kv-token-bytes");
    Ok(Some(config))
}

fn nixl(matches: &ArgMatches) -> NixlConfig {
    let mut config = NixlConfig::default();
    set(&mut config.lease, matches, "kv-lease");
    set(&mut config.handshake_timeout, matches, "kv-handshake-timeout");
    let policy = matches.get_one::<String>("kv-load-failure");
    if policy.is_some_and(|it| it == "recompute") {
        config.on_failure = LoadFailure::Recompute;
    }
    config
}

/// Replaces a default by the flag's value.
fn set<T: Copy + Send + Sync + 'static>(value: &mut T, matches: &ArgMatches, flag: &str) {
    if let Some(&given) = matches.get_one::<T>(flag) {
        *value = given;
    }
}

/// Bytes a second from gigabytes.
fn parse_bandwidth(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gigabytes) if (0.001..=100_000.0).contains(&gigabytes) => Ok(gigabytes * 1e9),
        _ => Err("write a number between 0.001 and 100000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    use maitre_sim::profile::{H100X2_32B, INSTANT};

    fn parse(flags: &[&str], profile: &Profile) -> Option<TransferConfig> {
        let matches = crate::engine::command().get_matches_from([&["engine"], flags].concat());
        read(&matches, profile).unwrap()
    }

    #[test]
    fn there_is_no_connector_by_default() {
        assert!(parse(&[], &INSTANT).is_none());
    }

    #[test]
    fn defaults_are_those_of_vllm_and_of_the_profile() {
        let config = parse(&["--kv-transfer", "nixl"], &H100X2_32B).unwrap();
        let Connector::Nixl(nixl) = config.connector;
        assert_eq!(nixl, NixlConfig::default());
        assert_eq!((config.link.floor.as_millis(), config.link.token_bytes), (26, 256 << 10));
        assert!(parse(&["--kv-transfer", "nixl"], &INSTANT).unwrap().link.floor.is_zero());
    }

    #[test]
    fn every_default_can_be_changed() {
        let flags = "--kv-transfer nixl --kv-lease 2s --kv-handshake-timeout 50ms --kv-load-failure recompute \
                     --kv-link-floor 1ms --kv-link-bandwidth 0.5 --kv-token-bytes 1000";
        let config = parse(&flags.split_whitespace().collect::<Vec<_>>(), &INSTANT).unwrap();
        let Connector::Nixl(nixl) = config.connector;
        assert_eq!(
            nixl,
            NixlConfig {
                lease: Duration::from_secs(2),
                handshake_timeout: Duration::from_millis(50),
                on_failure: LoadFailure::Recompute
            }
        );
        let link = config.link;
        assert_eq!((link.floor.as_millis(), link.bytes_per_second, link.token_bytes), (1, 5e8, 1_000));
    }

    #[test]
    fn flags_of_a_connector_need_one() {
        let command = crate::engine::command();
        assert!(command.try_get_matches_from(["engine", "--kv-lease", "2s"]).is_err());
        assert!(parse_bandwidth("0").is_err() && parse_bandwidth("fast").is_err());
    }
}
