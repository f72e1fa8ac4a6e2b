//! The flags of `maitre engine` about KV that moves between engines.

use std::net::{Ipv4Addr, SocketAddr};

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches, value_parser};
use maitre_console::flag;
use maitre_sim::http::transfer::{
    BootstrapConfig, Connector, LoadFailure, NixlConfig, PeerConfig, RoomRole, TransferConfig,
};
use maitre_sim::profile::Profile;

/// The flags that not every connector has.
const FLAGS_OF: [(&str, &[&str]); 6] = [
    ("kv-lease", &["nixl"]),
    ("kv-handshake-timeout", &["nixl"]),
    ("kv-load-failure", &["nixl"]),
    ("kv-timeout", &["p2p", "sglang"]),
    ("kv-lost-after", &["sglang"]),
    ("role", &["sglang"]),
];

pub(super) fn args() -> Vec<Arg> {
    let choice = |name: &'static str, values: &'static [&'static str], help: &'static str| {
        flag::value(name, "NAME").value_parser(PossibleValuesParser::new(values)).help(help)
    };
    let duration = |name: &'static str, help: &'static str| {
        flag::value(name, "DURATION").value_parser(maitre_config::duration).help(help)
    };
    let mut args = vec![
        choice(
            "kv-load-failure",
            &["fail", "recompute"],
            "What becomes of a request whose KV cannot be fetched: an error, or a prefill [default: fail]",
        ),
        duration("kv-lease", "How long the blocks of a prefill leg are held [default: 30s]"),
        duration("kv-handshake-timeout", "How long an unknown engine is waited for [default: 5s]"),
        duration(
            "kv-timeout",
            "How long another engine is waited for [default: 30s with p2p, 300s with sglang]",
        ),
        duration("kv-lost-after", "How long it takes to notice that a prefill engine is dead [default: 10s]"),
        choice("role", &["prefill", "decode"], "What an SGLang engine does"),
        duration(
            "kv-link-floor",
            "What every transfer of KV to this engine takes [default: 26ms; 0ms with the profile instant]",
        ),
        flag::value("kv-link-bandwidth", "GB/S").value_parser(parse_bandwidth).help(
            "Gigabytes of KV a second that reach this engine [default: 17; unlimited with the profile \
                 instant]",
        ),
        flag::value("kv-token-bytes", "N")
            .value_parser(value_parser!(u32).range(1..))
            .help("Bytes of KV for each token [default: those of the profile's model]"),
    ];
    args = args.into_iter().map(|it| it.requires("kv-transfer")).collect();
    let help = "Exchange KV with other engines: prefill and decode as with vLLM's NIXL connector (nixl) or with \
                SGLang (sglang), or pulls from peers as with vLLM's peer-to-peer tier (p2p)";
    args.insert(0, choice("kv-transfer", &["nixl", "p2p", "sglang"], help));
    args
}

/// The connector, if there is to be one. Its address is set later.
pub(super) fn read(matches: &ArgMatches, profile: &Profile) -> anyhow::Result<Option<TransferConfig>> {
    let Some(name) = matches.get_one::<String>("kv-transfer") else { return Ok(None) };
    for (flag, connectors) in FLAGS_OF {
        if matches.contains_id(flag) && !connectors.contains(&name.as_str()) {
            anyhow::bail!("--{flag}: only with --kv-transfer {}", connectors.join(" or "));
        }
    }
    let connector = match name.as_str() {
        "nixl" => Connector::Nixl(nixl(matches)),
        "p2p" => {
            let mut config = PeerConfig::default();
            set(&mut config.timeout, matches, "kv-timeout");
            Connector::Peer(config)
        }
        "sglang" => Connector::Bootstrap(bootstrap(matches)?),
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

fn bootstrap(matches: &ArgMatches) -> anyhow::Result<BootstrapConfig> {
    let role = match matches.get_one::<String>("role").map(String::as_str) {
        Some("prefill") => RoomRole::Prefill,
        Some(_) => RoomRole::Decode,
        None => anyhow::bail!("--kv-transfer sglang: write --role prefill or --role decode too"),
    };
    let mut config = BootstrapConfig::new(role);
    set(&mut config.timeout, matches, "kv-timeout");
    set(&mut config.lost_after, matches, "kv-lost-after");
    Ok(config)
}

/// Replaces a default by the flag's value.
pub(super) fn set<T: Copy + Send + Sync + 'static>(value: &mut T, matches: &ArgMatches, flag: &str) {
    if let Some(&given) = matches.get_one::<T>(flag) {
        *value = given;
    }
}

/// Bytes a second from gigabytes.
pub(super) fn parse_bandwidth(text: &str) -> Result<f64, String> {
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
        assert_eq!(config.connector, Connector::Nixl(NixlConfig::default()));
        assert_eq!((config.link.floor.as_millis(), config.link.token_bytes), (26, 256 << 10));
        assert!(parse(&["--kv-transfer", "nixl"], &INSTANT).unwrap().link.floor.is_zero());
    }

    #[test]
    fn every_default_can_be_changed() {
        let flags = "--kv-transfer nixl --kv-lease 2s --kv-handshake-timeout 50ms --kv-load-failure recompute \
                     --kv-link-floor 1ms --kv-link-bandwidth 0.5 --kv-token-bytes 1000";
        let config = parse(&flags.split_whitespace().collect::<Vec<_>>(), &INSTANT).unwrap();
        let nixl = NixlConfig {
            lease: Duration::from_secs(2),
            handshake_timeout: Duration::from_millis(50),
            on_failure: LoadFailure::Recompute,
        };
        assert_eq!(config.connector, Connector::Nixl(nixl));
        let link = config.link;
        assert_eq!((link.floor.as_millis(), link.bytes_per_second, link.token_bytes), (1, 5e8, 1_000));
        let config = parse(&["--kv-transfer", "p2p", "--kv-timeout", "2s"], &INSTANT).unwrap();
        assert_eq!(config.connector, Connector::Peer(PeerConfig { timeout: Duration::from_secs(2) }));
        let flags = "--kv-transfer sglang --role decode --kv-timeout 3s --kv-lost-after 1s";
        let config = parse(&flags.split_whitespace().collect::<Vec<_>>(), &INSTANT).unwrap();
        let bootstrap = BootstrapConfig {
            role: RoomRole::Decode,
            timeout: Duration::from_secs(3),
            lost_after: Duration::from_secs(1),
        };
        assert_eq!(config.connector, Connector::Bootstrap(bootstrap));
    }

    #[track_caller]
    fn check_refused(flags: &[&str], expected: &str) {
        let matches = crate::engine::command().get_matches_from([&["engine"], flags].concat());
        assert_eq!(read(&matches, &INSTANT).unwrap_err().to_string(), expected);
    }

    #[test]
    fn flags_of_a_connector_need_it() {
        let command = crate::engine::command();
        assert!(command.try_get_matches_from(["engine", "--kv-lease", "2s"]).is_err());
        check_refused(
            &["--kv-transfer", "p2p", "--kv-lease", "2s"],
            "--kv-lease: only with --kv-transfer nixl",
        );
        check_refused(
            &["--kv-transfer", "nixl", "--kv-timeout", "2s"],
            "--kv-timeout: only with --kv-transfer p2p or sglang",
        );
        check_refused(
            &["--kv-transfer", "sglang"],
            "--kv-transfer sglang: write --role prefill or --role decode too",
        );
        assert!(parse_bandwidth("0").is_err() && parse_bandwidth("fast").is_err());
    }
}
