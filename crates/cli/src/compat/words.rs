//! Parses the command line of another router into flags and values.
//!
//! It follows Python's argparse, which those routers use: `--flag value`, `--flag=value`, several values up
//! to the next flag, and unambiguous prefixes of a flag's name. Errors are reported all at once and without
//! the values: one of them may be a key.

use maitre_config::near;

use super::flag::{Flag, Takes};

/// One flag as it was given.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) flag: Flag,
    pub(super) values: Vec<String>,
}

/// The subcommand that `sglang-router` and `smg` expect before their flags.
const COMMAND: &str = "launch";

pub(super) fn read(words: &[String], known: &[Flag]) -> Result<Vec<Given>, Vec<String>> {
    let skipped = usize::from(words.first().is_some_and(|it| it == COMMAND));
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    let mut rest = words.iter().enumerate().skip(skipped).peekable();
    while let Some((place, word)) = rest.next() {
        if !is_flag(word) {
            errors.push(format!("word {} belongs to no flag; write --flag VALUE or --flag=VALUE", place + 1));
            continue;
        }
        let (name, with) = word.split_once('=').map_or((word.as_str(), None), |(name, it)| (name, Some(it)));
        let mut values: Vec<String> = with.map(str::to_owned).into_iter().collect();
        let flag = find(name, known);
        let count_max = flag.as_ref().map_or(usize::MAX, |it| count_max(it, with.is_some()));
        while values.len() < count_max
            && let Some((_, value)) = rest.next_if(|(_, it)| !is_flag(it))
        {
            values.push(value.clone());
        }
        match flag.and_then(|flag| checked(flag, values)) {
            Ok(given) => found.push(given),
            Err(what) => errors.push(format!("{name}: {what}")),
        }
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

/// A negative number is a value.
fn is_flag(word: &str) -> bool {
    word.starts_with("--") || word == "-h"
}

/// A value after an equals sign is the only one.
fn count_max(flag: &Flag, has_one: bool) -> usize {
    match flag.takes {
        _ if has_one => 1,
        Takes::Nothing => 0,
        Takes::One => 1,
        Takes::Several => usize::MAX,
    }
}

fn checked(flag: Flag, values: Vec<String>) -> Result<Given, String> {
    match flag.takes {
        Takes::Nothing if !values.is_empty() => Err("takes no value".to_owned()),
        Takes::One if values.is_empty() => Err("needs a value".to_owned()),
        _ => Ok(Given { flag, values }),
    }
}

fn find(name: &str, known: &[Flag]) -> Result<Flag, String> {
    let name = if name == "-h" { "--help" } else { name };
    if let Some(flag) = known.iter().find(|it| it.is_called(name)) {
        return Ok(*flag);
    }
    let begins = |it: &&Flag| name.len() > "--".len() && it.names.iter().any(|it| it.starts_with(name));
    let begun: Vec<&Flag> = known.iter().filter(begins).collect();
    match begun[..] {
        [flag] => Ok(*flag),
        [] => Err(unknown(name, known)),
        _ => {
            let names: Vec<&str> = begun.iter().map(|it| it.name()).collect();
            Err(format!("may be any of {}", names.join(", ")))
        }
    }
}

fn unknown(name: &str, known: &[Flag]) -> String {
    let names: Vec<String> = known.iter().flat_map(|it| it.names).map(|&it| it.to_owned()).collect();
    match near::nearest(name, &names) {
        Some(near) => format!("no such flag; did you mean {near}?"),
        None => "no such flag; docs/compat.md lists the known ones".to_owned(),
    }
}
