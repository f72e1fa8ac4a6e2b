//! `maitre engine`: simulated engines on consecutive ports, each speaking vLLM.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use maitre_sim::http::{Host, Settings};
use maitre_sim::profile::{self, Profile};

use crate::signals::Signals;

pub fn command() -> Command {
    let profiles = profile::ALL.map(|it| it.name);
    let number = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("N").value_parser(value_parser!(u32).range(1..)).help(help)
    };
    Command::new("engine").about("Run simulated engines that speak vLLM").args([
        Arg::new("listen")
            .long("listen")
            .value_name("ADDRESS")
            .default_value("127.0.0.1:9001")
            .value_parser(value_parser!(SocketAddr))
            .help("Address of the first engine; the others take the ports after it"),
        number("count", "How many engines").default_value("1"),
        Arg::new("profile")
            .long("profile")
            .value_name("NAME")
            .default_value("h200-8b")
            .value_parser(profiles)
            .help("Whose timing the engines have"),
        Arg::new("speedup")
            .long("speedup")
            .value_name("TIMES")
            .default_value("1")
            .value_parser(parse_speedup)
            .help("How many times faster than the profile"),
        number("kv-blocks", "Blocks in each KV cache [default: the profile's]"),
        number("block-size", "Tokens in a block [default: the profile's]"),
        Arg::new("model")
            .long("model")
            .value_name("NAME")
            .default_value("maitre-sim")
            .help("The model's name"),
        Arg::new("lora")
            .long("lora")
            .value_name("NAME")
            .action(ArgAction::Append)
            .help("A LoRA adapter's name; may be repeated"),
    ])
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let settings = settings(matches)?;
    let first: SocketAddr = *matches.get_one("listen").context("listen")?;
    let count: u32 = *matches.get_one("count").context("count")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        let mut hosts = Vec::new();
        for number in 0..count {
            let port = u32::from(first.port()) + number;
            let port = u16::try_from(port).with_context(|| format!("port {port} of engine {number}"))?;
            let host = Host::bind(SocketAddr::new(first.ip(), port), settings.clone()).await?;
            eprintln!("engine {number}: http://{}", host.addr());
            hosts.push(host);
        }
        signals.wait().await;
        Ok(ExitCode::SUCCESS)
    })
}

fn settings(matches: &ArgMatches) -> anyhow::Result<Settings> {
    let name: &String = matches.get_one("profile").context("profile")?;
    let mut profile = Profile::named(name).with_context(|| format!("no profile is called {name:?}"))?;
    if let Some(&blocks) = matches.get_one::<u32>("kv-blocks") {
        profile.kv_blocks = blocks;
    }
    if let Some(&tokens) = matches.get_one::<u32>("block-size") {
        profile.block_tokens = tokens;
    }
    let mut settings = Settings::new(profile);
    settings.speedup = *matches.get_one("speedup").context("speedup")?;
    settings.model.clone_from(matches.get_one::<String>("model").context("model")?);
    settings.adapters = matches.get_many::<String>("lora").unwrap_or_default().cloned().collect();
    Ok(settings)
}

/// A factor the clock can stand.
pub(crate) fn parse_speedup(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(times) if (0.001..=100_000.0).contains(&times) => Ok(times),
        _ => Err("write a number between 0.001 and 100000".to_owned()),
    }
}
