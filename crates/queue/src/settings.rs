//! What an operator may say about who goes first: classes, and the terms of tenants.

use std::time::Duration;

use maitre_base::ClassId;

/// Most classes there can be: a class is a handful of lines everywhere it is shown.
pub const CLASSES_MAX: usize = 8;
/// Most tenants that may have terms of their own.
pub const TENANTS_MAX: usize = 10_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Without it nobody waits here: requests are seated as they come, however busy workers are.
    pub enabled: bool,
    /// In order of precedence, the first goes first. Never empty, at most `CLASSES_MAX`.
    pub classes: Vec<Class>,
    /// Of whoever asks for none. Its number, which is always one of `classes`.
    pub standard: ClassId,
    /// How long one waits before those of higher classes no longer all go first.
    pub aging: Duration,
    /// A seated request of a lower class that has no first byte yet may be called back for one of a higher class that
    /// would miss its deadline.
    pub recall: bool,
    /// At one worker at most, whatever was learned; zero for no such limit.
    pub prefill_tokens_max: u64,
    pub sequences_max: u32,
    /// Those with terms of their own.
    pub tenants: Vec<Tenant>,
    /// Of everybody else, each by itself.
    pub others: Terms,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    pub name: String,
    /// Waiting at once, at most.
    pub requests_max: u32,
    pub tokens_max: u64,
    /// From arrival to the first token, where the request does not say; none to wait as long as it takes.
    pub deadline: Option<Duration>,
    /// The part of the fleet that classes below never take, even while it is idle, in [0, 1).
    pub reserve: f64,
}

/// What one who pays may ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Beside others that wait in the same class.
    pub weight: f64,
    /// The best class it may use.
    pub best: ClassId,
    /// The class of requests that name none; `Settings::standard` if none is said here.
    pub usual: Option<ClassId>,
    pub requests_per_minute: Option<u32>,
    pub tokens_per_minute: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// What the caller is known by: an API key, the value of a header, an adapter.
    pub name: String,
    pub terms: Terms,
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

impl Default for Settings {
    fn default() -> Settings {
        let class = |name: &str, deadline: Option<u64>| Class {
            name: name.to_owned(),
            // About what a router may hold of bodies: 10,000 of 100 KB.
            requests_max: 10_000,
            tokens_max: 100_000_000,
            deadline: deadline.map(Duration::from_secs),
            reserve: 0.0,
        };
        Settings {
            enabled: true,
            // Half a minute is about what people wait for, and what proxies before us give a silent request.
            classes: vec![class("interactive", Some(30)), class("standard", Some(60)), class("batch", None)],
            standard: ClassId(1),
            aging: Duration::from_secs(10),
            recall: false,
            prefill_tokens_max: 0,
            sequences_max: 0,
            tenants: Vec::new(),
            others: Terms::default(),
        }
    }
}

impl Settings {
    /// The class of this name, or of this number in order of precedence.
    pub fn class(&self, word: &str) -> Option<ClassId> {
        let named = self.classes.iter().position(|it| it.name.eq_ignore_ascii_case(word));
        let place = named.or_else(|| word.parse().ok().filter(|&it| it < self.classes.len()))?;
        u8::try_from(place).ok().map(ClassId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_goes_by_its_name_or_its_number() {
        let settings = Settings::default();
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
}
