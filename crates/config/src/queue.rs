//! The queue's settings until all sources are read.
//!
//! Classes and the settings that name them may come from different sources. So a class is kept by its name, and looked
//! up after the last source is read.

pub(crate) mod class;
pub(crate) mod tenant;

use std::collections::BTreeMap;

use maitre_base::ClassId;
use maitre_queue::{self as queue, Tenant, Terms, settings::masked};

use crate::Config;
use crate::error::Conflict;
use tenant::{OTHERS, TenantTerms};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QueueNames {
    /// The class of requests that ask for none.
    pub(crate) standard: String,
    pub(crate) tenants: Vec<TenantTerms>,
}

impl Default for QueueNames {
    fn default() -> QueueNames {
        let settings = queue::QueueSettings::default();
        let standard = settings.classes.get(settings.standard.index());
        QueueNames { standard: standard.map_or(String::new(), |it| it.name.clone()), tenants: Vec::new() }
    }
}

/// Looks up the names of classes and puts the result into the settings.
pub(crate) fn resolve(config: &mut Config) -> Vec<Conflict> {
    let settings = &config.settings.brain.queue;
    let mut conflicts = Vec::new();
    let standard = find_class(settings, &config.queue.standard).unwrap_or_else(|what| {
        conflicts.push(Conflict::new(&["queue.standard", "classes"], format!("queue.standard: {what}")));
        ClassId(0)
    });
    let reserved: f64 = settings.classes.iter().map(|it| it.reserve).sum();
    if reserved >= 1.0 {
        let what = format!("the reserves add up to {reserved}, which leaves nothing; keep their sum below 1");
        conflicts.push(Conflict::new(&["classes"], what));
    }
    let (mut tenants, mut others) = (BTreeMap::new(), Terms::default());
    for named in &config.queue.tenants {
        let mut look_up = |option: &str, class: Option<&str>| {
            let error = |what| format!("{}: {option}: {what}", masked(&named.name.0));
            let found = find_class(settings, class?).map_err(error);
            found.map_err(|what| conflicts.push(Conflict::new(&["tenants", "classes"], what))).ok()
        };
        let terms = Terms {
            weight: named.weight,
            best: look_up("best", named.best.as_deref()).unwrap_or_default(),
            usual: look_up("usual", named.usual.as_deref()),
            requests_per_minute: named.requests_per_minute,
            tokens_per_minute: named.tokens_per_minute,
        };
        if named.name.0 == OTHERS {
            others = terms;
        } else {
            let tenant = Tenant { name: named.name.0.clone(), terms };
            tenants.insert(tenant.id(), tenant);
        }
    }
    let settings = &mut config.settings.brain.queue;
    (settings.standard, settings.tenants, settings.others) = (standard, tenants, others);
    conflicts
}

pub(crate) fn find_class(settings: &queue::QueueSettings, name: &str) -> Result<ClassId, String> {
    settings.class(name).ok_or_else(|| {
        let known: Vec<&str> = settings.classes.iter().map(|it| it.name.as_str()).collect();
        format!("unknown class {name:?}; known: {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests;
