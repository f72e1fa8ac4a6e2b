//! Tidiness as a test: rules that a reviewer would apply to every change.
//!
//! Each test walks the tree, collects every violation and prints them all, one per line. Words that would
//! themselves be a violation here are written in two halves.
//!
//! `licences` looks at dependencies, `modules` finds cycles, `names` finds type names with too many meanings, `words` finds private language.
//!
//! Not included: what clippy and rustfmt already check, and the configuration's documentation, which
//! `tests/docs.rs` of config compares with the table it is generated from.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod licences;
mod modules;
mod names;
mod words;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Which of our crates a crate may use: as dependencies, and in its tests. A new edge is argued in its own
/// commit.
const EDGES: &[(&str, &[&str], &[&str])] = &[
    ("base", &[], &[]),
    ("testkit", &[], &[]),
    ("charts", &[], &[]),
    ("views", &[], &[]),
    ("policy", &["base"], &[]),
    ("queue", &["base"], &[]),
    ("fleet", &["base"], &[]),
    ("dialect", &["base"], &["base", "testkit"]),
    ("index", &["base"], &[]),
    ("tokens", &["base"], &[]),
    ("grpc", &[], &[]),
    ("zmtp", &[], &["testkit"]),
    ("net", &["base"], &["testkit"]),
    ("discover", &["base", "net"], &["testkit"]),
    ("cluster", &["base"], &["testkit"]),
    ("peer", &["base"], &["testkit"]),
    ("dispatch", &["base", "cluster", "fleet", "index", "policy", "queue"], &["dialect"]),
    ("sim", &["base", "cluster", "dispatch", "fleet", "index", "policy", "queue", "zmtp"], &["testkit"]),
    (
        "proxy",
        &[
            "base", "charts", "cluster", "dialect", "discover", "dispatch", "fleet", "grpc", "index", "net",
            "peer", "policy", "queue", "tokens", "views", "zmtp",
        ],
        &["sim", "testkit"],
    ),
    ("config", &["base", "discover", "dispatch", "net", "peer", "policy", "proxy", "queue"], &["testkit"]),
    ("console", &["net"], &[]),
    ("doctor", &["base", "config", "console", "dialect", "net", "proxy", "tokens"], &["sim"]),
    ("calibrate", &["base", "config", "console", "dialect", "net", "sim"], &[]),
    ("replay", &["base", "charts", "config", "console", "dispatch", "policy", "sim"], &[]),
    (
        "cli",
        &[
            "base",
            "calibrate",
            "config",
            "console",
            "discover",
            "dispatch",
            "doctor",
            "fleet",
            "net",
            "peer",
            "policy",
            "proxy",
            "queue",
            "replay",
            "sim",
            "views",
        ],
        &["testkit"],
    ),
];

/// These crates open no socket, read no clock, use no random source and write no log; their manifests make it
/// impossible.
const PURE: &[&str] = &[
    "base", "policy", "queue", "fleet", "index", "tokens", "zmtp", "dialect", "dispatch", "cluster", "views",
    "grpc",
];

/// Dependencies that would allow it, by the beginning of the name.
const IMPURE: &[&str] = &["tokio", "hyper", "tracing", "rand", "mio", "log", "chrono", "reqwest"];

const LINES_MAX: usize = 600;

/// Directories that are not checked, and the file that replaces `.git` in a worktree.
const SKIPPED: &[&str] = &[".git", ".venv", ".venv-clients", "target", "node_modules"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

struct File {
    /// Relative to the root, with slashes.
    path: String,
    text: String,
}

/// Every text file of the tree, sorted.
fn files() -> Vec<File> {
    let root = root();
    let (mut directories, mut found) = (vec![root.clone()], Vec::new());
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if SKIPPED.contains(&entry.file_name().to_str().unwrap()) {
                continue;
            }
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file()
                && let Ok(text) = fs::read_to_string(&path)
            {
                found.push(File {
                    path: path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned(),
                    text,
                });
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn rust_files() -> Vec<File> {
    files().into_iter().filter(|it| it.path.ends_with(".rs")).collect()
}

/// The text of a file that must exist.
fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn crates() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates")).unwrap().map(Result::unwrap);
    let mut names: Vec<String> = entries.map(|it| it.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[track_caller]
fn check(offences: &[String]) {
    assert!(offences.is_empty(), "{} to mend:\n  {}\n", offences.len(), offences.join("\n  "));
}

#[test]
fn every_file_begins_with_a_description() {
    let silent = rust_files().into_iter().filter(|it| !it.text.starts_with("//!"));
    check(&silent.map(|it| format!("{}: open with `//!`", it.path)).collect::<Vec<_>>());
}

#[test]
fn no_file_is_too_long() {
    let offences = rust_files().into_iter().filter(|it| !is_test(it)).filter_map(|file| {
        let lines = without_tests(&file.text).lines().count();
        (lines > LINES_MAX)
            .then(|| format!("{}: {lines} lines before its tests, {LINES_MAX} allowed", file.path))
    });
    check(&offences.collect::<Vec<_>>());
}

/// Whether the whole file is test code, by its name or its folder's.
fn is_test(file: &File) -> bool {
    let named = |it: &str| matches!(it.trim_end_matches(".rs"), "tests" | "laws");
    file.path.split('/').any(named)
}

/// A file's text up to the tests at its end.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

/// The only file that may switch the lint off.
const UNSAFE: &str = "crates/dialect/src/json/wide.rs";

#[test]
fn one_file_may_be_unsafe() {
    let lint = concat!("un", "safe_code");
    let is_ours = |it: &File| it.path.starts_with("crates/") && it.text.contains(lint);
    let files: Vec<File> = rust_files().into_iter().filter(is_ours).collect();
    let offences = files.iter().filter(|it| it.path != UNSAFE);
    check(&offences.map(|it| format!("{}: only {UNSAFE} may have unsafe code", it.path)).collect::<Vec<_>>());
    assert!(files.iter().any(|it| it.path == UNSAFE), "{UNSAFE} has none: forbid it everywhere");
    let manifest: toml::Table = text("Cargo.toml").parse().unwrap();
    assert_eq!(manifest["workspace"]["lints"]["rust"][lint].as_str(), Some("deny"));
}

/// The level of the package with `main` is the level at which everything is linked. Below two, no loop of the router is
/// vectorised: requests of 64 KB took 2.4 times the CPU.
#[test]
fn what_packages_ship_is_linked_at_full_speed() {
    let manifest: toml::Table = text("Cargo.toml").parse().unwrap();
    let level = &manifest["profile"]["dist"]["package"]["maitre-cli"]["opt-level"];
    assert!(level.as_integer().is_some_and(|it| it >= 2), "profile.dist.package.maitre-cli: {level}");
}

#[test]
fn a_module_is_named_by_its_file() {
    let offences = rust_files().into_iter().filter(|it| it.path.ends_with("/mod.rs"));
    check(&offences.map(|it| format!("{}: name it after its directory", it.path)).collect::<Vec<_>>());
}

#[test]
fn dependencies_point_one_way() {
    let mut offences = Vec::new();
    for name in crates() {
        let Some((_, normal, dev)) = EDGES.iter().find(|it| it.0 == name) else {
            offences.push(format!("crates/{name}: not in EDGES of this test"));
            continue;
        };
        let manifest = Manifest::read(&name);
        let ours = |all: &[String], allowed: &[&str]| -> Vec<String> {
            let ours = all.iter().filter_map(|it| it.strip_prefix("maitre-"));
            ours.filter(|it| !allowed.contains(it)).map(str::to_owned).collect()
        };
        for edge in ours(&manifest.normal, normal) {
            offences.push(format!("crates/{name}: may not depend on {edge}"));
        }
        for edge in ours(&manifest.dev, &[*normal, *dev].concat()) {
            offences.push(format!("crates/{name}: its tests may not depend on {edge}"));
        }
    }
    check(&offences);
}

#[test]
fn the_pure_crates_cannot_do_io() {
    let mut offences = Vec::new();
    for name in PURE {
        let manifest = Manifest::read(name);
        let impure = |it: &&String| IMPURE.iter().any(|beginning| it.starts_with(beginning));
        let found = manifest.normal.iter().filter(|it| *name == "base" || impure(it));
        offences.extend(found.map(|it| format!("crates/{name}: is pure and may not depend on {it}")));
    }
    check(&offences);
}

struct Manifest {
    normal: Vec<String>,
    dev: Vec<String>,
}

impl Manifest {
    fn read(name: &str) -> Manifest {
        let table: toml::Table = text(&format!("crates/{name}/Cargo.toml")).parse().unwrap();
        let keys = |section: &str| -> Vec<String> {
            let table = table.get(section).and_then(toml::Value::as_table);
            table.into_iter().flat_map(|it| it.keys().cloned()).collect()
        };
        let normal = [keys("dependencies"), keys("build-dependencies")].concat();
        assert!(!table.contains_key("target"), "crates/{name}: platform dependencies escape this test");
        Manifest { normal, dev: keys("dev-dependencies") }
    }
}

#[test]
fn the_architecture_names_every_crate() {
    let map = text("ARCHITECTURE.md");
    let named = |name: &str| [format!("`{name}`"), format!("{name}/"), format!("maitre-{name}")];
    let absent = crates().into_iter().filter(|name| !named(name).iter().any(|it| map.contains(it)));
    check(&absent.map(|it| format!("ARCHITECTURE.md: says nothing of crates/{it}")).collect::<Vec<_>>());
}

#[test]
fn the_changelog_is_open() {
    let open = text("CHANGELOG.md").lines().any(|it| it.starts_with("## ") && it.contains("Unreleased"));
    assert!(open, "CHANGELOG.md: no section `## Unreleased`");
}

#[test]
fn nothing_is_left_for_later_without_an_issue() {
    let notes = [concat!("TO", "DO"), concat!("FIX", "ME")];
    let stubs = [concat!("to", "do!("), concat!("unimple", "mented!(")];
    let mut offences = Vec::new();
    for file in files() {
        for (index, line) in file.text.lines().enumerate() {
            let noted = notes.iter().any(|it| line.contains(it)) && !names_an_issue(line);
            let stubbed = file.path.ends_with(".rs") && stubs.iter().any(|it| line.contains(it));
            if noted || stubbed {
                offences.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    check(&offences);
}

#[test]
fn no_file_has_a_merge_conflict() {
    let marks = [concat!("<<<<", "<<< "), concat!(">>>>", ">>> ")];
    let mut offences = Vec::new();
    for file in files() {
        let marked = |line: &str| marks.iter().any(|it| line.starts_with(it));
        let lines = file.text.lines().enumerate().filter(|(_, line)| marked(line));
        offences.extend(lines.map(|(index, line)| format!("{}:{}: {line}", file.path, index + 1)));
    }
    check(&offences);
}

/// `#12`, or the address of one.
fn names_an_issue(line: &str) -> bool {
    let starts_with_digit = |it: &str| it.starts_with(|it: char| it.is_ascii_digit());
    line.split('#').skip(1).any(starts_with_digit) || line.split("/issues/").skip(1).any(starts_with_digit)
}

#[test]
fn no_file_names_a_development_machine() {
    let root = format!("{}/", root().display());
    let paths =
        [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/"), &root];
    let mut offences = Vec::new();
    for file in files().into_iter().filter(|it| !it.path.starts_with(".ci/")) {
        for (index, line) in file.text.lines().enumerate() {
            let found =
                line.contains(concat!("../", "shared")) || paths.iter().any(|it| begins_a_path(line, it));
            if found {
                offences.push(format!("{}:{}: {}", file.path, index + 1, line.trim()));
            }
        }
    }
    check(&offences);
}

/// Whether `path` occurs in the line as the beginning of a path, not inside a longer one.
fn begins_a_path(line: &str, path: &str) -> bool {
    let inside = |it: char| it.is_alphanumeric() || "_-.~}/".contains(it);
    line.match_indices(path).any(|(at, _)| !line[..at].ends_with(inside))
}

#[test]
fn every_metric_is_documented() {
    let source = text("crates/proxy/src/metrics.rs");
    let names = named_with_a_sentence(&source);
    assert!(names.len() > 10, "this test no longer understands metrics.rs: it found only {names:?}");
    let docs = text("docs/metrics.md");
    let absent = names.into_iter().filter(|it| !has_word(&docs, &format!("maitre_{it}")));
    check(&absent.map(|it| format!("docs/metrics.md: says nothing of maitre_{it}")).collect::<Vec<_>>());
    let source = text("crates/proxy/src/metrics/process.rs");
    let names = named_with_a_sentence(&source);
    assert!(names.len() >= 5, "this test no longer understands process.rs: it found only {names:?}");
    let absent = names.into_iter().filter(|it| !has_word(&docs, it));
    check(&absent.map(|it| format!("docs/metrics.md: says nothing of {it}")).collect::<Vec<_>>());
}

/// The first of each pair of literals `("name", "A sentence`: the form in which metrics are registered.
fn named_with_a_sentence(source: &str) -> BTreeSet<&str> {
    let pieces: Vec<&str> = source.split('"').collect();
    let pairs = pieces.windows(4).filter(|it| it[0].trim_end().ends_with('(') && it[2].trim() == ",");
    pairs.map(|it| it[1]).filter(|it| is_name(it)).collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_')
}

/// Whether the text contains the whole metric name; a counter's ends in `_total`.
fn has_word(text: &str, name: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|it: char| it.is_ascii_alphanumeric() || it == '_');
    text.match_indices(name).any(|(at, _)| {
        let rest = &text[at + name.len()..];
        ends(rest.strip_prefix("_total").unwrap_or(rest))
    })
}

#[test]
fn every_error_code_is_documented() {
    let sources = [("crates/proxy/src/refuse.rs", 8), ("crates/dialect/src/openai/refusal.rs", 5)];
    let mut codes = BTreeSet::new();
    for (path, count_min) in sources {
        let source = text(path);
        let literals = source.split("=> \"").skip(1).filter_map(|it| it.split('"').next());
        let found: BTreeSet<String> = literals.filter(|it| is_name(it)).map(str::to_owned).collect();
        assert!(found.len() >= count_min, "this test no longer understands {path}: it found only {found:?}");
        codes.extend(found);
    }
    // The codes of streams that break off.
    for file in rust_files().iter().filter(|it| it.path.starts_with("crates/proxy/src/")) {
        let literals = file.text.split("Failure::server(\"").skip(1).filter_map(|it| it.split('"').next());
        codes.extend(literals.map(str::to_owned));
    }
    let docs = text("docs/errors.md");
    let absent = codes.into_iter().filter(|it| !docs.contains(&format!("`{it}`")));
    check(&absent.map(|it| format!("docs/errors.md: says nothing of `{it}`")).collect::<Vec<_>>());
}

/// The targets of a page's relative links, relative to the root.
fn links(file: &File) -> Vec<String> {
    let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let targets = file.text.split("](").skip(1).filter_map(|it| it.split(')').next());
    let is_ours =
        |it: &&str| !it.contains("://") && !it.starts_with('#') && !it.contains(char::is_whitespace);
    let paths = targets.filter(is_ours).filter_map(|it| it.split('#').next());
    paths.map(|it| normal(&folder.join(it))).collect()
}

/// The path without its `..`.
fn normal(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.iter().filter_map(|it| it.to_str()) {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn pages() -> Vec<File> {
    files().into_iter().filter(|it| it.path.ends_with(".md")).collect()
}

#[test]
fn no_link_in_any_page_is_dead() {
    let mut offences = Vec::new();
    let mut count = 0;
    for page in pages() {
        for link in links(&page) {
            count += 1;
            if !root().join(&link).exists() {
                offences.push(format!("{}: no {link}", page.path));
            }
        }
    }
    assert!(count > 100, "this test no longer finds links: only {count}");
    check(&offences);
}

#[test]
fn every_source_file_named_in_a_page_exists() {
    let mut offences = Vec::new();
    let mut count = 0;
    for page in pages().iter().filter(|it| !it.path.starts_with("docs/decisions/")) {
        let named = page.text.split('`').filter(|it| it.starts_with("crates/") && it.ends_with(".rs"));
        for path in named {
            count += 1;
            if !root().join(path).exists() {
                offences.push(format!("{}: no {path}", page.path));
            }
        }
    }
    assert!(count > 20, "this test no longer finds source files: only {count}");
    check(&offences);
}

/// The anchor of a heading, as GitHub and mdBook generate it.
fn anchors(text: &str) -> BTreeSet<String> {
    let anchor = |heading: &str| {
        let kept = heading.trim().chars().filter(|it| it.is_alphanumeric() || " -_".contains(*it));
        kept.map(|it| if it == ' ' { '-' } else { it.to_ascii_lowercase() }).collect()
    };
    let headings = text.lines().filter(|it| it.starts_with('#')).map(|it| it.trim_start_matches('#'));
    headings.map(anchor).collect()
}

#[test]
fn no_link_points_to_a_missing_heading() {
    let mut offences = Vec::new();
    for page in pages() {
        let folder = Path::new(&page.path).parent().unwrap_or(Path::new("")).to_owned();
        let targets = page.text.split("](").skip(1).filter_map(|it| it.split(')').next());
        for (path, anchor) in targets.filter(|it| !it.contains("://")).filter_map(|it| it.split_once('#')) {
            let target = if path.is_empty() { page.path.clone() } else { normal(&folder.join(path)) };
            if target.ends_with(".md") && !anchors(&text(&target)).contains(anchor) {
                offences.push(format!("{}: {target} has no heading #{anchor}", page.path));
            }
        }
    }
    check(&offences);
}

#[test]
fn the_book_has_every_page() {
    let summary = files().into_iter().find(|it| it.path == "docs/SUMMARY.md").expect("docs/SUMMARY.md");
    let listed = links(&summary);
    let absent =
        pages().into_iter().map(|it| it.path).filter(|it| it.starts_with("docs/") && *it != summary.path);
    let absent = absent.filter(|it| !listed.contains(it));
    check(&absent.map(|it| format!("docs/SUMMARY.md: says nothing of {it}")).collect::<Vec<_>>());
    let twice: BTreeSet<&String> =
        listed.iter().filter(|it| listed.iter().filter(|other| other == it).count() > 1).collect();
    assert!(twice.is_empty(), "docs/SUMMARY.md: twice: {twice:?}");
    let book: toml::Table = text("docs/book.toml").parse().unwrap();
    assert_eq!(book["book"]["src"].as_str(), Some("."), "the pages are where the book is");
}
