//! A class as one text: `interactive?requests=10000&tokens=100000000&deadline=30s&reserve=0.2&continue=on&hedge=on`.

use std::ops::RangeInclusive;
use std::time::Duration;

use maitre_queue::Class;
use maitre_queue::settings::{self, CLASSES_MAX};

use crate::field::{List, twice};
use crate::form::{Count, Custom, Form, ItemTable, Ratio, Time, Word, public, show_duration};
use crate::options;
use crate::types::ON_OFF;

pub(crate) const CLASS_LIST: List<Custom<Class>> = List {
    item: public("CLASS", read, show),
    add,
    table: Some(ItemTable { by_name: true, ..ItemTable::new("a class", "name") }),
};

/// A word that is not a number, since a number names a class by its place in the order. At most 64 bytes: it is a
/// label in metrics and a word in headers.
pub(crate) const CLASS_NAME: Word = Word {
    name: "NAME",
    is_valid: |text| {
        let is_letter = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
        (1..=64).contains(&text.len()) && text.chars().all(is_letter) && text.parse::<u64>().is_err()
    },
    wrong: "is not the name of a class; write letters, digits and -_. but not a number alone, as in \"interactive\"",
};

const OPTIONS: &str = "requests, tokens, deadline, reserve, continue and hedge";
/// Chosen: more than this is a typing error.
const REQUESTS: RangeInclusive<u32> = 0..=10_000_000;
const TOKENS: RangeInclusive<u64> = 0..=1_000_000_000_000;
const DEADLINES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(24);
/// Something must be left for the classes below.
const RESERVES: RangeInclusive<f64> = 0.0..=0.99;

fn add(classes: &mut Vec<Class>, class: Class, _: &str) -> Result<(), String> {
    if classes.iter().any(|it| it.name.eq_ignore_ascii_case(&class.name)) {
        return Err(twice(&class.name));
    }
    if classes.len() == CLASSES_MAX {
        return Err(format!("{:?} is one too many; there can be {CLASSES_MAX} classes", class.name));
    }
    classes.push(class);
    Ok(())
}

/// An option that is left out is as in the default class of the same name, or without a limit that matters.
fn read(text: &str) -> Result<Class, String> {
    let (name, options) = options::split(text);
    let name = CLASS_NAME.read(name)?;
    let mut class = default_class(&name);
    let errors = options::read(options, OPTIONS, str::to_owned, |option, value| {
        Some(match option {
            "requests" => Count(REQUESTS).read(value).map(|it| class.requests_max = it),
            "tokens" => Count(TOKENS).read(value).map(|it| class.tokens_max = it),
            "deadline" => deadline(value).map(|it| class.deadline = it),
            "reserve" => Ratio(RESERVES).read(value).map(|it| class.reserve = it),
            "continue" => ON_OFF.read(value).map(|it| class.continues = Some(it)),
            "hedge" => ON_OFF.read(value).map(|it| class.hedges = Some(it)),
            _ => return None,
        })
    });
    options::check(&name, &errors)?;
    Ok(class)
}

fn deadline(value: &str) -> Result<Option<Duration>, String> {
    match value {
        "none" => Ok(None),
        _ => Time(DEADLINES).read(value).map(Some).map_err(|what| format!("{what}, or none")),
    }
}

fn default_class(name: &str) -> Class {
    let known = settings::QueueSettings::default().classes.into_iter().find(|it| it.name == name);
    known.unwrap_or_else(|| Class {
        name: name.to_owned(),
        requests_max: 10_000,
        tokens_max: 100_000_000,
        deadline: None,
        reserve: 0.0,
        continues: None,
        hedges: None,
    })
}

fn show(class: &Class) -> String {
    let usual = default_class(&class.name);
    let deadline = class.deadline.map_or("none".to_owned(), show_duration);
    let options = [
        (class.requests_max != usual.requests_max).then(|| format!("requests={}", class.requests_max)),
        (class.tokens_max != usual.tokens_max).then(|| format!("tokens={}", class.tokens_max)),
        Some(format!("deadline={deadline}")),
        (class.reserve != usual.reserve).then(|| format!("reserve={}", class.reserve)),
        class.continues.map(|it| format!("continue={}", ON_OFF.show(&it))),
        class.hedges.map(|it| format!("hedge={}", ON_OFF.show(&it))),
    ];
    options::join(&class.name, options)
}
