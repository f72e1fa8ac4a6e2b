//! What can be set in a workload's line: names, defaults and bounds, and the values that were given.

use std::sync::Arc;

use super::Wrong;
use crate::trace::{CLASSES_MAX, DEADLINE_MAX, is_name};

/// Something about a workload that a line may set.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    pub default: &'static str,
    pub kind: Kind,
    pub about: &'static str,
}

impl Key {
    /// A line for a terminal.
    pub(super) fn help(&self) -> String {
        format!("  {:<18} {}\n", format!("{}={}", self.name, self.default), self.about)
    }
}

/// What values a key takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Whole {
        least: u32,
        most: u32,
    },
    Real {
        least: f64,
        most: f64,
    },
    Stages,
    /// The name of a class, or nothing.
    Class,
    /// Names, up to so many, and how much each weighs beside the others.
    Shares {
        most: usize,
    },
    /// Seconds to the first token, drawn or not, by class or for all.
    Deadlines,
}

/// Bounds are chosen: far beyond any traffic we know of, and small enough to generate.
impl Kind {
    pub(super) const COUNT: Kind = Kind::Whole { least: 1, most: 1_000_000 };
    /// A prompt after twice as many still fits a line of a file.
    pub(super) const TURNS: Kind = Kind::Whole { least: 1, most: 1_000 };
    pub(super) const TOKENS: Kind = Kind::Whole { least: 1, most: 1_000_000 };
    /// For the beginnings of prompts, which may be left out.
    pub(super) const TOKENS_OR_NONE: Kind = Kind::Whole { least: 0, most: 1_000_000 };
    /// Drawn lengths reach eight times their mean, and a trace takes answers of a million.
    pub(super) const ANSWER: Kind = Kind::Whole { least: 1, most: 100_000 };
    pub(super) const RATE: Kind = Kind::Real { least: 0.001, most: 100_000.0 };
    pub(super) const SECONDS: Kind = Kind::Real { least: 0.1, most: 1_000_000.0 };
    pub(super) const WAIT: Kind = Kind::Real { least: 0.0, most: 100_000.0 };
    pub(super) const EXPONENT: Kind = Kind::Real { least: 0.0, most: 10.0 };
    /// Other keys name classes too, and a trace has no more than twice as many.
    pub(super) const CLASSES: Kind = Kind::Shares { most: CLASSES_MAX / 2 };
    /// As many as a router can be told the terms of.
    pub(super) const TENANTS: Kind = Kind::Shares { most: 10_000 };
    const WEIGHT: Kind = Kind::Real { least: 1e-6, most: 1e6 };
    const PATIENCE: Kind = Kind::Real { least: 0.001, most: DEADLINE_MAX.as_secs() as f64 };

    fn wanted(self) -> String {
        match self {
            Kind::Whole { least, most } => format!("a whole number from {least} to {most} is wanted"),
            Kind::Real { least, most } => format!("a number from {least} to {most} is wanted"),
            Kind::Stages => format!("up to {STAGES_MAX} of QPS:SECONDS are wanted, such as 3:20;10:20"),
            Kind::Class => "a name of 1 to 64 characters is wanted".to_owned(),
            Kind::Shares { most } => {
                format!("up to {most} of NAME:SHARE are wanted, each share above 0, such as a:0.2;b:0.8")
            }
            Kind::Deadlines => {
                "seconds from 0.001 to 86400 are wanted, such as 2, 0.5-3 or interactive:1;batch:30-60"
                    .to_owned()
            }
        }
    }

    fn parse(self, text: &str) -> Option<Value> {
        match self {
            Kind::Whole { least, most } => {
                let number: u32 = text.parse().ok()?;
                (least..=most).contains(&number).then_some(Value::Number(f64::from(number)))
            }
            Kind::Real { least, most } => {
                let number: f64 = text.parse().ok()?;
                (least..=most).contains(&number).then_some(Value::Number(number))
            }
            Kind::Stages => list(text, STAGES_MAX, Stage::parse).map(Value::Stages),
            Kind::Class => {
                let class = Some(text).filter(|it| !it.is_empty());
                class.is_none_or(is_name).then(|| Value::Class(class.map(Into::into)))
            }
            Kind::Shares { most } => list(text, most, Share::parse).map(Value::Shares),
            Kind::Deadlines => list(text, CLASSES_MAX, Deadline::parse).map(Value::Deadlines),
        }
    }

    fn number(self, text: &str) -> Option<f64> {
        match self.parse(text)? {
            Value::Number(number) => Some(number),
            _ => None,
        }
    }
}

/// What stands between semicolons.
fn list<T>(text: &str, most: usize, parse: fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let all: Vec<T> = text.split(';').filter(|it| !it.is_empty()).map(parse).collect::<Option<_>>()?;
    (all.len() <= most).then_some(all)
}

const STAGES_MAX: usize = 1_000;
/// The keys that stages take the place of.
const STAGED: [&str; 2] = ["qps", "seconds"];

/// Traffic at one rate for some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    pub(super) qps: f64,
    pub(super) seconds: f64,
}

impl Stage {
    fn parse(text: &str) -> Option<Stage> {
        let (qps, seconds) = text.split_once(':')?;
        Some(Stage { qps: Kind::RATE.number(qps)?, seconds: Kind::SECONDS.number(seconds)? })
    }
}

/// A name, and how much it weighs beside the others.
#[derive(Clone, Debug)]
pub(super) struct Share {
    pub(super) name: Arc<str>,
    pub(super) weight: f64,
}

impl Share {
    fn parse(text: &str) -> Option<Share> {
        let (name, weight) = text.split_once(':')?;
        let weight = Kind::WEIGHT.number(weight)?;
        is_name(name).then(|| Share { name: name.into(), weight })
    }
}

/// Seconds to the first token: as many as `least`, or drawn from there to `most`.
#[derive(Clone, Debug)]
pub(super) struct Deadline {
    /// Whose; none for all that no earlier one is for.
    pub(super) class: Option<Arc<str>>,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Deadline {
    fn parse(text: &str) -> Option<Deadline> {
        let (class, seconds) = match text.split_once(':') {
            Some((class, seconds)) => (Some(class), seconds),
            None => (None, text),
        };
        if !class.is_none_or(is_name) {
            return None;
        }
        let (least, most) = seconds.split_once('-').unwrap_or((seconds, seconds));
        let (least, most) = (Kind::PATIENCE.number(least)?, Kind::PATIENCE.number(most)?);
        (least <= most).then(|| Deadline { class: class.map(Into::into), least, most })
    }
}

#[derive(Clone, Debug)]
enum Value {
    Number(f64),
    Stages(Vec<Stage>),
    Class(Option<Arc<str>>),
    Shares(Vec<Share>),
    Deadlines(Vec<Deadline>),
}

#[derive(Clone, Debug)]
struct Setting {
    key: &'static Key,
    /// As written in the line; None is the default.
    given: Option<String>,
    value: Value,
}

/// A value for every key of a workload, each within its bounds.
#[derive(Clone, Debug)]
pub(super) struct Values(Vec<Setting>);

impl Values {
    pub(super) fn defaults(keys: impl Iterator<Item = &'static Key>) -> Result<Values, Wrong> {
        let setting = |key| Ok(Setting { key, given: None, value: parse(key, key.default)? });
        keys.map(setting).collect::<Result<_, _>>().map(Values)
    }

    pub(super) fn set(&mut self, name: &str, text: &str) -> Result<(), Wrong> {
        for setting in self.0.iter_mut().filter(|it| it.key.name == name) {
            if setting.given.is_some() {
                return Err(Wrong::Twice(setting.key.name));
            }
            setting.value = parse(setting.key, text)?;
            setting.given = Some(text.to_owned());
        }
        Ok(())
    }

    pub(super) fn real(&self, name: &str) -> f64 {
        match self.value(name) {
            Some(&Value::Number(number)) => number,
            _ => 0.0,
        }
    }

    pub(super) fn whole(&self, name: &str) -> u32 {
        self.real(name) as u32
    }

    /// Empty if the workload has no such key.
    pub(super) fn stages(&self) -> &[Stage] {
        let stages = self.0.iter().find_map(|it| match &it.value {
            Value::Stages(stages) => Some(&stages[..]),
            _ => None,
        });
        stages.unwrap_or_default()
    }

    pub(super) fn class(&self, name: &str) -> Option<Arc<str>> {
        match self.value(name) {
            Some(Value::Class(class)) => class.clone(),
            _ => None,
        }
    }

    pub(super) fn shares(&self, name: &str) -> &[Share] {
        match self.value(name) {
            Some(Value::Shares(shares)) => shares,
            _ => &[],
        }
    }

    pub(super) fn deadlines(&self) -> &[Deadline] {
        match self.value("deadline") {
            Some(Value::Deadlines(deadlines)) => deadlines,
            _ => &[],
        }
    }

    /// Nobody is left to wonder which of two rates counts.
    pub(super) fn check_stages(&self) -> Result<(), Wrong> {
        match self.0.iter().find(|it| it.given.is_some() && self.is_staged(it)) {
            Some(double) => Err(Wrong::Stages(double.key.name)),
            None => Ok(()),
        }
    }

    /// `key=value` of what was given.
    pub(super) fn given(&self) -> Vec<String> {
        self.0.iter().filter(|it| it.given.is_some()).map(Setting::text).collect()
    }

    /// `key=value` of all that counts.
    pub(super) fn all(&self) -> Vec<String> {
        let counts = |it: &&Setting| !it.text().ends_with('=') && !self.is_staged(it);
        self.0.iter().filter(counts).map(Setting::text).collect()
    }

    fn is_staged(&self, setting: &Setting) -> bool {
        !self.stages().is_empty() && STAGED.contains(&setting.key.name)
    }

    fn value(&self, name: &str) -> Option<&Value> {
        let setting = self.0.iter().find(|it| it.key.name == name);
        debug_assert!(setting.is_some(), "the table has no key {name:?}");
        setting.map(|it| &it.value)
    }
}

impl Setting {
    fn text(&self) -> String {
        format!("{}={}", self.key.name, self.given.as_deref().unwrap_or(self.key.default))
    }
}

fn parse(key: &'static Key, text: &str) -> Result<Value, Wrong> {
    let wrong = || Wrong::Value { key: key.name, value: text.to_owned(), wanted: key.kind.wanted() };
    key.kind.parse(text).ok_or_else(wrong)
}
