//! What changes when settings are read again, and what of it has to wait for the next start.

use super::{Config, cluster, conflicts, knob, settle_all};

/// What is built into a router when it starts: sockets, threads, files, tables. A new value for one of these is told,
/// and waits.
const BUILT_IN: &[&str] = &[
    "listen",
    "admin",
    "threads",
    "seed",
    "tokenizers",
    "index.budget",
    "limits.connections",
    "limits.idle_per_worker",
    "record.file",
    "record.max_bytes",
    "record.files",
    "traces.endpoint",
    "traces.service",
    "traces.header",
    "cluster.via",
    "cluster.peers",
    "cluster.listen",
    "cluster.advertise",
    "cluster.name",
    "cluster.group",
    "cluster.key",
    "cluster.key_file",
    "cluster.wait",
    "log.format",
];

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

/// What `new` changes of `old`; what cannot change now is set back to what it was. Or why the two do not go together: a
/// file may be right by itself and wrong with what has to stay, such as one without keys for a listener that is still
/// open to everybody.
pub fn change(old: &Config, new: &mut Config) -> Result<Change, String> {
    let mut change = Change::default();
    let unseen: Vec<&str> = cluster::changed(old, new).collect();
    for knob in knob::all().filter(|it| it.toml(old) != it.toml(new) || unseen.contains(&it.key)) {
        let is_built_in = BUILT_IN.contains(&knob.key) || knob.key == "classes" && names(old) != names(new);
        if is_built_in {
            change.at_restart.push(knob.key);
        } else {
            change.now.push(knob.key);
        }
    }
    for knob in knob::all().filter(|it| change.at_restart.contains(&it.key)) {
        knob.copy(old, new);
    }
    // Not by copying what is shown of it: some of it is not.
    cluster::keep(old, new);
    if change.at_restart.contains(&"classes") {
        // What else is said of classes is said of those that stay: it waits with them.
        new.queue.clone_from(&old.queue);
        new.settings.brain.queue = old.settings.brain.queue.clone();
    }
    if !change.at_restart.is_empty() {
        // Names of classes were looked up among the new ones.
        let mut wrong = settle_all(new);
        // A file that holds its key was read again with the others.
        cluster::keep(old, new);
        wrong.extend(conflicts(new));
        if !wrong.is_empty() {
            let (waiting, wrong) = (change.at_restart.join(", "), wrong.into_iter().map(|it| it.1));
            let wrong = wrong.collect::<Vec<_>>().join("; ");
            return Err(format!("{waiting} can only change at a start, and until then: {wrong}"));
        }
    }
    Ok(change)
}

fn names(config: &Config) -> Vec<&str> {
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
    fn what_is_the_same_is_no_change() {
        check(&[("strategy", "least-delay")], &[], &[]);
    }

    #[test]
    fn most_changes_count_at_once() {
        let new = check(
            &[("strategy", "round-robin"), ("timeouts.total", "9m"), ("workers", "http://a:1")],
            &["workers", "strategy", "timeouts.total"],
            &[],
        );
        assert_eq!(new.settings.workers.len(), 1);
    }

    #[test]
    fn what_is_built_in_waits_and_stays_as_it_was() {
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

    /// What is said of settings that are right by themselves.
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
    fn what_waits_must_go_with_what_does_not() {
        // The door stays open to other machines until the next start, so it still needs its keys.
        let keys = ("keys", "a-key-of-some-length");
        check_refused(&[("listen", "0.0.0.0:80"), keys], &[], "listen can only change at a start, and until");
        check_refused(&[("listen", "0.0.0.0:80"), keys], &[], "0.0.0.0:80 is open to other machines");
        let classes = ("classes", "standard,nightly");
        let best = ("keys", "a-key-of-some-length?best=nightly");
        check_refused(
            &[],
            &[classes, best],
            "no class is called \"nightly\"; known: interactive, standard, batch",
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
    fn every_key_that_waits_is_a_key_and_documented() {
        let page = include_str!("../../../docs/reload.md");
        for key in BUILT_IN {
            assert!(knob::all().any(|it| it.key == *key), "{key}");
            assert!(page.contains(&format!("`{key}`")), "docs/reload.md does not name {key}");
        }
    }
}
