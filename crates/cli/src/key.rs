//! `maitre key`: generates keys, each with the hash for the config; or prints the admin key of a router on this machine.
//!
//! A key has 192 random bits from the system: it cannot be guessed, so one round of hashing is enough. It is
//! printed once and kept nowhere.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{ArgAction, ArgMatches, Command, value_parser};
use maitre_proxy::{Secret, secret};

use maitre_console::{flag, out};

use crate::key_file;

/// Chosen: the maximum that a router accepts.
const COUNT_MAX: u16 = 10_000;

/// Where a router listens for operators unless configured.
const ADMIN_PORT: &str = "8081";

/// The command that prints the admin key of a router whose admin listener has this port.
pub(crate) fn admin_command(port: u16) -> String {
    let port = port.to_string();
    if port == ADMIN_PORT {
        "maitre key --admin".to_owned()
    } else {
        format!("maitre key --admin --port {port}")
    }
}

pub fn command() -> Command {
    Command::new("key")
        .about("Generate keys for clients")
        .after_help(
            "On a terminal the lines for the config follow; each row may also go into the file that `keys_file` names.\n\
             Otherwise each line has two words: the key and its hash.",
        )
        .args([
            flag::value("count", "N")
                .default_value("1")
                .value_parser(value_parser!(u16).range(1..=i64::from(COUNT_MAX)))
                .help("Number of keys; per tenant, if tenants are given"),
            flag::value("tenant", "NAME")
                .action(ArgAction::Append)
                .value_parser(tenant)
                .help("The tenant of the keys; may be repeated [default: each key is a tenant of its own]"),
            flag::switch("admin")
                .conflicts_with_all(["count", "tenant"])
                .help("Print the admin key that a router on this machine made for itself, and make none"),
            flag::value("port", "PORT")
                .default_value(ADMIN_PORT)
                .requires("admin")
                .value_parser(value_parser!(u16))
                .help("The port of that router's admin listener"),
        ])
}

/// The admin key of a router that runs here.
fn print_admin_key(port: u16) -> anyhow::Result<ExitCode> {
    let found = key_file::find(&key_file::folders(|name| std::env::var_os(name)), port);
    let (_, key) = found.with_context(|| {
        format!(
            "no router with its admin listener at port {port} left a key for this user; --port names another port; with `admin_key` in the settings, the key is that one"
        )
    })?;
    out::print(&format!("{key}\n"))?;
    Ok(ExitCode::SUCCESS)
}

pub fn run(matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    if matches.get_flag("admin") {
        return print_admin_key(*matches.get_one("port").context("port")?);
    }
    let count: u16 = *matches.get_one("count").context("count")?;
    let tenants = matches.get_many::<String>("tenant").into_iter().flatten();
    let mut tenants: Vec<Option<&str>> = tenants.map(|it| Some(it.as_str())).collect();
    if tenants.is_empty() {
        tenants.push(None);
    }
    let mut made = Vec::new();
    for tenant in tenants {
        for _ in 0..count {
            made.push((secret::fresh().context("ask the system for random bytes")?, tenant));
        }
    }
    out::print(&if std::io::stdout().is_terminal() { pretty(&made) } else { plain(&made) })?;
    Ok(ExitCode::SUCCESS)
}

/// A key and its owner.
type Made<'a> = (String, Option<&'a str>);

/// For programs.
fn plain(made: &[Made<'_>]) -> String {
    made.iter().map(|(key, _)| format!("{key} {}\n", Secret::of(key.as_bytes()))).collect()
}

/// For people: each key with its hash, then what goes into the config.
fn pretty(made: &[Made<'_>]) -> String {
    let (mut text, mut rows) = (String::new(), Vec::new());
    for (key, tenant) in made {
        let hash = Secret::of(key.as_bytes());
        let _ = writeln!(text, "key     {key}\nhash    {hash}\n");
        rows.push(tenant.map_or(format!("\"{hash}\""), |it| format!("\"{hash}?tenant={it}\"")));
    }
    match &rows[..] {
        [row] => text + &format!("keys = [{row}]\n"),
        rows => text + &format!("keys = [\n  {},\n]\n", rows.join(",\n  ")),
    }
}

/// A name that needs no quoting in the row.
fn tenant(text: &str) -> Result<String, String> {
    match text.is_empty()
        || text == "*"
        || text.contains(['?', '&', ',', '"', '\\'])
        || text.contains(char::is_control)
    {
        false => Ok(text.to_owned()),
        true => {
            Err("a tenant's name is some text without ? & , \" and \\; * stands for all other tenants"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_accepted_by_its_hash() {
        let (one, other) = (secret::fresh().unwrap(), secret::fresh().unwrap());
        assert_ne!(one, other);
        assert!(one.starts_with("mk-"), "{one}");
        let line = plain(&[(one.clone(), None)]);
        let (key, hash) = line.trim_end().split_once(' ').unwrap();
        let kept: Secret = hash.parse().unwrap();
        assert_eq!((key, kept.is(&Secret::of(one.as_bytes()))), (one.as_str(), true));
    }

    #[test]
    fn the_printed_text_can_be_pasted_into_a_config() {
        let made = |number: u32| (format!("mk-0123456789abcdef-{number}"), (number > 0).then_some("acme"));
        for count in 1..4 {
            let shown = pretty(&(0..count).map(made).collect::<Vec<_>>());
            let lines = &shown[shown.find("keys = ").unwrap()..];
            let path = std::env::temp_dir().join(format!("maitre-{}-key.toml", std::process::id()));
            std::fs::write(&path, lines).unwrap();
            let config = maitre_config::check_file(&path);
            std::fs::remove_file(&path).unwrap();
            assert_eq!(config.unwrap().settings.keys.len(), count as usize);
            assert!(!lines.contains("mk-"));
        }
    }

    #[test]
    fn the_command_for_a_key_names_an_unusual_port() {
        assert_eq!(admin_command(8081), "maitre key --admin");
        assert_eq!(admin_command(28051), "maitre key --admin --port 28051");
    }

    #[test]
    fn a_tenant_that_would_break_the_row_is_refused() {
        assert!(tenant("team a").is_ok());
        for text in ["", "*", "a?b", "a&b", "a,b", "a\"b", "a\nb"] {
            assert!(tenant(text).is_err(), "{text:?}");
        }
    }
}
