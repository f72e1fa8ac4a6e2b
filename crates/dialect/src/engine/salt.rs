//! Where an engine accepts a cache salt: the body field that separates a request's cache from others.
//!
//! vLLM accepts `cache_salt` on the three OpenAI APIs that generate, and on Anthropic's only in new versions (0.32). SGLang
//! accepts it on two, and `extra_key` on its own API. Other engines have no such field: their clients share
//! one cache.

use super::EngineKind;
use crate::route::Route;

/// The name of the field; none where the engine has none. An engine of unknown brand gets it too: it may
/// support the field, and otherwise ignores it.
pub fn salt_field(kind: Option<EngineKind>, route: Route) -> Option<&'static str> {
    // `/generate` is SGLang's.
    let likely = if route == Route::Generate { EngineKind::Sglang } else { EngineKind::Vllm };
    match (kind.unwrap_or(likely), route) {
        (EngineKind::Vllm, Route::Chat | Route::Completions | Route::Responses)
        | (EngineKind::Sglang, Route::Chat | Route::Completions) => Some("cache_salt"),
        (EngineKind::Sglang, Route::Generate) => Some("extra_key"),
        _ => None,
    }
}

impl EngineKind {
    /// Whether the engine can separate caches at all.
    pub fn takes_salts(self) -> bool {
        salt_field(Some(self), Route::Chat).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_depends_on_brand_and_route() {
        use Route::{Chat, Completions, Embeddings, Generate, Messages, Responses};
        let routes = [Chat, Completions, Responses, Generate, Messages, Embeddings];
        let salted = |kind: EngineKind| routes.map(|route| salt_field(Some(kind), route).unwrap_or("-"));
        assert_eq!(salted(EngineKind::Vllm), ["cache_salt", "cache_salt", "cache_salt", "-", "-", "-"]);
        assert_eq!(salted(EngineKind::Sglang), ["cache_salt", "cache_salt", "-", "extra_key", "-", "-"]);
        for kind in [EngineKind::TensorRt, EngineKind::LlamaCpp, EngineKind::Generic] {
            assert_eq!((salted(kind), kind.takes_salts()), (["-"; 6], false));
        }
        assert_eq!(salt_field(None, Chat), Some("cache_salt"));
        assert_eq!(salt_field(None, Generate), Some("extra_key"), "no other engine has this route");
        assert!(EngineKind::Vllm.takes_salts() && EngineKind::Sglang.takes_salts());
    }
}
