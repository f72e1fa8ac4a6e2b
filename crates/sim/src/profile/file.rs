//! A profile in a file: what `maitre calibrate` writes, and `--profile FILE` reads.
//!
//! The keys are the fields of `Profile`, times in milliseconds. The whole file is checked: every wrong key is
//! reported at once, with its accepted form.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::{Table, Value};

use super::{ALL, Profile, StepModel};

/// The largest file that is read: a profile has a dozen lines.
const FILE_BYTES_MAX: u64 = 1 << 20;
const NAME_CHARS_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("unknown profile \"{name}\"; known: {}, or the path of a profile file", known())]
    Unknown { name: String },
    #[error("read the profile {}: {cause}", path.display())]
    Unreadable { path: PathBuf, cause: std::io::Error },
    #[error("the profile {}: {}", path.display(), problems.join("; "))]
    Invalid { path: PathBuf, problems: Vec<String> },
}

/// A built-in profile by its name, or one in a file by its path.
pub fn find(text: &str) -> Result<Profile, ProfileError> {
    if let Some(profile) = Profile::named(text) {
        return Ok(profile);
    }
    let path = Path::new(text);
    // A misspelt name gets the list of names, not "no such file".
    let looks_like_path = text.contains('/') || text.ends_with(".toml") || path.exists();
    match looks_like_path {
        true => load(path),
        false => Err(ProfileError::Unknown { name: text.to_owned() }),
    }
}

/// Reads a profile from a file. If the profile has no name, it gets the file's.
pub fn load(path: &Path) -> Result<Profile, ProfileError> {
    let unreadable = |cause| ProfileError::Unreadable { path: path.to_owned(), cause };
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    let invalid = |problems| ProfileError::Invalid { path: path.to_owned(), problems };
    if length > FILE_BYTES_MAX {
        return Err(invalid(vec![format!("{length} bytes; at most {FILE_BYTES_MAX} are read")]));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let stem = path.file_stem().and_then(|it| it.to_str()).unwrap_or("profile");
    parse(&text, stem).map_err(invalid)
}

/// Reads a profile from the text of a file. `stem` is its name unless the text has one.
pub fn parse(text: &str, stem: &str) -> Result<Profile, Vec<String>> {
    let table: Table = text.parse().map_err(|it: toml::de::Error| vec![it.message().to_owned()])?;
    let mut fields = Fields { table, problems: Vec::new() };
    let name = fields.name(stem);
    let profile = Profile {
        name: "",
        block_tokens: fields.count("block_tokens", 1..=4_096),
        kv_blocks: fields.count("kv_blocks", 2..=1 << 28),
        batch_tokens_max: fields.count("batch_tokens_max", 1..=1 << 24),
        running_max: fields.count("running_max", 1..=1 << 16),
        context_tokens_max: fields.count("context_tokens_max", 1..=1 << 27),
        overhead: Duration::from_secs_f64(fields.millis("overhead_ms") / 1e3),
        step: fields.step(),
    };
    fields.refuse_unknown(
        &fields.table.clone(),
        "",
        &[&COUNTS[..], &["name", "overhead_ms", "step"]].concat(),
    );
    match fields.problems.is_empty() {
        // A name lives as long as the program: files are named on the command line, a few at most.
        true => Ok(Profile { name: Box::leak(name.into_boxed_str()), ..profile }),
        false => Err(fields.problems),
    }
}

/// The text of a profile's file. Each line of `comment` becomes a comment at its beginning.
pub fn render(profile: &Profile, comment: &str) -> String {
    let mut text = String::new();
    for line in comment.lines() {
        let _ = writeln!(text, "{}", format!("# {line}").trim_end());
    }
    let step = &profile.step;
    let _ = writeln!(text, "name = {}", Value::from(profile.name));
    for (key, count) in COUNTS.into_iter().zip([
        profile.block_tokens,
        profile.kv_blocks,
        profile.batch_tokens_max,
        profile.running_max,
        profile.context_tokens_max,
    ]) {
        let _ = writeln!(text, "{key} = {count}");
    }
    let _ = writeln!(text, "overhead_ms = {}", number(profile.overhead.as_secs_f64() * 1e3));
    let _ = writeln!(text, "\n# Milliseconds of a step.\n[step]");
    for (key, millis) in TERMS.into_iter().zip([
        step.floor_ms,
        step.prefill_token_ms,
        step.attended_token_ms,
        step.context_token_ms,
        step.decode_sequence_ms,
    ]) {
        let _ = writeln!(text, "{key} = {}", number(millis));
    }
    text
}

/// Four digits: more than any measurement supports.
fn number(value: f64) -> String {
    let digits = format!("{value:.3e}");
    let rounded: f64 = digits.parse().unwrap_or(value);
    // TOML requires a digit after the point, and has exponents for small numbers.
    Value::from(rounded).to_string()
}

const COUNTS: [&str; 5] =
    ["block_tokens", "kv_blocks", "batch_tokens_max", "running_max", "context_tokens_max"];

const TERMS: [&str; 5] =
    ["floor_ms", "prefill_token_ms", "attended_token_ms", "context_token_ms", "decode_sequence_ms"];

/// The longest time of one unit of work.
const MILLIS_MAX: f64 = 1e6;

struct Fields {
    table: Table,
    problems: Vec<String>,
}

impl Fields {
    fn name(&mut self, stem: &str) -> String {
        let name = match self.table.get("name") {
            None => stem.to_owned(),
            Some(Value::String(name)) => name.clone(),
            Some(other) => {
                self.problems.push(format!("name: {other} is not a text; write \"my-engine\""));
                return String::new();
            }
        };
        self.problems.extend(check_name(&name).err().map(|it| format!("name: {it}")));
        name
    }

    fn count(&mut self, key: &str, range: std::ops::RangeInclusive<u32>) -> u32 {
        let found = self.table.get(key);
        let count = found.and_then(Value::as_integer).and_then(|it| u32::try_from(it).ok());
        match count.filter(|it| range.contains(it)) {
            Some(count) => count,
            None => {
                let (min, max) = (range.start(), range.end());
                self.problem(key, found.cloned(), &format!("a whole number from {min} to {max}"));
                *min
            }
        }
    }

    fn millis(&mut self, key: &str) -> f64 {
        self.millis_of(key, self.table.get(key).cloned())
    }

    fn millis_of(&mut self, key: &str, found: Option<Value>) -> f64 {
        let number = match &found {
            Some(Value::Float(it)) => Some(*it),
            Some(Value::Integer(it)) => Some(*it as f64),
            _ => None,
        };
        match number.filter(|it| (0.0..=MILLIS_MAX).contains(it)) {
            Some(millis) => millis,
            None => {
                self.problem(key, found, "milliseconds, as in 4.5 or 3.1e-5");
                0.0
            }
        }
    }

    fn step(&mut self) -> StepModel {
        let section = match self.table.get("step") {
            Some(Value::Table(section)) => section.clone(),
            Some(other) => {
                self.problems
                    .push(format!("step: {other} is not a section; write [step] and its keys below"));
                return super::INSTANT.step;
            }
            None => Table::new(),
        };
        let mut term = |key: &str| self.millis_of(&format!("step.{key}"), section.get(key).cloned());
        let step = StepModel {
            floor_ms: term("floor_ms"),
            prefill_token_ms: term("prefill_token_ms"),
            attended_token_ms: term("attended_token_ms"),
            context_token_ms: term("context_token_ms"),
            decode_sequence_ms: term("decode_sequence_ms"),
        };
        self.refuse_unknown(&section, "step.", &TERMS);
        step
    }

    fn problem(&mut self, key: &str, found: Option<Value>, form: &str) {
        self.problems.push(match found {
            Some(found) => format!("{key}: cannot be {found}; write {form}"),
            None => format!("{key}: missing; write {form}"),
        });
    }

    fn refuse_unknown(&mut self, table: &Table, prefix: &str, known: &[&str]) {
        for key in table.keys().filter(|it| !known.contains(&it.as_str())) {
            self.problems.push(format!("{prefix}{key}: unknown key; known: {}", known.join(", ")));
        }
    }
}

/// Whether a profile in a file may have this name; if not, why.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || name.contains(char::is_control) {
        return Err(format!("{name:?} cannot be a name; write 1 to {NAME_CHARS_MAX} characters"));
    }
    match Profile::named(name) {
        Some(_) => Err(format!("\"{name}\" is a built-in profile; choose another")),
        None => Ok(()),
    }
}

fn known() -> String {
    ALL.map(|it| it.name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::A10G_8B;

    fn written() -> String {
        render(&Profile { name: "mine", ..A10G_8B }, "From a test.\n\nIts second line.")
    }

    #[test]
    fn a_profile_is_read_as_it_was_written() {
        let text = written();
        assert!(text.starts_with("# From a test.\n#\n# Its second line.\nname = \"mine\"\n"), "{text}");
        assert_eq!(parse(&text, "file").unwrap(), Profile { name: "mine", ..A10G_8B });
        let unnamed = text.replace("name = \"mine\"\n", "");
        assert_eq!(parse(&unnamed, "file").unwrap().name, "file");
    }

    /// Replaces a piece of a good file.
    #[track_caller]
    fn check(from: &str, to: &str, expected: &[&str]) {
        let text = written();
        assert!(text.contains(from), "{text}");
        assert_eq!(parse(&text.replace(from, to), "file").unwrap_err(), expected);
    }

    #[test]
    fn every_wrong_key_is_named_with_the_form_it_takes() {
        let form = "write milliseconds, as in 4.5 or 3.1e-5";
        check("floor_ms = 34.8", "floor_ms = -1", &[&format!("step.floor_ms: cannot be -1; {form}")]);
        check("floor_ms = 34.8", "floor_ms = nan", &[&format!("step.floor_ms: cannot be nan; {form}")]);
        check("overhead_ms = 12.0", "", &[&format!("overhead_ms: missing; {form}")]);
        check(
            "block_tokens = 16",
            "block_tokens = 0\ncolour = 1",
            &[
                "block_tokens: cannot be 0; write a whole number from 1 to 4096",
                "colour: unknown key; known: block_tokens, kv_blocks, batch_tokens_max, running_max, \
                 context_tokens_max, name, overhead_ms, step",
            ],
        );
        check(
            "[step]",
            "[step]\nfloor = 3",
            &[
                "step.floor: unknown key; known: floor_ms, prefill_token_ms, attended_token_ms, context_token_ms, \
               decode_sequence_ms",
            ],
        );
        check("\"mine\"", "\"a10g-8b\"", &["name: \"a10g-8b\" is a built-in profile; choose another"]);
        check("\"mine\"", "7", &["name: 7 is not a text; write \"my-engine\""]);
        assert_eq!(parse("step = 3", "file").unwrap_err().len(), 7);
        assert_eq!(parse("= 3", "file").unwrap_err().len(), 1);
    }

    #[test]
    fn a_profile_is_found_by_name_or_path() {
        assert_eq!(find("a10g-8b").unwrap(), A10G_8B);
        let failed = |text: &str| find(text).unwrap_err().to_string();
        assert!(
            failed("abacus").starts_with("unknown profile \"abacus\"; known: h200-8b, "),
            "{}",
            failed("abacus")
        );
        assert!(failed("abacus.toml").starts_with("read the profile abacus.toml: No such file"));
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert!(failed(manifest).contains("package: unknown key"), "{}", failed(manifest));
    }
}
