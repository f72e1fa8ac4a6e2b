//! One thing that can be set: its names, its default, its sentence.

use super::error::{Error, Place};
use super::field::Field;
use super::{Config, table};

/// Knobs that are read about together.
#[derive(Debug)]
pub struct Section {
    /// None for the few that most people set.
    pub title: Option<&'static str>,
    pub knobs: &'static [Knob],
}

#[derive(Debug)]
pub struct Knob {
    pub key: &'static str,
    pub help: &'static str,
    pub(super) field: Field,
}

/// What one source says about one knob.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) knob: &'static Knob,
    pub(super) written: Written,
    pub(super) place: Place,
}

#[derive(Clone, Debug)]
pub(super) enum Written {
    /// One text; a knob that takes a list splits it at its commas.
    One(String),
    /// Items that a file keeps apart, on lines of their own.
    List(Vec<(String, Place)>),
}

impl Knob {
    /// With its dashes.
    pub fn flag(&self) -> String {
        let name = match self.key {
            // The list is `workers`, but each flag names one worker.
            "workers" => "worker",
            // To name the file is to ask for the record.
            "record.file" => "record",
            // To say how is to ask for it.
            "cluster.via" => "cluster",
            "cluster.peers" => "peer",
            key => key,
        };
        format!("--{}", name.replace(['.', '_'], "-"))
    }

    pub fn variable(&self) -> String {
        format!("MAITRE_{}", self.key.replace('.', "_").to_uppercase())
    }

    /// The default, as a flag or a variable would say it; empty for an empty list.
    pub fn default(&self) -> String {
        self.field.texts(&Config::default()).join(",")
    }

    /// One word for what is written here, such as `DURATION`.
    pub fn form(&self) -> &'static str {
        self.field.form()
    }

    /// Whether the value is not for showing.
    pub(super) fn hides(&self, config: &Config) -> bool {
        self.field.hides(config)
    }

    /// The value in `config`, as TOML.
    pub(super) fn toml(&self, config: &Config) -> String {
        self.field.toml(config)
    }

    /// Gives `to` the value that `from` has.
    pub(super) fn copy(&self, from: &Config, to: &mut Config) {
        self.field.clear(to);
        for text in self.field.texts(from) {
            // It was read from such a text before.
            let _ = self.field.set(to, &text);
        }
    }

    pub(super) fn set(&self, config: &mut Config, given: &Given) -> Result<(), Vec<Error>> {
        let error =
            |place: &Place, what| Error { place: place.clone(), key: Some(self.key.to_owned()), what };
        match (&given.written, self.field.is_list()) {
            (Written::One(text), false) => {
                self.field.set(config, text).map_err(|what| vec![error(&given.place, what)])
            }
            (Written::List(_), false) => {
                Err(vec![error(&given.place, "takes one value, not a list".to_owned())])
            }
            (Written::One(text), true) => {
                let items = text.split(',').map(|item| (item, &given.place));
                self.fill(config, items.filter(|_| !text.trim().is_empty()), error)
            }
            (Written::List(items), true) => {
                self.fill(config, items.iter().map(|(item, place)| (item.as_str(), place)), error)
            }
        }
    }

    /// On failure the list is left half filled; the errors see to it that nobody uses it.
    fn fill<'a>(
        &self,
        config: &mut Config,
        items: impl Iterator<Item = (&'a str, &'a Place)>,
        error: impl Fn(&Place, String) -> Error,
    ) -> Result<(), Vec<Error>> {
        self.field.clear(config);
        let wrong =
            |(item, place): (&str, &Place)| Some(error(place, self.field.set(config, item.trim()).err()?));
        let errors: Vec<Error> = items.filter_map(wrong).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}

pub(super) fn all() -> impl Iterator<Item = &'static Knob> {
    table::SECTIONS.iter().flat_map(|section| section.knobs)
}
