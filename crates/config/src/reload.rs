//! What changes when settings are read again, and which changes apply only at the next start.

use crate::{Config, conflicts, resolve_all, table};

/// Keys whose values differ, in the order of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub now: Vec<&'static str>,
    pub at_restart: Vec<&'static str>,
}

impl Change {
    pub fn is_none(&self) -> bool {
        self.now.is_empty() && self.at_restart.is_empty()
    }
}

/// The changes from `old` to `new`. Sets what can only change at a start back to the old value.
///
/// Fails if the new settings conflict with what stays until then: a file without keys, say, for a listener that other
/// machines can still reach.
pub fn change(old: &Config, new: &mut Config) -> Result<Change, String> {
    let mut change = Change::default();
    let has_file = new.secrets.cluster_key_file.is_some();
    let other_content = has_file && old.cluster.secret != new.cluster.secret;
    for knob in table::all() {
        let is_file_changed = knob.key == "cluster.key_file" && other_content;
        if !is_file_changed && !knob.field.differs(old, new) {
            continue;
        }
        // Classes may get other limits at any time, but their number and order are built in.
        match knob.at_restart || knob.key == "classes" && class_names(old) != class_names(new) {
            true => change.at_restart.push(knob.key),
            false => change.now.push(knob.key),
        }
    }
    if change.at_restart.is_empty() {
        return Ok(change);
    }
    for knob in table::all().filter(|it| change.at_restart.contains(&it.key)) {
        knob.field.copy(old, new);
    }
    if change.at_restart.contains(&"classes") {
        // Other settings of the queue may name the new classes: they wait, too.
        new.queue.clone_from(&old.queue);
        new.settings.brain.queue = old.settings.brain.queue.clone();
    }
    let mut found = resolve_all(new);
    // The file of the cluster's key was read again with the others.
    new.cluster.secret.clone_from(&old.cluster.secret);
    new.settings.cluster.clone_from(&old.settings.cluster);
    found.extend(conflicts(new));
    if found.is_empty() {
        return Ok(change);
    }
    let waiting = change.at_restart.join(", ");
    let what = found.into_iter().map(|it| it.what).collect::<Vec<_>>().join("; ");
    Err(format!("{waiting} can change only at a start, and until then: {what}"))
}

fn class_names(config: &Config) -> Vec<&str> {
    config.settings.brain.queue.classes.iter().map(|it| it.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set;

    #[track_caller]
    fn check(settings: &[(&str, &str)], now: &[&str], at_restart: &[&str]) -> Config {
        let (old, mut new) = (Config::default(), Config::default());
        for (key, text) in settings {
            set(&mut new, key, text).unwrap();
        }
        let change = change(&old, &mut new).unwrap();
        assert_eq!((change.now.as_slice(), change.at_restart.as_slice()), (now, at_restart));
        new
    }

    #[test]
    fn equal_settings_are_no_change() {
        check(&[("strategy", "least-delay")], &[], &[]);
    }

    #[test]
    fn most_changes_apply_at_once() {
        let new = check(
            &[("strategy", "round-robin"), ("timeouts.total", "9m"), ("workers", "http://a:1")],
            &["workers", "strategy", "timeouts.total"],
            &[],
        );
        assert_eq!(new.settings.workers.len(), 1);
    }

    #[test]
    fn a_change_that_needs_a_restart_keeps_the_old_value() {
        let new = check(
            &[("listen", "127.0.0.1:9999"), ("index.budget", "64MiB"), ("timeouts.total", "9m")],
            &["timeouts.total"],
            &["listen", "index.budget"],
        );
        let old = Config::default();
        assert_eq!(new.settings.listen, old.settings.listen);
        assert_eq!(new.settings.brain.index.budget_bytes, old.settings.brain.index.budget_bytes);
    }

    #[test]
    fn a_class_may_allow_more_but_not_come_or_go() {
        let same = "interactive?deadline=5s,standard,batch";
        let new = check(&[("classes", same)], &["classes"], &[]);
        assert_eq!(new.settings.brain.queue.classes[0].deadline, Some(std::time::Duration::from_secs(5)));
        let new = check(&[("classes", "standard,batch")], &[], &["classes"]);
        assert_eq!(new.settings.brain.queue.classes.len(), 3);
    }

    /// Settings that are valid alone, but refused as a change.
    #[track_caller]
    fn check_refused(before: &[(&str, &str)], after: &[(&str, &str)], part: &str) {
        let made = |settings: &[(&str, &str)]| {
            let mut config = Config::default();
            settings.iter().for_each(|(key, text)| set(&mut config, key, text).unwrap());
            config
        };
        let said = change(&made(before), &mut made(after)).unwrap_err();
        assert!(said.contains(part), "{said}");
    }

    #[test]
    fn a_change_that_conflicts_with_a_pending_one_is_refused() {
        // The listener accepts other machines until the next start, so it still needs its keys.
        let keys = ("keys", "a-key-of-some-length");
        check_refused(&[("listen", "0.0.0.0:80"), keys], &[], "listen can change only at a start, and until");
        check_refused(
            &[("listen", "0.0.0.0:80"), keys],
            &[],
            "0.0.0.0:80 accepts other machines without a key",
        );
        let classes = ("classes", "standard,nightly");
        let best = ("keys", "a-key-of-some-length?best=nightly");
        check_refused(
            &[],
            &[classes, best],
            "unknown class \"nightly\"; known: interactive, standard, batch",
        );
    }

    #[test]
    fn certificates_and_samples_change_at_once_and_collectors_do_not() {
        check(
            &[
                ("tls.cert", "c"),
                ("tls.key", "k"),
                ("worker_tls.ca", "a"),
                ("traces.sample", "0.5"),
                ("traces.endpoint", "http://a:1"),
            ],
            &["tls.cert", "tls.key", "worker_tls.ca", "traces.sample"],
            &["traces.endpoint"],
        );
    }

    #[test]
    fn the_headers_of_a_collector_are_not_shown() {
        let mut config = Config::default();
        set(&mut config, "traces.header", "authorization=Bearer sesame").unwrap();
        let shown = config.to_string();
        assert!(!shown.contains("sesame") && shown.contains("# traces.header is set"), "{shown}");
    }

    #[test]
    fn every_key_that_needs_a_restart_is_documented() {
        let page = include_str!("../../../docs/reload.md");
        for knob in table::all().filter(|it| it.at_restart) {
            assert!(page.contains(&format!("`{}`", knob.key)), "docs/reload.md does not name {}", knob.key);
        }
    }
}
