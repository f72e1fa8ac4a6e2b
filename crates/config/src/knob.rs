//! One thing that can be set: its names, its place, its help text.

use crate::Config;
use crate::error::{ConfigError, Origin};
use crate::field::Field;
use crate::form::{Secrecy, ValueShape};

/// Knobs that are documented together.
pub struct Section {
    /// None for the main ones.
    pub title: Option<&'static str>,
    pub knobs: &'static [Knob],
}

pub struct Knob {
    pub key: &'static str,
    pub help: &'static str,
    pub(crate) field: &'static dyn Field,
    /// The flag's name where it does not follow from the key.
    flag: Option<&'static str>,
    /// Whether a change applies only when the router starts.
    pub(crate) at_restart: bool,
    /// Whether the short help lists it: most users set it, or look for it.
    pub(crate) is_common: bool,
}

/// What one source says about one knob.
#[derive(Clone)]
pub(crate) struct Assignment {
    pub(crate) knob: &'static Knob,
    pub(crate) value: RawValue,
    pub(crate) origin: Origin,
}

#[derive(Clone)]
pub(crate) enum RawValue {
    /// One text; a knob that takes a list splits it at its commas.
    One(String),
    /// Items of a file, each with its line.
    List(Vec<(String, Origin)>),
}

pub(crate) const fn knob(key: &'static str, field: &'static dyn Field, help: &'static str) -> Knob {
    Knob { key, help, field, flag: None, at_restart: false, is_common: false }
}

/// The variable of the setting with this key.
pub(crate) fn variable(key: &str) -> String {
    format!("MAITRE_{}", key.replace('.', "_").to_uppercase())
}

impl Knob {
    /// For what is built into a router when it starts: sockets, threads, files, tables.
    pub(crate) const fn at_restart(self) -> Knob {
        Knob { at_restart: true, ..self }
    }

    pub(crate) const fn common(self) -> Knob {
        Knob { is_common: true, ..self }
    }

    /// What the short help says: the help text up to its first list, aside or full stop.
    pub(crate) fn summary(&self) -> &'static str {
        let ends = [". ", "; ", ": "].into_iter().filter_map(|it| self.help.find(it));
        self.help[..ends.min().unwrap_or(self.help.len())].trim_end_matches('.')
    }

    pub(crate) const fn with_flag(self, name: &'static str) -> Knob {
        Knob { flag: Some(name), ..self }
    }

    /// With its dashes.
    pub fn flag(&self) -> String {
        format!("--{}", self.flag.unwrap_or(self.key).replace(['.', '_'], "-"))
    }

    pub fn variable(&self) -> String {
        variable(self.key)
    }

    /// The default, as a flag or a variable would say it; empty for an empty list.
    pub fn default(&self) -> String {
        self.field.texts(&Config::default()).join(",")
    }

    /// One word for what is written here, such as `DURATION`.
    pub fn form(&self) -> &'static str {
        self.field.form()
    }

    /// The value as a line of a TOML file; a comment if it is more secret than `most`.
    pub(crate) fn line(&self, config: &Config, most: Secrecy) -> String {
        match self.field.secrecy(config) <= most {
            true => format!("{} = {}\n", self.key, self.field.toml(config)),
            false => format!("# {} is set, and not shown\n", self.key),
        }
    }

    pub(crate) fn set(&self, config: &mut Config, given: &Assignment) -> Result<(), Vec<ConfigError>> {
        let error = |origin: &Origin, what: String| ConfigError {
            origin: origin.clone(),
            key: Some(self.key.to_owned()),
            what,
        };
        let items: Vec<(&str, &Origin)> = match (&given.value, self.field.shape()) {
            (RawValue::List(items), ValueShape::List(_) | ValueShape::Map(_)) => {
                items.iter().map(|(item, origin)| (item.trim(), origin)).collect()
            }
            (RawValue::List(_), _) => {
                return Err(vec![error(&given.origin, "takes one value, not a list".to_owned())]);
            }
            (RawValue::One(text), ValueShape::List(_) | ValueShape::Map(_)) if text.trim().is_empty() => {
                Vec::new()
            }
            (RawValue::One(text), ValueShape::List(_) | ValueShape::Map(_)) => {
                text.split(',').map(|item| (item.trim(), &given.origin)).collect()
            }
            (RawValue::One(text), _) => vec![(text.as_str(), &given.origin)],
        };
        // On failure a list stays half filled; the errors prevent its use.
        self.field.clear(config);
        let failed =
            |(item, origin): (&str, &Origin)| Some(error(origin, self.field.set(config, item).err()?));
        let errors: Vec<ConfigError> = items.into_iter().filter_map(failed).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}
