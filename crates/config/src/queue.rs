//! The queue's settings until all sources are read: what names a class by its name.
//!
//! Classes and those who name them may come from different sources, so a name is held as it was written, and looked
//! up once the last source has spoken.

pub(super) mod class;
pub(super) mod tenant;

use std::collections::BTreeMap;
use std::fmt;

use maitre_base::ClassId;
use maitre_queue::{self as queue, Tenant, Terms, settings::masked};

use super::Config;
use tenant::{EVERYBODY, Written};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Queue {
    /// The class of whoever asks for none.
    pub(super) standard: String,
    /// The terms of tenants, by what they are known by.
    pub(super) tenants: BTreeMap<Secret, Written>,
}

/// What a tenant is known by, which may be its key: never shown whole by accident.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Secret(pub(super) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&masked(&self.0))
    }
}

impl Default for Queue {
    fn default() -> Queue {
        let settings = queue::Settings::default();
        let standard = settings.classes.get(settings.standard.index());
        Queue { standard: standard.map_or(String::new(), |it| it.name.clone()), tenants: BTreeMap::new() }
    }
}

/// Looks all names up, and says which name nothing; each with the keys it can be mended at.
pub(super) fn settle(config: &mut Config) -> Vec<(Vec<&'static str>, String)> {
    let settings = &config.settings.brain.queue;
    let mut wrong = Vec::new();
    let standard = class_called(settings, &config.queue.standard).unwrap_or_else(|what| {
        let what =
            format!("of requests that ask for none, {what}; add it, or name another with queue.standard");
        wrong.push((vec!["queue.standard", "classes"], what));
        ClassId(0)
    });
    let reserved: f64 = settings.classes.iter().map(|it| it.reserve).sum();
    if reserved >= 1.0 {
        wrong.push((
            vec!["classes"],
            format!("the reserves are {reserved} together, which leaves nothing; keep their sum below 1"),
        ));
    }
    let (mut tenants, mut others) = (BTreeMap::new(), Terms::default());
    for (Secret(name), written) in &config.queue.tenants {
        let shown = masked(name);
        let mut look_up = |part: &str, class: Option<&str>| {
            let found = class_called(settings, class?);
            found
                .map_err(|what| wrong.push((vec!["tenants", "classes"], format!("{shown}: {part}: {what}"))))
                .ok()
        };
        let terms = Terms {
            weight: written.weight,
            best: look_up("best", written.best.as_deref()).unwrap_or_default(),
            usual: look_up("usual", written.usual.as_deref()),
            requests_per_minute: written.requests_per_minute,
            tokens_per_minute: written.tokens_per_minute,
        };
        if name == EVERYBODY {
            others = terms;
        } else {
            let tenant = Tenant { name: name.clone(), terms };
            tenants.insert(tenant.id(), tenant);
        }
    }
    let settings = &mut config.settings.brain.queue;
    (settings.standard, settings.tenants, settings.others) = (standard, tenants, others);
    wrong
}

pub(super) fn class_called(settings: &queue::Settings, name: &str) -> Result<ClassId, String> {
    settings.class(name).ok_or_else(|| {
        let known: Vec<&str> = settings.classes.iter().map(|it| it.name.as_str()).collect();
        format!("no class is called {name:?}; known: {}", known.join(", "))
    })
}

/// A name, and the parts after its question mark. Of several marks the last one divides, since no part holds one.
pub(super) fn divide(text: &str) -> (&str, impl Iterator<Item = (&str, &str)>) {
    let (name, parts) = text.rsplit_once('?').unwrap_or((text, ""));
    let parts = parts.split('&').filter(|it| !it.is_empty());
    (name.trim(), parts.map(|it| it.split_once('=').unwrap_or((it, ""))))
}

/// The same as one text.
pub(super) fn join(name: &str, parts: &[String]) -> String {
    // A mark within the name must not be taken for the one after it.
    match parts.is_empty() && !name.contains('?') {
        true => name.to_owned(),
        false => format!("{name}?{}", parts.join("&")),
    }
}

/// All that is wrong with the parts of one item, told at once.
pub(super) fn told(name: &str, wrong: &[String]) -> Result<(), String> {
    if wrong.is_empty() { Ok(()) } else { Err(format!("{name}: {}", wrong.join("; "))) }
}

#[cfg(test)]
mod tests;
