//! Logs when a worker lists other models than before: most likely its engine was started again with another one.

use std::collections::HashSet;

use maitre_dialect::models::CardList;
use tracing::{info, warn};

/// Models that a line names. A worker may list thousands of adapters.
const NAMED_MAX: usize = 8;

/// Compares two lists of the same worker.
pub(crate) fn log_change(worker: &str, before: &CardList, now: &CardList) {
    // Every few seconds, and nearly always the same.
    if ids(before).eq(ids(now)) {
        return;
    }
    let (gone, new) = (missing(before, now), missing(now, before));
    if !gone.is_empty() {
        let serves = named(ids(now).collect());
        warn!(worker, gone = named(gone), serves, "the worker no longer serves models that it served");
    } else if !new.is_empty() {
        info!(worker, new = named(new), "the worker serves more models");
    }
}

fn ids(list: &CardList) -> impl Iterator<Item = &str> {
    list.models().map(|it| it.id.as_str())
}

/// Those of a list that the other one lacks.
fn missing<'a>(list: &'a CardList, other: &CardList) -> Vec<&'a str> {
    let other: HashSet<&str> = ids(other).collect();
    ids(list).filter(|it| !other.contains(it)).collect()
}

fn named(mut ids: Vec<&str>) -> String {
    let more = ids.len().saturating_sub(NAMED_MAX);
    ids.truncate(NAMED_MAX);
    let named = ids.join(", ");
    if more == 0 { named } else { format!("{named} and {more} more") }
}

#[cfg(test)]
mod tests {
    use maitre_testkit::log::Log;

    use super::*;

    fn list(ids: &[&str]) -> CardList {
        let cards: Vec<String> = ids.iter().map(|it| format!("{{\"id\":\"{it}\"}}")).collect();
        CardList::read(format!("{{\"data\":[{}]}}", cards.join(",")).as_bytes()).unwrap()
    }

    #[track_caller]
    fn check(before: &[&str], now: &[&str], expected: Option<&[&str]>) {
        let log = Log::new();
        log_change("http://a:1", &list(before), &list(now));
        let lines = log.with("");
        assert_eq!(lines.len(), usize::from(expected.is_some()), "{lines:?}");
        for part in expected.unwrap_or_default() {
            assert!(lines[0].contains(part), "{part} in {lines:?}");
        }
    }

    #[test]
    fn a_change_of_models_is_named_and_the_same_models_are_not() {
        check(&["llama", "lora"], &["llama", "lora"], None);
        check(&["llama", "lora"], &["lora", "llama"], None);
        check(&["llama"], &["qwen"], Some(&["WARN", "no longer serves", "llama", "qwen"]));
        check(&["llama"], &["llama", "lora"], Some(&["INFO", "serves more", "lora"]));
        check(&["llama"], &[], Some(&["WARN", "llama"]));
        let many: Vec<String> = (0..1_000).map(|it| format!("lora-{it}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        check(&many, &["llama"], Some(&["lora-7 and 992 more"]));
    }
}
