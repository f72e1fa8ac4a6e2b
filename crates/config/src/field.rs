//! Where a knob's value is kept, and how many texts it is made of: one, a list, or a map.
//!
//! `At` joins a place in `Config` with a form. The table holds it as `dyn Field`, so that knobs of all types stand in
//! one list.

use std::collections::BTreeMap;

use crate::Config;
use crate::form::{Form, ItemTable, Secrecy, ValueShape};

/// A form of one or more texts.
pub(crate) trait Setting: Sync {
    type Value: Clone + PartialEq;

    fn form(&self) -> &'static str;
    fn shape(&self) -> ValueShape;
    /// Empties a list or a map, before its items are set one by one.
    fn clear(&self, _: &mut Self::Value) {}
    /// Sets the value, or adds an item. On failure nothing has changed.
    fn set(&self, value: &mut Self::Value, text: &str) -> Result<(), String>;
    /// The texts that `set` takes for this value: one, or one for each item.
    fn texts(&self, value: &Self::Value) -> Vec<String>;
    fn toml(&self, value: &Self::Value) -> String;
    fn secrecy(&self, value: &Self::Value) -> Secrecy;
}

impl<F: Form> Setting for F {
    type Value = F::Value;

    fn form(&self) -> &'static str {
        self.name()
    }

    fn shape(&self) -> ValueShape {
        Form::shape(self)
    }

    fn set(&self, value: &mut F::Value, text: &str) -> Result<(), String> {
        *value = self.read(text)?;
        Ok(())
    }

    fn texts(&self, value: &F::Value) -> Vec<String> {
        vec![self.show(value)]
    }

    fn toml(&self, value: &F::Value) -> String {
        match Form::shape(self) {
            ValueShape::Number | ValueShape::Switch => self.show(value),
            _ => quoted(&self.show(value)),
        }
    }

    fn secrecy(&self, value: &F::Value) -> Secrecy {
        Form::secrecy(self, value)
    }
}

/// Adds an item, which was read from the text, unless it must not be in the list.
type Add<T> = fn(&mut Vec<T>, T, &str) -> Result<(), String>;

pub(crate) struct List<F: Form> {
    pub(crate) item: F,
    pub(crate) add: Add<F::Value>,
    /// None if an item is always one text.
    pub(crate) table: Option<ItemTable>,
}

impl<F: Form> List<F> {
    pub(crate) const fn of(item: F) -> List<F> {
        List { item, add: add_once, table: None }
    }
}

fn add_once<T: PartialEq>(list: &mut Vec<T>, item: T, text: &str) -> Result<(), String> {
    if list.contains(&item) {
        return Err(twice(text));
    }
    list.push(item);
    Ok(())
}

impl<F: Form> Setting for List<F> {
    type Value = Vec<F::Value>;

    fn form(&self) -> &'static str {
        self.item.name()
    }

    fn shape(&self) -> ValueShape {
        ValueShape::List(self.table)
    }

    fn clear(&self, list: &mut Vec<F::Value>) {
        list.clear();
    }

    fn set(&self, list: &mut Vec<F::Value>, text: &str) -> Result<(), String> {
        (self.add)(list, self.item.read(text)?, text)
    }

    fn texts(&self, list: &Vec<F::Value>) -> Vec<String> {
        list.iter().map(|it| self.item.show(it)).collect()
    }

    fn toml(&self, list: &Vec<F::Value>) -> String {
        toml::Value::from(self.texts(list)).to_string()
    }

    fn secrecy(&self, list: &Vec<F::Value>) -> Secrecy {
        list.iter().map(|it| self.item.secrecy(it)).max().unwrap_or(Secrecy::Public)
    }
}

/// Values by model, each written as `MODEL=VALUE`.
pub(crate) struct ByModel<F> {
    pub(crate) name: &'static str,
    pub(crate) value: F,
    /// What a value is, for errors.
    pub(crate) what: &'static str,
    /// Finds the sign between model and value; either may hold more of them.
    pub(crate) split: fn(&str) -> Option<(&str, &str)>,
    /// The error about a text of another form, after the text itself.
    pub(crate) wrong: &'static str,
}

impl<F: Form> Setting for ByModel<F> {
    type Value = BTreeMap<String, F::Value>;

    fn form(&self) -> &'static str {
        self.name
    }

    fn shape(&self) -> ValueShape {
        ValueShape::Map(self.what)
    }

    fn clear(&self, map: &mut Self::Value) {
        map.clear();
    }

    fn set(&self, map: &mut Self::Value, text: &str) -> Result<(), String> {
        let pair = (self.split)(text).map(|(model, value)| (model.trim(), value.trim()));
        let Some((model, value)) = pair.filter(|(model, value)| !model.is_empty() && !value.is_empty())
        else {
            return Err(format!("{text:?} {}", self.wrong));
        };
        let value = self.value.read(value).map_err(|what| format!("{model}: {what}"))?;
        match map.insert(model.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err(twice(model)),
        }
    }

    fn texts(&self, map: &Self::Value) -> Vec<String> {
        map.iter().map(|(model, value)| format!("{model}={}", self.value.show(value))).collect()
    }

    fn toml(&self, map: &Self::Value) -> String {
        let pair = |(model, value): (&String, &F::Value)| {
            format!("{} = {}", quoted(model), quoted(&self.value.show(value)))
        };
        format!("{{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(", "))
    }

    fn secrecy(&self, _: &Self::Value) -> Secrecy {
        Secrecy::Public
    }
}

/// A place in the configuration, and the form of the value there.
pub(crate) struct At<S: Setting>(pub(crate) fn(&mut Config) -> &mut S::Value, pub(crate) S);

impl<S: Setting> At<S> {
    /// The place is reached through a mutable borrow; reading uses a copy instead of a second accessor.
    fn value(&self, config: &Config) -> S::Value {
        (self.0)(&mut config.clone()).clone()
    }
}

/// The same for any type of value.
pub(crate) trait Field: Sync {
    fn form(&self) -> &'static str;
    fn shape(&self) -> ValueShape;
    fn clear(&self, config: &mut Config);
    fn set(&self, config: &mut Config, text: &str) -> Result<(), String>;
    fn texts(&self, config: &Config) -> Vec<String>;
    fn toml(&self, config: &Config) -> String;
    fn secrecy(&self, config: &Config) -> Secrecy;
    fn differs(&self, one: &Config, other: &Config) -> bool;
    fn copy(&self, from: &Config, to: &mut Config);
}

impl<S: Setting> Field for At<S> {
    fn form(&self) -> &'static str {
        self.1.form()
    }

    fn shape(&self) -> ValueShape {
        self.1.shape()
    }

    fn clear(&self, config: &mut Config) {
        self.1.clear((self.0)(config));
    }

    fn set(&self, config: &mut Config, text: &str) -> Result<(), String> {
        self.1.set((self.0)(config), text)
    }

    fn texts(&self, config: &Config) -> Vec<String> {
        self.1.texts(&self.value(config))
    }

    fn toml(&self, config: &Config) -> String {
        self.1.toml(&self.value(config))
    }

    fn secrecy(&self, config: &Config) -> Secrecy {
        self.1.secrecy(&self.value(config))
    }

    fn differs(&self, one: &Config, other: &Config) -> bool {
        self.value(one) != self.value(other)
    }

    fn copy(&self, from: &Config, to: &mut Config) {
        *(self.0)(to) = self.value(from);
    }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

pub(crate) fn twice(text: &str) -> String {
    format!("{text:?} is there twice")
}
