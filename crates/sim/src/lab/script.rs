//! What happens to the fleet at given times: workers that come, go, stall and fall over.
//!
//! One action a line, `#` begins a comment:
//!
//! ```text
//! 60s   join 2xh200-8b     two more workers
//! 90s   slow 3 2.5         worker 3 takes 2.5 times as long from here on; 1 is well again
//! 2m    drain 0            no new requests there; `resume 0` ends it
//! 150s  leave 1            it is on no list any more; what it has it finishes
//! 3m    crash 2            nobody listens there, and what it had is lost; `start 2` brings it back, empty
//! 200s  restart 5          both in one moment
//! ```
//!
//! Workers are numbered from zero in the order in which they joined.

use std::str::FromStr;
use std::time::Duration;

use maitre_base::Instant;

use crate::profile::Profile;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// In order of time.
    pub(super) acts: Vec<(Instant, Act)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Act {
    Join { profile: Profile, count: u32 },
    Leave(u32),
    Drain(u32),
    Resume(u32),
    Slow { worker: u32, factor: f64 },
    Crash(u32),
    Start(u32),
    Restart(u32),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct BadScript {
    line: usize,
    problem: String,
}

/// More workers than any fleet we are made for.
pub const WORKERS_MAX: u32 = 1_024;

impl Script {
    pub fn is_empty(&self) -> bool {
        self.acts.is_empty()
    }

    /// Sets the cache of all workers that join.
    pub fn set_cache(&mut self, set: impl Fn(Profile) -> Profile) {
        for (_, act) in &mut self.acts {
            if let Act::Join { profile, .. } = act {
                *profile = set(*profile);
            }
        }
    }

    /// Makes sure that every worker an action names is there by then.
    pub fn check(&self, workers: usize) -> Result<(), String> {
        let mut workers = workers as u32;
        for (at, act) in &self.acts {
            let named = match *act {
                Act::Join { count, .. } => {
                    workers = workers.saturating_add(count);
                    if workers > WORKERS_MAX {
                        return Err(format!("{workers} workers; at most {WORKERS_MAX} are possible"));
                    }
                    continue;
                }
                Act::Slow { worker, .. } => worker,
                Act::Leave(worker)
                | Act::Drain(worker)
                | Act::Resume(worker)
                | Act::Crash(worker)
                | Act::Start(worker)
                | Act::Restart(worker) => worker,
            };
            if named >= workers {
                let seconds = at.as_secs_f64();
                return Err(format!(
                    "at {seconds} s there are {workers} workers, and none is number {named}"
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for Script {
    type Err = BadScript;

    fn from_str(text: &str) -> Result<Script, BadScript> {
        let mut acts = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                acts.push(act(line).map_err(|problem| BadScript { line: index + 1, problem })?);
            }
        }
        acts.sort_by_key(|it| it.0);
        Ok(Script { acts })
    }
}

fn act(line: &str) -> Result<(Instant, Act), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [at, rest @ ..] = &words[..] else { return Err("nothing to do".to_owned()) };
    let at = Instant::ZERO + time(at)?;
    let act = match rest {
        ["join", fleet] => {
            let (profile, count) = workers(fleet)?;
            Act::Join { profile, count }
        }
        ["leave", worker] => Act::Leave(number(worker)?),
        ["drain", worker] => Act::Drain(number(worker)?),
        ["resume", worker] => Act::Resume(number(worker)?),
        ["slow", worker, factor] => Act::Slow { worker: number(worker)?, factor: factor_of(factor)? },
        ["crash", worker] => Act::Crash(number(worker)?),
        ["start", worker] => Act::Start(number(worker)?),
        ["restart", worker] => Act::Restart(number(worker)?),
        _ => {
            return Err(format!(
                "\"{}\" is no action; known: join [Nx]PROFILE, leave N, drain N, resume N, slow N FACTOR, crash N, \
                 start N, restart N",
                rest.join(" ")
            ));
        }
    };
    Ok((at, act))
}

/// `90s`, `2m`, `1500ms`, or seconds without a unit.
fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("\"{text}\" is no time; 90s, 2m or 1500ms are");
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
    text.parse().map_err(|_| format!("\"{text}\" is no worker's number"))
}

fn factor_of(text: &str) -> Result<f64, String> {
    let factor: Option<f64> = text.parse().ok();
    factor
        .filter(|it| (0.01..=1_000.0).contains(it))
        .ok_or_else(|| format!("\"{text}\" is no factor; 0.01 to 1000 are"))
}

/// Workers of one kind: `h200-8b` or `4xh200-8b`.
pub fn workers(text: &str) -> Result<(Profile, u32), String> {
    let count = text.split_once('x').and_then(|(count, name)| Some((count.parse::<u32>().ok()?, name)));
    let (count, name) = count.unwrap_or((1, text));
    let profile = Profile::named(name).ok_or_else(|| {
        let known: Vec<&str> = crate::profile::ALL.iter().map(|it| it.name).collect();
        format!("no profile is called \"{name}\"; known: {}", known.join(", "))
    })?;
    match count {
        1..=WORKERS_MAX => Ok((profile, count)),
        _ => Err(format!("{count} workers; 1 to {WORKERS_MAX} are possible")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::H200_8B;

    #[test]
    fn a_script_is_read_in_order_of_time() {
        let script: Script = "2m drain 1 # soon\n\n500ms slow 0 2.5\n3 join 2xh200-8b".parse().unwrap();
        let expected = [
            (Instant::from_millis(500), Act::Slow { worker: 0, factor: 2.5 }),
            (Instant::from_millis(3_000), Act::Join { profile: H200_8B, count: 2 }),
            (Instant::from_millis(120_000), Act::Drain(1)),
        ];
        assert_eq!(script.acts, expected);
        assert_eq!(script.check(2), Ok(()));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("soon drain 1", "line 1: \"soon\" is no time"),
            ("1s drain x", "line 1: \"x\" is no worker's number"),
            ("\n1s dance", "line 2: \"dance\" is no action"),
            ("1s slow 1 0", "is no factor"),
            ("1s join 3xabacus", "no profile is called \"abacus\"; known: h200-8b"),
            ("1s join 0xh200-8b", "0 workers"),
        ] {
            let error = text.parse::<Script>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let script: Script = "1s leave 4\n2s join h200-8b".parse().unwrap();
        assert!(script.check(4).unwrap_err().contains("none is number 4"));
        let script: Script = "1s join 1000xh200-8b\n2s join 24xh200-8b\n3s join h200-8b".parse().unwrap();
        assert_eq!(script.check(1), Err("1025 workers; at most 1024 are possible".to_owned()));
    }
}
