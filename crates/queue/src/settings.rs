//! What the operator configures: classes, and the terms of tenants.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use maitre_base::{ClassId, TenantId, hash};

use crate::limits::{Caps, WaitAtWorker};

/// Maximum classes: each takes a few lines wherever classes are shown.
pub const CLASSES_MAX: usize = 8;
/// Maximum tenants with terms of their own.
pub const TENANTS_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq)]
pub struct QueueSettings {
    /// If false no request waits in the router: each is placed on arrival, however busy the workers are.
    pub enabled: bool,
    /// In order of precedence. Never empty, at most `CLASSES_MAX`.
    pub classes: Vec<Class>,
    /// The class of requests that name none; always one of `classes`.
    pub standard: ClassId,
    /// How long a request waits before it may go before higher classes.
    pub aging: Duration,
    /// Whether a placed request of a lower class without a first byte may be recalled for one of a higher
    /// class that would miss its deadline.
    pub recall: bool,
    pub carrier: Carrier,
    /// Caps per worker, whatever was learned; zero for no cap.
    pub prefill_tokens_max: u64,
    pub sequences_max: u32,
    /// Tenants with terms of their own, by `Tenant::id`, because every request looks up its own. At most
    /// `TENANTS_MAX`.
    pub tenants: BTreeMap<TenantId, Tenant>,
    /// The terms of every other tenant, each counted separately.
    pub others: Terms,
}

/// Who sends requests to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// This router, which can take them back while they have no response.
    Router,
    /// A gateway, which asks for a worker and keeps to it.
    Gateway,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    pub name: String,
    /// Maximum queued at once.
    pub requests_max: u32,
    pub tokens_max: u64,
    /// How long a request without its own deadline may be queued; `None`: without limit.
    pub deadline: Option<Duration>,
    /// The part of the fleet that lower classes never use, even while it is idle, in [0, 1).
    pub reserve: f64,
    /// Whether another worker continues its streams when theirs fails; `None`: as set for all classes.
    pub continues: Option<bool>,
    /// Whether its requests get a second attempt before their deadline; `None`: as set for all classes.
    pub hedges: Option<bool>,
}

/// What a tenant may ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Among tenants queued in the same class.
    pub weight: f64,
    /// The highest class it may use.
    pub best: ClassId,
    /// The class of requests that name none; `QueueSettings::standard` if absent.
    pub usual: Option<ClassId>,
    pub requests_per_minute: Option<u32>,
    pub tokens_per_minute: Option<u64>,
}

impl Terms {
    pub fn are_limited(&self) -> bool {
        self.requests_per_minute.is_some() || self.tokens_per_minute.is_some()
    }
}

#[derive(Clone, PartialEq)]
pub struct Tenant {
    /// What identifies the caller: an API key, a header's value, an adapter. It may be a secret: logs and
    /// messages use `masked`.
    pub name: String,
    pub terms: Terms,
}

/// The tenant that these bytes identify. No tenant has `TenantId(0)`: that is a caller without one.
pub fn tenant(known_by: &[u8]) -> TenantId {
    TenantId(hash::bytes(0, known_by))
}

/// The part of a name that logs and messages may show.
pub fn masked(name: &str) -> String {
    /// Enough to tell a handful of tenants apart, too little to be useful as a key.
    const SHOWN: usize = 3;
    let mut shown: String = name.chars().take(SHOWN).collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    shown
}

impl Tenant {
    pub fn id(&self) -> TenantId {
        tenant(self.name.as_bytes())
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenant").field("name", &masked(&self.name)).field("terms", &self.terms).finish()
    }
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            weight: 1.0,
            best: ClassId(0),
            usual: None,
            requests_per_minute: None,
            tokens_per_minute: None,
        }
    }
}

impl Default for QueueSettings {
    fn default() -> QueueSettings {
        let class = |name: &str, deadline: Option<u64>| Class {
            name: name.to_owned(),
            // About the bodies that a router may hold: 10,000 of 100 KB.
            requests_max: 10_000,
            tokens_max: 100_000_000,
            deadline: deadline.map(Duration::from_secs),
            reserve: 0.0,
            continues: None,
            hedges: None,
        };
        QueueSettings {
            enabled: true,
            // Half a minute is about what people wait for, and about what proxies in front allow a silent
            // request.
            classes: vec![class("interactive", Some(30)), class("standard", Some(60)), class("batch", None)],
            standard: ClassId(1),
            aging: Duration::from_secs(10),
            recall: false,
            carrier: Carrier::Router,
            prefill_tokens_max: 0,
            sequences_max: 0,
            tenants: BTreeMap::new(),
            others: Terms::default(),
        }
    }
}

impl QueueSettings {
    /// The operator's caps for one worker.
    pub fn caps(&self) -> Caps {
        Caps { prefill_tokens: self.prefill_tokens_max, sequences: self.sequences_max }
    }

    /// How much of this class may wait at a worker while the class yields to no other. It is half of the longest
    /// wait, so that the two waits together do not exceed it by much more.
    pub fn wait_at_worker(&self, class: ClassId) -> WaitAtWorker {
        let longest = self.classes.get(class.index()).and_then(|it| it.deadline);
        match longest {
            _ if self.carrier == Carrier::Gateway => WaitAtWorker::Kept,
            Some(it) => WaitAtWorker::Within(it / 2),
            None => WaitAtWorker::Unlimited,
        }
    }

    /// The part of the fleet that this class may use: what is not reserved for higher classes.
    pub fn part_of(&self, class: ClassId) -> f64 {
        let reserved: f64 = self.classes.iter().take(class.index()).map(|it| it.reserve).sum();
        (1.0 - reserved).clamp(0.0, 1.0)
    }

    /// The class of this name, or of this number in order of precedence.
    pub fn class(&self, word: &str) -> Option<ClassId> {
        let named = self.classes.iter().position(|it| it.name.eq_ignore_ascii_case(word));
        let place = named.or_else(|| word.parse().ok().filter(|&it| it < self.classes.len()))?;
        u8::try_from(place).ok().map(ClassId)
    }

    /// The lowest class.
    pub fn last(&self) -> ClassId {
        ClassId(u8::try_from(self.classes.len().saturating_sub(1)).unwrap_or(u8::MAX))
    }

    pub fn terms(&self, tenant: TenantId) -> &Terms {
        self.tenants.get(&tenant).map_or(&self.others, |it| &it.terms)
    }

    /// The class of a request that asked for `asked`, or for none: never higher than its tenant's terms
    /// allow.
    pub fn allowed(&self, tenant: TenantId, asked: Option<ClassId>) -> ClassId {
        let terms = self.terms(tenant);
        asked.or(terms.usual).unwrap_or(self.standard).max(terms.best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_goes_by_its_name_or_its_number() {
        let settings = QueueSettings::default();
        for (word, expected) in [
            ("interactive", Some(0)),
            ("Batch", Some(2)),
            ("1", Some(1)),
            ("3", None),
            ("", None),
            ("-1", None),
        ] {
            assert_eq!(settings.class(word), expected.map(ClassId), "{word}");
        }
    }

    #[test]
    fn no_tenant_gets_a_higher_class_than_its_terms_allow() {
        let others = Terms { best: ClassId(1), ..Terms::default() };
        let mut settings = QueueSettings { others, ..QueueSettings::default() };
        let terms = Terms { usual: Some(ClassId(2)), ..Terms::default() };
        let team = Tenant { name: "team".to_owned(), terms };
        settings.tenants.insert(team.id(), team);
        for (name, asked, expected) in [
            ("team", None, 2),
            ("team", Some(0), 0),
            ("team", Some(1), 1),
            ("other", None, 1),
            ("other", Some(0), 1),
            ("other", Some(2), 2),
        ] {
            let actual = settings.allowed(tenant(name.as_bytes()), asked.map(ClassId));
            assert_eq!(actual, ClassId(expected), "{name} {asked:?}");
        }
        // A caller without a tenant has the terms of the others.
        assert_eq!(settings.allowed(TenantId(0), Some(ClassId(0))), ClassId(1));
    }

    #[test]
    fn a_name_is_shown_by_its_beginning_only() {
        for (name, expected) in [("sk-123456", "sk-…"), ("äöüß", "äöü…"), ("abc", "abc"), ("", "")]
        {
            assert_eq!(masked(name), expected);
        }
        let tenant = Tenant { name: "sk-123456".to_owned(), terms: Terms::default() };
        assert!(!format!("{tenant:?}").contains("123"));
    }
}
