//! Settings from one file, the environment and the flags, checked once, with all errors reported at once.
//!
//! Every setting is a row of `table.rs`: a key, the place of its value, its form and a help text. The key in the file, the
//! flag, the variable and the line in the documentation follow from the row. A source (`file.rs`, `environment.rs`,
//! `flags.rs`) only finds which text is written where; the row's form (`form.rs`) reads the text, the same for every
//! source.
//!
//! A flag overrides a variable, a variable overrides the file, the file overrides the default. A list is replaced whole,
//! never merged. A value that is overridden is still checked, because it may apply one day.

mod error;
mod knob;

mod cluster;
pub mod environment;
mod field;
mod file;
mod flags;
pub mod form;
pub mod near;
mod options;
mod queue;
pub mod reload;
mod secrets;
mod table;
mod tls;
mod types;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use clap::ArgMatches;
use maitre_discover::WorkerSource;
use maitre_discover::api_address::ApiAddress;
use maitre_discover::settings::Grace;
use maitre_net::address::Address;
use maitre_proxy::RouterSettings;

use cluster::ClusterSettings;
use error::{ConfigError, Conflict, Origin};
use form::{Form as _, Secrecy};
use knob::{Assignment, RawValue};
use queue::QueueNames;
use secrets::Secrets;

pub use error::Errors;
pub use flags::args;
pub use knob::{Knob, Section};

/// All settings, checked.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub settings: RouterSettings,
    pub log: Log,
    pub discovery: WorkerSources,
    /// Becomes part of `settings` once the names of classes are looked up.
    queue: QueueNames,
    /// Becomes part of `settings` once everything is read.
    cluster: ClusterSettings,
    /// The operator accepts listeners that other machines can reach without a key or a certificate.
    pub insecure: bool,
    /// Becomes part of `settings` once the files of keys are read.
    secrets: Secrets,
    /// Not errors, but an operator should know. Nothing secret.
    pub warnings: Vec<String>,
}

/// Where workers are found, besides those that are listed.
#[derive(Clone, Debug, Default)]
pub struct WorkerSources {
    pub from: Vec<WorkerSource>,
    pub grace: Grace,
    /// Name servers; empty for the system's.
    pub servers: Vec<SocketAddr>,
    /// None for that of the Kubernetes cluster we run in.
    pub api: Option<ApiAddress>,
}

#[derive(Clone, Debug)]
pub struct Log {
    /// A filter that `EnvFilter` takes.
    pub level: String,
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Log {
        Log { level: "info".to_owned(), format: LogFormat::Text }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// The knobs, in the order of the documentation.
pub fn table() -> &'static [Section] {
    table::SECTIONS
}

/// The settings of a command that was built with `args()`, in the environment `variables`.
///
/// Pass `std::env::vars_os`: `vars` panics if any variable is not UTF-8.
pub fn load<T: Into<OsString>>(
    matches: &ArgMatches,
    variables: impl IntoIterator<Item = (T, T)>,
) -> Result<Config, Errors> {
    load_over(RouterSettings::default(), matches, variables)
}

/// The same for a command with defaults of its own.
pub fn load_over<T: Into<OsString>>(
    defaults: RouterSettings,
    matches: &ArgMatches,
    variables: impl IntoIterator<Item = (T, T)>,
) -> Result<Config, Errors> {
    let environment = environment::read(variables);
    let mut draft = Draft::default();
    draft.config.settings = defaults;
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
    set_unresolved(config, key, text)?;
    resolve(config)
}

/// The same for several knobs that need each other, such as classes and the standard class. Call `resolve` after the last.
pub fn set_unresolved(config: &mut Config, key: &str, text: &str) -> Result<(), String> {
    let knob = table::all().find(|it| it.key == key).ok_or_else(|| {
        let known: Vec<String> = table::all().map(|it| it.key.to_owned()).collect();
        format!("no such key; {}", near::hint(key, &known, &[]))
    })?;
    let (value, origin) = (RawValue::One(text.to_owned()), Origin::Flag(knob.flag()));
    let join = |errors: Vec<ConfigError>| errors.into_iter().map(|it| it.what).collect::<Vec<_>>().join("; ");
    knob.set(config, &Assignment { knob, value, origin }).map_err(join)
}

/// Looks up names and reads files, after all knobs are set.
pub fn resolve(config: &mut Config) -> Result<(), String> {
    let errors: Vec<String> = resolve_all(config).into_iter().map(|it| it.what).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
}

fn resolve_all(config: &mut Config) -> Vec<Conflict> {
    let mut conflicts = queue::resolve(config);
    conflicts.extend(secrets::resolve(config));
    conflicts.extend(cluster::resolve(config));
    conflicts
}

/// The value of one knob as TOML; none if there is no such key.
pub fn value(config: &Config, key: &str) -> Option<String> {
    table::all().find(|it| it.key == key).map(|it| it.field.toml(config))
}

/// A time as knobs take it: `90s`, `150ms`, `2m`.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    form::Time(std::time::Duration::ZERO..=std::time::Duration::from_hours(24)).read(text)
}

/// A log filter, as `log.level` takes it.
pub fn level(text: &str) -> Result<String, String> {
    types::LOG_LEVEL.read(text)
}

/// The settings of one file alone.
pub fn check_file(path: &Path) -> Result<Config, Errors> {
    let mut draft = Draft::default();
    draft.take(file::read(path));
    draft.finish()
}

/// The settings of a TOML file that is not on disk. Errors call it `name`.
pub fn check_text(name: &str, text: &str) -> Result<Config, Errors> {
    let mut draft = Draft::default();
    draft.take(file::parse(&format!("{name}.toml").into(), text.as_bytes()));
    draft.finish()
}

impl Config {
    /// The files of keys and secrets that were read.
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

    /// For operators and logs: secrets, hashes of keys and names of tenants are left out.
    pub fn for_showing(&self) -> String {
        table::all().map(|knob| knob.line(self, Secrecy::Public)).collect()
    }
}

/// A TOML file that gives this configuration, except for secrets that are kept as they are: a comment says that they
/// are set. It holds hashes of keys and names of tenants, so it must not be logged.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        table::all().try_for_each(|knob| f.write_str(&knob.line(self, Secrecy::ForFiles)))
    }
}

/// What one source holds: values, and errors for what could not be read.
#[derive(Default)]
struct SourceValues {
    given: Vec<Assignment>,
    errors: Vec<ConfigError>,
}

/// A configuration between its first source and its last.
#[derive(Default)]
struct Draft {
    config: Config,
    /// Where each value was written that is not a default.
    origins: BTreeMap<&'static str, Origin>,
    errors: Vec<ConfigError>,
}

impl Draft {
    fn take(&mut self, values: SourceValues) {
        self.errors.extend(values.errors);
        for given in values.given {
            match given.knob.set(&mut self.config, &given) {
                Ok(()) => drop(self.origins.insert(given.knob.key, given.origin)),
                Err(errors) => self.errors.extend(errors),
            }
        }
    }

    fn finish(mut self) -> Result<Config, Errors> {
        let mut found = resolve_all(&mut self.config);
        // A list that was read only in part lacks names that other settings may use.
        if self.errors.iter().any(|it| it.key.as_deref().is_some_and(|it| NAMING.contains(&it))) {
            found.retain(|it| !it.keys.iter().any(|key| NAMING.contains(key)));
        }
        found.extend(conflicts(&self.config));
        for Conflict { keys, what } in found {
            // The defaults do not conflict, so at least one of the keys was written somewhere.
            let written = keys.iter().find_map(|key| Some((key, self.origins.get(key)?.clone())));
            if let Some((&key, origin)) = written {
                // The key is shown before the error anyway.
                let what = what.strip_prefix(&format!("{key}: ")).unwrap_or(&what).to_owned();
                self.errors.push(ConfigError { origin, key: Some(key.to_owned()), what });
            }
        }
        self.errors.sort_by_key(|it| it.origin.rank());
        match self.errors.is_empty() {
            true => Ok(self.config),
            false => Err(Errors(self.errors)),
        }
    }
}

/// Lists whose names other settings use, and that use each other's.
const NAMING: [&str; 3] = ["classes", "tenants", "keys"];

fn conflicts(config: &Config) -> Vec<Conflict> {
    let (settings, health) = (&config.settings, &config.settings.brain.health);
    let mut conflicts = Vec::new();
    let clients = config.secrets.guard_requests() || tls::requires_certificate(&settings.tls);
    let operators = config.secrets.guard_admin() || tls::requires_certificate(&settings.admin_tls);
    for (key, address, is_guarded, fix) in
        [("listen", settings.listen, clients, "keys"), ("admin", settings.admin, operators, "admin_key")]
    {
        if !config.insecure && !is_guarded && !address.ip().to_canonical().is_loopback() {
            let what = format!(
                "{address} accepts other machines without a key; set {fix} (`maitre key` makes one), use \
                 127.0.0.1, or set insecure = true"
            );
            conflicts.push(Conflict::new(&[key], what));
        }
    }
    if collide(settings.listen, settings.admin) {
        let what = format!("listen {} and admin {} collide; use two ports", settings.listen, settings.admin);
        conflicts.push(Conflict::new(&["listen", "admin"], what));
    }
    for worker in &settings.workers {
        let listener = [settings.listen, settings.admin].into_iter().find(|it| reaches(&worker.address, *it));
        if let Some(listener) = listener {
            let what = format!(
                "{} is this router itself, which listens on {listener}; name engines, or set another address for listen \
                 or admin",
                worker.address
            );
            conflicts.push(Conflict::new(&["workers", "listen", "admin"], what));
        }
    }
    if health.back_off > health.back_off_max {
        let [first, most] = [health.back_off, health.back_off_max].map(form::show_duration);
        let what = format!("health.back_off {first} is longer than health.back_off_max {most}");
        conflicts.push(Conflict::new(&["health.back_off", "health.back_off_max"], what));
    }
    conflicts.extend(tls::conflicts(settings));
    conflicts.extend(cluster::conflicts(config));
    conflicts
}

/// Whether this address leads to a listener of our own, as far as it can be told without asking.
fn reaches(address: &Address, listener: SocketAddr) -> bool {
    let ip: Option<IpAddr> = match address.host() {
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        host => host.parse().ok(),
    };
    let is_here = ip.is_some_and(|ip| match listener.ip() {
        own if own.is_unspecified() => ip.is_loopback() || ip.is_unspecified(),
        own => ip == own || ip.is_unspecified() && own.is_loopback(),
    });
    is_here && address.port() == listener.port()
}

/// Whether two listeners need the same port. Port zero is a new port each time.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let same_host = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port() && one.port() != 0 && same_host
}
