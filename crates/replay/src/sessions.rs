//! Traces of agents' sessions: `--sessions` plays them as closed loops.

use std::fs::File;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Arg, ArgMatches, value_parser};
use maitre_console::flag;
use maitre_sim::lab::PreparedTrace;
use maitre_sim::profile::Profile;
use maitre_sim::sessions::SessionTrace;
use serde_json::{Value, json};

use crate::trace;

/// Tenants of `--sessions`: each is a row of the table.
const TENANTS_MAX: usize = 16;
/// Sessions that one tenant has open at once.
const OPEN_MAX: u32 = 100_000;

/// Sessions to play.
#[derive(Clone, Debug)]
pub struct SessionStudy {
    pub trace: SessionTrace,
    /// How many are open at once, of each tenant.
    pub open: Vec<u32>,
    /// Clients do not name their programs.
    pub are_hidden: bool,
    think_max: Option<Duration>,
    /// Sessions that are too large to be played.
    left_out: usize,
}

pub fn args() -> [Arg; 4] {
    [
        flag::value("sessions", "N[,N…]")
            .value_delimiter(',')
            .value_parser(value_parser!(u32).range(1..=i64::from(OPEN_MAX)))
            .help("The trace is of agents' sessions: play N at once, the next when one ends; several numbers are those of several tenants"),
        flag::switch("sessions-hidden")
            .requires("sessions")
            .help("Clients do not name their programs: the router finds them by their prefixes"),
        flag::value("think-max", "DURATION")
            .value_parser(maitre_config::duration)
            .requires("sessions")
            .help("Longer think times of sessions are cut to this: a person's break is not the agent's"),
        flag::value("session-tokens-max", "N")
            .value_parser(value_parser!(u64))
            .requires("sessions")
            .help("Leave out sessions with a call of more tokens [default: what fits into a worker's KV cache]"),
    ]
}

/// The sessions of `source`, if the flags ask for them. `limit` is the most sessions.
pub fn read(matches: &ArgMatches, source: &str, limit: usize) -> anyhow::Result<Option<SessionStudy>> {
    let Some(open) = matches.try_get_many::<u32>("sessions").ok().flatten() else { return Ok(None) };
    let open: Vec<u32> = open.copied().collect();
    anyhow::ensure!(open.len() <= TENANTS_MAX, "--sessions: at most {TENANTS_MAX} tenants");
    let file = trace::open(source)?;
    let whole = SessionTrace::read(file).with_context(|| format!("--trace {source}"))?;
    let tokens_max = matches.get_one::<u64>("session-tokens-max").copied();
    // The bench does not know how much an engine holds.
    let kv_tokens = matches.try_get_one::<u64>("kv-tokens").ok().flatten().copied();
    let tokens_max = tokens_max.or(kv_tokens).unwrap_or(u64::MAX);
    let fit: Vec<usize> =
        (0..whole.sessions.len()).filter(|&it| whole.largest_call(it) <= tokens_max).collect();
    let left_out = whole.sessions.len() - fit.len();
    let mut trace = whole.filtered(|it| fit.iter().take(limit).any(|&kept| kept == it));
    anyhow::ensure!(
        !trace.sessions.is_empty(),
        "--trace {source}: no session has calls of at most {tokens_max} tokens, or --limit leaves none"
    );
    let think_max = matches.get_one::<Duration>("think-max").copied();
    if let Some(longest) = think_max {
        trace.cut_think_times(longest);
    }
    if open.len() > 1 {
        trace.deal(open.len());
    }
    Ok(Some(SessionStudy {
        trace,
        open,
        are_hidden: matches.get_flag("sessions-hidden"),
        think_max,
        left_out,
    }))
}

/// A trace that cannot be read may be one of sessions.
pub fn explain(source: &str, error: anyhow::Error) -> anyhow::Error {
    let has_sessions = || SessionTrace::read(File::open(source).ok()?).ok();
    match has_sessions() {
        Some(_) => anyhow::anyhow!(
            "--trace {source}: these are agents' sessions; add --sessions N to play N at once"
        ),
        None => error,
    }
}

impl SessionStudy {
    /// Engines take what their caches hold: these agents were served with contexts of up to a million tokens.
    pub(super) fn fit(&self, fleet: &mut [Profile]) -> anyhow::Result<()> {
        let largest = (0..self.trace.sessions.len()).map(|it| self.trace.largest_call(it)).max().unwrap_or(0);
        for worker in fleet {
            let kv_tokens = worker.kv_tokens();
            anyhow::ensure!(
                largest <= kv_tokens,
                "--sessions: a call has {largest} tokens, and a worker's KV cache {kv_tokens}; leave such sessions out \
                 with --session-tokens-max {kv_tokens}"
            );
            worker.context_tokens_max =
                worker.context_tokens_max.max(kv_tokens.min(u64::from(u32::MAX)) as u32);
        }
        Ok(())
    }

    /// Time runs this many times as fast, for clients and engines alike.
    pub(super) fn hasten(&mut self, speed: f64, fleet: &mut [Profile]) {
        self.trace.hasten(speed);
        fleet.iter_mut().for_each(|it| *it = it.faster(speed));
    }

    pub(super) fn prepare(&self, block_tokens: u32, engine: &Profile) -> PreparedTrace<'_> {
        PreparedTrace::of_sessions(&self.trace, block_tokens, engine)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "sessions": self.trace.sessions.len(),
            "left_out": self.left_out,
            "open": self.open,
            "hidden": self.are_hidden,
            "context_tokens_mean": self.trace.mean_context().round(),
            "think_max_s": self.think_max.map(|it| it.as_secs_f64()),
        })
    }

    /// For a title.
    pub(super) fn words(&self) -> String {
        let open: Vec<String> = self.open.iter().map(u32::to_string).collect();
        let left_out = match self.left_out {
            0 => String::new(),
            count => format!(" ({count} larger ones left out)"),
        };
        format!("{} sessions{left_out}, {} at once", self.trace.sessions.len(), open.join(" and "))
    }
}
