//! The API keys of clients, and what each of them permits.
//!
//! Without any keys every client may use everything. With at least one, every request on the main listener needs a key.
//!
//! A presented key is hashed once and looked up by its hash, in a map that hashes it again with a random seed. A caller
//! cannot influence how long that takes: it cannot choose the first bytes of a SHA-256 and does not know the seed. The
//! comparison takes the same time wherever two hashes differ. A scan over all keys would be no safer, and slower.
//!
//! Of a key only its hash is kept.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use maitre_base::{ClassId, TenantId};
use maitre_queue::settings::tenant;

use crate::headers::{API_KEY, AZURE_KEY, may_have_key};
use crate::refuse::Refused;
use crate::secret::Secret;

/// Most keys there can be. Chosen: as many as tenants with settings of their own.
pub const KEYS_MAX: usize = 10_000;

/// What one key permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// The tenant whose shares and limits apply.
    pub tenant: String,
    /// The best class it may ask for; the tenant's own limit applies as well.
    pub best: ClassId,
    /// The models it may use. A pattern that ends in `*` matches a prefix. Empty: every model.
    pub models: Vec<String>,
    /// It may ask for explanations, steer engines by headers and body fields, and, where a header identifies tenants, act
    /// for other tenants.
    pub trusted: bool,
}

impl ApiKey {
    pub fn may_use(&self, model: &str) -> bool {
        self.models.is_empty()
            || self.models.iter().any(|it| match it.strip_suffix('*') {
                Some(prefix) => model.starts_with(prefix),
                None => it == model,
            })
    }
}

/// All keys, by their hashes, and the names of their tenants.
#[derive(Clone, Default)]
pub struct ApiKeys {
    keys: HashMap<Secret, Arc<ApiKey>>,
    tenants: HashMap<TenantId, String>,
}

impl ApiKeys {
    /// If a key is listed twice the last entry counts.
    pub fn new(rows: impl IntoIterator<Item = (Secret, ApiKey)>) -> ApiKeys {
        let keys: HashMap<_, _> = rows.into_iter().map(|(secret, key)| (secret, Arc::new(key))).collect();
        let tenants = keys.values().map(|it| (tenant(it.tenant.as_bytes()), it.tenant.clone())).collect();
        ApiKeys { keys, tenants }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The tenant's name, if it is that of a key. None of them is a secret: settings and messages name them.
    pub(crate) fn tenant_name(&self, tenant: TenantId) -> Option<&str> {
        self.tenants.get(&tenant).map(String::as_str)
    }

    /// The caller who sends these headers.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Caller, Refused> {
        if self.is_empty() {
            return Ok(Caller::Anyone);
        }
        let key = presented(headers).ok_or(Refused::NoKey)?;
        self.keys.get(&Secret::of(key)).cloned().map(Caller::Known).ok_or(Refused::WrongKey)
    }
}

/// Only how many there are.
impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.len())
    }
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// The router has no keys: every client may use everything.
    Anyone,
    Known(Arc<ApiKey>),
}

impl Caller {
    /// Whether it may ask for explanations and choose its priority. Without keys, every client may.
    pub(crate) fn is_trusted(&self) -> bool {
        match self {
            Caller::Anyone => true,
            Caller::Known(key) => key.trusted,
        }
    }

    /// Whether it may control engines past the router, by headers and body fields. Without keys nobody may: one such
    /// field can end an engine or make it connect elsewhere, and a client that reaches a listener on loopback may be a web page
    /// in the operator's browser, or any client of a gateway on the same machine.
    pub(crate) fn may_steer(&self) -> bool {
        self.key().is_some_and(|it| it.trusted)
    }

    pub(crate) fn key(&self) -> Option<&ApiKey> {
        match self {
            Caller::Anyone => None,
            Caller::Known(key) => Some(key),
        }
    }

    pub(crate) fn may_use(&self, model: &str) -> bool {
        self.key().is_none_or(|it| it.may_use(model))
    }

    /// Whether there are models it may not use.
    pub(crate) fn is_limited(&self) -> bool {
        self.key().is_some_and(|it| !it.models.is_empty())
    }
}

/// The key in these headers: the bearer token, else `x-api-key`, else `api-key`.
pub(crate) fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    if !may_have_key(headers) {
        return None;
    }
    let bearer = headers.get(AUTHORIZATION).and_then(|it| {
        let (scheme, token) = it.as_bytes().split_at_checked("bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
    });
    let bare = || headers.get(API_KEY).or_else(|| headers.get(AZURE_KEY)).map(HeaderValue::as_bytes);
    bearer.or_else(bare).map(<[u8]>::trim_ascii).filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "correct-horse-battery";

    fn key(models: &[&str]) -> ApiKey {
        let models = models.iter().map(|&it| it.to_owned()).collect();
        ApiKey { tenant: "acme".to_owned(), best: ClassId(0), models, trusted: false }
    }

    fn keys() -> ApiKeys {
        let others = (0..500).map(|it| (Secret::of(format!("another-key-{it}").as_bytes()), key(&[])));
        ApiKeys::new(others.chain([(Secret::of(GOOD.as_bytes()), key(&["m"]))]))
    }

    fn ask(keys: &ApiKeys, rows: &[(&'static str, &str)]) -> Result<Caller, Refused> {
        keys.caller(
            &rows.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect(),
        )
    }

    #[test]
    fn a_key_is_found_in_any_of_its_headers_and_nothing_else_is() {
        let keys = keys();
        let bearer = format!("Bearer {GOOD}");
        for rows in [
            [("authorization", bearer.as_str())],
            [("authorization", &bearer.replace("Bearer", "bEARER"))],
            [("x-api-key", GOOD)],
            [("api-key", GOOD)],
        ] {
            let caller = ask(&keys, &rows).unwrap();
            assert!(caller.may_use("m") && !caller.may_use("n") && !caller.is_trusted(), "{rows:?}");
        }
        for (rows, expected) in [
            (vec![], Refused::NoKey),
            (vec![("authorization", "Bearer ")], Refused::NoKey),
            (vec![("authorization", "Basic Zm9vOmJhcg==")], Refused::NoKey),
            (vec![("authorization", GOOD)], Refused::NoKey),
            (vec![("x-api-key", "correct-horse-batterx")], Refused::WrongKey),
            (vec![("x-api-key", "correct-horse-batter")], Refused::WrongKey),
            (vec![("x-api-key", "")], Refused::NoKey),
            // The first header with a value counts, as for priorities.
            (vec![("authorization", "Bearer wrong"), ("x-api-key", GOOD)], Refused::WrongKey),
        ] {
            assert_eq!(ask(&keys, &rows).unwrap_err(), expected, "{rows:?}");
        }
    }

    #[test]
    fn a_hash_is_not_its_key() {
        let hash = Secret::of(GOOD.as_bytes()).to_string();
        assert_eq!(ask(&keys(), &[("x-api-key", &hash)]).unwrap_err(), Refused::WrongKey);
    }

    #[test]
    fn without_keys_every_caller_is_trusted_but_to_steer_engines() {
        let caller = ask(&ApiKeys::default(), &[("x-api-key", "whatever")]).unwrap();
        assert!(
            caller.is_trusted() && !caller.may_steer() && caller.may_use("anything") && !caller.is_limited()
        );
    }

    #[test]
    fn a_model_is_allowed_by_its_name_or_its_beginning() {
        let key = key(&["llama-8b", "qwen*"]);
        for (model, expected) in [
            ("llama-8b", true),
            ("llama-8b:fr", false),
            ("qwen", true),
            ("qwen3:fr", true),
            ("LLAMA-8B", false),
            ("", false),
        ] {
            assert_eq!(key.may_use(model), expected, "{model}");
        }
    }

    #[test]
    fn nothing_of_a_key_is_shown() {
        let keys = keys();
        assert_eq!(format!("{keys:?}"), "ApiKeys(501)");
    }
}
