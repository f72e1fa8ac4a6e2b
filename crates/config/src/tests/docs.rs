//! Checks that the documentation matches the table, and that its examples work.

use std::fmt::Write;
use std::fs;

use maitre_policy::Name;

use super::read;
use crate::knob::Knob;
use crate::table::{self, SECTIONS};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
const QUEUE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/queue.md");
const KEYS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/keys.md");
const TARGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target");
const BEGIN: &str = "<!-- From here on made from the table of knobs in crates/config/src/table.rs. -->\n";

fn document() -> String {
    fs::read_to_string(DOCUMENT).unwrap()
}

fn row(knob: &Knob) -> String {
    let default = Some(knob.default()).filter(|it| !it.is_empty());
    let default = default.map_or("none".to_owned(), |it| format!("`{it}`"));
    let (key, flag, variable, form) = (knob.key, knob.flag(), knob.variable(), knob.form());
    let help = knob.help.replace('*', "\\*").replace('|', "\\|");
    format!("| `{key}` | `{flag}` | `{variable}` | {form} | {default} | {help} |\n")
}

fn reference() -> String {
    let mut text = String::new();
    for section in SECTIONS {
        let title = section.title.unwrap_or("Main");
        writeln!(text, "\n## {title}\n").unwrap();
        text.push_str("| Key | Flag | Variable | Form | Default | |\n|---|---|---|---|---|---|\n");
        text.extend(section.knobs.iter().map(row));
    }
    text
}

#[test]
fn the_reference_matches_the_table() {
    let document = document();
    let (written, committed) = document.split_once(BEGIN).expect("the marker is in the document");
    if committed != reference() {
        let expected = format!("{TARGET}/configuration.md");
        fs::create_dir_all(TARGET).unwrap();
        fs::write(&expected, format!("{written}{BEGIN}{}", reference())).unwrap();
        panic!("docs/configuration.md is behind the table; cp target/configuration.md docs/configuration.md");
    }
}

#[test]
fn every_strategy_is_named_where_one_is_chosen() {
    let document = document();
    let (written, made) = document.split_once(BEGIN).expect("the marker is in the document");
    for name in Name::ALL {
        assert!(written.contains(name.as_str()) && made.contains(name.as_str()), "{name}");
    }
}

#[test]
fn the_examples_are_one_configuration_in_two_languages() {
    let document = document();
    let example = |language: &str| {
        let (_, rest) =
            document.split_once(&format!("```{language}\n")).expect("an example in each language");
        rest.split("```").next().unwrap().to_owned()
    };
    let toml = read("m.toml", example("toml")).unwrap();
    let yaml = read("m.yaml", example("yaml")).unwrap();
    assert_eq!(toml.to_string(), yaml.to_string());
    // Complete: both name every knob's last word, so that neither falls behind the table.
    for knob in table::all() {
        let word = knob.key.rsplit('.').next().unwrap_or(knob.key);
        assert!(example("toml").contains(word) && example("yaml").contains(word), "{}", knob.key);
    }
}

/// What the examples in a document say, as settings.
fn examples(document: &str) -> Vec<String> {
    let document = fs::read_to_string(document).unwrap();
    let examples = document.split("```toml\n").skip(1).filter_map(|it| it.split("```").next());
    let read = |example: &str| read("m.toml", example).map_err(|it| format!("{example}\n{it}")).unwrap();
    examples.map(read).map(|it| it.to_string()).collect()
}

#[test]
fn every_example_of_keys_works() {
    let configs = examples(KEYS);
    let [texts, tables, _, _] = &configs[..] else {
        panic!("{} examples, of which this test knows four", configs.len());
    };
    assert_eq!(texts, tables);
}

#[test]
fn every_example_of_the_queue_works() {
    let configs = examples(QUEUE);
    let [tables, texts, _, terms_in_tables, terms_in_texts] = &configs[..] else {
        panic!("{} examples, of which this test knows five", configs.len());
    };
    assert_eq!((tables, terms_in_tables), (texts, terms_in_texts));
}
