//! Plain words: prevents the return of names and phrases that only Maitre's authors would understand.
//!
//! Decisions are records of their time and the changelog names what was renamed, so both are excluded.

use crate::{check, files};

/// Names of types, modules and variables that meant nothing to a stranger, in halves so that this list does
/// not match itself.
const NAMES: &[(&str, &str)] = &[
    ("Ho", "use"),
    ("ho", "use"),
    ("Mi", "nd"),
    ("Vis", "it"),
    ("Gue", "st"),
    ("De", "sk"),
    ("De", "ck"),
    ("Ro", "pe"),
    ("Unb", "orn"),
    ("Tid", "ings"),
    ("tid", "ings"),
    ("Unt", "old"),
    ("Lob", "by"),
    ("lob", "by"),
    ("rec", "ital"),
    ("Rec", "ital"),
    ("Sta", "nding"),
];

/// Phrases that hide who acts, or that describe a queue of people.
const PHRASES: &[(&str, &str)] = &[
    ("who", "ever"),
    ("had be", "tter"),
    ("of one ", "mind"),
    ("stand in ", "line"),
    ("stands in ", "line"),
    ("stood in ", "line"),
    ("who wa", "its"),
    ("those wh", "o wait"),
    ("opens this ", "door"),
    ("tell each ", "other"),
    ("is to", "ld"),
    ("was to", "ld"),
    ("are to", "ld"),
    ("come ag", "ain"),
    ("comes ag", "ain"),
    ("be sea", "ted"),
    ("tokens in the ", "mean"),
];

/// Excluded: records of their time, and text by others.
const SKIPPED: &[&str] = &[
    "CHANGELOG.md",
    "docs/decisions/",
    "bench/",
    "LICENSE",
    "/vendor/",
    "Cargo.lock",
    ".json",
    "/fixtures/",
];

#[test]
fn no_private_word_comes_back() {
    let mut offences = Vec::new();
    for file in files().iter().filter(|it| !SKIPPED.iter().any(|skipped| it.path.contains(skipped))) {
        for (index, line) in file.text.lines().enumerate() {
            offences.extend(
                offence(line).map(|word| format!("{}:{}: {word}: {}", file.path, index + 1, line.trim())),
            );
        }
    }
    check(&offences);
}

#[test]
fn a_private_word_is_found_as_a_word_only() {
    assert_eq!(offence(concat!("struct Ho", "use {")), Some(concat!("Ho", "use").to_owned()));
    assert_eq!(offence(concat!("a ware", "ho", "use")), None, "a part of another word");
    assert_eq!(offence(concat!("Who", "ever waits")), Some(concat!("who", "ever").to_owned()));
    assert_eq!(offence("the queue is full"), None);
}

fn offence(line: &str) -> Option<String> {
    // A trait of tracing's has such a name.
    if line.contains("tracing::") {
        return None;
    }
    let name = NAMES.iter().map(|(one, other)| format!("{one}{other}")).find(|it| has_word(line, it));
    let lower = line.to_lowercase();
    name.or_else(|| {
        PHRASES.iter().map(|(one, other)| format!("{one}{other}")).find(|it| lower.contains(it.as_str()))
    })
}

fn has_word(line: &str, word: &str) -> bool {
    let is_inside = |it: char| it.is_alphanumeric() || it == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_inside) && !line[at + word.len()..].starts_with(is_inside))
}
