//! A tenant's terms as one text: `team-a?weight=3&best=standard&usual=batch&rpm=600&tpm=1000000`.
//!
//! What stands before the question mark may be a key that opens doors. So a message says only its beginning; the
//! line tells the rest.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use maitre_queue::settings::{TENANTS_MAX, masked};

use super::super::form;
use super::{Secret, class, divide, join, told};

/// Stands for whoever has no terms of its own.
pub(super) const EVERYBODY: &str = "*";

const PARTS: &str = "weight, best, usual, rpm and tpm";
/// Chosen: a thousand to one and a thousandth to one.
const WEIGHTS: RangeInclusive<f64> = 0.001..=1_000.0;
/// Chosen: longer than any key; a token that says more of its bearer is no name.
const NAME_BYTES_MAX: usize = 4_096;
/// Chosen: beyond either there is no limit.
const REQUESTS_MAX: u32 = 1_000_000_000;
const TOKENS_MAX: u64 = 1_000_000_000_000;

/// Terms with classes by their names.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Written {
    pub(super) weight: f64,
    pub(super) best: Option<String>,
    pub(super) usual: Option<String>,
    pub(super) requests_per_minute: Option<u32>,
    pub(super) tokens_per_minute: Option<u64>,
}

pub(in super::super) fn add(tenants: &mut BTreeMap<Secret, Written>, text: &str) -> Result<(), String> {
    let (name, written) = read(text)?;
    let everybody = usize::from(tenants.contains_key(&Secret(EVERYBODY.to_owned())));
    if name != EVERYBODY && tenants.len() - everybody == TENANTS_MAX {
        return Err(format!("{} is one too many; there can be {TENANTS_MAX} tenants", masked(&name)));
    }
    match tenants.insert(Secret(name.clone()), written) {
        None => Ok(()),
        Some(_) => Err(format!("{} is there twice", masked(&name))),
    }
}

fn read(text: &str) -> Result<(String, Written), String> {
    let (name, parts) = divide(text);
    if !is_name(name) {
        return Err(
            "names no tenant; write \"team-a?weight=3\", or \"*?weight=3\" for everybody else".to_owned()
        );
    }
    let none =
        Written { weight: 1.0, best: None, usual: None, requests_per_minute: None, tokens_per_minute: None };
    let (mut written, mut wrong) = (none, Vec::new());
    for (part, value) in parts {
        let set = match part {
            "weight" => form::ratio(value, &WEIGHTS).map(|it| written.weight = it),
            "best" => class::name(value).map(|it| written.best = Some(it)),
            "usual" => class::name(value).map(|it| written.usual = Some(it)),
            "rpm" => requests(value).map(|it| written.requests_per_minute = Some(it)),
            "tpm" => tokens(value).map(|it| written.tokens_per_minute = Some(it)),
            _ => {
                // Where a key holds a question mark, this may be the rest of it.
                wrong.push(format!("no part is called {:?}; known: {PARTS}", masked(part)));
                continue;
            }
        };
        wrong.extend(set.err().map(|what| format!("{part}: {what}")));
    }
    told(&masked(name), &wrong)?;
    Ok((name.to_owned(), written))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control)
}

/// Whose a key is: one tenant by its name.
pub(in super::super) fn name(text: &str) -> Result<String, String> {
    match is_name(text) && text != EVERYBODY {
        true => Ok(text.to_owned()),
        false => Err("names no tenant; write it as in \"tenant=team-a\"".to_owned()),
    }
}

/// In a minute.
pub(in super::super) fn requests(text: &str) -> Result<u32, String> {
    form::count(text, &(1..=REQUESTS_MAX))
}

pub(in super::super) fn tokens(text: &str) -> Result<u64, String> {
    form::count(text, &(1..=TOKENS_MAX))
}

/// The whole name included: for files, not for logs.
pub(in super::super) fn show(Secret(name): &Secret, written: &Written) -> String {
    let parts = [
        (written.weight != 1.0).then(|| format!("weight={}", written.weight)),
        written.best.as_ref().map(|it| format!("best={it}")),
        written.usual.as_ref().map(|it| format!("usual={it}")),
        written.requests_per_minute.map(|it| format!("rpm={it}")),
        written.tokens_per_minute.map(|it| format!("tpm={it}")),
    ];
    join(name, &parts.into_iter().flatten().collect::<Vec<_>>())
}
