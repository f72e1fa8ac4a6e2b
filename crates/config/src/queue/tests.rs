//! Classes and tenants, from any source: what is accepted, what is refused and how that reads.

use std::fmt::Write as _;

use maitre_queue::settings::tenant;

use super::*;
use crate::form::Form as _;
use crate::tests::{check, check_toml, check_yaml, read, start};

fn classes(config: &Config) -> String {
    let classes: Vec<String> =
        config.settings.brain.queue.classes.iter().map(|it| class::CLASS_LIST.item.show(it)).collect();
    classes.join(" ")
}

fn terms(config: &Config, name: &str) -> Terms {
    *config.settings.brain.queue.terms(tenant(name.as_bytes()))
}

#[test]
fn the_defaults_are_those_of_the_queue() {
    let mut config = Config::default();
    assert_eq!(resolve(&mut config), []);
    assert_eq!(config.settings.brain.queue, queue::QueueSettings::default());
}

#[test]
fn classes_are_tables_or_texts_in_the_order_in_which_they_are_written() {
    let expected = "z?deadline=2s&reserve=0.2 standard?requests=5&deadline=1m a?deadline=none";
    for (name, text) in [
        (
            "m.toml",
            "[classes.z]\ndeadline = \"2s\"\nreserve = 0.2\n[classes.standard]\nrequests = 5\n[classes.a]",
        ),
        (
            "m.toml",
            "classes = { z = { reserve = 0.2, deadline = \"2s\" }, standard = { requests = 5 }, a = {} }",
        ),
        (
            "m.toml",
            "[[classes]]\nname = \"z\"\ndeadline = \"2s\"\nreserve = 0.2\n[[classes]]\nname = \"standard\"\nrequests = 5\n[[classes]]\nname = \"a\"",
        ),
        ("m.toml", "classes = [\"z?deadline=2s&reserve=0.2\", \"standard?requests=5\", \"a\"]"),
        ("m.yaml", "classes:\n  z:\n    deadline: 2s\n    reserve: 0.2\n  standard: {requests: 5}\n  a:"),
        ("m.yaml", "classes:\n- {name: z, deadline: 2s, reserve: 0.2}\n- standard?requests=5\n- name: a"),
    ] {
        let config = read(name, text).unwrap();
        assert_eq!(classes(&config), expected, "{text}");
        assert_eq!(config.settings.brain.queue.standard, ClassId(1), "{text}");
    }
    let config = start(&["--classes", "z", "--classes", "y?deadline=none", "--queue-standard", "y"], &[]);
    assert_eq!(classes(&config.unwrap()), "z?deadline=none y?deadline=none");
}

#[test]
fn a_built_in_class_keeps_unset_values() {
    let config = read("m.toml", "classes = \"interactive?reserve=0.1,standard,batch\"").unwrap();
    assert_eq!(
        classes(&config),
        "interactive?deadline=30s&reserve=0.1 standard?deadline=1m batch?deadline=none"
    );
    let config = read("m.toml", "classes = \"standard?deadline=none\"").unwrap();
    assert_eq!(classes(&config), "standard?deadline=none");
}

#[test]
fn all_errors_in_classes_are_reported() {
    check_toml(
        "classes = [\n\"standard?colour=1&deadline=5&reserve=1\",\n\"a b\",\n\"7\",\n\"x\",\n\"X\",\n]",
        &[
            "m.toml:2: classes: standard: unknown option \"colour\"; known: requests, tokens, deadline, reserve, continue and hedge; deadline: \"5\" has no unit; write \"5s\", or none; reserve: \"1\" is out of range; write 0 to 0.99",
            "m.toml:3: classes: \"a b\" is not the name of a class; write letters, digits and -_. but not a number alone, as in \"interactive\"",
            "m.toml:4: classes: \"7\" is not the name of a class; write letters, digits and -_. but not a number alone, as in \"interactive\"",
            "m.toml:6: classes: \"X\" is there twice",
        ],
    );
    check_toml(
        "[classes]\nstandard = 5\nb = { deadline = [1] }",
        &["m.toml:2: classes: standard: takes a table", "m.toml:3: classes: deadline of b takes one value"],
    );
    check_toml(
        "[[classes]]\ndeadline = \"1s\"",
        &["m.toml:1: classes: a class has no name; write name = \"…\""],
    );
    check(
        start(&["--classes", "standard,a,b,c,d,e,f,g,h"], &[]),
        &["--classes: \"h\" is one too many; there can be 8 classes"],
    );
    check_yaml(
        "classes:\n- standard?reserve=0.5\n- b?reserve=0.5",
        &["m.yaml:1: classes: the reserves add up to 1, which leaves nothing; keep their sum below 1"],
    );
}

#[test]
fn the_standard_class_is_one_of_the_classes() {
    check_toml(
        "[classes.gold]\n[classes.silver]",
        &["m.toml:1: classes: queue.standard: unknown class \"standard\"; known: gold, silver"],
    );
    check_toml(
        "queue.standard = \"gold\"",
        &["m.toml:1: queue.standard: unknown class \"gold\"; known: interactive, standard, batch"],
    );
    // Whichever source each of them comes from.
    let config = start(&["--queue-standard", "gold"], &[("MAITRE_CLASSES", "best,gold")]).unwrap();
    assert_eq!(config.settings.brain.queue.standard, ClassId(1));
}

#[test]
fn tenants_are_tables_or_texts() {
    for (name, text) in [
        (
            "m.toml",
            "[tenants.team-a]\nweight = 3\nbest = \"standard\"\nusual = \"batch\"\nrpm = 600\ntpm = 1000000\n[tenants.\"*\"]\nbest = \"batch\"",
        ),
        (
            "m.yaml",
            "tenants:\n  team-a: {weight: 3, best: standard, usual: batch, rpm: 600, tpm: 1000000}\n  '*':\n    best: batch",
        ),
        (
            "m.toml",
            "tenants = [\"team-a?weight=3&best=standard&usual=batch&rpm=600&tpm=1000000\", { name = \"*\", best = \"batch\" }]",
        ),
    ] {
        let config = read(name, text).unwrap();
        let expected = Terms {
            weight: 3.0,
            best: ClassId(1),
            usual: Some(ClassId(2)),
            requests_per_minute: Some(600),
            tokens_per_minute: Some(1_000_000),
        };
        assert_eq!(terms(&config, "team-a"), expected, "{text}");
        assert_eq!(terms(&config, "anybody"), Terms { best: ClassId(2), ..Terms::default() }, "{text}");
        assert_eq!(config.settings.brain.queue.tenants.len(), 1);
    }
}

#[test]
fn a_name_may_contain_the_separator() {
    for text in
        ["[tenants.\"a?b&c=d,e\"]", "[tenants.\"a?b&c=d,e\"]\nrpm = 7", "[[tenants]]\nname = \"a?b&c=d,e\""]
    {
        let config = read("m.toml", text).unwrap();
        let again = read("m.toml", config.to_string()).unwrap();
        for config in [config, again] {
            assert!(config.settings.brain.queue.tenants.contains_key(&tenant(b"a?b&c=d,e")), "{text}");
        }
    }
}

#[test]
fn errors_about_tenants_do_not_show_their_names() {
    check_toml(
        "tenants = [\n\"sk-secret?weight=0&colour=1\",\n\"?rpm=1\",\n\"sk-other\",\n\"sk-other?rpm=5\",\n\"sk-third?rpm=0\",\n]",
        &[
            "m.toml:2: tenants: sk-…: weight: \"0\" is out of range; write 0.001 to 1000; unknown option \"col…\"; known: weight, best, usual, rpm and tpm",
            "m.toml:3: tenants: names no tenant; write \"team-a?weight=3\", or \"*?weight=3\" for all other tenants",
            "m.toml:5: tenants: \"sk-…\" is there twice",
            "m.toml:6: tenants: sk-…: rpm: \"0\" is out of range; write 1 to 1000000000",
        ],
    );
    check_yaml(
        "tenants:\n  sk-secret: 5\n  sk-other: {rpm: [1]}",
        &["m.yaml:2: tenants: sk-…: takes a table", "m.yaml:3: tenants: rpm of sk-… takes one value"],
    );
    check_toml(
        "[tenants.sk-secret]\nbest = \"gold\"\nusual = \"silver\"",
        &[
            "m.toml:1: tenants: sk-…: best: unknown class \"gold\"; known: interactive, standard, batch",
            "m.toml:1: tenants: sk-…: usual: unknown class \"silver\"; known: interactive, standard, batch",
        ],
    );
}

#[test]
fn a_key_shows_only_its_beginning() {
    let config = read("m.toml", "[tenants.sk-0123456789]\nrpm = 7").unwrap();
    assert!(!format!("{config:?}").contains("sk-0123"));
}

#[test]
fn there_can_be_thousands_of_tenants_but_not_more() {
    let file = |count: usize| {
        (0..count).fold("[tenants.\"*\"]\n".to_owned(), |mut text, name| {
            let _ = writeln!(text, "[tenants.t{name}]\nrpm = 7");
            text
        })
    };
    let config = read("m.toml", file(10_000)).unwrap();
    assert_eq!(terms(&config, "t9999").requests_per_minute, Some(7));
    check_toml(&file(10_001), &["m.toml:20002: tenants: t10… is one too many; there can be 10000 tenants"]);
}

#[test]
fn one_knob_set_alone_settles_too() {
    let mut config = Config::default();
    super::super::set(&mut config, "queue.standard", "batch").unwrap();
    assert_eq!(config.settings.brain.queue.standard, ClassId(2));
    assert!(super::super::set(&mut config, "queue.standard", "gold").is_err());
}
