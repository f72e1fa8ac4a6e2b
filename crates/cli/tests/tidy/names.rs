//! One concept, one word: a type name stands for at most three different things in the whole workspace.

use std::collections::BTreeMap;

use crate::{check, is_test, rust_files, without_tests};

const DEFINITIONS_MAX: usize = 3;

#[test]
fn no_type_name_means_more_than_three_things() {
    let files = rust_files();
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in files.iter().filter(|it| it.path.contains("/src/") && !is_test(it)) {
        for name in without_tests(&file.text).lines().filter_map(defined) {
            places.entry(name).or_default().push(&file.path);
        }
    }
    assert!(places.len() > 200, "this test no longer finds definitions: only {}", places.len());
    let overloaded = places.iter().filter(|it| it.1.len() > DEFINITIONS_MAX);
    check(
        &overloaded
            .map(|(name, at)| format!("{name}: {} types: {}", at.len(), at.join(", ")))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn definitions_are_recognised() {
    assert_eq!(defined("pub(crate) struct Upstream<S> {"), Some("Upstream"));
    assert_eq!(defined("enum Why {"), Some("Why"));
    assert_eq!(defined("    pub enum Code {"), Some("Code"));
    assert_eq!(defined("pub type Module = Vec<String>;"), Some("Module"));
    assert_eq!(defined("    type Output = u8;"), None, "one of a trait");
    assert_eq!(defined("impl Why {"), None);
}

/// The type that a line begins to define, at the top level or as an enum of words.
fn defined(line: &str) -> Option<&str> {
    let line = line.strip_prefix("    ").filter(|it| it.contains("enum ")).unwrap_or(line);
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (word, rest) = line.split_once(' ')?;
    let is_definition = matches!(word, "struct" | "enum" | "trait" | "type");
    is_definition.then(|| rest.split(|it: char| !it.is_alphanumeric() && it != '_').next())?
}
