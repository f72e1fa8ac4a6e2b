//! Modules form no cycle: at every level of a crate, siblings depend on each other in one direction.
//!
//! A module that uses something from its parent, or from its own children, is not counted: that is how a module is split
//! into files. Test code is left out.

use std::collections::{BTreeMap, BTreeSet};

use crate::{File, check, crates, is_test, rust_files, without_tests};

/// A module by its path within its crate; the crate's root is empty.
type Module = Vec<String>;

#[test]
fn no_module_depends_on_itself_through_its_siblings() {
    let files = rust_files();
    let mut offences = Vec::new();
    for name in crates() {
        let modules = modules(&name, &files);
        let edges = edges(&modules);
        assert!(modules.len() < 8 || !edges.is_empty(), "this test no longer understands crates/{name}");
        offences
            .extend(cycles(&edges).iter().map(|it| format!("crates/{name}: {} form a cycle", it.join(", "))));
    }
    check(&offences);
}

#[test]
fn a_cycle_is_found_and_a_chain_is_not() {
    let modules = |texts: &[(&str, &str)]| -> BTreeMap<Module, String> {
        texts
            .iter()
            .map(|(path, text)| (path.split('/').map(str::to_owned).collect(), (*text).to_owned()))
            .collect()
    };
    let found = |texts: &[(&str, &str)]| cycles(&edges(&modules(texts)));
    let chain =
        [("a", "use crate::b::B;"), ("b", "use crate::{c, d::D};"), ("c", ""), ("d", "use super::c::C;")];
    assert!(found(&chain).is_empty());
    let ring = [("a", "use crate::b::B;"), ("b", "fn x() { crate::c::y() }"), ("c", "use super::{a::A, b};")];
    assert_eq!(found(&ring), [["a", "b", "c"]]);
    let deep = [("a", ""), ("a/b", "use super::c::C;"), ("a/c", "use crate::a::b::{self, B};")];
    assert_eq!(found(&deep), [["a::b", "a::c"]]);
    assert!(found(&[("a", "mod b;"), ("a/b", "use super::A;")]).is_empty(), "a child may use its parent");
}

/// Every module of the crate that is not test code, with its text without comments and tests.
fn modules(name: &str, files: &[File]) -> BTreeMap<Module, String> {
    let folder = format!("crates/{name}/src/");
    let ours = files.iter().filter(|it| !is_test(it));
    let ours = ours.filter_map(|it| Some((it.path.strip_prefix(&folder)?.strip_suffix(".rs")?, it)));
    let module = |path: &str| match path {
        "lib" | "main" => Module::new(),
        path => path.split('/').map(str::to_owned).collect(),
    };
    ours.map(|(path, file)| (module(path), without_comments(without_tests(&file.text)))).collect()
}

fn without_comments(text: &str) -> String {
    text.lines().map(|it| it.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// Which sibling uses which.
fn edges(modules: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut edges: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, text) in modules {
        for path in paths(text) {
            let target = resolve(modules, module, &path);
            let shared = module.iter().zip(&target).take_while(|(one, other)| one == other).count();
            if shared < module.len() && shared < target.len() {
                let from = module[..=shared].to_vec();
                edges.entry(from).or_default().insert(target[..=shared].to_vec());
            }
        }
    }
    edges
}

/// The crate-relative paths in a text, with braces expanded.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for word in ["crate", "super", "self"] {
        for (at, _) in text.match_indices(word) {
            let begins = !text[..at].ends_with(|it: char| it.is_alphanumeric() || it == '_' || it == ':');
            if begins && text[at + word.len()..].starts_with("::") {
                follow(&text[at..], Vec::new(), &mut found);
            }
        }
    }
    found
}

/// Reads one path, and the branches of its braces, into `found`.
fn follow(text: &str, mut path: Vec<String>, found: &mut Vec<Vec<String>>) {
    let mut rest = text;
    loop {
        let end = rest.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(rest.len());
        path.push(rest[..end].to_owned());
        match rest[end..].strip_prefix("::") {
            Some(branches) if branches.starts_with('{') => {
                for branch in split(&branches[1..]) {
                    follow(branch.trim(), path.clone(), found);
                }
                return;
            }
            Some(next) => rest = next,
            None => return found.push(path),
        }
    }
}

/// The items between the commas up to the closing brace, with nested braces kept whole.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut items) = (0, 0, Vec::new());
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            ',' if depth == 0 => {
                items.push(&text[from..at]);
                from = at + 1;
            }
            '}' if depth == 0 => {
                items.push(&text[from..at]);
                return items;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    items
}

/// The module that a path used in `module` leads into.
fn resolve(modules: &BTreeMap<Module, String>, module: &Module, path: &[String]) -> Module {
    let mut target = if path[0] == "crate" { Module::new() } else { module.clone() };
    for part in path {
        match part.as_str() {
            "crate" | "self" => {}
            "super" => drop(target.pop()),
            part => {
                target.push(part.to_owned());
                if !modules.contains_key(&target) {
                    target.pop();
                    break;
                }
            }
        }
    }
    target
}

/// The groups of modules in which each leads to all others of its group.
fn cycles(edges: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<String>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        edges.keys().map(|it| (it, reach(edges, it))).collect();
    let mut groups = BTreeSet::new();
    for (module, from) in &reached {
        let both = |it: &&&Module| reached.get(**it).is_some_and(|back| back.contains(module));
        let group: Vec<String> = from.iter().filter(both).map(|it| it.join("::")).collect();
        groups.extend((!group.is_empty()).then_some(group));
    }
    groups.into_iter().collect()
}

fn reach<'a>(edges: &'a BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<&'a Module> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        for next in edges.get(module).into_iter().flatten() {
            if reached.insert(next) {
                open.push(next);
            }
        }
    }
    reached
}
