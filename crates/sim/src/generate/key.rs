//! The keys of a workload's line: names, defaults, limits and given values.

use std::sync::Arc;

use super::PlanError;
use crate::trace::{CLASSES_MAX, DEADLINE_MAX, is_name};

/// A setting of a workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadKey {
    pub name: &'static str,
    pub default: &'static str,
    pub kind: ValueType,
    pub about: &'static str,
}

/// One row of a workload's table: name, default, kind and what it is about.
pub(super) const fn key(
    name: &'static str,
    default: &'static str,
    kind: ValueType,
    about: &'static str,
) -> WorkloadKey {
    WorkloadKey { name, default, kind, about }
}

impl WorkloadKey {
    /// A line for a terminal.
    pub(super) fn help(&self) -> String {
        format!("  {:<18} {}\n", format!("{}={}", self.name, self.default), self.about)
    }
}

/// The type of a key's value.
#[derive(Clone, Copy, Debug)]
pub enum ValueType {
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
    /// Names, at most this many, each with a weight.
    Shares {
        most: usize,
    },
    /// Seconds to the first token, drawn or not, by class or for all.
    Deadlines,
}

/// Limits are chosen: far beyond any known traffic, and small enough to generate.
impl ValueType {
    pub(super) const COUNT: ValueType = ValueType::Whole { least: 1, most: 1_000_000 };
    /// A prompt after twice as many still fits a line of a file.
    pub(super) const TURNS: ValueType = ValueType::Whole { least: 1, most: 1_000 };
    pub(super) const TOKENS: ValueType = ValueType::Whole { least: 1, most: 1_000_000 };
    /// For the beginnings of prompts, which may be left out.
    pub(super) const TOKENS_OR_NONE: ValueType = ValueType::Whole { least: 0, most: 1_000_000 };
    /// Drawn lengths reach eight times their mean, and a trace takes answers of a million.
    pub(super) const ANSWER: ValueType = ValueType::Whole { least: 1, most: 100_000 };
    pub(super) const RATE: ValueType = ValueType::Real { least: 0.001, most: 100_000.0 };
    pub(super) const SECONDS: ValueType = ValueType::Real { least: 0.1, most: 1_000_000.0 };
    pub(super) const WAIT: ValueType = ValueType::Real { least: 0.0, most: 100_000.0 };
    pub(super) const EXPONENT: ValueType = ValueType::Real { least: 0.0, most: 10.0 };
    /// Other keys name classes too, and a trace has no more than twice as many.
    pub(super) const CLASSES: ValueType = ValueType::Shares { most: CLASSES_MAX / 2 };
    /// As many as a router's configuration may list.
    pub(super) const TENANTS: ValueType = ValueType::Shares { most: 10_000 };
    const WEIGHT: ValueType = ValueType::Real { least: 1e-6, most: 1e6 };
    const PATIENCE: ValueType = ValueType::Real { least: 0.001, most: DEADLINE_MAX.as_secs() as f64 };

    fn wanted(self) -> String {
        match self {
            ValueType::Whole { least, most } => format!("a whole number from {least} to {most} is expected"),
            ValueType::Real { least, most } => format!("a number from {least} to {most} is expected"),
            ValueType::Stages => {
                format!("up to {STAGES_MAX} of QPS:SECONDS are expected, such as 3:20;10:20")
            }
            ValueType::Class => "a name of 1 to 64 characters is expected".to_owned(),
            ValueType::Shares { most } => {
                format!("up to {most} of NAME:SHARE are expected, each share above 0, such as a:0.2;b:0.8")
            }
            ValueType::Deadlines => {
                "seconds from 0.001 to 86400 are expected, such as 2, 0.5-3 or interactive:1;batch:30-60"
                    .to_owned()
            }
        }
    }

    fn parse(self, text: &str) -> Option<KeyValue> {
        match self {
            ValueType::Whole { least, most } => {
                let number: u32 = text.parse().ok()?;
                (least..=most).contains(&number).then_some(KeyValue::Number(f64::from(number)))
            }
            ValueType::Real { least, most } => {
                let number: f64 = text.parse().ok()?;
                (least..=most).contains(&number).then_some(KeyValue::Number(number))
            }
            ValueType::Stages => list(text, STAGES_MAX, Stage::parse).map(KeyValue::Stages),
            ValueType::Class => {
                let class = Some(text).filter(|it| !it.is_empty());
                class.is_none_or(is_name).then(|| KeyValue::Class(class.map(Into::into)))
            }
            ValueType::Shares { most } => list(text, most, WeightedName::parse).map(KeyValue::Shares),
            ValueType::Deadlines => list(text, CLASSES_MAX, Deadline::parse).map(KeyValue::Deadlines),
        }
    }

    fn number(self, text: &str) -> Option<f64> {
        match self.parse(text)? {
            KeyValue::Number(number) => Some(number),
            _ => None,
        }
    }
}

/// The items between semicolons.
fn list<T>(text: &str, most: usize, parse: fn(&str) -> Option<T>) -> Option<Vec<T>> {
    let all: Vec<T> = text.split(';').filter(|it| !it.is_empty()).map(parse).collect::<Option<_>>()?;
    (all.len() <= most).then_some(all)
}

const STAGES_MAX: usize = 1_000;
/// The keys that stages replace.
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
        Some(Stage { qps: ValueType::RATE.number(qps)?, seconds: ValueType::SECONDS.number(seconds)? })
    }
}

/// A name and its weight.
#[derive(Clone, Debug)]
pub(super) struct WeightedName {
    pub(super) name: Arc<str>,
    pub(super) weight: f64,
}

impl WeightedName {
    fn parse(text: &str) -> Option<WeightedName> {
        let (name, weight) = text.split_once(':')?;
        let weight = ValueType::WEIGHT.number(weight)?;
        is_name(name).then(|| WeightedName { name: name.into(), weight })
    }
}

/// Seconds to the first token: `least`, or drawn between `least` and `most`.
#[derive(Clone, Debug)]
pub(super) struct Deadline {
    /// The class it applies to; `None` applies to all that no earlier one covers.
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
        let (least, most) = (ValueType::PATIENCE.number(least)?, ValueType::PATIENCE.number(most)?);
        (least <= most).then(|| Deadline { class: class.map(Into::into), least, most })
    }
}

#[derive(Clone, Debug)]
enum KeyValue {
    Number(f64),
    Stages(Vec<Stage>),
    Class(Option<Arc<str>>),
    Shares(Vec<WeightedName>),
    Deadlines(Vec<Deadline>),
}

#[derive(Clone, Debug)]
struct Setting {
    key: &'static WorkloadKey,
    /// As written in the line; None is the default.
    given: Option<String>,
    value: KeyValue,
}

/// A value for every key of a workload, each within its bounds.
#[derive(Clone, Debug)]
pub(super) struct Values(Vec<Setting>);

impl Values {
    pub(super) fn defaults(keys: impl Iterator<Item = &'static WorkloadKey>) -> Result<Values, PlanError> {
        let setting = |key| Ok(Setting { key, given: None, value: parse(key, key.default)? });
        keys.map(setting).collect::<Result<_, _>>().map(Values)
    }

    pub(super) fn set(&mut self, name: &str, text: &str) -> Result<(), PlanError> {
        for setting in self.0.iter_mut().filter(|it| it.key.name == name) {
            if setting.given.is_some() {
                return Err(PlanError::Twice(setting.key.name));
            }
            setting.value = parse(setting.key, text)?;
            setting.given = Some(text.to_owned());
        }
        Ok(())
    }

    pub(super) fn real(&self, name: &str) -> f64 {
        match self.value(name) {
            Some(&KeyValue::Number(number)) => number,
            _ => 0.0,
        }
    }

    pub(super) fn whole(&self, name: &str) -> u32 {
        self.real(name) as u32
    }

    /// Empty if the workload has no such key.
    pub(super) fn stages(&self) -> &[Stage] {
        let stages = self.0.iter().find_map(|it| match &it.value {
            KeyValue::Stages(stages) => Some(&stages[..]),
            _ => None,
        });
        stages.unwrap_or_default()
    }

    pub(super) fn class(&self, name: &str) -> Option<Arc<str>> {
        match self.value(name) {
            Some(KeyValue::Class(class)) => class.clone(),
            _ => None,
        }
    }

    pub(super) fn shares(&self, name: &str) -> &[WeightedName] {
        match self.value(name) {
            Some(KeyValue::Shares(shares)) => shares,
            _ => &[],
        }
    }

    pub(super) fn deadlines(&self) -> &[Deadline] {
        match self.value("deadline") {
            Some(KeyValue::Deadlines(deadlines)) => deadlines,
            _ => &[],
        }
    }

    /// Two rates would be ambiguous.
    pub(super) fn check_stages(&self) -> Result<(), PlanError> {
        match self.0.iter().find(|it| it.given.is_some() && self.is_staged(it)) {
            Some(double) => Err(PlanError::Stages(double.key.name)),
            None => Ok(()),
        }
    }

    /// `key=value` of the given keys.
    pub(super) fn given(&self) -> Vec<String> {
        self.0.iter().filter(|it| it.given.is_some()).map(Setting::text).collect()
    }

    /// `key=value` of all keys in effect.
    pub(super) fn all(&self) -> Vec<String> {
        let counts = |it: &&Setting| !it.text().ends_with('=') && !self.is_staged(it);
        self.0.iter().filter(counts).map(Setting::text).collect()
    }

    fn is_staged(&self, setting: &Setting) -> bool {
        !self.stages().is_empty() && STAGED.contains(&setting.key.name)
    }

    fn value(&self, name: &str) -> Option<&KeyValue> {
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

fn parse(key: &'static WorkloadKey, text: &str) -> Result<KeyValue, PlanError> {
    let wrong = || PlanError::Value { key: key.name, value: text.to_owned(), wanted: key.kind.wanted() };
    key.kind.parse(text).ok_or_else(wrong)
}
