//! Converts the flags of another router to our settings, with notes about the differences.
//!
//! Settings whose flags are missing get the other router's default where clients or operators would notice
//! (addresses, strategy, the size of a body, how long a request may take), and Maitre's own default
//! elsewhere.

mod access;
mod workers;

use std::collections::BTreeMap;
use std::fmt;

use maitre_config::{self as config, Config};
use maitre_dispatch::scheduler::ATTEMPTS_MAX;

use super::flag::{ArgumentForm, Fate, Flag, Goal, Old};
use super::policy;
use super::words::Given;

/// Their default limits: a body in bytes, a request in seconds, and the drain of open requests in seconds.
const BODY_BYTES: &str = "536870912";
const REQUEST_SECONDS: &str = "1800";
const DRAIN_SECONDS: &str = "180";
/// The default destination of spans.
const COLLECTOR: &str = "localhost:4317";
/// The header for a session, and the one for a tenant.
const ROUTING_KEY: &str = "x-smg-routing-key";
const TENANT_HEADER: &str = "x-smg-tenant-id";
/// Written to the file in place of the key.
const WORKER_KEY: &str = "# not printed: worker_key: write the key after --api-key into a file that only Maitre can read, \
     and name that in worker_key_file, or set MAITRE_WORKER_KEY\n";
/// A number of consecutive failures that is never reached.
const NEVER: &str = "1000000";

/// The result of converting a command line.
#[derive(Debug)]
pub(super) struct Carried {
    /// The settings, as a file.
    pub(super) toml: String,
    /// The differences, one line each.
    pub(super) notes: Vec<String>,
    /// Why it cannot be started, if it cannot.
    pub(super) missing: Vec<String>,
    /// The key sent to workers. No hash can replace this secret, so it is not in the file.
    worker_key: Option<Unshown>,
}

impl Carried {
    /// The settings, including what the file leaves out.
    pub(super) fn config(&self) -> Result<Config, String> {
        let mut config = config::check_text("compat", &self.toml).map_err(|errors| errors.to_string())?;
        if let Some(Unshown(key)) = &self.worker_key {
            config::set(&mut config, "worker_key", key).map_err(|what| format!("worker_key: {what}"))?;
        }
        Ok(config)
    }
}

/// A secret on its way into the settings.
struct Unshown(String);

impl fmt::Debug for Unshown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

pub(super) fn carry(old: Old, given: &[Given]) -> Result<Carried, Vec<String>> {
    let mut draft = Draft::new(old, given);
    draft.each();
    draft.keys();
    draft.certificates();
    draft.addresses();
    draft.strategy();
    draft.workers();
    draft.discovery();
    draft.left_without_workers();
    draft.traces();
    draft.times();
    draft.line();
    draft.failures();
    draft.paths();
    draft.rest();
    draft.finish()
}

/// The settings while flags are converted.
struct Draft<'a> {
    old: Old,
    given: &'a [Given],
    /// By key: its value, and the flag that set it.
    set: BTreeMap<&'static str, (String, &'static str)>,
    notes: Vec<String>,
    errors: Vec<String>,
    /// Why nothing can be served, beside the flags that say so themselves.
    missing: Vec<String>,
    worker_key: Option<Unshown>,
}

impl<'a> Draft<'a> {
    fn new(old: Old, given: &'a [Given]) -> Draft<'a> {
        let (notes, errors, missing) = (Vec::new(), Vec::new(), Vec::new());
        Draft { old, given, set: BTreeMap::new(), notes, errors, missing, worker_key: None }
    }
    /// All values of this flag.
    fn all(&self, name: &str) -> Option<Vec<&str>> {
        let given: Vec<&Given> = self.given.iter().filter(|it| it.flag.is_called(name)).collect();
        (!given.is_empty()).then(|| given.iter().flat_map(|it| &it.values).map(String::as_str).collect())
    }

    /// The last value, which is the one that counts.
    fn one(&self, name: &str) -> Option<&str> {
        self.all(name)?.last().copied()
    }

    /// The same as `all`, but owned, for use while settings are changed.
    fn words(&self, name: &str) -> Vec<String> {
        self.all(name).unwrap_or_default().into_iter().map(str::to_owned).collect()
    }

    fn has(&self, name: &str) -> bool {
        self.all(name).is_some()
    }

    fn set(&mut self, key: &'static str, text: impl Into<String>, flag: &'static str) {
        self.set.insert(key, (text.into(), flag));
    }

    fn wrong(&mut self, flag: &str, what: &str) {
        self.errors.push(format!("{flag}: {what}"));
    }

    fn changed(&mut self, flag: &str, what: &str) {
        self.notes.push(format!("changed: {flag}: {what}"));
    }

    fn left(&mut self, flag: &str, what: &str) {
        self.notes.push(format!("not carried over: {flag}: {what}"));
    }

    /// The flag's value as an integer; none, with a recorded error, if it is not one.
    fn number(&mut self, flag: &'static str, text: &str) -> Option<i64> {
        let number = text.parse().ok();
        if number.is_none() {
            self.wrong(flag, &format!("{text:?} is not a whole number"));
        }
        number
    }

    /// Seconds in our format; none, with a recorded error, if the value is not a number.
    fn seconds(&mut self, flag: &'static str, text: &str) -> Option<String> {
        let number = self.number(flag, text)?;
        if number < 0 {
            self.wrong(flag, &format!("{text:?} is negative; write 0 or more seconds"));
        }
        (number >= 0).then(|| format!("{number}s"))
    }

    /// Records the outcome of each flag, and converts those with a setting of their own.
    fn each(&mut self) {
        let mut told: Vec<&str> = Vec::new();
        for Given { flag, values } in self.given {
            let first = !told.contains(&flag.name());
            told.push(flag.name());
            match flag.fate() {
                Fate::Left(why) | Fate::Essential(why) if first => self.left(flag.name(), why),
                Fate::Needless(why) if first => {
                    self.notes.push(format!("not needed: {}: {why}", flag.name()))
                }
                Fate::Changed(_, how) if first => self.changed(flag.name(), how),
                _ => {}
            }
            if let Fate::Kept(Goal::Key(key, form)) | Fate::Changed(Goal::Key(key, form), _) = flag.fate() {
                let value = values.last().map_or("", String::as_str);
                self.key(flag, key, form, value);
            }
        }
    }

    fn key(&mut self, flag: &Flag, key: &'static str, form: ArgumentForm, value: &str) {
        let text = match form {
            ArgumentForm::Plain => Some(value.to_owned()),
            ArgumentForm::Word(word) => Some(word.to_owned()),
            ArgumentForm::Bytes => self.number(flag.name(), value).map(|it| format!("{it}B")),
            ArgumentForm::SecondsOrNever if value == "0" => {
                self.left(flag.name(), "0 meant no limit, but Maitre always has one");
                None
            }
            ArgumentForm::Seconds | ArgumentForm::SecondsOrNever => self.seconds(flag.name(), value),
        };
        if let Some(text) = text {
            self.set(key, text, flag.name());
        }
    }

    fn strategy(&mut self) {
        let flag =
            if self.is_split() && self.has("--decode-policy") { "--decode-policy" } else { "--policy" };
        let policy = self.one(flag).unwrap_or("cache_aware").to_owned();
        let sticky = self.has("--routing-key-override");
        let chosen = if sticky { Ok((policy::STICKY, None)) } else { policy::strategy(self.old, &policy) };
        match chosen {
            Ok((strategy, note)) => {
                self.set("strategy", strategy, flag);
                if let Some(note) = note {
                    self.changed(flag, note);
                }
                if strategy == policy::STICKY && self.old == Old::Sglang {
                    self.set("session.header", ROUTING_KEY, flag);
                }
            }
            Err(what) => self.wrong(flag, &what),
        }
        if let Some(header) = self.all("--routing-key-headers").and_then(|it| it.first().copied()) {
            let header = header.to_owned();
            self.set("session.header", header, "--routing-key-headers");
        }
        let tokens = self.one("--prefix-token-count").map(str::to_owned);
        if let Some(count) = tokens.and_then(|it| self.number("--prefix-token-count", &it)) {
            self.set("prefix_hash.head_bytes", count.saturating_mul(4).to_string(), "--prefix-token-count");
        }
    }

    fn traces(&mut self) {
        if !self.has("--enable-trace") {
            return;
        }
        let given = self.one("--otlp-traces-endpoint").unwrap_or(COLLECTOR);
        let url = if given.contains("://") { given.to_owned() } else { format!("http://{given}") };
        let over_http = match url.strip_suffix(":4317") {
            Some(host) => format!("{host}:4318"),
            None => url,
        };
        self.set("traces.endpoint", over_http, "--otlp-traces-endpoint");
    }

    fn times(&mut self) {
        let given = self.one("--request-timeout-secs").unwrap_or(REQUEST_SECONDS).to_owned();
        if let Some(total) = self.seconds("--request-timeout-secs", &given) {
            for key in ["timeouts.total", "timeouts.headers", "timeouts.first_token"] {
                self.set(key, total.clone(), "--request-timeout-secs");
            }
        }
        if !self.has("--max-payload-size") {
            self.set("limits.body", format!("{BODY_BYTES}B"), "--max-payload-size");
        }
        if self.old == Old::Sglang && !self.has("--shutdown-grace-period-secs") {
            self.set("timeouts.drain", format!("{DRAIN_SECONDS}s"), "--shutdown-grace-period-secs");
        }
    }

    fn line(&mut self) {
        let size = self.one("--queue-size").map(str::to_owned);
        let size = size.and_then(|it| self.number("--queue-size", &it)).map(|it| format!("requests={it}"));
        let wait = self.one("--queue-timeout-secs").map(str::to_owned);
        let wait =
            wait.and_then(|it| self.seconds("--queue-timeout-secs", &it)).map(|it| format!("deadline={it}"));
        let flag = if size.is_some() { "--queue-size" } else { "--queue-timeout-secs" };
        let parts: Vec<String> = size.into_iter().chain(wait).collect();
        let classes = match parts.is_empty() {
            // These routers refuse no request because it waits.
            true => ["interactive", "standard", "batch"].map(|it| format!("{it}?deadline=none")).join(","),
            false => format!("standard?{}", parts.join("&")),
        };
        self.set("classes", classes, flag);
        self.concurrency();
    }

    fn concurrency(&mut self) {
        const FLAG: &str = "--max-concurrent-requests";
        let Some(given) = self.one(FLAG).map(str::to_owned) else { return };
        let workers = self.answering();
        match (self.number(FLAG, &given), i64::try_from(workers)) {
            (Some(..=0), _) => {}
            (Some(limit), Ok(workers @ 1..)) => {
                // Rounded up: together they may have no less than before.
                let share = (limit - 1) / workers + 1;
                self.set("queue.sequences_max", share.to_string(), FLAG);
            }
            (Some(_), _) => self.left(FLAG, "it cannot be divided, because no workers are given"),
            (None, _) => {}
        }
    }

    fn failures(&mut self) {
        let attempts = self.one("--retry-max-retries").map(str::to_owned);
        if let Some(attempts) = attempts.and_then(|it| self.number("--retry-max-retries", &it)) {
            // Their count includes the first attempt.
            let further = (attempts - 1).clamp(0, i64::from(ATTEMPTS_MAX));
            self.set("retries.failovers_max", further.to_string(), "--retry-max-retries");
        }
        if self.has("--disable-retries") {
            self.set("retries.failovers_max", "0", "--disable-retries");
        }
        if let Some(count) = self.one("--cb-failure-threshold").map(str::to_owned) {
            self.set("health.failures_max", count, "--cb-failure-threshold");
        }
        if self.has("--disable-circuit-breaker") {
            self.set("health.failures_max", NEVER, "--disable-circuit-breaker");
        }
        let out = self.one("--cb-timeout-duration-secs").map(str::to_owned);
        if let Some(out) = out.and_then(|it| self.number("--cb-timeout-duration-secs", &it)) {
            let most = config::Config::default().settings.brain.health.back_off_max.as_secs();
            let most = out.max(i64::try_from(most).unwrap_or(i64::MAX));
            self.set("health.back_off", format!("{out}s"), "--cb-timeout-duration-secs");
            self.set("health.back_off_max", format!("{most}s"), "--cb-timeout-duration-secs");
        }
    }

    /// What these routers serve to clients beside the API, and to which pages: to all, without the flag.
    fn paths(&mut self) {
        self.set("compat_paths", "true", "--prometheus-port");
        let origins = self.words("--cors-allowed-origins");
        let origins = if origins.is_empty() { "*".to_owned() } else { origins.join(",") };
        self.set("cors_origins", origins, "--cors-allowed-origins");
    }

    fn rest(&mut self) {
        if let Some(level) = self.one("--log-level") {
            let level = match level {
                "warning" => "warn",
                "critical" => "error",
                level => level,
            };
            let level = level.to_owned();
            self.set("log.level", level, "--log-level");
        }
        if self.has("--trust-tenant-header") {
            let header = self.one("--tenant-header-name").unwrap_or(TENANT_HEADER).to_owned();
            self.set("tenant.by", "header", "--trust-tenant-header");
            self.set("tenant.header", header, "--tenant-header-name");
        }
        let model = self.one("--model-path").map(str::to_owned);
        let Some(folder) = self.one("--tokenizer-path").map(str::to_owned).or(model.clone()) else { return };
        match folder.starts_with(['/', '.', '~']) {
            true => {
                let name = model.unwrap_or_else(|| folder.clone());
                self.set("tokenizers", format!("{name}={folder}"), "--model-path");
            }
            false => self.left(
                "--model-path",
                "tokenizers are not downloaded: set tokenizers to a folder that has it",
            ),
        }
    }

    fn finish(mut self) -> Result<Carried, Vec<String>> {
        let mut config = Config::default();
        for (key, (text, flag)) in &self.set {
            if let Err(what) = config::set_unresolved(&mut config, key, text) {
                self.errors.push(format!("{flag}: {what}"));
            }
        }
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        let keys = config::table().iter().flat_map(|section| section.knobs).map(|knob| knob.key);
        let written = keys.filter(|key| self.set.contains_key(key));
        let line = |key: &str| format!("{key} = {}\n", config::value(&config, key).unwrap_or_default());
        let settings: String = written.map(line).collect();
        let notes: String = self.notes.iter().map(|it| format!("# {it}\n")).collect();
        let head = format!("# The flags of {}, as Maitre's settings.\n", self.old.name());
        let hidden = if self.worker_key.is_some() { WORKER_KEY } else { "" };
        let toml = format!("{head}{notes}{hidden}\n{settings}");
        let essential = |it: &Given| match it.flag.fate() {
            Fate::Essential(_) => Some(format!("{}: Maitre cannot start without it", it.flag.name())),
            _ => None,
        };
        let missing = self.given.iter().filter_map(essential).chain(self.missing).collect();
        Ok(Carried { toml, notes: self.notes, missing, worker_key: self.worker_key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_used_by_name_is_in_the_table() {
        let known: Vec<Flag> =
            [Old::Sglang, Old::VllmRouter].into_iter().flat_map(super::super::table::flags).collect();
        let source =
            [include_str!("carry.rs"), include_str!("carry/access.rs"), include_str!("carry/workers.rs")];
        let source = source.concat();
        let mut names =
            source.split('"').filter(|it| it.starts_with("--") && !it.contains(' ') && it.len() > 2);
        assert!(names.clone().count() > 40, "this test no longer understands its own file");
        let unknown = names.find(|name| !known.iter().any(|it| it.is_called(name)));
        assert_eq!(unknown, None);
    }
}
