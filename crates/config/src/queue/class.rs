//! A class as one text: `interactive?requests=10000&tokens=100000000&deadline=30s&reserve=0.2`.

use std::time::Duration;

use maitre_queue::Class;
use maitre_queue::settings::{self, CLASSES_MAX};

use super::super::form;
use super::{divide, join, told};

const PARTS: &str = "requests, tokens, deadline and reserve";
/// Chosen: a label in metrics, a word in headers.
const NAME_BYTES_MAX: usize = 64;
/// Chosen: beyond either is a slip of the finger.
const REQUESTS_MAX: u32 = 10_000_000;
const TOKENS_MAX: u64 = 1_000_000_000_000;
const DAY: Duration = Duration::from_hours(24);
/// Something must be left for the classes below.
const RESERVE_MAX: f64 = 0.99;

/// Adds the class that `text` says after those that are there.
pub(in super::super) fn add(classes: &mut Vec<Class>, text: &str) -> Result<(), String> {
    let class = read(text)?;
    if classes.iter().any(|it| it.name.eq_ignore_ascii_case(&class.name)) {
        return Err(format!("{:?} is there twice", class.name));
    }
    if classes.len() == CLASSES_MAX {
        return Err(format!("{:?} is one too many; there can be {CLASSES_MAX} classes", class.name));
    }
    classes.push(class);
    Ok(())
}

/// What is not said of a class is as for ours of the same name, or without any limit that people would feel.
fn read(text: &str) -> Result<Class, String> {
    let (name, parts) = divide(text);
    let name = self::name(name)?;
    let mut class = class_called(&name);
    let mut wrong = Vec::new();
    for (part, value) in parts {
        let set = match part {
            "requests" => form::count(value, &(0..=REQUESTS_MAX)).map(|it| class.requests_max = it),
            "tokens" => form::count(value, &(0..=TOKENS_MAX)).map(|it| class.tokens_max = it),
            "deadline" => deadline(value).map(|it| class.deadline = it),
            "reserve" => form::ratio(value, &(0.0..=RESERVE_MAX)).map(|it| class.reserve = it),
            _ => {
                wrong.push(format!("no part is called {part:?}; known: {PARTS}"));
                continue;
            }
        };
        wrong.extend(set.err().map(|what| format!("{part}: {what}")));
    }
    told(&name, &wrong)?;
    Ok(class)
}

/// A word that cannot be taken for a place in the order of classes, which is a way to name one too.
pub(in super::super) fn name(text: &str) -> Result<String, String> {
    let is_letter = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let is_name = (1..=NAME_BYTES_MAX).contains(&text.len()) && text.chars().all(is_letter);
    match is_name && text.parse::<u64>().is_err() {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "{text:?} is not the name of a class; write letters, digits and -_. but not a number alone, as in \"interactive\""
        )),
    }
}

fn deadline(value: &str) -> Result<Option<Duration>, String> {
    match value {
        "none" => Ok(None),
        _ => form::duration(value, &(Duration::from_millis(1)..=DAY))
            .map(Some)
            .map_err(|what| format!("{what}, or none")),
    }
}

fn class_called(name: &str) -> Class {
    let mut classes = settings::Settings::default().classes;
    let place = classes.iter().position(|it| it.name == name);
    match place {
        Some(place) => classes.swap_remove(place),
        None => Class {
            name: name.to_owned(),
            requests_max: 10_000,
            tokens_max: 100_000_000,
            deadline: None,
            reserve: 0.0,
        },
    }
}

pub(in super::super) fn show(class: &Class) -> String {
    let usual = class_called(&class.name);
    let deadline = class.deadline.map_or("none".to_owned(), form::show_duration);
    let parts = [
        (class.requests_max != usual.requests_max).then(|| format!("requests={}", class.requests_max)),
        (class.tokens_max != usual.tokens_max).then(|| format!("tokens={}", class.tokens_max)),
        Some(format!("deadline={deadline}")),
        (class.reserve != usual.reserve).then(|| format!("reserve={}", class.reserve)),
    ];
    join(&class.name, &parts.into_iter().flatten().collect::<Vec<_>>())
}
