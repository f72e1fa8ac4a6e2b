//! Settings from one file, the environment and the flags, checked once, with all mistakes told at once.
//!
//! Every setting is a row of `table.rs`: a key, where its value lives, a sentence. From the row follow
//! the key in the file, the flag, the variable, the line in the documentation and the line that `check`
//! prints. A source (`file.rs`, `environment.rs`, `flags.rs`) only finds out what was written where, as
//! text; what a text means is for the row's `field.rs` to say, the same whoever wrote it.
//!
//! A flag goes before a variable, a variable before the file, the file before the default. A list is
//! replaced whole, never merged. A value that is overruled is still checked: it will be in force one day.

pub mod error;
pub mod knob;

mod cluster;
pub mod environment;
mod field;
mod file;
mod flags;
pub mod form;
pub mod near;
mod queue;
pub mod reload;
mod secrets;
mod table;
mod tls;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use clap::ArgMatches;
use maitre_discover::Source;
use maitre_discover::kubernetes::Api;
use maitre_discover::settings::Grace;
use maitre_proxy::Settings;

use error::{Error, Place};
use knob::Given;
use queue::Queue;
use secrets::Secrets;

pub use error::Errors;
pub use flags::args;
pub use knob::{Knob, Section};

/// All that can be set, checked.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub settings: Settings,
    pub log: Log,
    pub discovery: WorkerSources,
    /// What `settings` will say of the queue once all names of classes are looked up.
    queue: Queue,
    /// What `settings` will say of other routers once all is read.
    cluster: cluster::Wanted,
    /// The operator accepts that others on the network can reach us, though we ask nobody who they are.
    pub insecure: bool,
    /// What `settings` will say of keys once their files are read.
    secrets: Secrets,
    /// What is no mistake, but had better be known. Nothing secret.
    pub warnings: Vec<String>,
}

/// Where workers are found, besides those that are listed.
#[derive(Clone, Debug, Default)]
pub struct WorkerSources {
    pub from: Vec<Source>,
    pub grace: Grace,
    /// Name servers; empty for the system's.
    pub servers: Vec<SocketAddr>,
    /// None: that of the cluster we run in.
    pub api: Option<Api>,
}

#[derive(Clone, Debug)]
pub struct Log {
    /// What is logged: a filter that `EnvFilter` takes.
    pub level: String,
    pub format: Format,
}

impl Default for Log {
    fn default() -> Log {
        Log { level: "info".to_owned(), format: Format::Text }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Text,
    Json,
}

/// The knobs, in the order in which people read about them.
pub fn table() -> &'static [Section] {
    table::SECTIONS
}

/// The settings of a command that was built with `args()`, in the environment `variables`.
///
/// Those of `std::env::vars_os`: its twin `vars` panics if any variable of anybody is not UTF-8.
pub fn load<T: Into<OsString>>(
    matches: &ArgMatches,
    variables: impl IntoIterator<Item = (T, T)>,
) -> Result<Config, Errors> {
    let environment = environment::read(variables);
    let mut draft = Draft::default();
    if let Some(path) = flags::file(matches).or(environment.file) {
        draft.take(file::read(&path));
    }
    draft.take(environment.found);
    draft.take(flags::read(matches));
    draft.finish()
}

/// The file that a command was given, by its flag or by the environment.
pub fn file<T: Into<OsString>>(
    matches: &ArgMatches,
    variables: impl IntoIterator<Item = (T, T)>,
) -> Option<std::path::PathBuf> {
    flags::file(matches).or_else(|| environment::read(variables).file)
}

/// Sets one knob by its key.
pub fn set(config: &mut Config, key: &str, text: &str) -> Result<(), String> {
    set_one_of_several(config, key, text)?;
    settle(config)
}

/// The same where more are to come, which may need each other: classes, and the one that is standard. `settle` them then.
pub fn set_one_of_several(config: &mut Config, key: &str, text: &str) -> Result<(), String> {
    let knob = knob::all().find(|it| it.key == key).ok_or_else(|| format!("no knob is called \"{key}\""))?;
    let given = Given { knob, written: knob::Written::One(text.to_owned()), place: Place::Flag(knob.flag()) };
    let join =
        |errors: Vec<error::Error>| errors.into_iter().map(|it| it.what).collect::<Vec<_>>().join("; ");
    knob.set(config, &given).map_err(join)
}

pub fn settle(config: &mut Config) -> Result<(), String> {
    let errors: Vec<String> = settle_all(config).into_iter().map(|(_, what)| what).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
}

/// What is wrong, and the keys it can be mended at.
fn settle_all(config: &mut Config) -> Vec<(Vec<&'static str>, String)> {
    let mut wrong = queue::settle(config);
    wrong.extend(secrets::settle(config));
    wrong.extend(cluster::settle(config));
    wrong
}

/// The value of one knob as TOML; none if there is no such key.
pub fn value(config: &Config, key: &str) -> Option<String> {
    knob::all().find(|it| it.key == key).map(|it| it.toml(config))
}

/// A time as knobs take it: `90s`, `150ms`, `2m`.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    form::duration(text, &(std::time::Duration::ZERO..=std::time::Duration::from_hours(24)))
}

/// What may be logged, as `log.level` takes it.
pub fn level(text: &str) -> Result<String, String> {
    form::level(text)
}

/// The settings of one file, with nothing around it.
pub fn check_file(path: &Path) -> Result<Config, Errors> {
    let mut draft = Draft::default();
    draft.take(file::read(path));
    draft.finish()
}

/// The settings of a TOML file that nobody has written yet: `name` stands for it in messages.
pub fn check_text(name: &str, text: &str) -> Result<Config, Errors> {
    let mut draft = Draft::default();
    draft.take(file::parse(&format!("{name}.toml").into(), text.as_bytes()));
    draft.finish()
}

impl Config {
    /// The files that it was read from besides its own.
    pub fn files(&self) -> impl Iterator<Item = &std::path::PathBuf> {
        let secrets = &self.secrets;
        let files = [
            &secrets.keys_file,
            &secrets.worker_key_file,
            &secrets.admin_key_file,
            &secrets.salt_secret_file,
            &secrets.cluster_key_file,
        ];
        files.into_iter().flatten()
    }

    /// The same as `to_string`, without the names of tenants, which may be keys, and without hashes: short keys can be
    /// guessed from those.
    pub fn for_showing(&self) -> String {
        let text = self.to_string();
        let hidden = [
            ("tenants = [\"", "# tenants is set, and not shown"),
            ("keys = [\"", "# keys is set, and not shown"),
            ("admin_key = \"sha256:", "# admin_key is set, and not shown"),
        ];
        let lines = text.lines().map(|line| {
            let hides = hidden.iter().find(|(beginning, _)| line.starts_with(beginning));
            hides.map_or(line, |(_, instead)| instead)
        });
        lines.flat_map(|it| [it, "\n"]).collect()
    }
}

/// Every knob with its value, as a TOML file that gives this configuration but for the secrets that are kept as they
/// are: of those it says in a comment that they are set. It holds the names of tenants, which may be their keys:
/// nothing to log.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut knobs = table().iter().flat_map(|section| section.knobs);
        knobs.try_for_each(|knob| match knob.hides(self) {
            true => writeln!(f, "# {} is set, and not shown", knob.key),
            false => writeln!(f, "{} = {}", knob.key, knob.toml(self)),
        })
    }
}

/// What one source holds: what could be understood, and what could not.
#[derive(Debug, Default)]
struct Found {
    given: Vec<Given>,
    errors: Vec<Error>,
}

/// A configuration between its first source and its last.
#[derive(Default)]
struct Draft {
    config: Config,
    /// Where each value in force was written; defaults were not.
    places: BTreeMap<&'static str, Place>,
    errors: Vec<Error>,
}

impl Draft {
    fn take(&mut self, found: Found) {
        self.errors.extend(found.errors);
        for given in found.given {
            match given.knob.set(&mut self.config, &given) {
                Ok(()) => drop(self.places.insert(given.knob.key, given.place)),
                Err(errors) => self.errors.extend(errors),
            }
        }
    }

    fn finish(mut self) -> Result<Config, Errors> {
        let mut unsettled = settle_all(&mut self.config);
        // Of a list that was half read, nobody knows what it would have named.
        if self.errors.iter().any(|it| matches!(it.key.as_deref(), Some("classes" | "tenants" | "keys"))) {
            unsettled.clear();
        }
        for (keys, what) in unsettled.into_iter().chain(conflicts(&self.config)) {
            // The defaults are in no conflict, so at least one of the keys was written somewhere.
            let written = keys.iter().find_map(|key| Some((key, self.places.get(key)?.clone())));
            if let Some((&key, place)) = written {
                self.errors.push(Error { place, key: Some(key.to_owned()), what });
            }
        }
        self.errors.sort_by_key(|it| it.place.rank());
        match self.errors.is_empty() {
            true => Ok(self.config),
            false => Err(Errors(self.errors)),
        }
    }
}

/// What is wrong between values that are right by themselves, and the keys it can be mended at.
fn conflicts(config: &Config) -> Vec<(Vec<&'static str>, String)> {
    let (settings, health) = (&config.settings, &config.settings.brain.health);
    let mut conflicts = Vec::new();
    let secrets = &config.secrets;
    let (clients, operators) = (tls::keeps_out(&settings.tls), tls::keeps_out(&settings.admin_tls));
    for (key, address, is_guarded, fix) in [
        ("listen", settings.listen, secrets.guard_requests() || clients, "requests need no key; set keys"),
        ("admin", settings.admin, secrets.guard_admin() || operators, "it asks for no key; set admin_key"),
    ] {
        if !config.insecure && !is_guarded && !address.ip().to_canonical().is_loopback() {
            let what = format!(
                "{address} is open to other machines, and {fix} (`maitre key` makes one), use 127.0.0.1, \
                 or set insecure = true if everyone who can reach it may use it"
            );
            conflicts.push((vec![key], what));
        }
    }
    if collide(settings.listen, settings.admin) {
        let what = format!("listen {} and admin {} collide; use two ports", settings.listen, settings.admin);
        conflicts.push((vec!["listen", "admin"], what));
    }
    if health.back_off > health.back_off_max {
        let [first, most] = [health.back_off, health.back_off_max].map(form::show_duration);
        let what = format!("health.back_off {first} is longer than health.back_off_max {most}");
        conflicts.push((vec!["health.back_off", "health.back_off_max"], what));
    }
    conflicts.extend(tls::conflicts(settings));
    conflicts.extend(cluster::conflicts(config));
    conflicts
}

/// Whether the second of two listeners would find its port taken. Port zero is a new port each time.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let same_host = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.port() != 0 && same_host
}
