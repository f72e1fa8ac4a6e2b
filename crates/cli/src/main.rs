//! The binary `maitre`.

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use maitre_cli::{bench, check, demo, engine, generate, replay, serve, tune};

const EXAMPLES: &str = "\
Examples:
  maitre demo                                   four simulated engines, the router, live traffic
  maitre demo --strategy round-robin,least-work the same traffic under each, side by side
  maitre serve --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000
  maitre serve --config maitre.toml
  maitre check maitre.toml                      every mistake in a config file at once
  maitre engine --count 4 --profile h200-8b     engines that speak vLLM, without a GPU
  maitre replay --trace traces/conversation.jsonl.gz --strategy all
                                                every strategy on the same hour of traffic, in virtual time
  maitre tune --trace traces/conversation.jsonl.gz --target 'ttft_mean<2s'
                                                the smallest fleet that keeps a target, and its config
  maitre generate rag:qps=20 --out rag.jsonl.gz
                                                a trace of made traffic
  maitre bench --url http://127.0.0.1:8080 --trace trace.jsonl
                                                the same in real time, against any OpenAI endpoint";

fn command() -> Command {
    Command::new("maitre")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Seats every request at an LLM worker by the work it brings, and says why.")
        .before_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve::command())
        .subcommand(demo::command())
        .subcommand(engine::command())
        .subcommand(check::command())
        .subcommand(replay::command())
        .subcommand(tune::command())
        .subcommand(generate::command())
        .subcommand(bench::command())
}

fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    match matches.subcommand() {
        Some(("serve", matches)) => serve::run(matches),
        Some(("demo", matches)) => demo::run(matches),
        Some(("engine", matches)) => engine::run(matches),
        Some(("bench", matches)) => bench::run(matches),
        Some(("check", matches)) => check::run(matches),
        Some(("replay", matches)) => replay::run(matches),
        Some(("tune", matches)) => tune::run(matches),
        Some(("generate", matches)) => generate::run(matches),
        _ => anyhow::bail!("no such command"),
    }
}

fn main() -> ExitCode {
    match run(&command().get_matches()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("maitre: {error:#}");
            ExitCode::FAILURE
        }
    }
}
