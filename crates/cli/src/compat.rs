//! `maitre compat sglang -- FLAGS`: serves with the command line of another router, and prints what differs.
//!
//! Parses that command line, lists each flag that has no counterpart or another meaning, and starts; or
//! prints the settings as a config file. An unknown flag is an error: it may be an important one.

mod carry;
mod flag;
mod policy;
mod table;
mod words;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};
use maitre_console::out;

use crate::reload::Sources;
use crate::serve;
use flag::Old;

const EXAMPLES: &str = "\
Examples:
  maitre compat sglang -- --worker-urls http://10.0.0.1:8000 http://10.0.0.2:8000 --policy cache_aware
  maitre compat vllm-router --print -- --worker-urls http://10.0.0.1:8000 --port 8000 > maitre.toml";

/// For `--help` among the flags of the other router, which must not start anything.
const HELP: &str = "\
docs/compat.md lists the other router's flags and what becomes of each. With --print before the two dashes, this command
prints the settings that a command line becomes. `maitre serve --help` has the flags of Maitre.
";

pub fn command() -> Command {
    let of = |name: &'static str, about: &'static str| {
        let print = Arg::new("print")
            .long("print")
            .action(ArgAction::SetTrue)
            .help("Print the settings as a TOML file, and start nothing.");
        let flags = Arg::new("flags")
            .last(true)
            .num_args(0..)
            .action(ArgAction::Append)
            .value_name("FLAGS")
            .help("The flags of the other router, after two dashes.");
        Command::new(name).about(about).args([print, flags])
    };
    Command::new("compat")
        .about("Serve with the flags of sglang-router, smg or vllm-router")
        .before_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(of("sglang", "With the flags of sglang-router, or of smg").visible_alias("smg"))
        .subcommand(of("vllm-router", "With the flags of vllm-router"))
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let (old, matches) = match matches.subcommand() {
        Some(("sglang", matches)) => (Old::Sglang, matches),
        Some(("vllm-router", matches)) => (Old::VllmRouter, matches),
        _ => anyhow::bail!("name the router of these flags: sglang or vllm-router"),
    };
    let words: Vec<String> = matches.get_many("flags").into_iter().flatten().cloned().collect();
    let given = words::read(&words, &table::flags(old));
    if given.as_ref().is_ok_and(|given| given.iter().any(|it| it.flag.is_called("--help"))) {
        out::print(HELP)?;
        return Ok(ExitCode::SUCCESS);
    }
    let carried = match given.and_then(|given| carry::carry(old, &given)) {
        Ok(carried) => carried,
        Err(_) if old == Old::VllmRouter && words.iter().any(|it| is_of_stack(it)) => {
            return Ok(failed(&[STACK_ADVICE.to_owned()]));
        }
        Err(errors) => return Ok(failed(&errors)),
    };
    let is_print = matches.get_flag("print");
    // The file begins with the notes: a terminal that shows it needs them once.
    if !is_print || !io::stdout().is_terminal() || !carried.missing.is_empty() {
        carried.notes.iter().for_each(|note| eprintln!("{note}"));
    }
    if !carried.missing.is_empty() {
        return Ok(failed(&carried.missing));
    }
    if is_print {
        out::print(&carried.toml)?;
        return Ok(ExitCode::SUCCESS);
    }
    match carried.config() {
        Ok(config) => serve::run_with(Sources::Made(Box::new(config))),
        Err(errors) => Ok(failed(&[errors])),
    }
}

/// Flags that only the router of vLLM's production stack has, a program that is called vllm-router too.
const STACK: [&str; 5] =
    ["--static-backends", "--static-models", "--routing-logic", "--session-key", "--k8s-label-selector"];

const STACK_ADVICE: &str = "\
these flags are of the router of vLLM's production stack, another program, which compat does not read; write for them:
  --static-backends A,B       maitre serve --worker A --worker B
  --service-discovery k8s     --discovery-from 'kubernetes:NAMESPACE?pods=SELECTOR&port=PORT'
  --routing-logic session     --strategy sticky-session --session-header NAME
  --routing-logic roundrobin  --strategy round-robin";

fn is_of_stack(word: &str) -> bool {
    STACK.contains(&word.split('=').next().unwrap_or(word))
}

fn failed(errors: &[String]) -> ExitCode {
    errors.iter().for_each(|error| eprintln!("{error}"));
    ExitCode::FAILURE
}
