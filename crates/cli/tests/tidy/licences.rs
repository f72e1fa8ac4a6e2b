//! Dependencies have licences that `deny.toml` allows, and come from the registry with a checksum.
//!
//! This is what `cargo deny check licenses sources` says, without installing it. Advisories need their database:
//! `scripts/test` runs `cargo deny` for them where it is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::{check, root};

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Whether a licence expression can be met by what is allowed: one side of each OR, both of each AND.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut place = 0;
    let result = either(&words, &mut place, allowed);
    result && place == words.len()
}

fn either(words: &[&str], place: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut result = both(words, place, allowed);
    while words.get(*place) == Some(&"OR") {
        *place += 1;
        result |= both(words, place, allowed);
    }
    result
}

fn both(words: &[&str], place: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut result = single(words, place, allowed);
    while words.get(*place) == Some(&"AND") {
        *place += 1;
        result &= single(words, place, allowed);
    }
    result
}

fn single(words: &[&str], place: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let Some(&word) = words.get(*place) else { return false };
    *place += 1;
    if word == "(" {
        let result = either(words, place, allowed);
        *place += 1;
        return result;
    }
    let mut name = word.to_owned();
    if words.get(*place) == Some(&"WITH") {
        name = format!("{name} WITH {}", words.get(*place + 1).unwrap_or(&""));
        *place += 2;
    }
    allowed.contains(&name)
}

/// What all may have, and what some may have beside it.
struct Allowed {
    all: BTreeSet<String>,
    exceptions: BTreeMap<String, BTreeSet<String>>,
}

impl Allowed {
    fn read() -> Allowed {
        let text = fs::read_to_string(root().join("deny.toml")).unwrap();
        let table: toml::Table = text.parse().unwrap();
        let names = |it: &toml::Value| {
            let list = it["allow"].as_array().unwrap().iter();
            list.map(|it| it.as_str().unwrap().to_owned()).collect::<BTreeSet<String>>()
        };
        let exceptions = table["licenses"]["exceptions"].as_array().unwrap().iter();
        Allowed {
            all: names(&table["licenses"]),
            exceptions: exceptions.map(|it| (it["name"].as_str().unwrap().to_owned(), names(it))).collect(),
        }
    }

    fn has(&self, package: &str, licence: &str) -> bool {
        let own = self.exceptions.get(package);
        is_allowed(licence, &self.all) || own.is_some_and(|it| is_allowed(licence, it))
    }
}

/// All packages but those of the bench beside other routers.
fn packages() -> Vec<Value> {
    let cargo = std::env!("CARGO");
    let mut command = Command::new(cargo);
    command.args(["metadata", "--locked", "--offline", "--format-version", "1"]).current_dir(root());
    let done = command.output().unwrap();
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{why}\nrun `cargo fetch --locked` first, as scripts/test does");
    let metadata: Value = serde_json::from_slice(&done.stdout).unwrap();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let bench = |id: &Value| id.as_str().is_some_and(|it| it.contains("bench/index"));
    let members = metadata["workspace_members"].as_array().unwrap();
    let mut left: Vec<&Value> = members.iter().filter(|it| !bench(it)).collect();
    let mut used: BTreeSet<&str> = BTreeSet::new();
    while let Some(id) = left.pop() {
        if used.insert(id.as_str().unwrap()) {
            let node = nodes.iter().find(|it| it["id"] == *id).unwrap();
            left.extend(node["dependencies"].as_array().unwrap());
        }
    }
    let all = metadata["packages"].as_array().unwrap().iter();
    all.filter(|it| used.contains(it["id"].as_str().unwrap())).cloned().collect()
}

#[test]
fn every_dependency_has_an_allowed_licence_and_a_known_source() {
    let allowed = Allowed::read();
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let mut faults = Vec::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str().unwrap_or_default();
        if !allowed.has(name, licence) {
            faults.push(format!("{name}: licence {licence:?} is not allowed by deny.toml"));
        }
        match package["source"].as_str() {
            None => {}
            Some(REGISTRY) => {
                let version = package["version"].as_str().unwrap();
                let entry =
                    format!("name = \"{name}\"\nversion = \"{version}\"\nsource = \"{REGISTRY}\"\nchecksum");
                if !lock.contains(&entry) {
                    faults.push(format!("{name}: no checksum in Cargo.lock"));
                }
            }
            Some(source) => faults.push(format!("{name}: comes from {source}")),
        }
    }
    check(&faults);
}

#[test]
fn a_licence_expression_is_met_by_one_side_of_or_and_both_of_and() {
    let allowed: BTreeSet<String> =
        ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("MIT AND ISC", true),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("(GPL-3.0 OR LGPL-2.1) AND ISC", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
        ("", false),
        ("MIT MIT", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
}
