//! A key and what it opens as one text: `sha256:9f86…?tenant=acme&best=standard&models=llama-8b|qwen*&trusted`.
//!
//! Before the question mark stands the hash, or the key itself, of which only the hash is kept. As with tenants, a
//! message says no more of a key than its beginning.

use maitre_proxy::secret::Secret;
use maitre_queue::settings::masked;

use super::super::form;
use super::super::queue::{class, divide, join, tenant, told};

const PARTS: &str = "tenant, best, models, rpm, tpm and trusted";
/// Chosen: a key for more models than this is a key for all.
const MODELS_MAX: usize = 256;
/// How much of a hash tells keys apart.
const DIGITS_SHOWN: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Written {
    pub(super) secret: Secret,
    pub(super) tenant: Option<String>,
    pub(super) best: Option<String>,
    pub(super) models: Vec<String>,
    pub(super) requests_per_minute: Option<u32>,
    pub(super) tokens_per_minute: Option<u64>,
    pub(super) trusted: bool,
}

impl Written {
    /// Its tenant: itself, if none is named.
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

pub(in super::super) fn read(text: &str) -> Result<Written, String> {
    let (name, parts) = divide(text);
    let none = || Written {
        secret: Secret::of(b""),
        tenant: None,
        best: None,
        models: Vec::new(),
        requests_per_minute: None,
        tokens_per_minute: None,
        trusted: false,
    };
    let (mut written, mut wrong) = (none(), Vec::new());
    match name.parse() {
        Ok(secret) => written.secret = secret,
        Err(error) => wrong.push(error.to_string()),
    }
    for (part, value) in parts {
        let set = match part {
            "tenant" => tenant::name(value).map(|it| written.tenant = Some(it)),
            "best" => class::name(value).map(|it| written.best = Some(it)),
            "models" => models(value).map(|it| written.models = it),
            "rpm" => tenant::requests(value).map(|it| written.requests_per_minute = Some(it)),
            "tpm" => tenant::tokens(value).map(|it| written.tokens_per_minute = Some(it)),
            "trusted" if value.is_empty() => {
                written.trusted = true;
                Ok(())
            }
            "trusted" => form::switch(value).map(|it| written.trusted = it),
            _ => {
                // Where a key holds a question mark, this may be the rest of it.
                wrong.push(format!("no part is called {:?}; known: {PARTS}", masked(part)));
                continue;
            }
        };
        wrong.extend(set.err().map(|what| format!("{part}: {what}")));
    }
    told(&shown(name), &wrong)?;
    Ok(written)
}

fn models(text: &str) -> Result<Vec<String>, String> {
    let models: Vec<String> = text.split('|').map(|it| it.trim().to_owned()).collect();
    let is_name = |it: &String| !it.is_empty() && !it.strip_suffix('*').unwrap_or(it).contains('*');
    match models.iter().all(is_name) && models.len() <= MODELS_MAX {
        true => Ok(models),
        false => Err(format!("{text:?} names no models; write up to {MODELS_MAX}, as in \"llama-8b|qwen*\"")),
    }
}

/// With the hash, whatever was written.
pub(in super::super) fn show(written: &Written) -> String {
    let parts = [
        written.tenant.as_ref().map(|it| format!("tenant={it}")),
        written.best.as_ref().map(|it| format!("best={it}")),
        (!written.models.is_empty()).then(|| format!("models={}", written.models.join("|"))),
        written.requests_per_minute.map(|it| format!("rpm={it}")),
        written.tokens_per_minute.map(|it| format!("tpm={it}")),
        written.trusted.then(|| "trusted".to_owned()),
    ];
    join(&written.secret.to_string(), &parts.into_iter().flatten().collect::<Vec<_>>())
}
