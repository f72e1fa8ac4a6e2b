//! `maitre completions SHELL`: prints the shell's completion script for our commands and flags.

use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use maitre_console::out;

const EXAMPLES: &str = "\
Examples:
  maitre completions bash > /etc/bash_completion.d/maitre
  maitre completions zsh > \"${fpath[1]}/_maitre\"
  maitre completions fish > ~/.config/fish/completions/maitre.fish";

pub fn command() -> Command {
    Command::new("completions").about("Print a completion script for a shell").before_help(EXAMPLES).arg(
        Arg::new("shell")
            .required(true)
            .value_name("SHELL")
            .value_parser(value_parser!(Shell))
            .help("The shell."),
    )
}

pub fn run(matches: &ArgMatches, program: Command) -> anyhow::Result<ExitCode> {
    let Some(&shell) = matches.get_one::<Shell>("shell") else { anyhow::bail!("name a shell") };
    out::print(&script(shell, program))?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell, mut program: Command) -> String {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut program, "maitre", &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::commands;

    #[test]
    fn the_script_of_every_shell_has_all_commands_and_flags() {
        for &shell in Shell::value_variants() {
            let script = script(shell, commands::command());
            for command in commands::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
            assert!(script.contains("timeouts-first-token"), "{shell}");
        }
    }
}
