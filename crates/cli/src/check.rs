//! `maitre check FILE`: prints every error in a config file at once, and starts nothing.
//!
//! Files that the config file names are read too. What is wrong with them is a warning, because the file may be for
//! another machine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};

use maitre_config as config;
use maitre_proxy::Router;

pub fn command() -> Command {
    Command::new("check").about("Check a config file and list every error in it").arg(
        Arg::new("file")
            .required(true)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("The config file, TOML or YAML"),
    )
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let Some(path) = matches.get_one::<PathBuf>("file") else { anyhow::bail!("name a file") };
    match config::check_file(path) {
        Ok(config) => {
            let (workers, strategy) = (config.settings.workers.len(), config.settings.brain.strategy);
            let keys = config.settings.keys.len();
            let path = path.display();
            config.warnings.iter().for_each(|it| eprintln!("{path}: {it}"));
            for error in Router::unusable_files(&config.settings) {
                eprintln!("{path}: warning: maitre serve does not start here: {error}");
            }
            let (workers, keys) = (count(workers, "worker"), count(keys, "key"));
            let sources = config.discovery.from.len();
            let found = if sources == 0 {
                String::new()
            } else {
                format!(" and {} of workers", count(sources, "source"))
            };
            eprintln!("{path}: ok: {workers}{found}, strategy {strategy}, {keys}");
            Ok(ExitCode::SUCCESS)
        }
        Err(errors) => {
            eprintln!("{errors}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}
