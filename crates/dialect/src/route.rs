//! The API of a request, recognised from its path alone.
//!
//! A closed list: the caller passes other paths through or refuses them, and never guesses.

/// One request API. It decides which body fields hold the prompt, how a stream ends, and the shape of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    Chat,
    Completions,
    Responses,
    Messages,
    /// How many tokens a request to `Messages` would have.
    CountTokens,
    Embeddings,
    Rerank,
    Score,
    Classify,
    Tokenize,
    Detokenize,
    /// SGLang's own API.
    Generate,
}

/// How a stream of this route marks its end. A stream that ends any other way was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The line `data: [DONE]`.
    Done,
    /// An event of one of these types.
    Event(&'static [&'static str]),
}

impl Route {
    pub const ALL: [Route; 12] = [
        Route::Chat,
        Route::Completions,
        Route::Responses,
        Route::Messages,
        Route::CountTokens,
        Route::Embeddings,
        Route::Rerank,
        Route::Score,
        Route::Classify,
        Route::Tokenize,
        Route::Detokenize,
        Route::Generate,
    ];

    /// The route of a request path, without its query string.
    pub fn of(path: &str) -> Option<Route> {
        Some(match path {
            "/v1/chat/completions" => Route::Chat,
            "/v1/completions" => Route::Completions,
            "/v1/responses" => Route::Responses,
            "/v1/messages" => Route::Messages,
            "/v1/messages/count_tokens" => Route::CountTokens,
            "/v1/embeddings" => Route::Embeddings,
            // Of these, each engine has some spellings.
            "/rerank" | "/v1/rerank" | "/v2/rerank" => Route::Rerank,
            "/score" | "/v1/score" => Route::Score,
            "/classify" | "/v1/classify" => Route::Classify,
            "/tokenize" | "/v1/tokenize" => Route::Tokenize,
            "/detokenize" | "/v1/detokenize" => Route::Detokenize,
            "/generate" => Route::Generate,
            _ => return None,
        })
    }

    /// The metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Route::Chat => "chat",
            Route::Completions => "completions",
            Route::Responses => "responses",
            Route::Messages => "messages",
            Route::CountTokens => "count_tokens",
            Route::Embeddings => "embeddings",
            Route::Rerank => "rerank",
            Route::Score => "score",
            Route::Classify => "classify",
            Route::Tokenize => "tokenize",
            Route::Detokenize => "detokenize",
            Route::Generate => "generate",
        }
    }

    /// Whether the engine generates tokens after the prefill.
    pub const fn decodes(self) -> bool {
        matches!(
            self,
            Route::Chat | Route::Completions | Route::Responses | Route::Messages | Route::Generate
        )
    }

    pub const fn end(self) -> End {
        match self {
            Route::Messages => End::Event(&["message_stop"]),
            Route::Responses => End::Event(&["response.completed", "response.failed", "response.incomplete"]),
            _ => End::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: Option<(&str, bool, bool)>) {
        let actual =
            Route::of(path).map(|it| (it.name(), it.decodes(), it.decodes() && it.end() == End::Done));
        assert_eq!(actual, expected, "path: {path}");
    }

    #[test]
    fn each_path_has_a_name_and_a_stream_end() {
        check("/v1/chat/completions", Some(("chat", true, true)));
        check("/v1/completions", Some(("completions", true, true)));
        check("/v1/responses", Some(("responses", true, false)));
        check("/v1/messages", Some(("messages", true, false)));
        check("/v1/embeddings", Some(("embeddings", false, false)));
        check("/v1/messages/count_tokens", Some(("count_tokens", false, false)));
        for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
            check(path, Some(("rerank", false, false)));
        }
        for name in ["score", "classify", "tokenize", "detokenize"] {
            check(&format!("/{name}"), Some((name, false, false)));
            check(&format!("/v1/{name}"), Some((name, false, false)));
        }
        check("/generate", Some(("generate", true, true)));
    }

    #[test]
    fn similar_paths_are_not_a_route() {
        check("/v1/chat/completions/", None);
        check("/v1/messages/count_tokens/", None);
        check("/V1/chat/completions", None);
        check("", None);
    }

    #[test]
    fn names_are_distinct_labels() {
        let names: std::collections::HashSet<_> = Route::ALL.iter().map(|it| it.name()).collect();
        assert_eq!(names.len(), Route::ALL.len());
    }
}
