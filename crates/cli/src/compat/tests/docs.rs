//! Checks that docs/compat.md matches the table.

use std::fmt::Write;
use std::fs;

use super::super::flag::{Fate, Flag, Old};
use super::super::{policy, table};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/compat.md");
const TARGET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target");
const BEGIN: &str = "<!-- Generated from the table of flags in crates/cli/src/compat/table.rs. -->\n";

fn reference() -> String {
    let mut text = String::new();
    for (old, title) in [(Old::Sglang, "sglang-router and smg"), (Old::VllmRouter, "vllm-router")] {
        let flags = table::flags(old);
        writeln!(text, "\n## {title}\n\n| Policy | Strategy | |\n|---|---|---|").unwrap();
        for (theirs, ours, note) in policy::rows(old) {
            writeln!(text, "| `{theirs}` | `{ours}` | {} |", note.unwrap_or("")).unwrap();
        }
        writeln!(text, "\n### Carried over ({title})\n\n| Flag | Becomes | |\n|---|---|---|").unwrap();
        text.extend(flags.iter().filter_map(row));
        writeln!(text, "\n### Not carried over ({title})\n\n| Why | Flags |\n|---|---|").unwrap();
        text.push_str(&left(&flags));
    }
    text
}

fn names(flag: &Flag) -> String {
    flag.names.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>().join(", ")
}

fn row(flag: &Flag) -> Option<String> {
    let (becomes, note) = match flag.fate() {
        Fate::Kept(goal) => (format!("`{}`", super::key(goal)), ""),
        Fate::Changed(goal, how) => (format!("`{}`", super::key(goal)), how),
        Fate::Needless(how) => ("nothing: always so".to_owned(), how),
        Fate::Left(_) | Fate::Essential(_) => return None,
    };
    Some(format!("| {} | {becomes} | {note} |\n", names(flag)))
}

fn left(flags: &[Flag]) -> String {
    let why = |flag: &Flag| match flag.fate() {
        Fate::Left(why) => Some(why.to_owned()),
        Fate::Essential(why) => Some(format!("{why}; with one of these flags nothing starts")),
        _ => None,
    };
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for flag in flags {
        let Some(why) = why(flag) else { continue };
        match reasons.iter_mut().find(|it| it.0 == why) {
            Some((_, flags)) => flags.push(names(flag)),
            None => reasons.push((why, vec![names(flag)])),
        }
    }
    reasons.iter().map(|(why, flags)| format!("| {why} | {} |\n", flags.join(", "))).collect()
}

#[test]
fn the_document_matches_the_table() {
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let (written, committed) = document.split_once(BEGIN).expect("the marker is in the document");
    if committed != reference() {
        fs::create_dir_all(TARGET).unwrap();
        fs::write(format!("{TARGET}/compat.md"), format!("{written}{BEGIN}{}", reference())).unwrap();
        panic!("docs/compat.md differs from the table; cp target/compat.md docs/compat.md");
    }
}
