//! A key and its rights as one text: `sha256:9f86…?tenant=acme&best=standard&models=llama-8b|qwen*&trusted`.
//!
//! Before the question mark is the hash, or the key itself, of which only the hash is kept. An error shows only the
//! beginning of a key.

use maitre_proxy::secret::Secret;
use maitre_queue::settings::masked;

use crate::field::List;
use crate::form::{Custom, Form, ItemTable, Secrecy, Switch};
use crate::options;
use crate::queue::class::CLASS_NAME;
use crate::queue::tenant::{self, REQUESTS, TOKENS};

/// A duplicate key is detected later, together with those of the file.
pub(crate) const KEY_LIST: List<Custom<ClientKey>> = List {
    item: Custom { name: "KEY", read, show, secrecy: |_| Secrecy::ForFiles },
    add: |list, key, _| {
        list.push(key);
        Ok(())
    },
    table: Some(ItemTable::new("a key", "key")),
};

const OPTIONS: &str = "tenant, best, models, rpm, tpm and trusted";
/// Chosen: a key for more models than this is a key for all.
const MODELS_MAX: usize = 256;
/// Digits of a hash that errors show.
const DIGITS_SHOWN: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientKey {
    pub(super) secret: Secret,
    pub(super) tenant: Option<String>,
    pub(super) best: Option<String>,
    pub(super) models: Vec<String>,
    pub(super) requests_per_minute: Option<u32>,
    pub(super) tokens_per_minute: Option<u64>,
    pub(super) trusted: bool,
}

impl ClientKey {
    fn of(secret: Secret) -> ClientKey {
        ClientKey {
            secret,
            tenant: None,
            best: None,
            models: Vec::new(),
            requests_per_minute: None,
            tokens_per_minute: None,
            trusted: false,
        }
    }

    /// The named tenant, or a tenant named after the hash of this key.
    pub(super) fn tenant(&self) -> String {
        self.tenant.clone().unwrap_or_else(|| self.secret.to_string())
    }

    /// As much as may be shown.
    pub(super) fn shown(&self) -> String {
        shown(&self.secret.to_string())
    }
}

fn shown(text: &str) -> String {
    match text.strip_prefix("sha256:").and_then(|it| it.get(..DIGITS_SHOWN)) {
        Some(digits) => format!("sha256:{digits}…"),
        None => masked(text),
    }
}

pub(super) fn read(text: &str) -> Result<ClientKey, String> {
    let (name, options) = options::split(text);
    let secret = name.parse::<Secret>();
    let mut errors: Vec<String> = secret.as_ref().err().map(ToString::to_string).into_iter().collect();
    let mut key = ClientKey::of(secret.unwrap_or_else(|_| Secret::of(b"")));
    // Where a key holds a question mark, an unknown option may be the rest of it.
    errors.extend(options::read(options, OPTIONS, masked, |option, value| {
        Some(match option {
            "tenant" => tenant::name(value).map(|it| key.tenant = Some(it)),
            "best" => CLASS_NAME.read(value).map(|it| key.best = Some(it)),
            "models" => models(value).map(|it| key.models = it),
            "rpm" => REQUESTS.read(value).map(|it| key.requests_per_minute = Some(it)),
            "tpm" => TOKENS.read(value).map(|it| key.tokens_per_minute = Some(it)),
            // The option alone means true.
            "trusted" => {
                Switch.read(if value.is_empty() { "true" } else { value }).map(|it| key.trusted = it)
            }
            _ => return None,
        })
    }));
    options::check(&shown(name), &errors)?;
    Ok(key)
}

fn models(text: &str) -> Result<Vec<String>, String> {
    let models: Vec<String> = text.split('|').map(|it| it.trim().to_owned()).collect();
    let is_name = |it: &String| !it.is_empty() && !it.strip_suffix('*').unwrap_or(it).contains('*');
    match models.iter().all(is_name) && models.len() <= MODELS_MAX {
        true => Ok(models),
        false => Err(format!("{text:?} names no models; write up to {MODELS_MAX}, as in \"llama-8b|qwen*\"")),
    }
}

fn show(key: &ClientKey) -> String {
    let options = [
        key.tenant.as_ref().map(|it| format!("tenant={it}")),
        key.best.as_ref().map(|it| format!("best={it}")),
        (!key.models.is_empty()).then(|| format!("models={}", key.models.join("|"))),
        key.requests_per_minute.map(|it| format!("rpm={it}")),
        key.tokens_per_minute.map(|it| format!("tpm={it}")),
        key.trusted.then(|| "trusted".to_owned()),
    ];
    options::join(&key.secret.to_string(), options)
}
