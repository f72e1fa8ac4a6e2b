//! `maitre generate WORKLOAD`: writes generated traffic as a trace.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command, value_parser};
use maitre_sim::generate::{self, Plan};
use maitre_sim::trace::Trace;

use maitre_console::{flag, out};

pub fn command() -> Command {
    Command::new("generate").about("Write a trace of generated traffic").after_help(generate::help()).args([
        Arg::new("workload")
            .required(true)
            .value_name("WORKLOAD")
            .value_parser(value_parser!(Plan))
            .help("The workload, such as groups or rag:qps=20,zipf=0.8"),
        flag::value("seed", "N")
            .default_value("1")
            .value_parser(value_parser!(u64))
            .help("Seed: the same seed gives the same trace"),
        flag::value("out", "FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Where to write it, compressed if the name ends in .gz [default: standard output]"),
    ])
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let plan: &Plan = matches.get_one("workload").context("workload")?;
    let seed: u64 = *matches.get_one("seed").context("seed")?;
    let trace = plan.generate(seed);
    match matches.get_one::<PathBuf>("out") {
        Some(path) => {
            write_file(&trace, path).with_context(|| format!("write {}", path.display()))?;
            eprintln!("{}: {}", path.display(), summary(&trace));
        }
        None => write_out(&trace).context("write to standard output")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write_file(trace: &Trace, path: &Path) -> io::Result<()> {
    let file = BufWriter::new(File::create(path)?);
    match path.extension().is_some_and(|it| it == "gz") {
        true => trace.write_gzip(file),
        false => trace.write(file),
    }
}

fn write_out(trace: &Trace) -> io::Result<()> {
    out::ignore_closed_pipe(trace.write(BufWriter::new(io::stdout().lock())))
}

/// The content of a trace, on one line.
fn summary(trace: &Trace) -> String {
    let count = trace.requests.len();
    let mean = |sum: u64| sum as f64 / count.max(1) as f64;
    let prompt_tokens = mean(trace.requests.iter().map(|it| it.prompt_tokens()).sum());
    let answer_tokens = mean(trace.requests.iter().map(|it| u64::from(it.answer_tokens)).sum());
    format!(
        "{count} requests in {:.1} s, on average {prompt_tokens:.0} prompt and {answer_tokens:.0} answer tokens; \
         one infinite cache would find {:.1} % of the prompt tokens",
        trace.span().as_secs_f64(),
        100.0 * trace.reuse(),
    )
}
