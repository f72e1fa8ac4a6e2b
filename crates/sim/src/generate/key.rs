//! What can be set in a workload's line: names, defaults and bounds, and the values that were given.

use super::Wrong;

/// Something about a workload that a line may set.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    pub default: &'static str,
    pub kind: Kind,
    pub about: &'static str,
}

/// What values a key takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Whole { least: u32, most: u32 },
    Real { least: f64, most: f64 },
    Stages,
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

    fn wanted(self) -> String {
        match self {
            Kind::Whole { least, most } => format!("a whole number from {least} to {most} is wanted"),
            Kind::Real { least, most } => format!("a number from {least} to {most} is wanted"),
            Kind::Stages => format!("up to {STAGES_MAX} of QPS:SECONDS are wanted, such as 3:20;10:20"),
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
            Kind::Stages => {
                let stages = text.split(';').filter(|it| !it.is_empty()).map(Stage::parse);
                let stages = stages.collect::<Option<Vec<Stage>>>()?;
                (stages.len() <= STAGES_MAX).then_some(Value::Stages(stages))
            }
        }
    }
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
        match (Kind::RATE.parse(qps)?, Kind::SECONDS.parse(seconds)?) {
            (Value::Number(qps), Value::Number(seconds)) => Some(Stage { qps, seconds }),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Value {
    Number(f64),
    Stages(Vec<Stage>),
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
    pub(super) fn defaults(keys: &'static [Key]) -> Result<Values, Wrong> {
        let setting = |key| Ok(Setting { key, given: None, value: parse(key, key.default)? });
        keys.iter().map(setting).collect::<Result<_, _>>().map(Values)
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
            Value::Number(_) => None,
        });
        stages.unwrap_or_default()
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
