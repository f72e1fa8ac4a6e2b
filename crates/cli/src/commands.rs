//! The list of commands: what `maitre -h` shows, in which order, and what each one runs.
//!
//! A command is one row. Clap would print one long list; this one has groups, and a test keeps it on one screen.

use std::process::ExitCode;

use clap::{ArgMatches, Command};

use maitre_calibrate as calibrate;
use maitre_doctor as doctor;
use maitre_replay as replay;
use maitre_replay::tune;

use crate::{
    bench, check, compat, completions, demo, drain, engine, explain, generate, key, man, picker, serve, top,
};

/// The help of the whole program fits two screens of 24 lines.
pub const HELP_LINES_MAX: usize = 40;

const EXAMPLES: &str = "\
Examples:
  maitre demo                                  four simulated engines, the router, live traffic
  maitre serve --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000
  maitre check maitre.toml                     every error in a config file at once
  maitre doctor --config maitre.toml           what is wrong with the engines, and how to fix it
  maitre top                                   a running router, live, in the terminal
  maitre compat sglang -- --worker-urls http://10.0.0.1:8000 --policy cache_aware
  maitre replay --trace traces/conversation.jsonl.gz --strategy all
  maitre tune --trace traces/conversation.jsonl.gz --target 'ttft_mean<2s'";

const TEMPLATE: &str = "{before-help}{about}\n\n{usage-heading} {usage}{after-help}";

const FOOT: &str = "Options: -h, --help and -V, --version; each command has a -h of its own.";

struct CommandRow {
    command: fn() -> Command,
    run: Run,
}

/// What a command needs to run.
enum Run {
    Alone(fn(&ArgMatches) -> anyhow::Result<ExitCode>),
    /// With the definition of the whole program, to describe it.
    WithProgram(fn(&ArgMatches, Command) -> anyhow::Result<ExitCode>),
}

struct Group {
    title: &'static str,
    rows: &'static [CommandRow],
}

const fn row(command: fn() -> Command, run: fn(&ArgMatches) -> anyhow::Result<ExitCode>) -> CommandRow {
    CommandRow { command, run: Run::Alone(run) }
}

static GROUPS: &[Group] = &[
    Group {
        title: "Every day",
        rows: &[
            row(serve::command, serve::run),
            row(picker::command, picker::run),
            row(check::command, check::run),
            row(top::command, top::run),
            row(explain::command, explain::run),
            row(drain::command, drain::run),
            row(doctor::command, doctor::run),
            row(demo::command, demo::run),
        ],
    },
    Group {
        title: "Laboratory",
        rows: &[
            row(replay::command, replay::run),
            row(tune::command, tune::run),
            row(generate::command, generate::run),
            row(bench::command, bench::run),
            row(engine::command, engine::run),
            row(calibrate::command, calibrate::run),
        ],
    },
    Group {
        title: "Housekeeping",
        rows: &[
            row(key::command, key::run),
            row(compat::command, compat::run),
            CommandRow { command: completions::command, run: Run::WithProgram(completions::run) },
            CommandRow { command: man::command, run: Run::WithProgram(man::run) },
        ],
    },
];

/// The whole program, as clap knows it.
pub fn command() -> Command {
    let program = Command::new("maitre")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Sends each request to the LLM worker that answers it first, and says why.")
        .before_help(EXAMPLES)
        .after_help(list())
        .help_template(TEMPLATE)
        .subcommand_required(true)
        .arg_required_else_help(true);
    rows().fold(program, |program, row| program.subcommand((row.command)()))
}

/// Runs the command that was given.
pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let Some((name, matches)) = matches.subcommand() else { anyhow::bail!("name a command") };
    match rows().find(|row| (row.command)().get_name() == name).map(|it| &it.run) {
        Some(Run::Alone(run)) => run(matches),
        Some(Run::WithProgram(run)) => run(matches, command()),
        None => anyhow::bail!("unknown command {name:?}"),
    }
}

fn rows() -> impl Iterator<Item = &'static CommandRow> {
    GROUPS.iter().flat_map(|group| group.rows)
}

/// The commands by group, a line each.
fn list() -> String {
    let line = |row: &CommandRow| {
        let command = (row.command)();
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        format!("  {:<12} {about}\n", command.get_name())
    };
    let group =
        |group: &Group| format!("{}:\n{}", group.title, group.rows.iter().map(line).collect::<String>());
    let groups: Vec<String> = GROUPS.iter().map(group).collect();
    format!("{}\n{FOOT}", groups.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A terminal of common width; help that wraps there has more lines than it seems.
    const COLUMNS: usize = 100;

    #[test]
    fn the_help_fits_a_screen_and_begins_with_examples() {
        let help = command().render_help().to_string();
        let lines: Vec<&str> = help.lines().collect();
        assert!(lines.len() <= HELP_LINES_MAX, "{} lines:\n{help}", lines.len());
        assert_eq!(lines[0], "Examples:");
        let wide: Vec<&&str> = lines.iter().filter(|it| it.chars().count() > COLUMNS).collect();
        assert!(wide.is_empty(), "{wide:?}");
    }

    #[test]
    fn every_command_is_in_the_list_once_with_its_sentence() {
        let help = command().render_help().to_string();
        for row in rows() {
            let command = (row.command)();
            let about = command.get_about().expect("a sentence").to_string();
            let lines = help.lines().filter(|it| it.split_whitespace().next() == Some(command.get_name()));
            let found: Vec<&str> = lines.filter(|it| it.ends_with(&about)).collect();
            assert_eq!(found.len(), 1, "{}:\n{help}", command.get_name());
        }
    }

    #[test]
    fn clap_accepts_all_definitions() {
        command().debug_assert();
    }
}
