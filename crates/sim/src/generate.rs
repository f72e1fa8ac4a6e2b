//! Synthetic traces: a line such as `rag:qps=20,zipf=0.8` and a seed give the same requests everywhere.
//!
//! Recorded traffic shows what happened once; synthetic traffic can be scaled or skewed until a strategy breaks, and
//! its line fits into a report. Each workload is one pattern of sharing between prompts, listed in `WORKLOADS`. A
//! line names one and the keys that differ from their defaults. The keys in `COMMON` set senders and deadlines for
//! any workload.
//!
//! A trace is an open loop: arrivals do not depend on the engines' speed. A conversation therefore continues after an
//! answer's nominal duration, not after the actual answer. No clock, no files.

mod coding;
mod dice;
mod groups;
mod key;
mod label;
mod rag;
mod session;
mod single;

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::str::FromStr;

use maitre_base::Instant;

use crate::trace::{PROMPT_TOKENS_MAX, REQUESTS_MAX, Request, Trace};
use dice::Dice;
use key::Values;

pub use key::{ValueType, WorkloadKey};
pub use label::COMMON;

/// One pattern of traffic.
#[derive(Debug)]
pub struct Workload {
    pub name: &'static str,
    /// Its purpose, as a sentence.
    pub about: &'static str,
    /// Its own keys; those of `COMMON` apply as well.
    pub keys: &'static [WorkloadKey],
    size: fn(&Values) -> Result<Size, PlanError>,
    requests: fn(&Values, &mut Dice) -> Vec<Request>,
}

/// All workloads. Lines are parsed with this table; help and `docs/replay.md` are generated from it.
pub static WORKLOADS: [Workload; 8] = [
    groups::GROUPS,
    session::CHAT,
    rag::RAG,
    session::AGENTS,
    coding::CODING,
    single::HOT,
    single::NO_REUSE,
    single::BURSTS,
];

/// Maximum requests of a line: half of a trace's limit, because the random number may exceed its mean.
const REQUESTS_MEAN_MAX: f64 = (REQUESTS_MAX / 2) as f64;
/// Pieces of all prompts together: 800 MB. Long conversations get here before they have many requests.
const PIECES_MEAN_MAX: f64 = 50e6;
/// Eleven days: up to here a timestamp in a file keeps its microseconds.
const SPAN_SECONDS_MAX: f64 = 1e6;

/// A workload with its keys set: what a line says, checked.
#[derive(Clone, Debug)]
pub struct Plan {
    workload: &'static Workload,
    values: Values,
}

/// What is wrong with a line.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("no workload is called {0:?}; there are {names}", names = names())]
    Name(String),
    #[error("{0:?} is not of the form key=value")]
    Form(String),
    #[error("{workload} has no key {key:?}; it has {keys}")]
    WorkloadKey { workload: &'static str, key: String, keys: String },
    #[error("`{0}` is given twice")]
    Twice(&'static str),
    #[error("`{key}` is {value:?}; {wanted}")]
    Value { key: &'static str, value: String, wanted: String },
    #[error("`stages` take the place of `{0}`; give one of them")]
    Stages(&'static str),
    #[error("`per_prompt` is {per_prompt}, but there are {documents} `documents`")]
    Documents { per_prompt: u32, documents: u32 },
    #[error("it makes about {0:.0} requests; at most {REQUESTS_MEAN_MAX:.0} are expected")]
    Requests(f64),
    #[error("its prompts have about {0:.0} pieces together; at most {PIECES_MEAN_MAX:.0} are expected")]
    Pieces(f64),
    #[error("a prompt may get {0:.0} tokens long; at most {PROMPT_TOKENS_MAX} are expected")]
    PromptTokens(f64),
    #[error("it takes {0:.0} s; at most {SPAN_SECONDS_MAX:.0} s are expected")]
    Span(f64),
}

/// The expected size of a plan, before anything is generated.
struct Size {
    requests_mean: f64,
    pieces_mean: f64,
    prompt_tokens_max: f64,
    seconds: f64,
}

impl Plan {
    /// The trace for this seed: at least one request and no two in the same microsecond, so that a file of it reads
    /// back as the same trace.
    pub fn generate(&self, seed: u64) -> Trace {
        let mut requests = (self.workload.requests)(&self.values, &mut Dice::new(seed));
        settle(&mut requests);
        label::label(&mut requests, &self.values, seed);
        Trace { requests }
    }

    pub fn workload(&self) -> &'static Workload {
        self.workload
    }

    /// The tenants' names by their number in the trace.
    pub fn tenants(&self) -> BTreeMap<u64, &str> {
        let named = self.values.shares("tenants").iter();
        named.map(|it| (label::tenant(&it.name), &*it.name)).collect()
    }

    /// The whole plan, including defaults, as a line that parses again.
    pub fn describe(&self) -> String {
        format!("{}:{}", self.workload.name, self.values.all().join(","))
    }
}

/// The line as it was given, its keys in the order of the table.
impl Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = self.values.given();
        match given.is_empty() {
            true => out.write_str(self.workload.name),
            false => write!(out, "{}:{}", self.workload.name, given.join(",")),
        }
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(line: &str) -> Result<Plan, PlanError> {
        let (name, settings) = line.split_once(':').unwrap_or((line, ""));
        let workload =
            WORKLOADS.iter().find(|it| it.name == name).ok_or_else(|| PlanError::Name(name.to_owned()))?;
        let keys = || workload.keys.iter().chain(&COMMON);
        let mut values = Values::defaults(keys())?;
        for setting in settings.split(',').filter(|it| !it.is_empty()) {
            let Some((key, value)) = setting.split_once('=') else {
                return Err(PlanError::Form(setting.to_owned()));
            };
            if !keys().any(|it| it.name == key) {
                let keys = list(keys().map(|it| it.name));
                return Err(PlanError::WorkloadKey { workload: workload.name, key: key.to_owned(), keys });
            }
            values.set(key, value)?;
        }
        check_size(&(workload.size)(&values)?)?;
        Ok(Plan { workload, values })
    }
}

/// Every workload with its keys and their defaults, for a terminal.
pub fn help() -> String {
    let mut text = String::from("A workload is NAME or NAME:key=value,key=value. Known workloads:\n");
    for workload in &WORKLOADS {
        text.push_str(&format!("\n{}: {}\n", workload.name, workload.about));
        workload.keys.iter().for_each(|it| text.push_str(&it.help()));
    }
    text.push_str("\nAll workloads also accept keys for classes, tenants and deadlines:\n");
    COMMON.iter().for_each(|it| text.push_str(&it.help()));
    text
}

fn names() -> String {
    list(WORKLOADS.iter().map(|it| it.name))
}

fn list(words: impl Iterator<Item = &'static str>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

fn check_size(size: &Size) -> Result<(), PlanError> {
    if size.requests_mean > REQUESTS_MEAN_MAX {
        return Err(PlanError::Requests(size.requests_mean));
    }
    if size.pieces_mean > PIECES_MEAN_MAX {
        return Err(PlanError::Pieces(size.pieces_mean));
    }
    if size.prompt_tokens_max > PROMPT_TOKENS_MAX as f64 {
        return Err(PlanError::PromptTokens(size.prompt_tokens_max));
    }
    if size.seconds > SPAN_SECONDS_MAX {
        return Err(PlanError::Span(size.seconds));
    }
    Ok(())
}

/// Sorts requests and gives each its own microsecond: equal timestamps are spread when they are read from a file.
fn settle(requests: &mut [Request]) {
    requests.sort_by_key(|it| it.at);
    let mut free_micros = 0;
    for request in requests {
        let micros = (request.at.as_nanos() / 1_000).max(free_micros);
        request.at = Instant::from_nanos(micros * 1_000);
        free_micros = micros + 1;
    }
}

#[cfg(test)]
mod tests;
