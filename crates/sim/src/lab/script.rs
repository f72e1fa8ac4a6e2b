//! A script of fleet changes at given times: workers join, leave, slow down and crash.
//!
//! One action per line, `#` begins a comment:
//!
//! ```text
//! 60s   join 2xh200-8b     # two more workers; `2xh200-8b@decode` gives them a role
//! 90s   slow 3 2.5         # worker 3 takes 2.5 times as long from here on; 1 restores it
//! 95s   stall 3 2s         # worker 3 does nothing for two seconds, after the step under way
//! 2m    drain 0            # no new requests there; `resume 0` ends it
//! 150s  leave 1            # the worker is removed; it finishes its requests
//! 3m    crash 2            # its process dies and its requests are lost; `start 2` brings it back, empty
//! 200s  restart 5          # crash and start at once
//! ```
//!
//! Workers are numbered from zero in the order in which they joined.

use std::str::FromStr;
use std::time::Duration;

use maitre_base::{Instant, Role};

use crate::profile::{Profile, file};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// In order of time.
    pub(super) actions: Vec<(Instant, ScriptAction)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ScriptAction {
    Join(WorkerGroup),
    Leave(u32),
    Drain(u32),
    Resume(u32),
    Slow { worker: u32, factor: f64 },
    Stall { worker: u32, span: Duration },
    Crash(u32),
    Start(u32),
    Restart(u32),
}

/// Workers of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerGroup {
    pub profile: Profile,
    pub role: Role,
    pub count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct BadScript {
    line: usize,
    problem: String,
}

/// More workers than any supported fleet.
pub const WORKERS_MAX: u32 = 1_024;

impl Script {
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Sets the cache size of all workers that join.
    pub fn set_cache(&mut self, set: impl Fn(Profile) -> Profile) {
        for (_, action) in &mut self.actions {
            if let ScriptAction::Join(group) = action {
                group.profile = set(group.profile);
            }
        }
    }

    /// Whether workers of this role join.
    pub fn joins(&self, role: Role) -> bool {
        self.actions.iter().any(|it| matches!(it.1, ScriptAction::Join(group) if group.role == role))
    }

    /// Checks that every worker exists when an action names it.
    pub fn check(&self, workers: usize) -> Result<(), String> {
        let mut workers = workers as u32;
        for (at, action) in &self.actions {
            let named = match *action {
                ScriptAction::Join(group) => {
                    workers = workers.saturating_add(group.count);
                    if workers > WORKERS_MAX {
                        return Err(format!("{workers} workers; at most {WORKERS_MAX} are allowed"));
                    }
                    continue;
                }
                ScriptAction::Slow { worker, .. } | ScriptAction::Stall { worker, .. } => worker,
                ScriptAction::Leave(worker)
                | ScriptAction::Drain(worker)
                | ScriptAction::Resume(worker)
                | ScriptAction::Crash(worker)
                | ScriptAction::Start(worker)
                | ScriptAction::Restart(worker) => worker,
            };
            if named >= workers {
                let seconds = at.as_secs_f64();
                return Err(format!(
                    "at {seconds} s there are {workers} workers; there is no worker {named}"
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for Script {
    type Err = BadScript;

    fn from_str(text: &str) -> Result<Script, BadScript> {
        let mut actions = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                actions.push(parse_action(line).map_err(|problem| BadScript { line: index + 1, problem })?);
            }
        }
        actions.sort_by_key(|it| it.0);
        Ok(Script { actions })
    }
}

fn parse_action(line: &str) -> Result<(Instant, ScriptAction), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [at, rest @ ..] = &words[..] else { return Err("missing action".to_owned()) };
    let at = Instant::ZERO + time(at)?;
    let action = match rest {
        ["join", group] => ScriptAction::Join(workers(group)?),
        ["leave", worker] => ScriptAction::Leave(number(worker)?),
        ["drain", worker] => ScriptAction::Drain(number(worker)?),
        ["resume", worker] => ScriptAction::Resume(number(worker)?),
        ["slow", worker, factor] => {
            ScriptAction::Slow { worker: number(worker)?, factor: factor_of(factor)? }
        }
        ["stall", worker, span] => ScriptAction::Stall { worker: number(worker)?, span: time(span)? },
        ["crash", worker] => ScriptAction::Crash(number(worker)?),
        ["start", worker] => ScriptAction::Start(number(worker)?),
        ["restart", worker] => ScriptAction::Restart(number(worker)?),
        _ => {
            return Err(format!(
                "\"{}\" is not an action; known: join [Nx]PROFILE, leave N, drain N, resume N, slow N FACTOR, stall N \
                 TIME, crash N, start N, restart N",
                rest.join(" ")
            ));
        }
    };
    Ok((at, action))
}

/// `90s`, `2m`, `1500ms`, or seconds without a unit.
fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is not a time; write 90s, 2m or 1500ms");
    let digits = text.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 0.001,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        _ => return Err(wrong()),
    };
    let value: f64 = digits.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(value * unit).map_err(|_| wrong())
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a worker number"))
}

fn factor_of(text: &str) -> Result<f64, String> {
    let factor: Option<f64> = text.parse().ok();
    factor
        .filter(|it| (0.01..=1_000.0).contains(it))
        .ok_or_else(|| format!("\"{text}\" is not a factor; write 0.01 to 1000"))
}

/// Workers of one kind: `h200-8b`, `4xh200-8b`, `4xprofile.toml` or `4xh200-8b@prefill`.
pub fn workers(text: &str) -> Result<WorkerGroup, String> {
    let (kind, role) = match text.rsplit_once('@') {
        // The name of a file may contain the sign.
        Some((kind, name)) if !name.contains(['.', '/']) => (kind, parse_role(name)?),
        _ => (text, Role::Both),
    };
    let count = kind.split_once('x').and_then(|(count, name)| Some((count.parse::<u32>().ok()?, name)));
    let (count, name) = count.unwrap_or((1, kind));
    let profile = file::find(name).map_err(|it| it.to_string())?;
    match count {
        1..=WORKERS_MAX => Ok(WorkerGroup { profile, role, count }),
        _ => Err(format!("{count} workers; 1 to {WORKERS_MAX} are allowed")),
    }
}

fn parse_role(name: &str) -> Result<Role, String> {
    let known = || Role::ALL.map(Role::name).join(", ");
    name.parse().map_err(|()| format!("\"{name}\" is not a role; known: {}", known()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::H200_8B;

    #[test]
    fn a_script_is_read_in_order_of_time() {
        let script: Script =
            "2m drain 1 # soon\n\n500ms slow 0 2.5\n3 join 2xh200-8b@decode".parse().unwrap();
        let expected = [
            (Instant::from_millis(500), ScriptAction::Slow { worker: 0, factor: 2.5 }),
            (
                Instant::from_millis(3_000),
                ScriptAction::Join(WorkerGroup { profile: H200_8B, role: Role::Decode, count: 2 }),
            ),
            (Instant::from_millis(120_000), ScriptAction::Drain(1)),
        ];
        assert_eq!(script.actions, expected);
        assert_eq!(script.check(2), Ok(()));
    }

    #[test]
    fn the_script_in_the_document_can_be_used() {
        let document = include_str!("../../../../docs/replay.md");
        let after = document.split_once("**Scripts.**").unwrap().1;
        let text = after.split("```").nth(1).unwrap().trim_start_matches("text\n");
        let script: Script = text.parse().unwrap();
        assert_eq!((script.actions.len(), script.check(4)), (7, Ok(())));
    }

    #[test]
    fn invalid_lines_are_named() {
        for (text, expected) in [
            ("soon drain 1", "line 1: \"soon\" is not a time"),
            ("1s drain x", "line 1: \"x\" is not a worker number"),
            ("\n1s dance", "line 2: \"dance\" is not an action"),
            ("1s slow 1 0", "is not a factor"),
            ("1s join 3xabacus", "unknown profile \"abacus\"; known: h200-8b"),
            ("1s join 0xh200-8b", "0 workers"),
            ("1s join h200-8b@cook", "\"cook\" is not a role; known: both, prefill, decode"),
        ] {
            let error = text.parse::<Script>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let script: Script = "1s leave 4\n2s join h200-8b".parse().unwrap();
        assert!(script.check(4).unwrap_err().contains("there is no worker 4"));
        let script: Script = "1s join 1000xh200-8b\n2s join 24xh200-8b\n3s join h200-8b".parse().unwrap();
        assert_eq!(script.check(1), Err("1025 workers; at most 1024 are allowed".to_owned()));
    }
}
