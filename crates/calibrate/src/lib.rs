//! `maitre calibrate`: measures a live engine and writes its profile, which `engine`, `replay` and `tune` take.
//!
//! The engine model (`maitre-sim`) has six constants and five sizes. Sizes are read from the engine where it tells them.
//! The rest is measured from outside: `plan` says what to send, `live` sends it, `window` reads the token times, `fit`
//! solves for the constants, and `held_out` compares the result with requests that were not fitted. Only `live` and
//! `clock` touch the world; the tests calibrate every built-in profile in virtual time.

mod answer;
mod clock;
mod facts;
mod fill;
mod fit;
mod held_out;
mod live;
mod plan;
mod predict;
mod probe;
mod session;
mod show;
mod solve;
#[cfg(test)]
mod virtual_target;
mod window;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Arg, ArgMatches, Command, value_parser};
use maitre_config::environment::CALIBRATE_KEY;
use maitre_config::form::{Form as _, Time};
use maitre_console::{dial, out};
use maitre_net::address::Address;
use maitre_net::client::HttpClient;
use maitre_sim::profile::{Profile, file};

use facts::{EngineFacts, given};
use live::LiveEngine;
use session::{Calibration, SessionSettings};
use show::Subject;

const TIME: Duration = Duration::from_mins(3);
const TIME_MIN: Duration = Duration::from_secs(20);
const TIME_MAX: Duration = Duration::from_hours(1);

const ABOUT: &str = "\
Measure one live engine and write its profile, for `engine`, `replay` and `tune` with --profile FILE.

Sends completions of random token ids to the engine for about as long as --time says: single prompts, batches, a long \
prompt beside a short answer, repeated prompts, and traffic that is not fitted but predicted, to tell how good the \
profile is. Use an engine that serves nothing else meanwhile. Its cache is filled with the probes.";

pub fn command() -> Command {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let size = |name: &'static str, help: &'static str| {
        text(name, "N", help).value_parser(value_parser!(u32).range(1..))
    };
    let range = TIME_MIN..=TIME_MAX;
    Command::new("calibrate").about("Measure a live engine and write its profile").long_about(ABOUT).args([
        text("url", "URL", "The engine, as in http://127.0.0.1:8000").required(true),
        text("out", "FILE", "Where the profile goes").required(true).value_parser(value_parser!(PathBuf)),
        text("time", "DURATION", "How long to probe, 20s to 1h [default: 3m]")
            .value_parser(move |it: &str| Time(range.clone()).read(it)),
        text("model", "NAME", "The model to probe [default: the first of /v1/models]"),
        text("name", "NAME", "What to call the profile [default: the file's name]"),
        dial::arg(),
        text("key", "KEY", "Sent as a bearer token [default: the variable MAITRE_CALIBRATE_KEY]"),
        size("block-tokens", "Tokens in a block of the KV cache, if the engine does not say"),
        size("kv-tokens", "Tokens in the whole KV cache, if the engine does not say"),
        size("batch-tokens-max", "Tokens of a step at most, instead of measuring it"),
        size("running-max", "Requests that run at once at most, instead of measuring it"),
        size("context-tokens-max", "Prompt and answer together at most, if the engine does not say"),
    ])
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let order = Order::read(matches, std::env::var_os(CALIBRATE_KEY))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (engine, facts, found) = runtime.block_on(order.probe(matches, clock::seed()))?;
    let address = order.client.address().to_string();
    let subject = Subject { address: &address, model: &engine.model, facts: &facts };
    out::print(&show::report(&subject, &found))?;
    let profile = Profile { name: Box::leak(order.name.clone().into_boxed_str()), ..found.profile };
    let text = file::render(&profile, &show::comment(&subject, &found));
    std::fs::write(&order.out, text).with_context(|| format!("--out {}", order.out.display()))?;
    out::print(&format!("\nWrote {}.\n", order.out.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// What the flags say.
struct Order {
    client: HttpClient,
    out: PathBuf,
    name: String,
    time: Duration,
}

impl Order {
    fn read(matches: &ArgMatches, variable: Option<OsString>) -> anyhow::Result<Order> {
        let url: &String = matches.get_one("url").context("url")?;
        let address: Address = url.parse().context("--url")?;
        let ca = matches.get_one::<PathBuf>("ca");
        let dialer = dial::dialer(ca.map(PathBuf::as_path), [&address])?;
        let out: &PathBuf = matches.get_one("out").context("out")?;
        check_folder(out)?;
        Ok(Order {
            client: HttpClient::new(address, dialer, dial::key(matches, variable, CALIBRATE_KEY)?),
            name: name(matches, out)?,
            out: out.clone(),
            time: matches.get_one("time").copied().unwrap_or(TIME),
        })
    }

    async fn probe(
        &self,
        matches: &ArgMatches,
        seed: u64,
    ) -> anyhow::Result<(LiveEngine, EngineFacts, Calibration)> {
        let model = matches.get_one::<String>("model").map(String::as_str);
        let (mut engine, read) = LiveEngine::meet(self.client.clone(), model, self.time).await?;
        let size = |name: &str| matches.get_one::<u32>(name).map(|&it| u64::from(it));
        let facts = EngineFacts {
            block_tokens: given(size("block-tokens"), read.block_tokens),
            kv_tokens: given(size("kv-tokens"), read.kv_tokens),
            batch_tokens_max: given(size("batch-tokens-max"), read.batch_tokens_max),
            running_max: given(size("running-max"), read.running_max),
            context_tokens_max: given(size("context-tokens-max"), read.context_tokens_max),
            ..read
        };
        let watched = std::io::stderr().is_terminal();
        let progress = |done: usize, all: usize| {
            if watched {
                // A terminal that went away takes the line with it, not the run.
                let _ = write!(std::io::stderr(), "\rround {done} of {all} ");
            }
        };
        let settings = SessionSettings { facts: facts.clone(), time: self.time, seed };
        let found = session::calibrate(&mut engine, &settings, progress).await;
        if watched {
            eprintln!();
        }
        Ok((engine, facts, found?))
    }
}

/// Minutes of probing must not end with a folder that is not there.
fn check_folder(out: &Path) -> anyhow::Result<()> {
    let folder = out.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir(), "--out {}: there is no folder {}", out.display(), folder.display());
    ensure!(!out.is_dir(), "--out {}: it is a folder; name a file, as in profile.toml", out.display());
    Ok(())
}

/// A name that the file can have: read back, it is checked in the same way.
fn name(matches: &ArgMatches, out: &Path) -> anyhow::Result<String> {
    let stem = || out.file_stem().and_then(|it| it.to_str()).map(str::to_owned);
    let name =
        matches.get_one::<String>("name").cloned().or_else(stem).unwrap_or_else(|| "profile".to_owned());
    file::check_name(&name).map_err(|it| anyhow::anyhow!("--name: {it}"))?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(flags: &[&str], expected: &str) {
        let given = [&["calibrate", "--url", "http://127.0.0.1:1"], flags].concat();
        let matches = command().try_get_matches_from(given).unwrap();
        let error = Order::read(&matches, None).err().map(|it| format!("{it:#}")).unwrap_or_default();
        assert!(error.contains(expected) && error.is_empty() == expected.is_empty(), "{flags:?}: {error}");
    }

    #[test]
    fn wrong_flags_are_refused_before_anything_is_sent() {
        check(&["--out", "profile.toml"], "");
        check(&["--out", "absent/profile.toml"], "there is no folder absent");
        check(&["--out", "src"], "it is a folder");
        check(&["--out", "h200-8b.toml"], "--name: \"h200-8b\" is a built-in profile");
        check(&["--out", "h200-8b.toml", "--name", "ours"], "");
        check(&["--out", "x.toml", "--ca", "Cargo.toml"], "begins with https://");
        for (flag, value) in [("--time", "1s"), ("--kv-tokens", "0"), ("--running-max", "many")] {
            let given = ["calibrate", "--url", "http://a:1", "--out", "x.toml", flag, value];
            assert!(command().try_get_matches_from(given).is_err(), "{flag} {value}");
        }
    }
}
