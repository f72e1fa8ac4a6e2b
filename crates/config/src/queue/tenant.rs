//! A tenant's terms as one text: `team-a?weight=3&best=standard&usual=batch&rpm=600&tpm=1000000`.
//!
//! The name may be a secret key, so an error shows only its beginning; the line number tells the rest.

use std::fmt;
use std::ops::RangeInclusive;

use maitre_queue::settings::{TENANTS_MAX, masked};

use super::class::CLASS_NAME;
use crate::field::{List, twice};
use crate::form::{Count, Custom, Form, ItemTable, Ratio, Secrecy};
use crate::options;

pub(crate) const TENANT_LIST: List<Custom<TenantTerms>> = List {
    item: Custom { name: "TENANT", read, show, secrecy: |_| Secrecy::ForFiles },
    add,
    table: Some(ItemTable { by_name: true, shown: masked, ..ItemTable::new("a tenant", "name") }),
};

/// The terms of every tenant that has none of its own.
pub(super) const OTHERS: &str = "*";

const OPTIONS: &str = "weight, best, usual, rpm and tpm";
/// Chosen: a thousand to one and a thousandth to one.
const WEIGHTS: RangeInclusive<f64> = 0.001..=1_000.0;
/// Chosen: longer than any key.
const NAME_BYTES_MAX: usize = 4_096;
/// A minute. Chosen: beyond these there is no limit.
pub(crate) const REQUESTS: Count<u32> = Count(1..=1_000_000_000);
pub(crate) const TOKENS: Count<u64> = Count(1..=1_000_000_000_000);

/// Terms, with classes by their names.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TenantTerms {
    pub(super) name: TenantName,
    pub(super) weight: f64,
    pub(super) best: Option<String>,
    pub(super) usual: Option<String>,
    pub(super) requests_per_minute: Option<u32>,
    pub(super) tokens_per_minute: Option<u64>,
}

/// May be a key: `Debug` shows only its beginning.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TenantName(pub(super) String);

impl fmt::Debug for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&masked(&self.0))
    }
}

/// Keeps tenants sorted by name, so that their order in the file does not count as a change.
fn add(tenants: &mut Vec<TenantTerms>, terms: TenantTerms, _: &str) -> Result<(), String> {
    let named = tenants.iter().filter(|it| it.name.0 != OTHERS).count();
    let shown = masked(&terms.name.0);
    match tenants.binary_search_by(|it| it.name.cmp(&terms.name)) {
        Ok(_) => Err(twice(&shown)),
        Err(_) if named == TENANTS_MAX && terms.name.0 != OTHERS => {
            Err(format!("{shown} is one too many; there can be {TENANTS_MAX} tenants"))
        }
        Err(place) => {
            tenants.insert(place, terms);
            Ok(())
        }
    }
}

fn read(text: &str) -> Result<TenantTerms, String> {
    let (name, options) = options::split(text);
    if !is_name(name) {
        let what = "names no tenant; write \"team-a?weight=3\", or \"*?weight=3\" for all other tenants";
        return Err(what.to_owned());
    }
    let mut terms = TenantTerms {
        name: TenantName(name.to_owned()),
        weight: 1.0,
        best: None,
        usual: None,
        requests_per_minute: None,
        tokens_per_minute: None,
    };
    // Where a key holds a question mark, an unknown option may be the rest of it.
    let errors = options::read(options, OPTIONS, masked, |option, value| {
        Some(match option {
            "weight" => Ratio(WEIGHTS).read(value).map(|it| terms.weight = it),
            "best" => CLASS_NAME.read(value).map(|it| terms.best = Some(it)),
            "usual" => CLASS_NAME.read(value).map(|it| terms.usual = Some(it)),
            "rpm" => REQUESTS.read(value).map(|it| terms.requests_per_minute = Some(it)),
            "tpm" => TOKENS.read(value).map(|it| terms.tokens_per_minute = Some(it)),
            _ => return None,
        })
    });
    options::check(&masked(name), &errors)?;
    Ok(terms)
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control)
}

/// The name of one tenant.
pub(crate) fn name(text: &str) -> Result<String, String> {
    match is_name(text) && text != OTHERS {
        true => Ok(text.to_owned()),
        false => Err("names no tenant; write it as in \"tenant=team-a\"".to_owned()),
    }
}

fn show(terms: &TenantTerms) -> String {
    let options = [
        (terms.weight != 1.0).then(|| format!("weight={}", terms.weight)),
        terms.best.as_ref().map(|it| format!("best={it}")),
        terms.usual.as_ref().map(|it| format!("usual={it}")),
        terms.requests_per_minute.map(|it| format!("rpm={it}")),
        terms.tokens_per_minute.map(|it| format!("tpm={it}")),
    ];
    options::join(&terms.name.0, options)
}
