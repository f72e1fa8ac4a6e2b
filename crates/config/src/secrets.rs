//! Keys and secrets until all sources are read: those in the settings themselves, and those in files.
//!
//! A secret that is only compared is kept as a hash from the moment it is read. One that must be sent, or from which
//! others are derived, is kept as it is and shown nowhere: not in errors, not by `Debug`, not among printed settings.
//! Files are read after all sources, so that a reload reads them again.

mod file;
pub(crate) mod key;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

use maitre_base::ClassId;
use maitre_net::bearer::Bearer;
use maitre_proxy::keys::KEYS_MAX;
use maitre_proxy::secret::{KEY_BYTES_MIN, Secret};
use maitre_proxy::settings::TenantBy;
use maitre_proxy::{ApiKey, ApiKeys, Salter};
use maitre_queue::settings::{TENANTS_MAX, masked, tenant};
use maitre_queue::{Tenant, Terms};

use crate::error::Conflict;
use crate::form::{Custom, OneOf, Optional, Secrecy, public};
use crate::{Config, queue};
use key::ClientKey;

#[derive(Clone, Debug, Default)]
pub(crate) struct Secrets {
    pub(crate) keys: Vec<ClientKey>,
    pub(crate) keys_file: Option<PathBuf>,
    pub(crate) worker_key: Option<Hidden>,
    pub(crate) worker_key_file: Option<PathBuf>,
    pub(crate) admin_key: Option<Secret>,
    pub(crate) admin_key_file: Option<PathBuf>,
    pub(crate) salt_by: SaltBy,
    pub(crate) salt_secret: Option<Hidden>,
    pub(crate) salt_secret_file: Option<PathBuf>,
    pub(crate) cluster_key: Option<Hidden>,
    pub(crate) cluster_key_file: Option<PathBuf>,
}

impl Secrets {
    /// Whether requests need a key, even if the keys could not be read.
    pub(crate) fn guard_requests(&self) -> bool {
        !self.keys.is_empty() || self.keys_file.is_some()
    }

    pub(crate) fn guard_admin(&self) -> bool {
        self.admin_key.is_some() || self.admin_key_file.is_some()
    }
}

/// A secret that is needed as it is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hidden(pub(crate) String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// What the caches of engines are kept apart by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SaltBy {
    #[default]
    Off,
    Tenant,
}

/// A secret that is kept as it is.
pub(crate) const SECRET: Optional<Custom<Hidden>> =
    Optional(Custom { secrecy: |_| Secrecy::Hidden, ..public("SECRET", hidden, |it| format!("{it:?}")) });

pub(crate) const SALT_BY: OneOf<SaltBy> = OneOf("SALT", &[("off", SaltBy::Off), ("tenant", SaltBy::Tenant)]);

/// At most 4096 bytes. Chosen: no header that engines take is longer.
fn hidden(text: &str) -> Result<Hidden, String> {
    match text.len() > 4_096 || text.contains(char::is_control) {
        true => Err("is too long or not printable; write at most 4096 bytes".to_owned()),
        false => Ok(Hidden(text.to_owned())),
    }
}

/// Reads the files, looks up the names of classes and puts the result into the settings. After `queue::resolve`, to
/// whose tenants it adds.
pub(crate) fn resolve(config: &mut Config) -> Vec<Conflict> {
    let mut reader = SecretReader::default();
    let secrets = &config.secrets;
    let key_lines = reader.file("keys_file", secrets.keys_file.as_deref());
    let worker = reader.secret(
        ["worker_key", "worker_key_file"],
        secrets.worker_key.as_ref(),
        secrets.worker_key_file.as_deref(),
    );
    let worker: Option<Bearer> = worker.and_then(|(key, text)| reader.parse(key, &text));
    let admin = reader.file("admin_key_file", secrets.admin_key_file.as_deref());
    let admin = match (secrets.admin_key, admin) {
        (Some(_), Some(_)) => reader.both_set(["admin_key", "admin_key_file"]),
        (own, None) => own,
        (None, Some(text)) => reader.parse("admin_key_file", &text),
    };
    let salt = reader.secret(
        ["salt.secret", "salt.secret_file"],
        secrets.salt_secret.as_ref(),
        secrets.salt_secret_file.as_deref(),
    );
    let salt = reader.salter(secrets.salt_by, salt);
    let cluster = reader.secret(
        ["cluster.key", "cluster.key_file"],
        secrets.cluster_key.as_ref(),
        secrets.cluster_key_file.as_deref(),
    );
    let cluster = cluster.and_then(|(key, text)| reader.long_enough(key, &text));
    let rows = reader.client_keys(secrets, key_lines);
    reader.conflicts.extend(limit_tenants(config, &rows));
    let keys = reader.look_up(config, rows);
    let has_trusted = keys.iter().any(|(_, key)| key.trusted);
    if !keys.is_empty() && config.settings.hints.tenant_by == TenantBy::Header && !has_trusted {
        let what = "tenant.by: \"header\" applies only to keys that are trusted, and none is";
        reader.warnings.push(what.to_owned());
    }
    let settings = &mut config.settings;
    settings.keys = ApiKeys::new(keys);
    (settings.worker_key, settings.admin_key, settings.salt) = (worker, admin, salt);
    config.cluster.secret = cluster.map(Hidden);
    config.warnings = reader.warnings;
    reader.conflicts
}

/// A client key, the knob that names it, and its line if that knob is a file.
struct KeyRow {
    knob: &'static str,
    line: String,
    key: ClientKey,
}

/// Reads secrets and collects what is wrong with them.
#[derive(Default)]
struct SecretReader {
    conflicts: Vec<Conflict>,
    warnings: Vec<String>,
}

impl SecretReader {
    fn fail(&mut self, knob: &'static str, what: impl Into<String>) {
        self.conflicts.push(Conflict::new(&[knob], what));
    }

    fn file(&mut self, knob: &'static str, path: Option<&Path>) -> Option<String> {
        match file::read(path?) {
            Ok(file) => {
                self.warnings.extend(file.warning.map(|it| format!("{knob}: {it}")));
                Some(file.text)
            }
            Err(what) => {
                self.fail(knob, what);
                None
            }
        }
    }

    /// A secret from the settings or from a file, and the knob that has it.
    fn secret(
        &mut self,
        [knob, file_knob]: [&'static str; 2],
        own: Option<&Hidden>,
        file: Option<&Path>,
    ) -> Option<(&'static str, String)> {
        match (own, self.file(file_knob, file)) {
            (Some(_), Some(_)) => self.both_set([knob, file_knob]),
            (Some(Hidden(own)), None) => Some((knob, own.clone())),
            (None, file) => file.map(|it| (file_knob, it)),
        }
    }

    fn both_set<T>(&mut self, [knob, file_knob]: [&'static str; 2]) -> Option<T> {
        let what = format!("{knob} and {file_knob} are both set; leave one of them out");
        self.conflicts.push(Conflict::new(&[file_knob, knob], what));
        None
    }

    fn parse<T: FromStr<Err: fmt::Display>>(&mut self, knob: &'static str, text: &str) -> Option<T> {
        text.trim().parse().map_err(|error: T::Err| self.fail(knob, error.to_string())).ok()
    }

    /// A secret that is not easily guessed.
    fn long_enough(&mut self, knob: &'static str, text: &str) -> Option<String> {
        let secret = text.trim();
        if secret.len() < KEY_BYTES_MIN {
            self.fail(
                knob,
                format!("a secret has at least {KEY_BYTES_MIN} characters; `maitre key` makes one"),
            );
            return None;
        }
        Some(secret.to_owned())
    }

    /// Without a secret, one is drawn once for this process: a reload must not empty every cache.
    fn salter(&mut self, by: SaltBy, secret: Option<(&'static str, String)>) -> Option<Salter> {
        static DRAWN: OnceLock<[u8; 32]> = OnceLock::new();
        if let Some((knob, secret)) = secret {
            let secret = self.long_enough(knob, &secret)?;
            return (by == SaltBy::Tenant).then(|| Salter::of(secret.as_bytes()));
        }
        if by == SaltBy::Off {
            return None;
        }
        match maitre_proxy::secret::random_bytes() {
            Ok(bytes) => Some(Salter::of(DRAWN.get_or_init(|| bytes))),
            Err(error) => {
                self.fail("salt.by", format!("the system has no random bytes ({error}); set salt.secret"));
                None
            }
        }
    }

    /// The keys of the settings and of the file, each once.
    fn client_keys(&mut self, secrets: &Secrets, file: Option<String>) -> Vec<KeyRow> {
        let own = secrets.keys.iter().cloned();
        let mut rows: Vec<KeyRow> =
            own.map(|key| KeyRow { knob: "keys", line: String::new(), key }).collect();
        if let (Some(text), Some(path)) = (file, &secrets.keys_file) {
            rows.extend(self.key_file(&text, path));
        }
        if rows.len() > KEYS_MAX {
            let what = format!("there are {} keys; there can be {KEYS_MAX}", rows.len());
            self.fail(rows[KEYS_MAX].knob, what);
            rows.truncate(KEYS_MAX);
        }
        let mut seen = HashSet::new();
        rows.retain(|KeyRow { knob, line, key }| {
            let is_new = seen.insert(key.secret);
            if !is_new {
                self.fail(knob, format!("{line}{} is there twice", key.shown()));
            }
            is_new
        });
        rows
    }

    fn key_file(&mut self, text: &str, path: &Path) -> Vec<KeyRow> {
        let (mut rows, path) = (Vec::new(), path.display());
        for (number, row) in text.lines().enumerate().map(|(at, it)| (at + 1, it.trim())) {
            if row.is_empty() || row.starts_with('#') {
                continue;
            }
            let line = format!("{path}:{number}: ");
            match key::read(row) {
                Ok(key) => rows.push(KeyRow { knob: "keys_file", line, key }),
                Err(what) => self.fail("keys_file", format!("{line}{what}")),
            }
        }
        if rows.is_empty() && self.conflicts.is_empty() {
            self.fail("keys_file", format!("{path} holds no key; without any, requests would need none"));
        }
        rows
    }

    fn look_up(&mut self, config: &Config, rows: Vec<KeyRow>) -> Vec<(Secret, ApiKey)> {
        let settings = &config.settings;
        if let Some(first) = rows.first()
            && settings.hints.tenant_by == TenantBy::Adapter
        {
            let what = "keys name the tenant of a request; leave tenant.by = \"adapter\" out";
            self.conflicts.push(Conflict::new(&["tenant.by", first.knob], what));
        }
        let mut keys = Vec::new();
        for KeyRow { knob, line, key } in rows {
            let class = key.best.as_deref().map(|it| queue::find_class(&settings.brain.queue, it));
            match class.unwrap_or(Ok(ClassId(0))) {
                Ok(best) => {
                    let tenant = key.tenant();
                    keys.push((
                        key.secret,
                        ApiKey { tenant, best, models: key.models, trusted: key.trusted },
                    ));
                }
                Err(what) => {
                    let what = format!("{line}{}: best: {what}", key.shown());
                    self.conflicts.push(Conflict::new(&[knob, "classes"], what));
                }
            }
        }
        keys
    }
}

/// Gives tenants the limits that their keys name. A limit holds for a tenant, whichever of its keys is used, so it may
/// be set in only one place.
fn limit_tenants(config: &mut Config, rows: &[KeyRow]) -> Vec<Conflict> {
    let settings = &mut config.settings.brain.queue;
    let mut conflicts = Vec::new();
    let mut given: BTreeMap<String, (Option<u32>, Option<u64>)> = BTreeMap::new();
    for KeyRow { knob, line, key } in rows {
        let limits = (key.requests_per_minute, key.tokens_per_minute);
        if limits == (None, None) {
            continue;
        }
        let name = key.tenant();
        let shown = masked(&name);
        let id = tenant(name.as_bytes());
        let terms = settings.tenants.get(&id).map(|it| it.terms);
        let has_own = terms.is_some_and(|it| (it.requests_per_minute, it.tokens_per_minute) != (None, None));
        let what = match given.get(&name) {
            Some(other) if *other != limits => {
                format!("another key of {shown} has other limits; set rpm and tpm once, under tenants")
            }
            None if has_own => format!("{shown} has limits under tenants; set them in one place"),
            _ if terms.is_none() && settings.tenants.len() == TENANTS_MAX => {
                format!("{shown} is one too many; there can be {TENANTS_MAX} tenants")
            }
            _ => {
                let (requests_per_minute, tokens_per_minute) = limits;
                let terms =
                    Terms { requests_per_minute, tokens_per_minute, ..terms.unwrap_or(settings.others) };
                settings.tenants.insert(id, Tenant { name: name.clone(), terms });
                given.insert(name, limits);
                continue;
            }
        };
        conflicts.push(Conflict::new(&[knob, "tenants"], format!("{line}{what}")));
    }
    conflicts
}

#[cfg(test)]
mod tests;
