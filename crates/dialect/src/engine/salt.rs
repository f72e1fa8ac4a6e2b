//! Where an engine takes a salt: the field of a request's body that keeps its cache apart from others'.
//!
//! vLLM has `cache_salt` on the three APIs of OpenAI's that it generates for; it heeds none on Anthropic's. SGLang has it
//! on two, and on its own API `extra_key`. Others have no such thing: whoever shares one of those shares its cache.

use super::Kind;
use crate::route::Route;

/// The name of the field; none where the engine has none. One whose brand is not known yet may be of those that have it,
/// and others pass it over.
pub fn salt_field(kind: Option<Kind>, route: Route) -> Option<&'static str> {
    match (kind.unwrap_or(Kind::Vllm), route) {
        (Kind::Vllm, Route::Chat | Route::Completions | Route::Responses)
        | (Kind::Sglang, Route::Chat | Route::Completions) => Some("cache_salt"),
        (Kind::Sglang, Route::Generate) => Some("extra_key"),
        _ => None,
    }
}

impl Kind {
    /// Whether it can keep caches apart at all.
    pub fn takes_salts(self) -> bool {
        salt_field(Some(self), Route::Chat).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_brand_takes_it_where_it_does() {
        use Route::{Chat, Completions, Embeddings, Generate, Messages, Responses};
        let routes = [Chat, Completions, Responses, Generate, Messages, Embeddings];
        let salted = |kind: Kind| routes.map(|route| salt_field(Some(kind), route).unwrap_or("-"));
        assert_eq!(salted(Kind::Vllm), ["cache_salt", "cache_salt", "cache_salt", "-", "-", "-"]);
        assert_eq!(salted(Kind::Sglang), ["cache_salt", "cache_salt", "-", "extra_key", "-", "-"]);
        for kind in [Kind::TensorRt, Kind::LlamaCpp, Kind::Generic] {
            assert_eq!((salted(kind), kind.takes_salts()), (["-"; 6], false));
        }
        assert_eq!(salt_field(None, Chat), Some("cache_salt"));
        assert!(Kind::Vllm.takes_salts() && Kind::Sglang.takes_salts());
    }
}
