//! Keys and secrets until all sources are read: those that were written where settings are, and those in files.
//!
//! What is only compared is kept as a hash from the moment it is read. What must be sent, or follows into other
//! secrets, is kept as it is and shown nowhere: not in messages, not by `Debug`, not among the settings that are
//! printed. Files are read when all sources have spoken, so that a reload reads them again.

mod file;
pub(super) mod key;

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use maitre_base::ClassId;
use maitre_net::bearer::Bearer;
use maitre_proxy::keys::KEYS_MAX;
use maitre_proxy::secret::{KEY_BYTES_MIN, Secret};
use maitre_proxy::settings::By;
use maitre_proxy::{Key, Keys, Salter};
use maitre_queue::settings::{TENANTS_MAX, masked, tenant};
use maitre_queue::{Tenant, Terms};

use super::{Config, queue};
use key::Written;

/// What is wrong between values that are right by themselves, and the knobs it can be mended at.
type Wrong = Vec<(Vec<&'static str>, String)>;

#[derive(Clone, Debug, Default)]
pub(super) struct Secrets {
    pub(super) keys: Vec<Written>,
    pub(super) keys_file: Option<PathBuf>,
    pub(super) worker_key: Option<Hidden>,
    pub(super) worker_key_file: Option<PathBuf>,
    pub(super) admin_key: Option<Secret>,
    pub(super) admin_key_file: Option<PathBuf>,
    pub(super) salt_by: SaltBy,
    pub(super) salt_secret: Option<Hidden>,
    pub(super) salt_secret_file: Option<PathBuf>,
    pub(super) cluster_key: Option<Hidden>,
    pub(super) cluster_key_file: Option<PathBuf>,
}

impl Secrets {
    /// Whether requests are meant to need a key, be they readable or not.
    pub(super) fn guard_requests(&self) -> bool {
        !self.keys.is_empty() || self.keys_file.is_some()
    }

    pub(super) fn guard_admin(&self) -> bool {
        self.admin_key.is_some() || self.admin_key_file.is_some()
    }
}

/// A secret that is needed as it is.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Hidden(pub(super) String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// What the caches of engines are kept apart by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SaltBy {
    #[default]
    Off,
    Tenant,
}

/// Reads the files, looks all names up, and says what is wrong. After `queue::settle`, whose tenants it adds to.
pub(super) fn settle(config: &mut Config) -> Wrong {
    let mut wrong = Vec::new();
    let mut warnings = Vec::new();
    let mut opened = |knob: &'static str, path: Option<&Path>| -> Option<String> {
        let read = path.map(file::read)?;
        let told = read.map(|read| {
            warnings.extend(read.warning.map(|it| format!("{knob}: {it}")));
            read.text
        });
        told.map_err(|what| wrong.push((vec![knob], what))).ok()
    };
    let secrets = &config.secrets;
    let keys = opened("keys_file", secrets.keys_file.as_deref());
    let worker = opened("worker_key_file", secrets.worker_key_file.as_deref());
    let admin = opened("admin_key_file", secrets.admin_key_file.as_deref());
    let salt = opened("salt.secret_file", secrets.salt_secret_file.as_deref());
    let cluster = opened("cluster.key_file", secrets.cluster_key_file.as_deref());

    let worker = one("worker_key", "worker_key_file", secrets.worker_key.as_ref(), worker, &mut wrong);
    let salt = one("salt.secret", "salt.secret_file", secrets.salt_secret.as_ref(), salt, &mut wrong);
    let cluster = one("cluster.key", "cluster.key_file", secrets.cluster_key.as_ref(), cluster, &mut wrong);
    let cluster = cluster.and_then(|(knob, text)| long_enough(&text, knob, &mut wrong));
    let admin = match (secrets.admin_key, admin) {
        (Some(_), Some(_)) => {
            wrong.push(both("admin_key", "admin_key_file"));
            None
        }
        (own, None) => own,
        (None, Some(text)) => read_one(&text, "admin_key_file", &mut wrong),
    };
    let worker: Option<Bearer> = worker.and_then(|(knob, text)| read_one(&text, knob, &mut wrong));
    let salt = salter(secrets.salt_by, salt, &mut wrong);
    let rows = rows(secrets, keys, &mut wrong);
    wrong.extend(limit(config, &rows));
    let keys = look_up(config, rows, &mut wrong);
    let has_trusted = keys.iter().any(|(_, key)| key.trusted);
    if !keys.is_empty() && config.settings.door.tenant_by == By::Header && !has_trusted {
        let what = "tenant.by: \"header\" counts only for keys that are trusted, and none is";
        warnings.push(what.to_owned());
    }
    let settings = &mut config.settings;
    settings.keys = Keys::new(keys);
    (settings.worker_key, settings.admin_key, settings.salt) = (worker, admin, salt);
    config.cluster.secret = cluster.map(Hidden);
    config.warnings = warnings;
    wrong
}

/// A secret that may stand here or in a file, and where it does.
fn one(
    knob: &'static str,
    file_knob: &'static str,
    own: Option<&Hidden>,
    file: Option<String>,
    wrong: &mut Wrong,
) -> Option<(&'static str, String)> {
    match (own, file) {
        (Some(_), Some(_)) => {
            wrong.push(both(knob, file_knob));
            None
        }
        (Some(Hidden(own)), None) => Some((knob, own.clone())),
        (None, file) => file.map(|it| (file_knob, it)),
    }
}

fn both(knob: &'static str, file_knob: &'static str) -> (Vec<&'static str>, String) {
    (vec![file_knob, knob], format!("{knob} and {file_knob} are both set; leave one of them out"))
}

fn read_one<T: std::str::FromStr<Err: std::fmt::Display>>(
    text: &str,
    knob: &'static str,
    wrong: &mut Wrong,
) -> Option<T> {
    text.trim().parse().map_err(|error: T::Err| wrong.push((vec![knob], error.to_string()))).ok()
}

/// A secret that is not easily guessed.
fn long_enough(text: &str, knob: &'static str, wrong: &mut Wrong) -> Option<String> {
    let secret = text.trim();
    if secret.len() < KEY_BYTES_MIN {
        let what = format!("a secret has at least {KEY_BYTES_MIN} characters; `maitre key` makes one");
        wrong.push((vec![knob], what));
        return None;
    }
    Some(secret.to_owned())
}

/// What salts follow from, if there are to be any. Where no secret was given it is rolled, once for this process: a
/// reload must not turn every cache cold.
fn salter(by: SaltBy, secret: Option<(&'static str, String)>, wrong: &mut Wrong) -> Option<Salter> {
    static ROLLED: OnceLock<[u8; 32]> = OnceLock::new();
    if let Some((knob, secret)) = secret {
        let secret = long_enough(&secret, knob, wrong)?;
        return (by == SaltBy::Tenant).then(|| Salter::of(secret.as_bytes()));
    }
    if by == SaltBy::Off {
        return None;
    }
    match maitre_proxy::secret::dice() {
        Ok(dice) => Some(Salter::of(ROLLED.get_or_init(|| dice))),
        Err(error) => {
            let what = format!("the system has no random bytes for us ({error}); set salt.secret");
            wrong.push((vec!["salt.by"], what));
            None
        }
    }
}

/// A row, the knob it was read at, and where in a file.
type Row = (&'static str, String, Written);

/// The rows of both places, each key once.
fn rows(secrets: &Secrets, file: Option<String>, wrong: &mut Wrong) -> Vec<Row> {
    let own = secrets.keys.iter().map(|it| ("keys", String::new(), it.clone()));
    let mut rows: Vec<Row> = own.collect();
    if let (Some(text), Some(path)) = (file, &secrets.keys_file) {
        let before = rows.len();
        for (number, line) in text.lines().enumerate().map(|(at, it)| (at + 1, it.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = format!("{}:{number}: ", path.display());
            match key::read(line) {
                Ok(row) => rows.push(("keys_file", place, row)),
                Err(what) => wrong.push((vec!["keys_file"], format!("{place}{what}"))),
            }
        }
        if rows.len() == before && wrong.is_empty() {
            let path = path.display();
            let what = format!("{path} holds no key; without any, requests would need none");
            wrong.push((vec!["keys_file"], what));
        }
    }
    if rows.len() > KEYS_MAX {
        let what = format!("there are {} keys, and can be {KEYS_MAX}", rows.len());
        wrong.push((vec![rows[KEYS_MAX].0], what));
        rows.truncate(KEYS_MAX);
    }
    let mut seen = HashMap::new();
    rows.retain(|(knob, place, row)| match seen.entry(row.secret) {
        Entry::Vacant(entry) => {
            entry.insert(());
            true
        }
        Entry::Occupied(_) => {
            wrong.push((vec![*knob], format!("{place}{} is there twice", row.shown())));
            false
        }
    });
    rows
}

/// Gives tenants the limits that their keys name. A limit is a tenant's, whichever of its keys is used; so it stands
/// in one place.
fn limit(config: &mut Config, rows: &[Row]) -> Wrong {
    let settings = &mut config.settings.brain.queue;
    let mut wrong = Vec::new();
    let mut given: BTreeMap<String, (Option<u32>, Option<u64>)> = BTreeMap::new();
    for (knob, place, row) in rows {
        let limits = (row.requests_per_minute, row.tokens_per_minute);
        if limits == (None, None) {
            continue;
        }
        let name = row.tenant();
        let shown = masked(&name);
        if given.get(&name).is_some_and(|it| *it != limits) {
            let what = format!(
                "{place}another key of {shown} has other limits; say rpm and tpm once, under tenants"
            );
            wrong.push((vec![*knob], what));
            continue;
        }
        let id = tenant(name.as_bytes());
        let is_new = !given.contains_key(&name);
        let terms = settings.tenants.get(&id).map(|it| it.terms);
        let has_own = terms.is_some_and(|it| (it.requests_per_minute, it.tokens_per_minute) != (None, None));
        if is_new && has_own {
            wrong.push((
                vec![*knob, "tenants"],
                format!("{place}{shown} has limits under tenants; say them once"),
            ));
            continue;
        }
        if terms.is_none() && settings.tenants.len() == TENANTS_MAX {
            wrong.push((
                vec![*knob],
                format!("{place}{shown} is one too many; there can be {TENANTS_MAX} tenants"),
            ));
            continue;
        }
        let (requests_per_minute, tokens_per_minute) = limits;
        let terms = Terms { requests_per_minute, tokens_per_minute, ..terms.unwrap_or(settings.others) };
        settings.tenants.insert(id, Tenant { name: name.clone(), terms });
        given.insert(name, limits);
    }
    wrong
}

fn look_up(config: &Config, rows: Vec<Row>, wrong: &mut Wrong) -> Vec<(Secret, Key)> {
    let settings = &config.settings;
    if let Some((knob, ..)) = rows.first()
        && settings.door.tenant_by == By::Adapter
    {
        let what = "where there are keys they say whose a request is; leave tenant.by = \"adapter\" out";
        wrong.push((vec!["tenant.by", knob], what.to_owned()));
    }
    let mut keys = Vec::new();
    for (knob, place, row) in rows {
        let class = row.best.as_deref().map(|it| queue::class_called(&settings.brain.queue, it));
        let best = match class.unwrap_or(Ok(ClassId(0))) {
            Ok(class) => class,
            Err(what) => {
                wrong.push((vec![knob, "classes"], format!("{place}{}: best: {what}", row.shown())));
                continue;
            }
        };
        let key = Key { tenant: row.tenant(), best, models: row.models, trusted: row.trusted };
        keys.push((row.secret, key));
    }
    keys
}

#[cfg(test)]
mod tests;
