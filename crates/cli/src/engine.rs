//! `maitre engine`: simulated engines on consecutive ports, each with vLLM's API.

mod store;
mod transfer;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use clap::{ArgAction, ArgMatches, Command, value_parser};
use maitre_base::chunk_reuse::{CHUNK_REUSE_FORM, ChunkReuse};
use maitre_console::flag;
use maitre_sim::events;
use maitre_sim::http::brand::Brand;
use maitre_sim::http::transfer::{Connector, TransferConfig};
use maitre_sim::http::{Host, HostConfig};
use maitre_sim::profile::{self, Profile};

use crate::signals::Signals;

pub fn command() -> Command {
    let number = |name: &'static str, help: &'static str| {
        flag::value(name, "N").value_parser(value_parser!(u32).range(1..)).help(help)
    };
    let port = |name: &'static str, help: &'static str| {
        flag::value(name, "PORT").value_parser(value_parser!(u16).range(1..)).help(help)
    };
    Command::new("engine").about("Run simulated engines with vLLM's API").args([
        flag::value("listen", "ADDRESS")
            .default_value("127.0.0.1:9001")
            .value_parser(maitre_config::form::socket)
            .help("Address of the first engine; the others take the ports after it"),
        number("count", "How many engines").default_value("1"),
        flag::value("profile", "NAME|FILE")
            .default_value("h200-8b")
            .value_parser(|it: &str| profile::file::find(it))
            .help(format!(
                "The hardware and model whose timing is simulated: {}, or a file from `maitre calibrate`",
                profile::ALL.map(|it| it.name).join(", ")
            )),
        flag::value("speedup", "TIMES")
            .default_value("1")
            .value_parser(parse_speedup)
            .help("Run this many times as fast as the profile"),
        number("kv-blocks", "Blocks in each KV cache [default: the profile's]"),
        number("block-size", "Tokens in a block [default: the profile's]"),
        number("max-model-len", "Tokens of a prompt and its answer together at most [default: the profile's]"),
        flag::value("model", "NAME")
            .default_value("maitre-sim")
            .help("The model's name"),
        flag::value("lora", "NAME")
            .action(ArgAction::Append)
            .help("A LoRA adapter's name; may be repeated"),
        flag::value("chunks", "PART")
            .value_parser(parse_chunks)
            .help(
                "Reuse KV at any position as LMCache's blending does: prompts are cut at \" # # \", and this part of a \
                 reused document is computed again, such as 0.15",
            ),
        port("events", "Port of the first engine's KV events; the others take the ports after it"),
        port("events-replay", "Port of the first engine's replay of KV events").requires("events"),
        port(
            "kv-port",
            "Port of the first engine's side channel; the others take the ports after it [default: any free ones]",
        )
        .requires("kv-transfer"),
    ])
    .args(transfer::args())
    .args(store::args())
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let mut settings = settings(matches)?;
    let ports = Ports::new(matches)?;
    let count = ports.count;
    settings.store = store::read(matches, &settings.engine.profile, count)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let mut hosts = Vec::new();
        for number in 0..count {
            let mut settings = HostConfig { events: ports.events(number), ..settings.clone() };
            settings.transfer.iter_mut().for_each(|it| it.listen = ports.side_channel(number));
            let host = Host::bind(ports.at(ports.listen, number), settings).await?;
            announce(number, &host);
            hosts.push(host);
        }
        tokio::select! {
            _ = signals.wait() => Ok(ExitCode::SUCCESS),
            () = all_died(&hosts) => {
                eprintln!("every engine was killed by a decode leg without remote_block_ids");
                Ok(ExitCode::FAILURE)
            }
        }
    })
}

async fn all_died(hosts: &[Host]) {
    for host in hosts {
        host.died().await;
    }
}

/// Where each engine listens: every kind of socket has a first port, and further engines take the ports after
/// it.
struct Ports {
    ip: IpAddr,
    listen: u16,
    events: Option<u16>,
    replay: Option<u16>,
    side_channel: Option<u16>,
    count: u16,
}

impl Ports {
    /// Checks that all ports exist and no two sockets use the same one.
    fn new(matches: &ArgMatches) -> anyhow::Result<Ports> {
        let first: SocketAddr = *matches.get_one("listen").context("listen")?;
        let count: u32 = *matches.get_one("count").context("count")?;
        let port = |name| matches.get_one::<u16>(name).copied();
        let ports = Ports {
            ip: first.ip(),
            listen: first.port(),
            events: port("events"),
            replay: port("events-replay"),
            side_channel: port("kv-port"),
            count: u16::try_from(count)
                .map_err(|_| anyhow!("--count {count}: there are only 65535 ports"))?,
        };
        let named = [
            ("--listen", Some(ports.listen)),
            ("--events", ports.events),
            ("--events-replay", ports.replay),
            ("--kv-port", ports.side_channel),
        ];
        let used: Vec<(&str, u16)> = named.into_iter().filter_map(|(name, it)| Some((name, it?))).collect();
        for (index, &(name, first)) in used.iter().enumerate() {
            if u32::from(first) + count > 1 << 16 {
                bail!("{name}: {count} ports from {first} on exceed 65535");
            }
            let near = used[..index].iter().find(|it| u32::from(it.1.abs_diff(first)) < count);
            if let Some((other, port)) = near {
                bail!("{name}: {count} ports from {first} on overlap those of {other}, from {port} on");
            }
        }
        Ok(ports)
    }

    fn at(&self, first: u16, number: u16) -> SocketAddr {
        SocketAddr::new(self.ip, first + number)
    }

    /// Port 0, which is any free one, unless a first port was given.
    fn side_channel(&self, number: u16) -> SocketAddr {
        self.side_channel.map_or(SocketAddr::new(self.ip, 0), |first| self.at(first, number))
    }

    fn events(&self, number: u16) -> Option<events::PublisherConfig> {
        let stream = self.at(self.events?, number);
        let replay = self.replay.map(|first| self.at(first, number));
        Some(events::PublisherConfig { replay, ..events::PublisherConfig::new(stream) })
    }
}

/// Prints the addresses of an engine.
fn announce(number: u16, host: &Host) {
    eprintln!("engine {number}: http://{}", host.addr());
    if let Some(addr) = host.side_channel() {
        eprintln!("engine {number} side channel: {addr}");
    }
    let Some(events) = host.events() else { return };
    match events.replay {
        Some(replay) => eprintln!("engine {number} events: tcp://{}, replay tcp://{replay}", events.stream),
        None => eprintln!("engine {number} events: tcp://{}", events.stream),
    }
}

fn settings(matches: &ArgMatches) -> anyhow::Result<HostConfig> {
    let mut profile: Profile = *matches.get_one("profile").context("profile")?;
    if let Some(&blocks) = matches.get_one::<u32>("kv-blocks") {
        profile.kv_blocks = blocks;
    }
    if let Some(&tokens) = matches.get_one::<u32>("block-size") {
        profile.block_tokens = tokens;
    }
    if let Some(&tokens) = matches.get_one::<u32>("max-model-len") {
        profile.context_tokens_max = tokens;
    }
    let mut settings = HostConfig::new(profile);
    settings.speedup = *matches.get_one("speedup").context("speedup")?;
    settings.model.clone_from(matches.get_one::<String>("model").context("model")?);
    settings.engine.chunks = matches.get_one("chunks").copied();
    settings.transfer = transfer::read(matches, &profile)?;
    if matches!(settings.transfer, Some(TransferConfig { connector: Connector::Bootstrap(_), .. })) {
        settings.brand = Brand::Sglang;
    }
    settings.adapters = matches.get_many::<String>("lora").unwrap_or_default().cloned().collect();
    Ok(settings)
}

fn parse_chunks(text: &str) -> Result<ChunkReuse, String> {
    text.parse().map_err(|()| format!("write {CHUNK_REUSE_FORM}"))
}

/// A speed factor that the clock supports.
pub(crate) fn parse_speedup(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(times) if (0.001..=100_000.0).contains(&times) => Ok(times),
        _ => Err("write a number between 0.001 and 100000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use maitre_sim::http::BindError;

    use super::*;

    #[track_caller]
    fn check(flags: &[&str], expected: Result<Option<(u16, Option<u16>)>, &str>) {
        let matches = command().get_matches_from([&["engine"], flags].concat());
        let events =
            |ports: Ports| ports.events(1).map(|it| (it.stream.port(), it.replay.map(|it| it.port())));
        match (Ports::new(&matches).map(events), expected) {
            (Ok(actual), Ok(expected)) => assert_eq!(actual, expected, "{flags:?}"),
            (Err(error), Err(part)) => assert!(format!("{error:#}").ends_with(part), "{error:#}"),
            (actual, expected) => panic!("{flags:?}: {actual:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn every_engine_has_ports_of_its_own() {
        check(&["--count", "2"], Ok(None));
        check(&["--count", "2", "--events", "9101"], Ok(Some((9102, None))));
        check(&["--count", "2", "--events", "9101", "--events-replay", "9201"], Ok(Some((9102, Some(9202)))));
    }

    #[test]
    fn flags_replace_what_the_profile_says() {
        let flags = ["engine", "--kv-blocks", "9000", "--block-size", "64", "--max-model-len", "400000"];
        let profile = settings(&command().get_matches_from(flags)).unwrap().engine.profile;
        assert_eq!(
            (profile.kv_blocks, profile.block_tokens, profile.context_tokens_max),
            (9_000, 64, 400_000)
        );
    }

    #[test]
    fn a_port_in_use_is_reported_once() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 9001));
        let error = anyhow::Error::from(BindError { addr, cause: std::io::ErrorKind::AddrInUse.into() });
        assert_eq!(format!("{error:#}"), "listen on 127.0.0.1:9001: address in use");
    }

    #[test]
    fn colliding_ports_are_refused_before_any_is_opened() {
        check(
            &["--count", "2", "--events", "9101", "--events-replay", "9102"],
            Err("overlap those of --events, from 9101 on"),
        );
        check(&["--count", "2", "--events", "9000"], Err("overlap those of --listen, from 9001 on"));
        check(&["--count", "2", "--events", "65535"], Err("exceed 65535"));
        check(&["--count", "70000"], Err("there are only 65535 ports"));
        check(
            &["--count", "2", "--kv-transfer", "nixl", "--kv-port", "9002"],
            Err("overlap those of --listen, from 9001 on"),
        );
    }
}
