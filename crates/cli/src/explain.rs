//! `maitre explain`: where a router would send a request, or sent one, and why.
//!
//! Nothing is sent to a worker. The router computes prices and reasons; this command prints them.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::{Arg, ArgMatches, Command, value_parser};
use maitre_console::{flag, out};
use maitre_views::text::escaped;
use ratatui::crossterm::terminal;
use serde_json::Value;

use crate::operator::client::Client;
use crate::operator::target::{self, KeyPlaces, Target};
use crate::operator::trouble::Trouble;
use crate::operator::{decision, not_asked};

/// Columns if the output is not a terminal: enough for every column of the tables.
const WIDTH: usize = 200;
const WIDTH_MIN: usize = 40;

/// Maximum request size: the default limit of a router.
const REQUEST_BYTES_MAX: u64 = 256 << 20;

const HELP: &str = "\
The request is an OpenAI body, read from FILE or standard input. Nothing is sent to a worker.
Exit status: 0 with an answer, 1 if the router refuses the request, 2 if the router cannot be reached.";

pub fn command() -> Command {
    Command::new("explain")
        .about("Where a running router would send a request, and why")
        .after_help(HELP)
        .args(target::args())
        .args([
            flag::value("path", "PATH")
                .default_value("/v1/chat/completions")
                .help("The API that the request is for"),
            flag::value("decision", "ID")
                .conflicts_with_all(["file", "path"])
                .help("Show a past decision, by its number or the request's id"),
            flag::switch("json").help("Print the router's JSON"),
            Arg::new("file")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("The request; - or nothing reads standard input"),
        ])
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let (target, question) = match read(matches) {
        Ok(read) => read,
        Err(error) => return Ok(not_asked(&format_args!("{error:#}"))),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = Client::new(&target);
    let answer = runtime.block_on(question.ask(&client));
    let shown =
        answer.and_then(|it| if matches.get_flag("json") { Ok(json(&it)) } else { text(&client, &it) });
    match shown {
        Ok(text) => {
            out::print(&text)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(trouble) if trouble.is_refusal() => {
            eprintln!("maitre: refused: {trouble}");
            Ok(ExitCode::FAILURE)
        }
        Err(trouble) => Ok(not_asked(&trouble)),
    }
}

/// What to ask the router.
#[derive(Debug)]
enum ExplainQuestion {
    Request { path: String, body: Bytes },
    Decision { id: String },
}

impl ExplainQuestion {
    async fn ask(self, client: &Client) -> Result<Value, Trouble> {
        match self {
            ExplainQuestion::Request { path, body } => {
                client.post(&format!("/admin/v1/explain?path={path}"), body).await
            }
            ExplainQuestion::Decision { id } => client.get(&format!("/admin/v1/decisions/{id}")).await,
        }
    }
}

fn read(matches: &ArgMatches) -> anyhow::Result<(Target, ExplainQuestion)> {
    let target = Target::read(matches, &KeyPlaces::from_environment())?;
    if let Some(id) = matches.get_one::<String>("decision") {
        let fits = !id.is_empty() && id.bytes().all(|it| it.is_ascii_graphic() && !b"/?#%".contains(&it));
        ensure!(
            fits,
            "--decision {id:?}: write the decision's number, or a request's id as x-request-id has it"
        );
        return Ok((target, ExplainQuestion::Decision { id: id.clone() }));
    }
    let path: &String = matches.get_one("path").context("path")?;
    let fits =
        path.starts_with('/') && path.bytes().all(|it| it.is_ascii_graphic() && !b"?#&=%".contains(&it));
    ensure!(fits, "--path {path:?}: write the path of an API, as in /v1/chat/completions");
    let body = match matches.get_one::<PathBuf>("file").filter(|it| it.as_os_str() != "-") {
        Some(file) => File::open(file).and_then(whole).with_context(|| format!("read {}", file.display()))?,
        None => {
            let input = io::stdin().lock();
            if input.is_terminal() {
                eprintln!("type the request, a JSON object, and end it with Ctrl-D");
            }
            whole(input).context("read the request from standard input")?
        }
    };
    ensure!(!body.trim_ascii().is_empty(), "there is no request; write FILE, or pipe a JSON object in");
    Ok((target, ExplainQuestion::Request { path: path.clone(), body: body.into() }))
}

fn whole(input: impl Read) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    input.take(REQUEST_BYTES_MAX + 1).read_to_end(&mut body)?;
    if body.len() as u64 > REQUEST_BYTES_MAX {
        return Err(io::Error::other(format!("longer than {REQUEST_BYTES_MAX} bytes")));
    }
    Ok(body)
}

fn json(answer: &Value) -> String {
    escaped(&format!("{answer:#}\n"))
}

fn text(client: &Client, answer: &Value) -> Result<String, Trouble> {
    let decision = client.read(answer.to_string().as_bytes())?;
    let width =
        if io::stdout().is_terminal() { terminal::size().map_or(WIDTH, |it| it.0.into()) } else { WIDTH };
    Ok(decision::lines(&decision, width.max(WIDTH_MIN)).join("\n") + "\n")
}
