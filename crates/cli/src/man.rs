//! `maitre man --out FOLDER`: a manual page for the program and one for each command.
//!
//! They are generated from the same definitions as the help, so they cannot differ from it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command, value_parser};

pub fn command() -> Command {
    Command::new("man").about("Write manual pages, one for each command").arg(
        Arg::new("out")
            .long("out")
            .required(true)
            .value_name("FOLDER")
            .value_parser(value_parser!(PathBuf))
            .help("The folder, such as /usr/local/share/man/man1; created if missing."),
    )
}

pub fn run(matches: &ArgMatches, program: Command) -> anyhow::Result<ExitCode> {
    let Some(folder) = matches.get_one::<PathBuf>("out") else { anyhow::bail!("name a folder with --out") };
    write(program, folder)?;
    eprintln!(
        "wrote manual pages to {}; read them with man -l {}",
        folder.display(),
        folder.join("maitre.1").display()
    );
    Ok(ExitCode::SUCCESS)
}

fn write(program: Command, folder: &Path) -> anyhow::Result<()> {
    let here = || format!("write manual pages to {}", folder.display());
    std::fs::create_dir_all(folder).with_context(here)?;
    clap_mangen::generate_to(program, folder).with_context(here)
}
